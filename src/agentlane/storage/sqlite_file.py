"""One SQLite file as this process has it open: found by device and inode, shared by all stores and sessions on it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from agentlane.errors import SessionClosed, SessionOwned, StoreOwned, WrongProcess
from agentlane.storage.contract import Durability
from agentlane.storage.hop import Result, tell
from agentlane.storage.lock import OwnerLock
from agentlane.storage.sqlite_connect import (
    SYNCHRONOUS,
    check_kind,
    check_links,
    check_place,
    connect_reader,
    connect_writer,
    has_log,
    translated,
)
from agentlane.storage.sqlite_thread import DatabaseThread
from agentlane.storage.sqlite_writer import Source, Writer
from agentlane.waiting import finish

T = TypeVar("T")
Inode: TypeAlias = tuple[int, int]

_log = logging.getLogger("agentlane")

JOIN_S = 10.0
"""How long ``kill`` and ``close`` wait for a thread that was told to end."""


class Options(NamedTuple):
    """How a store wants its file opened; the first one to open it for writing has its way, but for ``durability``."""

    durability: Durability
    busy_timeout_ms: int
    insist: bool


class SqliteFile:
    """The connections to one file and who uses them. ``attach`` makes and finds them, ``_guard`` guards them."""

    def __init__(self, path: str, inode: Inode, options: Options) -> None:
        self.path = path
        self.inode = inode
        self.writer: Writer | None = None
        self.sources: dict[str, Source | None] = {}
        """Sessions that are open for writing, or being made or removed (None), by id."""
        self.findings: list[str] = []
        """What the writer noticed and nobody else was told."""
        self.loading: set[int] = set()
        """Numbers of sessions that are being loaded."""
        self.users = 0
        self.writers = 0
        self.killed = False
        self.closing: list[Result[None]] | None = None
        """While connections are being closed: who waits for that."""
        self._options = options
        self._reader: DatabaseThread | None = None
        self._ending: list[DatabaseThread] = []
        self._ends = 0
        """How many releases are closing connections."""

    def own(self, options: Options) -> None:
        """Have a writer; the first call takes the lock and connects. ``StoreOwned``, ``PermissionError``."""
        if self.writer is None:
            if not os.access(self.path, os.W_OK):
                raise PermissionError(f"{self.path} may not be written; open it with read_only=True")
            lock = OwnerLock.acquire(Path(self.path + ".lock"), error=StoreOwned, what=self.path)
            self._options = options
            self.writer = Writer(
                self.path,
                self.inode,
                lock,
                lambda: connect_writer(self.path, self.inode, **options._asdict(), found=self.findings.append),
                self._keep_log,
                insist=options.insist,
                findings=self.findings,
                faulted=self._faulted,
                died=self._died,
            )
        elif options.durability == "disk" and self._options.durability == "process":
            # The strictest of those who share the file holds for all of them.
            self._options = options
            self.writer.thread.post(self._be_strict)

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on the connection that only reads: it does not wait behind commits and their syncs."""
        with _guard:
            if self.killed:
                raise SessionClosed(f"{self.path} is closed")
            if self._reader is None:
                timeout_ms = self._options.busy_timeout_ms
                self._reader = DatabaseThread(lambda: connect_reader(self.path, self.inode, busy_timeout_ms=timeout_ms))
            reader = self._reader
        with translated(self.path):
            return await reader.call(function)

    def kill(self) -> None:
        """Let everything go as the death of the process would, for all who use the file. On any thread.

        Connections are closed when this returns, but for the reader's when called on the writer's thread.
        """
        with _guard:
            if self.killed:
                return
            self.killed = True
            _detach(self)
            writer, reader = self.writer, self._reader
        if reader is not None:
            reader.interrupt()
            reader.stop(then=self._gone)
        if writer is not None:
            writer.kill()
            if not writer.thread.current:
                writer.thread.join(JOIN_S)
        if reader is not None and (writer is None or not writer.thread.current):
            reader.join(JOIN_S)
        if reader is None:
            self._gone()

    def kill_one(self, source: Source) -> None:
        """Let one session go so, beside others that use the file: it can be opened again at once."""
        with _guard:
            writer = self.writer
        if writer is not None:
            writer.kill_one(source)
        else:
            source.killed = True
        with _guard:
            if self.sources.get(source.id) is source:
                del self.sources[source.id]

    def release(self, session_id: str | None, *, write: bool, done: Result[None] | None) -> None:
        """One user less; the last one to write closes the writer, the last one of all everything; then ``done``.

        Everything that it takes is under way when this returns, whether or not anyone waits.
        """
        with _guard:
            self.users -= 1
            self.writers -= write
            writer = self.writer
            last = not self.users
            stays = self.killed or (not last and (writer is None or self.writers > 0 or not write))
            reader = self._reader if last else None
            if not stays:
                # The writer may be on its way to its end still when the last reader goes: both are told when both are.
                self.closing = [*(self.closing or []), *([] if done is None else [done])]
                self._ending = self._ending if self._ends else []
                self._ending += [*([writer.thread] if writer else []), *([reader] if reader else [])]
                self._ends += 1
                self.writer = None
                if last:
                    self._reader = None
        if stays:
            # Behind the commits that were submitted before; a thread that was stopped has none.
            if writer is None or not writer.thread.post(lambda: self._let_go(session_id, done)):
                self._let_go(session_id, done)
            return

        def close_writer() -> None:
            if writer is None:
                self._ended(session_id)
            else:
                writer.finish(lambda: self._ended(session_id))

        # The reader goes first, so that the writer is the one that leaves no log behind.
        if reader is None:
            close_writer()
        else:
            reader.stop(then=close_writer)

    def join(self) -> None:
        """Wait, without the event loop, for threads that have reported their end."""
        for each in self._ending:
            each.join(JOIN_S)

    # On threads.

    def _let_go(self, session_id: str | None, done: Result[None] | None) -> None:
        with _guard:
            self.sources.pop(session_id or "", None)
        if done is not None:
            done.succeed(None)

    def _ended(self, session_id: str | None) -> None:
        waiting: list[Result[None]] = []
        with _guard:
            self.sources.pop(session_id or "", None)
            self._ends -= 1
            if not self._ends:
                waiting, self.closing = self.closing or [], None
                if not self.users:
                    _detach(self)
                    _open.discard(self)
        for each in waiting:
            each.succeed(None)

    def _gone(self) -> None:
        with _guard:
            _open.discard(self)

    def _keep_log(self) -> sqlite3.Connection | None:
        if not has_log(self.path):
            return None
        return connect_reader(self.path, self.inode, busy_timeout_ms=self._options.busy_timeout_ms)

    def _be_strict(self) -> None:
        database = self.writer.thread.database if self.writer is not None else None
        if database is not None:
            database.execute(f"PRAGMA synchronous = {SYNCHRONOUS['disk']}")

    def _faulted(self, error: BaseException) -> None:
        """The writer's connection is closed and the lock given up: the file can be opened anew while we are here."""
        with _guard:
            _detach(self)
            sources = [each for each in self.sources.values() if each is not None]
        for source in sources:
            if not tell(source.loop, source.faulted, error):
                source.unheard(error)

    def _died(self, error: BaseException, source: Source) -> None:
        self.kill()
        tell(source.loop, source.faulted, error)


class Use:
    """One user's hold on a file. ``release`` ends it."""

    def __init__(self, file: SqliteFile, session_id: str | None, *, write: bool) -> None:
        self.file = file
        self._session_id = session_id
        self._write = write
        self.held = True

    @property
    def writer(self) -> Writer:
        """The writer of a file that is used for writing."""
        if self.file.writer is None:
            raise SessionClosed(f"{self.file.path} is closed")
        return self.file.writer

    def kill(self, source: Source) -> None:
        """Give the hold of a session up as its death would: alone on the file it takes the file along."""
        if self.file.users == 1:
            self.file.kill()
        else:
            self.file.kill_one(source)
        self._session_id = None  # it may have a new owner by the time the rest is let go
        self.let_go()

    def let_go(self) -> asyncio.Future[None] | None:
        """Give the hold up without waiting for what that takes; a second call does nothing."""
        if not self.held:
            return None
        self.held = False
        try:
            done = Result[None]()
        except RuntimeError:  # no loop runs: we are being thrown away
            done = None
        self.file.release(self._session_id, write=self._write, done=done)
        return None if done is None else done.future

    async def __aenter__(self) -> Use:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, GeneratorExit):  # thrown away while it waited: nothing can be awaited any more
            self.let_go()
        else:
            await self.release()

    async def release(self) -> None:
        """Give the hold up, and wait for it to the end even when cancelled."""
        done = self.let_go()
        if done is not None:
            try:
                await finish(done)
            finally:
                self.file.join()


class Looking:
    """Marks a file that a connection of its own looks at: until it ends nothing but SQLite opens the file here."""

    def __init__(self, path: str, check: Callable[[], None]) -> None:
        """``check`` may open the file by itself; it is only called where nobody here has a connection to it."""
        with _guard:
            status = os.stat(path)
            inode = (status.st_dev, status.st_ino)
            if all(each.inode != inode for each in _open):
                check()
            self._mark = SqliteFile(path, inode, Options("process", 0, insist=True))
            _open.add(self._mark)

    def loading(self) -> frozenset[int]:
        """Numbers of sessions that this process is loading into the file."""
        with _guard:
            file = _files.get(self._mark.inode)
            return frozenset(() if file is None else file.loading)

    def end(self) -> None:
        """The connection is closed. On any thread."""
        with _guard:
            _open.discard(self._mark)


async def attach(path: str, options: Options, *, write: bool, session_id: str | None = None) -> Use:
    """Use the file at ``path``, which exists; with ``session_id`` as the one owner of that session.

    ``SessionOwned``, ``StoreOwned``; ``WrongProcess`` if the file was open when this process was forked;
    ``UnsupportedFormat`` and ``CorruptSession`` for what it is; ``OSError``.
    An owner in this process whose event loop is closed was forgotten: nobody can use or close it, and it is replaced.
    """
    asked = False
    while True:
        closed: Result[None] | None = None
        with _guard:
            status = os.stat(path)
            inode = (status.st_dev, status.st_ino)
            if not options.insist:
                check_links(path, status)
            if any(each.inode == inode for each in _abandoned):
                raise WrongProcess(
                    f"{path} was open when this process was forked, and SQLite cannot open it in the child then: fork "
                    "before it is opened, or start the process afresh (multiprocessing: spawn or forkserver)",
                    path=path,
                )
            file = _files.get(inode)
            owner = None if file is None or not write or asked else file.sources.get(session_id or "")
            if owner is None or not owner.loop.is_closed():
                if file is None or file.closing is None:
                    return _attach(file, path, inode, options, write=write, session_id=session_id)
                closed = Result[None]()
                file.closing.append(closed)
        if closed is not None:
            await closed.future
        elif owner is not None:
            asked = True  # once: one that has let go already is about to be gone
            _log.warning("session %r was not closed before its event loop was; it is taken from that owner", owner.id)
            owner.kill()


def forget_after_fork() -> None:
    """In a forked child: nothing here is the child's. Connections are kept, never closed: they are the parent's.

    Nor can it ever have such a file open for itself. SQLite knows an open file by its inode, for the whole process, and
    would give the child what it knew for the parent: locks that only the parent has, and an index of a log that is
    removed when the parent closes.
    """
    global _guard
    _guard = threading.Lock()
    _abandoned.extend(_open)
    _open.clear()
    _files.clear()


def _attach(
    file: SqliteFile | None, path: str, inode: Inode, options: Options, *, write: bool, session_id: str | None
) -> Use:
    if file is None:
        if not options.insist:
            check_place(path)
        # A connection that outlived a fault knows the file already; opening it by ourselves would drop its locks.
        if all(each.inode != inode for each in _open):
            check_kind(path)
        file = SqliteFile(path, inode, options)
    if write and session_id in file.sources:
        raise SessionOwned(
            f"session {session_id} in {file.path} is open for writing in this process: close it there, or open "
            "it read-only",
            session_id=session_id,
        )
    if write:
        file.own(options)
        file.writers += 1
        if session_id is not None:
            file.sources[session_id] = None
    file.users += 1
    _files[inode] = file
    _open.add(file)
    return Use(file, session_id, write=write)


def _detach(file: SqliteFile) -> None:
    if _files.get(file.inode) is file:
        del _files[file.inode]


_guard = threading.Lock()
_files: dict[Inode, SqliteFile] = {}
"""Files that may be used; one whose writer has failed or was killed is no longer among them."""
_open: set[SqliteFile] = set()
"""Files with connections."""
_abandoned: list[SqliteFile] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_after_fork)
