"""Claim: a defect in the library is found, by a program that meets it and by programs that nobody wrote for it.

Random programs met almost all of these defects within 240 of them when put in; the searches here are of those
that are met soon, so that they stay cheap.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.stateful.defect import Defect
from tests.stateful.defects import DEFECTS
from tests.stateful.defects_again import AGAIN_DEFECTS
from tests.stateful.defects_decided import DECIDED_DEFECTS
from tests.stateful.defects_delivery import DELIVERY_DEFECTS
from tests.stateful.defects_hooks import HOOK_DEFECTS
from tests.stateful.defects_kin import KIN_DEFECTS
from tests.stateful.defects_moves import MOVE_DEFECTS
from tests.stateful.defects_people import PEOPLE_DEFECTS
from tests.stateful.defects_questions import QUESTION_DEFECTS
from tests.stateful.defects_summing import SUMMING_DEFECTS
from tests.stateful.defects_talk import TALK_DEFECTS
from tests.stateful.play import Differs, run
from tests.stateful.programs import Program, programs

ALL = (
    *DEFECTS,
    *TALK_DEFECTS,
    *MOVE_DEFECTS,
    *HOOK_DEFECTS,
    *PEOPLE_DEFECTS,
    *DELIVERY_DEFECTS,
    *QUESTION_DEFECTS,
    *KIN_DEFECTS,
    *AGAIN_DEFECTS,
    *SUMMING_DEFECTS,
    *DECIDED_DEFECTS,
)
NAMES = [defect.name for defect in ALL]
MET_SOON = ["a result is lost by reopening", "a killed commit is there"]
"""What random programs of every mix meet after few; others may take more than there is time for."""


@pytest.mark.parametrize("defect", ALL, ids=NAMES)
def test_a_program_that_meets_a_defect_fails_by_it(
    defect: Defect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(defect.program, tmp_path / "sound", backends=defect.backends)
    defect.put_in(monkeypatch)
    with pytest.raises(Differs):
        run(defect.program, tmp_path / "broken", backends=defect.backends)


@pytest.mark.parametrize("name", MET_SOON)
def test_random_programs_meet_a_defect(name: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        pytest.skip("only with --whole")

    @settings(max_examples=200, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(programs(phrases_max=8))
    def search(program: Program) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(program, Path(folder))

    ALL[NAMES.index(name)].put_in(monkeypatch)
    with pytest.raises(Differs):
        search()
