"""Faults on purpose: a plan that ends the process at a named boundary, and a store whose n-th commit fails.

A *boundary* is a name that the library tells its probe at that place: ``commit.<name>.before``, ``.inside`` and
``.after``, and ``effect.<what>.start`` and ``.end``. A crash loop records one run, then repeats it for each boundary::

    recorded = FaultPlan()
    await scenario(recorded)
    for point in recorded.all_boundaries():
        plan = FaultPlan().kill_at(point.boundary, nth=point.nth)
        ...                                        # run until Killed, kill() the storage, reopen, go on, compare
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self, TypeAlias

from agentlane.data.writes import Write
from agentlane.errors import SessionClosed
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage, Store
from agentlane.testing.wrapping import WrappedStorage, WrappedStore, faulted_by

Where: TypeAlias = Literal["before", "half", "after"]
"""How far a failing commit gets: nothing is written; the writer dies inside it; all is written, the report fails."""


class Killed(BaseException):
    """The process dies here. Like a real death it is no ``Exception``, so that nothing between handles it."""


class Point(NamedTuple):
    """The ``nth`` time (from 1) that ``boundary`` is reached."""

    boundary: str
    nth: int


class FaultPlan:
    """A ``Probe`` that counts and remembers boundaries, and ends this process, in earnest or by ``Killed``, at some.

    May be called from any thread. Once it has raised ``Killed`` it raises again at every later boundary, for a dead
    process does nothing any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trace: list[str] = []
        self._counts: Counter[str] = Counter()
        self._kills: set[Point | int] = set()
        self._exits: set[Point | int] = set()
        self._died_at: Point | None = None
        self._mourners: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def kill_at(self, where: str | int, *, nth: int = 1) -> Self:
        """Raise ``Killed`` the ``nth`` time ``where`` is reached; a number is a place in the trace, from 0."""
        self._kills.add(_target(where, nth))
        return self

    def exit_at(self, where: str | int, *, nth: int = 1) -> Self:
        """Send SIGKILL to this process there, as ``kill_at`` counts. For child processes of a test."""
        self._exits.add(_target(where, nth))
        return self

    @property
    def trace(self) -> tuple[str, ...]:
        """Every boundary reached so far, in order; after a death nothing is added."""
        return tuple(self._trace)

    @property
    def died_at(self) -> Point | None:
        """Where ``Killed`` was first raised."""
        return self._died_at

    def all_boundaries(self) -> list[Point]:
        """Every boundary that was reached, in order, each with how many times it was until then."""
        counts: Counter[str] = Counter()
        points = []
        for boundary in self._trace:
            counts[boundary] += 1
            points.append(Point(boundary, counts[boundary]))
        return points

    def reached(self, boundary: str) -> None:
        """Count ``boundary``; raises ``Killed``, or does not return, when the plan says so."""
        with self._lock:
            if self._died_at is not None:
                raise Killed(f"dead since {self._died_at.boundary} ({self._died_at.nth})")
            index = len(self._trace)
            self._trace.append(boundary)
            self._counts[boundary] += 1
            point = Point(boundary, self._counts[boundary])
            if {index, point} & self._exits:
                _die()
            if {index, point} & self._kills:
                self._died_at = point
                for loop, future in self._mourners:
                    loop.call_soon_threadsafe(_resolve, future)
                raise Killed(f"killed at {boundary} ({point.nth})")

    async def died(self) -> Point:
        """Return once ``Killed`` was raised, on whichever thread; a thread's death is told to nobody else."""
        with self._lock:
            if self._died_at is None:
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] | None = loop.create_future()
                assert future is not None
                self._mourners.append((loop, future))
            else:
                future = None
        if future is not None:
            await future
        assert self._died_at is not None
        return self._died_at


class FailingStore(WrappedStore):
    """A store whose ``nth`` commit, counted over all its sessions, fails; everything else is handed on.

    The failing commit, and those submitted after it, fail as the contract says (S9): pendings in order, then
    ``on_fault``, later submits refused, reads serving what was published before. ``where`` says what the next ``open``
    finds (S10): with ``before`` nothing of the commit; with ``after`` all of it; with ``half`` what the backend leaves
    when it dies inside a commit. What is left is written by ``close`` of the faulted storage (``kill`` leaves nothing).
    Refused commits do not count; the failing one is not checked.
    """

    def __init__(
        self, inner: Store, *, nth: int | None = 1, where: Where = "before", error: Exception | None = None
    ) -> None:
        """``nth`` counts from 1; with None no commit fails until ``fail_next``."""
        super().__init__(inner)
        self.where: Where = where
        self.error = error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.failed = False
        self._left = nth or 0
        self._open: list[_FailingStorage] = []

    def fail_next(self, nth: int = 1) -> None:
        """Let the ``nth`` commit from now fail; it may be called again after a failure."""
        self.failed = False
        self._left = nth

    def turn(self) -> bool:
        """Whether the commit that comes now is the one to fail."""
        return self._left == 1 and not self.failed

    def counted(self) -> None:
        """One more commit was taken."""
        self._left -= 1

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        relay = _Relay(probe)
        storage = _FailingStorage(await self.inner.open(session_id, read_only=read_only, probe=relay), self, relay)
        self._open.append(storage)
        return storage

    async def close(self) -> None:
        for storage in self._open:
            await storage.close()
        await self.inner.close()


class _FailingStorage(WrappedStorage):
    """One session of a ``FailingStore``."""

    def __init__(self, inner: SessionStorage, store: FailingStore, relay: _Relay) -> None:
        super().__init__(inner)
        self._store = store
        self._relay = relay
        self._in_flight: list[Pending] = []
        self._doomed: list[Pending] = []
        self._left_over: tuple[Sequence[Write], str] | None = None
        self._fault: BaseException | None = None
        self._failing: asyncio.Task[None] | None = None
        self._closed = False

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        if self._closed:
            raise SessionClosed("this session is closed")
        if self._fault is not None:
            raise faulted_by(self._fault)
        if self._failing is None and (self.read_only or not writes or not self._store.turn()):
            pending = self.inner.submit(writes, publish=publish, name=name)
            self._store.counted()
            self._in_flight = [*(each for each in self._in_flight if not each.done()), pending]
            return pending
        doomed = Pending()
        self._doomed.append(doomed)
        if self._failing is None:
            self._store.failed = True
            self._left_over = (list(writes), name)
            self._failing = asyncio.get_running_loop().create_task(self._fail(self._in_flight))
        return doomed

    def inner_faulted(self, error: BaseException) -> None:
        if self._fault is None:
            self._fault = error
            self._left_over = None
            self._fail_doomed(error)
            super().inner_faulted(error)

    async def close(self) -> None:
        if self._failing is not None:
            await asyncio.wait([self._failing])
        if not self._closed:
            self._closed = True
            await self._write_left_over()
        await self.inner.close()

    def kill(self) -> None:
        self._closed = True
        if self._failing is not None:
            self._failing.cancel()
        self.inner.kill()

    async def _fail(self, before: list[Pending]) -> None:
        # The medium takes commits in order (S4): those handed on before have theirs first.
        for pending in before:
            try:
                await pending
            except Exception:  # told to whoever waits for that commit
                pass
        if self._fault is None:
            self._fault = self._store.error
            self._fail_doomed(self._fault)
            super().inner_faulted(self._fault)

    def _fail_doomed(self, cause: BaseException) -> None:
        for pending in self._doomed:
            pending.fail(faulted_by(cause))
        self._doomed.clear()

    async def _write_left_over(self) -> None:
        if self._left_over is None or self._store.where == "before":
            return
        writes, name = self._left_over
        if self._store.where == "after":
            await self.inner.submit(writes, name=name)
            return
        died = self._relay.arm(f"commit.{name}.inside")
        try:
            await _either(died, self.inner.submit(writes, name=name))
        except Killed:
            pass
        self.inner.kill()


class _Relay:
    """Hands boundaries on to the user's probe, and dies at one when armed."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe
        self._plan = FaultPlan()
        self._armed = False

    def arm(self, boundary: str) -> FaultPlan:
        self._armed = True
        return self._plan.kill_at(boundary)

    def reached(self, boundary: str) -> None:
        if self._armed:
            self._plan.reached(boundary)
        if self._probe is not None:
            self._probe.reached(boundary)


async def _either(plan: FaultPlan, pending: Pending) -> None:
    """Return once the process is dead by ``plan`` or ``pending`` is done, whichever it is."""

    async def settled() -> None:
        try:
            await pending
        except Exception:  # whether it was written is what the next open finds
            pass

    tasks = [asyncio.ensure_future(plan.died()), asyncio.ensure_future(settled())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _target(where: str | int, nth: int) -> Point | int:
    if nth < 1:
        raise ValueError(f"boundaries are counted from 1, not {nth}")
    return where if isinstance(where, int) else Point(where, nth)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(9)  # not reached; says to readers that nothing is cleaned up


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
