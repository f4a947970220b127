"""Claim: what was not answered ends no lane, and no request for a summary is made twice that can be made no shorter."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from agentlane import RetryPolicy, Session
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import answers, counted, memory_session, path, said, shown, summaries, talk, transcript


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


async def test_a_prompt_that_was_too_long_does_not_end_its_lane(session: Session) -> None:
    model = ScriptedModel(["a1", "a2", "a3"], overflow_chars=3_000, summaries="S")
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1")
    assert (await lane.run("huge " * 1_000)).code == "context_overflow"

    result = await lane.run("small")

    assert (result.status, result.text) == ("completed", "a2"), result.error
    assert shown(answers(model)[-1]) == ["[summary: S]", "user small"]
    assert "huge" in transcript(summaries(model)[-1])
    assert [each for each in await path(lane) if each.startswith("user")] == ["user u1", "user huge", "user small"]
    assert (await lane.run("more")).status == "completed"


async def test_what_was_said_while_a_provider_was_down_is_summarized_where_it_is_too_much(session: Session) -> None:
    down = fail("overloaded", retryable=True)
    model = ScriptedModel([*[down] * 12, "back"], overflow_chars=3_000, summaries="S")
    lane = await session.lane("main", counted(model, retry=RetryPolicy(attempts=1)))
    for number in range(12):
        assert (await lane.run(said(f"u{number}"))).status == "failed"

    result = await lane.run(said("again"))

    assert (result.status, result.text) == ("completed", "back"), result.error
    assert shown(answers(model)[-1]) == ["[summary: S]", "user u10", "user u11", "user again"]
    [asked] = map(transcript, summaries(model))
    assert "u0 " in asked and "u10 " not in asked


async def test_a_summary_that_can_show_no_less_is_not_asked_for_again(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2")], summaries=[fail("context_overflow")])
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")

    result = await lane.compact(keep_tokens=0)

    assert result.code == "context_overflow"
    sent = [transcript(each) for each in summaries(model)]
    assert len(sent) == len(set(sent)) > 1, [len(text) for text in sent]
