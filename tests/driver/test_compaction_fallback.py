"""Claim: where a fallback finds a request too long, what is kept of it fits the window that the fallback tells."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentlane import AgentLane, ModelIdentity, RetryPolicy, Session
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import answers, counted, memory_session, path, said, summaries, talk, tokens

WINDOW = 900


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


@pytest.mark.parametrize("written_by", ["large", "small"])
async def test_what_is_kept_fits_the_model_that_refused(session: Session, written_by: str) -> None:
    busy = fail("overloaded", retryable=True)
    large = ScriptedModel(
        [*(said(f"a{number}") for number in range(30)), busy],
        identity=ModelIdentity(provider="scripted", name="large"),
        limits=ModelLimits(context_tokens=100_000),
        summaries=said("S", 12_000) if written_by == "large" else [busy],
    )
    small = ScriptedModel(
        ["from the small one"],
        identity=ModelIdentity(provider="scripted", name="small"),
        limits=ModelLimits(context_tokens=WINDOW),
        summaries="S",
        overflow_chars=WINDOW * 3,
    )
    lane: AgentLane = await session.lane("main", counted([large, small]))
    for number in range(30):
        assert (await lane.run(said(f"u{number}"))).status == "completed"

    result = await lane.run("go on")

    assert (result.status, result.text) == ("completed", "from the small one"), result.error
    assert (await path(lane))[-2].startswith("model") and len(summaries(large)) == 1
    assert sum(map(tokens, answers(small)[-1].messages)) <= WINDOW


@pytest.mark.parametrize("first", [200_000, None], ids=["told", "not told"])
async def test_a_fallbacks_window_counts_once_it_has_refused(session: Session, first: int | None) -> None:
    busy = fail("overloaded", retryable=True)
    large, small = (ModelIdentity(provider="p", name=name) for name in ("large", "small"))
    script = [said(f"a{number}", 6_000) for number in range(30)]
    model = ScriptedModel(
        [*script, busy],
        identity=large,
        limits=ModelLimits(context_tokens=first),
        summaries=[busy],
    )
    other = ScriptedModel(
        ["done"],
        identity=small,
        limits=ModelLimits(context_tokens=8_000),
        summaries="S1",
        overflow_chars=3 * 8_000,
    )
    retry = RetryPolicy(attempts=4, base_ms=0, cap_ms=0)
    lane = await session.lane("main", counted([model, other], retry=retry))
    await talk(lane, *(f"u{number}" for number in range(29)))

    result = await lane.run(said("u29", 3_000))
    assert result.status == "completed" and result.text.startswith("a29")
    result = await lane.run(said("u30", 3_000))

    assert (result.status, result.text) == ("completed", "done")
    refused, taken = answers(other)
    assert sum(map(tokens, refused.messages)) > 8_000 > sum(map(tokens, taken.messages))
    assert sum(map(tokens, taken.messages)) >= 8_000 // 8
