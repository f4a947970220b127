"""Plain functions in bounded daemon threads of our own, so that one that never ends does not hold the interpreter."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

THREADS_MAX = 64
IDLE_SECONDS = 10.0


class NoThread(RuntimeError):
    """All threads are taken, by functions that were left behind perhaps."""


class Threads:
    """Runs functions in daemon threads; a thread serves again once its function has ended."""

    def __init__(self, limit: int = THREADS_MAX) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._count = 0

    def run(
        self, loop: asyncio.AbstractEventLoop, context: contextvars.Context, function: Callable[[], Any]
    ) -> asyncio.Future[tuple[Any, BaseException | None]]:
        """Start ``function``; the future gets its value and what it raised. Raises ``NoThread`` at the limit."""
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(function)
            except BaseException as raised:  # handed over as a value, whatever it is
                error = raised
            try:
                loop.call_soon_threadsafe(_deliver, future, (value, error))
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
                return future
            if self._count >= self._limit:
                raise NoThread(f"all {self._limit} threads for plain functions are taken")
            self._count += 1
        inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        inbox.put(work)
        threading.Thread(target=self._serve, args=(inbox,), name="agentlane-tool", daemon=True).start()
        return future

    def close(self) -> None:
        """Let idle threads end; busy ones end with their functions."""
        with self._lock:
            self._limit = 0
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def reopen(self, limit: int = THREADS_MAX) -> None:
        """Take functions again."""
        with self._lock:
            self._limit = limit

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while True:
            try:
                work = inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                work = None
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                    elif not inbox.empty():
                        continue
            if work is None:
                with self._lock:
                    self._count -= 1
                return
            work()
            work = None
            with self._lock:
                if self._limit == 0:
                    self._count -= 1
                    return
                self._idle.append(inbox)


def _deliver(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
