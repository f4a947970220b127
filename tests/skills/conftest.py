"""The place that a test runs on: each backend in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.session.places import KINDS, Place


@pytest_asyncio.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    await made.end()


@pytest_asyncio.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Place]:
    """For what does not depend on the backend."""
    made = Place("memory", tmp_path)
    yield made
    await made.end()
