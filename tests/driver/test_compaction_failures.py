"""Claim: a summary that does not come is waited for, tried elsewhere or given up like an answer, and so told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentlane import (
    Compact,
    Compaction,
    CompactionPolicy,
    EntryAdded,
    ModelError,
    ModelIdentity,
    OperationAccepted,
    OperationAdvanced,
    OperationSettled,
    Retrying,
    RetryPolicy,
    RetryReason,
    Session,
    Settled,
    SummaryEnded,
    SummaryStarted,
    Waiting,
)
from agentlane.data.usage import Usage
from agentlane.testing import ManualClock, ScriptedModel, call, check_invariants, cut, fail, hang, raises
from agentlane.testing.script import answer
from tests.driver.compacting import answers, compacting, counted, memory_session, path, said, shown, summaries, talk

LATER = fail("overloaded", "busy", retryable=True, retry_after_ms=5_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def session(clock: ManualClock) -> AsyncIterator[Session]:
    session = await memory_session(clock)
    yield session
    assert await check_invariants(session) == []
    await session.close()


async def lane_of(session: Session, given: Any, **options: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel([said("a1"), said("a2"), said("a3")], summaries=given)
    lane = await session.lane("main", compacting(model, **options))
    await talk(lane, "u1", "u2")
    return lane, model


async def test_a_wait_is_told_with_its_reason_and_time(session: Session, clock: ManualClock) -> None:
    lane, model = await lane_of(session, [LATER, "S1"])
    await lane.accept(Compact(), operation_id="c")
    now = clock.now_ms()

    outcome = await lane.drive("c", wait_for_retry=False)

    assert isinstance(outcome, Waiting) and outcome.wake_at == now + 5_000
    [reason] = outcome.reasons
    assert isinstance(reason, RetryReason) and reason.not_before == now + 5_000 and reason.error.code == "overloaded"
    seen = lane.inspect().operation
    assert seen is not None and seen.last_error is not None
    assert (seen.at, seen.summarizing, seen.attempt, seen.not_before) == ("summary_wait", "manual", 1, now + 5_000)
    assert seen.last_error.code == "overloaded"
    assert await lane.drive("c", wait_for_retry=False) == outcome
    clock.advance(5_000)
    outcome = await lane.drive("c", wait_for_retry=False)
    assert isinstance(outcome, Settled) and outcome.result.text == "S1"
    assert [each.attempt for each in summaries(model)] == [1, 2]


@pytest.mark.parametrize("given", [LATER, cut(), "", [call("look")], raises(OSError("no net"))], ids=repr)
async def test_its_attempts_are_used_up(session: Session, given: Any) -> None:
    lane, model = await lane_of(session, [given], retry=RetryPolicy(attempts=3, base_ms=0, cap_ms=0))
    tip = lane.tip()
    await lane.accept(Compact(), operation_id="c")
    while isinstance(outcome := await lane.drive("c", wait_for_retry=False), Waiting):
        session._runtime.clock.advance(5_000)  # type: ignore[attr-defined]
    assert (outcome.result.status, outcome.result.summary, outcome.result.usage.rows) == ("failed", None, 3)
    assert outcome.result.error is not None and outcome.result.code == outcome.result.error.code
    assert lane.tip() == tip and len(summaries(model)) == 3
    await talk(lane, "u3")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user u2", "model a2", "user u3"]


async def test_an_error_that_is_none_of_the_library_fails_it(session: Session) -> None:
    lane, _ = await lane_of(session, [raises(ValueError("a fault in the adapter"))])
    result = await lane.compact()
    assert (result.status, result.code) == ("failed", "model_error")
    assert result.error is not None and "a fault in the adapter" in result.error.message


async def test_a_function_of_the_script_that_raises_is_an_error_like_any_other(session: Session) -> None:
    def given(_: Any) -> Any:
        raise ModelError("gone", kind="gone")

    lane, _ = await lane_of(session, given)
    assert (await lane.compact()).code == "gone"


async def test_an_answer_cut_at_its_length_is_taken(session: Session) -> None:
    lane, _ = await lane_of(session, [answer("half a summ", stop_reason="length")])
    assert (await lane.compact()).text == "half a summ"


async def test_one_without_end_is_no_summary(session: Session) -> None:
    lane, model = await lane_of(session, ["la " * 140_000, "S1"], retry=RetryPolicy(base_ms=0, cap_ms=0))
    result = await lane.compact()
    assert (result.status, result.text, len(summaries(model))) == ("completed", "S1", 2)


async def test_unknown_usage_is_counted_as_unknown(session: Session) -> None:
    lane, _ = await lane_of(session, [answer("S1", usage=None)])
    result = await lane.compact()
    assert (result.usage.rows, result.usage.unknown_rows) == (1, 1)
    lane2 = await session.lane(
        "two", compacting(ScriptedModel(["a"], summaries=[answer("S", usage=Usage(input_tokens=7))]))
    )
    await lane2.run(said("u"))
    result = await lane2.compact(keep_tokens=0)
    assert (result.usage.input_tokens, result.usage.unknown_rows) == (7, 1)


async def test_an_abort_during_the_wait_ends_it_at_once(session: Session) -> None:
    lane, _ = await lane_of(session, [LATER])
    await lane.accept(Compact(), operation_id="c")
    assert isinstance(await lane.drive("c", wait_for_retry=False), Waiting)
    result = await lane.abort()
    assert (result.status, result.usage.rows) == ("aborted", 1)


async def test_a_model_that_does_not_end_is_left_behind(session: Session, clock: ManualClock) -> None:
    lane, model = await lane_of(session, [hang("S1 so far")])
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()
    await lane.request_abort("c")
    outcome = await driving
    assert outcome.result.status == "aborted" and (await path(lane))[-1] == "model a2"


async def test_a_fallback_takes_over(session: Session) -> None:
    first = ScriptedModel([said("a1"), said("a2")], summaries=[LATER])
    second = ScriptedModel([], summaries="S-2", identity=ModelIdentity(provider="scripted", name="second"))
    lane = await session.lane("main", counted([first, second], compaction=CompactionPolicy(keep_tokens=120)))
    await talk(lane, "u1", "u2")
    result = await lane.compact()
    assert (result.status, result.text) == ("completed", "S-2")
    assert [each.attempt for each in summaries(second)] == [2]


async def test_a_model_that_is_configured_during_the_wait_is_asked(session: Session, clock: ManualClock) -> None:
    first = ScriptedModel([said("a1"), said("a2")], summaries=[LATER])
    second = ScriptedModel([], summaries="S-2", identity=ModelIdentity(provider="scripted", name="second"))
    agent = counted(first, models=[second], compaction=CompactionPolicy(keep_tokens=120))
    lane = await session.lane("main", agent)
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    assert isinstance(await lane.drive("c", wait_for_retry=False), Waiting)
    await lane.configure(model="scripted:second")
    clock.advance(5_000)
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.text == "S-2"


@pytest.mark.parametrize(("most", "status"), [(1, "failed"), (2, "completed")])
async def test_the_limit_of_requests_holds(session: Session, clock: ManualClock, most: int, status: str) -> None:
    lane, model = await lane_of(session, [LATER, "S1"], max_requests=2)
    lane = await session.lane("main", compacting(model, max_requests=most))
    await lane.accept(Compact(), operation_id="c")
    outcome = await lane.drive("c", wait_for_retry=False)
    if isinstance(outcome, Waiting):
        clock.advance(5_000)
        outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.status == status
    assert outcome.result.code == ("limit_reached" if status == "failed" else None)
    assert len(summaries(model)) == most


async def test_the_limit_of_time_ends_a_wait(session: Session, clock: ManualClock) -> None:
    lane, model = await lane_of(session, [LATER, "S1"])
    lane = await session.lane("main", compacting(model, max_time_ms=4_000))
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    while lane.inspect().operation.at != "summary_wait":
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(4_000)
    outcome = await driving
    assert (outcome.result.status, outcome.result.code) == ("failed", "limit_reached")
    assert len(summaries(model)) == 1


async def test_a_watcher_sees_it_begin_and_end(session: Session) -> None:
    lane, _ = await lane_of(session, ["S1"])
    async with lane.watch() as watch:
        result = await lane.compact()
        seen: list[Any] = []
        async for item in watch:
            seen.append(item)
            if isinstance(item, OperationSettled):
                break
    phases = [each.operation.at for each in seen if isinstance(each, OperationAdvanced | OperationAccepted)]
    assert phases == ["checkpoint", "summarizing"]
    [added] = [each.entry for each in seen if isinstance(each, EntryAdded)]
    assert added.id == result.summary and isinstance(added.body, Compaction)
    assert seen[-1].result == result


async def test_a_stream_tells_of_the_wait(session: Session, clock: ManualClock) -> None:
    """An interface that shows a run does not stand still without a word while its summary is waited for."""
    lane, _ = await lane_of(session, [LATER, "S1"])
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    told: list[Any] = []
    async with lane.stream("c") as stream:
        async for item in stream:
            told.append(item)
            if isinstance(item, Retrying):
                clock.advance(5_000)
    await driving
    started, retrying, ended, settled = told
    assert started == SummaryStarted(reason="manual")
    assert isinstance(retrying, Retrying) and (retrying.attempt, retrying.error.code) == (2, "overloaded")
    assert isinstance(settled, Settled) and ended == SummaryEnded(entry_id=settled.result.summary, summary="S1")
