"""The backend that a test runs on: each of them in turn, on a place of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from agentlane.storage import verifying
from agentlane.testing.conformance import Harness
from tests.storage.backends import BACKENDS, maker


@pytest.fixture(params=list(BACKENDS))
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Harness]]:
    """Makes a harness of one backend, as often as called."""
    return maker(request.param, tmp_path)


@pytest.fixture(autouse=True)
def medium_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what ``verify`` finds in a medium store what no session holds: its records are not looked at there."""
    if request.module.__name__.rpartition(".")[2].startswith("test_verify_"):
        monkeypatch.setattr(verifying, "RECORD_CHECKS", (verifying.PayloadCheck,))
