"""Claim: any chat of a known form is read; calls have their results, texts their order, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from msgspec.structs import replace

from agentlane import AssistantMessage, Custom, Message, ToolResultMessage, read_history
from agentlane.data.entries import EntryBody
from agentlane.ids import call_id
from agentlane.machine.context import ModelContext
from agentlane.testing import check_pairing
from tests.histories.chats import Maker, chats
from tests.histories.forms import written


def messages_of(bodies: Sequence[EntryBody]) -> list[Message]:
    return [body for body in bodies if not isinstance(body, Custom)]


def broken_cuts(bodies: Sequence[EntryBody]) -> list[tuple[int, list[str]]]:
    """At which lengths of the path a request would break PAIR, and how."""
    context, found = ModelContext(), []
    answer, results = "", 0
    for place, body in enumerate(bodies):
        id = f"{place:08x}-0000-7000-8000-000000000000"
        if isinstance(body, AssistantMessage):
            answer, results = id, 0
        elif isinstance(body, ToolResultMessage):
            id, results = call_id(answer, results), results + 1
        context.add(id, body)
        if wrong := check_pairing(context.view()):
            found.append((place, wrong))
    return found


@given(chats())
def test_pair_holds_at_every_cut(chat: tuple[str, list[dict[str, Any]], Maker]) -> None:
    format, messages, _ = chat

    bodies = read_history(messages, format=format).bodies

    assert broken_cuts(bodies) == []
    for place, body in enumerate(bodies):
        if isinstance(body, AssistantMessage):
            run = body.calls if body.stop_reason not in ("error", "aborted") else ()
            behind = bodies[place + 1 : place + 1 + len(run)]
            assert [(call.id, call.name) for call in run] == [
                (each.call_id, each.name) if isinstance(each, ToolResultMessage) else None for each in behind
            ]
    answers = [body for body in bodies if isinstance(body, AssistantMessage)]
    calls = sum(len(each.calls) for each in answers if each.stop_reason not in ("error", "aborted"))
    assert calls == sum(isinstance(body, ToolResultMessage) for body in bodies)


@given(chats())
def test_nothing_that_was_said_is_lost_or_out_of_order(chat: tuple[str, list[dict[str, Any]], Maker]) -> None:
    format, messages, maker = chat

    bodies = read_history(messages, format=format).bodies

    stored = msgspec.json.encode(bodies).decode()
    whole = set(_texts(json.loads(stored)))
    given = json.dumps(messages, ensure_ascii=False)
    lost = [
        mark for mark in maker.marks if json.dumps(mark, ensure_ascii=False)[1:-1] in given and not _in(mark, whole)
    ]
    assert lost == []
    said = [
        part.text
        for body in messages_of(bodies)
        if not isinstance(body, ToolResultMessage)
        for part in body.content
        if getattr(part, "text", "") in maker.spoken
    ]
    assert said == maker.spoken


@given(chats())
def test_reading_what_is_written_in_the_same_form_gives_the_same(chat: tuple[str, list[dict[str, Any]], Maker]) -> None:
    format, messages, _ = chat
    first = messages_of(read_history(messages, format=format).bodies)

    second = read_history(written(first, format), format=format)

    assert messages_of(second.bodies) == [_as_carried(each, format) for each in first]
    repairs = {each.code for each in second.report.repairs}
    assert not repairs & {"missing_result", "orphan_result", "late_result", "result_order", "result_name"}


@given(chats())
def test_every_finding_names_a_message_that_is_there(chat: tuple[str, list[dict[str, Any]], Maker]) -> None:
    format, messages, _ = chat

    history = read_history(messages, format=format)

    assert history.report.messages == len(messages) and history.report.entries == len(history.bodies)
    for each in history.report.findings:
        assert 0 <= each.index < len(messages)
        assert each.path.startswith(f"messages[{each.index}]")
    kept = [item for body in history.bodies if isinstance(body, Custom) for item in body.data["kept"]]
    for item in kept:
        assert item["value"] == json.loads(json.dumps(_at(messages, item["path"])))
        assert any(each.path == item["path"] for each in history.report.findings), item["path"]


def _as_carried(message: Message, format: str) -> Message:
    """A message as the form can say it: chat completions have no word for results that are errors."""
    if isinstance(message, ToolResultMessage) and format == "openai":
        return replace(message, is_error=False)
    return message


def _at(value: Any, path: str) -> Any:
    """What is at a path like ``messages[3].content[0]``."""
    for step in path.removeprefix("messages").replace("[", ".[").split("."):
        if step:
            value = value[int(step[1:-1])] if step.startswith("[") else value[step]
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def _in(mark: str, texts: set[str]) -> bool:
    """Whether a text is there, as it is or in the text of arguments that do not parse."""
    escaped = json.dumps(mark)[1:-1]
    return mark in texts or any(mark in text or escaped in text for text in texts)
