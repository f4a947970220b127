"""Claim: no history that is small enough to try breaks a promise of the machine; and one with a bug is found out."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import chain, product
from typing import get_args

import pytest

from agentlane.data.operations import OperationState
from agentlane.machine.facts import Fact, IllegalStep, Step
from agentlane.machine.rules import Rules
from agentlane.machine.table import TABLE, step
from tests.machine.explore import COMPACTED, REDUCED, TWO_THAT_ASK, WHOLE, Explored, explore, never_ends
from tests.machine.misfits import every_fact, fits
from tests.machine.mutants import BUGS as PLAIN_BUGS
from tests.machine.mutants import Bug
from tests.machine.mutants_inbox import INBOX_BUGS
from tests.machine.mutants_questions import LENIENT, QUESTION_BUGS
from tests.machine.mutants_summaries import LENIENT_SUMMARIES, SUMMARY_BUGS
from tests.machine.promises import Promise, Violation
from tests.machine.world import Scope

BUGS = (*PLAIN_BUGS, *INBOX_BUGS, *QUESTION_BUGS, *SUMMARY_BUGS)

# The size of the space, so that one that shrinks by mistake is seen: worlds, transitions, states of the machine.
SIZES = {
    "two calls, one restart, one replay": (4_461, 17_143, 454),
    "one call, two restarts, two replays": (461, 1_610, 96),
    "three calls, no restart, no replay": (8_827, 39_340, 980),
    "two models": (501, 2_668, 178),
    "runs of other agents": (2_042, 8_627, 154),
    "three calls and children": (20_076, 110_171, 940),
    "an answer that is not of its type": (924, 3_709, 270),
    "retries, one restart, one replay": (35_368, 176_572, 2_302),
    "no retries, two restarts, two replays": (25_115, 106_096, 2_954),
    "neither restarts nor replays": (17_563, 78_460, 1_928),
    "one call that people are asked about, two replays": (1_059, 4_109, 154),
    "two calls that people are asked about, one replay": (9_423, 41_905, 956),
    "two calls with hooks": (1_022, 4_179, 246),
    "hooks": (9_672, 56_287, 890),
    "queued input, all at once": (5_922, 27_802, 304),
    "queued input, steering one at a time, follow-ups all at once": (5_938, 27_855, 314),
    "more queued input, all at once": (15_112, 75_886, 398),
    "more queued input, steering one at a time, follow-ups all at once": (15_218, 76_213, 424),
    "one call that asks twice, one replay": (1_325, 5_292, 184),
    "two calls that ask, one replay": (3_893, 15_636, 502),
    "two calls that ask, tools that may be like anything": (10_483, 42_954, 1_330),
    "two calls that ask twice": (13_960, 55_103, 2_222),
    "three calls that ask": (10_438, 37_694, 2_422),
    "summaries of a run": (5_679, 24_082, 2_474),
    "summaries and queued input, one at a time": (3_071, 15_843, 436),
    "a compaction that somebody asked for": (2_005, 11_310, 96),
    "a compaction whose own request is too long": (704, 3_182, 112),
    "a navigation with a summary": (4_164, 26_922, 266),
    "a navigation without one": (30, 117, 2),
    "summaries of a run, more of everything": (32_297, 156_491, 6_626),
    "summaries, calls and queued input": (7_339, 34_806, 808),
    "a compaction by any of three models": (10_933, 80_558, 580),
}


COSTLY = 28_000
"""Transitions from which on a scope is the whole form's, and is looked through last for a seeded bug."""
NEAR = 200
"""Worlds of each scope that are looked through for a seeded bug before the whole of any."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scope" in metafunc.fixturenames:
        small = [scope for scope in REDUCED if not _is_costly(scope)]
        scopes = [*REDUCED, *WHOLE] if metafunc.config.getoption("--whole") else small
        metafunc.parametrize("scope", scopes, ids=[scope.name for scope in scopes])


def size_of(explored: Explored) -> tuple[int, int, int]:
    return explored.worlds, explored.transitions, len(explored.states)


def test_every_small_history_keeps_every_promise(scope: Scope) -> None:
    explored = _as_built(scope)

    print(f"\n{scope.name}: {explored}")
    assert size_of(explored) == SIZES[scope.name]
    assert explored.ends == {"completed", "failed", "aborted"}
    told = _refused_and_taken(explored, scope)
    print(f"  facts brought to each of its states: {dict(told)}")


def test_every_row_of_the_table_is_gone_through_and_nothing_beside_it() -> None:
    scopes = [scope for scope in REDUCED if not _is_costly(scope) and scope is not TWO_THAT_ASK]
    rows = frozenset[tuple[type, type]]().union(*(_as_built(scope).rows for scope in scopes))

    assert rows == TABLE.keys()


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_seeded_bug_is_found(bug: Bug) -> None:
    found: Violation | None = None
    # Most are found in a small one, those of questions only where tools ask, those of queued input where some is
    # queued; and near the beginning, where it shows.
    about = [scope for scope in REDUCED if _is_about(bug, scope)]
    others = [scope for scope in REDUCED if scope not in about]
    tries = [product((NEAR, None), sorted(each, key=_is_costly)) for each in (about, others)]
    for worlds_max, scope in chain(*tries):
        try:
            explore(scope, bug.machine, worlds_max=worlds_max)
        except Violation as violation:
            found = violation
            break

    assert found is not None, "nothing is broken"
    assert found.promise == bug.breaks, found
    assert "history:" in str(found) and "accepted" in str(found)


def _is_about(bug: Bug, scope: Scope) -> bool:
    """Whether what the bug is about happens in the scope."""
    if (scope.shorter > 0) != (bug in SUMMARY_BUGS):
        return False
    if bug in SUMMARY_BUGS:
        return True
    return scope.queued > 0 if bug in INBOX_BUGS else (scope.questions > 0) == (bug in QUESTION_BUGS)


def _is_costly(scope: Scope) -> bool:
    return SIZES[scope.name][1] > COSTLY


@pytest.mark.parametrize("what", LENIENT)
def test_a_machine_that_takes_what_it_must_refuse_is_found(what: str) -> None:
    with pytest.raises(AssertionError, match="Question|CallsIntended"):
        _refused_and_taken(_as_built(TWO_THAT_ASK), TWO_THAT_ASK, LENIENT[what])


@pytest.mark.parametrize("what", LENIENT_SUMMARIES)
def test_a_machine_that_summarizes_what_it_must_not_is_found(what: str) -> None:
    with pytest.raises(AssertionError, match="Summary|QueuedPlaced"):
        _refused_and_taken(_as_built(COMPACTED), COMPACTED, LENIENT_SUMMARIES[what])


@cache
def _as_built(scope: Scope) -> Explored:
    return explore(scope)


def test_each_promise_is_one_that_a_seeded_bug_breaks() -> None:
    assert {bug.breaks for bug in BUGS} == {*get_args(Promise)}


@pytest.mark.parametrize(
    ("moves", "stuck"),
    [
        pytest.param([(0, 1), (1, 2)], None, id="a way to the end"),
        pytest.param([(0, 1), (1, 2), (0, 2)], None, id="two ways to the end"),
        pytest.param([(0, 2)], 1, id="a stop before the end"),
        pytest.param([(0, 2), (0, 1)], 0, id="a way to a stop"),
        pytest.param([(0, 1), (1, 0), (1, 2)], 0, id="a circle with a way out"),
        pytest.param([(0, 2), (1, 1), (1, 2)], 1, id="a circle of one"),
    ],
)
def test_a_world_from_which_the_end_may_never_come_is_told(moves: list[tuple[int, int]], stuck: int | None) -> None:
    calm_from, calm_to = array("l", [a for a, _ in moves]), array("l", [b for _, b in moves])

    assert never_ends(3, [2], calm_from, calm_to) == stuck


def _refused_and_taken(
    explored: Explored, scope: Scope, step: Callable[[OperationState, Fact, Rules], Step] = step
) -> Counter[str]:
    """Bring every fact to every state that was reached: it is taken where it fits, and moves nothing elsewhere."""
    told: Counter[str] = Counter()
    for state in explored.states:
        for fact in every_fact(state):
            try:
                taken = step(state, fact, scope.rules)
            except IllegalStep:
                taken = None
            assert (taken is not None) == fits(state, fact, scope.rules), f"{fact} at {state}: {taken}"
            told["refused" if taken is None else "taken"] += 1
    return told
