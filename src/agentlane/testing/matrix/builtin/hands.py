"""The world of the library's own scenarios: tools whose effects are counted, and that wait and hang when told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import ReplayPolicy
from agentlane.ids import call_id
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.models import ScriptedModel
from agentlane.tool import Tool
from agentlane.tool_context import ToolContext

Body = Callable[[dict[str, Any], ToolContext[Any]], Awaitable[Any]]


class Hands:
    """What the tools of one history did, by label (``tool:x``), and which of their starts hang."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, ReplayPolicy]] = []
        self._hanging = 0
        self._stuck: asyncio.Future[None] | None = None

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for two worlds in which the same has happened; what a subclass holds is part of it."""
        held = sorted(vars(self).items())
        return tuple((name, repr(value)) for name, value in held if not isinstance(value, asyncio.Future))

    async def stuck(self) -> None:
        """Return once a start hangs that was told to."""
        while not self._hanging:
            self._stuck = self._stuck or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._stuck])

    async def hang(self) -> None:
        """Hang until cancelled."""
        self._hanging += 1
        if self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(None)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._hanging -= 1
            self._stuck = None


def hand(
    life: Life[Hands],
    name: str,
    replay: ReplayPolicy,
    *,
    body: Body | None = None,
    parallel: bool = True,
    validate: Callable[[dict[str, Any]], Any] | None = None,
) -> Tool[Any, Any]:
    """A tool whose starts are counted. With ``after=[1]`` among its arguments, its first start of all ends once the
    outcome of the batch's call 1 is durable; with ``hang=True`` that start never ends by itself."""

    async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        label = f"{name}:{arguments.get('x', '')}"
        life.world.effects.append((label, replay))
        if body is not None:
            return await body(arguments, ctx)
        if not ctx.recovered:
            for index in arguments.get("after", ()):
                await life.settled(call_id(ctx.turn_id, index))
            if arguments.get("hang"):
                await life.world.hang()
        return f"{label} done"

    return Tool(name, run, replay=replay, parallel=parallel, validate=validate)


def mixed(life: Life[Hands]) -> list[Tool[Any, Any]]:
    """One tool of each policy, and a barrier."""
    return [
        hand(life, "safe", "safe"),
        hand(life, "key", "idempotent"),
        hand(life, "never", "never"),
        hand(life, "alone", "never", parallel=False),
    ]


def agent_of(
    script: Callable[[], Sequence[Any]],
    tools: Callable[[Life[Hands]], Sequence[Tool[Any, Any]]] = mixed,
    *,
    deltas: int | None = None,
    **options: Any,
) -> Callable[[Life[Hands]], Agent[Any, Any]]:
    """A scenario's agent: a script by turns, a list for each prompt, and tools."""
    turns = script()  # answers are given as copies

    def make(life: Life[Hands]) -> Agent[Any, Any]:
        return Agent(model=ScriptedModel(turns=turns, deltas=deltas), tools=tools(life), **options)

    return make


def check_effects(history: History[Hands]) -> None:
    """Effects counted in the world: one for each result that claims one, and of a ``never`` tool no more than that."""
    labels = [label for label, _ in history.world.effects]
    for label, replay in history.world.effects:
        if replay == "never" and labels.count(label) > 1:
            raise AssertionError(f"{label} took effect {labels.count(label)} times, and its tool says never")
    for message in history.messages:
        if isinstance(message, ToolResultMessage) and message.text.endswith(" done"):
            label = message.text.removesuffix(" done")
            if label not in labels:
                raise AssertionError(f"{label} is said to be done, and took no effect")
