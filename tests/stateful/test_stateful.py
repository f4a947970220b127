"""Claim: whatever is called in whatever order, and whatever fails or dies, each backend does as the plain model.

After each step, memory, JSONL, SQLite and the model agree on what the call answered and what drives told, on every
public read, on which boundaries were reached and which effects started, and on what models were asked; what the three
store is the same to the byte, and the public invariants hold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from tests.stateful.play import run
from tests.stateful.programs import Program, programs

PROGRAMS_MAX = 200
"""Of some eight steps each, on three backends, with everything compared after each: enough for a minute."""


@settings(
    max_examples=min(settings().max_examples, PROGRAMS_MAX),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs(phrases_max=8))
def test_all_backends_do_as_the_plain_model_says(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(program, Path(folder))
