"""Reads messages in the form of OpenAI's chat completions, function calls of the older form among them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentlane.data.border import clean_json
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    ProviderPart,
    TextPart,
    ToolCallPart,
    UserPart,
)
from agentlane.errors import InvalidMessage
from agentlane.histories.reading import Fields, Reading, Returned

PROVIDER = "openai"

_DATA_URL = re.compile(r"data:([^;,]+);base64,([A-Za-z0-9+/=\s]*)")


def read_openai(reading: Reading, messages: Sequence[object]) -> None:
    """Read every message; raises ``InvalidMessage`` with the path of what is none."""
    for index, message in enumerate(messages):
        fields = Fields(reading, index, f"messages[{index}]", message)
        role = fields.word("role")
        if role in ("system", "developer"):
            content = _content(fields)
            text = "".join(part.text for part in content if isinstance(part, TextPart))
            reading.system(index, fields.path, fields.given, text)
            continue
        reading.started = True
        if role == "user":
            reading.said(index, fields.path, _content(fields), fields.given, None)
        elif role == "assistant":
            _answer(fields)
        elif role in ("tool", "function"):
            _result(fields, role)
        else:
            known = "system, developer, user, assistant, tool or function"
            raise InvalidMessage(
                f"{fields.at('role')}: {role!r:.60} is no role of this form; {known} is needed here",
                path=fields.at("role"),
            )
        fields.done()


def _answer(fields: Fields) -> None:
    parts: list[AssistantPart] = list(_answer_content(fields))
    refusal = fields.optional("refusal")
    if refusal is not None:
        parts.append(ProviderPart(provider=PROVIDER, data={"type": "refusal", "refusal": refusal}))
    places: list[str] = []
    if fields.has("tool_calls"):
        for place, given in enumerate(fields.items("tool_calls")):
            call = Fields(fields.reading, fields.index, f"{fields.at('tool_calls')}[{place}]", given)
            parts.append(_call(call))
            places.append(call.path)
            call.done()
    if fields.has("function_call"):
        call = fields.inner("function_call")
        name, text = call.text("name"), call.text("arguments")
        parts.append(call.call("", name, given=None, text=text))
        places.append(call.path)
        call.done()
    message = AssistantMessage(content=tuple(parts), stop_reason="tool_calls" if places else "stop")
    fields.reading.answered(fields.index, fields.path, message, places)


def _call(fields: Fields) -> ToolCallPart:
    id = fields.optional("id") or ""
    kind = fields.word("type") if fields.has("type") else "function"
    if kind == "function":
        function = fields.inner("function")
        name, text = function.text("name"), function.text("arguments")
        call = function.call(id, name, given=None, text=text)
        function.done()
        return call
    if kind == "custom":
        custom = fields.inner("custom")
        name, text = custom.text("name"), custom.text("input")
        custom.done()
        note = "a call of a custom tool; its input is kept as the text of its arguments"
        fields.reading.found(fields.index, fields.path, "unknown_part", note)
        return ToolCallPart(id=id, name=name, arguments_text=text)
    raise InvalidMessage(
        f"{fields.at('type')}: {kind!r:.60} is no kind of call of this form; function or custom is needed here",
        path=fields.at("type"),
    )


def _answer_content(fields: Fields) -> list[AssistantPart]:
    content = fields.peek("content")
    if content is None or isinstance(content, str):
        text = fields.optional("content")
        return [TextPart(text=text)] if text else []
    parts: list[AssistantPart] = []
    for place, given in enumerate(fields.items("content")):
        part = Fields(fields.reading, fields.index, f"{fields.at('content')}[{place}]", given)
        kind = part.word("type")
        if kind == "text":
            parts.append(TextPart(text=part.text("text")))
            part.done()
        else:
            if kind != "refusal":
                note = f"a part of type {kind!r:.60}; it is kept as it is, for its provider"
                fields.reading.found(fields.index, part.path, "unknown_part", note)
            parts.append(ProviderPart(provider=PROVIDER, data=clean_json(dict(part.given), part.path)))
    return parts


def _result(fields: Fields, role: str) -> None:
    if role == "tool":
        call_id, name = fields.optional("tool_call_id") or "", fields.optional("name")
    else:
        call_id, name = None, fields.text("name")
    fields.reading.items.append(
        Returned(
            index=fields.index,
            path=fields.path,
            call_id=call_id,
            name=name,
            content=_content(fields),
            given=fields.given,
        )
    )


def _content(fields: Fields) -> tuple[UserPart, ...]:
    """What a user or a tool says: text, or parts."""
    content = fields.peek("content")
    if content is None or isinstance(content, str):
        text = fields.optional("content")
        return () if text is None else (TextPart(text=text),)
    parts: list[UserPart] = []
    for place, given in enumerate(fields.items("content")):
        part = Fields(fields.reading, fields.index, f"{fields.at('content')}[{place}]", given)
        kind = part.word("type")
        if kind == "text":
            parts.append(TextPart(text=part.text("text")))
        elif kind == "image_url":
            parts.append(_image(part))
        else:
            parts.append(part.unknown(f"a part of type {kind!r:.60}"))
        part.done()
    return tuple(parts)


def _image(part: Fields) -> UserPart:
    image = part.inner("image_url")
    url = image.word("url")
    found = _DATA_URL.fullmatch(url)
    if found is not None:
        shown = image.image(found[2], found[1])
        image.done()
        return shown
    return part.referred(url if not url.startswith("data:") else "in a data URL that is not base64")
