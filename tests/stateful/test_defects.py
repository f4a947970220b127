"""Claim: a defect in the library is found, by a program that meets it and by programs that nobody wrote for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.stateful.defects import DEFECTS, Defect
from tests.stateful.play import Differs, run
from tests.stateful.programs import Program, programs

NAMES = [defect.name for defect in DEFECTS]


@pytest.mark.parametrize("defect", DEFECTS, ids=NAMES)
def test_a_program_that_meets_a_defect_fails_by_it(
    defect: Defect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(defect.program, tmp_path / "sound")
    defect.put_in(monkeypatch)
    with pytest.raises(Differs):
        run(defect.program, tmp_path / "broken")


@pytest.mark.parametrize("defect", DEFECTS, ids=NAMES)
def test_random_programs_meet_every_defect(defect: Defect, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        pytest.skip("only with --whole")

    @settings(max_examples=150, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(programs(phrases_max=8))
    def search(program: Program) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(program, Path(folder))

    defect.put_in(monkeypatch)
    with pytest.raises(Differs):
        search()
