"""Claim: Anthropic's adapter, through its SDK and over HTTP, keeps every rule of the model protocol."""

from __future__ import annotations

import pytest

pytest.importorskip("anthropic")

from agentlane.testing import ModelCheck, check_model, model_conformance_checks
from tests.wire.anthropic_place import place


@pytest.mark.parametrize("check", model_conformance_checks(), ids=str)
async def test_the_adapter_keeps_every_rule(check: ModelCheck) -> None:
    report = await check_model(place, only=[check.name])

    assert report.passed == (check.name,), report
