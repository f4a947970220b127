"""Claim: where the request for a summary is too long itself, each one after it shows half as much as the one before."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import Agent, InvalidNavigation
from agentlane.data.tokens import estimate_text
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import memory_session, said, summaries, talk, transcript


@pytest.mark.parametrize("left", ["some", "all"])
@pytest.mark.parametrize("counter", [None, lambda message: 100_000, lambda message: 1], ids=["estimate", "many", "few"])
async def test_each_shows_half_as_much(left: str, counter: Any) -> None:
    """Whatever the lane has besides, and whatever the agent's counter says of it."""
    script = [said(f"a{number}", 3_000) for number in range(10)]
    model = ScriptedModel(script, summaries=[fail("context_overflow")])
    session = await memory_session()
    lane = await session.lane("main", Agent(model=model, token_counter=counter))
    await talk(lane, *(f"u{number}" for number in range(10)))

    if left == "all":
        assert (await lane.compact(keep_tokens=0)).code == "context_overflow"
    else:
        target = (await lane.entries(newest_first=False))[9]
        with pytest.raises(InvalidNavigation):
            await lane.navigate(target.id, summarize=True)

    sizes = [estimate_text(transcript(request)) for request in summaries(model)]
    assert len(sizes) == 7
    assert [size << number <= sizes[0] for number, size in enumerate(sizes)] == [True] * 7, sizes
    assert sizes[1] > sizes[0] // 8 and sizes == sorted(set(sizes), reverse=True)
    assert await check_invariants(session) == []
    await session.close()
