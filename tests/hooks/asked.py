"""Hooks that remember what they were asked, tools that remember what they were started with, and a short transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentlane import Agent, AgentLane, Hook, HookInfo, Session, Tool, ToolContext, ToolResultMessage
from agentlane.data import addresses
from agentlane.data.operations import ReplayPolicy
from agentlane.testing import ManualClock

GRACE_MS = 70


class Hands:
    """What tools were started with: their labels, in order."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.keys: list[str] = []
        self.go_on = asyncio.Event()

    def tool(self, name: str, replay: ReplayPolicy = "never", **options: Any) -> Tool[Any, Any]:
        """A tool whose result names its start; with ``hang`` among its arguments it waits for ``go_on``."""

        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            self.starts.append(f"{name}:{arguments.get('x')}")
            self.keys.append(ctx.idempotency_key)
            if arguments.get("hang"):
                await self.go_on.wait()
            return f"{name}:{arguments.get('x')} done"

        return Tool(name, run, replay=replay, **options)


class Asked:
    """A hook's function, plain or async: remembers each question and answers by ``answer``."""

    def __init__(self, answer: Callable[[Any], Any], *, plain: bool = False) -> None:
        self.seen: list[Any] = []
        self._answer = answer
        self._plain = plain

    def __call__(self, info: HookInfo[Any]) -> Any:
        self.seen.append(info)
        return self._answer(info) if self._plain else self._later(info)

    async def _later(self, info: HookInfo[Any]) -> Any:
        await asyncio.sleep(0)
        return self._answer(info)


class Stuck:
    """A hook's function that hangs; ``entered`` says that it does, ``told`` counts its cancellations."""

    def __init__(self, *, stubborn: bool = False, value: Any = None) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.told = 0
        self._stubborn = stubborn
        self._value = value

    async def __call__(self, info: HookInfo[Any]) -> Any:
        self.entered.set()
        while not self.go_on.is_set():
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.told += 1
                if not self._stubborn:
                    raise
        return self._value


async def results(lane: AgentLane[Any, Any]) -> list[str]:
    """The results of calls, in the order of the conversation; errors with a mark."""
    found = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    return [("! " if each.is_error else "") + each.text for each in found]


async def arguments_kept(session: Session) -> dict[str, bytes]:
    """What is kept of arguments that differ from the model's, by operation and call."""
    return await session._runtime.storage.values(addresses.OP_ARGS)


async def pass_grace(clock: ManualClock, stuck: Stuck) -> None:
    """Let the grace of what was told to stop be over."""
    while not stuck.told:
        await asyncio.sleep(0)
    await clock.sleeping()
    clock.advance(GRACE_MS)


def agent_with(model: Any, *hooks: Hook, **options: Any) -> Agent[Any, Any]:
    """An agent with these hooks."""
    return Agent(model=model, hooks=hooks, **options)
