"""Claim: a run summarizes what it shows before a request would be too long, once for a need, and never fails by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from agentlane import (
    Agent,
    AgentLane,
    CompactionPolicy,
    InvalidDefinition,
    LaneBusy,
    ModelIdentity,
    Prompt,
    RetryPolicy,
    Session,
    agent_tool,
    tool,
)
from agentlane.data.entries import Compaction
from agentlane.data.messages import Message, user
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, call, check_invariants, fail, hold
from tests.driver.compacting import (
    answers,
    counted,
    memory_session,
    path,
    said,
    shown,
    summaries,
    talk,
    tokens,
    transcript,
)

WINDOW = 700
"""A request in it is too long beyond 525 tokens, and at most 175 are kept: see ``machine.compaction.budgets``."""


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


def windowed(*given: Any, summaries: Any = "S1", window: int | None = WINDOW, **options: Any) -> ScriptedModel:
    return ScriptedModel([*given], summaries=summaries, limits=ModelLimits(context_tokens=window), **options)


def numbered(count: int) -> list[str]:
    return [said(f"a{number}") for number in range(1, count + 1)]


async def compactions(lane: AgentLane[Any, Any]) -> list[Compaction]:
    return [each.body for each in await lane.entries(newest_first=False) if isinstance(each.body, Compaction)]


async def test_it_summarizes_before_the_request_that_would_be_too_long(session: Session) -> None:
    model = windowed(*numbered(4))
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    assert summaries(model) == []

    result = await lane.run(said("u3"))

    assert (result.status, result.usage.rows, result.turns, result.summary) == ("completed", 2, 1, None)
    assert result.text.startswith("a3")
    assert (await path(lane))[4:] == ["user u3", "compaction S1", "model a3"]
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u3"]
    assert len(summaries(model)) == 1
    kinds = [each.row.kind for each in await session.usage() if each.row.operation_id == result.operation_id]
    assert kinds == ["summary", "attempt"]
    answer = await session.entry(str(result.answer))
    assert answer.body.answers == result.inputs  # type: ignore[union-attr]


async def test_the_models_own_window_wins(session: Session) -> None:
    """Whatever the policy says, greater or smaller; the policy's is for a model that does not tell."""
    for number, (own, policy, expected) in enumerate(
        [(WINDOW, 10**6, 1), (10**6, WINDOW, 0), (None, WINDOW, 1), (None, None, 0)]
    ):
        model = windowed(*numbered(3), window=own)
        agent = counted(model, compaction=CompactionPolicy(context_tokens=policy))
        lane = await session.lane(f"l{number}", agent)
        await talk(lane, "u1", "u2", "u3")
        assert len(summaries(model)) == expected, (own, policy)


async def test_without_a_policy_nothing_is_summarized(session: Session) -> None:
    model = windowed(*numbered(5))
    lane = await session.lane("main", counted(model, compaction=None))
    await talk(lane, "u1", "u2", "u3", "u4", "u5")
    assert summaries(model) == []


async def test_in_one_run_it_is_made_as_often_as_it_is_needed(session: Session) -> None:
    """A batch and its results are never parted, and the prompt is carried by the summaries."""

    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}", 240)

    turns = [[call("look", n=number)] for number in range(1, 41)]
    model = ScriptedModel(
        [*turns, "done"],
        summaries=lambda request: f"S{len(summaries(model))}",
        limits=ModelLimits(context_tokens=2_000),
    )
    lane = await session.lane("main", counted(model, tools=[look]))

    result = await lane.run("go")

    assert (result.status, result.text, result.turns) == ("completed", "done", 41)
    made = await compactions(lane)
    assert 2 <= len(made) <= 8 and [each.summary for each in made] == [f"S{n + 1}" for n in range(len(made))]
    assert len(answers(model)) == 41
    for request in answers(model):
        assert sum(map(tokens, request.messages)) <= 1_500
        names = [type(each).__name__ for each in request.messages]
        assert names[0] == "UserMessage" and names[1:] == ["AssistantMessage", "ToolResultMessage"] * (len(names) // 2)
    for asked in summaries(model)[1:]:
        assert "<earlier-summary>" in transcript(asked) and "<unfinished-turn>" in transcript(asked)


@pytest.mark.parametrize("given", ["a", "b"])
async def test_nothing_worth_cutting_away_is_no_loop(session: Session, given: str) -> None:
    """The prompt alone, or the instructions, are beyond the window's share: the request is made as it is."""
    model = windowed("a1", "a2")
    instructions = said("be", 4_000) if given == "b" else ""
    lane = await session.lane("main", counted(model, instructions=instructions))
    prompt = said("huge", 6_000) if given == "a" else "u1"
    assert (await lane.run(prompt)).status == "completed"
    assert (await lane.run("u2")).status == "completed"
    assert len(summaries(model)) == (1 if given == "a" else 0)
    assert len(answers(model)) == 2


async def test_instructions_beyond_the_window_make_no_summary_for_each_request(session: Session) -> None:
    """Whatever is said, the request stays above the threshold. As much as is taken away has to come first."""
    model = windowed(*numbered(12))
    lane = await session.lane("main", counted(model, instructions=said("be", 4_000)))
    await talk(lane, *(f"u{number}" for number in range(1, 13)))
    assert len(answers(model)) == 12
    assert len(summaries(model)) <= 12


async def test_each_trigger_is_looked_at_once(session: Session) -> None:
    """A summary that is itself long leaves the request above the threshold; it is asked all the same."""
    model = windowed(*numbered(4), summaries=said("LONG", 3_000))
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2", "u3")
    assert len(summaries(model)) == 1 and len(answers(model)) == 3


async def test_a_huge_prompt_is_never_summarized_before_it_is_answered(session: Session) -> None:
    model = windowed(*numbered(3))
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1")
    await lane.run(said("huge", 6_000))
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user huge"]
    assert "huge" not in transcript(summaries(model)[0])


async def test_what_is_said_meanwhile_is_placed_behind_it_and_answered(session: Session) -> None:
    model = windowed(*numbered(5), summaries=[hold("S1")])
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    driving = asyncio.ensure_future(lane.run(said("u3"), operation_id="o"))
    await model.hanging()
    seen = lane.inspect()
    assert seen.operation is not None
    assert (seen.operation.at, seen.operation.summarizing, seen.operation.turn) == ("summarizing", "threshold", 0)
    with pytest.raises(LaneBusy):
        await lane.accept(Prompt("more"))
    note = await lane.append_message(user("note"))
    steer = await lane.steer("steer", request_id="r1")
    follow = await lane.follow_up("follow", request_id="r2")
    sub = await lane.submit("submitted", request_id="r3")
    assert [each.id for each in lane.queued()] == [note.id, steer.id, follow.id, sub.entries[0]]
    model.release()
    result = await driving
    assert result.status == "completed" and result.next_operation is None
    assert (await path(lane))[4:] == [
        "user u3",
        "compaction S1",
        "user note",
        "user steer",
        "user submitted",
        "model a3",
        "user follow",
        "model a4",
    ]
    assert shown(answers(model)[-2]) == ["[summary: S1]", "user u3", "user note", "user steer", "user submitted"]
    for name in ("r1", "r2", "r3"):
        receipt = await lane.receipt(name)
        assert receipt is not None and (receipt.state, receipt.operation_id) == ("placed", "o")


# Where it fails.


@pytest.mark.parametrize(
    ("answer", "attempts"),
    [(fail("refused"), 1), (fail("overloaded", retryable=True), 2), ("", 2), ([call("look")], 2)],
    ids=["no", "later", "empty", "calls"],
)
async def test_a_summary_that_fails_does_not_fail_the_run(session: Session, answer: Any, attempts: int) -> None:
    model = windowed(*numbered(6), summaries=[answer])
    lane = await session.lane("main", counted(model, retry=RetryPolicy(attempts=2, base_ms=0, cap_ms=0)))
    await talk(lane, "u1", "u2", "u3")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user u2", "model a2", "user u3"]
    assert await compactions(lane) == []
    made = len(summaries(model))
    assert made == attempts
    rows = [each.row.kind for each in await session.usage()]
    assert rows.count("summary") == made


async def test_once_it_failed_a_run_asks_for_no_more_of_them(session: Session) -> None:
    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}")

    turns = [[call("look", n=number)] for number in range(1, 6)]
    model = windowed(*turns, "done", "again", summaries=[fail("refused")])
    lane = await session.lane("main", counted(model, tools=[look]))
    assert (await lane.run("go")).text == "done"
    assert len(summaries(model)) == 1
    assert (await lane.run("more")).text == "again"
    assert len(summaries(model)) == 2  # the next run tries again


async def test_a_failed_one_still_leaves_the_way_of_an_overflow(session: Session) -> None:
    """After a summary that failed a request that is too long is recovered, if a summary is had then."""
    gave = iter([fail("refused"), "S2"])
    model = windowed(*numbered(2), fail("context_overflow"), said("a3"), summaries=lambda _: next(gave))
    lane = await session.lane("main", counted(model))
    await talk(lane, "u1", "u2")
    result = await lane.run(said("u3"))
    assert (result.status, result.text.split()[0]) == ("completed", "a3")
    assert [each.summary for each in await compactions(lane)] == ["S2"]


async def test_a_fallback_is_asked_for_the_summary_too(session: Session) -> None:
    first = windowed(*numbered(3), summaries=[fail("overloaded", retryable=True)])
    second = windowed(*numbered(3), summaries="S-second", identity=ModelIdentity(provider="scripted", name="second"))
    lane = await session.lane("main", counted([first, second], retry=RetryPolicy(base_ms=0, cap_ms=0)))
    await talk(lane, "u1", "u2", "u3")
    [made] = await compactions(lane)
    assert (made.summary, str(made.model)) == ("S-second", "scripted:second")
    assert [len(summaries(each)) for each in (first, second)] == [1, 1]
    assert len(answers(first)) == 3  # the turn begins with the first model
    rows = [(each.row.kind, each.row.model) for each in await session.usage()][-3:]
    assert rows == [("summary", "scripted:scripted"), ("summary", "scripted:second"), ("attempt", "scripted:scripted")]


# Limits.


@pytest.mark.parametrize(
    ("limits", "code", "requests"),
    [
        ({"max_requests": 1}, "limit_reached", 0),
        ({"max_requests": 2}, None, 1),
        ({"max_tokens": 110}, "limit_reached", 0),
        ({"max_tokens": 111}, None, 1),
        ({"max_cost_nanos": 1_000}, "limit_reached", 0),
        ({"max_turns": 1}, None, 1),
    ],
)
async def test_limits_count_summaries(
    session: Session, limits: dict[str, int], code: str | None, requests: int
) -> None:
    model = windowed(*numbered(3))
    await talk(await session.lane("main", counted(model)), "u1", "u2")
    lane = await session.lane("main", counted(model, **limits))
    before = len(answers(model))
    result = await lane.run(said("u3"))
    assert (result.status, result.code) == ("failed" if code else "completed", code)
    assert len(answers(model)) - before == requests and len(summaries(model)) == 1
    assert (await path(lane))[5] == "compaction S1"


# Counting.


@dataclass
class Found:
    names: list[str]


class Counted:
    """A counter of tokens that says something else each time, or nothing."""

    def __init__(self, *answers: Any) -> None:
        self.asked = 0
        self._answers = list(answers)

    def __call__(self, message: Message) -> Any:
        self.asked += 1
        answer = self._answers[min(self.asked, len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_a_counter_of_its_own_decides(session: Session) -> None:
    counter = Counted(1)
    model = windowed(*numbered(6))
    lane = await session.lane("main", counted(model, token_counter=counter))
    await talk(lane, "u1", "u2", "u3", "u4", "u5", "u6")
    assert summaries(model) == [] and counter.asked >= 11
    assert counter.asked <= 40  # each message once or twice, not each with each request


@pytest.mark.parametrize("bad", [ValueError("no"), None, -1, 1.5, "12", True, SystemExit(3)], ids=repr)
async def test_a_counter_that_fails_is_told_once_and_the_estimate_is_taken(session: Session, bad: Any) -> None:
    model = windowed(*numbered(4))
    lane = await session.lane("main", counted(model, token_counter=Counted(bad)))
    for label in ("u1", "u2", "u3"):
        await lane.run(f"{label} " + "and so on " * 60)
    assert len(summaries(model)) == 1
    told = [str(each) for each in session._runtime.findings if "token counter" in str(each)]
    assert len(told) == 1, session._runtime.findings


async def test_what_is_no_function_is_no_counter(session: Session) -> None:
    with pytest.raises(InvalidDefinition, match="token_counter=3 must be a function"):
        Agent(model=windowed("a"), token_counter=3)  # type: ignore[arg-type]


# With other parts.


async def test_a_child_summarizes_its_own_lane(session: Session) -> None:
    @tool(replay="safe")
    def look(n: int) -> str:
        return said(f"r{n}")

    inner = windowed(*([call("look", n=number)] for number in range(1, 5)), "found", summaries="IN")
    child = counted(inner, name="child", tools=[look])
    outer = ScriptedModel([[call("delegate", prompt="look")], "done"])
    lane = await session.lane("main", counted(outer, tools=[agent_tool(child, name="delegate", description="looks")]))
    result = await lane.run("go")
    assert (result.status, result.text) == ("completed", "done")
    assert len(summaries(inner)) >= 1 and summaries(outer) == []
    assert all(each.lane != "main" for each in summaries(inner))


async def test_an_output_is_checked_behind_one(session: Session) -> None:
    model = windowed(said("a1"), said("a2"), "no json", '{"names": ["x"]}')
    await talk(await session.lane("main", counted(model)), "u1", "u2")
    lane = await session.lane("main", counted(model, output=Found))
    result = await lane.run(said("u3"))
    assert (result.status, result.output) == ("completed", {"names": ["x"]})
    [asked] = summaries(model)
    assert asked.output is None and all(each.output is not None for each in answers(model)[2:])


async def test_a_configured_model_brings_its_own_window(session: Session) -> None:
    large = windowed(*numbered(4), window=10**6)
    small = windowed(*numbered(4), identity=ModelIdentity(provider="scripted", name="small"), window=WINDOW)
    lane = await session.lane("main", counted([large, small]))
    await talk(lane, "u1", "u2", "u3")
    await lane.configure(model="scripted:small")
    await talk(lane, "u4")
    assert (len(summaries(large)), len(summaries(small))) == (0, 1)


async def test_the_prefix_of_requests_stays_between_summaries(session: Session) -> None:
    model = windowed(*numbered(9))
    lane = await session.lane("main", counted(model))
    await talk(lane, *(f"u{number}" for number in range(1, 10)))
    changes = 0
    for one, other in zip(answers(model), answers(model)[1:], strict=False):
        same = list(other.messages[: len(one.messages)]) == list(one.messages)
        changes += not same
    assert changes == len(summaries(model)) >= 2
