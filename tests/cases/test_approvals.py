"""Claim: a person's answer reaches the one call that was asked about, after any restart; nothing else runs by it."""

from __future__ import annotations

import pytest

from agentlane import LaneBusy, Prompt, Settled, Waiting
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.lives import bury
from agentlane.testing.script import call
from tests.approvals.desk import Desk
from tests.session.places import Place


def desk_of(place: Place, *numbers: int) -> Desk:
    return Desk(place, [[call("rm", x=x) for x in numbers], "done"]).tool("rm", approval=True)


async def test_a_question_outlives_its_process(place: Place) -> None:
    """R107: killed while it waits; listed with tool, arguments and lane; answered; run; no time limit by itself."""
    desk = await desk_of(place, 1).begin()
    (before,) = await desk.waits()
    await bury(desk.session)
    place.clock.advance(10**9)
    await desk.open()

    (listed,) = desk.session.approvals()

    assert listed == before and (listed.tool, listed.arguments, listed.lane) == ("rm", {"x": 1}, "main")
    await desk.lane.decide(listed.approval_id, allow=True)
    await bury(desk.session)
    await desk.open()
    assert isinstance(await desk.lane.drive(), Settled)
    assert desk.runs == ["rm:1"]
    assert await check_invariants(desk.session) == []


async def test_an_answer_is_for_what_it_names(place: Place) -> None:
    """R109: two questions at once, only the second is answered; the first still waits for its own."""
    desk = await desk_of(place, 1, 2).begin()
    first, second = await desk.waits()
    await desk.lane.decide(second.approval_id, allow=True)

    assert await desk.waits() == [first]
    assert desk.runs == ["rm:2"]
    await desk.lane.decide(first.approval_id, allow=True)
    assert isinstance(await desk.lane.drive(), Settled)
    assert desk.runs == ["rm:2", "rm:1"]


async def test_an_approved_call_runs_once_with_other_dependencies(place: Place) -> None:
    """R110: approved, reopened by an agent with other dependencies and instructions: it runs, and once."""
    desk = await desk_of(place, 1).begin()
    (only,) = await desk.waits()
    await desk.lane.decide(only.approval_id, allow=True)
    await desk.restart(deps={"user": "another"}, instructions="be brief")

    assert isinstance(await desk.lane.drive(), Settled)
    assert desk.session.approvals() == [] and desk.runs == ["rm:1"]
    await desk.restart(deps={"user": "a third"})
    assert isinstance(await desk.lane.drive("op"), Settled)
    assert desk.runs == ["rm:1"]


async def test_a_yes_is_not_used_by_another_run(place: Place) -> None:
    """R111: two lanes, one tool, the same arguments and provider ids; then the same call again in a later operation."""
    desk = await desk_of(place, 1).begin()
    other = await desk.session.lane("other", desk.agent())
    await other.accept(Prompt("go"), operation_id="op-other")
    await desk.waits()
    assert isinstance(await other.drive(), Waiting)
    mine, theirs = sorted(desk.session.approvals(), key=lambda each: each.lane)
    assert (mine.lane, theirs.lane, mine.digest) == ("main", "other", theirs.digest)
    await desk.lane.decide(mine.approval_id, allow=True)

    assert isinstance(await desk.lane.drive(), Settled)
    assert isinstance(await other.drive(), Waiting)
    assert desk.runs == ["rm:1"] and desk.session.approvals() == [theirs]
    desk.script = [[call("rm", x=1)], "done", [call("rm", x=1)], "done"]
    await desk.restart()
    await desk.lane.accept(Prompt("once more"), operation_id="op-2")
    assert isinstance(await desk.lane.drive("op-2"), Waiting)
    assert desk.runs == ["rm:1"]


async def test_a_history_that_ends_in_an_unapproved_call_is_not_run(place: Place) -> None:
    """R112: driven without an answer, driven again, and with a new message: it waits, and never runs."""
    desk = await desk_of(place, 1).begin()
    (only,) = await desk.waits()
    for _ in range(2):
        await desk.restart()
        assert await desk.waits() == [only]
        with pytest.raises(LaneBusy):
            await desk.lane.accept(Prompt("never mind"), operation_id="op-2")
    assert desk.runs == []
    await desk.lane.request_abort("op")
    assert isinstance(await desk.lane.drive("op"), Settled)
    await desk.lane.accept(Prompt("never mind"), operation_id="op-2")
    assert desk.runs == [] and desk.session.approvals() == []
