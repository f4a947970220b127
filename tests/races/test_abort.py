"""Claim: an abort and another step of one operation have exactly two histories, each with an end that says which.

A gate holds commits back, so both orders are played, step by step, on each backend.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    WouldDeadlock,
)
from agentlane.machine.outcomes import ABORTED, NOT_STARTED
from agentlane.testing.gates import Hold
from agentlane.testing.script import call, fail, hang, hold, say
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns

# Abort and settlement.


@plays("abort/settlement", first="settlement")
@pytest.mark.parametrize("where", HOLDS)
async def test_settlement_then_abort(staged: Staged, where: Hold) -> None:
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
        assert settled(outcome).status == "completed"
        assert at.names()[-2:] == ["intent", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[stop] the answer"]


@plays("abort/settlement", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_settlement(staged: Staged, where: Hold) -> None:
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
        assert settled(outcome).status == "aborted"
        assert at.names()[-3:] == ["intent", "abort", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[stop] the answer"]


async def test_abort_then_settlement_with_calls(staged: Staged) -> None:
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

        assert settled(await driving).status == "aborted"
        assert at.tools.starts == []
        assert await at.sound() == ["user go", "assistant[tool_calls] so (t)", f"result! {NOT_STARTED}"]


async def test_an_abort_keeps_what_was_shown(staged: Staged) -> None:
    """R13, R94: the partial is kept as an aborted answer; one without content is no poison for the next request."""
    async with staged([hang([say("Hel")]), "fine"]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        await at.lane.request_abort("op")
        assert settled(await driving).status == "aborted"
        await at.lane.run("again", operation_id="op-2")

        assert await at.sound() == [
            "user go",
            "assistant[aborted/aborted] Hel",
            "user again",
            "assistant[stop] fine",
        ]


# Abort and outcome.


@plays("abort/outcome", first="outcome")
@pytest.mark.parametrize("where", HOLDS)
async def test_outcome_then_abort(staged: Staged, where: Hold) -> None:
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
        await report_before_the_abort(at)
        assert len(at.model.requests) == 1
        at.gate.open()

        assert (await aborting).newly_requested
        assert settled(await driving).status == "aborted"
        assert at.names()[-3:] == ["outcome_placed+intent", "abort", "settlement+terminal"]
        assert len(at.model.requests) == 1
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t)",
            "result t1 done",
            "assistant[aborted/aborted] ",
        ]
        assert [row.row.usage.unknown for row in await at.session.usage()] == [False, False]


@plays("abort/outcome", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_outcome(staged: Staged, where: Hold) -> None:
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

        assert settled(await driving).status == "aborted"
        assert len(at.model.requests) == 1
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t)",
            "result t1 done",
            f"result! {ABORTED}",
        ]


# Abort and intent.


@plays("abort/intent", first="intent")
@pytest.mark.parametrize("where", HOLDS)
async def test_request_intent_then_abort(staged: Staged, where: Hold) -> None:
    """The intent is committed under an abort that waits: the request is never sent and known to cost nothing."""
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        driving = asyncio.ensure_future(at.lane.drive())
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("intent",)
        await report_before_the_abort(at)
        assert at.model.requests == []
        at.gate.open()
        await aborting

        assert settled(await driving).status == "aborted"
        assert at.model.requests == []
        assert at.names()[-3:] == ["intent", "abort", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[aborted/aborted] "]
        (row,) = await at.session.usage()
        assert (row.row.usage.input_tokens, row.row.usage.unknown) == (0, False)


@plays("abort/intent", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_abort_then_request_intent(staged: Staged, where: Hold) -> None:
    async with staged(["not asked"], hold=where) as at:
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        driving = asyncio.ensure_future(at.lane.drive())
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        await aborting

        assert settled(await driving).status == "aborted"
        assert at.model.requests == []
        assert at.names()[-2:] == ["abort", "terminal"]
        assert await at.sound() == ["user go"]


@pytest.mark.parametrize("where", HOLDS)
async def test_tool_intent_then_abort(staged: Staged, where: Hold) -> None:
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
        await report_before_the_abort(at)
        assert at.tools.starts == []
        at.gate.open()
        await aborting

        assert settled(await driving).status == "aborted"
        assert at.tools.starts == []
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,t)",
            *[f"result! {NOT_STARTED}"] * 2,
        ]


async def test_a_tool_that_aborts_its_own_run_stops_the_rest(staged: Staged) -> None:
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

        assert settled(outcome).status == "aborted"
        assert refused == ["would_deadlock"]
        assert at.tools.starts == ["t1"]
        assert len(at.model.requests) == 1
        lines = await at.sound()
        assert lines[:2] == ["user go", "assistant[tool_calls]  (t,t,t)"]
        assert lines[3:] == [f"result! {NOT_STARTED}"] * 2


@plays("abort/retry wake", first="abort")
@plays("abort/retry wake", first="retry wake")
@pytest.mark.parametrize("first", ["the abort", "the time"])
async def test_an_abort_and_the_end_of_a_wait(staged: Staged, first: str) -> None:
    """An abort wakes the sleeping pass and nothing is asked; once the time has come, the request is what is aborted."""
    async with staged([fail("overloaded", retryable=True, retry_after_ms=5_000), hang("Hel")]) as at:
        driving = asyncio.ensure_future(at.lane.drive("op"))
        await at.clock.sleeping()
        if first == "the time":
            at.clock.advance(5_000)
            await at.model.hanging()
        await at.lane.request_abort("op")

        assert settled(await driving).status == "aborted"
        assert await at.sound() == [
            "user go",
            "assistant[error/overloaded] ",
            *(["assistant[aborted/aborted] Hel"] if first == "the time" else []),
        ]
        assert at.clock.sleepers == ()


async def test_an_abort_keeps_results_that_came_and_leaves_no_call_without_one(staged: Staged) -> None:
    """Staged, running, and planned calls at once: staged ones are placed as they are."""
    script = [[call("t", x=1), call("t", x=2, now=True), call("t", x=3), call("t", x=4)], "and on"]
    async with staged(script, "t", max_parallel=2) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t3")
        await at.lane.request_abort("op")

        assert settled(await driving).status == "aborted"
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


async def report_before_the_abort(at: Stage) -> None:
    """Let the intent be reported while the abort waits: whatever would start now has the time to."""
    at.gate.release()
    await at.gate.arrived()
    await turns()
    assert at.gate.held == ("abort",)
