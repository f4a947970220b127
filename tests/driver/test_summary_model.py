"""Claim: summaries are written by the model that the policy names, and by those that answer where it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLane,
    Compaction,
    CompactionPolicy,
    InvalidDefinition,
    ModelIdentity,
    ModelLimits,
    RetryPolicy,
    Session,
    SessionClosed,
    open_session,
)
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.testing import ScriptedModel, fail, hang
from tests.driver.compacting import answers, counted, memory_session, said, shown, summaries

BIG = ModelIdentity(provider="p", name="big")
SMALL = ModelIdentity(provider="p", name="small")
AT_ONCE = RetryPolicy(base_ms=0, cap_ms=0)


def big(*more: Any, given: Any = "S of big") -> ScriptedModel:
    return ScriptedModel([said("m0"), said("m1"), *more], summaries=given, identity=BIG)


def small(given: Any = "S of small", **options: Any) -> ScriptedModel:
    return ScriptedModel(["a of small"], summaries=given, identity=SMALL, **options)


def policy(model: Any = "p:small") -> CompactionPolicy:
    return CompactionPolicy(context_tokens=600, reserve_tokens=100, keep_tokens=120, model=model)


async def talked(session: Session, one: ScriptedModel, other: ScriptedModel, **options: Any) -> AgentLane[Any, Any]:
    """A lane whose next request is due for a summary."""
    options.setdefault("compaction", policy())
    lane = await session.lane("main", counted(one, models=[other], retry=AT_ONCE, **options))
    for index in range(2):
        assert (await lane.run(said(f"u{index}"))).status == "completed"
    return lane


async def made(lane: AgentLane[Any, Any]) -> list[tuple[str, ModelIdentity | None]]:
    """The summaries of the lane's path with who wrote them, oldest first."""
    entries = await lane.entries(newest_first=False)
    return [(each.body.summary, each.body.model) for each in entries if isinstance(each.body, Compaction)]


@pytest.mark.parametrize("named", ["p:small", SMALL])
async def test_the_named_model_summarizes_and_the_others_answer(named: Any) -> None:
    one, other = big("done", "more"), small()
    async with await memory_session() as session:
        lane = await talked(session, one, other, compaction=policy(named))

        result = await lane.run(said("u2"))
        compacted = await lane.compact(keep_tokens=0)
        first = (await lane.entries(newest_first=False, limit=1))[0]
        moved = await lane.navigate(first.id, summarize=True)

        assert (result.text, compacted.text, moved.tip is not None) == ("done", "S of small", True)
        assert [len(each) for each in (answers(one), summaries(one), answers(other), summaries(other))] == [3, 0, 0, 3]
        assert await made(lane) == []
        rows = [(each.row.kind, each.row.model) for each in await session.usage()]
        assert rows == [
            *[("attempt", "p:big")] * 2,
            ("summary", "p:small"),
            ("attempt", "p:big"),
            *[("summary", "p:small")] * 2,
        ]


@pytest.mark.parametrize("answer", [fail("overloaded", retryable=True), "  "], ids=["fails", "says nothing"])
async def test_where_it_fails_those_that_answer_are_asked_at_once(answer: Any) -> None:
    one, other = big("done"), small([answer])
    async with await memory_session() as session:
        lane = await talked(session, one, other)

        assert (await lane.run(said("u2"))).text == "done"

        assert await made(lane) == [("S of big", BIG)]
        assert shown(answers(one)[-1])[0] == "[summary: S of big]"
        assert len(summaries(other)) == 1


async def test_a_failure_that_stays_is_the_end_of_it() -> None:
    one, other = big("done"), small(fail("refused"))
    async with await memory_session() as session:
        lane = await talked(session, one, other)

        result = await lane.compact(keep_tokens=0)

        assert (result.status, result.code) == ("failed", "refused")
        assert not summaries(one) and len(summaries(other)) == 1


async def test_its_own_window_bounds_what_it_is_shown() -> None:
    requests = []
    for window in (None, 100_000, 4_000):
        one = big("done", given="S of big")
        other = small(limits=ModelLimits(context_tokens=window))
        async with await memory_session() as session:
            lane = await session.lane(
                "main", counted(one, models=[other], compaction=CompactionPolicy(model="p:small"))
            )
            for index in range(2):
                await lane.run(said(f"u{index}", 20_000))
            await lane.compact(keep_tokens=0)
        [request] = summaries(other)
        requests.append(sum(len(part.text) for part in request.messages[0].content))

    assert requests[0] == requests[1] > 30_000 and requests[2] < 16_000


@pytest.mark.parametrize("store", [MemoryStore, JsonlStore, SqliteStore], ids=["memory", "jsonl", "sqlite"])
@pytest.mark.parametrize("there", [True, False], ids=["is there", "is not there"])
async def test_a_summary_that_was_lost_was_its_and_is_asked_for_again(store: Any, there: bool, tmp_path: Path) -> None:
    """Of a process that does not have it, the model that answers writes the summary."""
    where = MemoryStore() if store is MemoryStore else store(tmp_path / "store", durability="process")
    await where.create("s")
    one, other = big(), small([hang("S of s")])
    session = await open_session(where, session_id="s")
    lane = await talked(session, one, other)
    driving = asyncio.ensure_future(lane.compact(keep_tokens=0, operation_id="c"))
    while not summaries(other):
        await asyncio.sleep(0)
    await session.close()
    with pytest.raises(SessionClosed):
        await driving

    one, other = big("done"), small()
    async with await open_session(where, session_id="s") as session:
        lane = await session.lane("main", counted(one, models=[other] if there else [], retry=AT_ONCE))
        missing = lane.inspect().missing
        assert (None if missing is None else missing.models) == (None if there else ("p:small",))

        result = await lane.resume()

        assert result is not None and result.text == ("S of small" if there else "S of big")
        rows = [(each.row.kind, each.row.model) for each in await session.usage()]
        assert rows[2:] == [("summary", "p:small"), ("summary", "p:small" if there else "p:big")]


@pytest.mark.parametrize("given", ["S of small", [hang("S")]], ids=["before", "meanwhile"])
async def test_a_lane_that_is_given_another_model_keeps_the_one_for_summaries(given: Any) -> None:
    third = ScriptedModel(["done of third"] * 3, identity=ModelIdentity(provider="p", name="third"))
    one, other = big(), small(given)
    async with await memory_session() as session:
        agent = counted(one, models=[other, third], retry=AT_ONCE, compaction=policy())
        lane = await session.lane("main", agent)
        for index in range(2):
            await lane.run(said(f"u{index}"))
        if given == "S of small":
            await lane.configure(model="p:third")

            assert (await lane.run(said("u2"))).text == "done of third"

            assert await made(lane) == [("S of small", SMALL)]
            return
        running = asyncio.ensure_future(lane.run(said("u2")))
        while not summaries(other):
            await asyncio.sleep(0)

        await lane.configure(model="p:third")
        await lane.abort()

        assert (await running).status == "aborted" and await made(lane) == []
        assert [(each.row.kind, each.row.model) for each in await session.usage()][2:] == [("summary", "p:small")]


def test_a_model_that_the_agent_does_not_have_is_refused() -> None:
    with pytest.raises(
        InvalidDefinition, match=r"compaction\.model='p:none' is none of its models, which are p:big, p"
    ):
        Agent(model=big(), models=[small()], compaction=policy("p:none"))
    assert Agent(model=big(), models=[small()], compaction=policy()).compaction == policy(SMALL)
