"""Claim: every public call, cancelled at every checkpoint it passes and in every way, leaves all of it or nothing.

Memory then says what the store says, the next calls work, and nothing is left behind: no warning, no lost error, no
task, no thread, no open file; and it takes a bounded number of turns of the loop.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cancellation.kinds import KINDS, TASK, Kind
from tests.cancellation.points import Stage, sweep, sweep_later
from tests.cancellation.recipes import Recipe, all_recipes
from tests.cancellation.world import BACKENDS, Backend

FEW: dict[Backend, int] = {"sqlite": 15, "jsonl": 6}
"""Where points are dear, one kind in so many is tried on a recipe, and others on the next; ``task`` always."""
SHARES: list[Backend] = ["gated", "jsonl", "gated", "gated", "sqlite", "gated", "jsonl", "memory"]
"""On which backend a recipe is tried in a reduced run: those more often that have more checkpoints for less time."""


def chosen(number: int, recipe: Recipe, backend: Backend, *, whole: bool) -> list[Kind]:
    """The kinds that a recipe is tried by on a backend: all, or, of every other recipe, one on one of its backends."""
    if whole:
        return [each for turn, each in enumerate(KINDS) if not _left_out(each, backend, number + turn)]
    turns = [each for each in SHARES if each in recipe.backends]
    if number % 2:
        return []
    if backend != turns[number // 2 % len(turns)]:
        return []
    return [KINDS[(number // 2 + number // 16) % len(KINDS)]]


def _left_out(kind: Kind, backend: Backend, number: int) -> bool:
    return kind is not TASK and number % FEW.get(backend, 1) != 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_call_at_every_checkpoint(backend: Backend, tmp_path: Path, whole: bool) -> None:
    stage = Stage(backend, tmp_path)
    struck = 0
    for number, recipe in enumerate(all_recipes()):
        if backend in recipe.backends:
            for kind in chosen(number, recipe, backend, whole=whole):
                struck += sum(played.struck for played in sweep(stage, recipe, kind))
    print(f"{backend}: {struck} cancellations in {stage.count} plays")
    assert struck > 0 or not whole


REDUCED = ("AgentLane.drive, a call", "Session.close, while a model answers")
WAIT_FOR_A_PASS = ("AgentLane.drive", "AgentLane.run", "AgentLane.abort", "Session.close", "Session.reopen")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("everything", [False, True], ids=["the caller", "everything"])
def test_calls_that_wait_for_a_pass_in_each_of_its_states(
    backend: Backend, everything: bool, tmp_path: Path, whole: bool
) -> None:
    """The caller has one checkpoint, behind which the pass goes through all its states: it is cancelled in each."""
    stage = Stage(backend, tmp_path)
    recipes = [each for each in all_recipes() if backend in each.backends and each.covers[0] in WAIT_FOR_A_PASS]
    if not whole:
        recipes = [each for each in recipes if each.name == REDUCED[everything] and backend in ("gated", "jsonl")]
    count = sum(played.cancelled for each in recipes for played in sweep_later(stage, each, everything=everything))
    print(f"{backend}: {count} cancellations in {stage.count} plays")
    assert count > 0 or not recipes
