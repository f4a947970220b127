"""A run worth watching: an answer in pieces, a call that reports progress, one that ends before it, one refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentlane import Agent, ToolContext, Watch, tool
from agentlane.testing import ScriptedModel, call, say

TARGETS = (":memory:", "session.jsonl", "session.db")


def target_in(folder: Path, name: str) -> str:
    return name if name == ":memory:" else str(folder / name)


class Desk:
    """The tools of one agent, and when they end."""

    def __init__(self) -> None:
        self.gates = {"slow": asyncio.Event(), "quick": asyncio.Event()}
        self.begun = asyncio.Event()

        @tool(replay="safe")
        async def work(name: str, ctx: ToolContext) -> str:
            """Work until the gate opens."""
            await ctx.progress(f"{name}: half")
            self.begun.set()
            await self.gates[name].wait()
            return f"{name}: done"

        self.work = work

    def agent(self, *, deltas: int | None = 4) -> Agent:
        script = [[say("looking"), call("work", name="slow"), call("work", name="quick"), call("none")], "finished"]
        return Agent(model=ScriptedModel(script, deltas=deltas), tools=[self.work])

    def open_all(self) -> None:
        for gate in self.gates.values():
            gate.set()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000_000):  # a commit of a store with a thread takes as many turns of the loop as there is time for
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def rest(watch: Watch[Any]) -> list[Any]:
    """All that a watch has, until nothing more comes by itself."""
    found: list[Any] = []

    async def read() -> None:
        async for item in watch:
            found.append(item)

    task = asyncio.ensure_future(read())
    try:
        await quiet(lambda: len(found))
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return found


async def quiet(count: Callable[[], int]) -> None:
    """Until a number has not changed for some turns of the loop."""
    turns, before = 0, -1
    while turns < 30:
        now = count()
        turns, before = (turns + 1, now) if now == before else (0, now)
        await asyncio.sleep(0)


async def first(watch: Watch[Any]) -> Any:
    """The first item of a watch, which is left then."""
    async with watch:
        return await anext(watch)
