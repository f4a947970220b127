"""Claim: no stored conversation is a dead end: it is gone on with, or what keeps it from that is named and repaired."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentlane import Agent, AssistantMessage, CorruptSession, ToolResultMessage, UserMessage, open_session
from agentlane.data import addresses, codec
from agentlane.data.messages import TextPart, ToolCallPart
from agentlane.data.writes import Address
from agentlane.storage import EntryRow, Row, ValueRow
from agentlane.testing import check_invariants
from agentlane.testing.models import ScriptedModel
from tests.session.copies import rows_of
from tests.session.places import Place

Body = tuple[str, bytes]


def said(text: str) -> Body:
    return "user", codec.encode(UserMessage(content=(TextPart(text=text),)))


def answered(*parts: Any, stop: Any = "stop") -> Body:
    return "assistant", codec.encode(AssistantMessage(content=parts, stop_reason=stop))


CALL = ToolCallPart(id="c1", name="pay", arguments={})
STRAY = "tool_result", codec.encode(ToolResultMessage(call_id="c9", name="pay", content=(TextPart(text="r"),)))

GOES_ON: dict[str, tuple[list[Body], str | None]] = {
    "a call without a result": ([said("a"), answered(CALL, stop="tool_calls"), said("b")], "unanswered_call"),
    "a result without a call": ([said("a"), answered(TextPart(text="x")), STRAY, said("b")], "stray_result"),
    "answers without content": ([said("a"), *[answered()] * 5, said("b")], None),
    "failures without end": ([said("a"), *[answered(stop="error")] * 5, said("b")], None),
}
"""Histories that a provider would refuse; and what ``verify`` calls it."""
UNREADABLE: dict[str, Body] = {
    "half a character": ("user", b'{"role":"user","content":[{"type":"text","text":"x\\ud99cy"}]}'),
    "a null where there must be text": ("user", b'{"role":"user","content":[{"type":"text","text":null}]}'),
    "a message of another program": ("user", b'{"type":"message","text":"hello"}'),
    "what is no JSON": ("user", b'{"role":"user",'),
}
"""Entries that cannot be read as what they are said to be."""


async def loaded(place: Place, bodies: Sequence[Body]) -> None:
    """A session with these entries on its branch ``main``, as another program would have left it."""
    rows: list[Row] = [
        EntryRow(f"e{number}", f"e{number - 1}" if number else None, number + 1, 5, kind, payload)
        for number, (kind, payload) in enumerate(bodies)
    ]
    tip: Address = addresses.branch_tip("main")
    rows.append(ValueRow(tip, codec.encode(f"e{len(bodies) - 1}")))

    async def pages() -> AsyncIterator[Sequence[Row]]:
        yield rows

    await place.store.load(pages(), last_seq=100, session_id="s")


async def gone_on(place: Place, id: str) -> list[Any]:
    """The messages that a run in the session is asked with; it must end well, and break no provider's rules."""
    model = ScriptedModel(["fine"] * 9)
    async with open_session(place.store, session_id=id, clock=place.clock) as session:
        lane = await session.lane("main", Agent(model=model))
        assert (await lane.run("hello")).text == "fine"
        model.require_no_violations()
        assert [each for each in await check_invariants(session) if "e1" not in each and "e2" not in each] == []
        return list(model.requests[0].messages)


@pytest.mark.parametrize("what", GOES_ON)
async def test_a_history_that_providers_refuse_is_gone_on_with(place: Place, what: str) -> None:
    """Without anybody's help, in it and in a copy; nothing of it is changed by that."""
    bodies, code = GOES_ON[what]
    await loaded(place, bodies)
    before = (await rows_of(place.store, "s")).entries
    report = await place.store.verify("s")  # type: ignore[attr-defined]
    assert {each.code for each in report.findings} == ({code} if code else set())
    assert not any(each.loses for each in report.findings)
    asked = await gone_on(place, "s")
    assert [each.content[0].text for each in asked if isinstance(each, UserMessage)] == ["a", "b", "hello"]  # type: ignore[union-attr]
    assert (await rows_of(place.store, "s")).entries[: len(before)] == before
    await place.store.repair("s", session_id="copy")  # type: ignore[attr-defined]
    await gone_on(place, "copy")
    await place.end()


@pytest.mark.parametrize("what", UNREADABLE)
async def test_what_cannot_be_read_is_named_and_a_copy_goes_on(place: Place, what: str) -> None:
    """It opens, and says where it ends when the conversation is needed. ``verify`` names the place and changes nothing.

    The copy that ``repair`` makes has all the rest, says what it lost, and goes on.
    """
    await loaded(place, [said("a"), UNREADABLE[what], answered(TextPart(text="z"))])
    before = await rows_of(place.store, "s")
    async with open_session(place.store, session_id="s", clock=place.clock) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["never asked"])))
        with pytest.raises(CorruptSession, match="e1"):
            await lane.run("hello")
    report = await place.store.verify("s")  # type: ignore[attr-defined]
    assert [(each.code, each.loses) for each in report.findings] == [("undecodable", True)]
    assert "e1" in report.findings[0].place
    assert (await rows_of(place.store, "s")).entries == before.entries

    repaired = await place.store.repair("s", session_id="copy")  # type: ignore[attr-defined]
    assert ["e1" in each.place for each in repaired.notes] == [True]
    asked = await gone_on(place, "copy")
    texts = [part.text for each in asked for part in each.content if isinstance(part, TextPart)]
    assert texts[0] == "a" and texts[-2:] == ["z", "hello"]
    assert not any(each.loses for each in (await place.store.verify("copy")).findings)  # type: ignore[attr-defined]
    assert (await rows_of(place.store, "s")).entries == before.entries, "the damaged one is as it was"
    await place.end()
