"""Scenarios in which the process that recovers has another agent: other policies, tools gone, another model."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import ModelIdentity
from agentlane.data.operations import ReplayPolicy
from agentlane.data.requests import Prompt
from agentlane.testing.matrix.builtin.asked import drive_answering
from agentlane.testing.matrix.builtin.hands import Body, Hands, check_effects, hand
from agentlane.testing.matrix.found import Current
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from agentlane.tool import Tool
from agentlane.tool_context import ToolContext

STORED: dict[str, ReplayPolicy] = {"once": "never", "look": "safe", "put": "idempotent"}
"""The tools of the first process, with their policies."""

ASKING: dict[str, ReplayPolicy] = {"check": "ask"}
"""A tool of the first process that a person must allow to run again. It stands alone: it costs answers."""

CURRENT: tuple[Current, ...] = ("never", "safe", "idempotent", "ask", "missing", "inactive", "refused")
"""What the processes after it have instead of each of them."""

TURNS = 4


def _refuse(arguments: dict[str, Any]) -> Any:
    raise ValueError("not any more")


def _lingering(name: str) -> Body:
    """A tool that takes some turns of the event loop, so that an abort finds it at work."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return f"{name}:{arguments['x']} done"

    return body


def _tools(life: Life[Hands], stored: dict[str, ReplayPolicy], current: Current) -> list[Tool[Any, Any]]:
    if life.number == 1:
        return [hand(life, name, policy, body=_lingering(name)) for name, policy in stored.items()]
    match current:
        case "missing":
            return []
        case "refused":
            return [hand(life, name, policy, validate=_refuse) for name, policy in stored.items()]
        case "inactive":
            return [hand(life, name, policy) for name, policy in stored.items()]
        case _:
            return [hand(life, name, current) for name in stored]


def _changed(
    current: Current, *, parallel: bool, names: str = "look once put once", stored: dict[str, ReplayPolicy] = STORED
) -> Scenario[Hands]:
    """Calls of a stored policy each, and what the next process has for all of them."""

    def agent(life: Life[Hands]) -> Agent[Any, Any]:
        calls = [call(name, x=x) for x, name in enumerate(names.split(), 1)]
        return Agent(
            model=ScriptedModel([calls, "done"]),
            tools=_tools(life, stored, current),
            max_parallel=8 if parallel else 1,
        )

    async def act(life: Life[Hands]) -> None:
        lane = await life.lane()
        if current == "inactive" and life.number > 1 and lane.inspect().operation is not None:
            await lane.configure(tools=[])
        await lane.accept(Prompt("go"), operation_id="op-1")
        await drive_answering(life, lane, lambda approval: {"allow": True})

    how = "in parallel" if parallel else "one by one"
    if stored is ASKING:
        how = "that ask before they run again"
    return Scenario(
        f"calls {how}, whose tools are {current} afterwards", agent=agent, world=Hands, act=act, check=check_effects
    )


def _other_model(life: Life[Hands]) -> Agent[Any, Any]:
    identity = ModelIdentity(provider="scripted", name="old" if life.number == 1 else "new")
    return Agent(
        model=ScriptedModel([[call("look", x=1)], "done"], identity=identity),
        tools=[hand(life, "look", "safe")],
    )


MODEL_GONE = Scenario("a model that is gone afterwards", agent=_other_model, world=Hands, check=check_effects)

PARALLEL = tuple(_changed(current, parallel=True) for current in CURRENT)
ONE_BY_ONE = tuple(_changed(current, parallel=False) for current in CURRENT)
ASKED_AGAIN = tuple(_changed(current, parallel=True, names="check check", stored=ASKING) for current in CURRENT)
INACTIVE = PARALLEL[CURRENT.index("inactive")]

CHANGED = (*PARALLEL, *ONE_BY_ONE, ASKED_AGAIN[CURRENT.index("safe")], MODEL_GONE)
