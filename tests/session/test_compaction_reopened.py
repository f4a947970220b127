"""Claim: a session that is closed, or whose process dies, in the middle of a summary goes on with it, and is sound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from agentlane import (
    Agent,
    Compact,
    ModelIdentity,
    Navigate,
    RequestConflict,
    Session,
    SessionClosed,
    Settled,
    Waiting,
)
from agentlane.data.messages import user
from agentlane.data.usage import UsageTotals
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, check_invariants, fail, hang
from tests.driver.compacting import answers, compacting, path, said, shown, summaries, talk
from tests.session.places import Place

LATER = fail("overloaded", retryable=True, retry_after_ms=5_000)


def model(given: Any = "S1", *script: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel([*(script or (said("a1"), said("a2"), said("a3"), said("a4")))], summaries=given, **options)


def agent_of(model: ScriptedModel, **options: Any) -> Agent:
    return compacting(model, **options)


async def sound(session: Session) -> None:
    assert await check_invariants(session) == []
    assert (await session.verify()).findings == ()


async def stopped_in_a_summary(place: Place, request: Any = None, **options: Any) -> tuple[list[str], str]:
    """A session that was closed while the model wrote the summary of ``c``: its path, and where it would go."""
    hanging = model([hang()])
    session = await place.open()
    lane = await session.lane("main", agent_of(hanging, **options))
    await talk(lane, "u1", "u2")
    first = (await lane.entries(newest_first=False))[1].id
    wanted = request or Compact("names")
    if isinstance(wanted, Navigate):
        wanted = Navigate(first, "left", True, "names")
    await lane.accept(wanted, operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await hanging.hanging()
    await sound(session)
    before = await path(lane)
    await session.close()
    with pytest.raises(SessionClosed):
        await driving
    return before, first


async def test_what_is_said_before_it_goes_on_waits_and_comes_behind(place: Place) -> None:
    before, _ = await stopped_in_a_summary(place)
    session = await place.open()
    await sound(session)
    fresh = model("S2")
    lane = await session.lane("main", agent_of(fresh))
    seen = lane.inspect()
    assert seen.operation is not None and not seen.driving
    assert (seen.operation.at, seen.operation.summarizing, seen.operation.attempt) == ("summarizing", "manual", 1)
    [listed] = session.open_operations()
    assert (listed.operation_id, listed.at, listed.summarizing) == ("c", "summarizing", "manual")
    assert await path(lane) == before
    note = await lane.append_message(user("note"))
    assert [each.id for each in lane.queued()] == [note.id]
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent_of(fresh))
    outcome = await lane.drive()
    assert isinstance(outcome, Settled)
    result = outcome.result
    assert (result.status, result.text, result.usage.rows, result.usage.unknown_rows) == ("completed", "S2", 2, 1)
    assert await path(lane) == [*before, "compaction S2", "user note"]
    assert [each.attempt for each in summaries(fresh)] == [2]
    assert summaries(fresh)[0].instructions.endswith("names")
    await talk(lane, "u3")
    assert shown(answers(fresh)[-1]) == ["[summary: S2]", "model a2", "user note", "user u3"]
    await sound(session)
    assert await lane.accept(Compact("names"), operation_id="c") is not None
    with pytest.raises(RequestConflict):
        await lane.accept(Compact("other"), operation_id="c")


async def test_it_is_aborted_before_it_goes_on(place: Place) -> None:
    before, _ = await stopped_in_a_summary(place)
    session = await place.open()
    fresh = model()
    lane = await session.lane("main", agent_of(fresh))
    result = await lane.abort()
    assert (result.status, result.usage.rows, summaries(fresh)) == ("aborted", 1, [])
    assert await path(lane) == before
    await sound(session)
    assert not await session._runtime.storage.values("op.prep")


async def test_its_restarts_are_bounded(place: Place) -> None:
    before, _ = await stopped_in_a_summary(place, max_restarts=2)
    for number in (1, 2):
        session = await place.open()
        hanging = model([hang()])
        lane = await session.lane("main", agent_of(hanging, max_restarts=2))
        if number == 2:
            outcome = await lane.drive("c", wait_for_retry=False)
            assert isinstance(outcome, Waiting) and outcome.wake_at is not None
            place.clock.advance(outcome.wake_at - place.clock.now_ms())
        driving = asyncio.ensure_future(lane.drive("c"))
        await hanging.hanging()
        assert lane.inspect().operation.restarts == number  # type: ignore[union-attr]
        await session.close()
        with pytest.raises(SessionClosed):
            await driving
    session = await place.open()
    lane = await session.lane("main", agent_of(model(), max_restarts=2))
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled)
    assert (outcome.result.status, outcome.result.code) == ("failed", "restarts_exhausted")
    assert (outcome.result.usage.rows, outcome.result.usage.unknown_rows) == (3, 3)
    assert await path(lane) == before
    await sound(session)


async def test_a_model_that_is_not_here_any_more_fails_it_and_costs_the_attempt(place: Place) -> None:
    before, _ = await stopped_in_a_summary(place)
    session = await place.open()
    other = model(identity=ModelIdentity(provider="scripted", name="other"))
    lane = await session.lane("main", agent_of(other))
    seen = lane.inspect()
    assert seen.missing is not None and seen.missing.models == ("scripted:scripted",)
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.status == "failed"
    assert outcome.result.code == "model_unavailable", outcome.result
    assert outcome.result.usage.rows == 1 and await path(lane) == before
    [row] = [each.row for each in await session.usage() if each.row.kind == "summary"]
    assert row.model == "scripted:scripted"
    await sound(session)


async def test_a_summary_of_the_old_model_is_charged_to_it(place: Place) -> None:
    """Configured while it was written, and stopped before it settled."""
    hanging = model([hang()])
    second = model("S-2", identity=ModelIdentity(provider="scripted", name="second"))
    session = await place.open()
    lane = await session.lane("main", agent_of(hanging, models=[second]))
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await hanging.hanging()
    await lane.configure(model="scripted:second")
    await session.close()
    with pytest.raises(SessionClosed):
        await driving
    session = await place.open()
    lane = await session.lane("main", agent_of(hanging, models=[second]))
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.text == "S-2"
    rows = [each.row.model for each in await session.usage() if each.row.kind == "summary"]
    assert rows == ["scripted:scripted", "scripted:second"]


async def test_a_wait_goes_on_where_it_was(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(model([LATER])))
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    outcome = await lane.drive("c", wait_for_retry=False)
    assert isinstance(outcome, Waiting)
    await sound(session)
    await session.close()
    session = await place.open()
    fresh = model([LATER, "S1"])
    lane = await session.lane("main", agent_of(fresh))
    assert await lane.drive("c", wait_for_retry=False) == outcome
    place.clock.advance(5_000)
    settled = await lane.drive("c")
    assert isinstance(settled, Settled) and (settled.result.text, settled.result.usage.rows) == ("S1", 2)
    await sound(session)


@pytest.mark.parametrize("reason", ["threshold", "overflow"])
async def test_a_run_goes_on_with_its_summary(place: Place, reason: str) -> None:
    """The split of what is summarized and kept is as it was told first."""
    limits = ModelLimits(context_tokens=700) if reason == "threshold" else None
    long = [fail("context_overflow")] if reason == "overflow" else []
    script = [said("a1"), said("a2"), *long, said("a3")]
    options: dict[str, Any] = {} if limits is None else {"limits": limits}
    hanging = model([hang()], *script, **options)
    session = await place.open()
    lane = await session.lane("main", agent_of(hanging))
    await talk(lane, "u1", "u2")
    driving = asyncio.ensure_future(lane.run(said("u3"), operation_id="o"))
    await hanging.hanging()
    steer = await lane.steer("steer", request_id="r")
    await sound(session)
    await session.close()
    with pytest.raises(SessionClosed):
        await driving

    session = await place.open()
    fresh = model("S2", said("a1"), said("a2"), said("a3"), **options)
    lane = await session.lane("main", agent_of(fresh))
    seen = lane.inspect().operation
    assert seen is not None and (seen.at, seen.summarizing) == ("summarizing", reason)
    assert [each.id for each in lane.queued()] == [steer.id]
    result = await lane.resume()
    assert result is not None
    assert (result.status, result.text.split()[0], result.turns) == ("completed", "a3", 1)
    attempts = 2 if reason == "overflow" else 1
    assert (result.usage.rows, result.usage.unknown_rows) == (2 + attempts, 1 + (attempts == 2))
    assert shown(answers(fresh)[-1]) == ["[summary: S2]", "user u3", "user steer"]
    assert transcripts(fresh) == transcripts(hanging)
    receipt = await lane.receipt("r")
    assert receipt is not None and (receipt.state, receipt.operation_id) == ("placed", "o")
    await sound(session)


def transcripts(model: ScriptedModel) -> list[Any]:
    return [(each.instructions, each.messages) for each in summaries(model)]


async def test_a_navigation_goes_on_with_its_summary(place: Place) -> None:
    before, first = await stopped_in_a_summary(place, Navigate(None, summarize=True))
    session = await place.open()
    fresh = model("S2")
    lane = await session.lane("main", agent_of(fresh))
    seen = lane.inspect().operation
    assert seen is not None and (seen.at, seen.summarizing) == ("summarizing", "navigation")
    assert await path(lane) == before
    left = lane.tip()
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled)
    result = outcome.result
    assert (result.status, result.kind, result.text, result.usage.rows) == ("completed", "navigate", "S2", 2)
    assert await path(lane) == ["user u1", "model a1", "branch_summary S2"]
    assert await session.label(str(left)) == "left"
    await talk(lane, "w2")
    assert shown(answers(fresh)[-1]) == ["user u1", "model a1", "[branch: S2]", "user w2"]
    assert first == (await lane.entries(newest_first=False))[1].id
    await sound(session)


@pytest.mark.parametrize("make", [lambda to: Compact(), lambda to: Navigate(to), lambda to: Navigate(to, None, True)])
async def test_what_is_accepted_and_not_driven_is_there(place: Place, make: Callable[[str], Any]) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(model()))
    await talk(lane, "u1", "u2")
    tip, first = lane.tip(), (await lane.entries(newest_first=False))[1].id
    admitted = await lane.accept(make(first), operation_id="c")
    await sound(session)
    await session.close()
    session = await place.open()
    await sound(session)
    lane = await session.lane("main", agent_of(model()))
    assert lane.tip() == tip and lane.inspect().operation is not None
    assert await lane.accept(make(first), operation_id="c") == admitted
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    assert lane.tip() != tip
    await sound(session)
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent_of(model()))
    assert await lane.accept(make(first), operation_id="c") == admitted
    assert await lane.drive("c") == outcome


async def test_totals_never_fall(place: Place) -> None:
    """Over summaries, aborts, reopens and moves to other branches; what is charged is charged once."""
    totals: list[UsageTotals] = []
    expected = 0

    def look(session: Session, more: int) -> None:
        nonlocal expected
        expected += more
        totals.append(session.stats().usage)
        assert totals[-1].rows == expected

    session = await place.open()
    lane = await session.lane("main", agent_of(model()))
    await talk(lane, "u1", "u2")
    look(session, 2)
    compacted = await lane.compact()
    look(session, 1)
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent_of(model()))
    look(session, 0)
    first = (await lane.entries(newest_first=False))[1].id
    await lane.navigate(first, summarize=True)
    look(session, 1)
    other = await session.create_branch("other", at=compacted.summary)
    look(session, 0)
    lane = await session.lane("other", agent_of(model()))
    await talk(lane, "u3")
    look(session, 1)
    assert other.name == "other"
    await session.close()
    session = await place.open()
    look(session, 0)
    by_lane = [each.row.kind for each in await session.usage()]
    assert by_lane == ["attempt", "attempt", "summary", "summary", "attempt"]
    for one, next_ in itertools.pairwise(totals):
        assert next_.input_tokens >= one.input_tokens and next_.cost_nanos >= one.cost_nanos


async def test_what_is_shown_is_the_same_when_it_is_read_back(place: Place) -> None:
    """Request for request, over several compactions and a kept tail in each."""
    session = await place.open()
    one = model(lambda request: f"S of {len(request.messages[0].content[0].text)}", *(said(f"a{i}") for i in range(9)))
    lane = await session.lane("main", agent_of(one))
    for number in range(3):
        await talk(lane, f"u{2 * number}", f"u{2 * number + 1}")
        await lane.compact(keep_tokens=230)
    live = list(lane._core.context.view())
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent_of(one))
    await lane._core.load()
    assert list(lane._core.context.view()) == live
    assert len(live) == 3


async def test_an_export_and_a_fork_have_what_was_summarized(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(model()))
    await talk(lane, "u1", "u2")
    await lane.compact()
    await talk(lane, "u3")
    entries = await lane.entries(newest_first=False)
    for at, entry in enumerate(entries):
        fork = await session.fork(session_id=f"f{at}", branch="main", at=entry.id)
        copied = await place.open(f"f{at}") if not isinstance(fork, Session) else fork
        fresh = ScriptedModel(["w"], identity=ModelIdentity(provider="scripted", name="other"))
        branch = await copied.lane("main", Agent(name="other", model=fresh))
        await branch.run("w")
        told = shown(fresh.requests[-1])
        if at < 4:
            assert told == [*["user u1", "model a1", "user u2", "model a2"][: at + 1], "user w"]
        else:
            assert told == ["[summary: S1]", "model a2", *["user u3", "model a3"][: at - 4], "user w"]
        await sound(copied)
        await copied.close()
