"""Claim: every backend keeps every rule of the storage contract."""

from __future__ import annotations

import pytest

from agentlane.testing.conformance import Check, check_storage, conformance_checks
from agentlane.testing.conformance.harness import HarnessMaker


@pytest.mark.parametrize("check", conformance_checks(), ids=str)
async def test_conformance(check: Check, make_harness: HarnessMaker) -> None:
    report = await check_storage(make_harness, only=[check.name])

    if report.skipped:
        pytest.skip(report.skipped[check.name])
