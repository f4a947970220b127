"""Claim: a stream tells what a user interface shows of one operation, whole, whenever it is joined, and to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Aborting,
    Agent,
    AnswerEnded,
    AssistantMessage,
    CallEnded,
    CallProgress,
    CallRequested,
    CallStarted,
    CallWaiting,
    OperationMismatch,
    Prompt,
    Retrying,
    SessionClosed,
    SessionFaulted,
    Settled,
    Shown,
    TextDelta,
    ThinkingDelta,
    ToolContext,
    UnknownOperation,
    WouldDeadlock,
    open_session,
    tool,
)
from agentlane.storage import MemoryStore
from agentlane.testing import FailingStore, ManualClock, ScriptedModel, call, fail, half, hang, say, think
from tests.watch.desk import Desk, first, quiet, until


class Viewer:
    """Reads a stream beside the run."""

    def __init__(self, stream: Any) -> None:
        self.shown: list[Shown] = []
        self.task = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async for item in stream:
            self.shown.append(item)

    @property
    def brief(self) -> list[Any]:
        return brief(self.shown)


def brief(shown: list[Shown]) -> list[Any]:
    """Kinds and what tells items apart, neighbouring deltas joined."""
    found: list[Any] = []
    for item in shown:
        match item:
            case TextDelta() | ThinkingDelta():
                kind = "text" if isinstance(item, TextDelta) else "thinking"
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + item.text)
                else:
                    found.append((kind, item.text))
            case AnswerEnded():
                found.append(("answer", item.message.stop_reason))
            case CallRequested():
                found.append(("requested", item.tool, item.arguments))
            case CallStarted():
                found.append(("started", item.tool, item.attempt))
            case CallWaiting():
                found.append(("waiting", item.status, None if item.approval is None else item.approval.arguments))
            case CallProgress():
                found.append(("progress", item.content[0].text))  # type: ignore[union-attr]
            case CallEnded():
                found.append(("ended", item.message.text.partition(".")[0]))
            case Retrying():
                found.append(("retrying", item.not_before, item.attempt, item.error.code))
            case Aborting():
                found.append(("aborting",))
            case Settled():
                found.append(("settled", item.result.status))
    return found


WHOLE = [
    ("text", "looking"),
    ("answer", "tool_calls"),
    ("requested", "work", {"name": "slow"}),
    ("requested", "work", {"name": "quick"}),
    ("requested", "none", {}),
    ("started", "work", 1),
    ("started", "work", 1),
    ("ended", "The tool 'none' is not available here"),
    ("progress", "slow: half"),
    ("progress", "quick: half"),
    ("ended", "quick: done"),
    ("ended", "slow: done"),
    ("text", "finished"),
    ("answer", "stop"),
    ("settled", "completed"),
]
"""Calls end in the order of completion: the refused one first, the slow one last, though it was asked for first."""


@pytest.mark.parametrize("deltas", [None, 1, 4])
async def test_a_run_as_it_is_shown(deltas: int | None) -> None:
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent(deltas=deltas))
        admitted = await lane.accept(Prompt("go"))
        viewer = Viewer(lane.stream(admitted.operation_id))
        drive = asyncio.ensure_future(lane.drive())
        await until(lambda: ("progress", "quick: half") in viewer.brief)
        desk.gates["quick"].set()
        await until(lambda: ("ended", "quick: done") in viewer.brief)
        desk.gates["slow"].set()
        await viewer.task
        await drive
        results = [m.text.partition(".")[0] for m in await lane.messages() if type(m).__name__ == "ToolResultMessage"]

        assert viewer.brief == WHOLE
        assert results == ["slow: done", "quick: done", "The tool 'none' is not available here"]
        # and: once it has settled, that is all there is to show
        late = Viewer(lane.stream(admitted.operation_id))
        await late.task
        assert late.brief == [("settled", "completed")]


async def test_joined_late_it_begins_with_what_was_shown() -> None:
    """At every moment of the run somebody joins: each is told everything once, in an order that makes sense."""
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent())
        await lane.accept(Prompt("go"), operation_id="op")
        viewers = [Viewer(lane.stream("op"))]
        drive = asyncio.ensure_future(lane.drive())
        for turn in range(60):
            viewers.append(Viewer(lane.stream("op")))
            if turn == 30:
                desk.gates["quick"].set()
            if turn == 45:
                desk.gates["slow"].set()
            await asyncio.sleep(0)
        await drive
        for viewer in viewers:
            await viewer.task
            if len(viewer.shown) == 1:
                continue  # it had settled before this one looked
            texts = "".join(item.text for item in viewer.shown if isinstance(item, TextDelta))
            assert texts == "lookingfinished"
            asked = [item for item in viewer.brief if item[0] in ("requested", "answer", "settled", "ended")]
            assert sorted(map(str, asked)) == sorted(
                str(item) for item in WHOLE if item[0] in ("requested", "answer", "settled", "ended")
            )
            assert viewer.brief[-1] == ("settled", "completed")
        assert len({len(viewer.shown) for viewer in viewers}) > 3


async def test_thinking_and_text_are_told_apart_and_what_only_an_end_shows_is_shown() -> None:
    model = ScriptedModel([[think("let me see"), say("here")]], deltas=2)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        await lane.accept(Prompt("go"), operation_id="op")
        viewer = Viewer(lane.stream("op"))
        await lane.drive()
        await viewer.task
    assert viewer.brief == [("thinking", "let me see"), ("text", "here"), ("answer", "stop"), ("settled", "completed")]


async def test_a_failed_answer_and_its_next_attempt() -> None:
    clock = ManualClock()
    model = ScriptedModel(
        [fail("overloaded", retryable=True, parts=[say("so far")], retry_after_ms=70), "done"], deltas=3
    )
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model))
        await lane.accept(Prompt("go"), operation_id="op")
        viewer = Viewer(lane.stream("op"))
        outcome: Any = await lane.drive(wait_for_retry=False)
        clock.advance(outcome.wake_at - clock.now_ms())
        await lane.drive()
        await viewer.task
    assert viewer.brief == [
        ("text", "so far"),
        ("answer", "error"),
        ("retrying", outcome.wake_at, 2, outcome.reasons[0].error.code),
        ("text", "done"),
        ("answer", "stop"),
        ("settled", "completed"),
    ]


@pytest.mark.parametrize("stop", ["abort", "close"])
async def test_what_was_shown_is_stored(stop: str) -> None:
    """R94: an abort and a close keep every delta that was shown; a kill what was shown until 100 ms before it."""
    store = MemoryStore()
    session = await open_session(store)
    model = ScriptedModel([hang([say("all of this"), half(say("and this"))]), "done"], deltas=1)
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("go"), operation_id="op")
    viewer = Viewer(lane.stream("op"))
    drive = asyncio.ensure_future(lane.drive())
    await model.hanging()
    await quiet(lambda: len(viewer.shown))
    shown = "".join(item.text for item in viewer.shown if isinstance(item, TextDelta))
    assert shown == "all of thisand this"
    if stop == "abort":
        await lane.request_abort("op")
        await drive
        await viewer.task
        assert viewer.brief[1:] == [("aborting",), ("answer", "aborted"), ("settled", "aborted")]
    else:
        await session.close()
        with pytest.raises(SessionClosed):
            await drive
        await viewer.task
        assert viewer.brief == [("text", shown)]
        session = await open_session(store)
        lane = await session.lane("main", Agent(model=ScriptedModel([hang(), "done"])))
        viewer = Viewer(lane.stream("op"))
        await quiet(lambda: len(viewer.shown))
        assert viewer.brief == [("text", shown)]
        await lane.drive()
        await viewer.task
        ends = [("answer", "error"), ("text", "done"), ("answer", "stop"), ("settled", "completed")]
        assert viewer.brief == [("text", shown), *ends]
    messages = [each for each in await lane.messages() if isinstance(each, AssistantMessage)]
    assert messages[0].text == shown
    await session.close()


async def test_a_slow_viewer_misses_no_text_and_no_end() -> None:
    desk = Desk()
    desk.open_all()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent(deltas=1))
        await lane.accept(Prompt("go"), operation_id="op")
        stream = lane.stream("op")
        await stream.__aenter__()
        assert stream._watch is not None
        stream._watch._reader._size = 2
        await lane.drive()
        shown = [item async for item in stream]
        texts = "".join(item.text for item in shown if isinstance(item, TextDelta))
        assert texts == "lookingfinished"
        assert brief(shown)[-1] == ("settled", "completed")
        assert sum(isinstance(item, CallEnded) for item in shown) == 3


async def test_leaving_a_stream_stops_nothing() -> None:
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent())
        await lane.accept(Prompt("go"), operation_id="op")
        drive = asyncio.ensure_future(lane.drive())
        async for item in lane.stream("op"):
            if isinstance(item, CallStarted):
                break
        cancelled = Viewer(lane.stream("op"))
        await quiet(lambda: len(cancelled.shown))
        cancelled.task.cancel()
        desk.open_all()
        outcome: Any = await drive
        assert outcome.result.status == "completed"
        async with lane.stream("op") as stream:
            await stream.aclose()
            assert [item async for item in stream] == []


async def test_the_end_of_the_session_ends_a_stream() -> None:
    model = ScriptedModel([hang([say("so far")])])
    store = FailingStore(MemoryStore(), nth=None)
    session = await open_session(store)
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("go"), operation_id="op")
    drive = asyncio.ensure_future(lane.drive())
    viewer = Viewer(lane.stream("op"))
    await model.hanging()
    store.fail_next()
    with pytest.raises(SessionFaulted):
        await session.set_name("x")
    with pytest.raises(SessionFaulted):
        await viewer.task
    with pytest.raises(SessionFaulted):
        await drive
    await session.reopen()
    viewer = Viewer(lane.stream("op"))
    await quiet(lambda: len(viewer.shown))
    await session.close()
    await viewer.task
    assert not any(isinstance(item, Settled) for item in viewer.shown)
    with pytest.raises(SessionClosed):
        await first(lane.stream("op"))  # type: ignore[arg-type]


async def test_what_cannot_be_streamed_is_refused() -> None:
    raised: list[BaseException] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look at the run from inside of it."""
        try:
            async for _ in lane.stream(ctx.operation_id):
                pass
        except WouldDeadlock as error:
            raised.append(error)
        return "looked"

    async with open_session(":memory:") as session:
        agent = Agent(model=ScriptedModel([[call("look")], "done", "other"]), tools=[look])
        lane = await session.lane("main", agent)
        other = await session.lane("other", agent)
        with pytest.raises(UnknownOperation):
            await first(lane.stream("nothing"))  # type: ignore[arg-type]
        await lane.accept(Prompt("go"), operation_id="op")
        with pytest.raises(OperationMismatch):
            await first(other.stream("op"))  # type: ignore[arg-type]
        await lane.drive()
    assert len(raised) == 1


async def test_a_call_that_waits_for_a_person_says_what_is_asked() -> None:
    @tool(approval=True)
    async def delete(path: str) -> str:
        """Delete something."""
        return f"{path} is gone"

    agent = Agent(model=ScriptedModel([[call("delete", path="build")], "done"]), tools=[delete])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        await lane.accept(Prompt("go"), operation_id="op")
        viewer = Viewer(lane.stream("op"))
        await lane.drive()
        (approval,) = session.approvals()
        late = Viewer(lane.stream("op"))
        await quiet(lambda: len(late.shown))
        for listed in (approval, *(item.approval for item in late.shown if isinstance(item, CallWaiting))):
            assert listed is not None and listed.approval_id == approval.approval_id
            listed.arguments["path"] = "/"  # what was given away is not what is asked, and not what runs
        assert session.approvals()[0].arguments == {"path": "build"}
        assert (await first(lane.watch())).operation.approvals == tuple(session.approvals())
        await lane.decide(approval.approval_id, allow=True)
        await lane.drive()
        await viewer.task
    assert viewer.brief[1:] == [
        ("requested", "delete", {"path": "build"}),
        ("waiting", "waiting_approval", {"path": "build"}),
        ("started", "delete", 1),
        ("ended", "build is gone"),
        ("text", "done"),
        ("answer", "stop"),
        ("settled", "completed"),
    ]


async def test_a_call_that_asks_is_shown_waiting_and_starting_again() -> None:
    @tool(replay="safe")
    async def find(ctx: ToolContext) -> str:
        """Ask which one."""
        return f"it is {await ctx.ask('which', 'Which?')}"

    agent = Agent(model=ScriptedModel([[call("find")], "done"]), tools=[find])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        await lane.accept(Prompt("go"), operation_id="op")
        viewer = Viewer(lane.stream("op"))
        await lane.drive()
        late = Viewer(lane.stream("op"))
        await quiet(lambda: len(late.shown))
        (question,) = [item.approval for item in late.shown if isinstance(item, CallWaiting)]
        assert question == session.approvals()[0] and question.question == "Which?"
        await lane.answer(question.approval_id, 2)
        await lane.drive()
        await viewer.task
    assert viewer.brief[1:6] == [
        ("requested", "find", {}),
        ("started", "find", 1),
        ("waiting", "waiting_question", {}),
        ("started", "find", 2),
        ("ended", "it is 2"),
    ]
