"""The stage that a race is played on: each backend in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.races.stage import BACKENDS, Staged, StageMaker

HERE = Path(__file__).parent


@pytest.fixture(params=BACKENDS)
def staged(request: pytest.FixtureRequest, tmp_path: Path) -> Staged:
    return StageMaker(request.param, tmp_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--whole`, commits on disk are held in one of the two places where they can be."""
    if config.getoption("--whole"):
        return
    left_out = [item for item in items if item.path.is_relative_to(HERE) and _held_after_the_write_on_disk(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        kept = set(items) - set(left_out)
        items[:] = [item for item in items if item in kept]


def _held_after_the_write_on_disk(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return False
    return callspec.params.get("where") == "before_report" and callspec.params.get("staged") in ("jsonl", "sqlite")
