"""Reads the recorded session's format into messages of the library; whatever it does not know is an error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    ErrorInfo,
    Message,
    ModelIdentity,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.data.usage import Usage

VARIABLE = "AGENTLANE_RECORDED_SESSION"
SKIPPED_ROWS = {"session", "model_change", "thinking_level_change"}
STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "toolUse": "tool_calls",
    "length": "length",
    "error": "error",
    "aborted": "aborted",
}


def recorded_session() -> tuple[Message, ...]:
    """The conversation that the environment names; without one the calling test is skipped and says why."""
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} does not name a recorded session")
    return load(Path(path))


def load(path: Path) -> tuple[Message, ...]:
    """Every message of the file, in order."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        return tuple(_messages(lines))


def _messages(lines: Iterator[str]) -> Iterator[Message]:
    for number, line in enumerate(lines, start=1):
        row = json.loads(line)
        if row["type"] in SKIPPED_ROWS:
            continue
        if row["type"] != "message":
            raise ValueError(f"line {number}: a row of type {row['type']!r}")
        try:
            yield message_of(row["message"])
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"line {number}: {error!r}") from error


def message_of(row: dict[str, Any]) -> Message:
    match row["role"]:
        case "user":
            return UserMessage(content=_texts(row["content"]))
        case "assistant":
            return _answer(row)
        case "toolResult":
            return ToolResultMessage(
                call_id=row["toolCallId"],
                name=row["toolName"],
                content=_texts(row["content"]),
                details=row.get("details"),
                is_error=row["isError"],
            )
        case other:
            raise ValueError(f"a message of role {other!r}")


def _answer(row: dict[str, Any]) -> AssistantMessage:
    stop_reason = STOP_REASONS[row["stopReason"]]
    usage: Usage | None = _usage(row["usage"])
    if stop_reason == "aborted" and not any(row["usage"][name] for name in ("input", "output", "cacheRead")):
        usage = None  # zeros that stand for nothing reported yet: unknown is never zero
    message = row.get("errorMessage")
    code = "aborted" if stop_reason == "aborted" else "model_error"
    return AssistantMessage(
        content=tuple(map(_part, row["content"])),
        stop_reason=stop_reason,
        model=ModelIdentity(provider=row["provider"], name=row["model"]),
        usage=usage,
        error=None if message is None else ErrorInfo(code=code, message=message),
    )


def _part(part: dict[str, Any]) -> AssistantPart:
    match part["type"]:
        case "text":
            return TextPart(text=part["text"], signature=part.get("textSignature"))
        case "thinking":
            return ThinkingPart(text=part["thinking"], signature=part.get("thinkingSignature"))
        case "toolCall":
            return _call(part)
        case other:
            raise ValueError(f"a part of type {other!r}")


def _call(part: dict[str, Any]) -> ToolCallPart:
    """A call; one that was half received has only its text, the recorded arguments being guessed from that."""
    text = part.get("partialJson")
    if text is not None and not _is(text, part["arguments"]):
        return ToolCallPart(id=part["id"], name=part["name"], arguments_text=text)
    return ToolCallPart(id=part["id"], name=part["name"], arguments=part["arguments"])


def _is(text: str, arguments: Any) -> bool:
    try:
        return bool(json.loads(text) == arguments)
    except ValueError:
        return False


def _texts(content: list[dict[str, Any]]) -> tuple[TextPart, ...]:
    if wrong := [part["type"] for part in content if part["type"] != "text"]:
        raise ValueError(f"parts of type {wrong}")
    return tuple(TextPart(text=part["text"]) for part in content)


def _usage(row: dict[str, Any]) -> Usage:
    """Its ``input`` leaves out what a cache held and took; ours is all that was sent."""
    return Usage(
        input_tokens=row["input"] + row["cacheRead"] + row["cacheWrite"],
        output_tokens=row["output"],
        cache_read_tokens=row["cacheRead"],
        cache_write_tokens=row["cacheWrite"],
        cost_nanos=nanos(row["cost"]["total"]),
    )


def nanos(cost: float) -> int:
    """A cost in billionths: the decimal number that was written, rounded to the nearest, ties to even."""
    return int((Decimal(repr(cost)) * 1_000_000_000).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))
