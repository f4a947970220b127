"""Claim: of two steps that race, one comes first and the other sees what it left: each pair has exactly two histories.

A gate holds commits back, so both orders are played, step by step.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from agentlane import (
    LaneBusy,
    NoActiveOperation,
    Prompt,
    RequestConflict,
    SessionClosed,
    Settled,
    Waiting,
    WouldDeadlock,
)
from agentlane.data.messages import ModelIdentity
from agentlane.machine.outcomes import ABORTED, NOT_STARTED
from agentlane.testing.gates import Hold
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang, hold, say
from tests.races.stage import staged, turns

HOLDS: list[Hold] = ["before_write", "before_report"]


# Abort and settlement.


@pytest.mark.parametrize("where", HOLDS)
async def test_settlement_then_abort(where: Hold) -> None:
    """The answer's commit is under way when the abort comes: it stays as it is, and the operation has ended with it."""
    async with staged([hold("the answer")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("settlement+terminal",)
        at.gate.release()

        receipt, outcome = await aborting, await driving

        assert (receipt.newly_requested, receipt.status) == (False, "completed")
        assert outcome.result.status == "completed"
        assert at.names()[-2:] == ["intent", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[stop] the answer"]


@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_settlement(where: Hold) -> None:
    """The abort's commit is under way when the answer is complete: the answer in hand keeps its stop reason."""
    async with staged([hold("the answer")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        at.model.release()
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()

        receipt, outcome = await aborting, await driving

        assert (receipt.newly_requested, receipt.status) == (True, "cancel_requested")
        assert outcome.result.status == "aborted"
        assert at.names()[-3:] == ["intent", "abort", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[stop] the answer"]


async def test_abort_then_settlement_with_calls() -> None:
    """A complete answer in hand keeps its calls, and they get results that say *not started*."""
    async with staged([hold([say("so"), call("t", x=1)])], "t") as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        at.model.release()
        await turns()
        at.gate.open()
        await aborting

        assert (await driving).result.status == "aborted"
        assert at.tools.starts == []
        assert await at.sound() == ["user go", "assistant[tool_calls] so (t)", f"result! {NOT_STARTED}"]


async def test_an_abort_keeps_what_was_shown() -> None:
    """R13, R94: the partial is kept as an aborted answer; one without content is no poison for the next request."""
    async with staged([hang([say("Hel")]), "fine"]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        await at.lane.request_abort("op")
        assert (await driving).result.status == "aborted"
        await at.lane.run("again", operation_id="op-2")

        assert await at.sound() == [
            "user go",
            "assistant[aborted/aborted] Hel",
            "user again",
            "assistant[stop] fine",
        ]


# Abort and outcome.


@pytest.mark.parametrize("where", HOLDS)
async def test_outcome_then_abort(where: Hold) -> None:
    """The outcome's commit, with the next intent in it, is under way: the intent is committed and nothing starts."""
    async with staged([[call("t", x=1)], "not asked"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        at.gate.shut()
        at.tools.release("t1")
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("outcome_placed+intent",)
        at.gate.open()

        assert (await aborting).newly_requested
        assert (await driving).result.status == "aborted"
        assert at.names()[-3:] == ["outcome_placed+intent", "abort", "settlement+terminal"]
        assert len(at.model.requests) == 1
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t)",
            "result t1 done",
            "assistant[aborted/aborted] ",
        ]
        assert [row.row.usage.unknown for row in await at.session.usage()] == [False, False]


@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_outcome(where: Hold) -> None:
    """The tool returns while the abort is committed: what it returned is its result, and the model is not asked."""
    async with staged([[call("t", x=1), call("t", x=2)], "not asked"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t2")
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        at.tools.release("t1")
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        await aborting

        assert (await driving).result.status == "aborted"
        assert len(at.model.requests) == 1
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t)",
            "result t1 done",
            f"result! {ABORTED}",
        ]


# Abort and intent.


@pytest.mark.parametrize("where", HOLDS)
async def test_request_intent_then_abort(where: Hold) -> None:
    """The intent is committed under an abort that waits: the request is never sent and known to cost nothing."""
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        driving = asyncio.ensure_future(at.lane.drive())
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("intent",)
        at.gate.open()
        await aborting

        assert (await driving).result.status == "aborted"
        assert at.model.requests == []
        assert at.names()[-3:] == ["intent", "abort", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[aborted/aborted] "]
        (row,) = await at.session.usage()
        assert (row.row.usage.input_tokens, row.row.usage.unknown) == (0, False)


@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_request_intent(where: Hold) -> None:
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        driving = asyncio.ensure_future(at.lane.drive())
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        await aborting

        assert (await driving).result.status == "aborted"
        assert at.model.requests == []
        assert at.names()[-2:] == ["abort", "terminal"]
        assert await at.sound() == ["user go"]


@pytest.mark.parametrize("where", HOLDS)
async def test_tool_intent_then_abort(where: Hold) -> None:
    """An intended call whose effect was held back by the abort is known as not started."""
    async with staged([hold([call("t", x=1), call("t", x=2)])], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("settlement+tool_intents",)
        at.gate.open()
        await aborting

        assert (await driving).result.status == "aborted"
        assert at.tools.starts == []
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t)",
            *[f"result! {NOT_STARTED}"] * 2,
        ]


async def test_a_tool_that_aborts_its_own_run_stops_the_rest() -> None:
    """R42: the calls behind it never start, the model is not asked, and waiting for the abort in there is refused."""
    refused: list[str] = []
    async with staged(
        [[call("t", x=1, now=True), call("t", x=2), call("t", x=3)], "not asked"], "t", max_parallel=1
    ) as at:
        original = at.lane.agent.tools["t"]
        inner = original.function

        async def aborting(arguments: dict[str, Any], ctx: Any) -> Any:
            value = await inner(arguments, ctx)
            try:
                await at.lane.abort()
            except WouldDeadlock as error:
                refused.append(error.code)
            await at.lane.request_abort("op")
            return value

        original.function = aborting
        outcome = await at.lane.drive()

        assert outcome.result.status == "aborted"
        assert refused == ["would_deadlock"]
        assert at.tools.starts == ["t1"]
        assert len(at.model.requests) == 1
        lines = await at.sound()
        assert lines[:2] == ["user go", "assistant[tool_calls]  (t,t,t)"]
        assert lines[3:] == [f"result! {NOT_STARTED}"] * 2


# Accept and accept.


@pytest.mark.parametrize("where", HOLDS)
async def test_the_same_accept_twice_is_one_operation(where: Hold) -> None:
    """R26: while the first is under way the second waits for it, and both are told the same."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        before = len(at.trace)
        one = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        two = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        await turns()
        assert at.gate.held == ("accept",)
        at.gate.open()

        assert await one == await two
        assert at.names(since=before) == ["accept"]


@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["a", "b"])
async def test_of_two_accepts_one_gets_the_lane(where: Hold, first: str) -> None:
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        before = len(at.trace)
        second = {"a": "b", "b": "a"}[first]
        winner = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id=first))
        await at.gate.arrived()
        loser = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id=second))
        await turns()
        at.gate.open()

        assert (await winner).operation_id == first
        with pytest.raises(LaneBusy) as caught:
            await loser
        assert caught.value.details["operation_id"] == first
        assert at.names(since=before) == ["accept"]


async def test_one_id_on_two_lanes_is_one_request() -> None:
    async with staged(["first"]) as at:
        other = await at.session.lane("other", at.lane.agent)
        await at.end()
        at.gate.shut()
        winner = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        with pytest.raises(RequestConflict):
            await other.accept(Prompt("more"), operation_id="x")
        at.gate.open()
        await winner
        with pytest.raises(RequestConflict):
            await other.accept(Prompt("more"), operation_id="x")
        with pytest.raises(RequestConflict):
            await at.lane.accept(Prompt("other words"), operation_id="x")


async def test_accept_while_the_same_operation_settles() -> None:
    """Asked again in the middle of the terminal commit: the answer is the operation that has just ended."""
    async with staged([hold("done")]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        again = asyncio.ensure_future(at.lane.accept(Prompt("go"), operation_id="op"))
        other = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="op-2"))
        await turns()
        at.gate.open()

        assert (await again).operation_id == "op"
        assert (await other).operation_id == "op-2"
        assert (await driving).result.status == "completed"
        assert at.names()[-2:] == ["settlement+terminal", "accept"]


# Drive and drive.


@pytest.mark.parametrize("count", [2, 10])
async def test_drives_share_one_pass(count: int) -> None:
    async with staged([[call("t", x=1)], "done"], "t") as at:
        driving = [asyncio.ensure_future(at.lane.drive("op")) for _ in range(count)]
        await at.tools.begun("t1")
        driving.append(asyncio.ensure_future(at.lane.drive()))
        await turns()
        at.tools.release("t1")

        outcomes = await asyncio.gather(*driving)

        assert len({outcome.result.ended_at for outcome in outcomes}) == 1
        assert all(outcome == outcomes[0] for outcome in outcomes)
        assert at.tools.starts == ["t1"]
        assert len(at.model.requests) == 2


async def test_drive_while_the_operation_settles() -> None:
    """A drive that comes in the middle of the terminal commit hears its record; one after it as well."""
    async with staged([hold("done")]) as at:
        first = asyncio.ensure_future(at.lane.drive("op"))
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        second = asyncio.ensure_future(at.lane.drive("op"))
        await turns()
        at.gate.open()

        assert await first == await second == await at.lane.drive("op")
        with pytest.raises(NoActiveOperation):
            await at.lane.drive()


# Configure and intent.


@pytest.mark.parametrize("where", HOLDS)
async def test_intent_then_configure(where: Hold) -> None:
    """The intent was first: that request goes to the old model, the next one to the new."""
    new = ScriptedModel(["by the new one"], identity=ModelIdentity(provider="scripted", name="new"))
    async with staged([[call("t", x=1, now=True)]], "t", hold=where, models=[new]) as at:
        at.gate.shut()
        driving = asyncio.ensure_future(at.lane.drive())
        await at.gate.arrived()
        configuring = asyncio.ensure_future(at.lane.configure(model="scripted:new"))
        await turns()
        assert at.gate.held == ("intent",)
        at.gate.open()
        await configuring

        assert (await driving).result.text == "by the new one"
        assert (len(at.model.requests), len(new.requests)) == (1, 1)
        new.require_no_violations()
        await at.sound()


@pytest.mark.parametrize("where", HOLDS)
async def test_configure_then_intent(where: Hold) -> None:
    """The configuration was first: the request goes to the new model."""
    new = ScriptedModel(["by the new one"], identity=ModelIdentity(provider="scripted", name="new"))
    async with staged(["not asked"], hold=where, models=[new]) as at:
        at.gate.shut()
        configuring = asyncio.ensure_future(at.lane.configure(model="scripted:new"))
        await at.gate.arrived()
        driving = asyncio.ensure_future(at.lane.drive())
        await turns()
        assert at.gate.held == ("configure",)
        at.gate.open()
        await configuring

        assert (await driving).result.text == "by the new one"
        assert (len(at.model.requests), len(new.requests)) == (0, 1)


async def test_configure_while_calls_are_planned() -> None:
    """A tool that is taken away before its call was intended is not run; the one that runs goes on."""
    async with staged([[call("t", x=1), call("u", x=2)], "done"], "t", "u", max_parallel=1) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        await at.lane.configure(tools=["t"])
        at.tools.release("t1")
        await driving

        assert at.tools.starts == ["t1"]
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,u)",
            "result t1 done",
            "result! The tool 'u' is not available here. Available: t.",
            "assistant[stop] done",
        ]


# Close.


@pytest.mark.parametrize("where", HOLDS)
async def test_settlement_then_close(where: Hold) -> None:
    """An admitted commit finishes, and its observers hear of it."""
    async with staged([hold("done")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert not closing.done()
        at.gate.open()
        await closing

        assert isinstance(await driving, Settled)
        assert at.names()[-1] == "settlement+terminal"


async def test_close_then_settlement() -> None:
    """The close stops the answer; the operation stays open, and nothing is settled by it."""
    async with staged([hold("done")]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        await at.session.close()

        with pytest.raises(SessionClosed):
            await driving
        assert at.names()[-1] == "frames"


@pytest.mark.parametrize("where", HOLDS)
async def test_close_in_the_middle_of_an_intent(where: Hold) -> None:
    """The intent is admitted and its effects are not started: calls go back to planned in the same close."""
    async with staged([hold([call("t", x=1), call("t", x=2)])], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert at.gate.held == ("settlement+tool_intents",)
        at.gate.open()
        await closing

        with pytest.raises(SessionClosed):
            await driving
        assert at.tools.starts == []
        assert at.names()[-2:] == ["settlement+tool_intents", "close"]


@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("what", ["accept", "abort", "configure", "append"])
async def test_close_in_the_middle_of_a_callers_commit(where: Hold, what: str) -> None:
    """R52: an admitted commit is finished and told; what comes after the close is refused."""
    async with staged(["done"], hold=where) as at:
        if what in ("accept", "append"):
            await at.end()
        at.gate.shut()
        made: Any = {
            "accept": lambda: at.lane.accept(Prompt("more"), operation_id="x"),
            "abort": lambda: at.lane.request_abort("op"),
            "configure": lambda: at.lane.configure(settings={"a": 1}),
            "append": lambda: at.lane.append_custom("note", {}),
        }[what]
        task = asyncio.ensure_future(made())
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert not closing.done()
        assert not task.done()
        at.gate.open()
        await closing

        await task
        assert at.names()[-1] == what
        with pytest.raises(SessionClosed):
            await made()


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
async def test_a_cancelled_caller_changes_nothing_of_the_commit(what: str, how: str, where: Hold) -> None:
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
        result = (await at.lane.drive()).result if what != "drive" else (await at.lane.drive("op")).result
        assert result.status == ("aborted" if what == "abort" else "completed")
        assert at.names().count({"drive": "intent"}.get(what, what)) <= 2
        await at.sound()


async def test_a_caller_who_leaves_does_not_stop_the_others() -> None:
    """R48: a waiter does not own the run; only an abort stops it."""
    async with staged([[call("t", x=1)], "done"], "t") as at:
        staying = asyncio.ensure_future(at.lane.drive())
        leaving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        at.tools.release("t1")

        assert (await staying).result.status == "completed"
        assert at.tools.starts == ["t1"]


async def test_the_last_caller_who_leaves_does_not_stop_the_run() -> None:
    async with staged([[call("t", x=1)], "done"], "t") as at:
        only = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        only.cancel()
        with pytest.raises(asyncio.CancelledError):
            await only
        assert at.lane.inspect().driving
        at.tools.release("t1")

        assert (await at.lane.drive("op")).result.status == "completed"
        assert at.tools.starts == ["t1"]


async def test_a_drive_that_is_cancelled_before_it_is_installed_starts_nothing() -> None:
    async with staged(["done"]) as at:
        task = asyncio.ensure_future(at.lane.drive())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not at.lane.inspect().driving
        assert at.model.requests == []
        assert at.names()[-1] == "accept"


async def test_a_natively_cancelled_pass_goes_on_with_the_next_drive() -> None:
    """R47: as a close, for this operation only; the session stays open and nothing is settled."""
    async with staged([[call("t", x=1)], "done"], ("t", {"replay": "safe"})) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        (running,) = [task for task in at.session._runtime.tasks if task.get_name().startswith("agentlane pass")]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        while at.lane.inspect().driving:
            await asyncio.sleep(0)
        assert at.lane.inspect().operation is not None

        at.tools.forget()
        again = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        at.tools.release("t1")
        assert (await again).result.status == "completed"
        assert at.tools.starts == ["t1", "t1"]
        assert "result t1 done" in await at.sound()


# Waits.


async def test_a_wait_ends_with_its_last_observer() -> None:
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
        assert (await at.lane.drive("op")).result.text == "done"
        assert [request.attempt for request in at.model.requests] == [1, 2]


@pytest.mark.parametrize("first", ["the abort", "the time"])
async def test_an_abort_and_the_end_of_a_wait(first: str) -> None:
    """An abort wakes the sleeping pass and nothing is asked; once the time has come, the request is what is aborted."""
    async with staged([fail("overloaded", retryable=True, retry_after_ms=5_000), hang("Hel")]) as at:
        driving = asyncio.ensure_future(at.lane.drive("op"))
        await at.clock.sleeping()
        if first == "the time":
            at.clock.advance(5_000)
            await at.model.hanging()
        await at.lane.request_abort("op")

        assert (await driving).result.status == "aborted"
        assert await at.sound() == [
            "user go",
            "assistant[error/overloaded] ",
            *(["assistant[aborted/aborted] Hel"] if first == "the time" else []),
        ]
        assert at.clock.sleepers == ()


async def test_an_abort_keeps_results_that_came_and_leaves_no_call_without_one() -> None:
    """Staged, running, and planned calls at once: staged ones are placed as they are."""
    script = [[call("t", x=1), call("t", x=2, now=True), call("t", x=3), call("t", x=4)], "and on"]
    async with staged(script, "t", max_parallel=2) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t3")
        await at.lane.request_abort("op")

        assert (await driving).result.status == "aborted"
        await at.lane.run("go on", operation_id="op-2")
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t,t,t)",
            f"result! {ABORTED}",
            "result t2 done",
            f"result! {ABORTED}",
            f"result! {NOT_STARTED}",
            "user go on",
            "assistant[stop] and on",
        ]
