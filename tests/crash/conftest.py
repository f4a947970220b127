"""A world on each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.world import BACKENDS, World


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A fresh world; its history is printed when the test fails."""
    made = World(request.param, tmp_path)
    yield made
    print(made.history())  # shown by pytest for a test that failed
