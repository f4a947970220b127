"""Claim: an idle lane goes to any entry of its session in one commit, and what comes next goes on from there."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import (
    AgentLane,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    Prompt,
    TextPart,
    Tool,
    UserMessage,
    tool,
)
from agentlane.data.messages import user
from agentlane.machine.context import NOT_AVAILABLE
from agentlane.testing import Trace, check_invariants, check_trace
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place, agent_of, echo


def text(message: Any) -> str:
    """What a message says."""
    return " ".join(part.text for part in message.content if isinstance(part, TextPart))


async def shown(lane: AgentLane[Any, Any]) -> list[str]:
    """The conversation in short: what each message says."""
    return [f"{type(each).__name__.removesuffix('Message')}: {text(each)}" for each in await lane.messages()]


async def ids(lane: AgentLane[Any, Any]) -> list[str]:
    return [entry.id for entry in await lane.entries(newest_first=False)]


async def test_what_comes_next_goes_on_from_there(place: Place) -> None:
    """The model is shown the new path and nothing of the old one, also after a reopen; the old one stays as it was."""
    model = ScriptedModel(turns=[["one"], ["two", "other"], ["last"]])
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model))
    await lane.run("first")
    here = lane.tip()
    await lane.run("second")
    there = lane.tip()

    moved = await lane.navigate(here)

    assert (moved.from_tip, moved.tip, lane.tip()) == (there, here, here)
    assert await shown(lane) == ["User: first", "Assistant: one"]
    await lane.accept(Prompt("instead"), operation_id="op")
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model))
    await lane.resume()
    assert [text(each) for each in model.requests[-1].messages] == ["first", "one", "instead"]
    assert (await session.create_branch("old", at=there)).tip() == there
    assert [text(each) for each in await session.branch("old").messages()] == ["first", "one", "second", "two"]
    assert await check_invariants(session) == []


async def test_it_is_one_commit_and_nothing_where_the_tip_is(place: Place) -> None:
    trace = Trace()
    place.store = trace.store(place.store)
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two"))
    await lane.run("first")
    here = lane.tip()
    await lane.run("second")
    since = len(trace)

    await lane.navigate(here, label="the first try")
    await lane.navigate(here)
    await lane.navigate(None)
    await lane.navigate(None)

    names = [commit.name for commit, _ in trace.commits(since=since)]
    assert names == ["navigate", "navigate"]
    assert len(trace.commits(since=since)[0][0].writes) == 2
    assert check_trace(trace) == []


async def test_a_label_is_put_on_what_is_left_behind(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one"))
    with pytest.raises(InvalidNavigation, match="leaves no entry behind"):
        await lane.navigate(None, label="nothing")
    await lane.run("first")
    there = lane.tip()
    assert there is not None

    await lane.navigate(None, label="the first\ud800")
    assert await session.label(there) == "the first\ufffd"
    await lane.navigate(there, label=None)
    await lane.navigate(there, label="again")
    assert (await session.label(there), lane.tip()) == ("again", there)
    with pytest.raises(InvalidMessage):
        await lane.navigate(None, label=7)  # type: ignore[arg-type]
    assert lane.tip() == there


@pytest.mark.parametrize("to", ["", "nowhere", "half \ud800", 7, b"x"])
async def test_what_is_no_entry_is_refused(place: Place, to: Any) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one"))
    await lane.run("first")
    there = lane.tip()

    with pytest.raises(InvalidNavigation):
        await lane.navigate(to)
    with pytest.raises(InvalidNavigation):
        await lane.rewind(to)
    (row,) = await session.usage()
    with pytest.raises(InvalidNavigation):
        await lane.navigate(row.row.id)
    assert lane.tip() == there


async def test_entries_of_other_lanes_are_entries_of_the_session(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(turns=[["one", "elsewhere"], ["two"]])
    lane = await session.lane("main", agent_of(model=model))
    other = await session.lane("other", agent_of(model=model))
    await other.run("over there")

    await lane.navigate(other.tip())
    await lane.run("here")

    assert await shown(lane) == ["User: over there", "Assistant: one", "User: here", "Assistant: two"]
    assert await shown(other) == ["User: over there", "Assistant: one"]


async def test_an_open_operation_holds_the_lane(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two"))
    await lane.run("first")
    (first, *_) = await ids(lane)
    await lane.accept(Prompt("second"), operation_id="op")

    for move in (lane.navigate(None), lane.navigate(lane.tip()), lane.rewind(first)):
        with pytest.raises(LaneBusy) as caught:
            await move
        assert caught.value.details["operation_id"] == "op"
    await lane.resume()
    await lane.navigate(None)


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("results", [0, 1])
async def test_into_the_middle_of_a_batch(place: Place, results: int, reopened: bool) -> None:
    """What is accepted there gets a result for each call without one, once; the batch of the old path is whole."""
    session = await place.open()
    model = ScriptedModel(turns=[[[call("echo", text="a"), call("echo", text="b")], "done"], ["well"]])
    lane = await session.lane("main", agent_of(model=model, tools=[echo]))
    await lane.run("go")
    old = await ids(lane)

    await lane.navigate(old[1 + results])
    if reopened:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent_of(model=model, tools=[echo]))
    await lane.run("and now")

    given = ["ToolResult: a"][:results] + [f"ToolResult: {NOT_AVAILABLE}"] * (2 - results)
    assert await shown(lane) == ["User: go", "Assistant: ", *given, "User: and now", "Assistant: well"]
    model.require_no_violations()
    assert await check_invariants(session) == []
    await lane.navigate(old[-1])
    assert await shown(lane) == ["User: go", "Assistant: ", "ToolResult: a", "ToolResult: b", "Assistant: done"]


async def test_questions_that_an_answer_answers_are_those_of_its_path(place: Place) -> None:
    """Input that was not answered on the old path is none of the new one."""
    session = await place.open()
    lane = await session.lane("main", agent_of("one"))
    lost = await lane.append_message(user("left behind"))
    await lane.navigate(None)
    admitted = await lane.accept(Prompt("first"), operation_id="op")
    await lane.resume()

    (answer,) = await lane.entries(limit=1)
    assert getattr(answer.body, "answers", None) == admitted.inputs
    assert lost.id not in admitted.inputs


# Rewinding.


async def test_a_message_is_said_otherwise(place: Place) -> None:
    """R96: the conversation goes back; what tools did stays done, and does not happen again."""
    done: list[str] = []
    keep = _keep(done)
    model = ScriptedModel(turns=[["one"], ["other"]])
    session = await place.open()
    slip = ScriptedModel(turns=[["one"], [[call("keep", text="x")], "two"]])
    lane = await session.lane("main", agent_of(model=slip, tools=[keep]))
    await lane.run("first")
    here = lane.tip()
    await lane.run("second, with a slip")
    there = lane.tip()
    second = (await ids(lane))[2]

    back = await lane.rewind(before=second, label="slip")

    assert (back.from_tip, back.tip, lane.tip()) == (there, here, here)
    assert [text(each) for each in back.messages] == ["second, with a slip"]
    assert done == ["x"]
    lane = await session.lane("main", agent_of(model=model, tools=[keep]))
    await lane.run("second")
    assert await shown(lane) == ["User: first", "Assistant: one", "User: second", "Assistant: other"]
    assert [text(each) for each in model.requests[-1].messages] == ["first", "one", "second"]
    assert done == ["x"]
    assert await session.label(there or "") == "slip"
    assert await check_invariants(session) == []


def _keep(done: list[str]) -> Tool[Any, Any]:
    @tool
    async def keep(text: str) -> str:
        done.append(text)
        return "kept"

    return keep


async def test_all_messages_that_stood_there_are_given_back(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one"))
    said = tuple(UserMessage(content=(TextPart(text=text),)) for text in ("a", "b", "c"))
    await lane.run(Prompt(messages=said))
    first, second, third, _ = await ids(lane)

    back = await lane.rewind(second)
    assert (back.tip, back.messages) == (first, said[1:])
    await lane.navigate(third)
    back = await lane.rewind(first)
    assert (back.tip, back.messages) == (None, said)
    assert await shown(lane) == []


async def test_only_messages_of_users_on_the_path_are_rewound_to(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two"))
    await lane.run("first")
    question, answer = await ids(lane)
    note = await lane.append_custom("note", 1)
    await lane.run("second")
    behind = lane.tip()

    for entry in (answer, note.id):
        with pytest.raises(InvalidNavigation, match="no message of a user"):
            await lane.rewind(entry)
    (_, _, _, second, _) = await ids(lane)
    await lane.navigate(note.id)
    with pytest.raises(InvalidNavigation, match="on the path"):
        await lane.rewind(second)
    await lane.navigate(behind)
    assert (await lane.rewind(second)).tip == note.id
    assert (await lane.rewind(question)).tip is None
    with pytest.raises(InvalidNavigation, match="on the path"):
        await lane.rewind(question)
