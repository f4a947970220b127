"""Claim: who waits for a lane to be idle is told when it is, and a visitor has it to itself until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentlane import (
    Agent,
    AgentLane,
    InvalidMessage,
    LaneBusy,
    Prompt,
    ReadOnlySession,
    Session,
    SessionClosed,
    SessionFaulted,
    UnknownBranch,
    WouldDeadlock,
    open_session,
    tool,
)
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang, hold


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    async with open_session(":memory:") as opened:
        yield opened


async def lane_of(session: Session, *answers: Any, tools: tuple[Any, ...] = (), name: str = "main") -> AgentLane:
    return await session.lane(name, Agent(model=ScriptedModel(answers), tools=tools))


async def turns(count: int = 20) -> None:
    """Let whatever can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


# Waiting.


async def test_an_idle_lane_is_idle_at_once_and_an_open_operation_is_waited_for(session: Session) -> None:
    lane = await lane_of(session, hold("done"))
    await lane.wait_idle()
    await lane.accept(Prompt("go"))
    waiting = [asyncio.ensure_future(lane.wait_idle()) for _ in range(3)]
    await turns()
    assert not any(each.done() for each in waiting), "open, though nothing runs"
    driving = asyncio.ensure_future(lane.drive())
    await lane.agent.model.hanging()  # type: ignore[attr-defined]
    waiting[1].cancel()
    await turns()
    assert [each.done() for each in waiting] == [False, True, False]

    lane.agent.model.release()  # type: ignore[attr-defined]
    await asyncio.gather(waiting[0], waiting[2])

    assert lane.inspect().operation is None and not lane.inspect().driving
    await driving


async def test_it_is_idle_once_its_pass_is_over_too(session: Session) -> None:
    lane = await lane_of(session, "done")
    seen: list[bool] = []

    async def look() -> None:
        await lane.wait_idle()
        seen.append(lane.inspect().driving)

    await lane.accept(Prompt("go"))
    looking = asyncio.ensure_future(look())
    await lane.drive()
    await looking
    assert seen == [False]


async def test_an_operation_that_waits_is_open(session: Session) -> None:
    lane = await lane_of(session, fail("overloaded", retryable=True), "done")
    await lane.accept(Prompt("go"))
    await lane.drive(wait_for_retry=False)
    waiting = asyncio.ensure_future(lane.wait_idle())
    await turns()
    assert not waiting.done()
    await lane.abort()
    await waiting


@pytest.mark.parametrize("wait", ["wait_idle", "run_when_idle", "accept"])
async def test_a_close_and_a_fault_tell_who_waits(wait: str) -> None:
    for end, error in (("close", SessionClosed), ("fault", SessionFaulted)):
        session = await open_session(":memory:")
        lane = await lane_of(session, hang())
        visit: asyncio.Future[Any] | None = None
        if wait == "accept":
            visit = asyncio.ensure_future(lane.run_when_idle(asyncio.Event().wait))
            await turns()
            waiting = asyncio.ensure_future(lane.accept(Prompt("go")))
        else:
            await lane.accept(Prompt("go"))
            waiting = asyncio.ensure_future(lane.wait_idle() if wait == "wait_idle" else lane.run_when_idle(never))
        await turns()
        assert not waiting.done()
        if end == "close":
            await session.close()
        else:
            session._runtime.fault(OSError("full"))
        with pytest.raises(error):
            await waiting
        if visit is not None:
            visit.cancel()
        await session.close()


async def never() -> None:
    raise AssertionError("it must not run")


async def test_from_inside_an_effect_of_the_lane_nobody_waits_for_it(session: Session) -> None:
    told: list[str] = []
    lane: AgentLane

    @tool
    async def wait() -> str:
        for ask in (lane.wait_idle, lambda: lane.run_when_idle(never)):
            with pytest.raises(WouldDeadlock) as caught:
                await ask()
            told.append(caught.value.code)
        with pytest.raises(LaneBusy):
            await lane.accept(Prompt("inside"))
        return "refused"

    lane = await lane_of(session, [call("wait")], "done", tools=(wait,))
    assert (await lane.run("go")).status == "completed"
    assert told == ["would_deadlock", "would_deadlock"]


# Visiting.


async def test_accepts_of_others_wait_for_the_visitor(session: Session) -> None:
    lane = await lane_of(session, "one", "two")
    leave, order = asyncio.Event(), list[str]()

    async def visit() -> str:
        order.append("in")
        await leave.wait()
        order.append("out")
        return "seen"

    async def accept() -> None:
        await lane.accept(Prompt("go"))
        order.append("accepted")

    visiting = asyncio.ensure_future(lane.run_when_idle(visit))
    await turns()
    accepting = asyncio.ensure_future(accept())
    await turns()
    assert order == ["in"] and lane.inspect().operation is None
    leave.set()
    assert await visiting == "seen"
    await accepting
    assert order == ["in", "out", "accepted"]


async def test_the_visitor_is_let_in_before_any_accept_when_the_lane_becomes_idle(session: Session) -> None:
    """Whoever accepts again and again does not keep visitors out."""
    lane = await lane_of(session, *["done"] * 9)
    seen: list[int] = []

    async def visit() -> None:
        assert lane.inspect().operation is None
        seen.append(len(await lane.messages()))
        await turns()
        assert lane.inspect().operation is None, "accepts wait"

    async def busy() -> None:
        for _ in range(3):
            await lane.run("again")

    await lane.accept(Prompt("first"))
    visiting = [asyncio.ensure_future(lane.run_when_idle(visit)) for _ in range(2)]
    await turns()
    await lane.drive()
    running = asyncio.ensure_future(busy())
    await asyncio.gather(*visiting, running)

    assert seen == [2, 2]
    assert len(await lane.messages()) == 8


async def test_visitors_come_one_after_the_other_in_the_order_they_asked(session: Session) -> None:
    lane = await lane_of(session)
    order: list[str] = []

    async def visit(name: str) -> None:
        order.append(f"{name} in")
        await turns()
        order.append(f"{name} out")

    await asyncio.gather(*(lane.run_when_idle(lambda name=name: visit(name)) for name in "abc"))  # type: ignore[misc]

    assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]


async def test_the_visitor_may_accept_and_drive_itself(session: Session) -> None:
    lane = await lane_of(session, "one", "two")

    async def visit() -> str:
        result = await lane.run("mine", operation_id="mine")
        assert await lane.accept(Prompt("mine"), operation_id="mine")
        task = asyncio.ensure_future(lane.accept(Prompt("left open")))  # what it starts is its own too
        await task
        return result.text

    assert await lane.run_when_idle(visit) == "one"
    with pytest.raises(LaneBusy):
        await lane.accept(Prompt("go"))
    result = await lane.resume()
    assert result is not None and result.text == "two"


async def test_a_tool_of_the_visitors_own_operation_is_told_that_the_lane_is_busy(session: Session) -> None:
    lane: AgentLane

    @tool
    async def accept() -> str:
        with pytest.raises(LaneBusy):
            await lane.accept(Prompt("inside"))
        return "refused"

    lane = await lane_of(session, [call("accept")], "done", tools=(accept,))
    result = await lane.run_when_idle(lambda: lane.run("mine"))
    assert result.status == "completed"


async def test_a_circle_of_waits_is_refused(session: Session) -> None:
    """The visitor drives another lane whose tool wants the visited one: it would wait for itself."""
    main = await lane_of(session, "no")
    told: list[str] = []

    @tool
    async def accept() -> str:
        for ask in (lambda: main.accept(Prompt("inside")), lambda: main.run_when_idle(never)):
            with pytest.raises(WouldDeadlock) as caught:
                await ask()
            told.append(str(caught.value))
        return "refused"

    other = await lane_of(session, [call("accept")], "done", tools=(accept,), name="other")
    result = await main.run_when_idle(lambda: other.run("go"))
    assert result.status == "completed" and len(told) == 2


async def test_a_visit_inside_a_visit_is_refused_and_the_outer_one_goes_on(session: Session) -> None:
    lane = await lane_of(session, "done")

    async def visit() -> str:
        with pytest.raises(WouldDeadlock):
            await lane.run_when_idle(never)
        await lane.wait_idle()
        return "out"

    assert await lane.run_when_idle(visit) == "out"
    assert (await lane.run("go")).status == "completed"


@pytest.mark.parametrize("how", ["raises", "cancelled", "cancelled while it waits", "cancelled as it is let in"])
async def test_however_a_visit_ends_the_lane_is_let_go(session: Session, how: str) -> None:
    lane = await lane_of(session, "done", "again")

    async def visit() -> None:
        if how == "raises":
            raise ValueError("from the visitor")
        await asyncio.Event().wait()

    if "waits" in how or "let in" in how:
        await lane.accept(Prompt("go"))
    visiting = asyncio.ensure_future(lane.run_when_idle(visit))
    await turns()
    if how == "cancelled as it is let in":
        lane._core.idle._visitors[0].succeed(None)  # as a settlement does in its own step
        lane._core.idle._visitors.clear()
        lane._core.idle._visiting = True
    if how != "raises":
        visiting.cancel()
    with pytest.raises(ValueError if how == "raises" else asyncio.CancelledError):
        await visiting
    assert not lane._core.idle._visiting and not lane._core.idle._visitors
    await lane.resume()
    assert (await lane.run("next")).status == "completed"


@pytest.mark.parametrize("given", [None, 3, "function"])
async def test_what_is_no_function_is_refused(session: Session, given: Any) -> None:
    lane = await lane_of(session, "done")
    with pytest.raises(InvalidMessage):
        await lane.run_when_idle(given)


async def test_nobody_who_waits_is_left_in_a_list(session: Session) -> None:
    lane = await lane_of(session, "done")
    await lane.run_when_idle(lane.wait_idle)
    idle = lane._core.idle
    assert (idle._watching, list(idle._visitors), idle._held, idle._visiting) == ([], [], [], False)


async def test_a_visitor_of_a_lane_that_is_deleted_is_not_let_in(session: Session) -> None:
    lane = await lane_of(session)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        entered.set()
        await leave.wait()

    first = asyncio.ensure_future(lane.run_when_idle(stay))
    await entered.wait()
    second = asyncio.ensure_future(lane.run_when_idle(stay))
    await turns()
    await session.delete_branch("main")
    leave.set()
    await first

    with pytest.raises(UnknownBranch):
        await second


async def test_what_is_not_async_is_no_visitor_and_leaves_at_once(session: Session) -> None:
    lane = await lane_of(session, "done")

    with pytest.raises(InvalidMessage, match="async function is needed here.*returned int"):
        await lane.run_when_idle(lambda: 3)  # type: ignore[arg-type, return-value]
    assert (await lane.run("go")).status == "completed"


@pytest.mark.parametrize("name", ["x.jsonl", "x.db"])
async def test_a_reader_does_not_wait_for_a_lane_that_stays_busy_to_it(name: str, tmp_path: Path) -> None:
    async with open_session(tmp_path / name) as owner:
        lane = await lane_of(owner, "done")
        async with open_session(tmp_path / name, read_only=True) as reader:
            await (await lane_of(reader)).wait_idle()
        await lane.accept(Prompt("go"))
        async with open_session(tmp_path / name, read_only=True) as reader:
            with pytest.raises(ReadOnlySession):
                await (await lane_of(reader)).wait_idle()
