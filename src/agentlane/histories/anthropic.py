"""Reads messages in the form of Anthropic's messages API: their content in blocks, or one text."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data.border import clean_json
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
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

PROVIDER = "anthropic"

_STOPS: dict[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


def read_anthropic(reading: Reading, messages: Sequence[object]) -> None:
    """Read every message; raises ``InvalidMessage`` with the path of what is none."""
    for index, message in enumerate(messages):
        fields = Fields(reading, index, f"messages[{index}]", message)
        role = fields.word("role")
        if role == "system":
            _system(fields)
            continue
        if role not in ("user", "assistant"):
            raise InvalidMessage(
                f"{fields.at('role')}: {role!r:.60} is no role of this form; user or assistant is needed here",
                path=fields.at("role"),
            )
        if not reading.started and role == "assistant":
            text = "an answer comes first, and the provider wants a user message there; it is read as it is"
            reading.found(index, fields.path, "role_order", text)
        reading.started = True
        if role == "user":
            _user(fields)
        else:
            _answer(fields)
        fields.done()


def _system(fields: Fields) -> None:
    """The provider takes instructions beside the messages; programs put them first among them."""
    text = "".join(part.text for part in _parts(fields, "content") if isinstance(part, TextPart))
    fields.reading.found(fields.index, fields.path, "role_order", "the provider takes no system role among messages")
    fields.reading.system(fields.index, fields.path, fields.given, text)


def _user(fields: Fields) -> None:
    if isinstance(fields.peek("content"), str):
        text = TextPart(text=fields.text("content"))
        fields.reading.said(fields.index, fields.path, (text,), fields.given, None)
        return
    content: list[UserPart] = []
    results = 0
    for place, given in enumerate(fields.items("content")):
        block = Fields(fields.reading, fields.index, f"{fields.at('content')}[{place}]", given)
        if block.peek("type") == "tool_result":
            if content:
                note = "a result behind other blocks, where the provider wants it before them; it is read before them"
                fields.reading.found(fields.index, block.path, "role_order", note)
            _result(block)
            results += 1
        else:
            content.append(_block(block))
    if content or not results:
        fields.reading.said(fields.index, fields.path, tuple(content), fields.given, None)


def _result(block: Fields) -> None:
    block.word("type")
    result = Returned(
        index=block.index,
        path=block.path,
        call_id=block.optional("tool_use_id") or "",
        name=None,
        content=_parts(block, "content"),
        is_error=block.flag("is_error"),
        given=block.given,
    )
    block.reading.items.append(result)
    block.done()


def _parts(fields: Fields, name: str) -> tuple[UserPart, ...]:
    """Content that is one text, or blocks, or nothing at all."""
    content = fields.peek(name)
    if content is None or isinstance(content, str):
        text = fields.optional(name)
        return () if text is None else (TextPart(text=text),)
    return tuple(
        _block(Fields(fields.reading, fields.index, f"{fields.at(name)}[{place}]", given))
        for place, given in enumerate(fields.items(name))
    )


def _block(block: Fields) -> UserPart:
    kind = block.word("type")
    if kind == "text":
        part: UserPart = TextPart(text=block.text("text"))
    elif kind == "image":
        part = _image(block)
    else:
        return block.unknown(f"a block of type {kind!r:.60}")
    block.done()
    return part


def _image(block: Fields) -> UserPart:
    source = block.inner("source")
    kind = source.word("type")
    if kind == "base64":
        image = source.image(source.word("data"), source.word("media_type"))
        source.done()
        return image
    return block.referred(source.word("url") if kind == "url" else f"a source of type {kind!r:.60}")


def _answer(fields: Fields) -> None:
    parts: list[AssistantPart] = []
    places: list[str] = []
    if isinstance(fields.peek("content"), str):
        text = fields.text("content")
        parts += [TextPart(text=text)] if text else []
    else:
        for place, given in enumerate(fields.items("content")):
            block = Fields(fields.reading, fields.index, f"{fields.at('content')}[{place}]", given)
            part = _answer_block(block)
            parts.append(part)
            if isinstance(part, ToolCallPart):
                places.append(block.path)
    stop: StopReason = "tool_calls" if places else "stop"
    given_stop = fields.peek("stop_reason")
    if given_stop == "max_tokens" or (isinstance(given_stop, str) and _STOPS.get(given_stop) == stop):
        stop = _STOPS[fields.word("stop_reason")]
    model = fields.optional("model")
    if fields.peek("type") == "message":
        fields.take("type")
    message = AssistantMessage(
        content=tuple(parts),
        stop_reason=stop,
        model=None if model is None else ModelIdentity(provider=PROVIDER, name=model),
        usage=_usage(fields),
    )
    fields.reading.answered(fields.index, fields.path, message, places)


def _answer_block(block: Fields) -> AssistantPart:
    kind = block.word("type")
    if kind == "text":
        part: AssistantPart = TextPart(text=block.text("text"))
    elif kind == "thinking":
        part = ThinkingPart(text=block.text("thinking"), signature=block.optional("signature"))
    elif kind == "redacted_thinking":
        part = ThinkingPart(text="", signature=block.text("data"), redacted=True)
    elif kind == "tool_use":
        id, name = block.optional("id") or "", block.text("name")
        part = block.call(id, name, given=block.take("input"), text=None)
    else:
        if kind != "server_tool_use" and not kind.endswith("_tool_result"):
            note = f"a block of type {kind!r:.60}; it is kept as it is, for its provider"
            block.reading.found(block.index, block.path, "unknown_part", note)
        return ProviderPart(provider=PROVIDER, data=clean_json(dict(block.given), block.path))
    block.done()
    return part


def _usage(fields: Fields) -> Usage | None:
    """Usage, which an answer has when it was kept as it came; unknown counts stay unknown.

    The provider's ``input_tokens`` leave out what its cache held and took; ours are all that was sent.
    """
    if not fields.has("usage"):
        return None
    usage = fields.inner("usage")
    counts: dict[str, int] = {}
    for name, ours in _COUNTS.items():
        value = usage.peek(name)
        if type(value) is int and 0 <= value <= COUNT_MAX:
            counts[ours] = usage.take(name)
    usage.done()
    if "input_tokens" in counts:
        sent = sum(counts.get(name, 0) for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens"))
        counts["input_tokens"] = min(sent, COUNT_MAX)
    return Usage(**counts) if counts else None
