"""Claim: what is said in the very moment in which it is placed, taken back or too late has one place, and not two."""

from __future__ import annotations

import asyncio

import pytest

from agentlane import Prompt, QueuedState
from agentlane.testing.gates import Hold
from agentlane.testing.script import fail, hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns


async def state_of(at: Stage, request_id: str) -> tuple[QueuedState, str | None]:
    receipt = await at.lane.receipt(request_id)
    assert receipt is not None
    return receipt.state, receipt.operation_id


# Taking back, and placing.


@plays("cancel_queued/consumption", first="cancel_queued")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_is_taken_back_before_it_is_placed_is_never_said(staged: Staged, where: Hold) -> None:
    async with staged([hold("done")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        queued = await at.lane.steer("wait", request_id="r")
        at.gate.shut()
        cancelling = asyncio.ensure_future(at.lane.cancel_queued(queued.id))
        await at.gate.arrived()
        at.model.release()
        await turns()
        at.gate.open()

        assert await cancelling == "cancelled"
        assert settled(await driving).status == "completed"
        assert at.names()[-2:] == ["cancel_queued", "settlement+terminal"]
        assert await at.sound() == ["user go", "assistant[stop] done"]
        assert await state_of(at, "r") == ("cancelled", None)


@plays("cancel_queued/consumption", first="consumption")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_is_being_placed_can_not_be_taken_back(staged: Staged, where: Hold) -> None:
    async with staged([hold("done"), "more"], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        queued = await at.lane.steer("wait", request_id="r")
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        cancelling = asyncio.ensure_future(at.lane.cancel_queued(queued.id))
        await turns()
        assert at.gate.held == ("settlement+placement+intent",) and not cancelling.done()
        at.gate.open()

        assert await cancelling == "already_consumed"
        assert settled(await driving).text == "more"
        assert await at.sound() == ["user go", "assistant[stop] done", "user wait", "assistant[stop] more"]
        assert await state_of(at, "r") == ("placed", "op")


# The next run, and its accept.


@plays("next_run/accept", first="next_run")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_is_said_right_before_an_accept_comes_with_it(staged: Staged, where: Hold) -> None:
    async with staged(["done", "more"], hold=where) as at:
        await at.end()
        at.gate.shut()
        saying = asyncio.ensure_future(at.lane.next_run("by the way", request_id="r"))
        await at.gate.arrived()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("again"), operation_id="op-2"))
        await turns()
        at.gate.open()

        said, admitted = await saying, await accepting
        assert at.names()[-2:] == ["queue", "accept"]
        assert (await at.sound())[-2:] == ["user by the way", "user again"]
        assert said.id not in admitted.inputs and at.lane.queued() == []
        assert await state_of(at, "r") == ("placed", "op-2")


@plays("next_run/accept", first="accept")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_is_said_right_behind_an_accept_waits_for_the_next(staged: Staged, where: Hold) -> None:
    async with staged(["done", "more", "still more"], hold=where) as at:
        await at.end()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("again"), operation_id="op-2"))
        await at.gate.arrived()
        saying = asyncio.ensure_future(at.lane.next_run("by the way", request_id="r"))
        await turns()
        at.gate.open()

        await accepting
        await saying
        assert settled(await at.lane.drive("op-2")).text == "more"
        assert await state_of(at, "r") == ("queued", None)
        await at.lane.accept(Prompt("and again"), operation_id="op-3")
        assert (await at.sound())[-2:] == ["user by the way", "user and again"]
        assert await state_of(at, "r") == ("placed", "op-3")


# Submitting, and the end.


@plays("submit/terminal", first="submit")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("ends", ["well", "in failure"])
async def test_what_is_submitted_before_the_end_is_answered_or_is_the_next_prompt(
    staged: Staged, where: Hold, ends: str
) -> None:
    answer = hold("done") if ends == "well" else hold(fail("refused"))
    async with staged([answer, "more"], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        submitting = asyncio.ensure_future(at.lane.submit("wait", request_id="r"))
        await at.gate.arrived()
        at.model.release()
        await turns()
        assert at.gate.held == ("queue",)
        at.gate.open()

        assert (await submitting).state == "queued"
        result = settled(await driving)
        if ends == "well":
            assert (result.text, result.next_operation) == ("more", None)
            assert await state_of(at, "r") == ("placed", "op")
        else:
            assert at.names()[-2:] == ["queue", "settlement+terminal"]
            assert result.status == "failed" and result.next_operation is not None
            assert await state_of(at, "r") == ("taken", result.next_operation)
            assert settled(await at.lane.drive(result.next_operation)).text == "more"
        assert (await at.sound())[-2:] == ["user wait", "assistant[stop] more"]


@plays("submit/terminal", first="terminal")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("ends", ["well", "in failure"])
async def test_what_is_submitted_while_the_end_is_written_is_a_prompt_of_its_own(
    staged: Staged, where: Hold, ends: str
) -> None:
    answer = hold("done") if ends == "well" else hold(fail("refused"))
    async with staged([answer, "more"], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        submitting = asyncio.ensure_future(at.lane.submit("wait", request_id="r"))
        await turns()
        assert at.gate.held == ("settlement+terminal",)
        at.gate.open()

        receipt = await submitting
        result = settled(await driving)
        assert result.next_operation is None and receipt.state == "taken"
        assert at.names()[-2:] == ["settlement+terminal", "accept"]
        assert await state_of(at, "r") == ("taken", receipt.operation_id)
        assert settled(await at.lane.drive(receipt.operation_id)).text == "more"
        assert (await at.sound())[-2:] == ["user wait", "assistant[stop] more"]


# Aborting, and what waits.


@plays("abort/queue", first="queue")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_waits_when_an_abort_is_committed_comes_back_with_it(staged: Staged, where: Hold) -> None:
    async with staged(["done"], hold=where) as at:
        at.gate.shut()
        saying = asyncio.ensure_future(at.lane.steer("wait", request_id="r"))
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        at.gate.open()

        await saying
        assert [each.text for each in (await aborting).returned] == ["wait"]
        assert [each.text for each in (await at.end()).returned] == ["wait"]
        assert await state_of(at, "r") == ("returned", "op")
        assert await at.sound() == ["user go"]


@plays("abort/queue", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_what_is_said_while_an_abort_is_written_waits_for_the_next_prompt(staged: Staged, where: Hold) -> None:
    async with staged(["done"], hold=where) as at:
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        saying = asyncio.ensure_future(at.lane.steer("wait", request_id="r"))
        await turns()
        at.gate.open()

        assert (await aborting).returned == ()
        await saying
        assert (await at.end()).returned == ()
        assert await state_of(at, "r") == ("queued", None)
        await at.lane.accept(Prompt("again"))
        assert await at.sound() == ["user go", "user wait", "user again"]
