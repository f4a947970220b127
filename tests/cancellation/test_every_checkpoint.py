"""Claim: every public call, cancelled at every checkpoint it passes and in every way, leaves all of it or nothing.

Memory then says what the store says, the next calls work, and nothing is left behind: no warning, no lost error, no
task, no thread, no open file; and it takes a bounded number of turns of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cancellation.kinds import KINDS, Kind
from tests.cancellation.leaks import collecting_little
from tests.cancellation.points import Stage, sweep
from tests.cancellation.recipes import Recipe, all_recipes
from tests.cancellation.world import BACKENDS, Backend

RARE = {"timeout", "wait_for"}
"""What comes into the call as one of the other kinds does, and on SQLite, where points are dear, only now and then."""


SHARES: list[Backend] = ["gated", "jsonl", "gated", "sqlite", "jsonl", "memory"]
"""On which backend a recipe is tried in a reduced run: those more often that have more checkpoints for less time."""


def chosen(number: int, recipe: Recipe, backend: Backend, *, whole: bool) -> list[Kind]:
    """The kinds that a recipe is tried by on a backend: all, or one on one of its backends."""
    if whole:
        return [each for turn, each in enumerate(KINDS) if not _left_out(each, backend, number + turn)]
    turns = [each for each in SHARES if each in recipe.backends]
    if backend != turns[number % len(turns)]:
        return []
    return [KINDS[number % len(KINDS)]]


def _left_out(kind: Kind, backend: Backend, number: int) -> bool:
    return backend == "sqlite" and kind.name in RARE and number % 4 != 0


@pytest.fixture(scope="module")
def little_to_collect() -> Iterator[None]:
    with collecting_little():
        yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("little_to_collect")
def test_every_call_at_every_checkpoint(backend: Backend, tmp_path: Path, whole: bool) -> None:
    stage = Stage(backend, tmp_path)
    struck = 0
    for number, recipe in enumerate(all_recipes()):
        if backend in recipe.backends:
            for kind in chosen(number, recipe, backend, whole=whole):
                struck += sum(played.struck for played in sweep(stage, recipe, kind))
    print(f"{backend}: {struck} cancellations in {stage.count} plays")
    assert struck > 0
