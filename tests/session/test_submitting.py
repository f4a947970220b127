"""Claim: a submitted message is never stranded: it is a prompt, or steering, or the next operation, or given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLane,
    NoActiveOperation,
    Operation,
    OperationResult,
    Prompt,
    RequestConflict,
    Session,
    Settled,
)
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import fail, hang, hold, say
from tests.session.places import Place
from tests.session.saying import commits, sound, told, user


class Line:
    """A lane on a place, opened as often as a test likes."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def open(self, turns: list[list[Any]], name: str = "agent", **options: Any) -> AgentLane[Any, Any]:
        self.model = ScriptedModel(turns=turns)
        self.plan = FaultPlan()
        self.session: Session = await self.place.open(probe=self.plan)
        self.lane = await self.session.lane("main", Agent(name, model=self.model, **options))
        return self.lane

    async def reopen(self, turns: list[list[Any]]) -> AgentLane[Any, Any]:
        await self.session.close()
        return await self.open(turns)

    def operation(self) -> Operation:
        found = self.lane.inspect().operation
        assert found is not None
        return found

    async def resume(self) -> OperationResult:
        result = await self.lane.resume()
        assert result is not None
        return result


@pytest.fixture
def line(place: Place) -> Line:
    return Line(place)


async def test_on_an_idle_lane_it_is_a_prompt(line: Line) -> None:
    lane = await line.open([["a"]])

    receipt = await lane.submit("hello", request_id="r")

    assert commits(line.plan)[-1] == "accept"
    assert (receipt.state, receipt.entries) == ("taken", line.operation().inputs)
    assert receipt.operation_id == line.operation().operation_id
    assert await lane.submit(user("hello"), request_id="r") == receipt
    with pytest.raises(RequestConflict):
        await lane.submit("other", request_id="r")
    with pytest.raises(RequestConflict):
        await lane.steer("hello", request_id="r")
    assert (await line.resume()).text == "a"
    assert await lane.submit("hello", request_id="r") == receipt and lane.inspect().operation is None
    # The request that it was is known by its operation's id, as with any accepted one
    again = await lane.accept(Prompt("hello"), operation_id=str(receipt.operation_id))
    assert again.inputs == receipt.entries
    await sound(line.session)


async def test_without_a_request_id_the_receipt_is_under_the_entrys_id(line: Line) -> None:
    lane = await line.open([["a"], ["b"]])

    first, second = await lane.submit("hello"), await lane.submit("there")

    assert (first.request_id, second.request_id) == (first.entries[0], second.entries[0])
    assert (first.state, second.state) == ("taken", "queued")
    await line.resume()
    placed = await lane.receipt(second.request_id)
    assert placed is not None and (placed.state, placed.operation_id) == ("placed", first.operation_id)
    assert lane.tip() is not None and await told(lane) == ["user hello", "user there", "assistant b"]


async def test_what_a_failed_run_leaves_is_the_next_operation_in_the_same_commit(line: Line) -> None:
    lane = await line.open([[hold([say("hm")]), fail("refused")]], retry=None)
    lane = await line.reopen([[fail("overloaded", retryable=True), fail("refused")], [], [], ["fine"]])
    await lane.accept(Prompt("go"), operation_id="op")
    await lane.drive(wait_for_retry=False)
    one = await lane.submit("one", request_id="r-1")
    await lane.steer("between")
    two = await lane.submit("two", request_id="r-2")
    await lane.append_custom("note")
    line.place.clock.advance(60_000)
    before = len(commits(line.plan))

    failed = await lane.drive("op")

    assert isinstance(failed, Settled) and failed.result.status == "failed"
    assert commits(line.plan)[before:] == ["intent", "settlement+terminal"]
    next = line.operation()
    assert failed.result.next_operation == next.operation_id and not lane.inspect().driving
    assert next.inputs == (*one.entries, *two.entries)
    receipts = [await lane.receipt(id) for id in ("r-1", "r-2")]
    assert [each and (each.state, each.operation_id) for each in receipts] == [("taken", next.operation_id)] * 2
    assert (await told(lane))[-4:] == ["user between", "custom note", "user one", "user two"]
    assert failed.result.to_tip == (await lane.entries(newest_first=False))[2].id
    admitted = await lane.accept(Prompt(messages=(user("one"), user("two"))), operation_id=next.operation_id)
    assert admitted.inputs == next.inputs
    with pytest.raises(RequestConflict):
        await lane.accept(Prompt("one"), operation_id=next.operation_id)
    await sound(line.session)
    # A new process finds it open and drives it
    lane = await line.reopen([[], [], [], ["fine"]])
    assert line.operation() == next
    result = await line.resume()
    assert (result.status, result.text, result.inputs, result.from_tip) == (
        "completed",
        "fine",
        next.inputs,
        failed.result.to_tip,
    )
    assert lane.inspect().last_operation_id == next.operation_id and lane.queued() == []
    await sound(line.session)


async def test_an_abort_gives_back_what_waits_and_keeps_what_is_not_for_it(line: Line) -> None:
    lane = await line.open([[hang()]])
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.create_task(lane.drive("op"))
    await line.model.hanging()
    await lane.steer("s", request_id="s")
    await lane.follow_up("f")
    await lane.next_run("n", request_id="n")
    await lane.append_custom("note")
    submitted = await lane.submit("x")

    receipt = await lane.request_abort("op")

    assert commits(line.plan)[-1] == "abort"
    assert [(each.kind, each.text, each.submitted) for each in receipt.returned] == [
        ("steer", "s", False),
        ("follow_up", "f", False),
        ("steer", "x", True),
    ]
    assert receipt.newly_requested and (await lane.request_abort("op")).returned == receipt.returned
    assert [each.kind for each in lane.queued()] == ["next_run", "write"]
    await sound(line.session)
    settled = await driving
    assert isinstance(settled, Settled)
    assert (settled.result.status, settled.result.returned) == ("aborted", receipt.returned)
    assert settled.result.next_operation is None
    again = await lane.request_abort("op")
    assert (again.newly_requested, again.status, again.returned) == (False, "aborted", receipt.returned)
    receipts = [await lane.receipt(id) for id in ("s", "n", submitted.request_id)]
    assert [each and (each.state, each.operation_id) for each in receipts] == [
        ("returned", "op"),
        ("queued", None),
        ("returned", "op"),
    ]
    assert await told(lane) == ["user go", "assistant "]
    await sound(line.session)


async def test_what_an_abort_gave_back_is_kept_over_a_reopen_until_the_record_has_it(line: Line) -> None:
    lane = await line.open([["a"]])
    await lane.accept(Prompt("go"), operation_id="op")
    await lane.steer("s")
    receipt = await lane.request_abort("op")
    lane = await line.reopen([["a"]])

    assert (await lane.request_abort("op")).returned == receipt.returned
    assert lane.inspect().operation is not None and lane.queued() == []
    assert (await line.resume()).returned == receipt.returned
    lane = await line.reopen([["a"]])
    result = await lane.result("op")
    assert result is not None and result.returned == receipt.returned
    await sound(line.session)


async def test_what_is_said_while_a_run_is_being_aborted_waits_and_what_is_submitted_goes_on(line: Line) -> None:
    lane = await line.open([[hang()], [], ["fine"]])
    await lane.accept(Prompt("go"), operation_id="op")
    await lane.request_abort("op")
    await lane.follow_up("for later")
    submitted = await lane.submit("and now")
    assert submitted.state == "queued"

    aborted = await line.resume()

    assert (aborted.status, aborted.returned) == ("aborted", ())
    assert aborted.next_operation == line.operation().operation_id
    assert line.operation().inputs == submitted.entries
    result = await line.resume()
    assert (result.text, result.next_operation) == ("fine", None)
    assert await told(lane) == ["user go", "user for later", "user and now", "assistant fine"]
    await sound(line.session)


async def test_the_next_operation_has_the_configuration_of_the_agent_that_drove(line: Line) -> None:
    lane = await line.open([[fail("refused")], ["fine"]], name="one", max_restarts=1)
    await lane.accept(Prompt("go"))
    await line.session.close()
    lane = await line.open([[fail("overloaded", retryable=True)], ["fine"]], name="one", max_restarts=7)
    driving = asyncio.create_task(lane.resume())
    while line.operation().at != "retry_wait":
        await asyncio.sleep(0)
    await lane.submit("more")
    await lane.request_abort(line.operation().operation_id)
    await lane.submit("still more")
    await driving

    storage = line.session._runtime.storage
    values = await storage.values("op.config")
    assert [b'"max_restarts":7' in each for each in values.values()] == [True]
    assert [b'"agent":"one"' in each for each in values.values()] == [True]


async def test_a_run_that_is_complete_is_not_failed_by_what_nobody_can_answer(place: Place) -> None:
    """The model was configured away while it gave its last answer: what waits goes on waiting, or is the next one."""
    session = await place.open()
    model, other = ScriptedModel([hold([say("done")])]), ScriptedModel([])
    other._identity = type(other.identity)(provider="scripted", name="other")
    lane = await session.lane("main", Agent(model=model, models=[other]))
    driving = asyncio.create_task(lane.run("go", operation_id="op"))
    await model.hanging()
    await lane.configure(model=other)
    lane.agent.models.pop(other.identity)
    await lane.follow_up("left")
    submitted = await lane.submit("more")
    model.release()
    result = await driving

    assert (result.status, result.text) == ("completed", "done")
    open_now = lane.inspect().operation
    assert open_now is not None and open_now.operation_id == result.next_operation
    assert open_now.inputs == submitted.entries
    await sound(session)


async def test_an_observer_of_the_old_operation_never_hears_of_the_next(line: Line) -> None:
    lane = await line.open([[fail("refused")], ["fine"]])
    await lane.accept(Prompt("go"), operation_id="op")
    await lane.request_abort("op")
    await lane.submit("more")

    first, second = await asyncio.gather(lane.drive("op"), lane.drive())
    assert isinstance(first, Settled) and first == second
    third = await lane.drive()
    assert isinstance(third, Settled) and third.result.operation_id == first.result.next_operation
    with pytest.raises(NoActiveOperation):
        await lane.drive()
