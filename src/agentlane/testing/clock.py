"""Time and ids that a test controls: a clock that moves when told, and ids that count."""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import NamedTuple

START_MS = 1_700_000_000_000
SERIES_MAX = 0xFFFFFFFF
COUNT_MAX = 0xFFFFFFFF


class Sleeper(NamedTuple):
    """One who sleeps: until when, and its place among those who sleep until the same time."""

    due_ms: int
    order: int


class ManualClock:
    """A clock that stands still until ``advance``; nobody ever waits for real time.

    Times are milliseconds. ``now_ms`` may be called from any thread, everything else from the event loop.
    """

    def __init__(self, *, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._order = 0
        self._sleepers: list[Sleeper] = []  # those who are not woken, soonest first
        self._futures: dict[Sleeper, asyncio.Future[None]] = {}
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """The time that the clock stands at."""
        return self._now_ms

    async def sleep_until(self, at_ms: int) -> None:
        """Return once the clock stands at ``at_ms`` or later; at once, without a switch of tasks, when it does already.

        Cancelled, the sleeper is gone from ``sleepers``.
        """
        while at_ms > self._now_ms:
            sleeper = Sleeper(at_ms, self._order)
            self._order += 1
            future = asyncio.get_running_loop().create_future()
            insort(self._sleepers, sleeper)
            self._futures[sleeper] = future
            self._tell_watchers()
            try:
                await future
            finally:
                self._forget(sleeper)

    def advance(self, ms: int) -> None:
        """Move on by ``ms`` and wake those who are due, soonest first; equally soon: who went to sleep first.

        They run when the caller next lets go of the event loop, and all see the time that the clock was moved to.
        """
        if ms < 0:
            raise ValueError(f"a clock moves forward only, not by {ms} ms")
        self._now_ms += ms
        for sleeper in [each for each in self._sleepers if each.due_ms <= self._now_ms]:
            future = self._futures[sleeper]
            self._forget(sleeper)
            if not future.done():
                future.set_result(None)

    def advance_to_next(self) -> int:
        """Move on to ``next_due``, waking who is due then, by how many milliseconds; RuntimeError if none sleeps."""
        due_ms = self.next_due
        if due_ms is None:
            raise RuntimeError("nobody sleeps on this clock")
        moved_ms = due_ms - self._now_ms
        self.advance(moved_ms)
        return moved_ms

    @property
    def sleepers(self) -> tuple[int, ...]:
        """Until when each one sleeps who is not woken yet, soonest first."""
        return tuple(each.due_ms for each in self._sleepers)

    @property
    def next_due(self) -> int | None:
        """When the next one is due; None when nobody sleeps."""
        return self._sleepers[0].due_ms if self._sleepers else None

    async def sleeping(self, count: int = 1) -> None:
        """Return once at least ``count`` sleep at the same time; so a test waits for a timer to be set."""
        if len(self._sleepers) >= count:
            return
        future = asyncio.get_running_loop().create_future()
        watcher = (count, future)
        self._watchers.append(watcher)
        try:
            await future
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def _forget(self, sleeper: Sleeper) -> None:
        if self._futures.pop(sleeper, None) is not None:
            self._sleepers.remove(sleeper)

    def _tell_watchers(self) -> None:
        for watcher in [each for each in self._watchers if each[0] <= len(self._sleepers)]:
            self._watchers.remove(watcher)
            if not watcher[1].done():
                watcher[1].set_result(None)


class CountingIds:
    """Ids that count: of the form of a UUIDv7, growing, the last four hexadecimal digits zero; the same in every run.

    Sources of different ``series`` never give the same id; those of a higher series sort behind all of a lower one, so
    that a reopened session may be given the next series.
    """

    def __init__(self, *, series: int = 0) -> None:
        if not 0 <= series <= SERIES_MAX:
            raise ValueError(f"a series is 0 to {SERIES_MAX}, not {series}")
        self._series = series
        self._count = 0

    def new(self) -> str:
        """The next id; the first ends in ``000000010000``."""
        if self._count >= COUNT_MAX:
            raise RuntimeError(f"series {self._series} has given all of its {COUNT_MAX} ids")
        self._count += 1
        return f"{self._series:08x}-0000-7000-8000-{self._count:08x}0000"
