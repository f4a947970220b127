"""Plain functions in bounded daemon threads of our own, so that one that never ends does not hold the interpreter."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

THREADS_MAX = 64
IDLE_SECONDS = 10.0


_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], Callable[[], None]] | None]"


class NoThread(RuntimeError):
    """All threads are held by functions that were left behind."""


class Threads:
    """Runs functions in daemon threads; a thread serves again once its function has ended.

    Who wants one waits for ``turn`` first, in the order of asking, on the one event loop that uses them.
    """

    def __init__(self, limit: int = THREADS_MAX) -> None:
        self._turns = limit
        self._taken = 0
        self._left_behind = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []
        self._count = 0

    async def turn(self) -> None:
        """Wait for a thread, for one ``run`` that must follow at once.

        ``NoThread`` where each is held by a function that was left behind: none may ever come free. Cancelled, it has
        taken none.
        """
        if self._taken < self._turns:
            self._taken += 1
            return
        self._check_some_may_end()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._end_turn()  # it was given at the same moment
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def left_behind(self, future: asyncio.Future[tuple[Any, BaseException | None]]) -> None:
        """Nobody waits for this function any more; its thread is held until it ends."""
        if future.done():
            return
        self._left_behind += 1
        future.add_done_callback(self._came_back)
        try:
            self._check_some_may_end()
        except NoThread as error:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(NoThread(str(error)))

    def run(
        self,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        function: Callable[[], Any],
        begins: Callable[[], bool],
    ) -> asyncio.Future[tuple[Any, BaseException | None]]:
        """Start ``function``; the future gets its value and what it raised.

        The thread may take its time to begin: it asks ``begins`` right before, and does nothing if that is False.
        """
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> Callable[[], None]:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(function) if begins() else None
            except BaseException as raised:  # handed over as a value, whatever it is
                error = raised

            def tell() -> None:
                try:
                    loop.call_soon_threadsafe(self._deliver, future, (value, error))
                except RuntimeError:
                    pass  # the loop is closed: nobody waits any more

            return tell

        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
                return future
            self._count += 1  # within the limit, by the turns
        inbox: _Inbox = queue.SimpleQueue()
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

    def _serve(self, inbox: _Inbox) -> None:
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
            tell = work()
            work = None
            with self._lock:
                ending = self._limit == 0
                if ending:
                    self._count -= 1
                else:
                    self._idle.append(inbox)
            tell()  # once this thread can be taken again
            del tell
            if ending:
                return

    # On the loop.

    def _deliver(self, future: asyncio.Future[Any], value: Any) -> None:
        self._end_turn()
        if not future.done():
            future.set_result(value)

    def _end_turn(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._taken -= 1

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._left_behind -= 1

    def _check_some_may_end(self) -> None:
        if self._left_behind >= self._turns:
            raise NoThread(f"all {self._turns} threads for plain functions are held by functions that were left behind")
