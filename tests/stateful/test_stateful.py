"""Claim: whatever is called in whatever order, and whatever fails or dies, each backend does as the plain model.

After each step, memory, JSONL, SQLite and the model agree on what the call answered and what drives told, on every
public read, on which boundaries were reached and which effects started, on what models were asked and hooks were told;
what the three store is the same to the byte, and the public invariants hold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.stateful.mixes import MIXES, SHARES, programs_about
from tests.stateful.play import run
from tests.stateful.programs import Program, programs

PROGRAMS_MAX = 70
"""Of some eight steps each, on three backends, with everything compared after each: enough for half a minute."""
MIXED_PART, MIXED_MAX = 5, 15
"""Of each mix so much less, and at most so many."""
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=min(settings().max_examples, PROGRAMS_MAX), suppress_health_check=SLOW)
@given(programs(phrases_max=8))
def test_all_backends_do_as_the_plain_model_says(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(program, Path(folder))


@pytest.mark.parametrize("mix", MIXES)
def test_all_backends_do_as_the_plain_model_says_of(mix: str) -> None:
    mixed = min(settings().max_examples // MIXED_PART, MIXED_MAX)

    @settings(max_examples=int(mixed * SHARES.get(mix, 1)), suppress_health_check=SLOW)
    @given(programs_about(mix))
    def search(program: Program) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(program, Path(folder))

    search()
