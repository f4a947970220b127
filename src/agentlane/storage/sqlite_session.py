"""One open session of a SQLite file: commits go to the file's writer, queries to its reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from agentlane.clock import Clock
from agentlane.data.search import Search
from agentlane.data.usage import Stats
from agentlane.data.writes import Address, Write
from agentlane.errors import (
    OwnershipLost,
    ReadOnlySession,
    SessionClosed,
    SessionFaulted,
    StoreBusy,
    UnknownSession,
    WrongLoop,
    WrongProcess,
)
from agentlane.storage import schema
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import (
    Commit,
    Compacted,
    Element,
    EntryRow,
    Found,
    LedgerRow,
    Pending,
    Probe,
    SessionInfo,
)
from agentlane.storage.sqlite_commit import CommitRows, Written
from agentlane.storage.sqlite_connect import translated
from agentlane.storage.sqlite_file import Use
from agentlane.storage.sqlite_search import SqliteSearch
from agentlane.storage.sqlite_snapshot import SqliteSnapshot, copy
from agentlane.storage.sqlite_upkeep import vacuum
from agentlane.storage.sqlite_view import View
from agentlane.waiting import finish

T = TypeVar("T")


class SqliteSession:
    """``SessionStorage`` on a SQLite file (S1-S27). Nothing in it grows with the length of the session.

    Stats are summed, and refusals found, where commits are applied, on the thread; nobody can see either before the
    report. A session that is open for reading has the stats that were there when it was opened, and its ``view``.
    """

    def __init__(
        self, use: Use, loaded: reads.Loaded, view: View, *, clock: Clock, read_only: bool, probe: Probe | None
    ) -> None:
        self.on_fault: Callable[[BaseException], None] | None = None
        # For the writer.
        self.id = loaded.info.id
        self.key = loaded.key
        self.loop = asyncio.get_running_loop()
        self.probe = probe
        self.written = Written({}, loaded.epoch, loaded.seq, loaded.stats, loaded.sealed)
        self.own_epoch = loaded.epoch + 1
        self.busy_generation = -1
        self.killed = False
        # Ours.
        self._use = use
        self._view = view
        self._info = loaded.info
        self._clock = clock
        self._read_only = read_only
        self._process = os.getpid()
        self._seq = loaded.seq
        self._generation = 0
        self._stats = loaded.stats
        self._pending: deque[CommitRows] = deque()
        self._fault: BaseException | None = None
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def info(self) -> SessionInfo:
        return self._info

    @property
    def epoch(self) -> int:
        return self.own_epoch - self._read_only

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def findings(self) -> Sequence[str]:
        """What keeps the log of the file from being copied, say; what a crash leaves behind SQLite mends by itself."""
        return tuple(self._use.file.findings)

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        """Hand over one commit (S1-S8). ``StoreBusy`` of the pending commit means that nothing was written."""
        self._check_use()
        self._check_not_read_only()
        if self.probe is not None:
            self._reach(self.probe, f"commit.{name}.before")
        if self._fault is not None:
            raise self._faulted_error(self._fault)
        rows = CommitRows(
            self.key,
            writes,
            first_seq=self._seq + 1,
            at=self._clock.now_ms(),
            publish=publish,
            name=name,
            generation=self._generation,
        )
        self._seq = rows.last_seq
        self._pending.append(rows)
        self._use.writer.submit(self, rows)
        return rows.pending

    def stats(self) -> Stats:
        self._check_use()
        return self._stats

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return await self._read(lambda database: self._view.entries(database, ids))

    async def path(
        self,
        start: str,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        after: str | None = None,
        kinds: Collection[str] | None = None,
        stop_at: str | None = None,
        stop_kind: str | None = None,
        payloads: bool = True,
    ) -> list[EntryRow]:
        def walk(database: sqlite3.Connection) -> list[EntryRow]:
            self._view.check_start(database, start)
            return reads.path(
                database,
                self.key,
                start,
                newest_first=newest_first,
                limit=limit,
                after=after,
                kinds=kinds,
                stop_at=stop_at,
                stop_kind=stop_kind,
                payloads=payloads,
            )

        return await self._read(walk)

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return await self._read(lambda database: self._view.scan(database, after_seq, limit))

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        return await self._read(lambda database: self._view.usage(database, after_seq, limit))

    async def value(self, address: Address) -> bytes | None:
        return await self._read(lambda database: self._view.value(database, address))

    async def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        return await self._read(lambda database: self._view.values(database, namespace, prefix, after, limit))

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        return await self._read(lambda database: self._view.elements(database, address, after, limit, reverse))

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        return await self._read(lambda database: self._view.lists(database, namespace, prefix))

    async def snapshot(self) -> SqliteSnapshot:
        """Rule S25, as of the file's newest commit, also of a session that is open for reading only."""
        copied = await self._read(lambda database: copy(database, self.id))
        if copied is None:
            raise UnknownSession(f"session {self.id!r} was deleted", session_id=self.id)
        return SqliteSnapshot(self._read, copied)

    async def compact(self) -> Compacted:
        """Rule S28, of the whole file: pages that hold nothing are given back, and the log is copied into it.

        The file is written anew (SQLite's ``VACUUM``): commits of all its sessions wait meanwhile, and as much room as
        it has is needed twice for that long.
        """
        self._check_use()
        self._check_not_read_only()
        if self._fault is not None:
            raise self._faulted_error(self._fault)
        writer = self._use.writer
        with translated(self._use.file.path):
            return await writer.upkeep(vacuum)

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        """Rule S26. ``SearchUnavailable`` where SQLite has no FTS5, unless ``scan``."""
        self._check_use()
        searched = SqliteSearch(self._use.file, self._view, write=not self._read_only, check=self._check_use)
        found = await searched.search(search, start=start, scan=scan)
        if self._read_only:
            await self._read(_nothing)
        return found

    async def close(self) -> None:
        """Wait for submitted commits, then give the file up; the last session of the file closes it (S23).

        All of it is under way before the first wait, and is waited for to the end, however often we are cancelled.
        ``WrongLoop`` on another event loop than the one it was opened on, unless that one is closed.
        """
        self._check_process()
        if not self.loop.is_closed():
            if not self._closed or self._closing is not None:
                self._check_loop()
            if self._closing is not None:
                await finish(self._closing)
                return
        if self._closed:
            return
        self._closed = True
        self._closing = asyncio.get_running_loop().create_future()
        try:
            await self._use.release()
        finally:
            self._closing.set_result(None)
            self._closing = None

    def kill(self) -> None:
        """Die as a killed process would (S23). Other sessions of the file live on, but not where a probe raises."""
        if not self._use.held or os.getpid() != self._process:
            return
        self._closed = self.killed = True
        self._use.kill(self)

    # For the writer (``Source``).

    def reported(self, rows: CommitRows) -> None:
        """The medium has, or has not, taken a commit: publish it, then wake who waits."""
        if self.killed or self._use.file.killed or rows.pending.done():
            return
        if isinstance(rows.error, StoreBusy):
            self._busy(rows.error)
            return
        self._pending.popleft()
        if rows.error is not None or rows.commit is None:
            error = rows.error or SessionFaulted(f"session {self.id}: a commit was not reported")
            rows.pending.fail(error)
            if isinstance(error, OwnershipLost):
                self.faulted(error)
            elif isinstance(error, SessionFaulted) and error.__cause__ is not None:
                self.faulted(error.__cause__)
            return
        self._stats = rows.commit.stats
        if rows.publish is not None:
            try:
                rows.publish(rows.commit)
            except Exception as error:
                # The file has the commit, but nobody knows what of it is in memory.
                rows.pending.fail(self._faulted_error(error))
                self.faulted(error)
                return
            except BaseException as error:  # Ctrl-C in the middle of it: nobody is left waiting
                rows.pending.fail(self._faulted_error(error))
                self.faulted(error)
                raise
        if self.probe is not None:
            try:
                self.probe.reached(f"commit.{rows.name}.after")
            except BaseException as error:
                self._use.file.kill()
                self.faulted(error)
                return
        rows.pending.succeed(rows.commit)

    def _busy(self, error: StoreBusy) -> None:
        """Fail all that is pending: the thread writes nothing of this generation any more. What is submitted from here
        on, by those who hear of it too, builds on what is there."""
        self._generation += 1
        failed, self._pending = self._pending, deque()
        for each in failed:
            each.pending.fail(StoreBusy(str(error), **error.details))

    def faulted(self, error: BaseException) -> None:
        """Nothing is written any more: fail what is pending, in order, then tell once (S9). A dead one only tells."""
        if self._fault is not None:
            return
        self._fault = error
        if not self._use.file.killed:
            while self._pending:
                self._pending.popleft().pending.fail(self._faulted_error(error))
        if self.on_fault is not None:
            self.on_fault(error)

    def unheard(self, error: BaseException) -> None:
        """A report could not be delivered: what memory says may not be what the file says."""
        self._fault = self._fault or error

    # Helpers.

    async def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        self._check_use()
        return await self._use.file.read(self._unless_deleted(function) if self._read_only else function)

    def _unless_deleted(self, function: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
        """Beside an owner who deletes the session: what is read is whole if the session is there behind that."""

        def read(database: sqlite3.Connection) -> T:
            try:
                return function(database)
            finally:
                if not database.execute(schema.SELECT_SESSION_ID, (self.key,)).fetchall():
                    raise UnknownSession(f"session {self.id!r} was deleted while it was read", session_id=self.id)

        return read

    def _reach(self, probe: Probe, boundary: str) -> None:
        try:
            probe.reached(boundary)
        except BaseException:
            self._use.file.kill()
            raise

    def _check_use(self) -> None:
        self._check_process()
        if self._closed or self._use.file.killed:
            raise SessionClosed(f"session {self.id} is closed; open it again", session_id=self.id)
        self._check_loop()

    def _check_not_read_only(self) -> None:
        if self._read_only:
            raise ReadOnlySession(
                f"session {self.id} is open for reading only; open it for writing", session_id=self.id
            )

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise WrongLoop(
                f"session {self.id} was opened on another event loop; open it on this one", session_id=self.id
            )

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise WrongProcess(
                f"session {self.id} was opened by process {self._process}, and this is a forked child of it; open it "
                "after forking, in the process that uses it",
                session_id=self.id,
            )

    def _faulted_error(self, cause: BaseException) -> SessionFaulted:
        error = SessionFaulted(
            f"session {self.id}: a write failed ({cause}), so what is in memory may not be in the file; open it again",
            session_id=self.id,
        )
        error.__cause__ = cause
        return error


def _nothing(database: sqlite3.Connection) -> None:
    """Read to learn whether the session is there."""
