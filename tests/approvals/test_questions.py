"""Claim: what a tool asks waits over any restart, takes one answer by its id, and the tool starts again with it."""

from __future__ import annotations

import asyncio
import enum
import threading
from typing import Any

import pytest

from agentlane import (
    Agent,
    ApprovalNotPending,
    InvalidMessage,
    PendingResult,
    Prompt,
    QuestionReason,
    Settled,
    TextPart,
    Tool,
    ToolContext,
    ToolResultMessage,
    Waiting,
    hook,
)
from agentlane.machine.outcomes import ABORTED, PROGRESS, STRANDED
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.lives import bury
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.approvals.desk import Desk
from tests.races.stage import turns
from tests.session.places import Place


async def book(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
    """Asks as many things as it is told, each by a name of its own."""
    said = [await ctx.ask(f"q{number}", f"Question {number}?") for number in range(arguments["asks"])]
    return {"said": said, "attempt": ctx.attempt, "recovered": ctx.recovered, "key": ctx.idempotency_key[-2:]}


def desk_of(place: Place, *, body: Any = book, **options: Any) -> Desk:
    """A call that asks one thing, one that asks none, one that asks three."""
    script = [[call("book", x=1, asks=1), call("ls", x=2), call("book", x=3, asks=3)], "done"]
    return Desk(place, script).tool("book", body=body, **{"replay": "safe", **options}).tool("ls")


def one_call(place: Place, body: Any, *, replay: str = "safe", **options: Any) -> Desk:
    return Desk(place, [[call("book", x=1)], "done"], **options).tool("book", body=body, replay=replay)


async def stored(desk: Desk) -> list[str]:
    """The namespaces of a call's side that hold something."""
    storage = desk.session._runtime.storage
    spaces = ("op.answer", "op.memo", "op.decision", "pending.approval", "pending.output", "pending.entry")
    return [space for space in spaces if await storage.values(space)]


@pytest.mark.parametrize("restart", ["none", "closed", "killed"])
async def test_answers_by_id_over_restarts(place: Place, restart: str) -> None:
    """R107, R109: in any order, before anything drives; each for its question alone, also of a tool that asks on."""
    desk = await desk_of(place).begin()
    first, second = await desk.waits()
    waiting = await desk.lane.drive("op")
    assert isinstance(waiting, Waiting) and waiting.wake_at is None
    assert waiting.reasons == (
        QuestionReason(question_id=first.approval_id, call_id=first.call_id, tool="book", name="q0"),
        QuestionReason(question_id=second.approval_id, call_id=second.call_id, tool="book", name="q0"),
    )
    assert (first.kind, first.question, first.arguments) == ("question", "Question 0?", {"x": 1, "asks": 1})
    assert desk.statuses() == ["waiting_question", "outcome_ready", "waiting_question"]
    if restart == "closed":
        await desk.restart()
    elif restart == "killed":
        await bury(desk.session)
        await desk.open()

    assert desk.session.approvals() == [first, second] == list(desk.lane.inspect().approvals)
    decision = await desk.lane.answer(second.approval_id, {"b": 1}, by="ann")
    assert (decision.kind, decision.allow, decision.by) == ("question", True, "ann")
    assert desk.statuses() == ["waiting_question", "outcome_ready", "answered"]
    assert desk.runs == ["book:1", "ls:2", "book:3"], "nothing runs before it is driven"
    for number in (1, 2):
        (_, again) = await desk.waits()
        assert (again.name, again.call_id) == (f"q{number}", second.call_id)
        await desk.lane.answer(again.approval_id, number)
    await desk.lane.answer(first.approval_id, None)
    outcome = await desk.lane.drive("op")

    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    assert desk.runs[:3] == ["book:1", "ls:2", "book:3"]
    assert sorted(desk.runs[3:]) == ["book:1", "book:3", "book:3", "book:3"]
    assert await desk.texts() == [
        '{"said":[null],"attempt":2,"recovered":false,"key":"/0"}',
        "ls:2 done",
        '{"said":[{"b":1},1,2],"attempt":4,"recovered":false,"key":"/0"}',
    ]
    assert [each.kind for each in outcome.result.decisions] == ["question"] * 4
    assert await stored(desk) == []
    assert await check_invariants(desk.session) == []


async def test_an_answer_is_used_once(place: Place) -> None:
    desk = await desk_of(place).begin()
    first, second = await desk.waits()
    await desk.lane.answer(first.approval_id, "yes", by="ann")

    async def became(id: Any) -> str:
        with pytest.raises(ApprovalNotPending) as caught:
            await desk.lane.answer(id, "again")
        return str(caught.value.details["became"])

    assert [await became(each) for each in (first.approval_id, "nobody's", 7)] == ["answered", "unknown", "unknown"]
    assert desk.session.approvals() == [second]
    one, other = await asyncio.gather(
        desk.lane.answer(second.approval_id, 1), desk.lane.answer(second.approval_id, 2), return_exceptions=True
    )
    assert not isinstance(one, BaseException) and isinstance(other, ApprovalNotPending)
    third = next(each for each in await desk.waits() if each.name == "q1")
    assert third.call_id == second.call_id
    await desk.lane.abort()
    assert await became(first.approval_id) == "answered"
    assert await became(third.approval_id) == "unknown"


async def test_what_cannot_be_an_answer_is_refused_and_it_waits_on(memory: Place) -> None:
    desk = await desk_of(memory).begin()
    first, _ = await desk.waits()

    for value in (float("nan"), {1: 2}, object(), b"x"):
        with pytest.raises(InvalidMessage, match="value"):
            await desk.lane.answer(first.approval_id, value)
    with pytest.raises(InvalidMessage, match="by: text"):
        await desk.lane.answer(first.approval_id, 1, by=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="lane.answer"):
        await desk.lane.decide(first.approval_id, allow=True)
    assert desk.statuses()[0] == "waiting_question"


async def test_an_approval_takes_no_answer(memory: Place) -> None:
    desk = await Desk(memory, [[call("ls", x=1)], "done"]).tool("ls", approval=True).begin()
    (asked,) = await desk.waits()

    with pytest.raises(InvalidMessage, match="lane.decide"):
        await desk.lane.answer(asked.approval_id, True)
    await desk.lane.decide(asked.approval_id, allow=True)
    assert isinstance(await desk.lane.drive(), Settled)


async def test_a_call_that_was_allowed_may_ask_and_is_not_asked_about_again(place: Place) -> None:
    """Nor are its hooks, and it keeps the arguments that they and the yes gave it."""
    seen: list[str] = []

    async def before(info: Any) -> Any:
        seen.append(info.name)
        return {**info.arguments, "hooked": 1}

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        return [await ctx.ask("q", "?"), sorted(arguments)]

    desk = one_call(place, body, hooks=[hook("before_tool", before)])
    desk.tools["book"]["approval"] = True
    await desk.begin()
    (asked,) = await desk.waits()
    await desk.lane.decide(asked.approval_id, allow=True, args={"x": 1, "given": 2})
    (question,) = await desk.waits()
    assert question.arguments == {"x": 1, "given": 2}
    await desk.restart()
    await desk.lane.answer(question.approval_id, "a")

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ['["a",["given","x"]]']
    assert seen == ["book"] and desk.runs == ["book:1", "book:1"]


@pytest.mark.parametrize("replay", ["never", "ask"])
async def test_a_tool_that_must_not_run_again_cannot_ask(memory: Place, replay: str) -> None:
    desk = await one_call(memory, lambda arguments, ctx: ctx.ask("q", "?"), replay=replay).begin()

    assert isinstance(await desk.lane.drive(), Settled)
    (text,) = await desk.texts()
    assert "declare replay='safe' or replay='idempotent'" in text
    assert desk.runs == ["book:1"]


@pytest.mark.parametrize(
    ("name", "question"),
    [("a b", "?"), ("", "?"), (7, "?"), ("q", ""), ("q", " "), ("q", None), ("q", "x" * 10_001)],
)
async def test_a_bad_question_is_told_to_the_tool(memory: Place, name: Any, question: Any) -> None:
    desk = await one_call(memory, lambda arguments, ctx: ctx.ask(name, question)).begin()

    assert isinstance(await desk.lane.drive(), Settled)
    (text,) = await desk.texts()
    assert "failed" in text and "question" in text and desk.session.approvals() == []


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("driven", [False, True])
async def test_an_abort_makes_it_void(place: Place, answered: bool, driven: bool) -> None:
    """The call began, so its result says that it may have run in part, with what it saved."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        await ctx.progress("first")
        await ctx.progress("half")
        await ctx.set_memo("m", 1)
        return await ctx.ask("q", "?")

    desk = await one_call(place, body).begin()
    (asked,) = await desk.waits()
    assert asked.progress == (TextPart(text="half"),)
    if driven:
        await desk.restart()
    if answered:
        await desk.lane.answer(asked.approval_id, 1)
    result = await desk.lane.abort()

    assert result is not None and result.status == "aborted"
    assert await desk.texts() == [f"{PROGRESS}\nhalf\n{ABORTED}"]
    assert desk.runs == ["book:1"] and await stored(desk) == []
    with pytest.raises(ApprovalNotPending):
        await desk.lane.answer(asked.approval_id, 1)
    assert await check_invariants(desk.session) == []


async def test_progress_of_a_call_that_waits_is_saved_before_the_drive_returns(place: Place) -> None:
    """Also what came too soon behind the last save, of a result that comes later too."""

    async def asks(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        await ctx.progress("first")
        await ctx.progress("half")
        return PendingResult() if arguments["x"] == 1 else await ctx.ask("q", "?")

    desk = Desk(place, [[call("book", x=1), call("book", x=2)], "done"]).tool("book", body=asks, replay="safe")
    await desk.begin()
    await desk.waits()
    await bury(desk.session)
    await desk.open()
    await desk.lane.abort()

    assert await desk.texts() == [f"{PROGRESS}\nhalf\n{ABORTED}"] * 2


@pytest.mark.parametrize("now", ["never", "ask", "missing"])
async def test_a_call_that_may_not_run_again_by_now_says_so(place: Place, now: str) -> None:
    """Its question is listed and takes its answer; then the call ends with what is true of it, and runs nothing."""
    desk = await one_call(place, lambda arguments, ctx: ctx.ask("q", "?")).begin()
    (asked,) = await desk.waits()
    if now == "missing":
        del desk.tools["book"]
    else:
        desk.tools["book"]["replay"] = now
    await desk.restart()
    assert await desk.waits() == [asked]
    await desk.lane.answer(asked.approval_id, 1)

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == [STRANDED] and desk.runs == ["book:1"]


async def test_a_death_behind_the_answer_is_a_replay_and_has_the_answer(place: Place) -> None:
    """The second start hangs; killed, the third gets the same answer, and is told that it was recovered."""
    hanging = asyncio.Event()

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        said = await ctx.ask("q", "?")
        if ctx.attempt == 2:
            hanging.set()
            await asyncio.get_running_loop().create_future()
        return [said, ctx.attempt, ctx.recovered]

    desk = await one_call(place, body).begin()
    (asked,) = await desk.waits()
    await desk.lane.answer(asked.approval_id, "a")
    driving = asyncio.ensure_future(desk.lane.drive())
    await hanging.wait()
    await bury(desk.session)
    await asyncio.gather(driving, return_exceptions=True)
    await desk.open()
    (record,) = desk.lane.inspect().operation.calls  # type: ignore[union-attr]
    assert (record.status, record.attempt, record.replays) == ("effect_pending", 2, 0)

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ['["a",3,true]']


async def test_a_replay_that_a_person_allowed_has_the_answer_that_was_given(place: Place) -> None:
    """Declared `ask` by then, it may not put a question; what is answered needs none."""
    hanging = asyncio.Event()

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        said = await ctx.ask("q", "?")
        if ctx.attempt == 2:
            hanging.set()
            await asyncio.get_running_loop().create_future()
        return [said, ctx.attempt, ctx.recovered]

    desk = await one_call(place, body).begin()
    (asked,) = await desk.waits()
    await desk.lane.answer(asked.approval_id, "a")
    driving = asyncio.ensure_future(desk.lane.drive())
    await hanging.wait()
    await bury(desk.session)
    await asyncio.gather(driving, return_exceptions=True)
    desk.tools["book"]["replay"] = "ask"
    await desk.open()
    (replay,) = await desk.waits()
    assert replay.kind == "replay"
    await desk.lane.decide(replay.approval_id, allow=True)

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ['["a",3,true]']


class _Step(str, enum.Enum):  # noqa: UP042 - one whose text is not its value
    PAID = "paid"


class _Odd(str):
    def __format__(self, spec: str) -> str:
        return "oth|er"


@pytest.mark.parametrize("name", [_Step.PAID, _Odd("odd")])
async def test_a_memo_is_known_by_the_text_of_its_name_over_a_restart(place: Place, name: str) -> None:
    paid: list[str] = []

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        if await ctx.memo(name) is None:
            paid.append("once")
            await ctx.set_memo(name, 1)
        return [await ctx.ask("q", "?"), await ctx.memo(str.__str__(name))]

    desk = await one_call(place, body).begin()
    (asked,) = await desk.waits()
    await desk.restart()
    await desk.lane.answer(asked.approval_id, "a")

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ['["a",1]'] and paid == ["once"]


async def test_an_answer_wakes_a_drive_that_waits_and_the_others_go_on_meanwhile(memory: Place) -> None:
    desk = await desk_of(memory).begin()
    driving = asyncio.ensure_future(desk.lane.drive("op", wait_for_answers=True))
    while len(desk.session.approvals()) < 2:
        await turns()
    while not driving.done():
        for asked in desk.session.approvals():
            await desk.lane.answer(asked.approval_id, asked.name)
        await turns()

    assert isinstance(driving.result(), Settled)
    assert '"said":["q0","q1","q2"]' in (await desk.texts())[2]


async def test_the_same_name_is_the_same_question(memory: Place) -> None:
    """What is asked again has its answer, whatever it says; two at once are put one after the other."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        return await asyncio.gather(ctx.ask("a", f"A at {ctx.attempt}?"), ctx.ask("b", "B?"), ctx.ask("a", "again"))

    desk = await one_call(memory, body).begin()
    asked = []
    while isinstance(await desk.lane.drive(), Waiting):
        (question,) = desk.session.approvals()
        asked.append((question.name, question.question))
        await desk.lane.answer(question.approval_id, question.name.upper())

    assert asked == [("a", "A at 1?"), ("b", "B?")]
    assert await desk.texts() == ['["A","B","A"]']


async def test_task_groups_let_it_through(memory: Place) -> None:
    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        async with asyncio.TaskGroup() as outer:
            async with asyncio.TaskGroup() as inner:
                task = inner.create_task(ctx.ask("q", "?"))
                outer.create_task(asyncio.sleep(0))
        return task.result()

    desk = await one_call(memory, body).begin()
    (asked,) = await desk.waits()
    await desk.lane.answer(asked.approval_id, "a")

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ["a"]


async def test_a_plain_function_asks_from_its_thread(memory: Place) -> None:
    loop = asyncio.get_running_loop()

    def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        answer = asyncio.run_coroutine_threadsafe(ctx.ask("q", "?"), loop).result()
        return [answer, ctx.attempt, threading.current_thread() is threading.main_thread()]

    session = await memory.open()
    model = ScriptedModel([[call("plain")], "done"])
    lane = await session.lane("main", Agent(model=model, tools=[Tool("plain", body, replay="safe")]))
    await lane.accept(Prompt("go"))
    assert isinstance(await lane.drive(), Waiting)
    (asked,) = session.approvals()
    await lane.answer(asked.approval_id, "a")

    assert isinstance(await lane.drive(), Settled)
    (result,) = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    assert result.text == '["a",2,false]'


async def test_a_tool_that_keeps_what_is_raised_has_its_result(memory: Place) -> None:
    """What it did is done: its value stands, and nobody is asked. What else it raises is its failure."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        try:
            return await ctx.ask("q", "?")
        except Exception:
            return "an Exception was caught"
        except BaseException:
            if arguments["x"] == 2:
                raise ValueError("broken") from None
            return "kept"

    desk = Desk(memory, [[call("book", x=1), call("book", x=2)], "done"]).tool("book", body=body, replay="safe")
    await desk.begin()

    assert isinstance(await desk.lane.drive(), Settled)
    assert await desk.texts() == ["kept", "The tool 'book' failed: ValueError: broken"]
    assert any("nobody is asked" in each for each in desk.session.findings)


async def test_finally_blocks_run_before_the_question_is_put(memory: Place) -> None:
    ended: list[str] = []

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        try:
            return await ctx.ask("q", "?")
        finally:
            await asyncio.sleep(0)
            ended.append(f"{len(desk.session.approvals())} questions")

    desk = await one_call(memory, body).begin()
    await desk.waits()

    assert ended == ["0 questions"]


async def test_a_late_question_of_a_stopped_tool_asks_nobody(memory: Place) -> None:
    """Aborted while it runs, what it asks then is part of its end."""
    inside = asyncio.Event()

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        try:
            inside.set()
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return await ctx.ask("q", "?")

    desk = await one_call(memory, body).begin()
    driving = asyncio.ensure_future(desk.lane.drive())
    await inside.wait()
    await desk.lane.request_abort("op")

    outcome = await driving
    assert isinstance(outcome, Settled) and outcome.result.status == "aborted" and not outcome.result.decisions
    assert await desk.texts() == [ABORTED]


async def test_a_waiting_question_is_a_barrier_like_its_call(memory: Place) -> None:
    script = [[call("book", x=1), call("ls", x=2)], "done"]
    desk = Desk(memory, script).tool("book", body=lambda a, ctx: ctx.ask("q", "?"), replay="safe", parallel=False)
    await desk.tool("ls").begin()
    (asked,) = await desk.waits()
    assert desk.statuses() == ["waiting_question", "planned"] and desk.runs == ["book:1"]
    await desk.lane.answer(asked.approval_id, 1)
    assert isinstance(await desk.lane.drive(), Settled)
    assert desk.runs == ["book:1", "book:1", "ls:2"]


async def test_decisions_of_one_moment_have_one_order(place: Place) -> None:
    """The later of two that were asked is answered first, in the same millisecond: the record is the same over a
    restart in between."""
    script = [[call("book", x=1), call("book", x=2)], "done"]
    orders = []
    for restarted in (False, True):
        desk = Desk(Place(place.kind, place.folder / str(restarted)), script)
        desk.tool("book", body=lambda arguments, ctx: ctx.ask("q", "?"), replay="safe")
        await desk.begin()
        first, second = await desk.waits()
        await desk.lane.answer(second.approval_id, 2)
        await desk.lane.answer(first.approval_id, 1)
        if restarted:
            await desk.restart()
        outcome = await desk.lane.drive("op")
        assert isinstance(outcome, Settled)
        orders.append([each.call_id[-1] for each in outcome.result.decisions])
        await desk.place.end()
    assert orders[0] == orders[1]
