"""Claim: a call that a person must allow is asked about once, durably, and starts by that answer alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    ApprovalInfo,
    ApprovalNotPending,
    ApprovalReason,
    InvalidDefinition,
    InvalidMessage,
    Prompt,
    Settled,
    Tool,
    Waiting,
    WouldDeadlock,
    tool,
)
from agentlane.data import addresses, codec
from agentlane.data.writes import SetValue
from agentlane.machine.outcomes import DENIED, EXPIRED, NOT_STARTED
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.approvals.desk import Desk
from tests.races.stage import turns
from tests.session.places import Place


def two(place: Place, **options: Any) -> Desk:
    """A call that asks, one that does not, one that asks."""
    script = [[call("rm", x=1), call("ls", x=2), call("rm", x=3)], "done"]
    return Desk(place, script, **options).tool("rm", approval=True).tool("ls")


async def test_the_others_go_on_and_what_waits_is_listed(place: Place) -> None:
    """The drive returns every reason; what is asked is committed state, on the session, the lane and the calls."""
    desk = await two(place).begin()
    outcome = await desk.lane.drive()
    first, second = desk.session.approvals()

    assert outcome == Waiting(
        "op",
        tuple(
            ApprovalReason(approval_id=each.approval_id, call_id=each.call_id, tool="rm") for each in (first, second)
        ),
        None,
    )
    assert desk.runs == ["ls:2"]
    assert desk.statuses() == ["waiting_approval", "outcome_ready", "waiting_approval"]
    assert desk.lane.inspect().approvals == (first, second)
    assert not desk.lane.inspect().driving
    operation = desk.lane.inspect().operation
    assert operation is not None and [each.approval_id for each in operation.calls] == [
        first.approval_id,
        None,
        second.approval_id,
    ]
    assert (first.lane, first.operation_id, first.tool, first.kind) == ("main", "op", "rm", "call")
    assert (first.arguments, second.arguments) == ({"x": 1}, {"x": 3})
    assert first.digest != second.digest and len(first.digest) == 32
    assert first.asked_at == place.clock.now_ms() and first.expires_at is None
    held = await desk.held()
    assert set(held["pending.approval"]) == {first.approval_id, second.approval_id}


@pytest.mark.parametrize("restarts", ["none", "before the answer", "behind the answer", "both"])
async def test_answers_by_id_across_restarts(place: Place, restarts: str) -> None:
    """A yes runs its call and a no is its error result, whichever process asks, answers and runs."""
    desk = await two(place).begin()
    (first, second) = await desk.waits()
    if restarts in ("before the answer", "both"):
        await desk.restart()
        assert desk.session.approvals() == [first, second]
    no = await desk.lane.decide(second.approval_id, allow=False, reason="too risky", by="ann")
    yes = await desk.lane.decide(first.approval_id, allow=True)
    assert desk.runs == ["ls:2"], "an answer starts nothing by itself"
    assert desk.session.approvals() == []
    if restarts in ("behind the answer", "both"):
        await desk.restart()

    result = await desk.lane.resume()

    assert result is not None and result.status == "completed"
    assert desk.runs == ["ls:2", "rm:1"]
    assert await desk.texts() == ["rm:1 done", "ls:2 done", f"{DENIED} Reason: too risky"]
    assert {each.approval_id: each for each in result.decisions} == {no.approval_id: no, yes.approval_id: yes}
    assert (no.allow, no.by, no.reason, no.digest) == (False, "ann", "too risky", second.digest)
    assert all(not values for values in (await desk.held()).values())


async def test_a_no_is_placed_at_once_when_it_is_next(memory: Place) -> None:
    desk = await two(memory).begin()
    first, _ = await desk.waits()

    await desk.lane.decide(first.approval_id, allow=False)

    assert desk.statuses() == ["placed", "placed", "waiting_approval"]
    assert await desk.texts() == [DENIED, "ls:2 done"]


async def test_an_answer_is_used_once(place: Place) -> None:
    """A second answer, one of another lane, an unknown id and a settled operation: all say what became of it."""
    desk = await two(place).begin()
    first, second = await desk.waits()
    other = await desk.session.lane("other", desk.agent())
    await desk.lane.decide(first.approval_id, allow=True, by="ann")
    await desk.lane.decide(second.approval_id, allow=False)

    async def became(approval_id: Any, lane: Any = desk.lane) -> str:
        with pytest.raises(ApprovalNotPending) as caught:
            await lane.decide(approval_id, allow=True)
        assert str(approval_id) in str(caught.value)
        return str(caught.value.details["became"])

    assert await became(first.approval_id) == "allowed"
    assert await became(second.approval_id) == "denied"
    assert await became(first.approval_id, other) == "unknown"
    assert await became("nobody asked") == "unknown"
    assert await became(7) == "unknown"
    await desk.lane.resume()
    assert await became(first.approval_id) == "allowed"
    assert desk.runs == ["ls:2", "rm:1"]


async def test_run_sits_the_wait_out_and_an_answer_wakes_it(memory: Place) -> None:
    """`run` waits for the people too; an answer from another task pokes the pass, one at a time."""
    desk = await two(memory).open()
    running = asyncio.ensure_future(desk.lane.run("go", operation_id="op"))
    await turns(30)
    first, second = desk.session.approvals()
    assert desk.lane.inspect().driving and not running.done()
    joined = await desk.lane.drive()
    assert isinstance(joined, Waiting) and len(joined.reasons) == 2, "who does not sit it out is told"

    await desk.lane.decide(second.approval_id, allow=True)
    await turns(30)
    assert desk.runs == ["ls:2", "rm:3"] and not running.done()
    await desk.lane.decide(first.approval_id, allow=True)

    assert (await running).status == "completed"
    assert desk.runs == ["ls:2", "rm:3", "rm:1"]


async def test_a_barrier_waits_behind_one_that_waits(memory: Place) -> None:
    desk = Desk(memory, [[call("rm", x=1), call("alone", x=2), call("ls", x=3)], "done"])
    await desk.tool("rm", approval=True).tool("alone", parallel=False, approval=True).tool("ls").begin()

    (first,) = await desk.waits()
    assert first.arguments == {"x": 1} and desk.runs == []
    await desk.lane.decide(first.approval_id, allow=True)
    (barrier,) = await desk.waits()
    assert barrier.arguments == {"x": 2} and desk.runs == ["rm:1"]
    await desk.lane.decide(barrier.approval_id, allow=True)
    await desk.lane.resume()
    assert desk.runs == ["rm:1", "alone:2", "ls:3"]


# Arguments.


async def test_arguments_given_with_the_yes_are_those_that_run(place: Place) -> None:
    """They are part of the decision: checked, stored, used in another process, and gone with the batch."""
    desk = await two(place).begin()
    first, second = await desk.waits()
    decision = await desk.lane.decide(first.approval_id, allow=True, args={"x": 10})
    assert decision.changed and decision.digest != first.digest
    assert codec.JSON.decode((await desk.held())["op.args"][f"op|{first.call_id}"], "x") == {"x": 10}
    await desk.restart()
    await desk.lane.decide(second.approval_id, allow=False)
    await desk.lane.resume()

    assert desk.runs == ["ls:2", "rm:10"]
    answer = (await desk.lane.messages())[1]
    assert answer.calls[0].arguments == {"x": 1}, "the conversation keeps what the model asked"  # type: ignore[union-attr]
    assert (await desk.held())["op.args"] == {}


async def test_arguments_that_cannot_be_are_refused_and_it_stays_open(memory: Place) -> None:
    @tool(approval=True)
    async def rm(path: str) -> str:
        return path

    desk = await Desk(memory, []).open()
    agent = Agent(model=ScriptedModel([[call("rm", path="a")], "done"]), tools=[rm])
    desk.lane = await desk.session.lane("typed", agent)
    await desk.lane.accept(Prompt("go"), operation_id="op")
    (only,) = await desk.waits()
    for args in ({"path": 1}, {"other": "a"}, {"path": float("nan")}, "a"):
        with pytest.raises(InvalidMessage, match="args"):
            await desk.lane.decide(only.approval_id, allow=True, args=args)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="go with a yes"):
        await desk.lane.decide(only.approval_id, allow=False, args={"path": "b"})
    for wrong in ({"allow": 1}, {"allow": True, "reason": 7}, {"allow": True, "by": "x" * 10_001}):
        with pytest.raises(InvalidMessage):
            await desk.lane.decide(only.approval_id, **wrong)  # type: ignore[arg-type]
    assert desk.session.approvals() == [only]


async def test_a_yes_for_other_arguments_is_asked_anew(place: Place) -> None:
    """Arguments that changed behind an answer void it: the call waits again, and never runs by the old yes."""
    desk = await two(place).begin()
    first, second = await desk.waits()
    await desk.lane.decide(first.approval_id, allow=True)
    await desk.lane.decide(second.approval_id, allow=False)
    address = addresses.op_args("op", first.call_id)
    await desk.session._runtime.storage.submit([SetValue(address, b'{"x":666}')])
    await desk.restart()

    (again,) = await desk.waits()

    assert again.approval_id != first.approval_id
    assert again.arguments == {"x": 666} and again.digest != first.digest
    assert desk.runs == ["ls:2"]
    await desk.lane.decide(again.approval_id, allow=True)
    await desk.lane.resume()
    assert desk.runs == ["ls:2", "rm:666"]


# Expiry.


@pytest.mark.parametrize("whose", ["agent", "tool"])
async def test_an_expiry_is_a_no(place: Place, whose: str) -> None:
    """Not before its time, applied by whoever drives then; the record says that nobody answered."""
    options = {"approval_expires_ms": 1_000}
    desk = Desk(place, [[call("rm", x=1)], "done"], **(options if whose == "agent" else {}))
    await desk.tool("rm", approval=True, **(options if whose == "tool" else {})).begin()
    outcome = await desk.lane.drive()
    (only,) = desk.session.approvals()
    assert isinstance(outcome, Waiting) and outcome.wake_at == only.expires_at == place.clock.now_ms() + 1_000
    await desk.restart()
    place.clock.advance(999)
    assert isinstance(await desk.lane.drive(), Waiting)
    place.clock.advance(1)

    outcome = await desk.lane.drive()

    assert isinstance(outcome, Settled) and desk.runs == []
    assert await desk.texts() == [EXPIRED]
    (decision,) = outcome.result.decisions
    assert (decision.allow, decision.expired, decision.by) == (False, True, None)
    with pytest.raises(ApprovalNotPending) as caught:
        await desk.lane.decide(only.approval_id, allow=True)
    assert caught.value.details["became"] == "expired"


async def test_an_answer_that_comes_too_late_applies_the_expiry(memory: Place) -> None:
    desk = await two(memory, approval_expires_ms=5).begin()
    first, _ = await desk.waits()
    memory.clock.advance(5)

    with pytest.raises(ApprovalNotPending) as caught:
        await desk.lane.decide(first.approval_id, allow=True)

    assert caught.value.details["became"] == "expired"
    assert desk.statuses()[0] == "placed" and (await desk.texts())[0] == EXPIRED


async def test_a_pass_that_sleeps_or_works_applies_an_expiry_when_it_comes(memory: Place) -> None:
    """With everybody waiting, and with another call still at work."""
    at_work: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow(arguments: Any, ctx: Any) -> str:
        await at_work
        return "slow done"

    desk = Desk(memory, [[call("rm", x=1), call("slow", x=2), call("rm", x=3)], "done"], approval_expires_ms=1_000)
    desk.tool("rm", approval=True).tool("slow", body=slow)
    await desk.open()
    running = asyncio.ensure_future(desk.lane.run("go", operation_id="op"))
    await turns(30)
    memory.clock.advance(1_000)
    await turns(30)
    assert desk.statuses() == ["placed", "effect_pending", "outcome_ready"]
    at_work.set_result(None)
    assert (await running).status == "completed"


# Predicates.


async def test_a_predicate_says_which_calls_are_asked_about(memory: Place) -> None:
    """It gets checked arguments of its own and is told the call; a plain one and an async one."""
    told: list[tuple[Any, ApprovalInfo[Any]]] = []

    async def big(arguments: dict[str, Any], info: ApprovalInfo[Any]) -> bool:
        await asyncio.sleep(0)
        told.append((dict(arguments), info))
        arguments["x"] = "spoiled"
        return told[-1][0]["x"] > 1

    desk = Desk(memory, [[call("a", x=1), call("a", x=2), call("b", x=3)], "done"], deps="deps")
    await desk.tool("a", approval=big).tool("b", approval=lambda arguments, info: False).begin()

    (only,) = await desk.waits()

    assert only.arguments == {"x": 2}
    assert sorted(desk.runs) == ["a:1", "b:3"]
    assert [arguments for arguments, _ in told] == [{"x": 1}, {"x": 2}]
    info = told[1][1]
    assert (info.session_id, info.lane, info.operation_id, info.tool, info.deps) == ("s", "main", "op", "a", "deps")
    assert info.call_id == only.call_id


async def test_arguments_of_a_function_reach_its_predicate_by_name(memory: Place) -> None:
    from agentlane import Agent
    from agentlane.testing.models import ScriptedModel

    told: list[Any] = []

    @tool(approval=lambda arguments, info: told.append(arguments) or False)
    async def move(source: str, times: int = 2) -> str:
        return "moved"

    session = await memory.open()
    agent = Agent(model=ScriptedModel([[call("move", source="a")], "done"]), tools=[move])
    lane = await session.lane("main", agent)
    assert (await lane.run("go")).status == "completed"
    assert told == [{"source": "a", "times": 2}]


class _Odd(BaseException):
    pass


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (lambda arguments, info: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (lambda arguments, info: "yes", "said 'yes', not True or False"),
        (lambda arguments, info: (_ for _ in ()).throw(_Odd("odd")), "failed: _Odd: odd"),
        (lambda arguments, info: (_ for _ in ()).throw(asyncio.CancelledError()), "failed: CancelledError"),
        (lambda arguments: True, "failed: TypeError"),
    ],
    ids=["raises", "no bool", "a base exception", "cancels itself", "another signature"],
)
async def test_a_predicate_that_fails_is_that_calls_error_result(memory: Place, predicate: Any, said: str) -> None:
    desk = Desk(memory, [[call("bad", x=1), call("ls", x=2)], "done"])
    await desk.tool("bad", approval=predicate).tool("ls").begin()

    assert isinstance(await desk.lane.drive(), Settled)

    texts = await desk.texts()
    assert texts[0].startswith(f"The approval check of 'bad' {said}") and texts[1] == "ls:2 done"
    assert desk.runs == ["ls:2"]


@pytest.mark.parametrize("how", ["abort", "close", "drive"])
async def test_a_predicate_is_stopped_like_an_effect(memory: Place, how: str) -> None:
    """By an abort and by a close; and it cannot wait for its own lane."""
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends: list[str] = []

    async def long(arguments: Any, info: Any) -> bool:
        begun.set_result(None)
        try:
            if how == "drive":
                await desk.lane.drive()
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            ends.append(type(error).__name__)
            raise
        return True

    desk = Desk(memory, [[call("rm", x=1)], "done"])
    await desk.tool("rm", approval=long).begin()
    driving = asyncio.ensure_future(desk.lane.drive())
    await begun
    if how == "abort":
        await desk.lane.request_abort("op")
        assert isinstance(await driving, Settled)
        assert await desk.texts() == [NOT_STARTED] and ends == ["CancelledError"]
    elif how == "close":
        await desk.session.close()
        assert ends == ["CancelledError"] and not desk.session._runtime.tasks
        await asyncio.wait([driving])
        assert "SessionClosed" in repr(driving.exception())
    else:
        await driving
        assert ends == [WouldDeadlock.__name__]
        assert "WouldDeadlock" in (await desk.texts())[0]


@pytest.mark.parametrize("options", [{"approval": 1}, {"approval": "yes"}, {"approval_expires_ms": 0}], ids=str)
def test_options_that_cannot_work_are_refused_at_definition(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition):
        Tool("t", lambda arguments, context: None, **options)


# Aborts.


async def test_an_abort_makes_every_question_void_in_its_own_commit(place: Place) -> None:
    desk = await two(place).begin()
    first, second = await desk.waits()
    await desk.lane.decide(first.approval_id, allow=True)

    await desk.lane.request_abort("op")

    assert desk.session.approvals() == [] and (await desk.held())["pending.approval"] == {}
    with pytest.raises(ApprovalNotPending):
        await desk.lane.decide(second.approval_id, allow=True)
    await desk.restart()
    result = await desk.lane.resume()
    assert result is not None and result.status == "aborted"
    assert await desk.texts() == [NOT_STARTED, "ls:2 done", NOT_STARTED]
    assert [each.allow for each in result.decisions] == [True]
    assert desk.runs == ["ls:2"]


async def test_a_tool_may_answer_for_its_own_lane(memory: Place) -> None:
    """From inside an effect of the lane: deciding waits for no pass."""

    async def clerk(arguments: Any, ctx: Any) -> str:
        for approval in desk.session.approvals():
            await desk.lane.decide(approval.approval_id, allow=True, by="clerk")
        return "answered"

    desk = Desk(memory, [[call("rm", x=1), call("clerk")], "done"])
    desk.tool("rm", approval=True).tool("clerk", body=clerk)
    await desk.open()
    assert (await desk.lane.run("go")).status == "completed"
    assert await desk.texts() == ["rm:1 done", "answered"]
