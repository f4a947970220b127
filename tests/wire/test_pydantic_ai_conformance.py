"""Claim: pydantic-ai's adapter keeps every rule of the model protocol, over pydantic-ai's own models: that of Anthropic
and that of Chat Completions over HTTP, and one that is a function.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("anthropic")
pytest.importorskip("openai")

from agentlane.testing import ModelCheck, check_model, model_conformance_checks
from tests.wire import pydantic_ai_places as places

# pydantic-ai warns where a provider counts nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic_ai.exceptions.UsageExtractionFailedWarning")

CHECKS = model_conformance_checks()


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_anthropic_through_pydantic_ai_keeps_every_rule(check: ModelCheck) -> None:
    report = await check_model(places.anthropic, only=[check.name])

    assert report.passed == (check.name,), report


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_chat_completions_through_pydantic_ai_keeps_every_rule(check: ModelCheck) -> None:
    report = await check_model(places.chat, without=["signatures", "redacted"], only=[check.name])

    assert report.passed or set(report.skipped) == {check.name}, report
    assert len(report.passed) == 1 or {"signatures", "redacted"} & set(check.needs)


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_a_function_as_a_model_keeps_every_rule(check: ModelCheck) -> None:
    without = ["usage", "retry_after", "length", "redacted"]
    report = await check_model(places.function, without=without, only=[check.name])  # type: ignore[arg-type]

    assert report.passed or set(report.skipped) == {check.name}, report
    assert len(report.passed) == 1 or set(without) & set(check.needs)
