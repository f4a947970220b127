"""Claim: an abort ends the operation that it names and no other, whatever else is committed beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import LaneBusy, Prompt, SessionClosed, UnknownOperation
from agentlane.testing.gates import Hold
from agentlane.testing.script import hang, say
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Staged, settled, turns


@plays("abort/abort", first="one")
@plays("abort/abort", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_aborts_one_requests_it(staged: Staged, where: Hold, first: int) -> None:
    """Whoever comes first is told that it was new, the other one that it is asked for already; one commit."""
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        before = len(at.trace)
        winner = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        loser = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("abort",)
        assert not winner.done() and not loser.done()
        at.gate.open()
        receipts = await asyncio.gather(*((winner, loser) if first == 0 else (loser, winner)))

        assert [each.newly_requested for each in receipts] == [first == 0, first == 1]
        assert {each.status for each in receipts} == {"cancel_requested"}
        assert at.names(since=before) == ["abort"]
        assert (await at.end()).status == "aborted"
        await at.sound()


@plays("abort/accept", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_accept(staged: Staged, where: Hold) -> None:
    """An aborted operation is open until it is driven: the lane is not free, and the new request is told so."""
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        await aborting

        with pytest.raises(LaneBusy) as caught:
            await accepting
        assert caught.value.details["operation_id"] == "op"
        assert (await at.end()).status == "aborted"
        assert await at.sound() == ["user go"]


@plays("abort/accept", first="accept")
@pytest.mark.parametrize("where", HOLDS)
async def test_accept_then_abort_of_the_one_before(staged: Staged, where: Hold) -> None:
    """An old id cannot cancel newer work, and work that is not accepted yet is not there to be cancelled."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        old = asyncio.ensure_future(at.lane.request_abort("op"))
        new = asyncio.ensure_future(at.lane.request_abort("x"))
        with pytest.raises(UnknownOperation):
            await new
        receipt = await old
        assert (receipt.newly_requested, receipt.status) == (False, "completed")
        assert at.gate.held == ("accept",)
        at.gate.open()
        await accepting

        assert settled(await at.lane.drive("x")).status == "completed"
        assert await at.sound() == ["user go", "assistant[stop] first", "user more", "assistant[stop] second"]


@plays("abort/configure", first="abort")
@plays("abort/configure", first="configure")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["abort", "configure"])
async def test_abort_and_configure(staged: Staged, where: Hold, first: str) -> None:
    """Both are committed, in the order in which they came; the configuration is the next run's."""
    async with staged(["second"], "t", hold=where) as at:
        at.gate.shut()
        before = len(at.trace)
        acts: dict[str, Any] = {
            "abort": lambda: at.lane.request_abort("op"),
            "configure": lambda: at.lane.configure(settings={"a": 1}),
        }
        second = "configure" if first == "abort" else "abort"
        one = asyncio.ensure_future(acts[first]())
        await at.gate.arrived()
        other = asyncio.ensure_future(acts[second]())
        await turns()
        assert at.gate.held == (first,)
        at.gate.open()
        await asyncio.gather(one, other)

        assert at.names(since=before) == [first, second]
        assert (await at.end()).status == "aborted"
        assert at.model.requests == []
        await at.lane.run("more", operation_id="op-2")
        assert at.model.requests[0].settings == {"a": 1}
        assert await at.sound() == ["user go", "user more", "assistant[stop] second"]


@plays("abort/close", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_close(staged: Staged, where: Hold) -> None:
    """R45, R47: the close waits for the abort's commit; the next life ends the operation and asks nobody."""
    async with staged([hang([say("Hel")])], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert not closing.done()
        at.gate.open()

        assert (await aborting).newly_requested
        await closing
        with pytest.raises(SessionClosed):
            await driving
        await at.open_again()
        assert (await at.end()).status == "aborted"
        assert len(at.model.requests) == 1
        lines = await at.sound()
        assert lines[0] == "user go"
        assert [line.split()[-1] for line in lines[1:]] == ["Hel"]


@plays("abort/close", first="close")
async def test_close_then_abort(staged: Staged) -> None:
    """The close is under way, held up by what it flushes: an abort comes too late and cancels nothing."""
    async with staged([hang([say("Hel")]), "done"]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        closing = asyncio.ensure_future(at.session.close())
        await at.gate.arrived()
        assert at.gate.held == ("frames",)
        with pytest.raises(SessionClosed):
            await at.lane.request_abort("op")
        at.gate.open()
        await closing
        with pytest.raises(SessionClosed):
            await driving

        await at.open_again()
        assert (await at.end()).status == "completed"
        assert "abort" not in at.names()
        assert (await at.sound())[-1] == "assistant[stop] done"
