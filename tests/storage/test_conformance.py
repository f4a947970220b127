"""Claim: every backend keeps every rule of the storage contract.

The reduced form asks JSONL and SQLite at one durability each, by turns, what is not about a medium that fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlane.testing.conformance import Check, check_storage, conformance_checks
from tests.storage.backends import BACKENDS, maker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    whole = metafunc.config.getoption("--whole")
    chosen = [
        pytest.param(check, backend, id=f"{backend}-{check}")
        for number, check in enumerate(conformance_checks())
        for backend in BACKENDS
        if whole or "break_medium" in check.needs or backend in _by_turns(number)
    ]
    metafunc.parametrize(("check", "backend"), chosen)


def _by_turns(number: int) -> set[str]:
    return {"memory", "jsonl-process", "sqlite-disk"} if number % 2 else {"memory", "jsonl-disk", "sqlite-process"}


async def test_conformance(check: Check, backend: str, tmp_path: Path) -> None:
    report = await check_storage(maker(backend, tmp_path), only=[check.name])

    if report.skipped:
        pytest.skip(report.skipped[check.name])
