"""Claim: an answer and another step of its operation have exactly two histories, and no yes is used twice or lost.

A gate holds commits back, so both orders are played, step by step, on each backend.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    ApprovalNotPending,
    Decision,
    ExternalReason,
    PendingResult,
    SessionClosed,
    Tool,
    ToolContext,
    Waiting,
)
from agentlane.machine.outcomes import ABORTED, EXPIRED, NOT_STARTED
from agentlane.testing.gates import Hold
from agentlane.testing.script import call
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns

ASKS = ("t", {"approval": True})


async def asked(at: Stage) -> str:
    """Drive until it waits for one answer: the approval's id."""
    assert isinstance(await at.lane.drive("op"), Waiting)
    (only,) = at.session.approvals()
    return only.approval_id


@plays("decide/abort", first="decide")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("allow", [True, False], ids=["yes", "no"])
async def test_decide_then_abort(staged: Staged, where: Hold, allow: bool) -> None:
    """The answer's commit is under way when the abort comes: it stands, and what it allowed is not started."""
    async with staged([[call("t", x=1)], "not asked"], ASKS, hold=where) as at:
        id = await asked(at)
        at.gate.shut()
        deciding = asyncio.ensure_future(at.lane.decide(id, allow=allow))
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == (("decision" if allow else "decision+outcome_placed"),)
        at.gate.open()

        decision, receipt = await deciding, await aborting

        assert (decision.allow, receipt.newly_requested) == (allow, True)
        result = settled(await at.lane.drive("op"))
        assert (result.status, result.decisions, at.tools.starts) == ("aborted", (decision,), [])
        told = (await at.sound())[-1]
        assert told == f"result! {NOT_STARTED}" if allow else "not approved" in told


@plays("decide/abort", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_decide(staged: Staged, where: Hold) -> None:
    """The abort's commit is under way when the answer comes: the question is void by then, and the answer says so."""
    async with staged([[call("t", x=1)], "not asked"], ASKS, hold=where) as at:
        id = await asked(at)
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        deciding = asyncio.ensure_future(at.lane.decide(id, allow=True))
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        await aborting

        with pytest.raises(ApprovalNotPending) as caught:
            await deciding

        assert caught.value.details["became"] == "unknown"
        result = settled(await at.lane.drive("op"))
        assert (result.status, result.decisions, at.tools.starts) == ("aborted", (), [])
        assert await at.stored("pending.approval") == {}
        assert (await at.sound())[-1] == f"result! {NOT_STARTED}"


@plays("decide/decide", first="one")
@plays("decide/decide", first="other")
@pytest.mark.parametrize("first", [True, False], ids=["yes first", "no first"])
async def test_two_answers(staged: Staged, first: bool) -> None:
    """The one whose commit was handed over first counts; the other is told what it was."""
    async with staged([[call("t", x=1, now=True)], "done"], ASKS) as at:
        id = await asked(at)
        at.gate.shut()
        one = asyncio.ensure_future(at.lane.decide(id, allow=first, by="one"))
        await at.gate.arrived()
        other = asyncio.ensure_future(at.lane.decide(id, allow=not first, by="other"))
        await turns()
        at.gate.open()

        assert (await one).by == "one"
        with pytest.raises(ApprovalNotPending) as caught:
            await other
        assert (caught.value.details["became"], caught.value.details["by"]) == (
            ("allowed" if first else "denied"),
            "one",
        )
        assert settled(await at.lane.drive("op")).status == "completed"
        assert at.tools.starts == (["t1"] if first else [])
        await at.sound()


@plays("decide/expiry", first="decide")
@plays("decide/expiry", first="expiry")
@pytest.mark.parametrize("first", ["decide", "expiry"])
async def test_decide_and_expiry(staged: Staged, first: str) -> None:
    """The answer that is committed before its time is over counts; a pass that applies the expiry makes it void."""
    options = {"approval": True, "approval_expires_ms": 100}
    async with staged([[call("t", x=1, now=True)], "done"], ("t", options)) as at:
        running = asyncio.ensure_future(at.lane.drive("op", wait_for_answers=True))
        while not at.session.approvals():
            await asyncio.sleep(0)
        (only,) = at.session.approvals()
        at.gate.shut()
        if first == "expiry":
            at.clock.advance(100)
            await at.gate.arrived()
            assert at.gate.held == ("decision+outcome_placed+intent",)
        deciding = asyncio.ensure_future(at.lane.decide(only.approval_id, allow=True))
        if first == "decide":
            await at.gate.arrived()
            at.clock.advance(100)
            assert at.gate.held == ("decision",)
        await turns()
        at.gate.open()

        answered: Decision | BaseException = (await asyncio.gather(deciding, return_exceptions=True))[0]
        result = settled(await running)

        assert len(result.decisions) == 1 and result.decisions[0].expired == (first == "expiry")
        if first == "decide":
            assert result.decisions == (answered,) and at.tools.starts == ["t1"]
        else:
            assert isinstance(answered, ApprovalNotPending) and answered.details["became"] == "expired"
            assert f"result! {EXPIRED}" in await at.sound() and at.tools.starts == []


@plays("close/decide", first="decide")
@plays("close/decide", first="close")
@pytest.mark.parametrize("first", ["decide", "close"])
async def test_decide_and_close(staged: Staged, first: str) -> None:
    """An answer that is handed over is there after the next open; one that comes behind the close is refused."""
    async with staged([[call("t", x=1, now=True)], "done"], ASKS) as at:
        id = await asked(at)
        if first == "decide":
            at.gate.shut()
            deciding = asyncio.ensure_future(at.lane.decide(id, allow=True))
            await at.gate.arrived()
            closing = asyncio.ensure_future(at.session.close())
            await turns()
            at.gate.open()
            assert (await deciding).allow
            await closing
        else:
            await at.session.close()
            with pytest.raises(SessionClosed):
                await at.lane.decide(id, allow=True)
        await at.open_again()

        assert [each.approval_id for each in at.session.approvals()] == ([] if first == "decide" else [id])
        if first == "close":
            await at.lane.decide(id, allow=True)
        assert settled(await at.lane.drive("op")).status == "completed"
        assert at.tools.starts == ["t1"]
        await at.sound()


@pytest.mark.parametrize("replay", [False, True], ids=["first start", "replay"])
async def test_a_close_before_the_effect_begins_loses_no_yes(staged: Staged, replay: bool) -> None:
    """The intent is committed when the close comes, and the effect has not begun: nobody is asked again."""
    options = {"replay": "ask"} if replay else {"approval": True}
    async with staged([[call("t", x=1)], "done"], ("t", options), hold="before_report", cancel_grace_ms=0) as at:
        if replay:
            dying = asyncio.ensure_future(at.lane.drive("op"))
            await at.tools.begun("t1")
            await at.session.close()
            await asyncio.gather(dying, return_exceptions=True)
            at.tools.forget()
            await at.open_again()
        await at.lane.decide(await asked(at), allow=True)
        at.gate.shut()
        driving = asyncio.ensure_future(at.lane.drive("op"))
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        at.gate.open()
        await closing
        assert isinstance((await asyncio.gather(driving, return_exceptions=True))[0], SessionClosed)
        assert at.names()[-2:] == ["replay_intent" if replay else "tool_intents", "close"]
        assert len(at.tools.starts) == replay

        await at.open_again()
        (status,) = [each.status for each in at.lane.inspect().operation.calls]  # type: ignore[union-attr]
        assert status == "approved"
        at.tools.release("t1")
        assert settled(await at.lane.drive("op")).status == "completed"
        assert len(at.tools.starts) == 1 + replay
        await at.sound()


# Results that are delivered.


async def _later(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
    return PendingResult()


async def deferred(at: Stage) -> str:
    """Drive until it waits for one result: the call's id."""
    outcome = await at.lane.drive("op")
    assert isinstance(outcome, Waiting) and isinstance(outcome.reasons[0], ExternalReason)
    return outcome.reasons[0].call_id


@plays("deliver/abort", first="deliver")
@plays("deliver/abort", first="abort")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["deliver", "abort"])
async def test_deliver_and_abort(staged: Staged, where: Hold, first: str) -> None:
    """What is handed over before the abort stands; behind it there is the aborted result, and the other is refused."""
    async with staged([[call("later")], "not asked"], Tool("later", _later), hold=where) as at:
        id = await deferred(at)
        at.gate.shut()
        steps = {"deliver": lambda: at.lane.deliver(id, "here"), "abort": lambda: at.lane.request_abort("op")}
        one: asyncio.Future[Any] = asyncio.ensure_future(steps.pop(first)())
        await at.gate.arrived()
        other: asyncio.Future[Any] = asyncio.ensure_future(next(iter(steps.values()))())
        await turns()
        assert at.gate.held == (("delivery+outcome_placed" if first == "deliver" else "abort"),)
        at.gate.open()
        await one
        (told,) = await asyncio.gather(other, return_exceptions=True)

        assert isinstance(told, ApprovalNotPending) == (first == "abort")
        assert settled(await at.lane.drive("op")).status == "aborted"
        last = (await at.sound())[-1]
        assert last == "result here" if first == "deliver" else ABORTED in last


@plays("deliver/deliver", first="one")
@plays("deliver/deliver", first="other")
async def test_two_results(staged: Staged) -> None:
    """The one that is handed over first is the call's; the other is refused, and the call has one result."""
    async with staged([[call("later")], "done"], Tool("later", _later)) as at:
        id = await deferred(at)
        at.gate.shut()
        one = asyncio.ensure_future(at.lane.deliver(id, "one"))
        await at.gate.arrived()
        other = asyncio.ensure_future(at.lane.deliver(id, "other"))
        await turns()
        at.gate.open()

        await one
        with pytest.raises(ApprovalNotPending):
            await other
        assert settled(await at.lane.drive("op")).status == "completed"
        assert (await at.sound())[-2:] == ["result one", "assistant[stop] done"]
