"""Claim: an abort takes an operation and all that runs for it in one commit, before or after whatever they do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, SessionFaulted, agent_tool
from agentlane.machine.outcomes import ABORTED
from agentlane.testing import ScriptedModel
from agentlane.testing.gates import Hold
from agentlane.testing.script import call, hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns

SCRIPT: list[Any] = [[call("scout", prompt="look")], "not asked"]


def scout() -> tuple[ScriptedModel, Any]:
    model = ScriptedModel([hold("seen")])
    return model, agent_tool(Agent(name="scout", model=model), description="Look.")


def child_of(at: Stage) -> str:
    [child] = [each.operation_id for each in at.session.open_operations() if each.lane != "main"]
    return child


@plays("abort/child's settlement", first="child's settlement")
@pytest.mark.parametrize("where", HOLDS)
async def test_a_child_settles_then_its_parent_is_aborted(staged: Staged, where: Hold) -> None:
    """The abort waits for the child's line: the child has its end, and the parent takes what it came to."""
    model, tool = scout()
    async with staged(SCRIPT, tool, hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        child = child_of(at)
        at.gate.shut()
        model.release()
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("settlement+terminal",)
        at.gate.open()

        receipt, outcome = await aborting, await driving

        assert receipt.newly_requested
        assert settled(outcome).status == "aborted"
        record = await (await at.session.lane(f"child:{child}", at.lane.agent)).result(child)
        assert record is not None
        assert record.status == "completed"
        assert await at.sound() == ["user go", "assistant[tool_calls]  (scout)", "result seen"]


@plays("abort/child's settlement", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_a_parent_is_aborted_then_its_child_settles(staged: Staged, where: Hold) -> None:
    """The child's answer waits for the abort: it is kept, and the child ends aborted with its parent."""
    model, tool = scout()
    async with staged(SCRIPT, tool, hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        child = child_of(at)
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        model.release()
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()

        receipt, outcome = await aborting, await driving

        assert receipt.newly_requested
        assert settled(outcome).status == "aborted"
        record = await (await at.session.lane(f"child:{child}", at.lane.agent)).result(child)
        assert record is not None
        assert record.status == "aborted"
        assert at.names().count("abort") == 1
        assert await at.sound() == ["user go", "assistant[tool_calls]  (scout)", f"result! {ABORTED}"]


@plays("abort/child's abort", first="abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_a_parent_is_aborted_then_its_child(staged: Staged, where: Hold) -> None:
    model, tool = scout()
    async with staged(SCRIPT, tool, hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        child = await at.session.lane(f"child:{child_of(at)}", at.lane.agent)
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await at.gate.arrived()
        other = asyncio.ensure_future(child.request_abort(child_of(at)))
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()

        assert (await aborting).newly_requested
        assert not (await other).newly_requested
        assert settled(await driving).status == "aborted"
        await at.sound()


@plays("abort/child's abort", first="child's abort")
@pytest.mark.parametrize("where", HOLDS)
async def test_a_child_is_aborted_then_its_parent(staged: Staged, where: Hold) -> None:
    model, tool = scout()
    async with staged(SCRIPT, tool, hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        child = await at.session.lane(f"child:{child_of(at)}", at.lane.agent)
        at.gate.shut()
        other = asyncio.ensure_future(child.request_abort(child_of(at)))
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()

        assert (await other).newly_requested
        assert (await aborting).newly_requested
        assert settled(await driving).status == "aborted"
        assert at.names().count("abort") == 2
        await at.sound()


async def test_an_abort_whose_commit_fails_takes_nobody(staged: Staged) -> None:
    """The heads of both lines are let go by the fault; after a reopen both go on, and can be aborted."""
    model, tool = scout()
    async with staged(SCRIPT, tool) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        at.failing.fail_next()
        with pytest.raises(SessionFaulted):
            await at.lane.request_abort("op")
        with pytest.raises(SessionFaulted):
            await driving

        await at.session.reopen()

        assert [each.cancel_requested_at for each in at.session.open_operations()] == [None, None]
        assert (await at.lane.request_abort("op")).newly_requested
        assert (await at.end()).status == "aborted"
        await at.sound()


async def test_a_caller_that_is_cancelled_while_it_waits_for_the_lines_leaves_them_to_the_others(
    staged: Staged,
) -> None:
    model, tool = scout()
    async with staged(SCRIPT, tool) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await model.hanging()
        at.gate.shut()
        model.release()
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("op"))
        await turns()
        aborting.cancel()
        await turns()
        at.gate.open()

        assert settled(await driving).status == "aborted"
        assert at.names().count("abort") == 1
        await at.sound()
