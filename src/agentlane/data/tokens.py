"""An estimate of how many tokens texts and messages take in a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from agentlane.data.messages import (
    ImagePart,
    Message,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
)

TokenCounter: TypeAlias = Callable[[Message], int]
"""How many tokens a message takes in a request; a pure function, asked once for each message."""

IMAGE_TOKENS = 1_600
MESSAGE_TOKENS = 8
CALL_TOKENS = 30
TOOLS_TOKENS = 400
TOOL_TOKENS = 30
SEALED_CHARACTERS = 5


def estimate_text(text: str) -> int:
    """About how many tokens ``text`` is."""
    return -(-len(text.encode(errors="surrogatepass")) // 3)


def estimate_message(message: Message) -> int:
    """About how many tokens ``message`` takes in a request."""
    tokens = MESSAGE_TOKENS
    if isinstance(message, ToolResultMessage):
        tokens += CALL_TOKENS
    for part in message.content:
        match part:
            case TextPart():
                tokens += estimate_text(part.text)
            case ImagePart():
                tokens += IMAGE_TOKENS
            case ThinkingPart():
                tokens += max(estimate_text(part.text), len(part.signature or "") // SEALED_CHARACTERS)
            case ToolCallPart():
                tokens += CALL_TOKENS + estimate_text(part.name) + estimate_text(_arguments(part))
            case ProviderPart():
                tokens += estimate_text(_json(part.data))
    return tokens


def estimate_request(instructions: str, tools: Sequence[tuple[str, str, str]]) -> int:
    """About how many tokens the instructions and tools take in a request; a tool is its name, description, and the
    JSON of its parameters."""
    tokens = MESSAGE_TOKENS + estimate_text(instructions)
    if tools:
        tokens += TOOLS_TOKENS
    return tokens + sum(TOOL_TOKENS + sum(map(estimate_text, tool)) for tool in tools)


def _arguments(call: ToolCallPart) -> str:
    if call.arguments is None:
        return call.arguments_text or ""
    return _json(call.arguments)


def _json(data: object) -> str:
    return msgspec.json.encode(data).decode()
