"""A world that outlives its processes, for single histories: a place, a clock, effects counted outside, and models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane import Agent, AgentLane, Session, Tool, ToolContext
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.operations import ReplayPolicy
from agentlane.ids import call_id
from agentlane.storage.contract import Probe
from agentlane.testing.faults import FaultPlan
from agentlane.testing.matrix.builtin.hands import Hands
from agentlane.testing.matrix.history import History
from agentlane.testing.matrix.lives import bury
from agentlane.testing.matrix.stores import STORES, Place
from agentlane.testing.models import ScriptedModel

Backend: TypeAlias = Literal["memory", "jsonl", "sqlite"]
BACKENDS: tuple[Backend, ...] = ("memory", "jsonl", "sqlite")


class Effect(NamedTuple):
    """One start of a tool's effect, counted outside of the store."""

    label: str
    policy: ReplayPolicy
    attempt: int
    recovered: bool
    key: str
    call_id: str


class World:
    """Everything that a process's death leaves as it is. One for each history."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.stage = History(Place(STORES[backend], folder), Hands(), store=backend)
        self.clock = self.stage.clock
        self.trace = self.stage.trace
        self.effects: list[Effect] = []
        self.models: list[ScriptedModel] = []

    async def open(self, probe: Probe | None = None) -> Session:
        """Begin a life: open the session, made if there is none."""
        return (await self.stage.open(probe=probe)).session

    def tool(
        self,
        name: str,
        replay: ReplayPolicy,
        *,
        body: Callable[[dict[str, Any], ToolContext[Any]], Awaitable[Any]] | None = None,
        parallel: bool = True,
        validate: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Tool[Any, Any]:
        """A tool whose starts are counted. With ``after=[1]`` among its arguments, its first start of all ends once
        the outcome of the batch's call 1 is durable; with ``hang=True`` that start never ends by itself."""

        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
            label = f"{name}:{arguments.get('x', '')}"
            self.effects.append(Effect(label, replay, ctx.attempt, ctx.recovered, ctx.idempotency_key, ctx.call_id))
            if body is not None:
                return await body(arguments, ctx)
            if not ctx.recovered:
                for index in arguments.get("after", ()):
                    await self.stage.durable.settled(call_id(ctx.turn_id, index))
                if arguments.get("hang"):
                    await self.hang()
            return f"{label} done"

        return Tool(name, run, replay=replay, parallel=parallel, validate=validate)

    async def stuck(self) -> None:
        """Return once a tool hangs that was told to."""
        await self.stage.world.stuck()

    async def hang(self) -> None:
        """Hang, as a tool that was told to."""
        await self.stage.world.hang()

    async def published(self, namespace: str) -> None:
        """Return once a commit with a write in ``namespace`` is published."""
        await self.stage.durable.published(namespace)

    def starts(self) -> Counter[str]:
        """How often each effect started, by label."""
        return Counter(effect.label for effect in self.effects)

    def model(self, script: Sequence[Any], **options: Any) -> ScriptedModel:
        """A model of this life."""
        model = ScriptedModel(script, **options)
        self.models.append(model)
        return model

    def history(self) -> str:
        """What happened, for people."""
        effects = "\n".join(map(str, self.effects))
        return f"\n{self.trace.history()}\n\neffects:\n{effects}"


async def finish(world: World, lane: AgentLane[Any, Any], operation_id: str) -> Any:
    """Drive to the end; waits for a retry pass on the world's clock at once."""
    while True:
        outcome = await lane.drive(operation_id, wait_for_retry=False)
        if (result := getattr(outcome, "result", None)) is not None:
            return result
        world.clock.advance(max(0, outcome.wake_at - world.clock.now_ms()))


async def live(world: World, act: Callable[[Session], Awaitable[Any]], plan: FaultPlan | None = None) -> bool:
    """One life of a process: open, ``act``, close. False if ``plan`` ended it before, as a kill does."""
    plan = plan or FaultPlan()
    session = await world.open(plan)
    acting = asyncio.ensure_future(act(session))
    dying = asyncio.ensure_future(plan.died())
    await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED)
    if plan.died_at is None:
        try:
            await acting
        finally:
            dying.cancel()
            if plan.died_at is None:
                await session.close()
        if plan.died_at is None:
            return True
    await bury(session, acting)
    return False


def shape(messages: Sequence[Any]) -> list[str]:
    """A conversation in short lines, to be compared with what was expected."""
    lines: list[str] = []
    for each in messages:
        if isinstance(each, AssistantMessage):
            calls = ",".join(call.name for call in each.calls)
            end = each.stop_reason if each.error is None else f"{each.stop_reason}/{each.error.code}"
            lines.append(f"assistant[{end}] {each.text}" + (f" ({calls})" if calls else ""))
        elif isinstance(each, ToolResultMessage):
            lines.append(f"result{'!' if each.is_error else ''} {each.text}")
        else:
            lines.append(f"user {each.content[0].text}")
    return lines


def make_agent(world: World, model: Any, tools: Sequence[Tool[Any, Any]], **options: Any) -> Agent[Any, Any]:
    """An agent whose effects the world's trace records."""
    return world.trace.agent(Agent(model=model, tools=tools, **options))
