"""Claim: the estimate of tokens is about right for every kind of text, rather too many, and grows with what is sent."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.messages import (
    AssistantMessage,
    ImagePart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.data.tokens import (
    ARGUMENT_TOKENS,
    CALL_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    TOOL_TOKENS,
    TOOLS_TOKENS,
    estimate_message,
    estimate_request,
    estimate_text,
)
from benchmarks import token_estimate
from benchmarks.token_estimate import SENTENCES
from tests.recorded.loader import recorded_session

# What tokenizers count of these: the least and the most of cl100k, o200k, qwen, deepseek and the one of Claude of 2023.
KNOWN: dict[str, tuple[str, int, int]] = {
    "English": (SENTENCES["English"], 22, 22),
    "German": (SENTENCES["German"], 21, 31),
    "Russian": (SENTENCES["Russian"], 22, 46),
    "Arabic": (SENTENCES["Arabic"], 20, 69),
    "Hindi": (SENTENCES["Hindi"], 20, 77),
    "Japanese": (SENTENCES["Japanese"], 27, 46),
    "Chinese": (SENTENCES["Chinese"], 20, 31),
    "base64": (b64encode(Random(1).randbytes(3_000)).decode(), 2_700, 3_000),
    "digits": ("0123456789" * 100, 334, 1_000),
    "spaces": (" " * 10_000, 12, 79),
    "la la la": ("la " * 1_000, 1_000, 1_001),
    "code": ("    for index, value in enumerate(self.values):\n        total += value.size\n" * 20, 300, 420),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_text_of_each_kind_is_estimated_near_what_tokenizers_count(kind: str) -> None:
    text, least, most = KNOWN[kind]

    assert 0.85 * most <= estimate_text(text) <= 1.75 * most
    assert estimate_text(text) >= 0.85 * least


def test_the_estimate_of_a_few_texts() -> None:
    texts = ("", "a", "hello", "hello world", "camelCaseName", "42", "é", "日本", "😀", "\ud800")

    assert [estimate_text(text) for text in texts] == [0, 1, 2, 3, 6, 3, 3, 4, 4, 2]


@given(one=st.text(), other=st.text())
def test_two_texts_together_are_about_the_sum_of_both(one: str, other: str) -> None:
    together = estimate_text(one + other)

    assert abs(together - estimate_text(one) - estimate_text(other)) <= 3
    assert together >= estimate_text(one) - 1


@given(text=st.text(max_size=200))
def test_a_text_is_not_estimated_as_more_than_its_bytes_and_then_some(text: str) -> None:
    size = len(text.encode())

    assert (text != "") <= estimate_text(text) <= 2 * size + 1


def answer(*parts: TextPart | ThinkingPart | ToolCallPart | ProviderPart) -> AssistantMessage:
    return AssistantMessage(content=parts, stop_reason="stop")


def test_a_message_is_its_parts_and_what_stands_around_them() -> None:
    text, image = TextPart(text="hello world"), ImagePart(data="QUJD" * 1_000, mime_type="image/png")
    call = ToolCallPart(id="an id of the provider's", name="read", arguments={"path": "a", "ß": [1]})

    assert estimate_message(user("hello world")) == MESSAGE_TOKENS + 3
    assert estimate_message(UserMessage(content=(text, image, image))) == MESSAGE_TOKENS + 3 + 2 * IMAGE_TOKENS
    assert estimate_message(
        ToolResultMessage(call_id="c", name="read", content=(text,), details={"more": "x" * 99})
    ) == (MESSAGE_TOKENS + 3)
    assert estimate_message(answer(text, call)) == (
        MESSAGE_TOKENS + 3 + CALL_TOKENS + 2 * ARGUMENT_TOKENS + estimate_text('read{"path":"a","ß":[1]}')
    )


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (ThinkingPart(text="hello world"), 3),
        (ThinkingPart(text="hello world", signature="s" * 500), 100),
        (ThinkingPart(text="", signature="s" * 500, redacted=True), 100),
        (ToolCallPart(id="c", name="", arguments_text="hello world"), CALL_TOKENS + 3),
        (ToolCallPart(id="c", name="", arguments={}), CALL_TOKENS + 1),
        (ProviderPart(provider="p", data="hello world"), estimate_text('"hello world"')),
    ],
)
def test_what_else_an_answer_holds_counts(part: ThinkingPart | ToolCallPart | ProviderPart, tokens: int) -> None:
    assert estimate_message(answer(part)) == MESSAGE_TOKENS + tokens


def test_instructions_and_tools_count() -> None:
    tools = [("read", "Reads a file.", '{"type":"object"}'), ("", "", "")]

    assert estimate_request("hello world", []) == MESSAGE_TOKENS + 3
    assert estimate_request("", tools) == (
        MESSAGE_TOKENS + TOOLS_TOKENS + 2 * TOOL_TOKENS + sum(estimate_text(text) for text in tools[0])
    )


@pytest.mark.parametrize("make", [lambda n: "word " * n, lambda n: "日本語" * n, lambda n: "😀" * n])
def test_the_estimate_is_in_proportion_to_the_length(make: Callable[[int], str]) -> None:
    one, hundred = estimate_text(make(1_000)), estimate_text(make(100_000))

    assert abs(hundred - 100 * one) <= 100


def test_the_measure_runs_without_any_tokenizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_estimate, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["token_estimate", "--session", ""])

    token_estimate.main()

    printed = capsys.readouterr().out
    assert "tiktoken is not installed" in printed and "no recorded session is named" in printed
    assert f"{'English':24}{len(SENTENCES['English']):8}{estimate_text(SENTENCES['English']):10}\n" in printed


def test_what_a_provider_counted_of_the_recorded_session_is_near() -> None:
    increments = list(token_estimate.increments(recorded_session()))
    ratio = sum(estimate for estimate, _ in increments) / sum(counted for _, counted in increments)

    assert len(increments) > 400 and 1.05 < ratio < 1.15
