"""A connection for a look at a SQLite file that changes nothing: not the file, not its log, not what stands beside it.

SQLite's readers make a log and an index of it where there is none. So a file without a log, which nobody has open, is
read as one that does not change, and read again should somebody have opened it meanwhile; beside a log, SQLite marks in
its index that somebody reads, as it does for every reader, and where a log has no index (somebody copied two of the
three files) it makes one. One that is only read (``readonly_shm``) would be read-only for the whole process, and for an
owner who opens the file there meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage.hop import Result
from agentlane.storage.paths import exists
from agentlane.storage.sqlite_connect import STATEMENTS_MAX, check_kind, has_log, uri_of
from agentlane.storage.sqlite_file import JOIN_S, Looking
from agentlane.storage.sqlite_thread import DatabaseThread
from agentlane.waiting import finish

T = TypeVar("T")

MOVES_MAX = 8
"""How often a file that nobody seems to use may have changed before it is read as one that somebody uses."""
_STILL = "mode=ro&immutable=1"
_ORDINARY = "mode=ro"


class Look:
    """The connection of one look, and its thread. Texts come out whatever bytes they are of."""

    def __init__(self, path: str, *, busy_timeout_ms: int) -> None:
        """Nothing is opened yet. ``OSError``."""
        self.path = path
        self.refused: CorruptSession | UnsupportedFormat | None = None
        """What is wrong with the file's first bytes."""
        self._timeout_s = busy_timeout_ms / 1000
        self._marked = Looking(path, self._check_kind)
        self._thread: DatabaseThread | None = None
        self._still: tuple[int, int, int] | None = None  # what the file was, where it is taken not to change
        self._moves = 0  # how often it has changed all the same

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query. Once more, if the file was taken to be nobody's and somebody has opened it meanwhile."""
        while True:
            if self._thread is None:
                self._thread = DatabaseThread(self._connect)
            try:
                found = await self._thread.call(function)
            except sqlite3.Error:
                if not self._moved():
                    raise
            else:
                if not self._moved():
                    return found
            self._moves += 1
            self._thread.stop()
            self._thread = None

    def loading(self) -> frozenset[int]:
        """Numbers of sessions that this process is loading into the file."""
        return self._marked.loading()

    async def end(self) -> None:
        """Let go of the file, and wait for that to the end even when cancelled; a query that runs is broken off."""
        thread, done = self._thread, Result[None]()
        self.let_go(then=lambda: done.succeed(None))
        try:
            await finish(done.future)
        finally:
            if thread is not None:
                thread.join(JOIN_S)

    def let_go(self, *, then: Callable[[], None] = lambda: None) -> None:
        """Let go of the file without waiting for it; ``then`` is called, on any thread, when it is done."""
        thread, self._thread = self._thread, None

        def ended() -> None:
            self._marked.end()
            then()

        if thread is None:
            ended()
        else:
            thread.interrupt()
            thread.stop(then=ended)

    def _moved(self) -> bool:
        return self._still is not None and (self._still != _state(self.path) or _in_use(self.path))

    def _check_kind(self) -> None:
        try:
            check_kind(self.path)
        except (CorruptSession, UnsupportedFormat) as error:
            self.refused = error

    def _connect(self) -> sqlite3.Connection:
        self._still = None
        if self._moves < MOVES_MAX and not _in_use(self.path):
            self._still = _state(self.path)
            return self._connected(_STILL)
        return self._connected(_ORDINARY)

    def _connected(self, mode: str) -> sqlite3.Connection:
        database = sqlite3.connect(
            uri_of(self.path, mode),
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,
            cached_statements=STATEMENTS_MAX,
        )
        database.text_factory = _text
        return database


def _in_use(path: str) -> bool:
    """Whether there is a log with something in it, or a log and its index, which somebody may be using."""
    indexed = exists(path + "-wal") and exists(path + "-shm")
    return has_log(path) or indexed or exists(path + "-journal")


def _state(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
