"""Claim: a before_compaction hook declines a summary, or gives its own, for every reason, and is told what it is of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    BeforeCompaction,
    Compact,
    Compaction,
    CompactionPolicy,
    Decline,
    FollowUp,
    Navigate,
    Session,
    SessionClosed,
    Settled,
    SummaryText,
    hook,
)
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, check_invariants, fail, hold
from tests.driver.compacting import answers, counted, heads, path, said, shown, summaries, talk
from tests.hooks.asked import GRACE_MS, Asked, Stuck, pass_grace
from tests.session.places import Place

REASONS = ["manual", "threshold", "overflow", "navigation"]
DECLINED = "compaction_declined"


def lane_agent(reason: str, *hooks: Any, given: Any = "S1", **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    overflow = [fail("context_overflow")] if reason == "overflow" else []
    limits = ModelLimits(context_tokens=700) if reason == "threshold" else None
    script = [said("a1"), said("a2"), *overflow, said("a3"), said("a4")]
    model = ScriptedModel(script, summaries=given, **({} if limits is None else {"limits": limits}))
    options.setdefault("compaction", CompactionPolicy(keep_tokens=120, instructions="always this"))
    return counted(model, hooks=[hook("before_compaction", each) for each in hooks], **options), model


async def ask_for_it(session: Session, agent: Agent[Any, Any], reason: str) -> tuple[Any, Any]:
    """A lane on which a summary is due for the reason, and the record of the operation that it was due in."""
    lane = await session.lane("main", agent)
    await talk(lane, "u1", "u2")
    if reason == "manual":
        return lane, await lane.compact(instructions="this time")
    if reason == "navigation":
        first = (await lane.entries(newest_first=False))[1].id
        return lane, await lane.run(Navigate(first, summarize=True, instructions="this time"))
    return lane, await lane.run(said("u3"))


@pytest.mark.parametrize("reason", REASONS)
async def test_it_is_told_what_is_summarized(memory: Place, reason: str) -> None:
    asked = Asked(lambda info: None)
    agent, model = lane_agent(reason, asked, deps="mine")
    session = await memory.open()
    lane, result = await ask_for_it(session, agent, reason)

    assert result.status == "completed" and len(summaries(model)) == 1
    [info] = asked.seen
    assert isinstance(info, BeforeCompaction)
    assert (info.reason, info.lane, info.deps, info.operation_id) == (reason, "main", "mine", result.operation_id)
    once = ("this time",) if reason in ("manual", "navigation") else ()
    assert info.instructions == ("always this", *once) and info.earlier is None
    wanted = {
        "manual": ["user u1", "model a1", "user u2"],
        "threshold": ["user u1", "model a1", "user u2", "model a2"],
        "overflow": ["user u1", "model a1", "user u2", "model a2"],
        "navigation": ["user u2", "model a2"],
    }
    assert heads(info.messages) == wanted[reason]
    assert info.tokens_before >= 400
    assert lane.tip() == result.to_tip


@pytest.mark.parametrize("reason", REASONS)
async def test_its_own_summary_is_placed_and_no_model_asked(place: Place, reason: str) -> None:
    first, second = Asked(lambda info: SummaryText("mine")), Asked(lambda info: SummaryText("not asked"))
    agent, model = lane_agent(reason, first, second)
    session = await place.open()
    lane, result = await ask_for_it(session, agent, reason)

    assert (result.status, summaries(model), len(first.seen), second.seen) == ("completed", [], 1, [])
    rows = [each.row.kind for each in await session.usage() if each.row.operation_id == result.operation_id]
    assert rows == {"manual": [], "navigation": [], "threshold": ["attempt"], "overflow": ["attempt"] * 2}[reason]
    kind = "branch_summary" if reason == "navigation" else "compaction"
    assert f"{kind} mine" in await path(lane)
    assert await check_invariants(session) == []
    assert (await session.verify()).findings == ()
    bodies = [each.body for each in await lane.entries() if getattr(each.body, "summary", None)]
    assert [each.model for each in bodies] == [None]
    if reason in ("manual", "navigation"):
        assert result.text == "mine" and result.summary == lane.tip()


@pytest.mark.parametrize("reason", REASONS)
async def test_what_it_declines_is_not_made(memory: Place, reason: str) -> None:
    asked = Asked(lambda info: Decline("not now"))
    agent, model = lane_agent(reason, asked)
    session = await memory.open()
    lane, result = await ask_for_it(session, agent, reason)

    assert summaries(model) == [] and len(asked.seen) == 1
    assert not [each for each in await lane.entries() if isinstance(each.body, Compaction)]
    if reason == "threshold":
        assert result.status == "completed"
        assert shown(answers(model)[-1])[0] == "user u1"
        return
    assert result.status == "failed" and result.error is not None and "not now" in result.error.message
    assert result.code == ("context_overflow" if reason == "overflow" else DECLINED)
    if reason == "navigation":
        assert (await path(lane))[-1] == "model a2"


async def test_declined_before_one_request_it_is_asked_before_the_next(memory: Place) -> None:
    said_so = iter([Decline("not now"), None])
    asked = Asked(lambda info: next(said_so))
    agent, model = lane_agent("threshold", asked)
    session = await memory.open()
    lane, _ = await ask_for_it(session, agent, "threshold")
    await talk(lane, "u4")
    assert len(asked.seen) == 2 and len(summaries(model)) == 1


async def test_the_earlier_summary_is_told(memory: Place) -> None:
    asked = Asked(lambda info: None)
    agent, _ = lane_agent("manual", asked)
    session = await memory.open()
    lane, _ = await ask_for_it(session, agent, "manual")
    await talk(lane, "u3")
    await lane.compact()
    assert [each.earlier for each in asked.seen] == [None, "S1"]


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("no way"),
        SystemExit(3),
        asyncio.CancelledError(),
        "a text",
        SummaryText(""),
        SummaryText(" \n"),
        SummaryText("long" * 100_001),
        SummaryText(3),  # type: ignore[arg-type]
        Decline(None),  # type: ignore[arg-type]
    ],
    ids=lambda answer: repr(answer)[:40],
)
async def test_one_that_fails_is_reported_and_passed_over(memory: Place, answer: Any) -> None:
    def say(info: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    agent, model = lane_agent("manual", Asked(say), Asked(lambda info: None))
    session = await memory.open()
    _, result = await ask_for_it(session, agent, "manual")
    assert (result.status, result.text, len(summaries(model))) == ("completed", "S1", 1)
    assert any("before_compaction" in str(each) for each in session._runtime.findings)


async def test_with_on_error_block_it_fails_the_operation(memory: Place) -> None:
    def say(info: Any) -> Any:
        raise ValueError("no way")

    model = lane_agent("manual")[1]
    strict = counted(
        model,
        compaction=CompactionPolicy(keep_tokens=120),
        hooks=[hook("before_compaction", say, on_error="block")],
    )
    session = await memory.open()
    lane, result = await ask_for_it(session, strict, "manual")
    assert result.status == "failed" and result.error is not None and "no way" in result.error.message
    assert summaries(model) == [] and (await path(lane))[-1] == "model a2"


async def test_a_lone_surrogate_in_its_summary_is_replaced(memory: Place) -> None:
    agent, _ = lane_agent("manual", Asked(lambda info: SummaryText("a\ud800b")))
    session = await memory.open()
    _, result = await ask_for_it(session, agent, "manual")
    assert result.text == "a\ufffdb"


@pytest.mark.parametrize("end", ["abort", "close"])
async def test_an_abort_and_a_close_end_it(memory: Place, end: str) -> None:
    stuck = Stuck(value=SummaryText("mine"))
    agent, model = lane_agent("manual", stuck, cancel_grace_ms=GRACE_MS)
    session = await memory.open()
    lane = await session.lane("main", agent)
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await stuck.entered.wait()
    seen = lane.inspect().operation
    assert seen is not None and seen.at == "checkpoint" and lane.inspect().driving
    if end == "abort":
        await lane.request_abort("c")
        outcome = await driving
        assert isinstance(outcome, Settled)
        assert (outcome.result.status, outcome.result.usage.rows) == ("aborted", 0)
        assert stuck.told == 1
        return
    await session.close()
    with pytest.raises(SessionClosed):
        await driving
    session = await memory.open()
    agent, model = lane_agent("manual", Asked(lambda info: SummaryText("mine")))
    lane = await session.lane("main", agent)
    outcome = await lane.drive("c")
    assert isinstance(outcome, Settled) and outcome.result.text == "mine" and summaries(model) == []


async def test_a_stubborn_one_is_left_behind(memory: Place) -> None:
    stuck = Stuck(stubborn=True, value=SummaryText("late"))
    agent, _ = lane_agent("manual", stuck, cancel_grace_ms=GRACE_MS)
    session = await memory.open()
    lane = await session.lane("main", agent)
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await stuck.entered.wait()
    await lane.request_abort("c")
    await pass_grace(memory.clock, stuck)
    outcome = await driving
    assert isinstance(outcome, Settled) and outcome.result.status == "aborted"
    stuck.go_on.set()
    await asyncio.sleep(0)
    assert (await path(lane))[-1] == "model a2"


async def test_hooks_of_requests_are_not_asked_about_a_summarys(memory: Place) -> None:
    """They are for answers: what they would make of the messages or of the answer is no summary's."""
    before, transformed, after = (Asked(lambda info: None) for _ in range(3))
    model = lane_agent("threshold")[1]
    hooked = counted(
        model,
        hooks=[hook("before_request", before), hook("transform_context", transformed), hook("after_response", after)],
    )
    session = await memory.open()
    _, result = await ask_for_it(session, hooked, "threshold")
    assert result.status == "completed" and len(summaries(model)) == 1
    assert [len(each.seen) for each in (before, transformed, after)] == [3, 3, 3]


@pytest.mark.parametrize("dies", [False, True])
async def test_before_run_is_asked_once_and_before_the_summary(memory: Place, dies: bool) -> None:
    """Also where the session is closed between them: that the run may begin is durable with the summary's intent."""
    order: list[str] = []

    def hooked(model: ScriptedModel) -> Agent[Any, Any]:
        return counted(
            model,
            hooks=[
                hook("before_run", lambda info: order.append("run")),
                hook("before_compaction", lambda info: order.append("compaction")),
                hook("before_request", lambda info: order.append("request")),
            ],
        )

    model = lane_agent("threshold", given=[hold("S1")])[1]
    session = await memory.open()
    lane = await session.lane("main", hooked(model))
    await talk(lane, "u1", "u2")
    order.clear()
    driving = asyncio.ensure_future(lane.run(said("u3"), operation_id="o"))
    await model.hanging()
    assert order == ["run", "compaction"]
    if dies:
        await session.close()
        with pytest.raises(SessionClosed):
            await driving
        session = await memory.open()
        lane = await session.lane("main", hooked(lane_agent("threshold")[1]))
        await lane.resume()
    else:
        model.release()
        await driving
    assert order == ["run", "compaction", "request"]


async def test_before_run_that_refuses_stops_the_summary_too(memory: Place) -> None:
    def refuse(info: Any) -> None:
        if len(summaries(model)) + len(answers(model)) == 2:
            raise ValueError("no more")

    _, model = lane_agent("threshold")
    session = await memory.open()
    lane, result = await ask_for_it(session, counted(model, hooks=[hook("before_run", refuse)]), "threshold")
    assert (result.status, summaries(model)) == ("failed", [])
    assert lane.inspect().operation is None


async def test_before_finish_is_not_asked_where_no_answer_ends(memory: Place) -> None:
    asked = Asked(lambda info: FollowUp("more"))
    model = lane_agent("manual")[1]
    session = await memory.open()
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    lane = await session.lane("main", counted(model, hooks=[hook("before_finish", asked)]))
    assert (await lane.compact(keep_tokens=0)).status == "completed"
    assert (await lane.run(Navigate(None, summarize=True))).status == "completed"
    assert asked.seen == []
