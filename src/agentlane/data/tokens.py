"""An estimate of how many tokens texts and messages take in a request, where no tokenizer is at hand.

It errs on the side of too many. ``python -m benchmarks.token_estimate`` measures it: of all requests of a recorded
session it says 1.10 times what the provider counted, of nine in ten of them 0.98 to 1.32 times; of English, code and
JSON 0.9 to 1.5 times what five tokenizers do. It says too little of languages that few write and that need no letters
beyond ASCII (down to 0.65), of rare characters (0.7) and of letters in no order (0.46).
docs/explanation/token-estimate.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from agentlane.data.messages import (
    ImagePart,
    Message,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)

TokenCounter: TypeAlias = Callable[[Message], int]
"""How many tokens a message takes in a request; a pure function, asked once for each message."""

TOKENS_MAX = 2**40
"""Beyond that nothing is a count of tokens, of a message or of a request: sums must fit in a record."""

IMAGE_TOKENS = 1_600
"""Any image: about what the largest takes that a provider does not scale down."""

MESSAGE_TOKENS = 8
CALL_TOKENS = 45
ARGUMENT_TOKENS = 5
"""What stands around a message, a call of a tool, and each of its arguments."""

TOOLS_TOKENS = 400
TOOL_TOKENS = 30
"""What a provider says about tools where there are some, and around each."""

SEALED_BYTES = 5
"""How many bytes of what a provider sealed (reasoning that goes back to it) are counted as one token."""


def estimate_text(text: str) -> int:
    """About how many tokens ``text`` is. Takes time in proportion to its length, some 5 ns for each character."""
    data = text.encode(errors="surrogatepass")
    classes = int.from_bytes(data.translate(_CLASS), "little")
    hundredths = _CHARACTER * _bits(data, _COST) + _BOUNDARY * (classes ^ (classes >> 8)).bit_count()
    if not text.isascii():
        hundredths += _BEYOND * _bits(data, _BEYOND_COST)
    return -(-hundredths // 100) + len(data) // _LONGEST


def estimate_message(message: Message) -> int:
    """About how many tokens ``message`` takes in a request, with what stands around it there.

    Reasoning counts as if it is sent back, which an adapter does to the model that gave it: as its text, or as what is
    sealed, whichever is more. Ids do not count.
    """
    tokens = MESSAGE_TOKENS
    for part in message.content:
        match part:
            case TextPart():
                tokens += estimate_text(part.text)
            case ImagePart():
                tokens += IMAGE_TOKENS
            case ThinkingPart():
                tokens += max(estimate_text(part.text), len(part.signature or "") // SEALED_BYTES)
            case ToolCallPart():
                tokens += CALL_TOKENS + ARGUMENT_TOKENS * len(part.arguments or ())
                tokens += estimate_text(part.name + _arguments(part))
            case ProviderPart():
                tokens += estimate_text(_json(part.data))
    return tokens


def estimate_request(instructions: str, tools: Sequence[tuple[str, str, str]]) -> int:
    """About how many tokens a request takes besides its messages: its instructions, and its tools, each as name,
    description, and JSON of the schema of its parameters."""
    tokens = MESSAGE_TOKENS + estimate_text(instructions)
    if tools:
        tokens += TOOLS_TOKENS
    return tokens + sum(TOOL_TOKENS + sum(map(estimate_text, tool)) for tool in tools)


def _arguments(call: ToolCallPart) -> str:
    return (call.arguments_text or "") if call.arguments is None else _json(call.arguments)


def _json(data: object) -> str:
    return msgspec.json.encode(data).decode()


# How it is counted. Each byte of the text is looked up in a table whose value has as many bits as the byte costs, and
# the bits of all of them are counted at once; so nothing runs for each character but what C does.
#
# Characters cost something each. So does each boundary between two classes of characters, as between a word and a
# space, or within camelCase and base64: as much as the classes' values differ in. The end of a text is one too, but for
# that of a small letter. Beyond ASCII a character's first byte says what script it is of.


def _table(costs: Iterable[tuple[Iterable[int], int]], otherwise: int = 0) -> bytes:
    table = bytearray([otherwise] * 256)
    for values, cost in costs:
        for value in values:
            table[value] = cost
    return bytes(table)


def _bits(data: bytes, table: bytes) -> int:
    return int.from_bytes(data.translate(table), "little").bit_count()


def _cost(units: int) -> int:
    return (1 << units) - 1


_CHARACTER, _BOUNDARY, _BEYOND = 12, 9, 40
"""Hundredths of a token for each bit in the tables below."""

_LONGEST = 128
"""How many spaces, or bytes of anything, are one token at most."""

_LOWER, _UPPER, _DIGITS = b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789"
_MARKS = bytes(value for value in range(33, 127) if not chr(value).isalnum())
_CONTROLS = bytes(value for value in (*range(32), 127) if value not in b"\t\n\r")

_COST = _table(
    (
        (_LOWER, _cost(2)),
        (_UPPER, _cost(3)),
        (_DIGITS, _cost(8)),
        (_MARKS, _cost(3)),
        (b"\n\r", _cost(8)),
        (b"\t", _cost(1)),
        (_CONTROLS, _cost(8)),
    )
)

_BEYOND_COST = _table(
    (
        (range(0xC2, 0xCE), _cost(6)),  # Latin with marks
        (range(0xCE, 0xD0), _cost(3)),  # Greek
        (range(0xD0, 0xD4), _cost(2)),  # Cyrillic
        (range(0xD4, 0xD7), _cost(5)),  # Armenian, marks of Hebrew
        (range(0xD7, 0xE0), _cost(3)),  # Hebrew, Arabic
        ((0xE0,), _cost(5)),  # scripts of India, Thai
        ((0xE1,), _cost(8)),  # Georgian, Ethiopic, Khmer
        ((0xE2,), _cost(4)),  # signs, arrows, lines
        ((0xE3,), _cost(3)),  # kana
        (range(0xE4, 0xEE), _cost(4)),  # Chinese characters, Hangul
        ((0xEE,), _cost(8)),  # private use
        ((0xEF,), _cost(4)),  # wide forms, presentation forms
        (range(0xF0, 0xF5), _cost(8)),  # emoji, rare scripts
    )
)

_CLASS = _table(
    (
        (_LOWER, 0b00000000),
        (_UPPER, 0b00111111),
        (_DIGITS, 0b11111000),
        (_MARKS, 0b00100000),
        (b" \t", 0b00110000),
        (b"\n\r", 0b10110000),
    ),
    otherwise=0b00110000,
)
