"""Where the processes of a playback die: at each commit of the conversation once, before, inside or after it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from agentlane.testing.faults import FaultPlan, Point

Where: TypeAlias = Literal["before", "inside", "after"]
WHERES: tuple[Where, ...] = ("before", "inside", "after")


class CommitPlace(NamedTuple):
    """A commit by where it stands in the conversation, not by when it is made: a repeated one is the same commit."""

    step: int
    """Of the plan; -1 before the first."""
    answer: int
    name: str
    calls: tuple[str, ...]
    """What the calls of the batch had come to before it."""
    saves: int
    """How many commits have saved something of the streaming answer before it."""


class Death(NamedTuple):
    """A process died at this commit."""

    place: CommitPlace
    where: Where


class Deaths:
    """Outlives the processes: which commits have had their death. Each has one, so every recovery gets further.

    Whether before, inside or after is told from the commit and ``rotation``: of three playbacks with the rotations 0,
    1 and 2 each commit sees all three.
    """

    def __init__(self, *, rotation: int) -> None:
        self._rotation = rotation
        self._seen: set[CommitPlace] = set()
        self.all: list[Death] = []

    def at(self, place: CommitPlace) -> Where | None:
        """Where the process is to die at the commit that is about to be made; None if it had its death already."""
        if place in self._seen:
            return None
        return WHERES[(zlib.crc32(repr(place).encode()) + self._rotation) % 3]

    def add(self, death: Death) -> None:
        """It happened."""
        self._seen.add(death.place)
        self.all.append(death)

    def counts(self) -> Counter[str]:
        """How many deaths there were before, inside and after commits."""
        return Counter(death.where for death in self.all)

    def history(self, *, last: int = 12) -> str:
        """The newest deaths, for people."""
        lines = [f"  {death.where} {death.place}" for death in self.all[-last:]]
        return "\n".join([f"{len(self.all)} deaths, the last ones:", *lines])


class CommitProbe(FaultPlan):
    """The probe of one process: tells of each commit, and dies at those that ``deaths`` picks."""

    def __init__(
        self,
        *,
        place: Callable[[str], CommitPlace],
        deaths: Deaths | None,
        before: Callable[[str], None],
        after: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._place = place
        self._deaths = deaths
        self._before = before
        self._after = after
        self._begun: Counter[str] = Counter()
        self._planned: dict[Point, Death] = {}

    @property
    def death(self) -> Death | None:
        """The commit at which the process died: not each that was planned comes to it, when another is nearer."""
        return None if self.died_at is None else self._planned[self.died_at]

    def reached(self, boundary: str) -> None:
        kind, _, rest = boundary.partition(".")
        if kind == "commit" and self.died_at is None:
            name, _, where = rest.rpartition(".")
            if where == "before":
                self._before(name)
                self._begun[name] += 1
                self._plan(name)
            elif where == "after":
                self._after(name)
        super().reached(boundary)

    def _plan(self, name: str) -> None:
        place = self._place(name)
        where = None if self._deaths is None else self._deaths.at(place)
        if where is not None:
            point = Point(f"commit.{name}.{where}", self._begun[name])
            self._planned[point] = Death(place, where)
            self.kill_at(point.boundary, nth=point.nth)
