"""What is known and not mended: each of these says how it should be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentlane import Session
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import counted, memory_session, said, summaries, talk, transcript


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


@pytest.mark.xfail(
    strict=True, reason="messages that a failed run left unanswered are kept for ever, whatever their size"
)
async def test_a_prompt_that_was_too_long_does_not_end_its_lane(session: Session) -> None:
    model = ScriptedModel(["a1", "a2"], overflow_chars=3_000, summaries="S")
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1")
    assert (await lane.run("huge " * 1_000)).code == "context_overflow"
    result = await lane.run("small")
    assert result.status == "completed", result.error


@pytest.mark.xfail(strict=True, reason="what is as short as it can be is sent again until its tries are used up")
async def test_a_summary_that_can_show_no_less_is_not_asked_for_again(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2")], summaries=[fail("context_overflow")])
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    result = await lane.compact(keep_tokens=0)
    assert result.code == "context_overflow"
    sent = [transcript(each) for each in summaries(model)]
    assert len(sent) == len(set(sent)), [len(text) for text in sent]
