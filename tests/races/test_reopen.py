"""Claim: a fault ends what runs; who comes before the session is read anew is refused, who comes after goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentlane import AgentLane, Prompt, SessionClosed, SessionFaulted, Tool, ToolContext
from agentlane.testing.faults import Where
from agentlane.testing.gates import Hold
from agentlane.testing.script import call
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns


@plays("accept/reopen", first="accept")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("left", ["before", "half", "after"])
async def test_an_accept_that_fails_then_reopen(staged: Staged, where: Hold, left: Where) -> None:
    """Its caller, and those in line behind it, hear of the fault; asked again, the same id is one operation."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.failing.where = left
        at.failing.fail_next()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        if where == "before_write":
            await at.gate.arrived()
        behind = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await turns()
        at.gate.open()
        for each in (accepting, behind):
            with pytest.raises(SessionFaulted):
                await each

        await at.session.reopen()
        there = [operation.operation_id for operation in at.session.open_operations()]
        if left != "half":  # half a commit is there or not, by the backend
            assert there == (["x"] if left == "after" else [])
        before = len(at.trace)
        assert (await at.lane.accept(Prompt("more"), operation_id="x")).operation_id == "x"
        assert at.names(since=before) == ([] if there else ["accept"])
        await at.lane.drive("x")
        assert await at.sound() == ["user go", "assistant[stop] first", "user more", "assistant[stop] second"]


@plays("accept/reopen", first="reopen")
@plays("reopen/drive", first="reopen")
async def test_reopen_then_accept_and_drive(staged: Staged) -> None:
    """While the reopen waits for what must end first, everybody is refused and nothing is written; then all goes on."""
    async with faulted_in_a_tool(staged) as (at, other, end):
        reopening = asyncio.ensure_future(at.session.reopen())
        again = asyncio.ensure_future(at.session.reopen())
        await turns()
        assert not reopening.done()
        before = len(at.trace)
        with pytest.raises(SessionFaulted):
            await other.accept(Prompt("more"), operation_id="x")
        with pytest.raises(SessionFaulted):
            await at.lane.drive()
        end.set_result("late")
        await asyncio.gather(reopening, again)
        assert at.names(since=before) == []

        await other.accept(Prompt("more"), operation_id="x")
        assert settled(await other.drive("x")).status == "completed"
        assert (await at.end()).status == "completed"
        lines = await at.sound()
        assert lines[:2] == ["user go", "assistant[tool_calls]  (stubborn)"]
        assert lines[2].startswith("result! ")
        assert lines[3] == "assistant[stop] done"


@plays("reopen/drive", first="drive")
async def test_drive_then_reopen(staged: Staged) -> None:
    """The drive that ran hears of the fault; the reopen waits until nothing of it runs, and the next drive goes on."""
    async with faulted_in_a_tool(staged) as (at, _, end):
        assert at.lane._core.running is not None
        reopening = asyncio.ensure_future(at.session.reopen())
        await turns()
        assert not reopening.done()
        end.set_result("late")
        await reopening

        assert not at.lane.inspect().driving
        assert (await at.end()).status == "completed"
        lines = await at.sound()
        assert lines[2].startswith("result! ")  # what came back after the fault was nobody's


async def test_close_during_a_reopen(staged: Staged) -> None:
    """The close waits for what the reopen opens, and closes that: the store is free."""
    async with faulted_in_a_tool(staged, ends=SessionClosed) as (at, _, end):
        reopening = asyncio.ensure_future(at.session.reopen())
        await turns()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert not closing.done()
        end.set_result("late")
        await asyncio.gather(reopening, closing, return_exceptions=True)

        assert closing.exception() is None
        await at.open_again()
        assert (await at.end()).status == "completed"
        await at.sound()


@asynccontextmanager
async def faulted_in_a_tool(
    staged: Staged, *, ends: type[Exception] = SessionFaulted
) -> AsyncIterator[tuple[Stage, AgentLane[Any, Any], asyncio.Future[str]]]:
    """A session that is faulted while a tool runs that does not stop before the future has a result.

    ``ends`` is what the drive that ran hears at the end."""
    end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def stubborn(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        begun.set_result(None)
        try:
            await asyncio.shield(end)
        except asyncio.CancelledError:
            pass
        return await end

    async with staged([[call("stubborn")], "done"], Tool("stubborn", stubborn)) as at:
        other = await at.session.lane("other", at.lane.agent)
        driving = asyncio.ensure_future(at.lane.drive())
        await begun
        at.failing.fail_next()
        with pytest.raises(SessionFaulted):
            await at.session.set_name("lost")
        yield at, other, end
        with pytest.raises(ends):
            await driving
        assert at.session.name is None
