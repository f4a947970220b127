"""The crash matrix: every boundary of a scenario, every way to stop there, again inside the recovery, on all stores."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlane.errors import InvalidDefinition
from agentlane.testing.faults import Point
from agentlane.testing.matrix.boundaries import library_boundaries, rows_of
from agentlane.testing.matrix.checks import Ended, check_found, check_history
from agentlane.testing.matrix.compare import differs_from_one_recovery, differs_from_reference
from agentlane.testing.matrix.endings import Ending, Endings, Mark
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.lives import Lived, live
from agentlane.testing.matrix.oracle import Oracle
from agentlane.testing.matrix.report import CrashFailure, CrashMatrixError, CrashReport, Row
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.matrix.stops import WAYS, How, Stop, Stops, parse_stops
from agentlane.testing.matrix.stores import Place, StoreChoice, StoreMaker, chosen_stores, made_in

HANG_S = 300
"""A history that takes longer hangs. It never decides anything else: nothing in one waits for time to pass."""
AGAIN_ON_DISK = 20
"""On a persistent store a recovery is stopped at every so-manieth of its boundaries, unless told otherwise."""
AGAIN_ON_THE_WAY = 5
"""A process that was told to close or to abort is killed at most at every fifth boundary that it passes then."""
AGAIN_AFTER_CLOSE = 5
"""After a clean close the recovery is stopped that many times less often than after a kill: it finds no more."""
FAILURES_MAX = 25
UNCHANGING = (type(None), bool, int, float, str, bytes, tuple, frozenset)
"""Worlds that nothing can be done to, so that all histories may have the same."""
OTHERWISE = " (if a model or a tool may say something else each time: steady=False)"
"""A run stops looking once that many histories have failed, unless told otherwise."""


@dataclass(frozen=True)
class Depth:
    """How much of the matrix is played.

    - ``every``: only every so-manieth boundary of the run without stops is stopped at, from the ``first`` on, and on
      the next store one further; 1 is each of them.
    - ``again``: the same for the boundaries of each recovery; 0 leaves recoveries alone. None is 1 in memory, where
      histories cost least, and ``AGAIN_ON_DISK`` on a persistent store. Which of them it is changes from one first stop
      to the next, so that all are stopped at behind some.
    """

    every: int = 1
    first: int = 0
    again: int | None = None


async def crash_matrix(
    scenarios: Scenario[Any] | Iterable[Scenario[Any]],
    *,
    stores: StoreChoice = ("memory", "jsonl", "sqlite"),
    ways: Sequence[How] = WAYS,
    depth: Depth | None = None,
    only: str | Sequence[str] | None = None,
    every_boundary: bool = False,
    failures_max: int = FAILURES_MAX,
    folder: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> CrashReport:
    """Play every history of ``scenarios`` on ``stores`` and check what came of each; see the package's text.

    ``only`` plays one history, or several: the text that a failure names. ``every_boundary`` asks that, over all
    scenarios, a process is killed at each boundary that the library has. Histories on disk are kept in fresh folders
    below ``folder``, or below a temporary one. ``progress`` is called with each line of the table as it is known.

    Returns the report, and raises ``CrashMatrixError`` with it if any history did not end as it must, once all have
    been played or ``failures_max`` have failed. It may not be called while other work runs on the event loop that must
    not wait: histories follow each other without a pause.
    """
    chosen = [scenarios] if isinstance(scenarios, Scenario) else list(scenarios)
    report = CrashReport(width=max((len(each.name) for each in chosen), default=0))
    told = progress or (lambda _line: None)
    told(report.heading())
    for scenario in chosen:
        for number, (name, make) in enumerate(chosen_stores(stores).items()):
            with tempfile.TemporaryDirectory(dir=folder, prefix="crash-matrix-") as below:
                run = _Run(scenario, name, make, Path(below), report, failures_max)
                if only is None:
                    await run.all(ways, depth or Depth(), number)
                else:
                    await run.some([parse_stops(each) for each in ([only] if isinstance(only, str) else only)])
            told(report.line(run.row))
    if every_boundary:
        report.missed = sorted(library_boundaries() - report.killed_rows())
    if not report.passed:
        raise CrashMatrixError(report)
    return report


@dataclass
class _Played:
    """One history that was played to its end."""

    history: History[Any]
    lives: list[Lived]
    ended: Ended

    @property
    def recovery(self) -> list[Point]:
        """The boundaries of its last process that does anything."""
        return self.lives[-1].boundaries


class _Playing:
    """One history while it is played: its processes one after the other, and what is found wrong on the way."""

    def __init__(self, history: History[Any], scenario: Scenario[Any], oracle: Oracle, endings: Endings | None) -> None:
        self.lives: list[Lived] = []
        self.complaints: list[str] = []
        self.known = False
        """Whether it left what another one left, whose ending is then its own."""
        self._history = history
        self._scenario = scenario
        self._oracle = oracle
        self._endings = endings
        self._mark: Mark | None = None
        self._ending: Ending | None = None

    async def to_its_end(self) -> Ended:
        """Play it, and check what came of it."""
        stops = self._history.stops
        for number, each in enumerate((*stops, ())):
            # What a stop leaves is looked at where no other one follows; it is the same there.
            look = self._look if number == len(stops) > 0 else None
            self.lives.append(await live(self._history, self._scenario, each, look=look))
        if self._ending is not None:
            self._go_on_alike(self._ending)
            return self._ending.ended
        ended = await check_history(self._history, self._oracle, again=self._scenario if len(stops) <= 1 else None)
        self.complaints += ended.complaints
        return ended

    def remember(self, ended: Ended) -> None:
        """It was found right."""
        if self._endings is not None and self._mark is not None and not self.known:
            self._endings.add(self._mark, self._history, self.lives[len(self._history.stops) :], ended)

    async def _look(self, life: Life[Any]) -> bool:
        found = await check_found(self._history, life, self._oracle)
        if found:
            raise AssertionError(f"what process {life.number} found is not sound: {found}")
        if self._endings is not None:
            self._mark = self._endings.mark(self._history)
            self._ending = None if self._mark is None else self._endings.find(self._mark)
        return self._ending is None

    def _go_on_alike(self, ending: Ending) -> None:
        self.known = True
        self.lives[-1:] = ending.lives
        self._history.witness.starts += ending.starts
        self._history.witness.hooked += ending.hooked
        self._history.findings += ending.findings


class _Run:
    """One scenario on one store."""

    def __init__(
        self,
        scenario: Scenario[Any],
        store: str,
        make: StoreMaker,
        folder: Path,
        report: CrashReport,
        failures_max: int,
    ) -> None:
        self.row = Row(scenario.name, store)
        self._scenario = scenario
        self._store = store
        self._make = make
        self._folder = folder
        self._on_disk = make(folder).capabilities.persistent
        self._report = report
        self._failures_max = failures_max
        self._left: set[object] = set()
        self._made: dict[str, bytes] | None = None
        self._endings = Endings()
        self._oracle = Oracle()
        self._world: Any = None
        self._reference: Ended | None = None
        report.rows.append(self.row)

    async def some(self, histories: Sequence[Stops]) -> None:
        """The history without stops, and these."""
        reference = await self._play(())
        if reference is not None:
            for stops in histories:
                if stops:
                    await self._play(stops, named=True)

    async def all(self, ways: Sequence[How], depth: Depth, number: int) -> None:
        """Every history. ``number`` is that of the store."""
        reference = await self._play(())
        if reference is None:
            return
        points = reference.lives[0].boundaries
        self.row.points = len(points)
        again = depth.again
        if again is None:
            again = AGAIN_ON_DISK if self._on_disk else 1
        first = (depth.first + number) % depth.every
        for number, point in list(enumerate(points))[first :: depth.every]:
            for how in ways:
                if self._given_up:
                    return
                await self._from(number, Stop(how, point), again)

    def _is_new(self, stop: Stop, once: _Played) -> bool:
        """Whether no stop before left behind what this one did: the same in the store, with the same effects begun.

        In memory nothing depends on chance, so the process that goes on from there does the same in both.
        """
        starts, hooked = once.history.witness.starts, once.history.witness.hooked
        begun = tuple((each.call_id, each.attempt, each.ended) for each in starts if each.life == 1)
        asked = tuple((each.point, each.call_id, each.ended) for each in hooked if each.life == 1)
        left = (stop.how, begun, asked, once.history.findings[1].left)
        if left in self._left:
            return False
        self._left.add(left)
        return True

    @property
    def _given_up(self) -> bool:
        return len(self._report.failures) >= self._failures_max

    async def _from(self, number: int, stop: Stop, again: int) -> None:
        """The history with that one stop, and those with one more behind it."""
        once = await self._play(((stop,),))
        if once is None or not again:
            return
        if stop.how != "kill":
            # The process goes on for a while, and may die on that way.
            first = once.lives[0]
            behind = _behind(first, stop.at)
            step = max(again, AGAIN_ON_THE_WAY)
            for point in behind[number % step :: step]:
                if self._given_up:
                    return
                await self._play(((stop, Stop("kill", point)),))
        if stop.how != "abort" and (self._on_disk or self._is_new(stop, once)):
            step = again if stop.how == "kill" else again * AGAIN_AFTER_CLOSE
            for point in once.recovery[number % step :: step]:
                if self._given_up:
                    return
                await self._play(((stop,), (Stop("kill", point),)), once)

    async def _play(self, stops: Stops, once: _Played | None = None, *, named: bool = False) -> _Played | None:
        """One history, played and checked; None if it failed. ``once`` is the one with a stop less; one that somebody
        ``named`` has to come about."""
        scenario, report = self._scenario, self._report
        async with self._place() as place:
            history = History(place, self._fresh_world(), store=self._store, stops=stops)
            playing = _Playing(history, scenario, self._oracle, None if self._on_disk or named else self._endings)
            complaints, ended = playing.complaints, Ended()
            try:
                async with asyncio.timeout(HANG_S):
                    ended = await playing.to_its_end()
                    complaints += self._compared(history, ended, once)
                    if not complaints and scenario.check is not None and not playing.known:
                        complaints += await _said(scenario.check(history))
                    await history.close()
            except TimeoutError:
                complaints.append(
                    f"it hung: not done after {HANG_S} s. The clock stands still: what waits for it waits for somebody "
                    "to advance `life.clock`; only lanes of `life.lane()` let a wait for a retry pass"
                )
            except Exception as error:  # whatever goes wrong in a history is told with it
                complaints.append(f"{type(error).__name__}: {error}")
        missed = self._count(history, playing.lives)
        if named and not complaints:
            complaints += [f"{stop} did not come about: no process got there" for stop in missed]
        if complaints:
            self.row.failures += 1
            failure = CrashFailure(scenario.name, self._store, stops, tuple(complaints), history.text())
            report.failures.append(failure)
            return None
        self.row.alike += playing.known
        if self._reference is None:
            self._reference = ended
        playing.remember(ended)
        return _Played(history, playing.lives, ended)

    def _compared(self, history: History[Any], ended: Ended, once: _Played | None) -> list[str]:
        found: list[str] = []
        if self._reference is not None:
            if self._scenario.steady and not ended.strayed:
                hooked = history.asks("after_response")
                found += [
                    each + OTHERWISE
                    for each in differs_from_reference(
                        ended.stories,
                        self._reference.stories,
                        hooked=hooked,
                        summarized=ended.whole,
                    )
                ]
            stopped = any(stop.how == "abort" for stops in history.stops for stop in stops)
            if ended.aborts and not stopped and not self._reference.aborts:  # else the act aborts by itself
                found.append(f"operations {sorted(ended.aborts)} were aborted, and nobody asked for that")
        # With threads a close may have come at another moment, and then its process left something else behind.
        alike = once is not None and once.history.findings[1].left == history.findings[1].left
        strayed = ended.strayed or (once is not None and once.ended.strayed)
        if once is not None and alike and self._scenario.steady and not strayed:
            # A call that the second stop found under way, or that a process refused to start in one of the two.
            excused = {call.call_id for call in history.found_calls if call.life > 2}
            excused |= {id for id in ended.calls if not history.witness.of_call(id)}
            differing = differs_from_one_recovery(once.ended.stories, ended.stories, excused)
            found += [each + OTHERWISE for each in differing]
        return found

    def _fresh_world(self) -> Any:
        world = self._scenario.world()
        if world is self._world and not isinstance(world, UNCHANGING):
            raise InvalidDefinition(
                f"scenario {self._scenario.name!r}: world() gave the same {type(world).__name__} twice; each history "
                "needs one of its own"
            )
        self._world = world
        return world

    def _count(self, history: History[Any], lives: Sequence[Lived]) -> list[Stop]:
        """Count what came about; the stops that did not."""
        row, report = self.row, self._report
        missed: list[Stop] = []
        row.histories += 1
        for number, (lived, stops) in enumerate(zip(lives, history.stops, strict=False)):
            for stop in stops:
                if stop.how == "kill" and lived.end == "killed":
                    row.kills += 1
                    row.again += number > 0 or len(stops) > 1
                    report.killed[stop.at.boundary] += 1
                elif stop.how == "close" and lived.turned == "close":
                    row.closes += 1
                    report.closed[stop.at.boundary] += 1
                elif stop.how == "abort" and lived.turned == "abort":
                    row.aborts += 1
                    report.aborted[stop.at.boundary] += 1
                else:
                    missed.append(stop)
        for findings in history.findings:
            report.states.update(findings.states)
        for call in history.found_calls:
            report.found(call)
        return missed

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[Place]:
        if not self._on_disk:
            yield Place(self._make, self._folder)
            return
        with tempfile.TemporaryDirectory(dir=self._folder) as below:
            if self._made is None:
                made = await made_in(self._make, self._folder / "made")
                self._made = made or None
            yield Place(self._make, Path(below), self._made)


async def _said(outcome: object) -> list[str]:
    """What a check has to complain of, beside what it raises."""
    if inspect.isawaitable(outcome):
        outcome = await outcome
    return ["check gave False: assert, or raise, what does not hold"] if outcome is False else []


def _behind(lived: Lived, point: Point) -> list[Point]:
    """The boundaries of a process behind that one, up to the end of the operation that was aborted or closed there."""
    at = lived.boundaries.index(point) + 1 if point in lived.boundaries else len(lived.boundaries)
    found: list[Point] = []
    for each in lived.boundaries[at:]:
        found.append(each)
        if any(row == "commit.terminal.after" for row in rows_of(each.boundary)):
            break
    return found
