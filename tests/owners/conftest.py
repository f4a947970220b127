"""One zygote for all tests of this folder, and a stage for each, on both kinds of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills.children import Zygote
from tests.owners.processes import Stage


@pytest.fixture(scope="session")
def actors() -> Iterator[Zygote]:
    made = Zygote(Path(__file__).with_name("actor.py"))
    yield made
    made.close()


@pytest.fixture(params=["jsonl", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(kind: str, actors: Zygote, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(actors, kind, tmp_path)
    yield made
    made.end()
