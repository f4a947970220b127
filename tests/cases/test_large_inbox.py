"""Claim: much that waits is placed in as many commits as it needs: in order, once, and before the model is asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    LaneBusy,
    PayloadTooLarge,
    Prompt,
    Session,
    Tool,
    ToolContext,
)
from agentlane.data.inbox import QueuedKind
from agentlane.driver import amounts
from agentlane.storage import framing
from agentlane.testing.faults import FaultPlan
from agentlane.testing.matrix.lives import bury
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.cases.test_large_results import Sizes
from tests.races.stage import settled
from tests.session.places import Place
from tests.session.saying import commits, line_of, shown, sound, user

COMMIT_BYTES = 6_000
INPUT_BYTES = 8_000
KINDS: tuple[QueuedKind, ...] = ("write", "steer", "follow_up", "next_run")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is much for one commit is little here, and a store's own limit is as far above it as it is in earnest."""
    monkeypatch.setattr(amounts, "COMMIT_BYTES", COMMIT_BYTES)
    monkeypatch.setattr(amounts, "INPUT_BYTES_MAX", INPUT_BYTES)
    monkeypatch.setattr(framing, "TAIL_BYTES_MAX", COMMIT_BYTES + 2 * INPUT_BYTES)


class Said(NamedTuple):
    """A message that is queued: with a request id if it has one."""

    kind: QueuedKind
    text: str
    request_id: str | None = None

    @property
    def name(self) -> str:
        return self.text.partition(" ")[0]


def said(number: int, kind: QueuedKind, size: int) -> Said:
    return Said(kind, f"{kind}-{number} {'x' * size}", f"r-{number}" if number % 2 and kind != "write" else None)


def drawn(seed: int) -> list[Said]:
    """Messages of every kind, in any order and of any size: many more than one commit holds, most of the time."""
    rng = random.Random(seed)
    sizes = [rng.choice((1, 100, 1_500, 3_000, INPUT_BYTES - 300)) for _ in range(rng.randint(6, 18))]
    return [said(number, rng.choice(KINDS), size) for number, size in enumerate(sizes)]


def script(*answers: tuple[int, str]) -> ScriptedModel:
    """A model that has an answer each for so many messages of users."""
    turns: list[list[Any]] = [[] for _ in range(answers[-1][0])]
    for messages, answer in answers:
        turns[messages - 1].append(answer)
    return ScriptedModel(turns=turns)


async def queue(lane: AgentLane[Any, Any], messages: Sequence[Said]) -> list[str]:
    ids = []
    for each in messages:
        if each.kind == "write":
            queued = await lane.append_message(user(each.text))
        else:
            verb = {"steer": lane.steer, "follow_up": lane.follow_up, "next_run": lane.next_run}[each.kind]
            queued = await verb(each.text, request_id=each.request_id)
        ids.append(queued.id)
    return ids


async def path(lane: AgentLane[Any, Any]) -> list[str]:
    """The conversation, without requests that a death cut off."""
    entries = await lane.entries(newest_first=False)
    bodies = [e.body for e in entries if not (isinstance(e.body, AssistantMessage) and e.body.stop_reason == "error")]
    return [" ".join(line_of(body).split()[:2]) for body in bodies]


class Talk:
    """A run that is open, all that is said to it, the prompt after it, and what has to come of that."""

    def __init__(self, messages: Sequence[Said]) -> None:
        self.messages = messages
        by_kind = {kind: [each for each in messages if each.kind == kind] for kind in KINDS}
        placed = [*by_kind["write"], *by_kind["steer"]]
        later, last = by_kind["follow_up"], by_kind["next_run"]
        counts = [1 + len(placed), 1 + len(placed) + len(later), 2 + len(messages)]
        self.path = ["user go", *(f"user {each.name}" for each in placed), "assistant first"]
        answers = [(counts[0], "first")]
        if later:
            self.path += [*(f"user {each.name}" for each in later), "assistant second"]
            answers.append((counts[1], "second"))
        self.path += [*(f"user {each.name}" for each in last), "user again", "assistant third"]
        self.model = script(*answers, (counts[2], "third"))
        self.agent = Agent(model=self.model, steering="all", follow_ups="all")

    async def begin(self, session: Session) -> AgentLane[Any, Any]:
        lane = await session.lane("main", self.agent)
        await lane.accept(Prompt("go"), operation_id="op-1")
        await queue(lane, self.messages)
        return lane

    async def go_on(self, lane: AgentLane[Any, Any]) -> None:
        """To the end of both runs, wherever it stands."""
        assert settled(await lane.drive("op-1")).status == "completed"
        await lane.accept(Prompt("again"), operation_id="op-2")
        assert settled(await lane.drive("op-2")).status == "completed"

    async def judge(self, session: Session, lane: AgentLane[Any, Any]) -> None:
        assert await path(lane) == self.path
        assert lane.queued() == []
        for each in self.messages:
            if each.request_id is not None:
                receipt = await lane.steer(each.text, request_id=each.request_id) if each.kind == "steer" else None
                assert receipt is None or receipt.request_id == each.request_id
        assert lane.queued() == [], "what was said with a request id is known"
        await sound(session)


@pytest.mark.parametrize("seed", range(5))
async def test_all_that_waits_is_placed_in_order_in_as_many_commits_as_it_needs(place: Place, seed: int) -> None:
    talk = Talk(drawn(seed))
    plan = FaultPlan()
    session = await place.open(probe=plan)
    sizes = Sizes(session)
    lane = await talk.begin(session)
    before = len(sizes.of_commits)
    await talk.go_on(lane)

    await talk.judge(session, lane)
    requests = [len(request.messages) for request in talk.model.requests]
    assert requests == [index for index, line in enumerate(talk.path) if line.startswith("assistant")]
    made = sizes.of_commits[before:]
    assert max(made) < COMMIT_BYTES + INPUT_BYTES
    total = sum(len(each.text) + 3 * amounts.ENTRY_BYTES for each in talk.messages)
    assert len(made) <= 8 + 2 * total // COMMIT_BYTES, commits(plan)


async def test_a_death_between_the_parts_leaves_the_rest_for_the_next_life(place: Place, whole: bool) -> None:
    """Before, inside and after each commit that places something."""
    recorded = FaultPlan()
    talk = Talk([said(number, KINDS[number % 4], 2_500) for number in range(16)])
    session = await place.open("recorded", probe=recorded)
    await talk.go_on(await talk.begin(session))
    points = [each for each in recorded.all_boundaries() if "placement" in each.boundary]
    assert len([each for each in points if each.boundary == "commit.placement.before"]) >= 6
    if not whole:
        points = [each for each in points if each.boundary.endswith((".before", ".inside")[each.nth % 2])]

    for number, point in enumerate(points):
        talk = Talk(talk.messages)
        plan = FaultPlan().kill_at(point.boundary, nth=point.nth)
        session = await place.open(f"s{number}", probe=plan)
        going = asyncio.ensure_future(talk.go_on(await talk.begin(session)))
        assert await plan.died() == point
        await bury(session, going)

        session = await place.open(f"s{number}")
        await sound(session)
        lane = await session.lane("main", talk.agent)
        await talk.go_on(lane)
        await talk.judge(session, lane)
        await session.close()


async def test_one_at_a_time_stays_one_at_a_time(place: Place) -> None:
    messages = [said(number, "follow_up" if number % 2 else "steer", INPUT_BYTES - 300) for number in range(4)]
    model = script((2, "a"), (3, "b"), (4, "c"), (5, "d"))
    session = await place.open()
    lane = await session.lane("main", Agent(model=model, steering="one", follow_ups="one"))
    await lane.accept(Prompt("go"), operation_id="op")
    await queue(lane, messages)
    assert settled(await lane.drive("op")).status == "completed"

    assert [request.messages[-1] for request in model.requests] == [
        user(messages[index].text) for index in (0, 2, 1, 3)
    ]
    await sound(session)


async def test_what_is_taken_back_between_two_parts_is_not_placed_and_what_is_left_is(place: Place) -> None:
    """A run that an abort, a steer or a cancellation meets between two parts of its follow-ups."""
    messages = [said(number, "follow_up", 4_000) for number in range(3)]
    plan = FaultPlan().kill_at("commit.settlement+placement.after")
    model = script((1, "first"), (3, "second"), (4, "third"))
    agent = Agent(model=model, follow_ups="all")
    session = await place.open(probe=plan)
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    await queue(lane, messages)
    driving = asyncio.ensure_future(lane.drive("op"))
    await plan.died()
    await bury(session, driving)

    session = await place.open()
    lane = await session.lane("main", agent)
    assert await path(lane) == ["user go", "assistant first", "user follow_up-0"]
    assert await lane.cancel_queued(lane.queued()[-1].id) == "cancelled"
    assert settled(await lane.drive("op")).text == "second"
    assert await path(lane) == [
        *("user go", "assistant first", "user follow_up-0", "user follow_up-1", "assistant second"),
    ]
    await sound(session)


# What waits on an idle lane.


async def test_whoever_is_faster_has_what_waited_before_its_prompt(place: Place) -> None:
    """Two prompts at once: one is accepted, behind all that waits; a message of its own is never in between."""
    messages = [said(number, "next_run", 3_000) for number in range(5)]
    session = await place.open()
    plan_of = script((6, "heard"))
    lane = await session.lane("main", Agent(model=plan_of))
    await queue(lane, messages)
    both = await asyncio.gather(lane.accept(Prompt("one")), lane.accept(Prompt("two")), return_exceptions=True)

    (refused,) = [each for each in both if isinstance(each, BaseException)]
    assert isinstance(refused, LaneBusy)
    assert (await path(lane))[:-1] == [f"user {each.name}" for each in messages]
    assert settled(await lane.drive()).text == "heard"
    await sound(session)


async def test_a_prompt_that_is_submitted_comes_behind_all_that_waited(place: Place) -> None:
    messages = [said(number, "next_run", 3_000) for number in range(5)]
    session = await place.open()
    sizes = Sizes(session)
    lane = await session.lane("main", Agent(model=script((6, "heard"))))
    await queue(lane, messages)
    receipt = await lane.submit(f"now {'x' * 4_000}", request_id="r")

    assert receipt.state == "taken" and lane.queued() == []
    assert await lane.submit(f"now {'x' * 4_000}", request_id="r") == receipt
    assert max(sizes.of_commits) < COMMIT_BYTES
    result = settled(await lane.drive())
    assert (result.text, result.inputs) == ("heard", receipt.entries)
    assert await path(lane) == [*(f"user {each.name}" for each in messages), "user now", "assistant heard"]
    await sound(session)


# What an end finds waiting.


async def test_submitted_messages_go_to_the_next_operation_in_parts(place: Place) -> None:
    """A run ends with many waiting: the next has the first two as its prompt, the others before its first request."""
    session = await place.open()
    sizes = Sizes(session)
    model = script((8, "heard"))
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("go"), operation_id="op")
    await lane.request_abort("op")
    await lane.next_run("before")
    receipts = [await lane.submit(f"later-{number} {'x' * 1_500}") for number in range(6)]
    result = settled(await lane.drive("op"))

    assert result.status == "aborted" and result.next_operation is not None
    following = settled(await lane.drive(result.next_operation))
    assert (following.status, following.text) == ("completed", "heard")
    assert following.inputs == (*receipts[0].entries, *receipts[1].entries)
    expected = ["user go", "user before", *(f"user later-{number}" for number in range(6))]
    assert await path(lane) == [*expected, "assistant heard"]
    (request,) = model.requests
    assert [" ".join(line.split()[:2]) for line in shown(request)] == expected
    assert max(sizes.of_commits) < COMMIT_BYTES + INPUT_BYTES
    assert lane.queued() == []
    await sound(session)


async def test_an_abort_gives_back_what_its_record_holds_and_the_rest_waits_on(place: Place) -> None:
    messages = [said(number, "steer", 2_500) for number in range(6)]
    session = await place.open()
    sizes = Sizes(session)
    lane = await session.lane("main", Agent(model=script((7, "heard"))))
    await lane.accept(Prompt("go"), operation_id="op")
    ids = await queue(lane, messages)
    receipt = await lane.request_abort("op")
    record = settled(await lane.drive("op"))

    assert [each.id for each in receipt.returned] == ids[:1] and record.returned == receipt.returned
    assert [each.id for each in lane.queued()] == ids[1:]
    assert max(sizes.of_commits) < COMMIT_BYTES + INPUT_BYTES
    assert (await lane.run("again")).text == "heard"
    assert await path(lane) == [
        *("user go", *(f"user {each.name}" for each in messages[1:]), "user again", "assistant heard"),
    ]
    await sound(session)


async def test_what_an_abort_gave_back_and_what_calls_returned_come_in_two_commits(place: Place) -> None:
    """The record holds the one; the commit before it the other."""
    plan = FaultPlan()
    session = await place.open(probe=plan)
    sizes = Sizes(session)

    async def work(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await lane.steer(f"wait {'x' * 4_000}")
        try:
            await lane.request_abort("op")
        except asyncio.CancelledError:
            pass  # that is the abort
        return "y" * 4_000

    model = ScriptedModel([[call("work")]])
    lane = await session.lane("main", Agent(model=model, tools=[Tool("work", work)]))
    await lane.accept(Prompt("go"), operation_id="op")
    record = settled(await lane.drive("op"))

    assert (record.status, [each.text[:4] for each in record.returned]) == ("aborted", ["wait"])
    assert (await path(lane))[-1] == f"result {'y' * 4_000}"
    assert commits(plan)[-2:] == ["outcome_placed", "terminal"]
    assert max(sizes.of_commits) < COMMIT_BYTES
    await sound(session)


# What is too large by itself.


async def test_what_is_too_large_to_be_placed_is_refused_when_it_is_said(place: Place) -> None:
    text = "x" * (INPUT_BYTES + 1)
    session = await place.open()
    lane = await session.lane("main", Agent(model=script((1, "done"))))
    waits = await lane.next_run("small")
    for say in (lane.steer, lane.follow_up, lane.next_run, lane.submit, lambda each: lane.accept(Prompt(each))):
        with pytest.raises(PayloadTooLarge, match=rf"\d+ bytes .* {INPUT_BYTES} are taken at once") as refused:
            await say(text)
        assert INPUT_BYTES < refused.value.details["size_bytes"] < INPUT_BYTES + 100
        assert [each.id for each in lane.queued()] == [waits.id] and lane.inspect().operation is None
    assert await lane.cancel_queued(waits.id) == "cancelled"
    await lane.accept(Prompt("go"), operation_id="op")
    for say in (lane.submit, lambda each: lane.append_message(user(each))):
        with pytest.raises(PayloadTooLarge, match=f"{INPUT_BYTES} are taken at once"):
            await say(text)
    assert settled(await lane.drive("op")).status == "completed"
    await sound(session)
