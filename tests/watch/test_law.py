"""Claim: the events since a snapshot, folded onto it, give the snapshot of now, at every moment of any run.

Every session of the programs and scenarios below is watched by readers of several kinds; see ``tests.watch.law``. The
programs are held against the plain model, and the scenarios to what must come of them, as they are without watchers:
so a watched run does what an unwatched one does, boundary by boundary.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agentlane.testing import Depth, Scenario, crash_matrix
from agentlane.testing.matrix.builtin import SCENARIOS
from tests.stateful.play import run
from tests.stateful.programs import Program, programs
from tests.stateful.test_known import KNOWN
from tests.watch.law import followed

PROGRAMS_MAX = 25
EVERY = 61
SAMPLE = slice(None, None, 2)
"""Of the rare programs and of the scenarios, in the reduced form."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    sample = slice(None) if metafunc.config.getoption("--whole") else SAMPLE
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", list(KNOWN)[sample])
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", SCENARIOS[sample], ids=lambda each: each.name)


@settings(
    max_examples=min(settings().max_examples // 3, PROGRAMS_MAX),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs(phrases_max=8))
def test_folding_gives_what_there_is_in_random_programs(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder, followed():
        run(program, Path(folder))


def test_folding_gives_what_there_is_in_rare_programs(name: str, tmp_path: Path) -> None:
    with followed():
        run(KNOWN[name], tmp_path)


async def test_a_watched_run_ends_as_an_unwatched_one(scenario: Scenario[Any], tmp_path: Path, whole: bool) -> None:
    place = SCENARIOS.index(scenario)
    depth = Depth(every=EVERY // 2 if whole else EVERY, first=3 * place, again=0)
    stores = (("memory", "jsonl", "sqlite")[place % 3],)

    with followed() as law:
        await crash_matrix(scenario, stores=stores, depth=depth, folder=tmp_path)

    assert law.seen["held"] > 20
