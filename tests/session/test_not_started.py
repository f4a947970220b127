"""Claim: a tool that says it could not begin has had no effect, and its call is never told as uncertain for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    NotStarted,
    Prompt,
    SessionClosed,
    Settled,
    Tool,
    ToolContext,
    ToolResultMessage,
    open_session,
    tool,
)
from agentlane.data.operations import ReplayPolicy
from agentlane.machine.outcomes import NOT_STARTED, STARTED_BEFORE
from agentlane.storage.contract import Store
from agentlane.testing import (
    CountingIds,
    Depth,
    FaultPlan,
    History,
    Life,
    Scenario,
    ScriptedModel,
    Trace,
    call,
    check_trace,
    crash_matrix,
)
from agentlane.testing.matrix.lives import bury
from tests.session.places import Place


class Door:
    """A tool behind a door: a call waits until it opens, and says that it did not begin when it is stopped there."""

    def __init__(self, replay: ReplayPolicy = "never", timeout_ms: int | None = None) -> None:
        self.open = asyncio.Event()
        self.before = asyncio.Event()
        self.locked = False
        self.inside = 0
        self.tool: Tool[Any, Any] = Tool("go", self.go, replay=replay, timeout_ms=timeout_ms)

    async def go(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        self.before.set()
        if self.locked:
            raise NotStarted("the door is locked")
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            raise NotStarted("the door did not open") from None
        self.inside += 1
        return f"inside at attempt {ctx.attempt}"


def agent_of(door: Door) -> Agent:
    return Agent(model=ScriptedModel([[call("go")], "done"]), tools=[door.tool])


async def result_of(lane: Any) -> ToolResultMessage:
    found = [each.body for each in await lane.entries() if isinstance(each.body, ToolResultMessage)]
    assert len(found) == 1, found
    return found[0]


async def test_its_call_gets_an_error_that_says_so(place: Place) -> None:
    door = Door()
    door.locked = True
    session = await place.open()
    lane = await session.lane("main", agent_of(door))

    result = await lane.run("go")

    told = await result_of(lane)
    assert result.status == "completed" and told.is_error
    assert told.text == "The tool 'go' was not started: the door is locked. The call had no effect."


async def test_an_abort_before_it_began_tells_it_as_never_started(place: Place) -> None:
    door = Door()
    session = await place.open()
    lane = await session.lane("main", agent_of(door))
    running = asyncio.ensure_future(lane.run("go"))
    await door.before.wait()

    result = await lane.abort()

    assert (await running).status == result.status == "aborted"
    assert (await result_of(lane)).text == NOT_STARTED


async def test_a_timeout_before_it_began_is_no_uncertain_end(place: Place) -> None:
    door = Door(timeout_ms=50)
    session = await place.open()
    lane = await session.lane("main", agent_of(door))
    running = asyncio.ensure_future(lane.run("go"))
    await door.before.wait()
    await place.clock.sleeping()

    place.clock.advance(50)
    await running

    assert (await result_of(lane)).text == (
        "The tool 'go' was not started: the door did not open. The call had no effect."
    )


async def test_a_close_before_it_began_plans_it_again_even_where_it_must_not_run_twice(place: Place) -> None:
    door, trace = Door(), Trace()
    store: Store = trace.store(place.store)
    await store.create("s")
    first = await open_session(store, session_id="s", clock=place.clock, ids=CountingIds(series=5), probe=trace.probe())
    lane = await first.lane("main", trace.agent(agent_of(door)))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    await door.before.wait()
    await first.close()
    await asyncio.wait({driving})
    assert isinstance(driving.exception(), SessionClosed)
    door.open.set()

    again = await open_session(store, session_id="s", clock=place.clock, ids=CountingIds(series=6), probe=trace.probe())
    lane = await again.lane("main", trace.agent(agent_of(door)))
    outcome = await lane.drive("op")

    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    assert (await result_of(lane)).text == "inside at attempt 1" and door.inside == 1
    assert check_trace(trace) == [], trace.history()
    await again.close()


async def test_a_start_behind_a_death_that_cannot_begin_says_nothing_of_the_first(place: Place) -> None:
    door = Door(replay="safe")
    door.open.set()
    plan = FaultPlan().kill_at("effect.tool.end")
    first = await place.open(probe=plan)
    lane = await first.lane("main", agent_of(door))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    await plan.died()
    await bury(first, driving)
    assert door.inside == 1
    door.locked = True

    again = await place.open()
    lane = await again.lane("main", agent_of(door))
    await lane.drive("op")

    told = await result_of(lane)
    assert told.text == f"The tool 'go' could not be started again: the door is locked. {STARTED_BEFORE}"


def stopped_before(life: Life[list[str]]) -> Agent:
    """Tools that never begin, and one that has not begun until it was given a few turns of the loop."""

    @tool(replay="never")
    async def gone() -> str:
        raise NotStarted("it is gone")

    @tool(replay="safe")
    async def look() -> str:
        raise NotStarted("it is gone")

    @tool(replay="never")
    async def slow() -> str:
        try:
            for _ in range(4):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise NotStarted("it was stopped before") from None
        life.world.append("slow")
        return "done"

    return Agent(model=ScriptedModel([[call("gone"), call("slow"), call("look")], "done"]), tools=[gone, slow, look])


def once(history: History[list[str]]) -> None:
    assert history.world.count("slow") <= 1, history.world


def test_stopped_anywhere_the_matrix_finds_nothing_wrong(whole: bool) -> None:
    if not whole:
        pytest.skip("hundreds of histories: with --whole")
    scenario = Scenario("not started", agent=stopped_before, prompt="go", world=list, check=once)

    report = asyncio.run(crash_matrix(scenario, stores=["memory"], depth=Depth(again=40)))

    assert report.rows[0].failures == 0 and report.rows[0].closes >= 25, report
