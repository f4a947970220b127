"""Where a process is stopped and how, as a plan for one history, and the probe that carries it out."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias, get_args

from agentlane.testing.faults import FaultPlan, Point

How: TypeAlias = Literal["kill", "close", "abort"]
"""``kill``: the process dies. ``close``: the session is closed cleanly. ``abort``: every open operation is aborted."""

WAYS: tuple[How, ...] = get_args(How)

_WORD = re.compile(r"(kill|close|abort)@([^@#,\s]+)(?:#(\d+))?")


class Stop(NamedTuple):
    """One thing that is done to a process at one boundary."""

    how: How
    at: Point

    def __str__(self) -> str:
        return f"{self.how}@{self.at.boundary}#{self.at.nth}"


Stops: TypeAlias = tuple[tuple[Stop, ...], ...]
"""The stops of each process of one history, in order; the process after the last one is not stopped.

A process that is killed or closed is followed by another. An abort does not end its process, so a kill may come with it
(``close`` too: the process then dies while it closes).
"""


def stops_text(stops: Stops) -> str:
    """The stops as one line that ``parse_stops`` reads: processes parted by ``/``, stops of one by a comma."""
    return " / ".join(", ".join(map(str, life)) for life in stops)


def parse_stops(text: str) -> Stops:
    """Read what ``stops_text`` wrote; ``ValueError`` says what could not be read."""
    lives: list[tuple[Stop, ...]] = []
    for life in text.split("/") if text.strip() else ():
        stops: list[Stop] = []
        for word in life.split(","):
            found = _WORD.fullmatch(word.strip())
            if found is None:
                raise ValueError(f"{word.strip()!r} is no stop; write kill@commit.accept.after#1, say")
            how: How = next(each for each in WAYS if each == found[1])
            stops.append(Stop(how, Point(found[2], int(found[3] or 1))))
        lives.append(tuple(stops))
    return tuple(lives)


class StopProbe:
    """A probe that counts boundaries, kills at one, and tells when one comes at which something else is to be done.

    May be called from any thread; made on the event loop that is told.
    """

    def __init__(self, stops: Iterable[Stop] = ()) -> None:
        self.plan = FaultPlan()
        self._loop = asyncio.get_running_loop()
        self._counts: Counter[str] = Counter()
        self._turns: dict[Point, How] = {}
        self._told: asyncio.Future[How] = self._loop.create_future()
        for stop in stops:
            if stop.how == "kill":
                self.plan.kill_at(stop.at.boundary, nth=stop.at.nth)
            else:
                self._turns[stop.at] = stop.how

    @property
    def died_at(self) -> Point | None:
        """Where the process was killed, if it was."""
        return self.plan.died_at

    @property
    def turned(self) -> asyncio.Future[How]:
        """Done once a boundary of a close or an abort was reached."""
        return self._told

    def boundaries(self) -> list[Point]:
        """Every boundary that was reached, in order."""
        return self.plan.all_boundaries()

    def reached(self, boundary: str) -> None:
        """Count ``boundary``; raises ``Killed`` where the process is to die."""
        self.plan.reached(boundary)
        if self._turns:
            self._counts[boundary] += 1
            how = self._turns.get(Point(boundary, self._counts[boundary]))
            if how is not None:
                self._loop.call_soon_threadsafe(self._tell, how)

    def _tell(self, how: How) -> None:
        if not self._told.done():
            self._told.set_result(how)
