"""Claim: a stream says when a summary is being written and what came of it, and never leaves one begun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    AgentLane,
    AnswerEnded,
    AnswerShown,
    BeforeCompaction,
    Compact,
    CompactionPolicy,
    Navigate,
    Prompt,
    Request,
    RetryPolicy,
    Session,
    Settled,
    Shown,
    SummaryEnded,
    SummaryStarted,
    SummaryText,
    TextDelta,
    hook,
)
from agentlane.testing import ScriptedModel, fail, hang
from tests.driver.compacting import counted, memory_session, said

SMALL = CompactionPolicy(context_tokens=600, reserve_tokens=100, keep_tokens=120)


async def streamed(lane: AgentLane[Any, Any], request: Request) -> list[Shown]:
    """All that a stream which is joined before the drive tells of an operation."""
    admitted = await lane.accept(request)
    driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
    told = [item async for item in lane.stream(admitted.operation_id)]
    await driving
    return told


def brief(told: list[Shown]) -> list[Any]:
    """What tells of summaries, answers and the end."""
    found: list[Any] = []
    for item in told:
        match item:
            case SummaryStarted():
                found.append(("started", item.reason))
            case SummaryEnded():
                found.append(("ended", item.summary))
                assert (item.entry_id is None) == (item.summary is None)
            case AnswerEnded():
                found.append(("answer", item.message.stop_reason))
            case Settled():
                found.append(item.result.status)
    return found


async def talked(session: Session, *summaries: Any, last: Any = "done", **options: Any) -> AgentLane[Any, Any]:
    """A lane whose next request is due for a summary."""
    options.setdefault("compaction", SMALL)
    options.setdefault("retry", RetryPolicy(base_ms=0, cap_ms=0))
    model = ScriptedModel([said("m0"), said("m1"), last], summaries=list(summaries) or None)
    lane = await session.lane("main", counted(model, **options))
    for index in range(2):
        assert (await lane.run(said(f"u{index}"))).status == "completed"
    return lane


async def test_a_summary_in_a_run_stands_before_the_answer_that_it_makes_room_for() -> None:
    async with await memory_session() as session:
        lane = await talked(session, "S1")

        told = brief(await streamed(lane, Prompt(said("u2"))))

        assert told == [("started", "threshold"), ("ended", "S1"), ("answer", "stop"), "completed"]


async def test_one_that_fails_ends_without_a_summary_and_the_run_goes_on() -> None:
    async with await memory_session() as session:
        lane = await talked(session, fail("gone"))

        told = brief(await streamed(lane, Prompt(said("u2"))))

        assert told == [("started", "threshold"), ("ended", None), ("answer", "stop"), "completed"]


async def test_after_an_overflow_it_stands_between_the_refusal_and_the_answer() -> None:
    async with await memory_session() as session:
        policy = CompactionPolicy(keep_tokens=120)
        model = ScriptedModel([said("m0"), said("m1"), fail("context_overflow"), "done"], summaries=["S1"])
        lane = await session.lane("main", counted(model, compaction=policy))
        for index in range(2):
            await lane.run(said(f"u{index}"))

        told = brief(await streamed(lane, Prompt(said("u2"))))

        assert told == [("answer", "error"), ("started", "overflow"), ("ended", "S1"), ("answer", "stop"), "completed"]


@pytest.mark.parametrize(("summary", "status"), [("S1", "completed"), (fail("gone"), "failed")])
async def test_a_compaction_and_a_navigation_end_what_they_begin(summary: Any, status: str) -> None:
    come = "S1" if status == "completed" else None
    async with await memory_session() as session:
        lane = await talked(session, summary, compaction=None)
        first = (await lane.entries(newest_first=False, limit=1))[0]

        compacted = brief(await streamed(lane, Compact(keep_tokens=0)))

        assert compacted == [("started", "manual"), ("ended", come), status]
    async with await memory_session() as session:
        lane = await talked(session, summary, compaction=None)
        first = (await lane.entries(newest_first=False, limit=2))[-1]

        moved = await streamed(lane, Navigate(to=first.id, summarize=True))

        assert brief(moved) == [("started", "navigation"), ("ended", come), status]
        settled = moved[-1]
        assert isinstance(settled, Settled) and isinstance(moved[-2], SummaryEnded)
        assert moved[-2].entry_id == settled.result.summary


async def test_one_that_is_aborted_ends_before_the_operation_does() -> None:
    async with await memory_session() as session:
        lane = await talked(session, hang("S1 so f"))
        admitted = await lane.accept(Compact(keep_tokens=0))
        driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
        told: list[Shown] = []
        async for item in lane.stream(admitted.operation_id):
            told.append(item)
            if isinstance(item, SummaryStarted):
                await lane.request_abort(admitted.operation_id)
        await driving

        assert brief(told) == [("started", "manual"), ("ended", None), "aborted"]


async def test_one_that_a_hook_gave_and_one_placed_before_somebody_joined_end_without_a_beginning() -> None:
    def given(info: BeforeCompaction) -> SummaryText:
        return SummaryText("by hand")

    async with await memory_session() as session:
        lane = await talked(session, hooks=[hook("before_compaction", given)])
        assert brief(await streamed(lane, Prompt(said("u2")))) == [
            ("ended", "by hand"),
            ("answer", "stop"),
            "completed",
        ]
    async with await memory_session() as session:
        lane = await talked(session, "S1", last=hang("so f"))
        admitted = await lane.accept(Prompt(said("u2")))
        driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
        async with lane.watch() as watch:
            async for item in watch:
                if isinstance(item, AnswerShown):
                    break
        told: list[Shown] = []
        async for item in lane.stream(admitted.operation_id):
            told.append(item)
            if isinstance(item, TextDelta):
                await lane.request_abort(admitted.operation_id)
        await driving

        assert brief(told) == [("ended", "S1"), ("answer", "aborted"), "aborted"]
