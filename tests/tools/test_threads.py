"""Claim: plain functions run in few daemon threads of our own, whose ends never disturb anybody."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentlane.driver.threads import NoThread, Threads

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def start(threads: Threads, function: Callable[[], Any]) -> asyncio.Future[tuple[Any, BaseException | None]]:
    """Wait for a thread, then start ``function`` in it."""
    await threads.turn()
    return threads.run(asyncio.get_running_loop(), contextvars.copy_context(), function, lambda: True)


async def run(threads: Threads, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    return await (await start(threads, function))


async def test_a_function_runs_in_a_daemon_thread_and_its_value_is_handed_over() -> None:
    threads = Threads()

    (thread, error) = await run(threads, threading.current_thread)

    assert error is None and thread is not threading.main_thread()
    assert thread.daemon and thread.name == "agentlane-tool"
    threads.close()


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_whatever_it_raises_is_handed_over_as_a_value(raised: BaseException) -> None:
    threads = Threads()

    def fail() -> None:
        raise raised

    value, error = await run(threads, fail)

    assert value is None and error is raised
    assert (await run(threads, lambda: "next")) == ("next", None), "the thread serves on"
    threads.close()


async def test_it_runs_in_the_context_it_is_given() -> None:
    threads = Threads()
    context = contextvars.copy_context()
    context.run(VARIABLE.set, "given")

    await threads.turn()
    value, _ = await threads.run(asyncio.get_running_loop(), context, VARIABLE.get, lambda: True)
    other, _ = await run(threads, VARIABLE.get)

    assert (value, other) == ("given", "unset")
    threads.close()


async def test_a_thread_whose_function_has_ended_serves_again() -> None:
    threads = Threads()
    first, _ = await run(threads, threading.get_ident)

    # The thread is idle a moment after its result is delivered: until then another one is started.
    seen = {(await run(threads, threading.get_ident))[0] for _ in range(50)}

    assert len(seen | {first}) < 10
    threads.close()


async def test_there_are_never_more_threads_than_the_limit_and_the_first_to_ask_is_served_first() -> None:
    threads = Threads(limit=2)
    go_on = threading.Event()
    blocked = [await start(threads, go_on.wait) for _ in range(2)]
    served: list[int] = []

    async def serve(number: int) -> None:
        await run(threads, lambda: served.append(number))

    waiting = [asyncio.ensure_future(serve(number)) for number in range(20)]
    gone = [asyncio.ensure_future(threads.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    await asyncio.sleep(0)
    assert served == [] and all(each.cancelled() for each in gone) and not any(each.done() for each in waiting)

    go_on.set()
    assert [await each for each in blocked] == [(True, None)] * 2
    await asyncio.gather(*waiting)
    assert sorted(served) == list(range(20)) and served[0] in (0, 1)
    threads.close()


async def test_a_turn_that_is_given_to_who_was_cancelled_at_that_moment_goes_on_to_the_next() -> None:
    threads = Threads(limit=1)
    await threads.turn()
    first, second = asyncio.ensure_future(threads.turn()), asyncio.ensure_future(threads.turn())
    await asyncio.sleep(0)

    threads._end_turn()  # as the end of a function does
    first.cancel()

    async with asyncio.timeout(10):
        await second
    assert first.cancelled()


async def test_where_every_thread_is_left_behind_nobody_waits_until_one_comes_back() -> None:
    threads = Threads(limit=1)
    go_on = threading.Event()
    abandoned = await start(threads, go_on.wait)
    waiting = asyncio.ensure_future(threads.turn())
    await asyncio.sleep(0)

    threads.left_behind(abandoned)

    for each in (waiting, threads.turn()):
        with pytest.raises(NoThread, match="all 1 threads for plain functions are held by functions that were left"):
            await each
    go_on.set()
    assert await abandoned == (True, None)
    assert await run(threads, lambda: "next") == ("next", None)
    threads.left_behind(abandoned)  # that has ended: nothing is held
    assert await run(threads, lambda: "more") == ("more", None)
    threads.close()


def test_an_answer_after_the_loop_is_closed_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    threads = Threads()
    go_on = threading.Event()
    complaints: list[Any] = []
    before = threading.excepthook
    threading.excepthook = complaints.append
    try:

        async def leave() -> None:
            await start(threads, go_on.wait)
            await start(threads, lambda: None)

        asyncio.run(leave())
        serving = [each for each in threading.enumerate() if each.name == "agentlane-tool"]
        go_on.set()
        threads.close()
        for each in serving:
            each.join(10)
            assert not each.is_alive()
    finally:
        threading.excepthook = before

    assert complaints == [] and list(recwarn) == []


async def test_closed_its_threads_end_and_reopened_they_serve_again() -> None:
    threads = Threads()
    thread, _ = await run(threads, threading.current_thread)
    threads.close()
    thread.join(10)

    assert not thread.is_alive()
    threads.reopen()
    first, second = [(await run(threads, threading.current_thread))[0] for _ in range(2)]
    assert first.is_alive() and second is first
    threads.close()
