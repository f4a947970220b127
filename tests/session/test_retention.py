"""Claim: records of old operations can be dropped, and nothing else goes with them."""

from __future__ import annotations

import pytest

from agentlane import (
    Agent,
    InvalidMessage,
    Prompt,
    ReadOnlySession,
    Settled,
    UnknownOperation,
    Waiting,
    agent_tool,
    tool,
)
from agentlane.testing import ScriptedModel, check_invariants
from agentlane.testing.script import call
from tests.session.places import Place


async def test_what_ended_before_is_dropped_and_the_conversation_stays(place: Place) -> None:
    clock, session = place.clock, await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["one", "two", "three"])))
    await lane.submit("a", request_id="r1")
    await lane.resume()
    clock.advance(1_000)
    await lane.run("b", operation_id="op-b")
    clock.advance(1_000)
    cut = clock.now_ms()
    await lane.run("c", operation_id="op-c")
    messages, stats = await lane.messages(), session.stats()
    assert await lane.receipt("r1") is not None

    assert await session.drop_results(before=cut) == 2
    assert await session.drop_results(before=cut) == 0
    assert [each.operation_id for each in await session.operations()] == ["op-c"]
    assert await lane.receipt("r1") is None
    assert (await lane.messages(), session.stats()) == (messages, stats)
    assert await check_invariants(session) == []
    with pytest.raises(UnknownOperation):
        await lane.result("op-b")
    assert (await lane.result("op-c")).text == "three"
    await session.close()


async def test_what_an_open_operation_reads_is_kept(place: Place) -> None:
    """A child has ended, its parent waits for a yes: it is not asked to run again, whatever was dropped."""
    clock = place.clock

    @tool(approval=True)
    async def guarded() -> str:
        return "ran"

    def agent() -> Agent:
        kid = Agent("kid", model=ScriptedModel(["from the child"]))
        script = ScriptedModel([[call("kid", prompt="p"), call("guarded")], "end"])
        return Agent("a", model=script, tools=[agent_tool(kid, name="kid", description="d"), guarded])

    session = await place.open()
    lane = await session.lane("main", agent())
    await lane.accept(Prompt("go"), operation_id="op")
    assert isinstance(await lane.drive("op"), Waiting)
    clock.advance(10_000)
    assert await session.drop_results(before=clock.now_ms()) == 0
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent())
    await lane.decide(session.approvals()[0].approval_id, allow=True)
    assert isinstance(await lane.drive("op"), Settled)
    clock.advance(10_000)
    assert await session.drop_results(before=clock.now_ms()) == 2
    assert await check_invariants(session) == []
    await session.close()


async def test_more_than_a_page_of_records(memory: Place) -> None:
    session = await memory.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["ok"] * 600)))
    for number in range(600):
        await lane.run("x", operation_id=f"op-{number:03}")
    memory.clock.advance(1)
    assert await session.drop_results(before=memory.clock.now_ms()) == 600
    assert await session.operations() == []


@pytest.mark.parametrize("before", [1.5, "1", None, True])
async def test_a_time_that_is_none_is_refused(memory: Place, before: object) -> None:
    session = await memory.open()
    with pytest.raises(InvalidMessage, match="before"):
        await session.drop_results(before=before)  # type: ignore[arg-type]


async def test_a_reader_drops_nothing(place: Place) -> None:
    await (await place.open()).close()
    reader = await place.open(read_only=True)
    with pytest.raises(ReadOnlySession):
        await reader.drop_results(before=1)
