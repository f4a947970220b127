"""Claim: a child belongs to its parent: what it is shown, who drives it, when it waits, what a deploy leaves of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import (
    AfterTool,
    Agent,
    AgentLane,
    AnswerShown,
    InvalidName,
    LaneBusy,
    ModelIdentity,
    Prompt,
    RequestConflict,
    Session,
    Settled,
    Tool,
    ToolContext,
    ToolResult,
    Waiting,
    agent_tool,
    hook,
)
from agentlane.data.messages import ToolResultMessage
from agentlane.ids import call_id
from agentlane.testing import Trace, check_invariants, check_trace
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang
from tests.races.stage import shape
from tests.session.places import Place


def parent(*tools: Tool[Any, Any], calls: Sequence[Any] | None = None, **options: Any) -> Agent[Any, Any]:
    asked = [call("helper", prompt="look")] if calls is None else list(calls)
    return Agent("boss", model=ScriptedModel(turns=[[asked, "all done"], ["again"]]), tools=tools, **options)


def helper(*script: Any, name: str = "helper", tools: Sequence[Tool[Any, Any]] = (), **options: Any) -> Tool[Any, Any]:
    agent = Agent(name, model=ScriptedModel(list(script)), tools=tools, retry=options.pop("retry", None))
    return agent_tool(agent, description="Helps.", **options)


def lanes(session: Session) -> list[str]:
    return [name for name in session.lanes() if name != "main"]


async def results(lane: AgentLane[Any, Any]) -> list[ToolResultMessage]:
    return [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]


async def sound(session: Session, trace: Trace | None = None) -> None:
    assert await check_invariants(session) == []
    if trace is not None:
        assert check_trace(trace) == [], trace.history()


class Gate:
    """A tool that runs until it is let go, and counts its starts."""

    def __init__(self) -> None:
        self.starts = 0
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.contexts: list[ToolContext[Any]] = []
        self.tool = Tool("wait", self._run)
        self.safe = Tool("wait", self._run, replay="safe")

    async def _run(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        self.starts += 1
        self.contexts.append(ctx)
        self.begun.set()
        await self.let_go.wait()
        return "waited"


@pytest.mark.parametrize("history", ["none", "path"])
@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("reopened", [False, True])
async def test_what_a_child_is_shown(place: Place, history: Any, turn: int, reopened: bool) -> None:
    """Its prompt, or the conversation before the answer that calls it, also for a call that started late."""
    gate = Gate()
    tool = helper("not asked", "seen", "seen", history=history)
    early = [call("wait")] if turn == 2 else []
    model = ScriptedModel([*([[call("wait")]] if turn == 2 else []), [*early, call("helper", prompt="look")], "done"])
    agent = Agent("boss", model=model, tools=[tool, gate.safe], max_parallel=1)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.append_custom("note", 1)
    await lane.accept(Prompt("go"), operation_id="op")
    if reopened:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent)
    gate.let_go.set()
    outcome = await lane.drive()

    assert isinstance(outcome, Settled)
    assert outcome.result.status == "completed"
    before = ["user go", *(["assistant[tool_calls]  (wait)", "result waited"] if turn == 2 else [])]
    (request,) = tool.agent.model.requests  # type: ignore[attr-defined]
    assert shape(request.messages) == [*(before if history == "path" else []), "user look"]
    await sound(session)


async def test_children_run_beside_each_other_and_have_children(place: Place) -> None:
    session = await place.open()
    gates = [Gate(), Gate()]
    inner = [helper([call("wait")], f"inner {n}", name=f"inner{n}", tools=[gates[n].tool]) for n in range(2)]
    outer = [
        helper([call(f"inner{n}", prompt="deep")], f"outer {n}", name=f"outer{n}", tools=[inner[n]]) for n in range(2)
    ]
    calls = [call("outer0", prompt="a"), call("outer1", prompt="b")]
    lane = await session.lane("main", parent(*outer, calls=calls))
    running = asyncio.ensure_future(lane.run("go"))
    for gate in gates:
        await gate.begun.wait()

    assert len(session.open_operations()) == 5
    gates[1].let_go.set()
    gates[0].let_go.set()
    assert (await running).status == "completed"
    assert [each.text for each in await results(lane)] == ["outer 0", "outer 1"]
    assert len(lanes(session)) == 4
    assert session.stats().usage.rows == 2 + 2 * 4
    await sound(session)


async def test_only_the_parent_drives_a_child(place: Place) -> None:
    session = await place.open()
    gate = Gate()
    tool = helper([call("wait")], "x", "more", tools=[gate.tool])
    lane = await session.lane("main", parent(tool))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await gate.begun.wait()
    (name,) = lanes(session)
    child = await session.lane(name, tool.agent)

    for use in (child.drive(), child.resume(), child.abort()):
        with pytest.raises(LaneBusy) as caught:
            await use
        assert caught.value.details["operation_id"] == "op"
    with pytest.raises(LaneBusy):
        await child.accept(Prompt("more"))
    for change in (session.delete_branch(name), session.rename_branch(name, "x"), child.navigate(None)):
        with pytest.raises(LaneBusy):
            await change
    assert child.inspect().operation is not None
    assert child.inspect().operation.cancel_requested_at is None  # type: ignore[union-attr]
    gate.let_go.set()
    await running
    assert (await child.run("more")).status == "completed"
    await sound(session)


async def test_a_parent_with_other_work_does_not_wait(place: Place) -> None:
    """A wait is announced once nothing else of the batch can advance."""
    session = await place.open()
    gate = Gate()
    tool = helper(fail("busy", retryable=True, retry_after_ms=500), "at last")
    calls = [call("helper", prompt="look"), call("wait")]
    lane = await session.lane("main", parent(tool, gate.tool, calls=calls))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive(wait_for_retry=False))
    await gate.begun.wait()
    await place.clock.sleeping()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not driving.done()
    gate.let_go.set()
    assert isinstance(await driving, Waiting)


@pytest.mark.parametrize("times", [1, 5])
async def test_a_recovered_parent_goes_on_with_its_child(place: Place, times: int) -> None:
    """However often the process ends inside the child: never a second child, and never an interrupted call."""
    trace = Trace()
    place.store = trace.store(place.store)
    gates: list[Gate] = []

    def agent() -> Agent[Any, Any]:
        gates.append(Gate())
        return parent(helper([call("wait")], "it is there", tools=[gates[-1].safe]))

    session = await place.open()
    lane = await session.lane("main", agent())
    await lane.accept(Prompt("go"), operation_id="op")
    for _ in range(times):
        driving = asyncio.ensure_future(lane.drive())
        if gates[-1].starts == 0 and len(gates) <= 4:
            await gates[-1].begun.wait()
        await session.close()
        await asyncio.gather(driving, return_exceptions=True)
        session = await place.open()
        lane = await session.lane("main", agent())
    gates[-1].let_go.set()
    outcome = await lane.drive()

    assert isinstance(outcome, Settled)
    assert outcome.result.status == "completed"
    assert [each.text for each in await results(lane)] == ["it is there"]
    assert len(lanes(session)) == 1
    assert [commit.name for commit, _ in trace.commits()].count("settlement+child_started") == 1
    await sound(session, trace)


@pytest.mark.parametrize("gone", ["missing", "another tool", "another agent"])
async def test_the_agent_behind_a_call_is_gone_after_a_deploy(place: Place, gone: str) -> None:
    """Its work is stopped, and the call says what is not known; another agent under the name goes on with it."""
    session = await place.open()
    gate = Gate()
    lane = await session.lane("main", parent(helper([call("wait")], "x", tools=[gate.safe])))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await gate.begun.wait()
    await session.close()
    await asyncio.gather(driving, return_exceptions=True)

    session = await place.open()
    ran: list[str] = []

    async def plain(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        ran.append(ctx.call_id)
        return "plain"

    after = Gate()
    after.let_go.set()
    tools = {
        "missing": [],
        "another tool": [Tool("helper", plain, replay="safe")],
        "another agent": [
            agent_tool(
                Agent("heir", model=ScriptedModel([[call("wait")], "done by the heir"]), tools=[after.safe]),
                name="helper",
                description="Helps.",
            )
        ],
    }[gone]
    lane = await session.lane("main", parent(*tools))
    outcome = await lane.drive()

    assert isinstance(outcome, Settled)
    assert outcome.result.status == "completed"
    (result,) = await results(lane)
    assert ran == []
    if gone == "another agent":
        assert result.text == "done by the heir"
    else:
        assert result.is_error
        assert "not among the models" in result.text
    assert session.open_operations() == []
    await sound(session)


async def test_what_a_parent_has_is_not_for_the_child_whose_agent_is_gone(place: Place) -> None:
    """Not its hooks and dependencies; and what was submitted to the child runs with what the child ran with."""
    gate, asked = Gate(), list[tuple[str, Any]]()

    def masked(info: AfterTool[Any]) -> ToolResult:
        asked.append((info.lane, info.deps))
        return ToolResult(content="masked")

    def boss(*tools: Tool[Any, Any]) -> Agent[Any, Any]:
        model = ScriptedModel(turns=[[[call("ask_kid", prompt="look")], "all done"]])
        return Agent("boss", model=model, tools=tools, hooks=[hook("after_tool", masked)], deps="the boss's")

    own = ScriptedModel(
        turns=[[[call("wait")]], ["on with it"]], identity=ModelIdentity(provider="scripted", name="own")
    )
    kid = Agent("kid", model=own, tools=[Tool("wait", gate._run, approval=True)], settings={"of": "the kid"})
    session = await place.open()
    lane = await session.lane("main", boss(agent_tool(kid, name="ask_kid", description="Helps.")))
    await lane.accept(Prompt("go"))
    await lane.drive()
    (approval,) = session.approvals()
    child = await session.lane(approval.lane, kid)
    assert child._core.operation is not None
    ran_with = child._core.operation.config
    await child.submit("left")
    await session.close()

    session = await place.open()
    lane, child = await session.lane("main", boss()), await session.lane(approval.lane, kid)
    await child.decide(approval.approval_id, allow=True)
    assert isinstance(await lane.drive(), Settled)
    (of_child,) = await results(child)
    (of_call,) = await results(lane)
    assert "not available here" in of_child.text
    assert (of_call.text, asked) == ("masked", [("main", "the boss's")])
    assert gate.starts == 0

    left = child._core.operation
    assert left is not None and left.id != approval.operation_id
    assert left.config == ran_with
    outcome = await child.drive()
    assert isinstance(outcome, Settled) and outcome.result.text == "on with it"
    await sound(session)


async def test_a_native_cancellation_of_the_parents_pass_stops_the_childs(place: Place) -> None:
    session = await place.open()
    gate = Gate()
    lane = await session.lane("main", parent(helper([call("wait")], "x", tools=[gate.safe])))
    driving = asyncio.ensure_future(lane.run("go"))
    await gate.begun.wait()
    (running,) = [task for task in session._runtime.tasks if task.get_name() == "agentlane pass main"]
    running.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert session._runtime.tasks == set()
    gate.let_go.set()

    outcome = await lane.drive()
    assert isinstance(outcome, Settled)
    assert [each.text for each in await results(lane)] == ["x"]
    await sound(session)


async def test_the_names_and_ids_of_runs_to_come_are_nobodys(place: Place) -> None:
    """A call's id is known before its run begins: nothing can be put in its place, and the session stays sound."""
    session = await place.open()
    tool = helper("helped")
    tool.options = replace(tool.options, approval=True)
    lane = await session.lane("main", parent(tool))
    await lane.accept(Prompt("go"))
    assert isinstance(await lane.drive(), Waiting)
    (asked,) = session.approvals()
    other = await session.lane("other", tool.agent)

    for attempt in (
        lambda: session.lane(f"child:{asked.call_id}", tool.agent),
        lambda: session.create_branch("child:mine"),
        lambda: session.rename_branch("other", f"child:{asked.call_id}"),
    ):
        with pytest.raises(InvalidName, match="child:"):
            await attempt()
    with pytest.raises(RequestConflict, match="the id of a call"):
        await other.accept(Prompt("mine"), operation_id=asked.call_id)
    failing = await session.lane("failing", Agent(model=ScriptedModel([fail("no")])))
    assert (await failing.run("x", operation_id="f")).status == "failed"
    with pytest.raises(RequestConflict, match="the id of a call"):
        await failing.retry("f", operation_id=asked.call_id)

    await lane.decide(asked.approval_id, allow=True)
    assert isinstance(await lane.drive(), Settled)
    assert [each.text for each in await results(lane)] == ["helped"]
    child = await session.lane(f"child:{asked.call_id}", tool.agent)
    with pytest.raises(RequestConflict):
        await other.accept(Prompt("mine"), operation_id=asked.call_id)
    await child.run("and you", operation_id="mine")
    await session.close()
    await sound(await place.open())


async def test_an_id_of_the_answer_that_is_being_given_is_taken_too(memory: Place) -> None:
    """Before the answer is an entry a stream tells its id."""
    session = await memory.open()
    lane = await session.lane("main", Agent(model=ScriptedModel([hang("par")])))
    await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive())
    async for event in lane.watch():
        if isinstance(event, AnswerShown):
            break
    other = await session.lane("other", Agent(model=ScriptedModel(["done"])))

    with pytest.raises(RequestConflict, match="the id of a call"):
        await other.accept(Prompt("mine"), operation_id=call_id(event.response_id, 0))
    assert (await other.run("mine", operation_id=event.response_id)).status == "completed"
    driving.cancel()


async def test_what_is_in_a_runs_place_all_the_same_is_left_alone(place: Place) -> None:
    """Written by another version, say: the call is told, and what is there stays."""
    session = await place.open()
    tool = helper("helped")
    tool.options = replace(tool.options, approval=True)
    lane = await session.lane("main", parent(tool))
    await lane.accept(Prompt("go"))
    await lane.drive()
    (asked,) = session.approvals()
    mine = await session.lane("mine", Agent("me", model=ScriptedModel(["mine is done"])))
    await mine.accept(Prompt("mine"))
    mine._core.lanes[f"child:{asked.call_id}"] = mine._core
    await lane.decide(asked.approval_id, allow=True)

    assert isinstance(await lane.drive(), Settled)
    (result,) = await results(lane)
    assert result.is_error and "is in use already" in result.text
    del mine._core.lanes[f"child:{asked.call_id}"]
    assert isinstance(await mine.drive(), Settled)
    await sound(session)


async def test_a_run_whose_agent_is_gone_has_nothing_of_its_parents_and_what_waits_on_its_lane_is_kept(
    place: Place,
) -> None:
    """The parent's hooks are about the parent's calls; what was submitted to the child is the child's agent's."""
    asked: list[str] = []
    ask = Tool("ask", Gate()._run, approval=True)
    kid = Agent("helper", model=ScriptedModel(turns=[[[call("ask")], "helped"], ["answered"]]), tools=[ask])
    tool = agent_tool(kid, description="Helps.")
    hooks = [hook("after_tool", lambda info: asked.append(info.name))]
    session = await place.open()
    lane = await session.lane("main", parent(tool, hooks=hooks, deps="the parent's"))
    await lane.accept(Prompt("go"), operation_id="op")
    assert isinstance(await lane.drive(), Waiting)
    (question,) = session.approvals()
    await (await session.lane(question.lane, kid)).submit("left")
    await session.close()

    session = await place.open()
    lane = await session.lane("main", parent(hooks=hooks, deps="the parent's"))
    await (await session.lane(question.lane, kid)).decide(question.approval_id, allow=True)
    assert isinstance(await lane.drive("op"), Settled)
    assert asked == ["helper"]
    child = await session.lane(question.lane, kid)
    result = await child.resume()

    assert result is not None and (result.status, result.text) == ("completed", "answered")
    await sound(session)
