"""Claim: nothing of the library spins, is forgotten by its owner, or waits for the loop that it runs on."""

from __future__ import annotations

import ast
import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentlane
from agentlane import Agent, Tool, ToolContext, WouldDeadlock
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place

TURNS_MAX = 400
"""Turns of the loop that a run with a stubborn tool may take, between its cancellation and its end."""


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop that counts its turns."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


@pytest.mark.parametrize("how", ["anyio", "native"])
def test_a_tool_that_takes_cancellation_back_spins_nothing(how: str) -> None:
    """The tool swallows each cancellation and waits on: the caller is let go at once, and the loop rests meanwhile."""
    swallowed: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        end: asyncio.Future[str] = loop.create_future()
        begun: asyncio.Future[None] = loop.create_future()

        async def stubborn(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            begun.set_result(None)
            while not end.done():
                try:
                    await asyncio.shield(end)
                except asyncio.CancelledError:
                    swallowed.append(1)
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()
            return end.result()

        agent = Agent(model=ScriptedModel([[call("stubborn")], "done"]), tools=[Tool("stubborn", stubborn)])
        async with agentlane.open_session(":memory:") as session:
            lane = await session.lane("main", agent)
            scope = anyio.CancelScope()

            async def caller() -> None:
                with scope:
                    await lane.run("go", operation_id="op")

            driving = asyncio.ensure_future(caller())
            await begun
            before = loop.turns
            driving.cancel() if how == "native" else scope.cancel()
            await asyncio.wait([driving])
            aborted = await lane.request_abort("op")
            assert aborted.newly_requested
            for _ in range(5):
                await asyncio.sleep(0)
            # A real thread ends it, so that the loop is at rest until then and not fed by this test.
            threading.Timer(0.05, lambda: loop.call_soon_threadsafe(end.set_result, "late")).start()
            outcome = await lane.drive("op")
            assert outcome.result.status == "aborted"  # type: ignore[union-attr]
            assert loop.turns - before < TURNS_MAX
            assert len(swallowed) <= 2

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


async def test_nothing_of_a_run_is_collected_while_it_runs(place: Place) -> None:
    """The collector runs at every turn; every task of the library has an owner, so all of it ends."""
    stop = False

    async def collect() -> None:
        while not stop:
            gc.collect(0)
            await asyncio.sleep(0)

    async def slow(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.progress("a part")
        for _ in range(5):
            await asyncio.sleep(0)
        return "done"

    agent = Agent(
        model=ScriptedModel([[call("slow", x=i) for i in range(4)], "done"], deltas=1), tools=[Tool("slow", slow)]
    )
    session = await place.open()
    lane = await session.lane("main", agent)
    collecting = asyncio.ensure_future(collect())
    result = await lane.run("go")
    stop = True
    await collecting

    assert result.status == "completed"


def test_every_task_has_an_owner() -> None:
    """No task or future of the library is made and dropped: what makes one keeps it, hands it on, or waits for it."""
    dropped = []
    for path in Path(agentlane.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                name = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
                if name in ("create_task", "ensure_future"):
                    dropped.append(f"{path.name}:{node.lineno}")
    assert dropped == []


async def test_a_call_that_would_wait_for_itself_is_refused_at_once(place: Place) -> None:
    """From inside a tool, every verb that waits for the lane, and closing the session, says so instead of hanging."""
    refused: list[str] = []

    async def inside(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        for wait in (lane.drive, lane.resume, lane.abort, session.close):
            try:
                await wait()
            except WouldDeadlock as error:
                refused.append(error.code)
        return "fine"

    session = await place.open()
    agent = Agent(model=ScriptedModel([[call("inside")], "done"]), tools=[Tool("inside", inside)])
    lane = await session.lane("main", agent)

    assert (await lane.run("go")).status == "completed"
    assert refused == ["would_deadlock"] * 4
