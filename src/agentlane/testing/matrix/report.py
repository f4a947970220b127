"""What a run of the matrix did and found: counts by scenario and store, boundaries, states, and every failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agentlane.testing.matrix.boundaries import name_of, rows_of
from agentlane.testing.matrix.found import FoundCall, FoundState
from agentlane.testing.matrix.stops import Stops, stops_text

FAILURES_SHOWN_MAX = 5
HISTORY_LINES_MAX = 120


@dataclass(frozen=True)
class CrashFailure:
    """A history that did not end as it must: how to play it again, what is wrong, and what happened."""

    scenario: str
    store: str
    stops: Stops
    complaints: tuple[str, ...]
    history: str

    @property
    def only(self) -> str:
        """The stops as one line, which ``crash_matrix(..., only=)`` takes to play just this history again."""
        return stops_text(self.stops)

    def __str__(self) -> str:
        lines = self.history.splitlines()
        shown = lines if len(lines) <= HISTORY_LINES_MAX else [*lines[:20], "...", *lines[20 - HISTORY_LINES_MAX :]]
        text = self.only
        return "\n".join(
            [
                f"{self.scenario!r} on {self.store}, {f'stopped at {text}' if text else 'not stopped at all'}:",
                *(f"  - {each}" for each in self.complaints),
                f"  again: await crash_matrix(scenario, stores=[{self.store!r}], only={text!r})",
                "  history:",
                *(f"    {each}" for each in shown),
            ]
        )


@dataclass
class Row:
    """The counts of one scenario on one store. A stop counts only where it came about.

    ``points`` are the boundaries of the run without stops; ``again`` counts the kills of a process that went on from an
    earlier stop. ``alike`` counts histories that left behind just what another had left in the store, in the world and
    of effects, so that from there on they are that one: it was played to its end, and they up to there.
    """

    scenario: str
    store: str
    points: int = 0
    histories: int = 0
    kills: int = 0
    again: int = 0
    closes: int = 0
    aborts: int = 0
    failures: int = 0
    alike: int = 0

    def add(self, other: Row) -> None:
        """Add the counts of another row."""
        for name in ("points", "histories", "kills", "again", "closes", "aborts", "failures", "alike"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class CrashReport:
    """What a run of the matrix did and found. ``str()`` of it is a table for people.

    ``killed``, ``closed`` and ``aborted`` count the boundaries at which that came about. ``states`` and ``calls`` are
    what processes found when they opened the session. ``missed`` are boundaries of the library that no process was
    killed at, where that was asked for.
    """

    width: int = 8
    rows: list[Row] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    states: Counter[FoundState] = field(default_factory=Counter)
    calls: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    failures: list[CrashFailure] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(self.killed.values())

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures and not self.missed

    def found(self, call: FoundCall) -> None:
        """Count a call that a process found under way: stored policy, what the process has for it, and cancelled."""
        self.calls[call.stored, call.current, call.cancelled] += 1

    def killed_rows(self) -> set[str]:
        """The boundaries that a process was killed at, merged commits taken apart."""
        return {row for boundary in self.killed for row in rows_of(boundary)}

    def merge(self, other: CrashReport) -> None:
        """Take over what another run did and found."""
        self.width = max(self.width, other.width)
        self.rows += other.rows
        for name in ("killed", "closed", "aborted", "states", "calls"):
            getattr(self, name).update(getattr(other, name))
        self.missed += other.missed
        self.failures += other.failures

    def heading(self) -> str:
        """The first line of the table."""
        return (
            f"{'scenario':<{self.width}}  {'store':<7} {'points':>6} {'histories':>9} {'killed':>7} {'again':>7} "
            f"{'closed':>6} {'aborted':>7}  result"
        )

    def line(self, row: Row) -> str:
        """One line of the table."""
        result = f"{row.failures} FAILED" if row.failures else "right"
        return (
            f"{row.scenario:<{self.width}}  {row.store:<7} {row.points:>6} {row.histories:>9} {row.kills:>7} "
            f"{row.again:>7} {row.closes:>6} {row.aborts:>7}  {result}"
        )

    def summary(self) -> str:
        """What is below the table: the totals, boundaries that were missed, and failures with their histories."""
        total = Row("all", "")
        for row in self.rows:
            total.add(row)
        names = {name_of(boundary) for boundary in self.killed}
        lines = [
            self.line(total),
            f"{self.kills} processes were killed, {total.again} of them while they went on from an earlier stop, at "
            f"{len(self.killed)} different boundaries of {len(names)} kinds of commits and effects.",
        ]
        if total.alike:
            lines.append(
                f"{total.alike} histories in memory left what another had left, and share its ending from there on."
            )
        lines += [f"MISSED: no process was killed at {each}" for each in self.missed]
        lines += [f"FAILED {failure}" for failure in self.failures[:FAILURES_SHOWN_MAX]]
        if len(self.failures) > FAILURES_SHOWN_MAX:
            lines.append(f"... and {len(self.failures) - FAILURES_SHOWN_MAX} more histories failed")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.heading(), *map(self.line, self.rows), self.summary()])


class CrashMatrixError(AssertionError):
    """Some history did not end as it must, or some boundary was missed; ``report`` and the message say which."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(str(report))
        self.report = report
