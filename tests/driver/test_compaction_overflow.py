"""Claim: a request that a provider finds too long is made once more behind a summary, once for a need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentlane import CompactionPolicy, Decline, ModelLimits, RetryPolicy, Session, SummaryText, hook, tool
from agentlane.data.entries import Compaction
from agentlane.data.messages import AssistantMessage
from agentlane.testing import ScriptedModel, call, check_invariants, fail, hold
from tests.driver.compacting import (
    answers,
    compacting,
    counted,
    memory_session,
    path,
    said,
    shown,
    summaries,
    talk,
    transcript,
)

TOO_LONG = fail("context_overflow", "the request is too long")


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


async def test_it_is_recovered_and_the_turn_counts_once(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")

    result = await lane.run(said("u3"))

    assert (result.status, result.turns, result.text.split()[0]) == ("completed", 1, "a3")
    assert (await path(lane))[4:] == ["user u3", "model ", "compaction S1", "model a3"]
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u3"]
    error = (await lane.entries(limit=3))[-1].body
    assert isinstance(error, AssistantMessage) and error.error is not None
    assert (error.stop_reason, error.error.code) == ("error", "context_overflow")
    rows = [each.row.kind for each in await session.usage() if each.row.operation_id == result.operation_id]
    assert rows == ["attempt", "summary", "attempt"]
    assert result.usage.rows == 3


async def test_twice_in_a_row_fails_with_the_overflow(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, TOO_LONG, said("a3")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert (result.status, result.code, result.turns) == ("failed", "context_overflow", 1)
    assert result.error is not None and result.error.message == "the request is too long"
    assert len(summaries(model)) == 1 and len(answers(model)) == 4
    again = await lane.retry(result.operation_id)
    outcome = await lane.drive(again.operation_id)
    assert outcome.result.text.split()[0] == "a3"  # type: ignore[union-attr]


async def test_a_good_answer_makes_room_for_another(session: Session) -> None:
    """In one run, as often as a good answer stands between."""

    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}")

    model = ScriptedModel(
        [[call("look", n=1)], TOO_LONG, [call("look", n=2)], TOO_LONG, [call("look", n=3)], "done"],
        summaries=lambda request: f"S{len(summaries(model))}",
    )
    lane = await session.lane("main", compacting(model, tools=[look]))
    result = await lane.run(said("u1"))
    assert (result.status, result.text, result.turns) == ("completed", "done", 4)
    made = [each.body for each in await lane.entries(newest_first=False) if isinstance(each.body, Compaction)]
    assert [each.summary for each in made] == ["S1", "S2"]


async def test_without_a_policy_it_fails_as_ever(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG], summaries="S1")
    lane = await session.lane("main", compacting(model, compaction=None))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert (result.status, result.code, summaries(model)) == ("failed", "context_overflow", [])
    assert (await path(lane))[4:] == ["user u3", "model "]


async def test_with_nothing_to_cut_it_fails_as_ever(session: Session) -> None:
    model = ScriptedModel([TOO_LONG], summaries="S1")
    lane = await session.lane("main", compacting(model))
    result = await lane.run(said("huge", 30_000))
    assert (result.status, result.code, summaries(model)) == ("failed", "context_overflow", [])


async def test_a_window_that_nobody_tells_is_found(session: Session) -> None:
    """The usual policy keeps 20,000 tokens: more than there is. What is kept then is a part of what was too long."""
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries="S1")
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert result.status == "completed"
    assert shown(answers(model)[-1])[0] == "[summary: S1]"


@pytest.mark.parametrize("source", ["model", "policy"])
async def test_a_window_that_is_smaller_than_told_is_found(session: Session, source: str) -> None:
    """What was too long for the provider is far from the threshold, and less than what may be kept."""
    limits = ModelLimits(context_tokens=100_000) if source == "model" else None
    policy = CompactionPolicy(context_tokens=100_000)
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries="S1", limits=limits)
    lane = await session.lane("main", counted(model, compaction=policy))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert result.status == "completed" and len(summaries(model)) == 1
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u3"]


async def test_an_earlier_summary_that_is_too_long_is_summarized_again(session: Session) -> None:
    """It was made for a larger window, and fills this one; what stands behind it may all be kept, and is not."""
    script = [said("a1"), said("a2"), said("a3")]
    wide = counted(
        ScriptedModel(script, summaries="S" * 30_000), compaction=CompactionPolicy(max_summary_tokens=50_000)
    )
    lane = await session.lane("main", wide)
    await talk(lane, "u1", "u2")
    await lane.compact(keep_tokens=250)
    limits = ModelLimits(context_tokens=2_000)
    model = ScriptedModel(script, summaries="S2", overflow_chars=6_000, limits=limits)
    lane = await session.lane("main", counted(model))
    result = await lane.run(said("u3"))
    assert result.status == "completed"
    assert shown(answers(model)[-1]) == ["[summary: S2]", "user u3"]
    assert "earlier-summary" in transcript(summaries(model)[0])


@pytest.mark.parametrize("window", [2_000, None])
async def test_a_summary_that_fills_the_window_is_cut(session: Session, window: int | None) -> None:
    """A model that keeps to no bound must not leave a lane on which nothing goes on."""
    text = "begin " + "S" * 300_000 + " end"
    script = [said("a1"), said("a2"), said("a3")]
    limits = ModelLimits(context_tokens=window)
    policy = CompactionPolicy(max_summary_tokens=300)
    model = ScriptedModel(script, summaries=text, overflow_chars=9_000, limits=limits)
    lane = await session.lane("main", counted(model, compaction=policy))
    await talk(lane, "u1", "u2")
    compacted = await lane.compact(keep_tokens=250)
    assert compacted.text.startswith("begin SSS") and compacted.text.endswith("SS end")
    assert "left out" in compacted.text and len(compacted.text) < 8_000
    assert (await lane.run(said("u3"))).status == "completed"
    assert any("was cut" in finding for finding in session.findings)


async def test_a_hooks_own_summary_that_fills_the_window_is_passed_over(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2")], summaries="S1", limits=ModelLimits(context_tokens=2_000))
    mine = hook("before_compaction", lambda info: SummaryText("S" * 30_000))
    lane = await session.lane("main", counted(model, hooks=[mine]))
    await talk(lane, "u1", "u2")
    result = await lane.compact(keep_tokens=250)
    assert (result.status, result.text) == ("completed", "S1")
    assert any("leave room" in finding for finding in session.findings)


@pytest.mark.parametrize("given", [fail("refused", "no summary for you"), ""], ids=["refused", "empty"])
async def test_where_the_summary_fails_the_run_fails_with_the_overflow(session: Session, given: Any) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries=[given])
    lane = await session.lane("main", compacting(model, retry=RetryPolicy(attempts=2, base_ms=0, cap_ms=0)))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert (result.status, result.code, result.turns) == ("failed", "context_overflow", 1)
    assert result.error is not None
    assert result.error.message.startswith("the request is too long; what it showed could not be summarized: ")
    assert (await path(lane))[4:] == ["user u3", "model "]


async def test_a_summary_that_is_too_long_itself_shows_less(session: Session) -> None:
    """Its request is halved until it is taken; and so often at most."""
    sizes: list[int] = []

    def given(request: Any) -> Any:
        sizes.append(len(request.messages[0].content[0].text))
        return TOO_LONG if sizes[-1] > 2_000 else "S1"

    model = ScriptedModel([said("a1", 9_000), said("a2", 9_000), TOO_LONG, said("a3")], summaries=given)
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert result.status == "completed" and 2 <= len(sizes) <= 7
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
    kinds = [each.row.kind for each in await session.usage() if each.row.operation_id == result.operation_id]
    assert kinds == ["attempt", *["summary"] * len(sizes), "attempt"]


async def test_a_summary_that_is_always_too_long_ends(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG], summaries=[TOO_LONG])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert (result.status, result.code, len(summaries(model))) == ("failed", "context_overflow", 2)


@pytest.mark.parametrize("said_by_hook", [Decline("not now"), SummaryText("mine")], ids=["decline", "own"])
async def test_a_hook_declines_or_gives_its_own(session: Session, said_by_hook: Any) -> None:
    asked: list[Any] = []

    def before(info: Any) -> Any:
        asked.append(info)
        return said_by_hook

    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries="S1")
    lane = await session.lane("main", compacting(model, hooks=[hook("before_compaction", before)]))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert [each.reason for each in asked] == ["overflow"] and summaries(model) == []
    if isinstance(said_by_hook, Decline):
        assert (result.status, result.code) == ("failed", "context_overflow")
        assert result.error is not None and result.error.message.endswith("it was declined: not now")
    else:
        assert (result.status, result.usage.rows) == ("completed", 2)
        assert shown(answers(model)[-1]) == ["[summary: mine]", "user u3"]


async def test_what_is_said_meanwhile_comes_with_the_next_request(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3"), said("a4")], summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    driving = asyncio.ensure_future(lane.run(said("u3"), operation_id="o"))
    await model.hanging()
    seen = lane.inspect().operation
    assert seen is not None and (seen.at, seen.summarizing) == ("summarizing", "overflow")
    steer = await lane.steer("steer", request_id="r")
    assert [each.id for each in lane.queued()] == [steer.id]
    model.release()
    result = await driving
    assert result.status == "completed"
    assert (await path(lane))[6:] == ["compaction S1", "user steer", "model a3"]
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u3", "user steer"]


async def test_an_abort_meanwhile_aborts(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), TOO_LONG, said("a3")], summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    driving = asyncio.ensure_future(lane.run(said("u3"), operation_id="o"))
    await model.hanging()
    await lane.request_abort("o")
    result = await driving
    assert (result.status, result.code) == ("aborted", None)
    assert (await path(lane))[4:] == ["user u3", "model "]
    assert result.usage.rows == 2


async def test_the_overflow_of_a_batchs_results_is_recovered_too(session: Session) -> None:
    """The batch that was too much is summarized whole: a call is never shown without its result."""

    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}", 3_000)

    model = ScriptedModel([[call("look", n=1), call("look", n=2)], said("a1")], summaries="S1", overflow_chars=4_000)
    lane = await session.lane("main", compacting(model, tools=[look], compaction=CompactionPolicy(keep_tokens=300)))
    result = await lane.run(said("u1"))
    assert (result.status, result.text.split()[0]) == ("completed", "a1")
    assert shown(answers(model)[-1]) == ["[summary: S1]"]
