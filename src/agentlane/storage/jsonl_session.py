"""One open session of a JSONL store: commits go to the file's end, reads to places in it.

With durability ``process`` a commit is written and reported inside ``submit``: a thread hop costs more than the write.
With ``disk`` it goes to the store's thread, and all commits that arrive while a sync runs share the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from agentlane.clock import Clock
from agentlane.data.writes import Write
from agentlane.errors import SessionClosed, WrongProcess
from agentlane.storage.contract import Commit, Compacted, Pending, Probe
from agentlane.storage.framing import Draft, encode_text
from agentlane.storage.index import stats_after
from agentlane.storage.indexed import IndexedStorage
from agentlane.storage.jsonl_cleanup import Cleaner, Policy
from agentlane.storage.jsonl_compact import Compaction
from agentlane.storage.jsonl_keeping import IndexKeeper
from agentlane.storage.jsonl_payloads import FilePayloads
from agentlane.storage.jsonl_reader import LoadedFile
from agentlane.storage.jsonl_thread import SyncThread
from agentlane.storage.jsonl_writer import JsonlWriter, NotSynced, Placed, Tail
from agentlane.storage.lock import OwnerLock
from agentlane.waiting import finish

_log = logging.getLogger("agentlane")


class _Job(NamedTuple):
    """A commit on its way."""

    draft: Draft
    writes: Sequence[Write]
    ids: Iterable[str]
    commit: Commit
    publish: Callable[[Commit], None] | None
    name: str


class JsonlSession(IndexedStorage[int]):
    """One open session of a ``JsonlStore``."""

    def __init__(
        self,
        loaded: LoadedFile,
        *,
        clock: Clock,
        lock: OwnerLock | None,
        thread: SyncThread | None,
        probe: Probe | None,
        forget: Callable[[JsonlSession], None],
        cleanup: Policy,
        index_min_bytes: int | None,
    ) -> None:
        """Take over a loaded file and its descriptor; without ``lock`` for reading, with ``thread`` for ``disk``."""
        super().__init__(loaded.info, loaded.index, epoch=loaded.epoch + 1, read_only=lock is None, probe=probe)
        file = loaded.file
        self._files = file.files
        self._path = file.path
        self._payloads = FilePayloads(file.files, file.path, file.descriptor)
        self._clock = clock
        self._lock = lock
        self._forget = forget
        tail = None
        if file.size > loaded.good_end:
            tail = Tail(loaded.good_end, loaded.tail_reason)
            self._findings.append(
                f"{file.path}: {file.size - tail.offset} bytes behind byte {tail.offset} are no whole commit "
                f"({tail.reason}); " + ("they are passed over" if lock is None else "the next commit cuts them off")
            )
        self._id = encode_text(loaded.info.id)
        self._next_seq = loaded.index.last_seq + 1
        self._stats = loaded.index.stats
        self._operations = loaded.operations
        self._writer: JsonlWriter | None = None
        if lock is not None:
            self._writer = JsonlWriter(
                self._files,
                self._path,
                file.descriptor,
                lock,
                size=file.size,
                tail=tail,
                durable=thread is not None,
                history=loaded.index.last_seq > 0,
                operations_at=loaded.operations_at,
                found=self._findings.append,
                sums=loaded.sums,
            )
        self._next_payloads: FilePayloads | None = None  # of a file that has taken the place of the one that is read
        self._cleaner = Cleaner(self, self._files, self._path, cleanup, self._loop)
        self._cleaner.end, self._cleaner.epoch = loaded.good_end, loaded.epoch
        self._keeper = IndexKeeper(self._files, self._path, loaded.info.id, min_bytes=index_min_bytes, size=loaded.kept)
        self._thread = thread
        self._process = os.getpid()
        self._submitted: dict[str, bool] = {}  # ids of commits on their way, with whether each is an entry's
        self._arrived: list[_Job] = []  # submitted in this turn of the event loop
        self._handed: deque[_Job] = deque()  # given to the thread
        self._medium = threading.RLock()  # held while the thread uses the file, so that nobody closes it meanwhile
        self._closing = False
        self._left = False  # the store and the thread know that it is closed
        self._broken = False  # the thread met a failure, and writes nothing more
        self._drained: asyncio.Future[None] | None = None
        if lock is not None:
            lock.belongs_to(self._loop, self.give_up)
        if thread is not None:
            thread.start()

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        """Encode a commit and write it, or have it written."""
        self._check_writable()
        if self._closing:
            raise self._closed_error()
        if self._probe is not None:
            self._reach(f"commit.{name}.before")
        ids = self._index.check(writes, self._submitted)
        first_seq, at = self._next_seq, self._clock.now_ms()
        draft = Draft(
            writes=writes,
            first_seq=first_seq,
            at=at,
            session_id=self._id,
            epoch=self._epoch,
            operations=self._operations,
        )
        stats = stats_after(self._stats, writes, ids)
        # From here on nothing is refused, and nothing raises: a number that moved without a line would be a gap.
        self._next_seq += len(writes)
        self._stats = stats
        if draft.operations is not None:
            self._operations = draft.operations
        job = _Job(draft, writes, ids, Commit(first_seq, at, self._stats), publish, name)
        pending = Pending()
        self._pendings.append(pending)
        if self._thread is None:
            self._write_now(job)
        else:
            self._submitted.update(ids)
            if not self._arrived:
                # At the end of this turn, so that commits that arrive together share one sync from the first.
                self._loop.call_soon(self._hand_over)
            self._arrived.append(job._replace(writes=tuple(writes)))
        return pending

    async def compact(self) -> Compacted:
        """Rule S28: what is not superseded is written to a file that takes this one's place."""
        self.check_going()
        return await self._cleaner.compact()

    async def close(self) -> None:
        """Wait for submitted commits, then give up the file, the thread and the lock, also when cancelled.

        From another event loop: ``WrongLoop``, or ``give_up`` if the one it was opened on is closed.
        """
        if not self._closed and not self._forked():
            if self.forgotten:
                self.give_up()
                return
            self._check_loop()
        self._closing = True
        try:
            while self._pendings and not self._closed and not self._forked():
                if self._drained is None or self._drained.done():
                    self._drained = self._loop.create_future()
                await finish(self._drained)
            if not self._closed and not self._forked():
                await self._cleaner.ended()
                self._keep_index(closing=True)
        finally:
            self.kill()

    def kill(self) -> None:
        """Give everything up at once; what the thread has begun is finished, and not reported."""
        if self._forked():
            self._closed = self._left = True  # file, thread and lock are the parent's
            return
        try:
            self._let_go()
        finally:
            if not self._left:
                self._left = True
                if self._thread is not None:
                    self._thread.stop()
                self._forget(self)
            self._wake_closers()

    def give_up(self) -> None:
        """The event loop is closed: ``kill``, and say to who holds a pending commit that its outcome is unknown."""
        self.kill()
        self._fault = self._fault or self._unheard()
        while self._pendings:
            try:
                self._pendings.popleft().fail(self._faulted())
            except Exception as error:  # what waits for it belongs to a loop that runs nothing any more
                _log.debug("session %r: a commit's outcome could not be told: %r", self._info.id, error)

    # On the event loop.

    def _check_usable(self) -> None:
        if self._forked():
            raise WrongProcess(
                f"session {self._info.id!r} was opened by process {self._process}, and this is a forked child of it; "
                "open it after forking, in the process that uses it",
                owner_pid=self._process,
            )
        super()._check_usable()

    def _write_now(self, job: _Job) -> None:
        try:
            placed = self._append([job])
        except _Stopped as stopped:
            self.kill()
            raise stopped.by from None
        except BaseException as error:
            # Whatever it was, an interrupt included: the file may hold what nobody was told of.
            self._end(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._report(job, placed[0])

    def _report(self, job: _Job, placed: Placed) -> None:
        draft, commit = job.draft, job.commit
        self._index.apply(job.writes, first_seq=commit.first_seq, at=commit.at, places=draft.places(*placed))
        self._index.stats = commit.stats
        if self._submitted:
            for each in job.ids:
                del self._submitted[each]
        self._publish(commit, job.publish, job.name)
        if not self._closed:
            end = placed.offset + placed.length
            self._cleaner.published(self._index, end=end, epoch=self._epoch)
            if self._keeper.due(end):
                self._keep_index()

    def _keep_index(self, *, closing: bool = False) -> None:
        """Write an index of the file beside it, if it is time for one and all that was written is published."""
        if self._writer is None or self._pendings or self._closed or self._broken or self._fault is not None:
            return
        cleaner = self._cleaner
        self._keeper.keep(
            self._writer,
            self._index,
            end=cleaner.end,
            epoch=cleaner.epoch,
            operations=self._operations,
            closing=closing,
        )

    def _hand_over(self) -> None:
        if self._thread is not None and not self._closed:
            self._handed.extend(self._arrived)
            self._arrived.clear()
            self._thread.run(self._work)

    def _written(self, jobs: Sequence[_Job], placed: Sequence[Placed]) -> None:
        """What the thread posts: the medium has these commits."""
        try:
            for job, each in zip(jobs, placed, strict=True):
                if self._closed or self._fault is not None:
                    break
                self._report(job, each)
        except BaseException as error:
            if not self._closed:
                raise
            self._stopped(error)  # it came from the probe, and this storage is dead by now
        if not self._pendings:
            self._wake_closers()

    def _failed(self, error: BaseException) -> None:
        """What the thread posts: the medium failed."""
        if not self._closed:
            self._end(error)
            self._wake_closers()

    def _stopped(self, by: BaseException) -> None:
        """What the thread posts: the probe stopped everything."""
        self.kill()
        if self.on_fault is not None:
            self.on_fault(by)
        else:
            _log.error("session %r was stopped by %r, and nobody listens", self._info.id, by)

    def _wake_closers(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # For the cleaner.

    def check_going(self) -> None:
        self._check_writable()
        if self._closing:
            raise self._closed_error()

    def finding(self, text: str) -> None:
        self._findings.append(text)

    async def replace(self, compaction: Compaction) -> None:
        if self._thread is None:
            self._replaced(compaction, self._replace(compaction))
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._thread.run(partial(self._replace_there, compaction, done))
        await done

    def _replaced(self, compaction: Compaction, error: BaseException | None) -> None:
        """Read from the new file, before any commit is published that was written to it."""
        if self._next_payloads is None or self._closed:
            raise error or self._closed_error()
        if isinstance(error, NotSynced):
            self._end(error.cause)
        elif compaction.loaded.index.last_seq != self._index.last_seq and self._fault is None:
            self._end(RuntimeError(f"{self._path}: the file that took its place holds other commits"))
        if self._fault is not None:  # reads go on to serve what was published, which the old file holds
            raise self._faulted() from self._fault
        old, self._payloads, self._next_payloads = self._payloads, self._next_payloads, None
        self._index = compaction.loaded.index
        self._cleaner.end = compaction.size
        self._keeper.replaced()
        self._keep_index()
        with suppress(OSError):  # nothing more is wanted of it
            old.close()

    # On the store's thread.

    def _work(self) -> None:
        """Write what was handed over by now, with one sync, and post what came of it."""
        posted: Callable[[], None]
        with self._medium:
            jobs: list[_Job] = []
            while self._handed:
                jobs.append(self._handed.popleft())
            if not jobs or self._closed or self._broken:
                return
            try:
                posted = partial(self._written, jobs, self._append(jobs))
            except _Stopped as stopped:
                with suppress(OSError):
                    self._let_go()  # dies here and now, as the process would
                posted = partial(self._stopped, stopped.by)
            except Exception as error:  # not narrower: whatever happens to the thread, the session must be told
                self._broken = True
                posted = partial(self._failed, error)
        try:
            self._loop.call_soon_threadsafe(posted)
        except RuntimeError:
            # The loop is closed: nobody is left to be told, and what memory says is not what the file says.
            self._broken = True
            self._fault = self._fault or self._unheard()

    def _replace_there(self, compaction: Compaction, done: asyncio.Future[None]) -> None:
        error = self._replace(compaction)

        def tell() -> None:
            told: BaseException | None = None
            try:
                self._replaced(compaction, error)
            except BaseException as raised:
                told = raised
            if done.done():
                return
            if told is None:
                done.set_result(None)
            else:
                done.set_exception(told)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            self._broken = True  # the loop is closed, and what is in memory is not what the file is now

    # On either.

    def _replace(self, compaction: Compaction) -> BaseException | None:
        """Put the new file in the old one's place, between two commits; what went wrong, if anything did."""
        with self._medium:
            if self._closed or self._broken or self._writer is None:
                return self._closed_error()
            try:
                self._writer.replace(compaction)
            except NotSynced as error:
                self._broken = True
                self._next_payloads = FilePayloads(self._files, self._path, compaction.descriptor)
                return error
            except BaseException as error:
                return error
            self._next_payloads = FilePayloads(self._files, self._path, compaction.descriptor)
            return None

    def _append(self, jobs: Sequence[_Job]) -> Sequence[Placed]:
        if self._writer is None:
            raise self._closed_error()
        half_written = [partial(self._reach_inside, job.name) for job in jobs] if self._probe is not None else []
        return self._writer.append([job.draft for job in jobs], half_written)

    def _reach_inside(self, name: str) -> None:
        try:
            if self._probe is not None:
                self._probe.reached(f"commit.{name}.inside")
        except BaseException as by:
            raise _Stopped(by) from by

    def _let_go(self) -> None:
        """Give up the file and the lock, as the end of the process would."""
        with self._medium:
            if not self._closed:
                self._closed = True
                try:
                    self._cleaner.give_up()
                    if self._next_payloads is not None:
                        with suppress(OSError):
                            self._next_payloads.close()
                    self._payloads.close()
                finally:
                    if self._lock is not None:
                        self._lock.release()

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _unheard(self) -> SessionClosed:
        return SessionClosed(
            f"session {self._info.id!r}: its event loop was closed while commits were on their way; "
            "whether they are in the file shows when it is opened again",
            id=self._info.id,
        )

    def _fetch(self, places: Iterable[int]) -> list[bytes]:
        return self._payloads.fetch(places)

    def _snapshot_medium(self) -> FilePayloads:
        return self._payloads.duplicate()


class _Stopped(BaseException):
    """The probe stopped everything while a line was half written."""

    def __init__(self, by: BaseException) -> None:
        super().__init__()
        self.by = by
