"""Claim: what a caller gets wrong is the caller's error, the same one on every backend, never the store's damage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import AgentLane, ListAddress, Prompt, Session, ValueAddress
from agentlane.branch import Branch
from agentlane.data.messages import (
    AssistantMessage,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.data.usage import Usage
from agentlane.errors import (
    AgentLaneError,
    InvalidMessage,
    InvalidName,
    UnknownBranch,
    UnknownEntry,
    UnknownOperation,
    UnknownSession,
    UnknownTool,
)
from agentlane.ids import CALLS_MAX
from agentlane.testing.models import ScriptedModel
from tests.session.places import Place, agent_of


class Word(str):
    """Text of a class of its own."""


VALUE = ValueAddress("app.x", "k", dict)
LIST = ListAddress("app.x", "l", int)
NO_IDS = [5, 1.5, True, b"x", [], ["a"], {}, ("a",), object(), "\ud800"]
NO_NUMBERS = [1.5, True, "1", b"1", [], {}, object()]
NO_ADDRESSES = ["x", "", None, ("app.x", "k"), 5]

Call = Callable[[Session, AgentLane[Any, Any], Branch, Any], Awaitable[Any]]


async def later(call: Callable[[], Any]) -> Any:
    return call()


CASES: list[tuple[str, Call, list[Any], type[AgentLaneError]]] = [
    ("lane.retry", lambda s, lane, b, v: lane.retry(v), NO_IDS, UnknownOperation),
    ("session.entry", lambda s, lane, b, v: s.entry(v), [*NO_IDS, None], UnknownEntry),
    ("session.set_label", lambda s, lane, b, v: s.set_label(v, "x"), [*NO_IDS, None], UnknownEntry),
    ("session.branch", lambda s, lane, b, v: later(lambda: s.branch(v)), [*NO_IDS, None], UnknownBranch),
    ("session.create_branch", lambda s, lane, b, v: s.create_branch(v), [*NO_IDS, None], InvalidName),
    ("create_branch(at)", lambda s, lane, b, v: s.create_branch("new", at=v), NO_IDS, UnknownEntry),
    ("session.lane(at)", lambda s, lane, b, v: s.lane("new", lane.agent, at=v), NO_IDS, UnknownEntry),
    ("record_usage(entry)", lambda s, lane, b, v: s.record_usage(Usage(), entry_id=v), NO_IDS, UnknownEntry),
    ("record_usage(operation)", lambda s, lane, b, v: s.record_usage(Usage(), operation_id=v), NO_IDS, InvalidName),
    ("branch.entries(after)", lambda s, lane, b, v: lane.entries(after=v), NO_IDS, UnknownEntry),
    ("branch.entries(stop_at)", lambda s, lane, b, v: lane.entries(stop_at=v), NO_IDS, UnknownEntry),
    ("empty.entries(after)", lambda s, lane, b, v: b.entries(after=v), [*NO_IDS, "unknown"], UnknownEntry),
    ("lane.drive", lambda s, lane, b, v: lane.drive(v), NO_IDS, UnknownOperation),
    ("lane.result", lambda s, lane, b, v: lane.result(v), [*NO_IDS, None], UnknownOperation),
    ("lane.request_abort", lambda s, lane, b, v: lane.request_abort(v), [*NO_IDS, None], UnknownOperation),
    ("session.entries(limit)", lambda s, lane, b, v: s.entries(limit=v), [*NO_NUMBERS, -1], InvalidMessage),
    ("session.entries(after_seq)", lambda s, lane, b, v: s.entries(after_seq=v), [*NO_NUMBERS, None], InvalidMessage),
    ("session.usage(limit)", lambda s, lane, b, v: s.usage(limit=v), [*NO_NUMBERS, -1], InvalidMessage),
    ("session.usage(after_seq)", lambda s, lane, b, v: s.usage(after_seq=v), [*NO_NUMBERS, None], InvalidMessage),
    ("session.elements(limit)", lambda s, lane, b, v: s.elements(LIST, limit=v), [*NO_NUMBERS, -1], InvalidMessage),
    ("session.elements(after)", lambda s, lane, b, v: s.elements(LIST, after=v), NO_NUMBERS, InvalidMessage),
    ("branch.entries(limit)", lambda s, lane, b, v: lane.entries(limit=v), [*NO_NUMBERS, -1], InvalidMessage),
    ("empty.entries(limit)", lambda s, lane, b, v: b.entries(limit=v), [*NO_NUMBERS, -1], InvalidMessage),
    (
        "branch.entries(types)",
        lambda s, lane, b, v: lane.entries(types=v),
        ["user", "", "nope", ["nope"], ["user", 5], [[]], 5, True, b"x"],
        InvalidMessage,
    ),
    ("values(namespace)", lambda s, lane, b, v: s.values(v, dict), [*NO_IDS, "x", None], InvalidName),
    ("values(prefix)", lambda s, lane, b, v: s.values("app.x", dict, prefix=v), [*NO_IDS, None], InvalidName),
    ("session.value", lambda s, lane, b, v: s.value(v), [*NO_ADDRESSES, LIST], InvalidMessage),
    ("session.set_value", lambda s, lane, b, v: s.set_value(v, {}), [*NO_ADDRESSES, LIST], InvalidMessage),
    ("session.delete_value", lambda s, lane, b, v: s.delete_value(v), [*NO_ADDRESSES, LIST], InvalidMessage),
    ("session.append", lambda s, lane, b, v: s.append(v, 1), [*NO_ADDRESSES, VALUE], InvalidMessage),
    ("session.elements", lambda s, lane, b, v: s.elements(v), [*NO_ADDRESSES, VALUE], InvalidMessage),
    ("session.delete_list", lambda s, lane, b, v: s.delete_list(v), [*NO_ADDRESSES, VALUE], InvalidMessage),
    (
        "configure(tools)",
        lambda s, lane, b, v: lane.configure(tools=v),
        [5, True, 1.5, "x", [[]], [5], object()],
        UnknownTool,
    ),
]


@pytest.mark.parametrize(("call", "values", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_an_argument_that_cannot_be_one_is_refused_as_the_callers_mistake(
    place: Place, call: Call, values: list[Any], kind: type[AgentLaneError]
) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hi"))
    await lane.run("hello")
    empty = await session.create_branch("empty")
    before = (session.stats(), session.branches())

    for value in values:
        with pytest.raises(AgentLaneError) as caught:
            await call(session, lane, empty, value)
        assert type(caught.value) is kind, (value, caught.value)

    assert (session.stats(), session.branches()) == before


async def test_numbers_beyond_all_rows_are_answered_alike(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hi"))
    await lane.run("hello")
    seqs = [await session.append(LIST, number) for number in (7, 8)]
    elements = [(seqs[0], 7), (seqs[1], 8)]

    for many in (2**63 - 1, 2**63, 2**70):
        assert len(await session.entries(limit=many)) == 2
        assert len(await session.usage(limit=many)) == 1
        assert len(await lane.entries(limit=many)) == 2
        assert await session.elements(LIST, limit=many) == elements
        assert await session.entries(after_seq=many) == [] == await session.usage(after_seq=many)
        assert await session.elements(LIST, after=many) == []
        assert await session.elements(LIST, after=many, reverse=True) == elements[::-1]
        assert len(await session.entries(after_seq=-many)) == 2 == len(await session.usage(after_seq=-many)) + 1
        assert await session.elements(LIST, after=-many) == elements
        assert await session.elements(LIST, after=-many, reverse=True) == []
    for read in (session.entries, session.usage, lane.entries):
        assert await read(limit=0) == []


async def test_kinds_may_come_from_anything_that_is_gone_through(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hi"))
    await lane.run("hello")

    for kinds in (["user"], {"user"}, (each for each in ["user"]), (Word("user"),)):
        (entry,) = await lane.entries(types=kinds)  # type: ignore[arg-type]
        assert entry.body == user("hello")
    assert await lane.entries(types=[]) == []


async def test_a_page_goes_on_from_an_entry_of_its_path_only(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hi", "again"))
    await lane.run("hello")
    first = lane.tip()
    await lane.run("more")
    side = await session.create_branch("side", at=first)
    behind = lane.tip()
    assert first is not None and behind is not None

    for newest_first in (True, False):
        for limit in (None, 0, 1):
            with pytest.raises(UnknownEntry):
                await side.entries(after=behind, newest_first=newest_first, limit=limit)
    oldest = (await session.entries())[0].id
    assert await side.entries(after=oldest, stop_at=first) == []  # on the path, but beyond where the walk ends


async def test_an_id_that_no_session_can_have_is_refused_alike(place: Place) -> None:
    await place.store.create("s")
    for bad in ("a/b", ".x", "", "\ud800", 5, [], None):
        with pytest.raises(InvalidName):
            await place.store.open(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidName):
            await place.store.delete(bad)  # type: ignore[arg-type]


async def test_an_unknown_session_is_told_how_one_is_made(place: Place) -> None:
    with pytest.raises(UnknownSession, match=r"`await store\.create\('new'\)` makes one"):
        await place.store.open("new")

    await place.store.create("new")
    assert (await place.open("new")).id == "new"


async def test_when_a_message_was_said_is_kept_with_it(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["hi"])
    lane = await session.lane("main", agent_of(model=model))
    said: list[Any] = [
        UserMessage(content=(TextPart(text="x"),), sent_at=1),
        AssistantMessage(
            content=(ToolCallPart(id="c", name="t", arguments={}),), stop_reason="tool_calls", sent_at=2**53
        ),
        ToolResultMessage(call_id="c", name="t", content=(TextPart(text="y"),), sent_at=0),
    ]

    for message in said:
        await lane.append_message(message)
        for wrong in (-1, 2**53 + 1, 1.5, True, "1"):
            with pytest.raises(InvalidMessage, match="sent_at: whole milliseconds"):
                await lane.append_message(replace(message, sent_at=wrong))
    await lane.run(Prompt(messages=(replace(said[0], sent_at=7),)))

    assert [message.sent_at for message in await lane.messages()] == [1, 2**53, 0, 7, None]
    assert [message.sent_at for message in model.requests[0].messages] == [1, 2**53, 0, 7]


async def test_an_appended_answer_has_no_more_calls_than_a_model_may_ask(memory: Place) -> None:
    session = await memory.open()
    branch = await session.create_branch("b")
    calls = [ToolCallPart(id="", name="x", arguments={})] * (CALLS_MAX + 1)

    with pytest.raises(InvalidMessage, match=f"at most {CALLS_MAX}"):
        await branch.append_message(AssistantMessage(content=tuple(calls), stop_reason="tool_calls"))
    assert branch.tip() is None

    await branch.append_message(AssistantMessage(content=tuple(calls[1:]), stop_reason="tool_calls"))
