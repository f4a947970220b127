"""Claim: the check for models passes one that keeps the rules, and names the rule that a broken one breaks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentlane.testing import (
    ModelCheck,
    ModelConformanceError,
    ScriptedModel,
    answer,
    check_model,
    model_conformance_checks,
)
from agentlane.testing import model_checks as package
from agentlane.testing.model_checks.bench import ask
from agentlane.testing.model_checks.frames import orderly
from tests.testing.model_places import BROKEN, Wrapped, place_of

RULES = re.findall(r"^- (M\d+) ", package.__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize("check", model_conformance_checks(), ids=str)
async def test_a_model_that_plays_answers_keeps_every_rule(check: ModelCheck) -> None:
    report = await check_model(place_of(), only=[check.name])

    assert report.passed == (check.name,), report


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
async def test_a_broken_model_is_caught_by_the_rule_it_breaks(broken: type[Wrapped]) -> None:
    with pytest.raises(ModelConformanceError) as found:
        await check_model(place_of(broken), only=[BROKEN[broken]])

    assert BROKEN[broken] in {failure.rule for failure in found.value.report.failed}, str(found.value)


def test_every_rule_has_a_check_and_a_model_that_breaks_it() -> None:
    assert [f"M{number}" for number in range(1, 14)] == RULES
    assert {rule for check in model_conformance_checks() for rule in check.rules} == set(RULES)
    assert set(BROKEN.values()) == set(RULES)


async def test_what_a_provider_does_not_have_is_skipped_and_said() -> None:
    report = await check_model(place_of(), without=["usage", "thinking"])

    assert report.failed == ()
    assert report.skipped["counts_are_those_that_were_given"] == "the provider has no usage"
    assert report.skipped["signatures_are_kept_whole"] == "the provider has no thinking"
    assert "skipped" in str(report)


async def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="no check and no rule is called"):
        await check_model(place_of(), only=["M99"])


@pytest.mark.parametrize("given", [{"without": ["nope"]}, {"without": "usage"}, {"only": "M7"}], ids=str)
async def test_a_feature_that_is_none_and_a_text_for_a_list_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no feature is called|are lists of names"):
        await check_model(place_of(), **given)


@pytest.mark.parametrize("deltas", [None, 1, 4])
async def test_the_scripted_model_streams_in_order(deltas: int | None) -> None:
    given = await ask(ScriptedModel([answer("some text")], deltas=deltas))

    assert [part.text for part in orderly(given)] == ["some text"]  # type: ignore[union-attr]
