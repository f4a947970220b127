"""Scenarios with hooks: what they change, block, raise and mask holds however often they are asked again."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data.messages import AssistantMessage, Message, TextPart, user
from agentlane.hooks import (
    AfterResponse,
    AfterTool,
    BeforeFinish,
    BeforeRequest,
    BeforeRun,
    BeforeTool,
    Block,
    FollowUp,
    Hook,
    TransformContext,
    hook,
)
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail
from agentlane.tool import ToolResult


async def _look_first(info: BeforeTool[Any]) -> dict[str, Any] | Block | None:
    await asyncio.sleep(0)
    x = info.arguments.get("x")
    if x == 3:
        raise LookupError("nobody knows")
    if x == 2:
        return Block("two is not allowed")
    return {**info.arguments, "x": 10} if x == 1 else None


def _look_again(info: BeforeTool[Any]) -> dict[str, Any] | None:
    return {**info.arguments, "x": 11} if info.arguments.get("x") == 10 else None


async def _mask(info: AfterTool[Any]) -> ToolResult | None:
    await asyncio.sleep(0)
    if info.result.text == "safe:11 done":
        return ToolResult(content="masked", details={"by": "hook"})
    return None


def tool_hooks() -> list[Hook]:
    """Hooks around calls that change, block, raise and mask."""
    return [hook("before_tool", _look_first), hook("before_tool", _look_again), hook("after_tool", _mask)]


def _agent(life: Life[Hands]) -> Agent[Any, Any]:
    calls = [
        call("safe", x=1, after=[3]),
        call("never", x=2),
        call("safe", x=3),
        call("never", x=4),
        call("alone", x=5),
        call("key", x=6),
    ]
    return Agent(model=ScriptedModel(turns=[[calls, "done"]]), tools=mixed(life), hooks=tool_hooks())


def _check(history: History[Hands]) -> None:
    check_effects(history)
    labels = {label for label, _ in history.world.effects}
    if labels & {"safe:1", "never:2", "safe:3"}:
        raise AssertionError(f"calls took effect that hooks had changed or blocked: {labels}")


CALLS_WITH_HOOKS = Scenario("calls with hooks before and after them", agent=_agent, world=Hands, check=_check)

# Around requests, and at the ends of a run.


async def _look(info: BeforeRun[Any]) -> None:
    await asyncio.sleep(0)


async def _warmer(info: BeforeRequest[Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {**info.settings, "turn": info.turn}


async def _remind(info: TransformContext[Any]) -> list[Message]:
    await asyncio.sleep(0)
    return [user("go, and be brief"), *info.messages[1:]]


async def _polish(info: AfterResponse[Any]) -> AssistantMessage | None:
    await asyncio.sleep(0)
    if info.message.text != "rough":
        return None
    return replace(info.message, content=(TextPart(text="polished"),))


async def _go_on(info: BeforeFinish[Any]) -> list[FollowUp] | None:
    await asyncio.sleep(0)
    return None if info.follow_ups else ["and now", user("really")]


def run_hooks() -> list[Hook]:
    """Hooks around requests, and at the ends of a run."""
    return [
        hook("before_run", _look),
        hook("before_request", _warmer),
        hook("transform_context", _remind),
        hook("after_response", _polish),
        hook("before_finish", _go_on),
    ]


def _run_agent(life: Life[Hands]) -> Agent[Any, Any]:
    busy = fail("overloaded", retryable=True)
    script: list[list[Any]] = [[[call("safe", x=1), call("never", x=2)], busy, "rough"], ["not asked for"], ["second"]]
    return Agent(model=ScriptedModel(turns=script), tools=mixed(life), hooks=run_hooks())


def _check_run(history: History[Hands]) -> None:
    check_effects(history)
    for life in history.lives:
        model = life.own_agent.model if hasattr(life, "own_agent") else None
        for request in model.requests if isinstance(model, ScriptedModel) else ():
            if request.settings.get("turn") is None or request.messages[0] != user("go, and be brief"):
                raise AssertionError(f"a request was sent as no hook had seen it: {request}")
    if history.whole:
        said = [(each.point, each.info.turn) for each in history.witness.hooked]
        if ("before_run", 1) not in said or ("before_finish", 3) not in said:
            raise AssertionError(f"hooks were not asked: {said}")


RUN_WITH_HOOKS = Scenario(
    "a run with hooks around its requests and at its ends", agent=_run_agent, world=Hands, check=_check_run
)

HOOKS = (CALLS_WITH_HOOKS, RUN_WITH_HOOKS)
