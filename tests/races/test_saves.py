"""Claim: what a running effect saves on its way (progress, memos, frames) is gone with its outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import NoActiveOperation
from agentlane.data import addresses
from agentlane.testing.gates import Hold
from agentlane.testing.script import Answer, answer, call, fail, hold, say
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, turns

FRAMES_OUTLIVE_A_FAILURE = False
"""Frames that are saved behind the end of an operation that fails are left in the store; remove this when not."""


@plays("progress/outcome", first="progress")
@plays("memo/outcome", first="memo")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("what", ["progress", "memo"])
async def test_a_save_then_the_outcome(staged: Staged, where: Hold, what: str) -> None:
    """The save's commit is under way when the call returns: it is told as made, and the outcome removes it."""
    async with staged([[call("t", x=1)], "done"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        context = await at.tools.begun("t1")
        at.gate.shut()
        saving = asyncio.ensure_future(context.progress("half") if what == "progress" else context.set_memo("m", 1))
        await at.gate.arrived()
        at.tools.release("t1")
        await turns()
        assert at.gate.held == (what,)
        assert not saving.done()
        at.gate.open()

        await saving
        await driving
        assert at.names()[-3:-1] == [what, "outcome_placed+intent"]
        assert await kept(at) == {}
        assert "result t1 done" in await at.sound()


@plays("progress/outcome", first="outcome")
@plays("memo/outcome", first="outcome")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("what", ["progress", "memo"])
async def test_the_outcome_then_a_save(staged: Staged, where: Hold, what: str) -> None:
    """A save that is asked for in time and decided behind the outcome writes nothing; a memo's caller is told."""
    async with staged([[call("t", x=1)], "done"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        context = await at.tools.begun("t1")
        before, aside = await step_behind_configure(at)
        saving = asyncio.ensure_future(context.progress("half") if what == "progress" else context.set_memo("m", 1))
        await turns()
        at.tools.release("t1")
        await turns()
        assert at.gate.held == ("configure",)
        at.gate.open()

        if what == "memo":
            with pytest.raises(NoActiveOperation):
                await saving
        else:
            await saving
        await asyncio.gather(driving, *aside)
        assert at.names(since=before)[:2] == ["configure", "outcome_placed+intent"]
        assert what not in at.names(since=before)
        assert await kept(at) == {}
        await at.sound()


async def test_throttled_progress_whose_time_comes_during_the_outcome(staged: Staged) -> None:
    """The timer of a save that had to wait fires while the outcome's commit is under way: nothing is saved any more."""
    async with staged([[call("t", x=1)], "done"], "t") as at:
        driving = asyncio.ensure_future(at.lane.drive())
        context = await at.tools.begun("t1")
        await context.progress("a quarter")
        await context.progress("half")
        at.gate.shut()
        at.tools.release("t1")
        await at.gate.arrived()
        at.clock.advance(100)
        await turns()
        assert at.gate.held == ("outcome_placed+intent",)
        at.gate.open()
        await driving

        assert at.names().count("progress") == 1
        assert await kept(at) == {}
        await at.sound()


@plays("frames/settlement", first="frames")
@pytest.mark.parametrize("where", HOLDS)
async def test_frames_then_the_settlement(staged: Staged, where: Hold) -> None:
    """What was shown is being saved when the answer is whole: the settlement comes behind it and removes it."""
    async with staged([hold("the answer")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        await at.clock.sleeping()
        at.gate.shut()
        at.clock.advance(100)
        await at.gate.arrived()
        at.model.release()
        await turns()
        assert at.gate.held == ("frames",)
        at.gate.open()
        await driving

        assert at.names()[-2:] == ["frames", "settlement+terminal"]
        assert await at.lists(addresses.PENDING_FRAMES) == []
        assert await at.sound() == ["user go", "assistant[stop] the answer"]


ENDS: dict[str, tuple[Answer, str]] = {
    "completes": (hold("the answer"), "assistant[stop] the answer"),
    "fails": (hold(fail("refused", parts="the answer")), "assistant[error/refused] the answer"),
    "is to be repeated": (
        hold(fail("overloaded", retryable=True, parts="the answer")),
        "assistant[error/overloaded] the answer",
    ),
    "asks for calls": (hold([say("the answer"), call("t", x=1, now=True)]), "assistant[tool_calls] the answer (t)"),
    "is too long": (hold(answer("the answer", stop_reason="length")), "assistant[length] the answer"),
}


@plays("frames/settlement", first="settlement")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("end", ENDS)
async def test_the_settlement_then_frames(staged: Staged, where: Hold, end: str) -> None:
    """Frames whose save is decided behind the settlement are not written, however the answer ended: it has them."""
    script, line = ENDS[end]
    async with staged([script, "done"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive(wait_for_retry=False))
        await at.model.hanging()
        await at.clock.sleeping()
        before, aside = await step_behind_configure(at)
        at.clock.advance(100)
        await turns()
        at.model.release()
        await turns()
        assert at.gate.held == ("configure",)
        at.gate.open()
        await driving
        aside[1].cancel()
        await asyncio.wait(aside)
        await at.end()

        assert at.names(since=before)[0] == "configure"
        assert "frames" not in at.names(since=before)
        assert await at.lists(addresses.PENDING_FRAMES) == []
        assert (await at.sound())[:2] == ["user go", line]


@plays("outcome/outcome", first="one")
@plays("outcome/outcome", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", [1, 2])
async def test_of_two_outcomes_one_comes_first(staged: Staged, where: Hold, first: int) -> None:
    """Staged or placed by who came first, in the order of the calls at the end, each once."""
    async with staged([[call("t", x=1), call("t", x=2)], "done"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t2")
        at.gate.shut()
        before = len(at.trace)
        at.tools.release(f"t{first}")
        await at.gate.arrived()
        at.tools.release(f"t{3 - first}")
        await turns()
        assert at.gate.held == ("outcome_placed" if first == 1 else "outcome_staged",)
        at.gate.open()
        await driving

        assert at.names(since=before)[1] == "outcome_placed+intent"
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t)",
            "result t1 done",
            "result t2 done",
            "assistant[stop] done",
        ]


async def step_behind_configure(at: Stage) -> tuple[int, list[asyncio.Future[Any]]]:
    """Hold a configuration's commit, and let the pass take its place behind it: what it decides there comes first.

    Gives the length of the trace before, and the two callers, to be waited for."""
    before = len(at.trace)
    at.gate.shut()
    configuring = asyncio.ensure_future(at.lane.configure(settings={"a": 1}))
    await at.gate.arrived()
    driving = asyncio.ensure_future(at.lane.drive())  # who comes to observe has the pass look again
    await turns()
    return before, [configuring, driving]


async def kept(at: Stage) -> dict[str, bytes]:
    """What is stored of running calls."""
    found = {}
    for namespace in (addresses.OP_MEMO, addresses.PENDING_OUTPUT, addresses.PENDING_ENTRY):
        found.update(await at.stored(namespace))
    return found
