"""Claim: an answer to a tool's question and another step have exactly two histories; none is used twice or lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import ApprovalNotPending, SessionClosed, Tool, ToolContext
from agentlane.machine.outcomes import ABORTED
from agentlane.testing.gates import Hold
from agentlane.testing.script import call
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Staged, settled, turns
from tests.races.test_decide import asked


async def _asks(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
    return f"{await ctx.ask('q', 'What?')} at {ctx.attempt}"


@plays("answer/abort", first="answer")
@plays("answer/abort", first="abort")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["answer", "abort"])
async def test_answer_and_abort(staged: Staged, where: Hold, first: str) -> None:
    """An answer before the abort is kept in the record and starts nothing; one behind it is refused."""
    async with staged([[call("asks")], "not asked"], Tool("asks", _asks, replay="safe"), hold=where) as at:
        id = await asked(at)
        at.gate.shut()
        steps = {"answer": lambda: at.lane.answer(id, "so"), "abort": lambda: at.lane.request_abort("op")}
        one: asyncio.Future[Any] = asyncio.ensure_future(steps.pop(first)())
        await at.gate.arrived()
        other: asyncio.Future[Any] = asyncio.ensure_future(next(iter(steps.values()))())
        await turns()
        assert at.gate.held == (first,)
        at.gate.open()
        await one
        (told,) = await asyncio.gather(other, return_exceptions=True)

        assert isinstance(told, ApprovalNotPending) == (first == "abort")
        result = settled(await at.lane.drive("op"))
        assert result.status == "aborted" and len(result.decisions) == (first == "answer")
        assert ABORTED in (await at.sound())[-1]


@plays("answer/answer", first="one")
@plays("answer/answer", first="other")
async def test_two_answers_to_a_question(staged: Staged) -> None:
    """The one that is handed over first is the tool's; the other is refused."""
    async with staged([[call("asks")], "done"], Tool("asks", _asks, replay="safe")) as at:
        id = await asked(at)
        at.gate.shut()
        one = asyncio.ensure_future(at.lane.answer(id, "one"))
        await at.gate.arrived()
        other = asyncio.ensure_future(at.lane.answer(id, "other"))
        await turns()
        at.gate.open()
        told = await asyncio.gather(one, other, return_exceptions=True)
        assert isinstance(told[1], ApprovalNotPending) and not isinstance(told[0], BaseException)

        assert settled(await at.lane.drive("op")).status == "completed"
        assert "result one at 2" in await at.sound()


@plays("close/answer", first="answer")
@plays("close/answer", first="close")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["answer", "close"])
async def test_answer_and_close(staged: Staged, where: Hold, first: str) -> None:
    """What was handed over before the close is durable; behind it nothing is taken, and it is still asked."""
    async with staged([[call("asks")], "done"], Tool("asks", _asks, replay="safe"), hold=where) as at:
        id = await asked(at)
        at.gate.shut()
        if first == "answer":
            answering = asyncio.ensure_future(at.lane.answer(id, "so"))
            await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        if first == "close":
            with pytest.raises(SessionClosed):
                await at.lane.answer(id, "so")
        at.gate.open()
        await closing
        if first == "answer":
            await answering

        await at.open_again()
        assert [each.approval_id for each in at.session.approvals()] == ([] if first == "answer" else [id])
        if first == "close":
            await at.lane.answer(id, "so")
        assert settled(await at.lane.drive("op")).status == "completed"
        assert "result so at 2" in await at.sound()
