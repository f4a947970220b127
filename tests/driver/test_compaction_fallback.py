"""Claim: where a fallback finds a request too long, what is kept of it fits the window that the fallback tells."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentlane import AgentLane, ModelIdentity, Session
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import answers, counted, memory_session, path, said, summaries, tokens

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
