"""Claim: a compaction that somebody asks for shortens what the model is shown, and is work like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentlane import (
    Agent,
    Compact,
    CompactionPolicy,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    ModelIdentity,
    OperationMismatch,
    Prompt,
    QueuedState,
    RequestConflict,
    RetryPolicy,
    Session,
    Settled,
    WouldDeadlock,
    tool,
)
from agentlane.data.entries import Compaction
from agentlane.data.inbox import Queued
from agentlane.data.messages import AssistantMessage, TextPart, ToolCallPart, user
from agentlane.errors import NothingToCompact
from agentlane.testing import ScriptedModel, call, check_invariants, fail, hang, hold, say
from tests.driver.compacting import answers, compacting, memory_session, path, said, shown, summaries, talk, transcript


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


def model_of(*given: Any, summaries: Any = "S1") -> ScriptedModel:
    return ScriptedModel([*given], summaries=summaries)


async def test_history_stays_and_what_is_shown_is_the_summary_and_the_tail(session: Session) -> None:
    model = model_of(*(said(f"a{i}") for i in range(1, 5)))
    lane = await session.lane("main", compacting(model, compaction=CompactionPolicy(keep_tokens=230)))
    await talk(lane, "u1", "u2", "u3")
    before = await lane.entries(newest_first=False)

    result = await lane.compact(instructions="the names")

    assert (result.status, result.kind, result.text) == ("completed", "compact", "S1")
    after = await lane.entries(newest_first=False)
    assert [(each.id, each.seq) for each in after[:-1]] == [(each.id, each.seq) for each in before]
    body = after[-1].body
    assert isinstance(body, Compaction) and result.summary == after[-1].id == lane.tip() == result.to_tip
    assert (body.summary, body.kept_from, body.split) == ("S1", before[4].id, False)
    assert body.tokens_before >= 6 * 100
    [asked] = summaries(model)
    assert asked.tools == () and len(asked.messages) == 1 and asked.max_output_tokens == 4_096
    assert asked.instructions.endswith("the names")
    assert "u1 " in transcript(asked) and "a2 " in transcript(asked) and "u3 " not in transcript(asked)

    await talk(lane, "u4")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u3", "model a3", "user u4"]


async def test_its_usage_is_its_own(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), summaries=[fail("overloaded", retryable=True), "S1"])
    lane = await session.lane("main", compacting(model, retry=RetryPolicy(base_ms=0, cap_ms=0)))
    await talk(lane, "u1", "u2")
    before = session.stats().usage

    result = await lane.compact()

    rows = [each.row for each in await session.usage() if each.row.operation_id == result.operation_id]
    assert [(row.kind, row.entry_id, row.model, row.usage.unknown) for row in rows] == [
        ("summary", None, "scripted:scripted", True),
        ("summary", result.summary, "scripted:scripted", False),
    ]
    assert (result.usage.rows, result.usage.unknown_rows, result.usage.input_tokens) == (2, 1, 100)
    after = session.stats().usage
    assert (after.rows - before.rows, after.cost_nanos - before.cost_nanos) == (2, 1_000)


async def test_nothing_to_compact_is_said_at_the_accept_and_nothing_is_opened(session: Session) -> None:
    lane = await session.lane("main", compacting(model_of("a1"), compaction=CompactionPolicy()))
    with pytest.raises(NothingToCompact, match=r"lane 'main'"):
        await lane.compact()
    assert session.open_operations() == []

    await lane.run("u1")
    for keep in (None, 1_000_000):
        with pytest.raises(NothingToCompact):
            await lane.compact(keep_tokens=keep, operation_id="c")
    assert lane.inspect().operation is None
    assert (await lane.compact(keep_tokens=0, operation_id="c")).text == "S1"
    assert await path(lane) == ["user u1", "model a1", "compaction S1"]
    with pytest.raises(NothingToCompact):
        await lane.compact(keep_tokens=0)
    await lane.navigate(None)
    await lane.append_custom("app.mark", {"n": 1})
    with pytest.raises(NothingToCompact):
        await lane.compact(keep_tokens=0)


async def test_it_works_where_nothing_is_summarized_by_itself(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), said("a3"))
    lane = await session.lane("main", compacting(model, compaction=None))
    await talk(lane, "u1", "u2")
    assert (await lane.compact(keep_tokens=120)).status == "completed"
    await talk(lane, "u3")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "model a2", "user u3"]


async def test_a_summary_is_carried_forward_over_three(session: Session) -> None:
    model = ScriptedModel([said(f"a{i}") for i in range(1, 9)], summaries=lambda request: f"S{len(summaries(model))}")
    lane = await session.lane("main", compacting(model, compaction=CompactionPolicy(keep_tokens=0)))
    for round_ in (1, 2, 3):
        await talk(lane, f"u{2 * round_ - 1}", f"u{2 * round_}")
        assert (await lane.compact()).text == f"S{round_}"

    asked = [transcript(each) for each in summaries(model)]
    assert "<earlier-summary>" not in asked[0]
    for number, text in enumerate(asked[1:], 1):
        assert f"<earlier-summary>\nS{number}\n</earlier-summary>" in text
        assert f"u{2 * number} " not in text and f"u{2 * number + 1} " in text
    await talk(lane, "u7")
    assert shown(answers(model)[-1]) == ["[summary: S3]", "user u7"]


async def test_a_turn_that_is_larger_than_what_is_kept_is_split(session: Session) -> None:
    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}")

    model = model_of([call("look", n=1)], [call("look", n=2)], said("a1"), said("a2"))
    lane = await session.lane("main", compacting(model, tools=[look], compaction=CompactionPolicy(keep_tokens=330)))
    await talk(lane, "u1")
    result = await lane.compact()

    body = (await session.entry(str(result.summary))).body
    assert isinstance(body, Compaction) and body.split
    asked = summaries(model)[0]
    assert '<unfinished-turn>\n<said by="user">\nu1 ' in transcript(asked)
    assert "r1 " in transcript(asked) and "r2 " not in transcript(asked)
    await talk(lane, "u2")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "model (look)", "result r2", "model a1", "user u2"]


async def test_a_huge_prompt_without_an_answer_is_kept(session: Session) -> None:
    model = model_of(said("a1"), fail("refused"), said("a2"), said("a3"))
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1")
    assert (await lane.run(said("huge", 30_000))).status == "failed"
    assert (await lane.compact()).status == "completed"
    await lane.run("u3")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user huge", "user u3"]


async def test_only_what_is_unanswered_stands_there(session: Session) -> None:
    lane = await session.lane("main", compacting(model_of(fail("refused"), said("a1"))))
    await lane.run(said("huge", 30_000))
    with pytest.raises(NothingToCompact):
        await lane.compact(keep_tokens=0)


# Asked twice, or in an odd way.


async def test_the_same_id_is_the_same_compaction(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    first = await lane.accept(Compact("names", 100), operation_id="c")
    assert await lane.accept(Compact("names", 100), operation_id="c") == first
    for other in (Compact("names", 101), Compact("", 100), Prompt("x")):
        with pytest.raises(RequestConflict):
            await lane.accept(other, operation_id="c")
    with pytest.raises(LaneBusy) as busy:
        await lane.accept(Compact("names", 100), operation_id="d")
    assert busy.value.details["operation_id"] == "c"

    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()
    assert await lane.accept(Compact("names", 100), operation_id="c") == first
    model.release()
    settled = await driving
    assert await lane.accept(Compact("names", 100), operation_id="c") == first
    assert await lane.drive("c") == settled
    with pytest.raises(RequestConflict):
        await lane.accept(Compact("other"), operation_id="c")
    assert len(summaries(model)) == 1


@pytest.mark.parametrize("keep", [-1, 1.5, "10", True, 2**64, float("nan")])
async def test_odd_numbers_are_refused(session: Session, keep: Any) -> None:
    lane = await session.lane("main", compacting(model_of("a1")))
    with pytest.raises(InvalidMessage, match=r"compact\.keep_tokens: .*whole number of at least 0") as caught:
        await lane.compact(keep_tokens=keep)
    assert caught.value.details["path"] == "compact.keep_tokens" and repr(keep) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "text is needed here, not NoneType"),
        (b"x", "not bytes"),
        ("x" * 20_001, "20001 characters; at most 20000"),
    ],
)
async def test_odd_instructions_are_refused(session: Session, given: Any, text: str) -> None:
    lane = await session.lane("main", compacting(model_of("a1")))
    with pytest.raises(InvalidMessage, match=text):
        await lane.compact(instructions=given)


async def test_lone_surrogates_in_instructions_are_replaced(session: Session) -> None:
    model = model_of(said("a1"))
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1")
    assert (await lane.compact(instructions="a\ud800b", keep_tokens=0)).status == "completed"
    assert summaries(model)[0].instructions.endswith("a\ufffdb")


# What comes meanwhile.


async def test_what_is_said_meanwhile_waits_and_stands_behind_the_summary(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), said("a3"), said("a4"), summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()

    seen = lane.inspect()
    assert seen.operation is not None and seen.driving
    assert (seen.operation.at, seen.operation.summarizing) == ("summarizing", "manual")
    assert [each.operation_id for each in session.open_operations()] == ["c"]
    waiting = asyncio.ensure_future(lane.wait_idle())
    note = await lane.append_message(user("note"))
    mark = await lane.append_custom("app.mark", {"n": 1})
    steer = await lane.steer("steer", request_id="r-steer")
    follow = await lane.follow_up("follow", request_id="r-follow")
    later = await lane.next_run("later", request_id="r-later")
    receipt = await lane.submit("submitted", request_id="r-submit")
    assert isinstance(note, Queued) and isinstance(mark, Queued) and receipt.state == "queued"
    assert [each.id for each in lane.queued()] == [note.id, mark.id, steer.id, follow.id, later.id, receipt.entries[0]]
    assert not waiting.done()
    calls = AssistantMessage(content=(ToolCallPart(id="1", name="t", arguments={}),), stop_reason="tool_calls")
    with pytest.raises(InvalidMessage, match="while operation c is open"):
        await lane.append_message(calls)

    model.release()
    outcome = await driving
    assert isinstance(outcome, Settled) and outcome.result.text == "S1"
    next_id = outcome.result.next_operation
    assert next_id is not None
    assert (await path(lane))[4:] == [
        "compaction S1",
        "user note",
        "custom app.mark",
        "user steer",
        "user follow",
        "user later",
        "user submitted",
    ]
    states: dict[str, tuple[QueuedState, str | None]] = {}
    for name in ("r-steer", "r-follow", "r-later", "r-submit"):
        found = await lane.receipt(name)
        assert found is not None
        states[name] = (found.state, found.operation_id)
    assert states == {
        "r-steer": ("placed", next_id),
        "r-follow": ("placed", next_id),
        "r-later": ("placed", next_id),
        "r-submit": ("taken", next_id),
    }
    assert lane.queued() == [] and not waiting.done()
    assert (await lane.resume()).text.startswith("a3")
    await waiting
    assert shown(answers(model)[-1])[:4] == ["[summary: S1]", "model a2", "user note", "user steer"]


async def test_what_was_said_and_waits_is_no_prompt_of_a_compaction(session: Session) -> None:
    """Steering alone opens no run; it is placed before the next prompt."""
    model = model_of(said("a1"), said("a2"), said("a3"), summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    early = await lane.next_run("early")
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()
    steer = await lane.steer("steer")
    model.release()
    outcome = await driving
    assert isinstance(outcome, Settled) and outcome.result.next_operation is None
    assert [each.id for each in lane.queued()] == [early.id, steer.id]
    await lane.wait_idle()
    await talk(lane, "u3")
    assert (await path(lane))[4:] == ["compaction S1", "user early", "user steer", "user u3", "model a3"]


async def test_an_abort_keeps_the_conversation_and_returns_what_was_said(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), said("a3"), summaries=[hang()])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    tip = lane.tip()
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()
    steer = await lane.steer("steer")
    kept = await lane.append_message(user("note"))
    receipt = await lane.request_abort("c")
    outcome = await driving
    assert isinstance(outcome, Settled)
    assert [each.id for each in receipt.returned] == [steer.id] == [each.id for each in outcome.result.returned]
    assert (outcome.result.status, outcome.result.summary, outcome.result.text) == ("aborted", None, "")
    assert lane.tip() == tip and [each.id for each in lane.queued()] == [kept.id]
    assert outcome.result.usage.rows == 1 and outcome.result.usage.unknown_rows == 1
    await talk(lane, "u3")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user u2", "model a2", "user note", "user u3"]


async def test_an_abort_before_it_is_driven_asks_no_model(session: Session) -> None:
    model = model_of(said("a1"), said("a2"))
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    await lane.accept(Compact(), operation_id="c")
    result = await lane.abort()
    assert (result.status, result.usage.rows) == ("aborted", 0) and summaries(model) == []


async def test_moves_are_refused_while_it_runs(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), summaries=[hold("S1")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    first = (await lane.entries(newest_first=False))[0].id
    await lane.accept(Compact(), operation_id="c")
    driving = asyncio.ensure_future(lane.drive("c"))
    await model.hanging()
    for move in (
        lambda: lane.navigate(None),
        lambda: lane.navigate(first, summarize=True),
        lambda: lane.rewind(first),
        lambda: lane.compact(),
        lambda: lane.run("more"),
    ):
        with pytest.raises(LaneBusy) as busy:
            await move()
        assert busy.value.details["operation_id"] == "c"
    with pytest.raises(LaneBusy):
        await session.delete_branch("main")
    other = await session.create_branch("other", at=first)
    assert other.tip() == first
    model.release()
    assert isinstance(await driving, Settled)
    assert await path(lane) == ["user u1", "model a1", "user u2", "model a2", "compaction S1"]


async def test_inside_a_tool_its_lane_is_busy_and_another_is_not(session: Session) -> None:
    heard: list[Any] = []
    lanes: dict[str, Any] = {}

    @tool(replay="never")
    async def ask() -> str:
        for request in (lambda: lanes["main"].accept(Compact()), lambda: lanes["main"].compact()):
            try:
                await request()
            except (LaneBusy, WouldDeadlock) as error:
                heard.append(type(error))
        admitted = await lanes["other"].accept(Compact(keep_tokens=0))
        outcome = await lanes["other"].drive(admitted.operation_id)
        heard.append(outcome.result.text)
        return "done"

    lanes["other"] = await session.lane("other", compacting(model_of(said("b1"), summaries="S")))
    await talk(lanes["other"], "v1")
    asking = ScriptedModel([[call("ask")], said("a1")])
    lanes["main"] = await session.lane("main", Agent(name="asks", model=asking, tools=[ask]))
    assert (await lanes["main"].run("u1")).status == "completed"
    assert heard == [LaneBusy, LaneBusy, "S"]


async def test_a_compaction_has_nothing_to_retry(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), summaries=[fail("refused")])
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    failed = await lane.compact()
    assert (failed.status, failed.code) == ("failed", "refused")
    with pytest.raises(RequestConflict, match="nothing of it to try again"):
        await lane.retry(failed.operation_id)


async def test_an_operation_before_it_is_not_retried_behind_it(session: Session) -> None:
    model = model_of(said("a1"), fail("refused"), said("a2"))
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1")
    failed = await lane.run(said("u2"))
    await lane.compact()
    with pytest.raises(OperationMismatch):
        await lane.retry(failed.operation_id)
    await lane.navigate(failed.to_tip)
    again = await lane.retry(failed.operation_id)
    assert (await lane.drive(again.operation_id)).result.text.startswith("a2")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user u2"]


async def test_a_failed_run_behind_one_is_tried_again_there(session: Session) -> None:
    model = model_of(said("a1"), said("a2"), fail("refused"), said("a3"))
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    await lane.compact()
    failed = await lane.run(said("u3"))
    again = await lane.retry(failed.operation_id)
    assert (await lane.drive(again.operation_id)).result.text.startswith("a3")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "model a2", "user u3"]


# Where the conversation goes on: before it, at it, behind it.


async def test_a_branch_before_at_and_behind_one_is_shown_its_own_path(session: Session) -> None:
    model = ScriptedModel([said(f"a{i}") for i in range(1, 4)], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    compaction = (await lane.compact()).summary
    await talk(lane, "u3")
    entries = [each.id for each in await lane.entries(newest_first=False)]
    at = entries.index(str(compaction))

    wanted = {
        at - 1: ["user u1", "model a1", "user u2", "model a2", "user w"],
        at: ["[summary: S1]", "model a2", "user w"],
        at + 1: ["[summary: S1]", "model a2", "user u3", "user w"],
    }
    for index, expected in wanted.items():
        other = ScriptedModel(
            ["w"],
            identity=ModelIdentity(provider="scripted", name="other"),
        )
        await session.create_branch(f"b{index}", at=entries[index])
        branch = await session.lane(f"b{index}", Agent(name="other", model=other))
        assert (await branch.run("w")).status == "completed"
        assert shown(other.requests[-1]) == expected


async def test_rewinding_to_before_a_message_that_stands_before_one(session: Session) -> None:
    model = ScriptedModel([said("a1"), said("a2"), said("b2")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2")
    await lane.compact()
    entries = await lane.entries(newest_first=False)
    moved = await lane.rewind(entries[2].id)
    assert [each.content[0].text.split()[0] for each in moved.messages] == ["u2"]
    assert lane.tip() == entries[1].id
    await talk(lane, "w2")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user w2"]
    await lane.navigate(entries[-1].id)
    with pytest.raises(InvalidNavigation):
        await lane.rewind(entries[-1].id)


async def test_secret_words_of_another_branch_are_in_no_request(session: Session) -> None:
    """Both ways round: neither the summary nor a later request has what only another branch has."""
    model = ScriptedModel([said("a1"), said("a2"), said("a3")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1")
    base = lane.tip()
    await lane.run(said("SECRET-A"))
    await lane.append_message(AssistantMessage(content=(TextPart(text="SECRET-B"),), stop_reason="stop"))
    await lane.navigate(base)
    await talk(lane, "w2")
    count = len(model.requests)
    await lane.compact(keep_tokens=0)
    await talk(lane, "w3")
    for request in model.requests[count - 1 :]:
        text = repr(request.messages)
        assert "SECRET" not in text
    first = transcript(summaries(model)[0])
    assert "u1 " in first and "a1 " in first and "w2 " in first


async def test_an_endless_partial_answer_is_in_no_summary(session: Session) -> None:
    la = "la " * 17_000
    model = ScriptedModel([hang([say(la)]), said("a1"), said("a2")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await lane.accept(Prompt(said("u1")), operation_id="o")
    driving = asyncio.ensure_future(lane.drive("o"))
    await model.hanging()
    await lane.request_abort("o")
    assert (await driving).result.status == "aborted"
    await talk(lane, "u2")
    await lane.compact(keep_tokens=0)
    await talk(lane, "u3")
    assert all("la la la" not in repr(each.messages) for each in model.requests)
    kept = [each for each in await lane.messages() if isinstance(each, AssistantMessage)]
    assert kept[0].text == la


async def test_an_endless_whole_answer_is_bounded_in_a_summary(session: Session) -> None:
    model = ScriptedModel(["la " * 17_000, said("a1")], summaries="S1")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1")
    await lane.compact(keep_tokens=0)
    assert len(transcript(summaries(model)[0])) < 20_000
