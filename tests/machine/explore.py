"""Breadth-first over every small history of the machine: ``python -m tests.machine.explore`` prints the counts.

What is not in a world is free: at each moment the planning is asked with every configuration that may be in force then
(policies, tools and models that are missing or were taken away, bad arguments, barriers, ``max_parallel``), so a change
of configuration is possible between any two steps and needs no room in the space. Each step is a commit of its own,
which holds more histories than a driver that merges some has. Worlds are equal when everything that happened and still
matters is: a call that has its result, or a turn that is over, has no past.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from agentlane.data.operations import OperationState
from tests.machine.moves import Machine, Moves
from tests.machine.promises import Violation
from tests.machine.world import (
    ASKED,
    ASKED_BARRIER,
    ASKED_SAFE,
    ASKS_BEFORE_A_REPLAY,
    BAD_ARGUMENTS,
    BARRIER,
    CHILD,
    CHILD_BARRIER,
    CONSULTED,
    CONSULTING,
    KEYED,
    MISSING,
    NEVER,
    NEVER_BARRIER,
    PLAIN,
    TO_COMPACT,
    TO_MOVE,
    TO_MOVE_WITH_A_SUMMARY,
    Scope,
    scope_rules,
)

AS_BUILT = Machine()


class Explored(NamedTuple):
    """What an exploration went through: worlds, moves between them, states of the machine, rows of its table."""

    worlds: int
    transitions: int
    states: frozenset[OperationState]
    rows: frozenset[tuple[type, type]]
    ends: frozenset[str]

    def __str__(self) -> str:
        return (
            f"{self.worlds:,} worlds, {self.transitions:,} transitions, {len(self.states):,} states of the machine, "
            f"{len(self.rows)} rows of its table"
        )


def explore(scope: Scope, machine: Machine = AS_BUILT, *, worlds_max: int | None = None) -> Explored:
    """Everything that can be reached within the scope. ``Violation``, with the way there, for what must not be.

    With ``worlds_max`` no more worlds than that are gone on from, those nearest to the beginning; if there are more,
    whether each comes to an end is not known.
    """
    moves = Moves(scope, machine)
    # A world is the number of what it has in common with those of other lives, the lives and what was queued before.
    numbers: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    worlds = [(0, 0, 0)]
    came_from = array("l", [-1])
    how: list[object] = ["accepted"]
    calm_from, calm_to = array("l"), array("l")
    ended: list[int] = []
    transitions = 0
    at = 0
    while at < len(worlds) and at != worlds_max:
        alike, lives_before, queued_before = worlds[at]
        try:
            onward = moves.of(alike)
        except Violation as violation:
            raise Violation(violation.promise, f"{violation.told}\n{_history(at, came_from, how)}") from None
        for what, to, lives, queued, calm in onward:
            lives, queued = lives_before + lives, queued_before + queued
            if lives > scope.deaths or queued > scope.queued:
                continue
            transitions += 1
            ends = moves.world(to).state is None
            after = (to, 0, 0) if ends else (to, lives, queued)
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(worlds)
                worlds.append(after)
                came_from.append(at)
                how.append(what)
                if ends:
                    ended.append(number)
            if calm:
                calm_from.append(at)
                calm_to.append(number)
        at += 1
    stuck = never_ends(len(worlds), ended, calm_from, calm_to) if at == len(worlds) else None
    if stuck is not None:
        world = moves.world(worlds[stuck][0])._replace(lives=worlds[stuck][1], queued=worlds[stuck][2])
        raise Violation("liveness", f"no end from {world}\n{_history(stuck, came_from, how)}")
    statuses = frozenset(str(moves.world(worlds[number][0]).answer) for number in ended)
    return Explored(len(worlds), transitions, frozenset(moves.states), frozenset(moves.rows), statuses)


def _history(at: int, came_from: array[int], how: list[object]) -> str:
    """What led to a world, first thing first."""
    steps: list[str] = []
    while at >= 0:
        steps.append(f"    {how[at]}")
        at = came_from[at]
    return "history:\n" + "\n".join(reversed(steps))


def never_ends(count: int, ends: Iterable[int], calm_from: array[int], calm_to: array[int]) -> int | None:
    """The first of ``count`` worlds from which calm moves may go round for ever or stop before an end, if there is one.

    Worlds are taken away once all their calm moves lead to worlds that were: what is left is stuck or in a circle.
    """
    onwards = array("l", bytes(count * array("l").itemsize))
    into: list[list[int]] = [[] for _ in range(count)]
    for before, after in zip(calm_from, calm_to, strict=True):
        onwards[before] += 1
        into[after].append(before)
    ready = list(ends)
    left = set(range(count)).difference(ready)
    while ready:
        for before in into[ready.pop()]:
            onwards[before] -= 1
            if onwards[before] == 0:
                ready.append(before)
                left.remove(before)
    return min(left, default=None)


STEERED = Scope(
    "queued input, all at once", 1, 1, 1, scope_rules(attempts=2, restarts=1, replays=1), (PLAIN,), room=(1,), queued=2
)
ONE_BY_ONE = Scope(
    "queued input, steering one at a time, follow-ups all at once",
    *(1, 1, 1),
    scope_rules(attempts=2, restarts=1, replays=1, steering="one", follow_ups="all"),
    (PLAIN,),
    room=(1,),
    queued=2,
)

KINDS = (PLAIN, NEVER, BARRIER, MISSING)
WITH_CHILDREN = (PLAIN, NEVER, BARRIER, CHILD, CHILD_BARRIER, MISSING)
ALL_KINDS = (PLAIN, KEYED, NEVER, BARRIER, NEVER_BARRIER, MISSING, BAD_ARGUMENTS)

ASKED_KINDS = (PLAIN, ASKED, CONSULTED, CONSULTING, ASKED_BARRIER, BARRIER, MISSING, ASKS_BEFORE_A_REPLAY)
LOST_ASKED = (PLAIN, NEVER, ASKED, ASKS_BEFORE_A_REPLAY, BARRIER, MISSING)

LOST_ASKING = (PLAIN, KEYED, NEVER, ASKED_SAFE, ASKS_BEFORE_A_REPLAY, BARRIER, MISSING, BAD_ARGUMENTS)
LOST_TWICE = (PLAIN, NEVER, ASKS_BEFORE_A_REPLAY, BARRIER)
TWO_THAT_ASK = Scope(
    "two calls that ask, one replay",
    *(2, 1, 2),
    scope_rules(attempts=1, restarts=0, replays=1),
    (PLAIN, ASKED_SAFE, BARRIER),
    room=(1, 2),
    lost=(PLAIN, NEVER, BARRIER, MISSING),
    questions=1,
)
SUMMARIZED = Scope(
    "summaries of a run", 1, 1, 1, scope_rules(attempts=2, restarts=1, replays=0), (PLAIN,), room=(1,), shorter=1
)
STEERED_SUMMARIES = Scope(
    "summaries and queued input, one at a time",
    *(0, 0, 0),
    scope_rules(attempts=1, restarts=0, replays=0, steering="one", follow_ups="all"),
    (PLAIN,),
    room=(1,),
    queued=2,
    shorter=1,
)
COMPACTED = Scope(
    "a compaction that somebody asked for",
    *(0, 0, 3),
    scope_rules(attempts=2, restarts=2, replays=0),
    (PLAIN,),
    hooks=True,
    room=(1,),
    start=TO_COMPACT,
    queued=1,
    shorter=1,
)
HALVED = COMPACTED._replace(
    name="a compaction whose own request is too long",
    deaths=0,
    rules=scope_rules(attempts=2, restarts=0, replays=0),
    shorter=7,
)
MOVED = Scope(
    "a navigation with a summary",
    *(0, 0, 2),
    scope_rules(attempts=3, restarts=1, replays=0),
    (PLAIN,),
    models=2,
    hooks=True,
    room=(1,),
    start=TO_MOVE_WITH_A_SUMMARY,
    queued=1,
    shorter=1,
)
JUST_MOVED = MOVED._replace(name="a navigation without one", start=TO_MOVE)

# Which bounds are in force decides which ends two lives can reach: at once, after one, after both.
REDUCED = (
    Scope("two calls, one restart, one replay", 2, 1, 2, scope_rules(attempts=2, restarts=1, replays=1), ALL_KINDS),
    Scope("one call, two restarts, two replays", 1, 1, 2, scope_rules(attempts=1, restarts=2, replays=2), ALL_KINDS),
    Scope("three calls, no restart, no replay", 3, 1, 1, scope_rules(attempts=3, restarts=0, replays=0), KINDS),
    Scope("two models", 0, 0, 2, scope_rules(attempts=3, restarts=2, replays=0), (PLAIN,), models=2, room=(1,)),
    Scope(
        "one call that people are asked about, two replays",
        *(1, 1, 3),
        scope_rules(attempts=1, restarts=1, replays=2),
        ASKED_KINDS,
        lost=LOST_ASKED,
        deferring=True,
    ),
    Scope(
        "two calls that people are asked about, one replay",
        *(2, 1, 2),
        scope_rules(attempts=1, restarts=0, replays=1),
        ASKED_KINDS,
        room=(1, 2),
        lost=LOST_ASKED,
        deferring=True,
    ),
    Scope("runs of other agents", 2, 1, 2, scope_rules(attempts=1, restarts=0, replays=1), WITH_CHILDREN),
    Scope(
        "an answer that is not of its type",
        1,
        1,
        1,
        scope_rules(attempts=2, restarts=1, replays=1),
        (PLAIN,),
        corrections=2,
        room=(1,),
    ),
    Scope("two calls with hooks", 2, 1, 1, scope_rules(attempts=1, restarts=1, replays=1), KINDS, hooks=True),
    STEERED,
    ONE_BY_ONE,
    Scope(
        "one call that asks twice, one replay",
        *(1, 1, 3),
        scope_rules(attempts=1, restarts=0, replays=1),
        (PLAIN, KEYED, NEVER, ASKED_SAFE, BARRIER, MISSING),
        room=(1,),
        deferring=True,
        lost=LOST_ASKING,
        questions=2,
    ),
    TWO_THAT_ASK,
    SUMMARIZED,
    STEERED_SUMMARIES,
    COMPACTED,
    HALVED,
    MOVED,
    JUST_MOVED,
)
WHOLE = (
    Scope("retries, one restart, one replay", 3, 1, 2, scope_rules(attempts=2, restarts=1, replays=1), ALL_KINDS),
    Scope("no retries, two restarts, two replays", 3, 2, 2, scope_rules(attempts=1, restarts=2, replays=2), KINDS),
    Scope("neither restarts nor replays", 3, 2, 1, scope_rules(attempts=3, restarts=0, replays=0), KINDS),
    Scope("three calls and children", 3, 1, 2, scope_rules(attempts=1, restarts=0, replays=1), WITH_CHILDREN),
    Scope("hooks", 3, 1, 2, scope_rules(attempts=1, restarts=0, replays=1), KINDS, hooks=True),
    STEERED._replace(name="more queued input, all at once", queued=3),
    ONE_BY_ONE._replace(name="more queued input, steering one at a time, follow-ups all at once", queued=3),
    TWO_THAT_ASK._replace(
        name="two calls that ask, tools that may be like anything",
        kinds=(PLAIN, NEVER, ASKED_SAFE, BARRIER, MISSING),
        lost=(PLAIN, NEVER, ASKS_BEFORE_A_REPLAY, BARRIER, MISSING),
    ),
    TWO_THAT_ASK._replace(
        name="two calls that ask twice", kinds=(PLAIN, NEVER, BARRIER), lost=LOST_TWICE, room=(2,), questions=2
    ),
    TWO_THAT_ASK._replace(
        name="three calls that ask",
        calls=3,
        deaths=1,
        kinds=(PLAIN, BARRIER, MISSING),
        lost=(PLAIN, NEVER, BARRIER),
        room=(2,),
    ),
    SUMMARIZED._replace(
        name="summaries of a run, more of everything",
        deaths=2,
        rules=scope_rules(attempts=2, restarts=1, replays=1),
        hooks=True,
        corrections=1,
    ),
    STEERED_SUMMARIES._replace(
        name="summaries, calls and queued input",
        calls=1,
        batches=1,
        rules=scope_rules(attempts=1, restarts=0, replays=0, follow_ups="all"),
    ),
    COMPACTED._replace(name="a compaction by any of three models", models=3, shorter=2),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--reduced", action="store_true", help="explore the small scopes only")
    for scope in REDUCED if options.parse_args().reduced else WHOLE:
        began = time.process_time()
        explored = explore(scope)
        print(f"{scope.name}: {explored}, {time.process_time() - began:.1f} s of CPU")


if __name__ == "__main__":
    main()
