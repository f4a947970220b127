"""Claim: numbers beyond all bounds and entries of applications neither stop a summary nor make a request too long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentlane import Agent, Session, Usage
from agentlane.data.entries import Compaction
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, answer, check_invariants
from tests.driver.compacting import counted, memory_session, summaries, talk


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


# Numbers.


@pytest.mark.parametrize("most", [2**40 + 1, 2**63, 10**5000], ids=["2**40", "2**63", "10**5000"])
async def test_a_count_beyond_all_bounds_is_none(session: Session, most: int) -> None:
    """No record holds such a number: the step that should have written it raised, and so did each drive after it."""
    model = ScriptedModel(["a1", "a2"], summaries="S")
    lane = await session.lane("main", counted(model, token_counter=lambda message: most))
    await talk(lane, "u1", "u2")
    result = await lane.compact(keep_tokens=0)
    assert result.status == "completed"
    (entry,) = await lane.entries(types=["compaction"])
    assert isinstance(entry.body, Compaction) and 100 < entry.body.tokens_before < 1_000
    assert len([each for each in session.findings if "token counter" in str(each)]) == 1


async def test_a_provider_that_counts_beyond_all_bounds_is_not_believed(session: Session) -> None:
    most = Usage(input_tokens=2**63 - 1, output_tokens=2**63 - 1)
    limits = ModelLimits(context_tokens=1_000)
    model = ScriptedModel([answer("a1", usage=most), "a2"], summaries="S", limits=limits)
    lane = await session.lane("main", Agent(model=model))
    await talk(lane, "u1", "u2")
    assert summaries(model) == []
    await lane.compact(keep_tokens=0)
    (entry,) = await lane.entries(types=["compaction"])
    assert isinstance(entry.body, Compaction) and 100 < entry.body.tokens_before < 1_000
