"""Claim: a lane moves only where its agent's before_navigation hooks let it; they are told from where and where to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    BeforeNavigation,
    Block,
    InvalidNavigation,
    LaneBusy,
    Prompt,
    SessionClosed,
    SessionFaulted,
    hook,
    open_session,
)
from agentlane.data.messages import user
from agentlane.testing import FailingStore, ScriptedModel, check_invariants
from tests.hooks.asked import GRACE_MS, Stuck, agent_with, pass_grace
from tests.session.places import Place


def model() -> ScriptedModel:
    return ScriptedModel(turns=[["one"], ["two"], ["three"]])


class Seen:
    """A hook that keeps what it was told, and says what it is given."""

    def __init__(self, *answers: Any) -> None:
        self.told: list[BeforeNavigation[Any]] = []
        self._answers = list(answers)

    async def __call__(self, info: BeforeNavigation[Any]) -> Any:
        self.told.append(info)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_hooks_are_told_in_order_and_let_it_move(place: Place) -> None:
    first, second = Seen(), Seen()
    session = await place.open()
    hooks = (hook("before_navigation", first), hook("before_navigation", second))
    lane = await session.lane("main", agent_with(model(), *hooks, deps="mine"))
    done = await lane.run("go")
    there = lane.tip()

    await lane.rewind(done.inputs[0], label="left")
    await lane.navigate(there)
    await lane.navigate(there)

    assert first.told == second.told
    assert first.told == [
        BeforeNavigation(
            session_id="s", lane="main", deps="mine", from_tip=there, to=None, label="left", messages=(user("go"),)
        ),
        BeforeNavigation(session_id="s", lane="main", deps="mine", from_tip=None, to=there, label=None, messages=()),
    ]


@pytest.mark.parametrize("how", ["navigate", "rewind"])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Block("a deploy ran"), "lane 'main' does not move: a deploy ran"),
        (ValueError("no way"), "at before_navigation failed: ValueError: no way"),
        (asyncio.CancelledError(), "at before_navigation cancelled itself"),
        (SystemExit(3), "at before_navigation failed: SystemExit: 3"),
        ("yes", "at before_navigation returned something that cannot be used: a Block or None is needed here, not str"),
    ],
    ids=["block", "raise", "cancelled itself", "exit", "another type"],
)
async def test_one_that_refuses_or_fails_keeps_the_lane_where_it_is(
    place: Place, how: str, answer: Any, text: str
) -> None:
    first, second = Seen(answer), Seen()
    session = await place.open()
    hooks = (hook("before_navigation", first), hook("before_navigation", second))
    lane = await session.lane("main", agent_with(model(), *hooks))
    done = await lane.run("go")
    there = lane.tip()

    with pytest.raises(InvalidNavigation) as caught:
        await (lane.navigate(None) if how == "navigate" else lane.rewind(done.inputs[0], label="x"))

    assert text in str(caught.value)
    assert lane.tip() == there
    assert second.told == []
    assert await session.label(there or "") is None
    assert (await lane.navigate(None)).tip is None
    assert await check_invariants(session) == []


async def test_a_failure_may_be_passed_over(place: Place) -> None:
    session = await place.open()
    failing = hook("before_navigation", Seen(ValueError("no way")), on_error="continue")
    lane = await session.lane("main", agent_with(model(), failing))
    await lane.run("go")

    assert (await lane.navigate(None)).tip is None
    assert [text for text in session.findings if "navigation of lane 'main'" in text and "passed over" in text]


async def test_a_lane_that_moved_meanwhile_is_asked_about_again(place: Place) -> None:
    """What a hook has allowed is the move that it was told of, and no other."""
    session = await place.open()
    told: list[str | None] = []

    async def move_first(info: BeforeNavigation[Any]) -> Block | None:
        told.append(info.from_tip)
        if len(told) == 1:
            await lane.append_message(user("meanwhile"))
        return Block("not from here") if len(told) == 2 else None

    lane = await session.lane("main", agent_with(model(), hook("before_navigation", move_first)))
    await lane.run("go")
    before = lane.tip()

    with pytest.raises(InvalidNavigation, match="not from here"):
        await lane.navigate(None)
    assert told == [before, lane.tip()]
    assert lane.tip() != before


async def test_a_caller_who_leaves_takes_the_hook_along(place: Place) -> None:
    session = await place.open()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(info: BeforeNavigation[Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    lane = await session.lane("main", agent_with(model(), hook("before_navigation", slow)))
    await lane.run("go")
    there = lane.tip()
    moving = asyncio.ensure_future(lane.navigate(None))
    await begun.wait()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving

    assert ended.is_set()
    assert lane.tip() == there


async def test_work_that_is_accepted_while_a_hook_is_asked_comes_first(place: Place) -> None:
    session = await place.open()

    async def accept(info: BeforeNavigation[Any]) -> None:
        await lane.accept(Prompt("more"), operation_id="op")

    lane = await session.lane("main", agent_with(model(), hook("before_navigation", accept)))
    await lane.run("go")
    with pytest.raises(LaneBusy) as caught:
        await lane.navigate(None)
    assert caught.value.details["operation_id"] == "op"
    await lane.resume()
    assert await check_invariants(session) == []


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends", "left behind"])
@pytest.mark.parametrize("how", ["navigate", "rewind"])
async def test_a_close_ends_a_hook_that_is_asked_and_who_waits_hears_of_it(
    place: Place, how: str, stubborn: bool
) -> None:
    """Told once, in the caller's own task, which is not cancelled by that; what will not end is named."""
    stuck = Stuck(stubborn=stubborn)
    session = await place.open()
    agent = agent_with(model(), hook("before_navigation", stuck), cancel_grace_ms=GRACE_MS)
    lane = await session.lane("main", agent)
    done = await lane.run("go")
    heard: list[str] = []

    async def move() -> None:
        try:
            await (lane.navigate(None) if how == "navigate" else lane.rewind(done.inputs[0]))
        except SessionClosed:
            heard.append("closed")
        await asyncio.sleep(0)
        heard.append("goes on")

    moving = asyncio.ensure_future(move())
    await stuck.entered.wait()
    closing = asyncio.ensure_future(session.close())
    if stubborn:
        await pass_grace(place.clock, stuck)
    await closing

    assert stuck.told == 1
    left = ["hook 'Stuck' at before_navigation did not end within 70 ms and was left behind"]
    assert list(session.findings) == left * stubborn
    stuck.go_on.set()
    await moving
    assert heard == ["closed", "goes on"]


async def test_a_fault_ends_it_too_and_a_cancelled_caller_stays_cancelled(place: Place) -> None:
    store = FailingStore(place.store, nth=None)
    await store.create("s")
    session = await open_session(store, session_id="s", clock=place.clock)
    stuck = Stuck()
    lane = await session.lane("main", agent_with(model(), hook("before_navigation", stuck)))
    await lane.run("go")
    moving = asyncio.ensure_future(lane.navigate(None))
    await stuck.entered.wait()
    store.fail_next()
    with pytest.raises(SessionFaulted):
        await session.set_name("x")
    with pytest.raises(SessionFaulted):
        await moving
    await session.reopen()

    stuck.entered.clear()
    moving = asyncio.ensure_future(lane.navigate(None))
    await stuck.entered.wait()
    moving.cancel()
    await session.close()
    assert moving.cancelled()


async def test_a_hook_must_not_close_the_session_that_it_is_asked_in(place: Place) -> None:
    session = await place.open()

    async def close(info: Any) -> None:
        await session.close()

    lane = await session.lane("main", agent_with(model(), hook("before_navigation", close)))
    await lane.run("go")

    with pytest.raises(InvalidNavigation, match="WouldDeadlock"):
        await lane.navigate(None)
    assert await check_invariants(session) == []
