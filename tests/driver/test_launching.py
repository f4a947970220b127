"""Claim: an effect is told where it is and what it may use: a request, an instructions function and a tool alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    Prompt,
    RetryPolicy,
    Session,
    SessionClosed,
    Settled,
    StreamItem,
    TextPart,
    ToolContext,
    ToolResultMessage,
    WouldDeadlock,
    open_session,
    tool,
)
from agentlane.agent import RunInfo
from agentlane.ids import call_id
from agentlane.storage import MemoryStore
from agentlane.testing import ManualClock, ScriptedModel, call, fail

NOTHING: tuple[StreamItem, ...] = ()


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    store = MemoryStore()
    await store.create("s")
    async with open_session(store, session_id="s") as opened:
        yield opened


async def test_a_request_says_where_it_is_asked_and_which_attempt_it_is(session: Session) -> None:
    infos: list[RunInfo[Any]] = []

    def instructions(info: RunInfo[Any]) -> str:
        infos.append(info)
        return "be brief"

    @tool
    async def look() -> str:
        """Look around."""
        return "fine"

    model = ScriptedModel([fail("overloaded", retryable=True), "done"])
    agent = Agent(
        model=model,
        tools=[look],
        instructions=instructions,
        deps="the deps",
        settings={"t": [1]},
        retry=RetryPolicy(base_ms=0),
    )
    lane = await session.lane("main", agent)
    admitted = await lane.accept(Prompt("go"), operation_id="op")
    await lane.drive(admitted.operation_id)

    assert [
        (each.session_id, each.lane, each.operation_id, each.attempt, each.instructions) for each in model.requests
    ] == [("s", "main", "op", 1, "be brief"), ("s", "main", "op", 2, "be brief")]
    assert [shown.name for shown in model.requests[0].tools] == ["look"]
    assert infos == [RunInfo("s", "main", "op", "the deps")] * 2
    first, second = (each.settings for each in model.requests)
    assert first == second == {"t": [1]} and first["t"] is not second["t"], "an adapter may change its own"


async def test_a_call_is_told_its_place_and_the_dependencies(session: Session) -> None:
    told: list[ToolContext[Any]] = []

    @tool
    async def look(x: int, ctx: ToolContext) -> str:
        told.append(ctx)
        return "fine"

    model = ScriptedModel([[call("look", x=1), call("look", x=2)], "done"])
    lane = await session.lane("main", Agent(model=model, tools=[look], deps="the deps"))
    admitted = await lane.accept(Prompt("go"), operation_id="op")
    await lane.drive(admitted.operation_id)

    (answer,) = {ctx.turn_id for ctx in told}
    assert [ctx.call_id for ctx in told] == [call_id(answer, 0), call_id(answer, 1)]
    assert await session.entry(answer) is not None
    assert {(ctx.operation_id, ctx.attempt, ctx.recovered, ctx.deps) for ctx in told} == {("op", 1, False, "the deps")}
    assert {ctx.epoch for ctx in told} == {session._runtime.storage.epoch}


class AsksItself:
    """A model whose stream drives the lane that it answers, which would wait for itself."""

    identity = ModelIdentity(provider="p", name="m")
    limits = ModelLimits()

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self.lane: Any = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            await self.lane.drive()
        except WouldDeadlock as error:
            self.raised.append(error)
        for item in NOTHING:
            yield item


async def test_a_request_knows_the_lane_that_waits_for_it(session: Session) -> None:
    model = AsksItself()
    model.lane = lane = await session.lane("main", Agent(model=model, retry=RetryPolicy(attempts=1)))

    await lane.run("go")

    assert len(model.raised) == 1, "it was refused, not left hanging"


async def test_a_call_knows_the_lane_that_waits_for_it(session: Session) -> None:
    @tool
    async def drives() -> str:
        try:
            await lane.drive()
        except WouldDeadlock:
            return "refused"
        return "hung"

    lane = await session.lane("main", Agent(model=ScriptedModel([[call("drives")], "done"]), tools=[drives]))

    await lane.run("go")

    assert [each.text for each in await lane.messages() if isinstance(each, ToolResultMessage)] == ["refused"]


class Stubborn:
    """A model that does not stop when it is told to."""

    identity = ModelIdentity(provider="p", name="m")
    limits = ModelLimits()

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.over = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.asked.set()
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                pass
        for item in NOTHING:
            yield item


@pytest.mark.parametrize("what", ["request", "call"])
async def test_what_does_not_stop_is_left_behind_after_the_operations_own_grace(what: str) -> None:
    clock = ManualClock()
    stubborn = Stubborn()

    @tool
    async def stuck() -> str:
        async for _ in stubborn.stream(None):  # type: ignore[arg-type]
            pass
        return "at last"

    model = stubborn if what == "request" else ScriptedModel([[call("stuck")]])
    async with open_session(":memory:", clock=clock) as session:
        agent = Agent(model=model, tools=[stuck], cancel_grace_ms=70)
        lane = await session.lane("main", agent)
        await lane.accept(Prompt("go"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive("op"))
        await stubborn.asked.wait()
        await lane.request_abort("op")

        await clock.sleeping()
        assert clock.next_due == clock.now_ms() + 70
        clock.advance(70)

        outcome = await driving
        assert isinstance(outcome, Settled) and outcome.result.status == "aborted"
        stubborn.over.set()
        results = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
        assert len(results) == (what == "call")


class FinishesItsWord(Stubborn):
    """A model whose answer is whole just when it is told to stop."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.asked.set()
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            pass
        yield AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop")


async def test_a_close_keeps_the_last_answer_that_came_back_within_the_grace() -> None:
    """There is no batch whose calls could be put back, so nothing else is to be done, and nothing goes wrong."""
    model = FinishesItsWord()
    store = MemoryStore()
    await store.create("s")
    session = await open_session(store, session_id="s")
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    await model.asked.wait()

    await session.close()

    with pytest.raises(SessionClosed):
        await driving
    assert session.findings == ()
    async with open_session(store, session_id="s") as again:
        lane = await again.lane("main", Agent(model=model))
        assert [each.text for each in await lane.messages() if isinstance(each, AssistantMessage)] == ["done"]
        outcome = await lane.drive("op")
        assert isinstance(outcome, Settled) and outcome.result.text == "done"
