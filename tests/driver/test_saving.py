"""Claim: what could not be saved while an answer streams costs nothing but itself, and never leaves a hole."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    Prompt,
    SessionClosed,
    SessionFaulted,
    StoreBusy,
    ToolContext,
    ToolResultMessage,
    open_session,
    tool,
)
from agentlane.data.writes import Write
from agentlane.storage.contract import Commit, Pending, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import ManualClock
from agentlane.testing.faults import FailingStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, hang
from agentlane.testing.wrapping import WrappedStorage, WrappedStore


class BusyStore(WrappedStore):
    """Refuses the first commit of a name, as a store does that another program holds."""

    def __init__(self, inner: MemoryStore, name: str) -> None:
        super().__init__(inner)
        self.name = name
        self.refused = 0

    def wrap(self, storage: SessionStorage) -> SessionStorage:
        return _BusyStorage(storage, self)


class _BusyStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, store: BusyStore) -> None:
        super().__init__(inner)
        self._store = store

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        if name == self._store.name and not self._store.refused:
            self._store.refused += 1
            raise StoreBusy("held by another program")
        return self.inner.submit(writes, publish=publish, name=name)


@pytest.fixture
def failures() -> list[dict[str, Any]]:
    """What the event loop reports: a task whose error nobody took, say."""
    return []


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_a_busy_store_refused_is_saved_with_what_comes_next(failures: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    clock = ManualClock()
    store = BusyStore(MemoryStore(clock=clock), "frames")
    model = ScriptedModel([hang("one two three four")], deltas=4, delta_ms=60, clock=clock)
    session = await open_session(store, clock=clock)
    lane = await session.lane("main", Agent(model=model))
    driving = asyncio.ensure_future(lane.drive((await lane.accept(Prompt("go"))).operation_id))
    for _ in range(10):
        await settle()
        if clock.sleepers:
            clock.advance_to_next()
    await model.hanging()

    # When: the process is gone, and the next one settles what was saved.
    session._runtime.storage.kill()
    session._runtime.fault(asyncio.CancelledError())
    with pytest.raises(SessionFaulted):
        await driving
    async with open_session(store, clock=clock) as again:
        lane = await again.lane("main", Agent(model=ScriptedModel(["fine"])))
        await lane.resume()
        messages = await lane.messages()

    assert store.refused == 1
    assert isinstance(messages[1], AssistantMessage) and messages[1].text == "one two three four"
    gc.collect()
    assert failures == []


@pytest.mark.parametrize(
    ("script", "nth"), [([hang("shown")], 4), ([[call("slow")]], 6)], ids=["frames", "progress that was throttled"]
)
async def test_a_fault_while_saving_is_told_to_whoever_drives_and_to_nobody_else(
    script: Sequence[Any], nth: int, failures: list[dict[str, Any]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    clock = ManualClock()

    @tool(replay="safe")
    async def slow(ctx: ToolContext[Any]) -> None:
        await ctx.progress("one")
        await ctx.progress("two")
        await asyncio.get_running_loop().create_future()

    store = FailingStore(MemoryStore(clock=clock), nth=nth)
    session = await open_session(store, clock=clock)
    lane = await session.lane("main", Agent(model=ScriptedModel(script), tools=[slow]))
    driving = asyncio.ensure_future(lane.drive((await lane.accept(Prompt("go"))).operation_id))
    for _ in range(3):
        await settle()
        clock.advance(100)
    await settle()

    clock.advance(5_000)
    with pytest.raises(SessionFaulted):
        await driving
    await session.close()
    assert store.failed
    gc.collect()
    assert failures == []


async def test_progress_is_saved_though_the_clock_is_set_back() -> None:
    class Clock(ManualClock):
        back_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.back_ms

        async def sleep_until(self, at: int) -> None:
            await super().sleep_until(at + self.back_ms)

    clock = Clock()
    saved: list[str] = []

    @tool(replay="safe")
    async def slow(ctx: ToolContext[Any]) -> str:
        await ctx.progress("one")
        clock.back_ms = 600_000
        await ctx.progress("two")
        await settle()
        clock.advance(100)
        await settle()
        return "done"

    class Told(WrappedStore):
        def wrap(self, storage: SessionStorage) -> SessionStorage:
            return _Told(storage)

    class _Told(WrappedStorage):
        def submit(
            self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
        ) -> Pending:
            if name == "progress":
                saved.append(name)
            return self.inner.submit(writes, publish=publish, name=name)

    async with open_session(Told(MemoryStore(clock=clock)), clock=clock) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([[call("slow")], "done"]), tools=[slow]))
        await lane.run("go")

    assert saved == ["progress", "progress"]


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_progress_of_one_call_is_never_that_of_a_later_one(how: str) -> None:
    """Call 0 of the next answer has said nothing yet when it is given up."""
    hanging = asyncio.Event()
    store = MemoryStore()

    @tool(replay="never")
    async def step(number: int, ctx: ToolContext[Any]) -> str:
        if number == 1:
            await ctx.progress("half of the first")
            return "first"
        hanging.set()
        await asyncio.get_running_loop().create_future()
        return "never"

    def agent() -> Agent:
        return Agent(model=ScriptedModel([[call("step", number=1)], [call("step", number=2)], "done"]), tools=[step])

    session = await open_session(store)
    lane = await session.lane("main", agent())
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await hanging.wait()
    if how == "abort":
        await lane.request_abort("op")
        await running
    else:
        await session.close()
        with pytest.raises(SessionClosed):
            await running
        session = await open_session(store)
        lane = await session.lane("main", agent())
        await lane.drive("op")

    results = [each.text for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    assert results[0] == "first" and "half" not in results[1]
    await session.close()
