"""One history: processes that do the same work one after the other on one session, each ended as it was told to."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.kills.children import Child
from tests.kills.reports import (
    CLOSING,
    EXIT_CODE,
    TERM_CODE,
    Closed,
    Closing,
    How,
    Job,
    Opened,
    Published,
    Reached,
    Refused,
    Report,
    Stop,
    Stopping,
    rows_of,
)
from tests.kills.work import WORKS, Work

Start: TypeAlias = Callable[[Job], Child]
"""Starts a process: ``Zygote.start`` or ``fresh``."""

CODES: dict[How, int] = {
    "kill": -signal.SIGKILL,
    "held": -signal.SIGKILL,
    "exit": EXIT_CODE,
    "term": -signal.SIGTERM,
    "term host": TERM_CODE,
    "int": -signal.SIGINT,
}
SIGNALS: dict[How, int] = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "term host": signal.SIGTERM,
    "int": signal.SIGINT,
}
"""What a parent sends."""

FIRST = "first"
AGAIN = "again"
AFTER_SIGNAL = "closing "
WALL = "wall time"


class Wall(NamedTuple):
    """A parent ends a process when it has heard so many lines of it, and a moment later."""

    how: How
    lines: int
    spins: int


class Place(NamedTuple):
    """Where a process ended: in which part of a history, and at which row (or ``WALL``)."""

    part: str
    row: str


class Life(NamedTuple):
    """One process, ended. ``how`` is None if it came to its end before anything could happen to it."""

    job: Job
    reports: list[Report]
    code: int
    how: How | None
    part: str
    complaints: str

    def rows(self) -> list[Place]:
        """Every row that was reached, in order; those after a signal to close are a part of their own."""
        found, part = [], self.part
        for report in self.reports:
            if isinstance(report, Reached):
                found += [Place(part, row) for row in rows_of(report.boundary)]
            elif isinstance(report, Closing) or (isinstance(report, Stopping) and report.how in CLOSING):
                part = AFTER_SIGNAL + self.part
        return found

    def places(self) -> list[Place]:
        """Where it was ended: every row that the boundary stands for."""
        if self.how is None:
            return []
        stops = [each for each in self.reports if isinstance(each, Stopping)]
        if not stops or stops[-1].how != self.how:
            return [Place(self.part, WALL)]
        closing = any(each.how in CLOSING for each in stops[:-1])
        part = AFTER_SIGNAL + self.part if closing else self.part
        return [Place(part, row) for row in rows_of(stops[-1].boundary)]


class History:
    """Everything that happened to one session."""

    def __init__(
        self, start: Start, folder: Path, *, work: str, disk: str, durability: str, seed: int, broken: str = ""
    ) -> None:
        folder.mkdir()
        self.work: Work = WORKS[work]
        self.disk = disk
        self.durability = durability
        self.folder = folder
        self.lives: list[Life] = []
        self._start = start
        self._seed = seed
        self._broken = broken

    @property
    def part(self) -> str:
        """The part of the history that comes now: a first life, or a recovery."""
        return AGAIN if self.lives else FIRST

    def job(self, *, stops: list[Stop] | None = None, hosted: bool = False, gate: bool = False) -> Job:
        """The job of the next process."""
        self._seed += 1
        return Job(
            scenario=self.work.name,
            disk=self.disk,
            durability=self.durability,
            folder=str(self.folder),
            seed=self._seed,
            stops=stops or [],
            hosted=hosted or any(stop.how == "term host" for stop in stops or []),
            gate=gate,
            broken=self._broken,
        )

    def run(self, *stops: Stop) -> Life:
        """A process that is ended at a boundary, or at two: told to close at the first, killed at the second."""
        job = self.job(stops=list(stops))
        child = self._start(job)
        while (report := child.next()) is not None:
            if isinstance(report, Stopping) and report.how == "held":
                child.signal(signal.SIGKILL)
        return self.ended(child, job, [stop.how for stop in stops])

    def run_by_the_wall(self, wall: Wall) -> Life:
        """A process that its parent ends a moment after it has said so many lines."""
        job = self.job(hosted=wall.how == "term host")
        child = self._start(job)
        while len(child.reports) < wall.lines and child.next() is not None:
            pass
        for _ in range(wall.spins):
            pass
        child.signal(SIGNALS[wall.how])
        return self.ended(child, job, ["term", wall.how] if job.hosted else [wall.how])

    def ended(self, child: Child, job: Job, hows: list[How], *, killed: bool = False) -> Life:
        """Listen to a process's end, and keep what it was; ``killed``: as a kill, whatever it made of it at last."""
        code = child.end()
        how = "kill" if killed else next((how for how in reversed(hows) if CODES[how] == code), None)
        errors = self.folder / "errors.log"
        known = sum(len(life.complaints) for life in self.lives)
        complaints = errors.read_text()[known:] if errors.exists() else ""
        life = Life(job, child.reports, code, how, self.part, complaints)
        self.lives.append(life)
        return life

    def complaints(self) -> list[str]:
        """What is wrong with the ends of the processes."""
        return [f"life {number}: {text}" for number, life in enumerate(self.lives, 1) for text in _wrong(life)]

    def story(self) -> str:
        """The history, for people."""
        lines = [f"{self.work.name} on {self.disk} ({self.durability}) in {self.folder}"]
        for number, life in enumerate(self.lives, 1):
            lines.append(f"-- life {number}: {life.how or 'not ended'} {life.job.stops or ''}, code {life.code}")
            lines += [f"   {_line(report)}" for report in life.reports]
            lines += [f"   ! {text}" for text in life.complaints.splitlines()[-30:]]
        effects = self.folder / "effects.log"
        return "\n".join([*lines, "effects:", effects.read_text() if effects.exists() else "none"])


LITTER = ("was destroyed", "never retrieved", "never awaited", "Warning", "Exception ignored", "loop is closed")
"""What a process that closed must not leave to be said about it."""


def _wrong(life: Life) -> list[str]:
    """What is wrong with how a process ended."""
    closed = next((each for each in life.reports if isinstance(each, Closed)), None)
    refused = next((each.code for each in life.reports if isinstance(each, Refused)), None)
    if refused is not None:
        return [] if life.job.gate else [f"it was refused: {refused}"]
    if life.how is None:
        finished = life.code == 0 and closed is not None and closed.done
        late_interrupt = closed is not None and closed.done and life.code == -signal.SIGINT
        return [] if finished or late_interrupt else [f"it ended with code {life.code}"]
    if life.how == "term" and life.job.hosted and life.reports and closed is None:
        return ["it died of a SIGTERM that it handles"]
    if life.how not in CLOSING:
        return []
    # Before it opened its session and after it closed it, what an interrupt leaves is not ours.
    ours = any(isinstance(each, Opened) for each in life.reports) and not (closed and closed.done)
    found = [f"it left to be said: {word!r}" for word in LITTER if ours and word in life.complaints]
    if life.how == "term host" and (closed is None or closed.done):
        found.append("it returned as one that was terminated, and was not")
    return found


def _line(report: Report) -> str:
    match report:
        case Reached():
            return report.boundary
        case Published():
            return f"published {report.first_seq}-{report.last_seq} {list(report.entries)} {list(report.results)}"
        case Opened():
            return f"opened, found {report.generating} {[(each.call_id, each.policy) for each in report.pending]}"
        case _:
            return repr(report)
