"""Claim: a call whose tool says "later" waits over any restart, never runs again, and takes one delivered result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    AfterTool,
    ApprovalNotPending,
    ExternalReason,
    InvalidMessage,
    PendingResult,
    Settled,
    TextPart,
    ToolContext,
    ToolResult,
    Waiting,
    hook,
)
from agentlane.machine.outcomes import ABORTED
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.lives import bury
from agentlane.testing.script import call
from tests.approvals.desk import Desk
from tests.races.stage import turns
from tests.session.places import Place


async def later(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
    await ctx.progress(f"ordered {arguments.get('x', '')}")
    await ctx.set_memo("ordered", 1)
    return PendingResult()


def desk_of(place: Place, *, replay: str = "safe") -> Desk:
    """A call whose result comes later, one that does not, one more of the first."""
    script = [[call("order", x=1), call("ls", x=2), call("order", x=3)], "done"]
    return Desk(place, script).tool("order", replay=replay, body=later).tool("ls")


async def waiting(desk: Desk) -> list[str]:
    """Drive until it waits: the ids of the calls that wait for their results."""
    outcome = await desk.lane.drive("op")
    assert isinstance(outcome, Waiting) and outcome.wake_at is None
    assert all(isinstance(each, ExternalReason) and each.tool == "order" for each in outcome.reasons)
    return [each.call_id for each in outcome.reasons if isinstance(each, ExternalReason)]


@pytest.mark.parametrize("restart", ["none", "closed", "killed"])
async def test_results_are_delivered_by_id(place: Place, restart: str) -> None:
    """In any order, before anything drives; the tool is not run again, though its policy would allow it."""
    desk = await desk_of(place).begin()
    first, second = await waiting(desk)
    assert desk.statuses() == ["waiting_external", "outcome_ready", "waiting_external"]
    assert desk.session.approvals() == []
    if restart == "closed":
        await desk.restart()
        assert await waiting(desk) == [first, second]
    elif restart == "killed":
        await bury(desk.session)
        await desk.open()

    await desk.lane.deliver(second, ToolResult(content="three", details={"n": 3}))
    assert desk.statuses() == ["waiting_external", "outcome_ready", "outcome_ready"]
    await desk.lane.deliver(first, {"rows": [1]})

    assert await desk.texts() == ['{"rows":[1]}', "ls:2 done", "three"]
    assert isinstance(await desk.lane.drive(), Settled)
    assert desk.runs == ["order:1", "ls:2", "order:3"]
    storage = desk.session._runtime.storage
    assert [await storage.values(each) for each in ("op.memo", "pending.output")] == [{}, {}]
    assert await check_invariants(desk.session) == []


async def test_a_result_is_delivered_once(place: Place) -> None:
    desk = await desk_of(place).begin()
    first, second = await waiting(desk)
    await desk.lane.deliver(second, "two")

    async def became(call_id: Any) -> str:
        with pytest.raises(ApprovalNotPending) as caught:
            await desk.lane.deliver(call_id, "again")
        return str(caught.value.details["became"])

    assert await became(second) == "outcome_ready"
    await desk.lane.deliver(first, "one")
    input = (await desk.lane.entries(newest_first=False))[0].id
    assert [await became(each) for each in (first, "nobody's", 7, input)] == ["placed", *["unknown"] * 3]
    assert isinstance(await desk.lane.drive(), Settled)
    assert await became(first) == "placed"
    assert await desk.texts() == ["one", "ls:2 done", "two"]


async def test_a_value_that_cannot_be_kept_is_refused_and_it_goes_on_waiting(memory: Place) -> None:
    desk = await desk_of(memory).begin()
    first, _ = await waiting(desk)

    for value in (float("nan"), {1: 2}, ToolResult(content=7), object(), PendingResult()):  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="result"):
            await desk.lane.deliver(first, value)
    assert desk.statuses()[0] == "waiting_external"
    await desk.lane.deliver(first, [TextPart(text="x" * 300_000)])
    assert "bytes left out]" in (await desk.texts())[0], "cut as of a tool"


async def test_an_abort_gives_it_the_aborted_result(place: Place) -> None:
    """With the progress that it saved; what is delivered behind the abort is refused."""
    desk = await desk_of(place).begin()
    first, _ = await waiting(desk)
    await desk.lane.request_abort("op")

    with pytest.raises(ApprovalNotPending) as caught:
        await desk.lane.deliver(first, "late")

    assert caught.value.details["became"] == "aborting"
    await desk.restart()
    result = await desk.lane.resume()
    assert result is not None and result.status == "aborted"
    texts = await desk.texts()
    assert ABORTED in texts[0] and "ordered 1" in texts[0] and texts[1] == "ls:2 done"


async def test_a_drive_that_waits_is_woken(memory: Place) -> None:
    """And a tool of the lane may deliver to another call of its own batch."""
    desk = await desk_of(memory).open()
    running = asyncio.ensure_future(desk.lane.run("go", operation_id="op"))
    await turns(30)
    operation = desk.lane.inspect().operation
    assert operation is not None and not running.done()
    await desk.lane.deliver(operation.calls[0].call_id, "one")
    await turns(30)
    assert not running.done()
    await desk.lane.deliver(operation.calls[2].call_id, "three")
    assert (await running).status == "completed"


async def test_while_its_tool_runs_nothing_is_taken(memory: Place) -> None:
    """A result that is there before the tool has returned: whoever has it comes again."""
    told: list[str] = []

    async def early(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
        with pytest.raises(ApprovalNotPending) as caught:
            await desk.lane.deliver(ctx.call_id, "too early")
        told.append(caught.value.details["became"])
        return PendingResult()

    desk = await Desk(memory, [[call("order", x=1)], "done"]).tool("order", body=early).begin()
    (only,) = await waiting(desk)
    assert told == ["effect_pending"]
    await desk.lane.deliver(only, "now")
    assert isinstance(await desk.lane.drive(), Settled)


async def test_all_of_a_batch_may_wish_to_end_the_run(memory: Place) -> None:
    desk = await Desk(memory, [[call("order", x=1)], "not asked"]).tool("order", body=later).begin()
    (only,) = await waiting(desk)
    await desk.lane.deliver(only, ToolResult(content="end", terminate=True))

    outcome = await desk.lane.drive()

    assert isinstance(outcome, Settled) and outcome.result.turns == 1


@pytest.mark.parametrize("driven", [False, True], ids=["before a drive", "while one waits"])
async def test_what_comes_from_outside_is_shown_to_hooks_before_it_is_placed(place: Place, driven: bool) -> None:
    """A delivered result and a no pass the agent's after_tool hooks as every result does, and each is placed once."""

    def after(asked: AfterTool[Any]) -> ToolResult:
        return ToolResult(content=f"seen: {asked.result.text[:13]}")

    script = [[call("order", x=1), call("rm", x=2)], "done"]
    desk = Desk(place, script, hooks=[hook("after_tool", after)]).tool("order", body=later).tool("rm", approval=True)
    await desk.begin()
    assert isinstance(await desk.lane.drive(), Waiting)
    (asked,) = desk.session.approvals()
    running = asyncio.ensure_future(desk.lane.drive("op", wait_for_answers=True)) if driven else None
    await turns()
    operation = desk.lane.inspect().operation
    assert operation is not None
    await desk.lane.decide(asked.approval_id, allow=False)
    await desk.lane.deliver(operation.calls[0].call_id, "it is here")

    assert isinstance(await (running or desk.lane.drive("op")), Settled)
    assert await desk.texts() == ["seen: it is here", "seen: This call was"]
    assert await check_invariants(desk.session) == []
