"""Claim: wherever a process is killed, closed or aborted, the next one goes on to a conversation that an uninterrupted
run could have made, with as many effects as the policies allow.

The whole form kills each of the library's scenarios at every boundary in memory, and at others of them on each other
store; closes and aborts it; and kills again inside each recovery, along diagonals: at every boundary of it, behind some
of the first stops. The command `python -m agentlane.testing.matrix --whole` leaves none of it out. The reduced form is
a sample of that, beside which `test_everything_is_reached` leaves no boundary, state or pair of policies out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from agentlane.testing import Depth, Scenario, crash_matrix, library_boundaries
from agentlane.testing.faults import Point
from agentlane.testing.matrix.builtin import SCENARIOS
from agentlane.testing.matrix.builtin.changed import CURRENT, STORED
from agentlane.testing.matrix.builtin.hands import Hands
from agentlane.testing.matrix.builtin.inbox import INBOX
from agentlane.testing.matrix.builtin.plain import BARRIER, MEMO, STREAM
from agentlane.testing.matrix.builtin.reach import (
    reach_everywhere,
    reach_pairs_in_parallel,
    reach_pairs_one_by_one,
    reach_pairs_that_ask,
)
from agentlane.testing.matrix.checks import check_history
from agentlane.testing.matrix.found import Current
from agentlane.testing.matrix.history import History
from agentlane.testing.matrix.lives import live
from agentlane.testing.matrix.oracle import Oracle
from agentlane.testing.matrix.stops import Stop, parse_stops, stops_text
from agentlane.testing.matrix.stores import STORES, Place
from tests.crash.expected import EXPECTED
from tests.crash.world import shape

BACKENDS = tuple(STORES)
AGAIN_IN_MEMORY = 45
"""A recovery is stopped at every so-manieth of its boundaries, from one first stop to the next at another, so that each
is stopped at behind some. `python -m agentlane.testing.matrix --whole` does so behind every one, and takes longer than
all other tests together."""
AGAIN_ELSEWHERE = 225
"""The same where histories cost more than in memory."""

KILLS_EVERY = {"memory": 1, "late": 5, "jsonl": 5, "sqlite": 10}
ENDS_EVERY = {"memory": 5, "late": 50, "jsonl": 50, "sqlite": 75}
"""The whole form kills, and closes or aborts, at every so-manieth boundary of a scenario."""

SAMPLE_EVERY = 31
"""The reduced form stops at every so-manieth boundary of a scenario, another one on each store."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The reduced form plays each scenario on one store, by turns, the whole one on all."""
    if "backend" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        chosen = [
            pytest.param(scenario, backend, id=f"{scenario.name}-{backend}")
            for number, scenario in enumerate(SCENARIOS)
            for place, backend in enumerate(BACKENDS)
            if whole or number % len(BACKENDS) == place
        ]
        metafunc.parametrize(("scenario", "backend"), chosen)


async def test_stopped_anywhere_it_goes_on(scenario: Scenario[Any], backend: str, tmp_path: Path, whole: bool) -> None:
    if not whole:
        first = 7 * SCENARIOS.index(scenario) + 11 * BACKENDS.index(backend)
        depth = Depth(every=SAMPLE_EVERY, first=first, again=SAMPLE_EVERY)
        report = await crash_matrix(scenario, stores=[backend], depth=depth, folder=tmp_path)
        assert report.rows[0].points > 10
        return

    # Killed at every boundary in memory, and again at every one of the recovery behind some of AGAIN_IN_MEMORY first
    # kills; elsewhere at every so-manieth, others on each store and for each scenario. So closes and aborts.
    memory, first = backend == "memory", SCENARIOS.index(scenario)
    again = AGAIN_IN_MEMORY if memory else AGAIN_ELSEWHERE
    every = KILLS_EVERY[backend]
    if scenario in INBOX:  # the longest histories: the same boundaries again and again, with more or less waiting
        again, every = (3 * again, 1) if memory else (again, 3 * every)
    kills = Depth(every=every, first=first, again=again)
    killed = await crash_matrix(scenario, stores=[backend], ways=["kill"], depth=kills, folder=tmp_path)
    ends = ENDS_EVERY[backend]
    others = Depth(every=ends, first=first, again=5 * again if memory else 0)
    ended = await crash_matrix(scenario, stores=[backend], ways=["close", "abort"], depth=others, folder=tmp_path)

    points = killed.rows[0].points
    assert points > 10
    assert killed.rows[0].kills - killed.rows[0].again >= points // every - 2  # a thread may be late for the last ones
    assert not memory or killed.rows[0].again > points / AGAIN_IN_MEMORY / 4
    assert ended.rows[0].closes >= points // ends - 2
    assert ended.rows[0].aborts >= points // ends - 2


@pytest.mark.parametrize("name", EXPECTED)
async def test_without_stops_it_is_as_written(name: str, tmp_path: Path) -> None:
    """What the matrix compares with is right: the conversation that was meant."""
    scenario = next(each for each in SCENARIOS if each.name == name)
    history = History(Place(STORES["memory"], tmp_path), scenario.world())
    await live(history, scenario)
    await check_history(history, Oracle())

    assert shape(history.messages) == EXPECTED[name]


# What is reached.


async def test_everything_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """Every boundary kills, every state and call status is found by a next process, and every pair of policies."""
    report = await reach_everywhere()

    assert library_boundaries() - report.killed_rows() == set()

    places = {(state.at, state.cancelled) for state in report.states}
    phases = ["checkpoint(respond)", "checkpoint(finish)", "generating", "retry_wait", "tools"]
    phases += ["checkpoint(summarize)", "summarizing", "summary_wait", "navigating"]
    assert {(at, cancelled) for at in phases for cancelled in (False, True)} - places == set()

    # Each pair of stored and current policy, running and aborted, in parallel and one by one.
    assert set(get_args(Current)) == set(CURRENT)
    pairs = {(old, new, cancelled) for old in STORED.values() for new in CURRENT for cancelled in (False, True)}
    parallel, sequential = await reach_pairs_in_parallel(), await reach_pairs_one_by_one()
    assert pairs - set(parallel.calls) == set()
    assert pairs - set(sequential.calls) == set()
    asking = await reach_pairs_that_ask()
    assert {("ask", new, cancelled) for new in CURRENT for cancelled in (False, True)} - set(asking.calls) == set()
    report.merge(parallel)
    report.merge(sequential)
    report.merge(asking)

    statuses = {(call, state.cancelled) for state in report.states for call in state.calls}
    names = ["planned", "effect_pending", "outcome_ready", "placed"]
    assert {(status, cancelled) for status in names for cancelled in (False, True)} - statuses == set()

    with capsys.disabled():
        print(f"\n{report.summary()}")


# What is played once.


class Alone(Hands):
    """A world that cannot be compared, so that each history in it is played to its end."""

    fingerprint = None  # type: ignore[assignment]


@pytest.mark.parametrize("scenario", [BARRIER, MEMO], ids=lambda each: each.name)
async def test_histories_that_share_an_ending_come_to_what_they_come_to_alone(
    scenario: Scenario[Any], whole: bool
) -> None:
    depth = Depth(every=4, again=7) if whole else Depth(every=9, again=17)
    shared = await crash_matrix(scenario, stores=["memory"], depth=depth)
    alone = await crash_matrix(replace(scenario, world=Alone), stores=["memory"], depth=depth)

    assert shared.rows[0].alike > (30 if whole else 5) and alone.rows[0].alike == 0
    assert replace(shared.rows[0], alike=0) == alone.rows[0]
    assert (shared.killed, shared.closed, shared.aborted) == (alone.killed, alone.closed, alone.aborted)
    assert shared.states.keys() == alone.states.keys() and shared.calls.keys() == alone.calls.keys()


async def test_worlds_in_which_something_else_happened_share_no_ending() -> None:
    """Each history has a world that differs from all others by one number, which its effects do not show."""
    numbers = count()

    class Numbered(Hands):
        def __init__(self) -> None:
            super().__init__()
            self.number = next(numbers)

    numbered = replace(BARRIER, world=Numbered)
    report = await crash_matrix(numbered, stores=["memory"], depth=Depth(every=3, again=0))

    assert report.rows[0].alike == 0


# How it is told.


def test_stops_read_as_they_are_written() -> None:
    text = "close@effect.tool.start#2, kill@commit.close.before#1 / kill@commit.outcome_placed+intent.after#3"
    stops = parse_stops(text)

    assert stops[1] == (Stop("kill", Point("commit.outcome_placed+intent.after", 3)),)
    assert stops_text(stops) == text
    assert parse_stops("") == ()
    with pytest.raises(ValueError, match="is no stop"):
        parse_stops("explode@commit.accept.after#1")


async def test_a_failure_says_how_to_play_it_again() -> None:
    """A wrong world fails the history with the stops that lead there, and playing only those fails again."""

    def check(history: History[Any]) -> None:
        if history.started["alone"] and not history.whole:
            raise AssertionError("not like that")

    scenario = Scenario("picky", agent=BARRIER.agent, world=BARRIER.world, check=check)
    with pytest.raises(AssertionError) as caught:
        await crash_matrix(scenario, stores=["memory"], depth=Depth(again=0), ways=["kill"])
    failure = caught.value.report.failures[0]  # type: ignore[attr-defined]
    text = stops_text(failure.stops)

    assert failure.complaints == ("AssertionError: not like that",)
    assert f"crash_matrix(scenario, stores=['memory'], only={text!r})" in str(caught.value)
    with pytest.raises(AssertionError, match="not like that"):
        await crash_matrix(scenario, stores=["memory"], only=text)


async def test_a_missed_boundary_fails_the_run() -> None:
    with pytest.raises(AssertionError, match=r"MISSED: no process was killed at commit\.memo\.before"):
        await crash_matrix(STREAM, stores=["memory"], ways=["kill"], depth=Depth(again=0), every_boundary=True)
