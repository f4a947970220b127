"""Claim: whatever form a model's answer has, and however it comes in, the same is stored and nothing more is run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import Agent, Block, Prompt, Tool, ToolContext, Usage, hook, open_session, tool
from agentlane.data import addresses
from agentlane.data.messages import AssistantMessage, Message, ProviderPart, TextPart, ToolResultMessage, UserMessage
from agentlane.data.writes import AppendElement, InsertEntry
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.testing.clock import CountingIds
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.lives import bury
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import ScriptAnswer, answer, call, hang, say, think
from agentlane.testing.trace import Trace
from tests.races.stage import shape
from tests.session.places import Place, agent_of

CHUNK = 16


async def give(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    return f"given {arguments.get('x')}"


async def test_a_call_that_the_provider_runs_itself_is_never_run_here(place: Place) -> None:
    """It is the provider's own part: kept as it came, sent as it came, no call of ours and without a result of ours."""
    part = ProviderPart(
        provider="p", data={"type": "server_tool_use", "id": "srv_1", "name": "give", "input": {"x": 1}}
    )
    model = ScriptedModel([answer([say("looking it up"), part]), "found"])
    session = await place.open()
    lane = await session.lane("main", Agent(model=model, tools=[Tool("give", give)]))

    assert (await lane.run("go", operation_id="op")).status == "completed"
    await lane.run("and?", operation_id="op-2")

    assert shape(await lane.messages())[1] == "assistant[stop] looking it up"
    (sent,) = [each for each in model.requests[1].messages if isinstance(each, AssistantMessage)]
    assert sent.content[1] == part
    assert not any(isinstance(each, ToolResultMessage) for each in model.requests[1].messages)
    model.require_no_violations()


async def test_a_call_that_a_hook_blocks_keeps_its_result(place: Place) -> None:
    """Call and refusal are stored together, are sent together, and are there in the next process."""
    model = ScriptedModel([[call("give", x=1), call("give", x=2)], "I see", "more"])
    block = hook("before_tool", lambda info: Block("not this one") if info.arguments["x"] == 1 else None)
    agent = Agent(model=model, tools=[Tool("give", give)], hooks=[block])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("go", operation_id="op")
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("and?", operation_id="op-2")

    assert shape(await lane.messages())[1:4] == [
        "assistant[tool_calls]  (give,give)",
        "result! not this one",
        "result given 2",
    ]
    for request in model.requests[1:]:
        sent = [each for each in request.messages if isinstance(each, ToolResultMessage)]
        assert [each.text for each in sent] == ["not this one", "given 2"]
    assert await check_invariants(session) == []
    model.require_no_violations()


async def test_a_result_for_a_tool_that_is_not_there_keeps_its_call(place: Place) -> None:
    """The call that was answered *not available* is stored with its answer, here and in the next process."""
    model = ScriptedModel([[call("gone", x=1)], "I see", "more"])
    agent = Agent(model=model)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("go", operation_id="op")
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("again", operation_id="op-2")
    lines = shape(model.requests[-1].messages)
    assert lines[:3] == ["user go", "assistant[tool_calls]  (gone)", lines[2]]
    assert lines[2].startswith("result! The tool 'gone' is not available here.")
    model.require_no_violations()


async def test_one_malformed_call_costs_its_siblings_nothing(place: Place) -> None:
    """Arguments of a wrong type, and one that leaves the program, among six good calls."""

    async def typed(x: int) -> str:
        return f"typed {x}"

    async def leave(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        raise SystemExit(3)

    from agentlane import tool

    script: list[ScriptAnswer] = [
        [*(call("typed", x=i) for i in range(3)), call("typed", x="no"), call("leave"), call("typed", x=9)],
        "done",
    ]
    model = ScriptedModel(script)
    session = await place.open()
    lane = await session.lane("main", Agent(model=model, tools=[tool(typed), Tool("leave", leave)]))

    assert (await lane.run("go")).status == "completed"
    lines = shape(await lane.messages())[2:8]
    assert [*lines[:3], lines[5]] == [f"result typed {i}" for i in (0, 1, 2, 9)]
    assert lines[3].startswith("result! The arguments of 'typed' are not valid")
    assert lines[4].startswith("result! The tool 'leave' failed: SystemExit")


@pytest.mark.parametrize("deltas", [1, 3])
async def test_streamed_or_at_once_the_same_is_stored(place: Place, deltas: int) -> None:
    """Text, reasoning and several calls: what arrives by the character is stored as what arrives whole."""
    script: list[ScriptAnswer] = [
        [think("hm", signature="sig"), say("so it is"), call("give", x=1), call("give", x="é😀")],
        "done",
    ]
    stored = []
    for number, pieces in enumerate((None, deltas)):
        session = await place.open(f"s{number}")
        model = ScriptedModel(script, deltas=pieces)
        lane = await session.lane("main", Agent(model=model, tools=[Tool("give", give)]))
        await lane.run("go", operation_id="op")
        stored.append([_without_ids(message) for message in await lane.messages()])
        model.require_no_violations()

    assert stored[0] == stored[1]
    assert shape(stored[0])[2:4] == ["result given 1", "result given é😀"]


@pytest.mark.parametrize("size", [50_000, 200_000])
async def test_a_long_argument_in_small_pieces_costs_what_it_is_long(place: Place, size: int) -> None:
    """All that is written while it streams is about its length, never its square; and no time loses the session.

    The clock jumps by a minute in the middle, as for a loop that was held up: ownership hangs on no timer.
    """
    text = "x" * size
    trace = Trace()
    await place.store.create("s")
    session = await open_session(
        trace.store(place.store), session_id="s", clock=place.clock, ids=CountingIds(series=50), probe=trace.probe()
    )
    model = ScriptedModel([[call("give", x=text)], "done"], deltas=CHUNK, delta_ms=1, clock=place.clock)
    lane = await session.lane("main", Agent(model=model, tools=[Tool("give", give)], max_result_bytes=100))
    driving = asyncio.ensure_future(lane.run("go"))
    jumped = False
    while not driving.done():
        sleeping = asyncio.ensure_future(place.clock.sleeping())
        await asyncio.wait([driving, sleeping], return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        if driving.done():
            break
        place.clock.advance(60_000 if not jumped else 50)
        jumped = True

    assert (await driving).status == "completed"
    written = sum(
        len(write.payload)
        for commit, _ in trace.commits()
        for write in commit.writes
        if isinstance(write, AppendElement) and write.address.namespace == addresses.PENDING_FRAMES
    )
    entries = sum(
        len(write.payload) for commit, _ in trace.commits() for write in commit.writes if isinstance(write, InsertEntry)
    )
    assert size < entries < 1.2 * size + 5_000
    assert written < 3 * size  # each piece once, with what frames it
    await session.close()


async def test_usage_that_was_seen_before_an_abort_is_kept_and_the_rest_is_unknown(place: Place) -> None:
    """Seen at the start, not seen, and never sent: three rows that can be told apart."""
    model = ScriptedModel([hang("Hel", usage=Usage(input_tokens=7)), hang("Hel"), "not asked"])
    session = await place.open()
    lane = await session.lane("main", Agent(model=model))
    for number in range(2):
        await lane.accept(Prompt("go"), operation_id=f"op-{number}")
        driving = asyncio.ensure_future(lane.drive())
        await model.hanging()
        await lane.request_abort(f"op-{number}")
        await driving
    assert [row.row.usage for row in await session.usage()] == [Usage(input_tokens=7), Usage()]
    assert (session.stats().usage.unknown_rows, session.stats().usage.input_tokens) == (2, 7)
    assert await check_invariants(session) == []


async def test_broken_text_of_a_person_is_mended_once_for_all_backends(place: Place) -> None:
    """A lone surrogate in a prompt, in a tool's result and in a custom entry: stored, sent and read as U+FFFD."""

    async def broken(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "현\ud99c 보유"

    model = ScriptedModel([[call("broken", x="현\ud99c")], "done", "more"])
    agent = Agent(model=model, tools=[Tool("broken", broken)])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("현\ud99c 보유", operation_id="op")
    await lane.append_custom("note", {"현\ud99c": "\ud99c"})
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run("and?", operation_id="op-2")
    first = model.requests[-1].messages[0]
    assert isinstance(first, UserMessage)
    assert first.content == (TextPart(text="현\ufffd 보유"),)
    assert shape(model.requests[-1].messages)[2] == "result 현\ufffd 보유"
    (note,) = await lane.entries(types=["custom"])
    assert note.body.data == {"현\ufffd": "\ufffd"}  # type: ignore[union-attr]
    model.require_no_violations()


async def test_nothing_is_repeated_because_it_looks_harmless(place: Place) -> None:
    """A tool that declares nothing, and one that only hints at reading: after a death neither runs again."""
    starts: list[str] = []
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def stuck(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        starts.append("hinted")
        if len(starts) > 2:
            return "again"
        if len(starts) == 2:
            begun.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody lets it end")

    @tool
    async def plain() -> str:
        """Read something; changes nothing, and is idempotent."""
        starts.append("plain")
        if len(starts) > 2:
            return "again"
        if len(starts) == 2:
            begun.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody lets it end")

    hints = {"type": "object", "properties": {}, "annotations": {"readOnlyHint": True, "idempotentHint": True}}
    hinted = Tool("hinted", stuck, parameters=hints)
    agent = agent_of([call("plain"), call("hinted")], "done", tools=[plain, hinted])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await begun
    await bury(session, driving)

    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.drive("op")
    assert sorted(starts) == ["hinted", "plain"]
    assert shape(await lane.messages())[2:4] == [f"result! {INTERRUPTED}"] * 2


def _without_ids(message: Message) -> Message:
    """The message without the ids of the entries that it answers, which each session has of its own."""
    return replace(message, answers=()) if isinstance(message, AssistantMessage) else message
