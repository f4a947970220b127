"""Claim: what is no run says so where it is taken for one, and what to do instead."""

from __future__ import annotations

import pytest
from msgspec import Struct

from agentlane import InvalidMessage, Navigate, RequestConflict
from agentlane.testing import ScriptedModel, check_invariants, fail
from tests.driver.compacting import compacting, memory_session, talk


class Found(Struct):
    n: int


async def test_the_way_out_of_a_retry_is_that_of_what_failed() -> None:
    session = await memory_session()
    model = ScriptedModel(["a1", "a2"], summaries=[fail("refused")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    first = (await lane.entries(newest_first=False))[0].id

    compacted = await lane.compact(keep_tokens=0)
    moved = await lane.run(Navigate(first, summarize=True))

    assert (compacted.code, moved.code) == ("refused", "refused")
    with pytest.raises(RequestConflict, match=r"ask for another one with lane\.compact\(\)"):
        await lane.retry(compacted.operation_id)
    with pytest.raises(RequestConflict, match="ask for it anew"):
        await lane.retry(moved.operation_id)
    await session.close()


async def test_a_summary_is_no_output() -> None:
    session = await memory_session()
    model = ScriptedModel(['{"n": 1}', '{"n": 2}'], summaries="S1")
    lane = await session.lane("main", compacting(model, output=Found))
    await talk(lane, "u1", "u2")
    compacted = await lane.compact(keep_tokens=0)
    assert (compacted.status, compacted.text, compacted.output) == ("completed", "S1", None)
    with pytest.raises(InvalidMessage, match=r"of kind 'compact': it has no output; result\.text is its summary"):
        lane.output(compacted)
    assert await check_invariants(session) == []
    await session.close()
