"""Claim: a call of another agent is its run: one operation under the call's id, found again, never a second one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLane,
    ChildReason,
    InvalidDefinition,
    Operation,
    OperationResult,
    Prompt,
    Session,
    SessionClosed,
    Settled,
    TextPart,
    ToolContext,
    ToolResultMessage,
    UserMessage,
    Waiting,
    WouldDeadlock,
    agent_tool,
    open_session,
    tool,
)
from agentlane.driver.lane_core import LaneCore
from agentlane.ids import call_id
from agentlane.storage import MemoryStore
from agentlane.testing import ManualClock, ScriptedModel, call, fail, hang
from agentlane.testing.invariants import check_invariants

INNER = [[call("look")], "seen"]


@tool(replay="safe")
async def look() -> str:
    """Look around."""
    return "a room"


def scout(script: list[Any] | None = None, **options: Any) -> Agent[Any, Any]:
    return Agent(name="scout", model=ScriptedModel(INNER if script is None else script), tools=[look], **options)


def chief(*script: Any, inner: Agent[Any, Any] | None = None, **options: Any) -> Agent[Any, Any]:
    ask = agent_tool(scout() if inner is None else inner, description="Look at a place.")
    return Agent(name="chief", model=ScriptedModel([*script]), tools=[ask, look], **options)


@pytest.fixture(params=["memory", "x.jsonl", "x.db"])
async def session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Session]:
    target: Any = MemoryStore() if request.param == "memory" else tmp_path / request.param
    async with open_session(target, durability="process", clock=ManualClock()) as opened:
        yield opened


async def results_of(lane: AgentLane[Any, Any]) -> list[ToolResultMessage]:
    return [message for message in await lane.messages() if isinstance(message, ToolResultMessage)]


async def child_result(session: Session, lane: AgentLane[Any, Any], index: int = 0) -> OperationResult:
    answer = next(entry for entry in await lane.entries(newest_first=False) if getattr(entry.body, "calls", ()))
    id = call_id(answer.id, index)
    found = await (await session.lane(f"child:{id}", scout())).result(id)
    assert found is not None
    return found


async def test_the_answer_of_the_other_agent_is_the_result_of_the_call(session: Session) -> None:
    lane = await session.lane("main", chief([call("scout", prompt="look there"), call("look")], "done"))

    result = await lane.run("go")

    assert (result.status, result.text) == ("completed", "done")
    assert [(each.text, each.is_error) for each in await results_of(lane)] == [("seen", False), ("a room", False)]
    child = await child_result(session, lane)
    assert (child.status, child.text, child.agent) == ("completed", "seen", "scout")
    assert child.key_operation == child.operation_id
    asked = [each.text for each in (await session.branch(child.lane).messages()) if hasattr(each, "text")]
    assert asked == ["", "a room", "seen"]
    assert await check_invariants(session) == []


async def test_what_a_child_used_is_counted_once(session: Session) -> None:
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done"))

    result = await lane.run("go")

    child = await child_result(session, lane)
    assert (result.usage.rows, child.usage.rows) == (2, 2)
    assert session.stats().usage.rows == 4


async def test_children_run_side_by_side_and_a_barrier_runs_alone(session: Session) -> None:
    inside, most = 0, 0
    meet = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for the other one."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 2:
            meet.set()
        await meet.wait()
        return "met"

    def waiter(name: str) -> Any:
        return Agent(name=name, model=ScriptedModel([[call("wait")], f"{name} met"]), tools=[wait])

    tools = [agent_tool(waiter(name), description="Wait.") for name in ("a", "b")]
    model = ScriptedModel([[call("a", prompt="x"), call("b", prompt="x")], "done"])
    lane = await session.lane("main", Agent(model=model, tools=tools))

    await lane.run("go")

    assert most == 2
    assert [each.text for each in await results_of(lane)] == ["a met", "b met"]


async def test_an_agent_that_fails_gives_an_error_result_that_says_why(session: Session) -> None:
    inner = scout([fail("no money")])
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done", inner=inner))

    result = await lane.run("go")

    assert result.status == "completed"
    [given] = await results_of(lane)
    assert given.is_error
    assert given.text == "The agent 'scout' failed: scripted failure: no money"


@pytest.mark.parametrize("arguments", [{}, {"prompt": ""}, {"prompt": 7}, {"prompt": "x", "more": 1}])
async def test_a_call_without_a_good_prompt_starts_nothing(session: Session, arguments: dict[str, Any]) -> None:
    lane = await session.lane("main", chief([call("scout", **arguments)], "done"))

    await lane.run("go")

    [given] = await results_of(lane)
    assert given.is_error
    assert "prompt" in given.text
    assert session.lanes() == ["main"]


async def test_children_of_children_answer_and_are_aborted_with_their_parents(session: Session) -> None:
    low = Agent(name="low", model=ScriptedModel([hang()]))
    middle = Agent(
        name="middle",
        model=ScriptedModel([[call("low", prompt="deep")], "not asked"]),
        tools=[agent_tool(low, description="Deep.")],
    )
    top = Agent(
        model=ScriptedModel([[call("middle", prompt="down")], "not asked"]),
        tools=[agent_tool(middle, description="Down.")],
    )
    lane = await session.lane("main", top)
    admitted = await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
    model = low.model
    assert isinstance(model, ScriptedModel)
    await model.hanging()
    parents = {each.operation_id: each.parent_operation_id for each in session.open_operations()}
    assert len(parents) == 3
    assert sorted(id for id in parents.values() if id is not None) == sorted(set(parents) - {_lowest(parents)})

    receipt = await lane.request_abort(admitted.operation_id)

    assert receipt.newly_requested
    assert all(each.cancel_requested_at is not None for each in session.open_operations())
    outcome = await driving
    assert isinstance(outcome, Settled)
    assert outcome.result.status == "aborted"
    assert session.open_operations() == []
    assert await check_invariants(session) == []


def _lowest(parents: dict[str, str | None]) -> str:
    """The operation that is nobody's parent."""
    [lowest] = set(parents) - set(parents.values())
    return lowest


async def test_an_abort_of_the_child_alone_lets_the_parent_go_on(session: Session) -> None:
    inner = scout([hang()])
    lane = await session.lane("main", chief([call("scout", prompt="look")], "without it", inner=inner))
    admitted = await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
    model = inner.model
    assert isinstance(model, ScriptedModel)
    await model.hanging()
    child = next(each for each in session.open_operations() if each.lane != "main")

    await (await session.lane(child.lane, inner)).request_abort(child.operation_id)

    outcome = await driving
    assert isinstance(outcome, Settled)
    assert (outcome.result.status, outcome.result.text) == ("completed", "without it")
    [given] = await results_of(lane)
    assert given.is_error
    assert "aborted" in given.text


async def test_after_a_close_the_parent_finds_its_child_where_it_stood(tmp_path: Path) -> None:
    starts: list[int] = []

    def agents(script: list[Any]) -> tuple[Agent[Any, Any], ScriptedModel]:
        @tool(replay="never")
        async def pay() -> str:
            """Pay."""
            starts.append(1)
            return "paid"

        model = ScriptedModel(script)
        inner = Agent(name="scout", model=model, tools=[pay])
        return chief([call("scout", prompt="look")], "done", inner=inner), model

    agent, model = agents([[call("pay")], hang()])
    session = await open_session(tmp_path / "x.db", durability="process")
    lane = await session.lane("main", agent)
    admitted = await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
    await model.hanging()
    await session.close()
    with pytest.raises(SessionClosed):
        await driving

    agent, model = agents([[call("pay")], "seen"])
    async with open_session(tmp_path / "x.db", durability="process") as again:
        lane = await again.lane("main", agent)
        assert len(again.open_operations()) == 2
        outcome = await lane.drive()

        assert isinstance(outcome, Settled)
        assert outcome.result.status == "completed"
        assert [each.text for each in await results_of(lane)] == ["seen"]
        assert starts == [1]
        assert len(again.lanes()) == 2


async def test_a_child_whose_agent_is_gone_after_a_deploy_is_ended_by_its_parent(tmp_path: Path) -> None:
    inner = scout([hang()])
    session = await open_session(tmp_path / "x.db", durability="process")
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done", inner=inner))
    await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive())
    model = inner.model
    assert isinstance(model, ScriptedModel)
    await model.hanging()
    await session.close()
    with pytest.raises(SessionClosed):
        await driving

    bare = Agent(name="chief", model=ScriptedModel([[call("scout", prompt="look")], "went on without"]))
    async with open_session(tmp_path / "x.db", durability="process") as again:
        lane = await again.lane("main", bare)
        result = await lane.resume()

        assert result is not None
        assert (result.status, result.text) == ("completed", "went on without")
        [given] = await results_of(lane)
        assert given.is_error
        assert "model scripted:scripted is not among the models of agent 'scout' in this process" in given.text
        assert again.open_operations() == []


async def test_a_child_must_not_wait_for_its_parent(session: Session) -> None:
    errors: list[str] = []

    @tool
    async def wait_for_parent(ctx: ToolContext[Any]) -> str:
        """Wait for the lane that waits for this."""
        try:
            await lane.drive()
        except WouldDeadlock as error:
            errors.append(str(error))
        return "no"

    inner = Agent(name="scout", model=ScriptedModel([[call("wait_for_parent")], "seen"]), tools=[wait_for_parent])
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done", inner=inner))

    await lane.run("go")

    assert len(errors) == 1


async def test_a_parent_waits_for_what_its_child_waits_for(session: Session) -> None:
    starts: list[int] = []

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        starts.append(1)
        return "paid"

    inner = Agent(name="scout", model=ScriptedModel([[call("pay")], "paid it"]), tools=[pay])
    lane = await session.lane("main", chief([call("scout", prompt="pay"), call("look")], "done", inner=inner))
    await lane.accept(Prompt("go"))

    outcome = await lane.drive()

    assert isinstance(outcome, Waiting)
    [reason] = outcome.reasons
    assert isinstance(reason, ChildReason)
    child = next(each for each in session.open_operations() if each.lane != "main")
    assert (reason.call_id, reason.operation_id, reason.lane) == (child.operation_id, child.operation_id, child.lane)
    [asked] = session.approvals()
    assert [getattr(each, "approval_id", None) for each in reason.reasons] == [asked.approval_id]
    sitting = asyncio.ensure_future(lane.drive(wait_for_answers=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not sitting.done()
    assert starts == []

    await (await session.lane(child.lane, inner)).decide(asked.approval_id, allow=True)

    settled = await sitting
    assert isinstance(settled, Settled)
    assert settled.result.text == "done"
    assert [each.text for each in await results_of(lane)] == ["paid it", "a room"]
    assert starts == [1]
    assert await check_invariants(session) == []


async def test_a_childs_wait_for_a_retry_is_told_to_who_does_not_sit_it_out(session: Session) -> None:
    inner = scout([fail("busy", retryable=True, retry_after_ms=5_000), "seen"])
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done", inner=inner))
    clock = session._runtime.clock
    assert isinstance(clock, ManualClock)
    await lane.accept(Prompt("go"))

    outcome = await lane.drive(wait_for_retry=False)

    assert isinstance(outcome, Waiting)
    assert outcome.wake_at == clock.now_ms() + 5_000
    again = await lane.drive(wait_for_retry=False)
    assert isinstance(again, Waiting)
    clock.advance(5_000)
    settled = await lane.drive(wait_for_retry=False)
    assert isinstance(settled, Settled)
    assert settled.result.text == "done"


async def test_a_run_of_an_agent_can_be_asked_for_itself(session: Session) -> None:
    ask = agent_tool(scout(), description="Look.", approval=True)
    model = ScriptedModel([[call("scout", prompt="look")], "done"])
    lane = await session.lane("main", Agent(model=model, tools=[ask]))
    await lane.accept(Prompt("go"))

    assert isinstance(await lane.drive(), Waiting)
    assert session.lanes() == ["main"]
    [asked] = session.approvals()
    await lane.decide(asked.approval_id, allow=True, args={"prompt": "look there"})
    settled = await lane.drive()

    assert isinstance(settled, Settled)
    assert settled.result.text == "done"
    [child] = [name for name in session.lanes() if name != "main"]
    [prompt, *_] = await session.branch(child).messages()
    assert isinstance(prompt, UserMessage)
    assert prompt.content == (TextPart(text="look there"),)


async def test_a_waiting_child_is_driven_on_when_its_time_has_come(session: Session) -> None:
    inner = scout([fail("busy", retryable=True, retry_after_ms=5_000), "seen"])
    lane = await session.lane("main", chief([call("scout", prompt="look")], "done", inner=inner))
    clock = session._runtime.clock
    assert isinstance(clock, ManualClock)
    running = asyncio.ensure_future(lane.run("go"))
    while not clock.sleepers:
        await asyncio.sleep(0)
    clock.advance(5_000)

    assert (await running).text == "done"
    assert [each.text for each in await results_of(lane)] == ["seen"]


def test_what_is_no_agent_or_has_no_description_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="an Agent is needed"):
        agent_tool("scout", description="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="what the agent is for"):
        agent_tool(scout(), description="")
    with pytest.raises(InvalidDefinition, match="run the agent on a lane"):
        agent_tool(scout(), description="x")("go", None)


async def test_a_close_while_a_parent_finds_its_child_leaves_nobody_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's path is being read when the session is closed: no pass begins on the child that nobody would end."""
    inner = scout([hang()])
    agent = chief([call("scout", prompt="look")], "done", inner=inner)
    model = inner.model
    assert isinstance(model, ScriptedModel)
    path = tmp_path / "x.db"
    async with open_session(path, durability="process") as session:
        lane = await session.lane("main", agent)
        await lane.accept(Prompt("go"))
        driving = asyncio.ensure_future(lane.drive())
        await model.hanging()
    with pytest.raises(SessionClosed):
        await driving

    reading, go_on, load = asyncio.Event(), asyncio.Event(), LaneCore.load

    async def slow_load(self: LaneCore) -> None:
        if self.name != "main":
            reading.set()
            await go_on.wait()
        await load(self)

    monkeypatch.setattr(LaneCore, "load", slow_load)
    again = await open_session(path, durability="process")
    driving = asyncio.ensure_future((await again.lane("main", agent)).drive())
    await reading.wait()
    closing = asyncio.ensure_future(again.close())
    await asyncio.sleep(0)
    go_on.set()

    await closing
    with pytest.raises(SessionClosed):
        await driving
    assert again._runtime.tasks == set()


@pytest.mark.parametrize("deep", [False, True], ids=["child", "grandchild"])
@pytest.mark.parametrize("waits_for", ["approval", "retry"])
async def test_an_abort_of_a_child_that_waits_wakes_who_waits_for_it(
    session: Session, waits_for: str, deep: bool
) -> None:
    """The parent sits the wait out; nothing else could wake it: nobody can answer any more, and the clock stands."""

    @tool(approval=True)
    async def ask() -> str:
        """Never allowed."""
        return "ran"

    script = [[call("ask")], "seen"] if waits_for == "approval" else [fail("later", retryable=True), "seen"]
    low = Agent(name="low", model=ScriptedModel(script), tools=[ask])
    inner = low
    if deep:
        inner = Agent(
            name="scout",
            model=ScriptedModel([[call("low", prompt="deep")], "inner end"]),
            tools=[agent_tool(low, description="Deeper.")],
        )
    asking = agent_tool(inner, description="Look at a place.")
    lane = await session.lane(
        "main", Agent(model=ScriptedModel([[call(inner.name, prompt="go")], "end"]), tools=[asking])
    )
    running = asyncio.ensure_future(lane.run("go"))
    while not (waiting := [each for each in session.open_operations() if each.agent == "low" and _waits(each)]):
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    child = await session.lane(waiting[0].lane, low)

    await child.request_abort(waiting[0].operation_id)

    assert (await asyncio.wait_for(running, timeout=60)).text == "end"
    assert await check_invariants(session) == []


def _waits(operation: Operation) -> bool:
    return operation.at == "retry_wait" or bool(operation.approvals)
