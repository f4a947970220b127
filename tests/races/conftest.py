"""The stage that a race is played on: each backend in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.races.stage import BACKENDS, Staged, StageMaker


@pytest.fixture(params=BACKENDS)
def staged(request: pytest.FixtureRequest, tmp_path: Path) -> Staged:
    return StageMaker(request.param, tmp_path)
