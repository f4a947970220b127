"""The writer of one SQLite file: commits that arrive together share one transaction, run in one hop on its thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from agentlane.errors import AgentLaneError, InvalidWrite, OwnershipLost, SessionClosed, StoreBusy
from agentlane.storage.contract import Probe
from agentlane.storage.hop import tell
from agentlane.storage.lock import OwnerLock
from agentlane.storage.sqlite_commit import CommitRows, Written, check_epoch, seal
from agentlane.storage.sqlite_errors import BUSY, code_of, faulted, refusal_of, roll_back
from agentlane.storage.sqlite_log import Log
from agentlane.storage.sqlite_place import LogLost, Place
from agentlane.storage.sqlite_thread import DatabaseThread

T = TypeVar("T")

COMMITS_MAX = 1000
"""How many commits share one transaction at most."""
IDLE_S = 0.1


class Source(Protocol):
    """An open session, as its file's writer sees it. ``written`` is the thread's; the methods run on ``loop``."""

    id: str
    key: int
    loop: asyncio.AbstractEventLoop
    probe: Probe | None
    written: Written
    own_epoch: int
    busy_generation: int
    """The thread's: commits of this generation and older ones fail with ``StoreBusy``; -1 at first."""
    killed: bool
    """Nothing of it is written or reported any more."""

    def reported(self, rows: CommitRows) -> None:
        """The file has ``rows.commit``, or has not, for ``rows.error``."""

    def faulted(self, error: BaseException) -> None:
        """Nothing is written any more."""

    def unheard(self, error: BaseException) -> None:
        """From the thread: a report was lost, because ``loop`` is closed."""

    def kill(self) -> None:
        """From any loop: let go of the file."""


Job: TypeAlias = tuple[Source, CommitRows]


class Died(BaseException):
    """A probe ended the process here, at a boundary on the thread; the cause is what it raised."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class Writer:
    """The one connection that writes and checkpoints the file, on its thread, under the file's lock."""

    def __init__(
        self,
        path: str,
        inode: tuple[int, int],
        lock: OwnerLock,
        connect: Callable[[], sqlite3.Connection],
        keep_log: Callable[[], sqlite3.Connection | None],
        *,
        insist: bool,
        findings: list[str],
        faulted: Callable[[BaseException], None],
        died: Callable[[BaseException, Source], None],
    ) -> None:
        """``faulted`` and ``died`` are called on the thread when the connection is gone.

        ``keep_log`` makes a connection which, being open longer, keeps ours from copying the log when it is closed.
        ``insist``: go on with a file that has several names. ``findings`` takes what people should know.
        """
        self._place = Place(path, inode, lock, insist=insist)
        self.thread = DatabaseThread(lambda: self._connected(connect()))
        self.lock = lock
        self.used = False
        """Whether a session was opened or anything written. Only then is the log copied at the end: who was refused
        leaves every byte as it was (S24)."""
        self.transactions = 0
        """How many transactions were committed."""
        self._keep_log = keep_log
        self._path = path
        self._log = Log(path, findings)
        self._faulted = faulted
        self._died = died
        self._queue: deque[Job] = deque()
        self._posted = False
        self._gate = threading.Lock()  # held over COMMIT, so that `kill` knows which commits there are
        self._killed = False
        self._error: BaseException | None = None
        self._begun = False  # whether anything was committed, or tried
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, source: Source, rows: CommitRows) -> None:
        """Hand over one commit; it is reported to ``source``. Never waits."""
        self._queue.append((source, rows))
        # The thread lowers the flag before it looks: a commit is seen by it, or posts again.
        if not self._posted:
            self._posted = True
            self.thread.post(self._run)

    async def maintain(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``change`` of data that is derived as a short transaction of its own, between commits.

        Raises ``sqlite3.Error`` where nothing of it was written: at once where another program holds the write lock.
        Only an I/O error counts as a failure of the medium.
        """

        def transact(database: sqlite3.Connection) -> T:
            try:
                timeout_ms = database.execute("PRAGMA busy_timeout").fetchall()[0][0]
                database.execute("PRAGMA busy_timeout = 0").fetchall()  # commits wait behind us
                try:
                    database.execute("BEGIN IMMEDIATE")
                finally:
                    database.execute(f"PRAGMA busy_timeout = {timeout_ms}").fetchall()
                before = database.total_changes
                changed = change(database)
                self.check_owner(database)
                self._log.pages += database.total_changes - before  # about
                with self._gate:
                    if self._killed:
                        raise SessionClosed(f"{self._path} is closed")
                    database.execute("COMMIT")
            except BaseException as error:
                roll_back(database)
                if code_of(error) == sqlite3.SQLITE_IOERR:
                    self._give_up([], error)
                raise
            self.used = True
            return changed

        return await self.thread.call(transact)

    async def upkeep(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``function``, which makes transactions of its own that change nothing, between commits."""

        def keep_up(database: sqlite3.Connection) -> T:
            self.check_owner(database)
            return function(database)

        return await self.thread.call(keep_up)

    def finish(self, ended: Callable[[], None]) -> None:
        """After all that was submitted: copy the log into the file, close, give the lock up, call ``ended``."""
        self._cancel_timer()
        kept: sqlite3.Connection | None = None

        def last() -> None:
            nonlocal kept
            if self.used:
                self._copy_at_end()
            elif self.thread.database is not None:
                try:
                    kept = self._keep_log()
                except (AgentLaneError, OSError):
                    pass  # the log is copied: nothing is lost by that

        def then() -> None:
            if kept is not None:
                kept.close()
            self.lock.release()
            ended()

        self.thread.stop(last=last, then=then)

    def kill(self) -> None:
        """Let go at once: what is not committed when this returns never will be. On any thread."""
        if self.thread.current:
            self._killed = True
            self.thread.close_connection()
        else:
            self._cancel_timer()
            with self._gate:
                self._killed = True
        self.lock.release()
        self.thread.stop()

    def kill_one(self, source: Source) -> None:
        """The same for the commits of one session; those of others go on."""
        if self.thread.current:
            source.killed = True
        else:
            with self._gate:
                source.killed = True

    # On the thread.

    def _run(self) -> None:
        self._posted = False
        jobs = [job for job in self._take() if job[1].generation > job[0].busy_generation]
        if self._queue:
            self._posted = True
            self.thread.post(self._run)
        if not jobs or self._killed:
            return
        if self.thread.database is None:
            self._fail(jobs, self._error or self.thread.error or sqlite3.ProgrammingError("the connection is closed"))
            return
        try:
            self._commit(self.thread.database, jobs)
        except Died as death:
            self.kill()
            self._died(death.__cause__ or death, death.source)
        except StoreBusy as busy:
            # Those that were submitted meanwhile may build on these, as may those that are submitted from now on until
            # the loop has heard of it: a session that hears fails all it has pending and begins a new generation.
            while late := self._take():
                jobs += late
            for source, rows in jobs:
                rows.error = StoreBusy(str(busy), **busy.details)
                source.busy_generation = rows.generation
            self._report(jobs)
        except Exception as error:
            self._give_up(jobs, error)
        else:
            self._report(jobs)

    def _give_up(self, jobs: list[Job], error: BaseException) -> None:
        """The medium failed: nothing is tried again on this connection, and the file is free for a new one."""
        self._error = error
        self.thread.close_connection()
        self.thread.error = error  # what whoever asks for the connection is told
        self.lock.release()
        if not self._killed:
            self._fail(jobs, error)
            self._faulted(error)

    def _take(self) -> list[Job]:
        jobs: list[Job] = []
        while self._queue and len(jobs) < COMMITS_MAX:
            jobs.append(self._queue.popleft())
        return jobs

    def _commit(self, database: sqlite3.Connection, jobs: list[Job]) -> None:
        """One transaction for ``jobs``; what is refused in it has its error, the others their commit."""
        while not self._try_commit(database, [job for job in jobs if not job[0].killed]):
            pass

    def _try_commit(self, database: sqlite3.Connection, jobs: list[Job]) -> bool:
        """False if a session was killed meanwhile, and nothing was committed for that."""
        if not jobs:
            return True
        if not self._begun:
            self._begun = True
            self._log.copy_backlog(database)
        try:
            try:
                written = self._together(database, jobs)
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None:
                    raise
                roll_back(database)
                if len(jobs) == 1:
                    jobs[0][1].error = refusal
                    return True
                written = self._one_by_one(database, jobs)
            self.check_owner(database)
            for source, rows in jobs:
                if source.probe is not None and rows.error is None:
                    _reach(source, source.probe, f"commit.{rows.name}.inside")
            with self._gate:
                if self._killed:
                    return True
                if any(source.killed for source, _ in jobs):
                    roll_back(database)
                    return False
                database.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(database)
            if code_of(error) in BUSY:
                raise StoreBusy(
                    f"{self._path}: another program has held the database's write lock for too long; nothing was "
                    "written, try again when it is done",
                    path=self._path,
                ) from error
            raise
        except Exception:
            roll_back(database)
            raise
        self.transactions += 1
        for source, state in written.items():
            source.written = state
        self._log.grew(database, sum(rows.pages for _, rows in jobs))
        return True

    def _together(self, database: sqlite3.Connection, jobs: list[Job]) -> dict[Source, Written]:
        for _, rows in jobs:
            rows.commit = rows.error = None
        database.execute("BEGIN IMMEDIATE")
        return self._attempt(database, jobs, {})

    def _one_by_one(self, database: sqlite3.Connection, jobs: list[Job]) -> dict[Source, Written]:
        """The same with a savepoint for each commit, so that those that are not refused stand."""
        done: dict[Source, Written] = {}
        database.execute("BEGIN IMMEDIATE")
        for source, rows in jobs:
            rows.commit = None
            if self._lost(source, jobs):
                rows.error = faulted(OwnershipLost(f"session {source.id}: ownership was lost", session_id=source.id))
                continue
            database.execute("SAVEPOINT one")
            try:
                done.update(self._attempt(database, [(source, rows)], done))
            except Exception as error:
                rows.error = refusal_of(error)
                if rows.error is None:
                    raise
                database.execute("ROLLBACK TO one")
            database.execute("RELEASE one")
        return done

    def _attempt(
        self, database: sqlite3.Connection, jobs: list[Job], base: dict[Source, Written]
    ) -> dict[Source, Written]:
        """Run the statements of ``jobs``; what the sessions then are, made from what ``base`` or they say."""
        states: dict[Source, Written] = {}
        for source, rows in jobs:
            state = states.get(source)
            if state is None:
                state = states[source] = (base.get(source) or source.written).copy()
            try:
                rows.apply(database, source.key, state)
            except (InvalidWrite, sqlite3.IntegrityError):
                check_epoch(database, source.key, source.id, state)  # what does not fit may be another owner's
                raise
        for source, state in states.items():
            seal(database, source.key, source.id, source.own_epoch, state)
        return states

    def _lost(self, source: Source, jobs: list[Job]) -> bool:
        return any(each is source and isinstance(rows.error, OwnershipLost) for each, rows in jobs)

    def _connected(self, database: sqlite3.Connection) -> sqlite3.Connection:
        try:
            self._place.opened(database)
        except BaseException:
            database.close()
            raise
        return database

    def check_owner(self, database: sqlite3.Connection) -> None:
        """Before COMMIT: ``OwnershipLost``, with the transaction undone, unless all names are as they were opened."""
        try:
            self._place.check()
        except LogLost:
            roll_back(database)
            raise self._place.save(database) from None

    def _fail(self, jobs: list[Job], error: BaseException) -> None:
        """What is left in the queue is lost with ``jobs``."""
        while late := self._take():
            jobs += late
        for _, rows in jobs:
            rows.commit = None
            rows.error = error if isinstance(error, OwnershipLost) else faulted(error)
        self._report(jobs)

    def _report(self, jobs: list[Job]) -> None:
        """Post the publication to each loop, before anyone who waits is woken."""
        if self._killed:
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in jobs:
            by_loop.setdefault(job[0].loop, []).append(job)
        for loop, its_jobs in by_loop.items():
            if not tell(loop, self._publish, loop, its_jobs):
                for source, _ in its_jobs:
                    source.unheard(RuntimeError("the event loop ended before the commit was reported; open again"))

    def _copy_at_end(self) -> None:
        database = self.thread.database
        if database is not None and not self._killed:
            self._log.copy_at_end(database, self.check_owner)

    def _checkpoint(self) -> None:
        database = self.thread.database
        if database is None or self._queue:
            return
        try:
            self._log.copy(database)
        except sqlite3.Error as error:
            self._give_up([], error)

    # On a loop.

    def _publish(self, loop: asyncio.AbstractEventLoop, jobs: list[Job]) -> None:
        for source, rows in jobs:
            source.reported(rows)
        if self._log.due and self._timer is None and not self._killed:
            self._timer = loop.call_later(IDLE_S, self._look_idle, loop, self.transactions)

    def _look_idle(self, loop: asyncio.AbstractEventLoop, transactions: int) -> None:
        self._timer = None
        if self._killed:
            return
        if transactions == self.transactions:
            self.thread.post(self._checkpoint)
        else:
            self._timer = loop.call_later(IDLE_S, self._look_idle, loop, self.transactions)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _reach(source: Source, probe: Probe, boundary: str) -> None:
    try:
        probe.reached(boundary)
    except BaseException as error:
        raise Died(source) from error
