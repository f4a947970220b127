"""A session that stops with an operation open in every state, and how each of them goes on to its end.

``tests.compat.make_states`` makes it. Files that it once made are frozen in ``golden_files``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from agentlane import (
    Agent,
    AgentLane,
    ListAddress,
    PendingResult,
    Prompt,
    Session,
    Settled,
    Tool,
    ToolContext,
    ValueAddress,
    agent_tool,
    hook,
)
from agentlane.data.results import (
    ApprovalReason,
    ChildReason,
    ExternalReason,
    OperationResult,
    QuestionReason,
    Waiting,
    WaitReason,
)
from agentlane.hooks import AfterTool, BeforeFinish
from agentlane.testing import ManualClock, ScriptedModel, call, fail, hang, say
from tests.crash.world import shape

SESSION = "states"
APP_VALUE = ValueAddress("app.compat", "value", dict[str, int])
APP_LIST = ListAddress("app.compat", "list", int)


class Lane(NamedTuple):
    """A lane that stops in a state of its own."""

    script: Sequence[Any]
    shows: Callable[[AgentLane[Any, Any]], object]
    """What tells that the state is reached."""
    options: Mapping[str, Any] = MappingProxyType({})
    tools: tuple[str, ...] = ("work", "look")


class Hands:
    """What tools and hooks do in one life: in those that are killed they hang where they are told to."""

    def __init__(self, *, hold: bool) -> None:
        self.hold = hold
        self.starts: list[str] = []

    async def hang(self) -> None:
        if self.hold:
            await asyncio.get_running_loop().create_future()

    def tools(self) -> dict[str, Tool[Any, Any]]:
        async def work(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            self.starts.append(f"work:{arguments['x']}")
            if arguments.get("show"):
                await ctx.progress(f"half of {arguments['x']}")
            if arguments.get("hang"):
                await self.hang()
            return f"worked {arguments['x']}"

        async def look(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            self.starts.append(f"look:{arguments['x']}")
            seen = await ctx.memo("seen", 0)
            await ctx.set_memo("seen", seen + 1)
            if arguments.get("hang"):
                await self.hang()
            return f"looked {arguments['x']}, {seen} before"

        async def order(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
            return PendingResult()

        async def inquire(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            answers = [await ctx.ask(f"q{number}", f"question {number}?") for number in range(arguments["x"])]
            if arguments.get("hang"):
                await self.hang()
            return f"told {answers}"

        helper = Agent("helper", model=ScriptedModel([[call("inquire", x=1)], "helped"]), tools=[_tool(inquire)])
        return {
            "work": Tool("work", work, replay="never"),
            "look": Tool("look", look, replay="safe"),
            "alone": Tool("alone", look, replay="idempotent", parallel=False),
            "risk": Tool("risk", work, replay="ask"),
            "spend": Tool("spend", work, approval=True),
            "order": Tool("order", order),
            "inquire": _tool(inquire),
            "helper": agent_tool(helper, description="Helps."),
        }

    def agent(self, name: str) -> Agent[Any, Any]:
        lane = LANES[name]
        tools = self.tools()
        options = dict(lane.options)
        if "hooks" in options:
            options["hooks"] = [hook(point, getattr(self, f"_{point}")) for point in options["hooks"]]
        script = [*lane.script, "done", "done again", "done once more", "done at last"]
        return Agent(name, model=ScriptedModel(script), tools=[tools[each] for each in lane.tools], **options)

    async def _after_tool(self, info: AfterTool[Any]) -> None:
        await self.hang()

    async def _before_finish(self, info: BeforeFinish[Any]) -> None:
        await self.hang()


def _tool(inquire: Any) -> Tool[Any, Any]:
    return Tool("inquire", inquire, replay="safe")


def calls_are(*states: str) -> Callable[[AgentLane[Any, Any]], bool]:
    def shows(lane: AgentLane[Any, Any]) -> bool:
        operation = lane.inspect().operation
        return operation is not None and tuple(each.status for each in operation.calls) == states

    return shows


def is_at(phase: str, *, turn: int | None = None) -> Callable[[AgentLane[Any, Any]], bool]:
    def shows(lane: AgentLane[Any, Any]) -> bool:
        operation = lane.inspect().operation
        return operation is not None and operation.at == phase and turn in (None, operation.turn)

    return shows


def _hanging(*calls: Any) -> list[Any]:
    return [[say("I will."), *calls]]


LANES: dict[str, Lane] = {
    "accepted": Lane([], is_at("checkpoint")),
    "generating": Lane([hang([say("half an ans")])], is_at("generating")),
    "retrying": Lane([fail("overloaded", retryable=True, retry_after_ms=60_000)], is_at("retry_wait")),
    "running": Lane(
        _hanging(call("work", x=1, hang=True, show=True), call("look", x=2, hang=True)),
        calls_are("effect_pending", "effect_pending"),
    ),
    "staged": Lane(
        _hanging(call("look", x=1, hang=True), call("work", x=2), call("work", x=3)),
        calls_are("effect_pending", "outcome_ready", "outcome_ready"),
    ),
    "placed": Lane(_hanging(call("work", x=1), call("look", x=2, hang=True)), calls_are("placed", "effect_pending")),
    "barrier": Lane(
        _hanging(call("look", x=1, hang=True), call("alone", x=2)),
        calls_are("effect_pending", "planned"),
        tools=("look", "alone"),
    ),
    "approval": Lane(_hanging(call("spend", x=1)), calls_are("waiting_approval"), tools=("spend",)),
    "decided": Lane(_hanging(call("spend", x=1)), calls_are("waiting_approval"), tools=("spend",)),
    "approved": Lane(
        _hanging(call("look", x=1, hang=True), call("spend", x=2)),
        calls_are("effect_pending", "waiting_approval"),
        {"max_parallel": 1},
        tools=("look", "spend"),
    ),
    "replay": Lane(_hanging(call("risk", x=1, hang=True)), calls_are("effect_pending"), tools=("risk",)),
    "permitted": Lane(_hanging(call("risk", x=1, hang=True)), calls_are("effect_pending"), tools=("risk",)),
    "external": Lane(_hanging(call("order", x=1)), calls_are("waiting_external"), tools=("order",)),
    "question": Lane(_hanging(call("inquire", x=1)), calls_are("waiting_question"), tools=("inquire",)),
    "answered": Lane(_hanging(call("inquire", x=2)), calls_are("waiting_question"), tools=("inquire",)),
    "granted": Lane(_hanging(call("spend", x=1, hang=True)), calls_are("waiting_approval"), tools=("spend",)),
    "resumed": Lane(_hanging(call("inquire", x=1, hang=True)), calls_are("waiting_question"), tools=("inquire",)),
    "child": Lane(_hanging(call("helper", prompt="help me")), calls_are("waiting_child"), tools=("helper",)),
    "aborting": Lane(
        _hanging(call("work", x=1, hang=True), call("look", x=2)), calls_are("effect_pending", "outcome_ready")
    ),
    "inbox": Lane(_hanging(call("look", x=1, hang=True)), calls_are("effect_pending")),
    "finishing": Lane([], is_at("checkpoint", turn=1), {"hooks": ["before_finish"]}),
    "hooked": Lane(_hanging(call("work", x=1)), calls_are("outcome_ready"), {"hooks": ["after_tool"]}),
    "output": Lane(["no number", hang()], is_at("generating", turn=2), {"output": int, "max_output_retries": 3}),
    "retried": Lane([fail("broken")], lambda lane: lane.inspect().operation is None),
    "idle": Lane([], lambda lane: lane.inspect().operation is None),
}


async def go_on(session: Session, clock: ManualClock) -> dict[str, list[str]]:
    """Drive every lane to its end, with answers to all it waits for; how each ended, in short lines."""
    hands, ends = Hands(hold=False), {}
    for name in LANES:
        lane = await session.lane(name, hands.agent(name))
        operation = lane.inspect().operation
        if operation is None:
            operation_id: str | None = (await lane.accept(Prompt("and now?"), operation_id=f"{name}-next")).operation_id
        else:
            operation_id = operation.operation_id
        lines: list[str] = []
        while operation_id is not None:
            result = await _settle(session, lane, clock, operation_id)
            lines.append(f"{operation_id}: {result.status}" + (f", {result.code}" if result.code else ""))
            lines += [f"  returned {line}" for each in result.returned for line in shape(each.content)]
            operation_id = result.next_operation
        # Behind this, msgspec's own words say what is wrong with the answer.
        ends[name] = [*lines, *(f"  {each}".partition(": it is not")[0] for each in shape(await lane.messages()))]
    return ends


async def _settle(
    session: Session, lane: AgentLane[Any, Any], clock: ManualClock, operation_id: str
) -> OperationResult:
    for _ in range(20):
        outcome = await lane.drive(operation_id, wait_for_retry=False)
        if isinstance(outcome, Settled):
            return outcome.result
        assert isinstance(outcome, Waiting)
        answered = False
        for reason in outcome.reasons:
            answered |= await _answer(session, lane, reason)
        if not answered and outcome.wake_at is not None:
            clock.advance(max(0, outcome.wake_at - clock.now_ms()))
    raise AssertionError(f"{operation_id} does not end: {lane.inspect()}")


async def _answer(session: Session, lane: AgentLane[Any, Any], reason: WaitReason) -> bool:
    match reason:
        case ApprovalReason():
            await lane.decide(reason.approval_id, allow=True, by="a test")
        case QuestionReason():
            await lane.answer(reason.question_id, f"answer to {reason.name}")
        case ExternalReason():
            await lane.deliver(reason.call_id, "delivered")
        case ChildReason():
            inner = [each for each in session.approvals() if each.lane == reason.lane]
            for each in inner:
                await (await session.lane(each.lane, lane.agent)).answer(each.approval_id, "answer for the child")
            return bool(inner)
        case _:
            return False
    return True
