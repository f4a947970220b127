"""Claim: what foreign code makes of our signals is no outcome, and no slip of it reaches a caller as a cancellation."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLaneError,
    AssistantMessage,
    DriveInterrupted,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartStart,
    RetryPolicy,
    StreamItem,
    TextPart,
    ToolResultMessage,
    open_session,
    tool,
)
from agentlane.driver import threads
from agentlane.driver.running import RunningEffects
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.storage import MemoryStore
from agentlane.testing import ManualClock, ScriptedModel, call


class Adapter:
    """A model whose stream is a function of the test's."""

    identity = ModelIdentity(provider="test", name="adapter")
    limits = ModelLimits()

    def __init__(self, stream: Callable[[ModelRequest], AsyncIterator[StreamItem]]) -> None:
        self.asked = asyncio.Event()
        self._stream = stream

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.asked.set()
        return self._stream(request)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def ends(request: ModelRequest) -> AsyncIterator[StreamItem]:
    yield PartStart(index=0, kind="text")
    yield PartDelta(index=0, text="half")
    with suppress(asyncio.CancelledError):
        await forever()


async def says_aborted(request: ModelRequest) -> AsyncIterator[StreamItem]:
    yield PartStart(index=0, kind="text")
    yield PartDelta(index=0, text="half")
    try:
        await forever()
    except asyncio.CancelledError:
        yield AssistantMessage(content=(TextPart(text="half"),), stop_reason="aborted")


async def wraps(request: ModelRequest) -> AsyncIterator[StreamItem]:
    yield PartStart(index=0, kind="text")
    yield PartDelta(index=0, text="half")
    try:
        await forever()
    except asyncio.CancelledError as error:
        raise RuntimeError("the connection is closed") from error


ENDINGS = pytest.mark.parametrize("stream", [ends, says_aborted, wraps], ids=lambda each: each.__name__)


async def texts(lane: Any) -> list[str]:
    """Answers and results in short lines."""
    lines = []
    for each in await lane.messages():
        if isinstance(each, AssistantMessage):
            code = "" if each.error is None else f"/{each.error.code}"
            lines.append(f"{each.stop_reason}{code} {each.text}")
        elif isinstance(each, ToolResultMessage):
            lines.append(each.text)
    return lines


@ENDINGS
async def test_a_stream_that_ends_at_our_close_makes_no_outcome(stream: Any) -> None:
    store = MemoryStore()
    model = Adapter(stream)
    session = await open_session(store)
    lane = await session.lane("main", Agent(model=model, retry=RetryPolicy(attempts=1)))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await model.asked.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    await session.close()
    with pytest.raises(Exception, match="closed"):
        await running

    async with open_session(store) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["fine"]), retry=RetryPolicy(attempts=1)))
        operation = lane.inspect().operation
        assert operation is not None and operation.at == "generating"
        assert (await lane.drive("op")).result.status == "failed"  # the other model is not the one it was accepted for


async def test_instructions_that_fail_at_our_close_make_no_outcome() -> None:
    asked = asyncio.Event()

    async def instructions(info: Any) -> str:
        asked.set()
        try:
            await forever()
        except asyncio.CancelledError as error:
            raise RuntimeError("the database is closed") from error
        return ""

    store = MemoryStore()
    session = await open_session(store)
    lane = await session.lane("main", Agent(model=ScriptedModel(["never"]), instructions=instructions))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await asked.wait()
    await session.close()
    with pytest.raises(Exception, match="closed"):
        await running

    async with open_session(store) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["fine"]), instructions="be good"))
        result = (await lane.drive("op")).result
        assert (result.status, result.text) == ("completed", "fine")


@ENDINGS
async def test_a_stream_that_ends_at_an_abort_is_an_aborted_answer_with_what_was_shown(stream: Any) -> None:
    model = Adapter(stream)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        running = asyncio.ensure_future(lane.run("go", operation_id="op"))
        await model.asked.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        await lane.request_abort("op")
        assert (await running).status == "aborted"
        assert await texts(lane) == ["aborted/aborted half"]


@pytest.mark.parametrize("replay", ["never", "safe"])
@pytest.mark.parametrize("what", ["tool", "model"])
def test_a_loop_that_ends_is_a_death_even_where_foreign_code_wraps_the_cancellation(replay: Any, what: str) -> None:
    store = MemoryStore()
    starts = 0
    under_way = []

    @tool(replay=replay)
    async def pay() -> str:
        nonlocal starts
        starts += 1
        if starts == 1:
            under_way[0].set()
            try:
                await forever()
            except asyncio.CancelledError as error:
                raise RuntimeError("wrapped") from error
        return "paid"

    async def first() -> None:
        session = await open_session(store)
        under_way.append(asyncio.Event())
        model: Any = ScriptedModel([[call("pay")], "done"])
        if what == "model":
            model = Adapter(wraps)
        lane = await session.lane("main", Agent(model=model, tools=[pay], retry=RetryPolicy(attempts=1)))
        asyncio.get_running_loop().create_task(lane.run("go", operation_id="op"))
        await (under_way[0] if what == "tool" else model.asked).wait()
        for _ in range(5):
            await asyncio.sleep(0)

    async def second() -> None:
        async with open_session(store) as session:
            if what == "model":
                await session.lane("main", Agent(model=Adapter(wraps)))
                operation = (await session.lane("main", Agent(model=Adapter(wraps)))).inspect().operation
                assert operation is not None and operation.at == "generating"
                return
            lane = await session.lane("main", Agent(model=ScriptedModel([[call("pay")], "done"]), tools=[pay]))
            assert (await lane.drive("op")).result.status == "completed"
            result = (await texts(lane))[1]
            assert (INTERRUPTED in result) == (replay == "never")
            assert "wrapped" not in result and starts == (1 if replay == "never" else 2)

    asyncio.run(first())
    asyncio.run(second())


class NoAttributes(ModelError):
    def __init__(self, why: str) -> None:
        Exception.__init__(self, why)


class Unreadable:
    def __bool__(self) -> bool:
        raise RuntimeError("neither yes nor no")


def odd_error(**changed: Any) -> ModelError:
    error = ModelError("no")
    for name, value in changed.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    "error",
    [
        NoAttributes("forgot"),
        odd_error(retryable=Unreadable()),
        odd_error(retry_after_ms=10**5000),
        odd_error(retry_after_ms=10**30),
        odd_error(kind=""),
        odd_error(kind=object()),
        odd_error(usage="many"),
    ],
    ids=["no attributes", "retryable", "retry_after huge", "retry_after beyond 64 bits", "no kind", "kind", "usage"],
)
async def test_a_slip_in_an_adapters_error_is_a_failed_request_and_nothing_else(error: ModelError) -> None:
    async def stream(request: ModelRequest) -> AsyncIterator[StreamItem]:
        raise error
        yield

    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=Adapter(stream), retry=RetryPolicy(attempts=1)))
        result = await lane.run("go")
        assert (result.status, result.code) == ("failed", "model_error")
        assert result.error is not None and (result.error.retry_after_ms or 0) < 2**63


async def test_a_model_whose_identity_cannot_be_read_any_more_fails_the_request() -> None:
    class Forgetful:
        limits = ModelLimits()
        reads = 0

        @property
        def identity(self) -> ModelIdentity:
            self.reads += 1
            if self.reads > 1:
                raise RuntimeError("who am I?")
            return ModelIdentity(provider="test", name="forgetful")

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            raise ModelError("no")
            yield

    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=Forgetful(), retry=RetryPolicy(attempts=1)))
        assert (await lane.run("go")).code == "model_error"
        answer = (await lane.messages())[1]
        assert isinstance(answer, AssistantMessage) and answer.model == ModelIdentity(provider="test", name="forgetful")


async def test_a_pass_that_somebody_cancels_is_told_as_an_error_and_driving_again_goes_on() -> None:
    store = MemoryStore()
    held = asyncio.Event()

    @tool(replay="safe")
    async def slow() -> str:
        if not held.is_set():
            held.set()
            await forever()
        return "ok"

    async with open_session(store) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([[call("slow")], "done"]), tools=[slow]))
        driving = asyncio.ensure_future(lane.run("go", operation_id="op"))
        await held.wait()
        [task] = [each for each in asyncio.all_tasks() if each.get_name() == "agentlane pass main"]
        task.cancel()
        with pytest.raises(DriveInterrupted, match="operation op is open; drive it again"):
            await driving
        assert (await lane.drive("op")).result.status == "completed"


async def test_plain_functions_beyond_the_threads_wait_for_one() -> None:
    """A hundred at once, with 64 threads: all run, at most 64 at a time."""
    at_once, most = 0, 0
    lock, full = threading.Lock(), threading.Event()

    @tool(replay="safe")
    def work(number: int) -> str:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if at_once == 64:
                full.set()
        full.wait()
        with lock:
            at_once -= 1
        return f"done {number}"

    agent = Agent(
        model=ScriptedModel([[call("work", number=i) for i in range(100)], "done"]), tools=[work], max_parallel=100
    )
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        await lane.run("go")
        assert (await texts(lane))[1:-1] == [f"done {i}" for i in range(100)]
        assert most == 64


async def test_a_call_that_waits_for_a_thread_was_never_begun() -> None:
    """64 functions hold all threads; the abort finds the 65th not started, and says so."""
    go_on, started = threading.Event(), threading.Semaphore(0)
    starts: list[int] = []

    @tool(replay="never")
    def work(number: int) -> str:
        starts.append(number)
        started.release()
        go_on.wait()
        return "done"

    clock = ManualClock()
    agent = Agent(
        model=ScriptedModel([[call("work", number=i) for i in range(65)], "done"]), tools=[work], max_parallel=100
    )
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", agent)
        running = asyncio.ensure_future(lane.run("go", operation_id="op"))
        await asyncio.to_thread(lambda: [started.acquire() for _ in range(64)])
        await lane.request_abort("op")
        go_on.set()
        assert (await running).status == "aborted"
        results = (await texts(lane))[1:]
        assert results[:64] == ["done"] * 64
        assert "aborted before this call started" in results[64] and 64 not in starts


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_an_eager_task_factory_changes_nothing() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    try:

        @tool
        async def quick() -> str:
            return "q"

        async with open_session(":memory:") as session:
            lane = await session.lane("main", Agent(model=ScriptedModel([[call("quick")], "done"]), tools=[quick]))
            assert (await lane.run("go")).text == "done"
    finally:
        loop.set_task_factory(None)


async def test_a_streams_clean_up_that_never_ends_is_stopped_and_named() -> None:
    async def stream(request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            yield AssistantMessage(content=(TextPart(text="fine"),), stop_reason="stop")
        finally:
            await forever()

    clock = ManualClock()
    before = asyncio.all_tasks()
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=Adapter(stream)))
        assert (await lane.run("go")).text == "fine"
        while not clock.sleepers:
            await asyncio.sleep(0)
        clock.advance(10_000)
        for _ in range(10):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        assert any("clean-up" in each and "test:adapter" in each for each in session._runtime.findings)


async def test_a_streams_clean_up_is_not_left_running_by_close() -> None:
    async def stream(request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            yield AssistantMessage(content=(TextPart(text="fine"),), stop_reason="stop")
        finally:
            await forever()

    before = asyncio.all_tasks()
    async with open_session(":memory:", clock=ManualClock()) as session:
        lane = await session.lane("main", Agent(model=Adapter(stream)))
        assert (await lane.run("go")).text == "fine"
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("which", ["call_ended", "answer"])
def test_an_interrupt_in_the_middle_of_a_report_leaves_a_session_that_can_be_closed(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may be raised between any two steps of ours: here between an effect's end and the pass that is told."""
    real, left = getattr(RunningEffects, which), [1]

    def interrupted(self: RunningEffects, *args: Any, **options: Any) -> None:
        if left and left.pop():
            raise KeyboardInterrupt
        real(self, *args, **options)

    monkeypatch.setattr(RunningEffects, which, interrupted)

    @tool(replay="safe")
    async def work() -> str:
        return "done"

    store = MemoryStore()

    async def begin() -> tuple[Any, Any]:
        session = await open_session(store)
        lane = await session.lane("main", Agent(model=ScriptedModel([[call("work")], "done"]), tools=[work]))
        return session, lane

    loop = asyncio.new_event_loop()
    try:
        session, lane = loop.run_until_complete(begin())
        running = loop.create_task(lane.run("go", operation_id="op"))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(running)
        loop.run_until_complete(asyncio.wait_for(session.close(), timeout=60))
        with pytest.raises(AgentLaneError):
            loop.run_until_complete(running)
        session, lane = loop.run_until_complete(begin())
        assert loop.run_until_complete(lane.drive("op")).result.text == "done"
        loop.run_until_complete(session.close())
    finally:
        loop.close()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_function_whose_thread_comes_too_late_never_begins(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take any time to run a thread: one that begins after its call was given up must do nothing."""
    late: list[Callable[[], None]] = []

    class LateThread:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **options: Any) -> None:
            late.append(lambda: target(*args))

        def start(self) -> None:
            pass

    monkeypatch.setattr(threads.threading, "Thread", LateThread)
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.001)
    starts: list[int] = []

    @tool(replay="never")
    def work() -> str:
        starts.append(1)
        return "done"

    store, clock = MemoryStore(), ManualClock()
    session = await open_session(store, clock=clock)
    lane = await session.lane("main", Agent(model=ScriptedModel([[call("work")], "done"]), tools=[work]))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    while not late:
        await asyncio.sleep(0)
    ending = asyncio.ensure_future(session.close() if how == "close" else lane.request_abort("op"))
    while not clock.sleepers:
        await asyncio.sleep(0)
    clock.advance(2_000)
    await ending

    if how == "close":
        with pytest.raises(AgentLaneError):
            await running
        session = await open_session(store, read_only=True)
        operation = (await session.lane("main", lane.agent)).inspect().operation
        assert operation is not None and [each.status for each in operation.calls] == ["planned"]
    else:
        assert (await running).status == "aborted"
        assert "aborted before this call started" in (await texts(lane))[1]
    late[0]()
    assert starts == []
    await session.close()
