"""Claim: where a model that took over refuses a request as too long, what it is shown then fits into its own window."""

from __future__ import annotations

import pytest

from agentlane import ModelIdentity, RetryPolicy
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import answers, counted, memory_session, said, talk, tokens

WINDOW = 8_000
OVERLOADED = fail("overloaded", retryable=True)


@pytest.mark.parametrize("first", [200_000, None], ids=["told", "not told"])
async def test_a_fallbacks_window_counts_once_it_has_refused(first: int | None) -> None:
    large, small = (ModelIdentity(provider="p", name=name) for name in ("large", "small"))
    script = [said(f"a{number}", 6_000) for number in range(30)]
    model = ScriptedModel(
        [*script, OVERLOADED],
        identity=large,
        limits=ModelLimits(context_tokens=first),
        summaries=[OVERLOADED],
    )
    other = ScriptedModel(
        ["done"],
        identity=small,
        limits=ModelLimits(context_tokens=WINDOW),
        summaries="S1",
        overflow_chars=3 * WINDOW,
    )
    session = await memory_session()
    retry = RetryPolicy(attempts=4, base_ms=0, cap_ms=0)
    lane = await session.lane("main", counted([model, other], retry=retry))
    await talk(lane, *(f"u{number}" for number in range(29)))

    result = await lane.run(said("u29", 3_000))
    assert result.status == "completed" and result.text.startswith("a29")
    result = await lane.run(said("u30", 3_000))

    assert (result.status, result.text) == ("completed", "done")
    refused, taken = answers(other)
    assert sum(map(tokens, refused.messages)) > WINDOW > sum(map(tokens, taken.messages))
    assert sum(map(tokens, taken.messages)) >= WINDOW // 8
    assert await check_invariants(session) == []
    await session.close()
