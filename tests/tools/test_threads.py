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


def run(threads: Threads, function: Callable[[], Any]) -> asyncio.Future[tuple[Any, BaseException | None]]:
    return threads.run(asyncio.get_running_loop(), contextvars.copy_context(), function)


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

    value, _ = await threads.run(asyncio.get_running_loop(), context, VARIABLE.get)
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


async def test_there_are_never_more_threads_than_the_limit() -> None:
    threads = Threads(limit=2)
    go_on = threading.Event()
    blocked = [run(threads, go_on.wait) for _ in range(2)]

    with pytest.raises(NoThread, match="all 2 threads for plain functions are taken"):
        run(threads, lambda: None)

    go_on.set()
    assert [await each for each in blocked] == [(True, None)] * 2
    threads.close()


async def test_an_abandoned_function_ends_silently_and_its_thread_serves_again() -> None:
    threads = Threads(limit=1)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        go_on.wait()
        return "late"

    abandoned = run(threads, slow)
    started.wait()
    abandoned.cancel()
    go_on.set()

    # Cancelling freed nobody: only the end of the function frees the thread.
    while True:
        try:
            value, _ = await run(threads, lambda: "next")
            break
        except NoThread:
            await asyncio.sleep(0)
    assert value == "next" and abandoned.cancelled()
    threads.close()


def test_an_answer_after_the_loop_is_closed_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    threads = Threads()
    go_on = threading.Event()
    complaints: list[Any] = []
    before = threading.excepthook
    threading.excepthook = complaints.append
    try:

        async def leave() -> None:
            run(threads, go_on.wait)
            run(threads, lambda: None)

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


async def test_closed_it_takes_nothing_until_reopened_and_its_idle_threads_end() -> None:
    threads = Threads()
    thread, _ = await run(threads, threading.current_thread)
    threads.close()
    thread.join(10)

    assert not thread.is_alive()
    with pytest.raises(NoThread):
        run(threads, lambda: None)
    threads.reopen()
    assert (await run(threads, lambda: 1)) == (1, None)
    threads.close()
