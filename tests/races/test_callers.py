"""Claim: a caller who leaves changes nothing of what was begun for it."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from agentlane import (
    DriveInterrupted,
    Prompt,
    Waiting,
)
from agentlane.testing.gates import Hold
from agentlane.testing.script import call, fail
from tests.races.stage import HOLDS, Staged, settled, turns

# Callers who are cancelled in the middle of a commit.


CALLS: dict[str, Any] = {
    "accept": lambda at: at.lane.accept(Prompt("more"), operation_id="x"),
    "abort": lambda at: at.lane.request_abort("op"),
    "configure": lambda at: at.lane.configure(settings={"a": 1}),
    "drive": lambda at: at.lane.drive(),
}


@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("how", ["task.cancel", "anyio"])
@pytest.mark.parametrize("what", CALLS)
async def test_a_cancelled_caller_changes_nothing_of_the_commit(
    staged: Staged, what: str, how: str, where: Hold
) -> None:
    """R37: the commit is whole, memory equals the store, and the next call goes on."""
    async with staged(["done", "more"], hold=where) as at:
        if what == "accept":
            await at.end()
        at.gate.shut()
        scope = anyio.CancelScope()

        async def caller() -> None:
            with scope:
                await CALLS[what](at)

        task = asyncio.ensure_future(caller())
        await at.gate.arrived()
        held = at.gate.held
        if how == "anyio":
            scope.cancel()
            await task
            assert scope.cancelled_caught
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert at.gate.held == held
        at.gate.open()
        await turns()

        if what == "accept":
            assert (await at.lane.accept(Prompt("more"), operation_id="x")).operation_id == "x"
        result = settled(await at.lane.drive()) if what != "drive" else settled(await at.lane.drive("op"))
        assert result.status == ("aborted" if what == "abort" else "completed")
        assert at.names().count({"drive": "intent"}.get(what, what)) <= 2
        await at.sound()


async def test_a_caller_who_leaves_does_not_stop_the_others(staged: Staged) -> None:
    """R48: a waiter does not own the run; only an abort stops it."""
    async with staged([[call("t", x=1)], "done"], "t") as at:
        staying = asyncio.ensure_future(at.lane.drive())
        leaving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        at.tools.release("t1")

        assert settled(await staying).status == "completed"
        assert at.tools.starts == ["t1"]


async def test_the_last_caller_who_leaves_does_not_stop_the_run(staged: Staged) -> None:
    async with staged([[call("t", x=1)], "done"], "t") as at:
        only = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        only.cancel()
        with pytest.raises(asyncio.CancelledError):
            await only
        assert at.lane.inspect().driving
        at.tools.release("t1")

        assert settled(await at.lane.drive("op")).status == "completed"
        assert at.tools.starts == ["t1"]


async def test_a_drive_that_is_cancelled_before_it_is_installed_starts_nothing(staged: Staged) -> None:
    async with staged(["done"]) as at:
        task = asyncio.ensure_future(at.lane.drive())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not at.lane.inspect().driving
        assert at.model.requests == []
        assert at.names()[-1] == "accept"


async def test_a_natively_cancelled_pass_goes_on_with_the_next_drive(staged: Staged) -> None:
    """R47: as a close, for this operation only; the session stays open and nothing is settled."""
    async with staged([[call("t", x=1)], "done"], ("t", {"replay": "safe"})) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        (running,) = [task for task in at.session._runtime.tasks if task.get_name().startswith("agentlane pass")]
        running.cancel()
        with pytest.raises(DriveInterrupted):
            await driving
        while at.lane.inspect().driving:
            await asyncio.sleep(0)
        assert at.lane.inspect().operation is not None

        at.tools.forget()
        again = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        at.tools.release("t1")
        assert settled(await again).status == "completed"
        assert at.tools.starts == ["t1", "t1"]
        assert "result t1 done" in await at.sound()


# Waits.


async def test_a_wait_ends_with_its_last_observer(staged: Staged) -> None:
    """Waiting is an observer's choice: the pass tells who does not, sleeps for who does, and ends with the last."""
    async with staged([fail("overloaded", retryable=True, retry_after_ms=5_000), "done"]) as at:
        staying = asyncio.ensure_future(at.lane.drive("op"))
        await at.clock.sleeping()
        told = await at.lane.drive("op", wait_for_retry=False)
        assert isinstance(told, Waiting)
        assert at.lane.inspect().driving

        staying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await staying
        await turns()
        assert not at.lane.inspect().driving
        assert at.clock.sleepers == ()

        at.clock.advance(5_000)
        assert settled(await at.lane.drive("op")).text == "done"
        assert [request.attempt for request in at.model.requests] == [1, 2]
