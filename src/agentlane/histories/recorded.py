"""Reads session files with one row a line: a head, changes of the model, and messages with their times and usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from agentlane.data.border import clean_json
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    ErrorInfo,
    ModelIdentity,
    ProviderPart,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPart,
)
from agentlane.data.usage import COUNT_MAX, Usage
from agentlane.errors import InvalidMessage
from agentlane.histories.reading import Fields, Reading, Returned

PROVIDER = "recorded"

_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "toolUse": "tool_calls",
    "length": "length",
    "error": "error",
    "aborted": "aborted",
}
_COUNTS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_tokens",
    "cacheWrite": "cache_write_tokens",
}


def read_recorded(reading: Reading, rows: Sequence[object]) -> None:
    """Read every row; raises ``InvalidMessage`` with the path of what is none."""
    for index, given in enumerate(rows):
        row = Fields(reading, index, f"messages[{index}]", given)
        kind = row.word("type")
        if kind != "message":
            text = f"a row of type {kind!r:.60}; it is kept beside the conversation"
            reading.found(index, row.path, "kept_message", text)
            reading.keep(index, row.path, dict(row.given))
            continue
        message = row.inner("message")
        role = message.word("role")
        reading.started = True
        if role == "user":
            sent_at = message.time("timestamp")
            reading.said(index, row.path, _content(message), row.given, sent_at)
        elif role == "assistant":
            _answer(message)
        elif role == "toolResult":
            _result(row, message)
        else:
            raise InvalidMessage(
                f"{message.at('role')}: {role!r:.60} is no role of this form; user, assistant or toolResult is needed",
                path=message.at("role"),
            )
        message.done()
        row.done()


def _content(message: Fields) -> tuple[UserPart, ...]:
    if isinstance(message.peek("content"), str):
        return (TextPart(text=message.text("content")),)
    parts: list[UserPart] = []
    for place, given in enumerate(message.items("content")):
        part = Fields(message.reading, message.index, f"{message.at('content')}[{place}]", given)
        kind = part.word("type")
        if kind == "text":
            parts.append(TextPart(text=part.text("text"), signature=part.optional("textSignature")))
        elif kind == "image":
            parts.append(part.image(part.word("data"), part.word("mimeType")))
        else:
            parts.append(part.unknown(f"a part of type {kind!r:.60}"))
        part.done()
    return tuple(parts)


def _result(row: Fields, message: Fields) -> None:
    result = Returned(
        index=row.index,
        path=row.path,
        call_id=message.text("toolCallId"),
        name=message.text("toolName"),
        content=_content(message),
        details=clean_json(message.take("details"), message.at("details")),
        is_error=message.flag("isError"),
        sent_at=message.time("timestamp"),
        given=row.given,
    )
    row.reading.items.append(result)


def _answer(message: Fields) -> None:
    parts: list[AssistantPart] = []
    places: list[str] = []
    for place, given in enumerate(message.items("content")):
        fields = Fields(message.reading, message.index, f"{message.at('content')}[{place}]", given)
        part = _part(fields)
        parts.append(part)
        if isinstance(part, ToolCallPart):
            places.append(fields.path)
    stop = message.word("stopReason")
    if stop not in _STOPS:
        raise InvalidMessage(
            f"{message.at('stopReason')}: {stop!r:.60} is no stop reason of this form; {', '.join(_STOPS)} are",
            path=message.at("stopReason"),
        )
    reason = _STOPS[stop]
    error = message.optional("errorMessage")
    if error is None and reason == "error":
        error = "the history does not say which"
    answer = AssistantMessage(
        content=tuple(parts),
        stop_reason=reason,
        model=_model(message),
        usage=_usage(message, unknown_if_zero=reason == "aborted"),
        error=None
        if error is None
        else ErrorInfo(code="aborted" if reason == "aborted" else "model_error", message=error),
        sent_at=message.time("timestamp"),
    )
    message.reading.answered(message.index, message.path, answer, places)


def _model(message: Fields) -> ModelIdentity | None:
    if not (message.has("provider") and message.has("model")):
        return None
    return ModelIdentity(provider=message.text("provider"), name=message.text("model"))


def _part(part: Fields) -> AssistantPart:
    kind = part.word("type")
    if kind == "text":
        found: AssistantPart = TextPart(text=part.text("text"), signature=part.optional("textSignature"))
    elif kind == "thinking":
        found = ThinkingPart(
            text=part.text("thinking"), signature=part.optional("thinkingSignature"), redacted=part.flag("redacted")
        )
    elif kind == "toolCall":
        found = _call(part)
    else:
        note = f"a part of type {kind!r:.60}; it is kept as it is"
        part.reading.found(part.index, part.path, "unknown_part", note)
        return ProviderPart(provider=PROVIDER, data=clean_json(dict(part.given), part.path))
    part.done()
    return found


def _call(part: Fields) -> ToolCallPart:
    """A call; one that was half received has its text, and what was guessed from that is kept beside it."""
    id, name, signature = part.text("id"), part.text("name"), part.optional("thoughtSignature")
    text = part.optional("partialJson")
    if text is not None and not _is(text, part.peek("arguments")):
        return part.call(id, name, given=None, text=text, signature=signature)
    return part.call(id, name, given=part.take("arguments"), text=None, signature=signature)


def _is(text: str, arguments: Any) -> bool:
    try:
        return bool(json.loads(text) == arguments)
    except (ValueError, RecursionError):
        return False


def _usage(message: Fields, *, unknown_if_zero: bool) -> Usage | None:
    """Usage as it was kept. Its ``input`` leaves out what a cache held and took; ours is all that was sent."""
    if not message.has("usage"):
        return None
    given = message.peek("usage")
    if unknown_if_zero and isinstance(given, dict) and not any(given.get(name) for name in _COUNTS):
        return None  # zeros that stand for nothing reported yet: unknown is never zero
    usage = message.inner("usage")
    counts = {ours: usage.peek(name) for name, ours in _COUNTS.items()}
    known = {ours: count for ours, count in counts.items() if type(count) is int and 0 <= count <= COUNT_MAX}
    for name, ours in _COUNTS.items():
        if ours in known:
            usage.take(name)
    if "input_tokens" in known:
        sent = sum(known.get(name, 0) for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens"))
        known["input_tokens"] = min(sent, COUNT_MAX)
    cost = usage.peek("cost")
    total = cost.get("total") if isinstance(cost, dict) else None
    usage.done()
    return Usage(**known, cost_nanos=_nanos(total))


def _nanos(cost: object) -> int | None:
    """Billionths of the decimal number that was written, rounded to the nearest, ties to even."""
    if type(cost) not in (int, float):
        return None
    number = Decimal(repr(cost))
    if not number.is_finite() or abs(number) > COUNT_MAX // 1_000_000_000:
        return None
    return int((number * 1_000_000_000).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))
