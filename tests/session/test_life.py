"""Claim: a session belongs to its loop and process, ends whole however it is closed, and never waits for itself."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentlane import Agent, Prompt, Session, ToolContext, open_session, tool
from agentlane.data.messages import user
from agentlane.errors import (
    CorruptSession,
    LaneBusy,
    SessionClosed,
    SessionFaulted,
    WouldDeadlock,
    WrongLoop,
    WrongProcess,
)
from agentlane.testing.faults import FailingStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, hang
from tests.session.places import Place, agent_of

# Where it may be used.


def in_another_loop(work: Callable[[], Awaitable[Any]]) -> BaseException | None:
    """What happens to ``work`` on a loop of its own, in a thread of its own."""
    told: list[BaseException | None] = []

    async def run() -> None:
        await work()

    def thread() -> None:
        try:
            asyncio.run(run())
            told.append(None)
        except BaseException as error:
            told.append(error)

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join(20)
    return told[0]


async def test_on_another_loop_every_use_is_refused_at_once(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    await lane.accept(Prompt("hi"), operation_id="op")
    uses: list[Callable[[], Awaitable[Any]]] = [
        lambda: lane.accept(Prompt("x")),
        lambda: lane.drive(),
        lambda: lane.request_abort("op"),
        lambda: lane.result("op"),
        lambda: lane.resume(),
        lambda: lane.abort(),
        lambda: lane.run("x"),
        lambda: lane.entries(),
        lambda: lane.append_message(user("x")),
        lambda: lane.configure(settings={}),
        lambda: session.lane("other", agent_of("x")),
        lambda: session.create_branch("other"),
        lambda: session.set_name("x"),
        lambda: session.entries(),
        lambda: session.usage(),
        lambda: session.reopen(),
        lambda: session.close(),
    ]

    for use in uses:
        error = in_another_loop(use)
        assert isinstance(error, WrongLoop), error
        assert "event loop" in str(error)

    assert session.branches() == ["main"]
    done = await lane.resume()
    assert done is not None and done.status == "completed"


def test_a_session_of_an_ended_loop_says_so(tmp_path: Any) -> None:
    async def start() -> Session:
        return await open_session(tmp_path / "a.jsonl", durability="process")

    session = asyncio.run(start())

    async def use() -> None:
        with pytest.raises(WrongLoop):
            await session.set_name("x")

    asyncio.run(use())
    with pytest.raises(WrongLoop):
        session.stats()


async def test_a_forked_child_is_refused_and_the_parent_goes_on(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: nothing is run in the child
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (session.stats, session.branches, lane.tip, lane.inspect):
                with pytest.raises(WrongProcess, match="open it anew"):
                    use()
            with pytest.raises(WrongProcess):
                lane.accept(Prompt("x")).send(None)
            with pytest.raises(WrongProcess):
                session.close().send(None)
            code = 0
        finally:
            os._exit(code)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert (await lane.run("hi")).text == "done"


async def test_a_coroutine_that_is_not_awaited_does_nothing(place: Place) -> None:
    """R130: nothing happens, and Python says that it was never awaited."""
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    seq = (await lane.append_custom("mark")).seq

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for make in (
            lambda: lane.accept(Prompt("x")),
            lambda: lane.run("x"),
            lambda: lane.append_custom("x"),
            lambda: session.set_name("x"),
            lambda: session.lane("other", agent_of("x")),
            lambda: session.close(),
        ):
            make()
        gc.collect()

    assert (await lane.append_custom("mark")).seq == seq + 2, "an entry and a tip: nothing between"
    assert session.name is None and session.lanes() == ["main"] and session.open_operations() == []


# Closing.


async def test_closed_twice_or_by_many_it_is_closed_once(place: Place) -> None:
    session = await place.open()

    await asyncio.gather(session.close(), session.close(), asyncio.ensure_future(session.close()))
    await session.close()

    again = await place.open()
    assert again.id == session.id


async def test_after_a_close_every_use_says_so(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    await session.close()

    for use in (
        lambda: lane.accept(Prompt("x")),
        lambda: lane.drive(),
        lambda: lane.request_abort("op"),
        lambda: lane.entries(),
        lambda: lane.append_custom("x"),
        lambda: lane.configure(settings={}),
        lambda: session.lane("other", agent_of("x")),
        lambda: session.set_name("x"),
        lambda: session.entry("x"),
        lambda: session.reopen(),
    ):
        with pytest.raises(SessionClosed):
            await use()
    for look in (session.stats, session.branches, session.open_operations, lane.tip, lane.inspect):
        with pytest.raises(SessionClosed):
            look()
    assert session.id == "s" and "closed" in repr(session)


async def test_opened_in_one_task_and_closed_in_another(place: Place) -> None:
    session = await asyncio.ensure_future(place.open())
    lane = await asyncio.ensure_future(session.lane("main", agent_of("done")))
    assert (await asyncio.ensure_future(lane.run("hi"))).text == "done"

    await asyncio.ensure_future(session.close())

    assert (await place.open()).branches() == ["main"]


async def test_closing_leaves_operations_open_and_tells_those_who_wait(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel([hang("half"), "done"])
    lane = await session.lane("main", Agent(model=model))
    admitted = await lane.accept(Prompt("hi"))
    driving = asyncio.ensure_future(lane.drive())
    await model.hanging()

    await session.close()

    with pytest.raises(SessionClosed, match=admitted.operation_id):
        await driving
    session = await place.open()
    assert [each.operation_id for each in session.open_operations()] == [admitted.operation_id]
    assert await session.usage() == [], "nothing was settled"


@pytest.mark.parametrize("turns", range(6))
async def test_a_native_cancellation_inside_close_skips_no_clean_up(turns: int, place: Place) -> None:
    """R123: cancelled at each turn of the loop while a pass winds down."""
    session = await place.open()
    model = ScriptedModel([hang("half")])
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("hi"))
    driving = asyncio.ensure_future(lane.drive())
    await model.hanging()

    closing = asyncio.ensure_future(session.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled = closing.cancel()
    (ended,) = await asyncio.gather(closing, return_exceptions=True)

    assert isinstance(ended, asyncio.CancelledError) == cancelled, "the cancellation is raised, afterwards"
    if turns == 0:  # it never began, so nothing is closed yet
        await session.close()
    assert isinstance((await asyncio.gather(driving, return_exceptions=True))[0], SessionClosed)
    assert "closed" in repr(session)
    again = await place.open()
    assert len(again.open_operations()) == 1


@pytest.mark.parametrize("turns", range(1, 5))
async def test_an_anyio_cancellation_inside_close_skips_no_clean_up(turns: int, place: Place) -> None:
    session = await place.open()
    model = ScriptedModel([hang("half")])
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("hi"))
    driving = asyncio.ensure_future(lane.drive())
    await model.hanging()

    async def cancel_later(scope: anyio.CancelScope) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_later, group.cancel_scope)
        await session.close()

    assert "closed" in repr(session)
    assert isinstance((await asyncio.gather(driving, return_exceptions=True))[0], SessionClosed)
    assert len((await place.open()).open_operations()) == 1


async def test_leaving_the_block_closes_also_when_it_raises(place: Place) -> None:
    await place.store.create("s")

    with pytest.raises(ZeroDivisionError):
        async with open_session(place.store, session_id="s") as session:
            raise ZeroDivisionError
    inside = asyncio.Event()
    waiting = asyncio.ensure_future(wait_inside(place, inside))
    await inside.wait()
    waiting.cancel()
    await asyncio.wait({waiting})

    assert waiting.cancelled()
    assert "closed" in repr(session)
    assert (await place.open()).id == "s"


async def wait_inside(place: Place, inside: asyncio.Event) -> None:
    async with open_session(place.store, session_id="s"):
        inside.set()
        await asyncio.Event().wait()


# Faults.


async def test_a_reopen_that_cannot_read_leaves_the_session_faulted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.store.create("s")
    store = FailingStore(place.store, nth=1, where="before")
    session = await open_session(store, session_id="s", clock=place.clock)
    with pytest.raises(SessionFaulted):
        await session.set_name("lost")
    whole = session.load

    async def damaged() -> None:
        raise CorruptSession("row 7 is damaged")

    monkeypatch.setattr(session, "load", damaged)
    with pytest.raises(CorruptSession):
        await session.reopen()
    with pytest.raises(SessionFaulted):
        session.stats()

    monkeypatch.setattr(session, "load", whole)
    await session.reopen()
    await session.set_name("kept")
    assert session.name == "kept"
    await session.close()


# Waiting for oneself.


def lane_tool(work: Callable[[ToolContext], Awaitable[Any]], name: str) -> Any:
    """A tool that tells which error ``work`` ran into."""

    @tool(name=name)
    async def run(ctx: ToolContext) -> str:
        try:
            return f"went on: {await work(ctx)!r:.20}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return run


async def results_of(lane: Any) -> list[str]:
    return [entry.body.text for entry in await lane.entries(types=["tool_result"], newest_first=False)]


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        ("drive", WouldDeadlock),
        ("drive by id", WouldDeadlock),
        ("resume", WouldDeadlock),
        ("abort", WouldDeadlock),
        ("close", WouldDeadlock),
        ("run", LaneBusy),
    ],
)
async def test_an_effect_never_waits_for_its_own_lane(verb: str, error: type[Exception], place: Place) -> None:
    session = await place.open()

    async def work(ctx: ToolContext) -> Any:
        match verb:
            case "drive":
                return await lane.drive()
            case "drive by id":
                return await lane.drive(ctx.operation_id)
            case "resume":
                return await lane.resume()
            case "abort":
                return await lane.abort()
            case "close":
                return await session.close()
            case _:
                return await lane.run("more")

    lane = await session.lane("main", agent_of([call("it")], "done", tools=[lane_tool(work, "it")]))

    done = await lane.run("hi")

    (told,) = await results_of(lane)
    assert told.startswith(error.__name__), told
    assert done.status == "completed" and done.text == "done", "nothing was aborted, nothing hangs"


async def test_a_task_or_thread_that_an_effect_starts_is_the_effects_too(place: Place) -> None:
    session = await place.open()

    async def in_a_task(ctx: ToolContext) -> Any:
        return await asyncio.ensure_future(lane.drive())

    loop = asyncio.get_running_loop()

    @tool
    def in_a_thread() -> str:
        try:
            asyncio.run_coroutine_threadsafe(lane.drive(), loop).result(10)
        except WouldDeadlock as error:
            return type(error).__name__
        return "went on"

    tools = [lane_tool(in_a_task, "in_a_task"), in_a_thread]
    lane = await session.lane("main", agent_of([call("in_a_task"), call("in_a_thread")], "done", tools=tools))

    await lane.run("hi")

    assert [told.split(":")[0] for told in await results_of(lane)] == ["WouldDeadlock", "WouldDeadlock"]


async def test_an_instructions_function_is_an_effect(place: Place) -> None:
    session = await place.open()

    async def instructions(info: Any) -> str:
        await lane.drive()
        return ""

    lane = await session.lane("main", agent_of("done", instructions=instructions))

    done = await lane.run("hi")

    assert (done.status, done.code) == ("failed", "instructions_failed")
    assert done.error is not None and "WouldDeadlock" in done.error.message


@pytest.mark.parametrize(
    ("error", "told"), [(SystemExit(2), "failed: SystemExit: 2"), (asyncio.CancelledError(), "cancelled itself")]
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_an_instructions_function_raises_is_no_failure_of_the_model(
    place: Place, error: BaseException, told: str, is_async: bool
) -> None:
    """Not asked again: the model was never asked."""
    session = await place.open()

    def plain(info: Any) -> str:
        raise error

    async def later(info: Any) -> str:
        await asyncio.sleep(0)
        raise error

    lane = await session.lane("main", agent_of("done", instructions=later if is_async else plain))

    done = await lane.run("hi")

    assert (done.status, done.code, done.usage.rows) == ("failed", "instructions_failed", 1)
    assert done.error is not None and done.error.message == f"the instructions function {told}"


async def test_a_tool_may_drive_another_lane(place: Place) -> None:
    session = await place.open()

    async def delegate(ctx: ToolContext) -> Any:
        return (await child.run("sub")).text

    parent = await session.lane("parent", agent_of([call("it")], "done", tools=[lane_tool(delegate, "it")]))
    child = await session.lane("child", agent_of("from the child"))

    assert (await parent.run("hi")).text == "done"
    assert await results_of(parent) == ["went on: 'from the child'"]


@pytest.mark.parametrize("verb", ["drive", "abort", "close"])
async def test_a_circle_of_lanes_is_told_before_anything_commits(verb: str, place: Place) -> None:
    """A's tool drives B, whose tool drives C, whose tool waits for A."""
    session = await place.open()

    async def to_b(ctx: ToolContext) -> Any:
        return (await lane_b.run("b")).text

    async def to_c(ctx: ToolContext) -> Any:
        return (await lane_c.run("c")).text

    async def to_a(ctx: ToolContext) -> Any:
        if verb == "close":
            return await session.close()
        return await (lane_a.drive() if verb == "drive" else lane_a.abort())

    def agent(work: Any, text: str) -> Agent:
        return agent_of([call("go")], text, tools=[lane_tool(work, "go")])

    lane_a = await session.lane("a", agent(to_b, "done a"))
    lane_b = await session.lane("b", agent(to_c, "done b"))
    lane_c = await session.lane("c", agent(to_a, "done c"))

    done = await lane_a.run("a")

    assert done.text == "done a" and done.status == "completed"
    assert await results_of(lane_a) == ["went on: 'done b'"] and await results_of(lane_b) == ["went on: 'done c'"]
    (told,) = await results_of(lane_c)
    assert told.startswith("WouldDeadlock")


async def test_a_circle_through_two_sessions_is_told_too(tmp_path: Any) -> None:
    one, other = Place("memory", tmp_path), Place("memory", tmp_path)
    first, second = await one.open(), await other.open()

    async def to_second(ctx: ToolContext) -> Any:
        return (await lane_b.run("b")).text

    async def to_first(ctx: ToolContext) -> Any:
        return await lane_a.drive()

    lane_a = await first.lane("a", agent_of([call("go")], "done a", tools=[lane_tool(to_second, "go")]))
    lane_b = await second.lane("b", agent_of([call("go")], "done b", tools=[lane_tool(to_first, "go")]))

    assert (await lane_a.run("a")).text == "done a"
    assert (await results_of(lane_b))[0].startswith("WouldDeadlock")
    await one.end()
    await other.end()


async def test_when_the_wait_is_over_the_lane_may_be_driven_again(place: Place) -> None:
    """The check looks at who waits now, not at who once did."""
    session = await place.open()

    async def twice(ctx: ToolContext) -> Any:
        return (await child.run("1")).text + (await child.run("2")).text

    parent = await session.lane("parent", agent_of([call("it")], "done", tools=[lane_tool(twice, "it")]))
    child = await session.lane("child", agent_of("a", "b"))

    await parent.run("hi")

    assert await results_of(parent) == ["went on: 'ab'"]
    assert (await parent.append_custom("note")).seq > 0


async def test_a_task_that_outlives_its_tool_may_drive_the_lane(place: Place) -> None:
    """What a tool left running in the background is not the tool: once the call has ended, nothing waits for it."""
    session = await place.open()
    background: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    async def leaves_one(ctx: ToolContext) -> Any:
        async def later() -> Any:
            with pytest.raises(WouldDeadlock):
                await lane.drive()  # the call is still running
            await over.wait()
            return (await lane.run("again")).text

        background.append(asyncio.ensure_future(later()))
        await asyncio.sleep(0)
        return "left one"

    lane = await session.lane("main", agent_of([call("it")], "done", "done again", tools=[lane_tool(leaves_one, "it")]))
    await lane.run("hi")

    over.set()

    assert await background[0] == "done again"
