"""A connection on a thread that never holds up exit: the one place that relies on how aiosqlite makes its threads.

aiosqlite's own ways to use a connection hand a future of the caller's loop to the thread, which dies noisily when that
loop has ended, and keep the interpreter from exiting when ``close`` was forgotten. So its connection is used for what
it is good at, a thread with a queue, and four of its private names are relied on; a test holds them to the version
that is pinned.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL, Connection

from agentlane.errors import SessionClosed
from agentlane.storage.hop import Result

T = TypeVar("T")


class DatabaseThread:
    """A daemon thread that runs functions one by one, in the order they were posted, until it is told to stop."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Start the thread. ``connect`` runs on it before anything else; how that ended shows at the first ``call``."""
        connection: Connection = aiosqlite.connect(":memory:")  # never opened: only its thread and queue are used
        self._thread: threading.Thread = connection._thread
        self._thread.daemon = True
        self._queue: Any = connection._tx
        self._lock = threading.Lock()  # nothing is put behind the end
        self._stopping = False
        self._ended = False
        self._at_end: list[Callable[[], None]] = []
        self.database: sqlite3.Connection | None = None
        self.error: BaseException | None = None
        """Why there is no connection."""
        self._thread.start()
        self.post(lambda: self._open(connect))

    @property
    def current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, function: Callable[[], None]) -> bool:
        """Run ``function`` after all that was posted before; it must not raise. Never waits; False: was stopped."""
        with self._lock:
            if not self._stopping:
                self._queue.put_nowait((None, function))
            return not self._stopping

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``function`` with the connection and return what it returns; raises why there is no connection.

        Cancelling the caller does not take the call back. ``SessionClosed`` after ``stop``.
        """
        result = Result[T]()
        if not self.post(_Call(self, function, result)):
            raise SessionClosed("the database connection is closed")
        return await result.future

    def stop(self, *, last: Callable[[], None] | None = None, then: Callable[[], None] | None = None) -> None:
        """End the thread after all that was posted before: ``last``, the connection is closed, ``then``.

        Neither may raise. Of a second call only ``then`` counts: whoever waits for the end is told, whoever began it;
        when the thread has ended, at once, on the caller's thread.
        """

        def end() -> object:
            if last is not None:
                last()
            self.close_connection()
            with self._lock:
                self._ended = True
            for each in self._at_end:
                each()
            return _STOP_RUNNING_SENTINEL

        with self._lock:
            if then is not None and not self._ended:
                self._at_end.append(then)
                then = None
            if not self._stopping:
                self._stopping = True
                self._queue.put_nowait((None, end))
        if then is not None:
            then()

    def interrupt(self) -> None:
        """From any thread: the statement that runs now fails."""
        database = self.database
        if database is not None:
            try:
                database.interrupt()
            except sqlite3.Error:
                pass  # closed meanwhile

    def close_connection(self) -> None:
        """Close the connection, undoing an open transaction. On this thread only."""
        database, self.database = self.database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:
                self.error = error

    def join(self, timeout_s: float | None = None) -> None:
        """Wait, without the event loop, until a stopped thread has ended; returns at once on the thread itself."""
        if self._stopping and not self.current:
            self._thread.join(timeout_s)

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        try:
            self.database = connect()
        except BaseException as error:
            self.error = error


class _Call(Generic[T]):
    """One run of a function. The thread's loop keeps the last one while it waits for the next: it lets go of who waits
    for it, so that a caller that is thrown away with its event loop is."""

    __slots__ = ("_todo",)

    def __init__(self, thread: DatabaseThread, function: Callable[[sqlite3.Connection], T], result: Result[T]) -> None:
        self._todo: tuple[DatabaseThread, Callable[[sqlite3.Connection], T], Result[T]] | None = (
            thread,
            function,
            result,
        )

    def __call__(self) -> None:
        todo, self._todo = self._todo, None
        assert todo is not None
        thread, function, result = todo
        try:
            if thread.database is None:
                raise thread.error or SessionClosed("the database connection is closed")
            result.succeed(function(thread.database))
        except BaseException as error:
            result.fail(error)
