"""Claim: a watcher sees a snapshot and every event behind it, whatever it does itself, and costs nobody anything."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentlane import (
    Agent,
    AnswerShown,
    EntryAdded,
    Event,
    InvalidMessage,
    LaneConfigured,
    LaneOpened,
    LaneSnapshot,
    ModelIdentity,
    ModelLimits,
    OperationAccepted,
    OperationAdvanced,
    OperationSettled,
    PartDelta,
    PartEnd,
    PathMoved,
    ProgressSaved,
    Prompt,
    QueueChanged,
    Resnapshot,
    ResultStaged,
    SessionClosed,
    SessionFaulted,
    SessionSnapshot,
    Settled,
    ToolResultMessage,
    UnknownBranch,
    UserMessage,
    Watch,
    open_session,
    tool,
)
from agentlane.driver import channel
from agentlane.driver.feed import Feed
from agentlane.storage import MemoryStore
from agentlane.testing import FailingStore, FaultPlan, ManualClock, ScriptedModel, call, hang, hold, say
from tests.watch.desk import TARGETS, Desk, first, rest, target_in, until


def kinds(items: list[Any]) -> list[str]:
    return [type(item).__name__ for item in items]


async def run_of(desk: Desk, lane: Any) -> Any:
    """One run in which the quick call ends before the slow one."""
    admitted = await lane.accept(Prompt("go"), operation_id="op")
    drive = asyncio.ensure_future(lane.drive())
    desk.gates["quick"].set()
    await desk.begun.wait()
    await until(lambda: [c.status for c in lane.inspect().operation.calls][1:] == ["outcome_ready"] * 2)
    desk.gates["slow"].set()
    await drive
    return admitted


@pytest.mark.parametrize("name", TARGETS)
async def test_a_run_is_told_commit_by_commit(tmp_path: Path, name: str) -> None:
    desk = Desk()
    async with open_session(target_in(tmp_path, name), durability="process") as session:
        lane = await session.lane("main", desk.agent(deltas=None))
        async with lane.watch() as watch:
            await run_of(desk, lane)
            items = await rest(watch)
            entries = await lane.entries(newest_first=False)

    assert isinstance(items[0], LaneSnapshot)
    assert items[0].entries == () and items[0].operation is None and items[0].agent == "agent"
    told = [item for item in items if not isinstance(item, AnswerShown | ProgressSaved)]
    assert [(type(each).__name__, *getattr(each, "steps", ())) for each in told[1:]] == [
        ("OperationAccepted", "accept"),
        ("EntryAdded",),
        ("OperationAdvanced", "intent"),
        ("EntryAdded",),
        ("ResultStaged",),
        ("OperationAdvanced", "settlement", "outcome_staged", "tool_intents"),
        ("ResultStaged",),
        ("OperationAdvanced", "outcome_staged"),
        ("EntryAdded",),
        ("EntryAdded",),
        ("EntryAdded",),
        ("OperationAdvanced", "outcome_placed", "intent"),
        ("EntryAdded",),
        ("OperationSettled", "settlement", "terminal"),
    ]
    assert [each.entry for each in told if isinstance(each, EntryAdded)] == entries
    assert {each.operation_id for each in items[1:]} == {"op"}
    assert {(each.lane, each.recovered) for each in items[1:]} == {("main", False)}
    assert [each.message.text for each in told if isinstance(each, ResultStaged)][1:] == ["quick: done"]
    progress = [each.content[0].text for each in items if isinstance(each, ProgressSaved)]
    assert progress == ["slow: half", "quick: half"]


async def test_while_nobody_watches_nothing_is_made() -> None:
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent())
        await run_of(desk, lane)

        assert session._runtime.hub.numbers.last == 0
        assert not lane._core.feed.watched


@pytest.mark.parametrize("watched", [False, True], ids=["unwatched", "watched"])
async def test_a_hundred_deltas_cost_one_commit_per_interval(watched: bool) -> None:
    plan, clock = FaultPlan(), ManualClock()
    text = "".join(f"word {number:02} " for number in range(100))
    model = ScriptedModel([hang([say(text)])], deltas=len("word 00 "))
    async with open_session(":memory:", probe=plan, clock=clock) as session:
        lane = await session.lane("main", Agent(model=model))
        watch = lane.watch()
        if watched:
            await anext(watch)
        await lane.accept(Prompt("go"))
        drive = asyncio.ensure_future(lane.drive())
        await model.hanging()
        clock.advance(100)
        await until(lambda: "commit.frames.after" in plan.trace)
        clock.advance(1_000)
        shown = [item for item in await rest(watch) if isinstance(item, AnswerShown)] if watched else []
        assert [each for each in plan.trace if each.endswith(".after")] == [
            f"commit.{each}.after" for each in ("lane", "accept", "intent", "frames")
        ]
    assert "".join(frame.text for each in shown for frame in each.frames if hasattr(frame, "text")) == text * watched
    with pytest.raises(SessionClosed):
        await drive


async def test_a_cursor_goes_on_without_gap_or_repeat() -> None:
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent())
        async with lane.watch() as all_of_it:
            async with lane.watch() as watch:
                await anext(watch)
            await run_of(desk, lane)
            whole = await rest(all_of_it)
            for place, item in enumerate(whole):
                assert await rest(lane.watch(cursor=item.cursor)) == whole[place + 1 :]
        again = lane.watch(cursor=whole[3].cursor)
        assert await anext(again) == whole[4]
        assert again.cursor == whole[4].cursor


@pytest.mark.parametrize("cursor", ["", "nonsense", "0123456789abcdef.3", "next", "later", "a\ud800"])
async def test_a_cursor_that_is_not_known_gives_a_snapshot(cursor: str) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one", "two"])))
        watch = lane.watch()
        now = (await anext(watch)).cursor
        prefix, _, number = now.partition(".")
        cursor = {"next": f"{prefix}.{int(number) + 10**9}", "later": f"{now}" + "9" * 40}.get(cursor, cursor)
        await lane.run("go")

        assert isinstance(await first(lane.watch(cursor=cursor)), LaneSnapshot)


async def test_a_cursor_older_than_what_is_kept_gives_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_MAX", 10)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one", "two", "three"])))
        async with lane.watch() as watch:
            old = (await anext(watch)).cursor
            items: list[Any] = []
            for text in ("go", "go on", "once more"):
                await lane.run(text)
                items += await rest(watch)
            assert isinstance(await first(lane.watch(cursor=old)), LaneSnapshot)
            assert len(lane._core.feed.channel._kept) == 10
            assert await rest(lane.watch(cursor=items[-6].cursor)) == items[-5:]


@pytest.mark.parametrize(
    "options",
    [
        {"cursor": 3},
        {"history": -1},
        {"history": None},
        {"history": True},
        {"coalesce": 1},
        {"buffer": 0},
        {"buffer": 2.0},
    ],
)
async def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([])))
        for each in (lane, session):
            with pytest.raises(InvalidMessage, match=next(iter(options))):
                each.watch(**options)


async def test_a_slow_reader_looks_anew_and_holds_up_nobody() -> None:
    desk = Desk()
    plan = FaultPlan()
    async with open_session(":memory:", probe=plan) as session:
        lane = await session.lane("main", desk.agent())
        async with lane.watch(buffer=2) as slow, lane.watch(buffer=1, coalesce=True) as slower, lane.watch() as prompt:
            for watch in (slow, slower, prompt):
                await anext(watch)
            await run_of(desk, lane)
            reached = list(plan.trace)
            now = await first(lane.watch())
            for watch in (slow, slower):
                assert await rest(watch) == [Resnapshot(now)]
            await lane.append_custom("note", 1)
            assert kinds(await rest(slow)) == ["EntryAdded"]
            assert kinds(await rest(prompt))[-1] == "EntryAdded"
    # and: the run is that of a lane that nobody watches
    plan = FaultPlan()
    desk = Desk()
    async with open_session(":memory:", probe=plan) as session:
        lane = await session.lane("main", desk.agent())
        await run_of(desk, lane)
        assert list(plan.trace) == reached


async def test_leaving_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_MAX", 20)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["answer"] * 20)))
        tasks = asyncio.all_tasks()

        async for _ in lane.watch():
            break
        async with lane.watch() as watch:
            async for _ in watch:
                break
        closed = lane.watch()
        await anext(closed)
        await closed.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(closed)
        with anyio.move_on_after(0) as scope:
            async for _ in lane.watch():
                pass
        assert scope.cancel_called
        never_begun = lane.watch()
        stuck = asyncio.ensure_future(rest(lane.watch()))
        await asyncio.sleep(0)
        stuck.cancel()
        await asyncio.wait([stuck])
        del stuck, never_begun

        readers = [each for each in lane._core.feed.channel._readers if each() is not None]
        assert readers == []
        assert asyncio.all_tasks() == tasks
        for _ in range(2):
            await lane.run("go")
        assert lane._core.feed.channel._kept and lane._core.feed.watched  # a cursor might come back
        for _ in range(4):
            await lane.run("go")
        assert not lane._core.feed.channel._kept and not lane._core.feed.watched
        assert not session._runtime.hub.watched
        numbers = session._runtime.hub.numbers.last
        await lane.run("go")
        assert session._runtime.hub.numbers.last == numbers
        assert not gc.garbage


async def test_a_cancelled_read_loses_nothing() -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one"])))
        async with lane.watch() as watch, lane.watch() as other:
            await anext(watch)
            for _ in range(3):
                waiting = asyncio.ensure_future(watch.__anext__())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            await lane.run("go")
            assert await rest(watch) == (await rest(other))[1:]


async def test_a_watch_is_read_by_one_task_at_a_time() -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one"])))
        async with lane.watch() as watch:
            await anext(watch)
            waiting = asyncio.ensure_future(watch.__anext__())
            await asyncio.sleep(0)
            with pytest.raises(InvalidMessage, match="one task"):
                await anext(watch)
            await lane.run("go")
            assert isinstance(await waiting, OperationAccepted)


async def test_the_end_of_the_session_ends_every_watch_behind_its_last_event() -> None:
    session = await open_session(":memory:")
    lane = await session.lane("main", Agent(model=ScriptedModel(["one"])))
    watches: list[Watch[Any]] = [lane.watch(), session.watch()]
    for watch in watches:
        await anext(watch)
    waiting = asyncio.ensure_future(rest(session.watch()))
    await lane.run("go")
    await session.close()

    for watch in watches:
        items = [item async for item in watch]
        assert kinds(items)[0] == "OperationAccepted" and kinds(items)[-1] == "OperationSettled"
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
    assert kinds(await waiting)[-1] == "OperationSettled"
    with pytest.raises(SessionClosed):
        await anext(lane.watch())


async def test_a_fault_is_raised_behind_the_last_event_and_a_new_watch_works_after_reopen() -> None:
    store = FailingStore(MemoryStore(), nth=None)
    async with open_session(store) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one", "two"])))
        async with lane.watch() as watch, session.watch() as other:
            before = await anext(watch)
            await anext(other)
            store.fail_next(3)
            with pytest.raises(SessionFaulted):
                await lane.run("go", operation_id="op")
            for each in (watch, other):
                items: list[Any] = []
                with pytest.raises(SessionFaulted):
                    await read_into(items, each)
                assert kinds([each for each in items if not isinstance(each, AnswerShown)]) == [
                    "OperationAccepted",
                    "EntryAdded",
                    "OperationAdvanced",
                ]
                with pytest.raises(StopAsyncIteration):
                    await anext(each)
            with pytest.raises(SessionFaulted):
                await anext(lane.watch())
        await session.reopen()

        async with lane.watch(cursor=before.cursor) as watch:
            again = await anext(watch)
            assert isinstance(again, LaneSnapshot)
            assert again.operation is not None and again.operation.at == "generating"
            await lane.resume()
            items = await rest(watch)
        assert {each.recovered for each in items} == {True}
        await lane.run("more")
        assert (await first(lane.watch())).operation is None


@pytest.mark.parametrize("name", TARGETS[1:])
async def test_what_is_found_before_anything_drives(tmp_path: Path, name: str) -> None:
    """Running, staged and waiting calls with their progress; and it is the same for who may only read."""
    desk = Desk()
    where = target_in(tmp_path, name)
    session = await open_session(where, durability="process")
    lane = await session.lane("main", desk.agent())
    await lane.accept(Prompt("go"), operation_id="op")
    drive = asyncio.ensure_future(lane.drive())
    desk.gates["quick"].set()
    await desk.begun.wait()
    await until(lambda: [c.status for c in lane.inspect().operation.calls][1:] == ["outcome_ready"] * 2)  # type: ignore[union-attr]
    live = await first(lane.watch())
    await session.close()
    with pytest.raises(SessionClosed):
        await drive

    found: list[LaneSnapshot] = []
    async with open_session(where, read_only=True) as session:
        lane = await session.lane("main", desk.agent())
        items = [item async for item in lane.watch()]
        assert kinds(items) == ["LaneSnapshot"]
        (whole,) = [item async for item in session.watch()]
        assert isinstance(whole, SessionSnapshot) and whole.lanes == {"main": items[0]}
        found.append(items[0])
    async with open_session(where, durability="process") as session:
        lane = await session.lane("main", desk.agent())
        found.append(await first(lane.watch()))
        found.append((await first(session.watch())).lanes["main"])

    slow, quick, none = (each.call_id for each in live.operation.calls)
    for snapshot in found:
        assert msgspec.structs.replace(snapshot, cursor=live.cursor) == live
        assert snapshot.operation is not None
        assert [c.status for c in snapshot.operation.calls] == ["effect_pending", "outcome_ready", "outcome_ready"]
        assert {id: message.text for id, message in snapshot.staged.items()}[quick] == "quick: done"
        assert set(snapshot.staged) == {quick, none}
        assert snapshot.progress[slow][0].text == "slow: half"  # type: ignore[union-attr]
        assert set(snapshot.progress) == {slow}
        assert [type(entry.body).__name__ for entry in snapshot.entries] == ["UserMessage", "AssistantMessage"]


@pytest.mark.parametrize("name", TARGETS[1:])
async def test_a_partial_answer_is_found_as_it_was_saved(tmp_path: Path, name: str) -> None:
    model, clock = ScriptedModel([hang([say("what was shown")]), "done"], deltas=3), ManualClock()
    where = target_in(tmp_path, name)
    session = await open_session(where, durability="process", clock=clock)
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("go"), operation_id="op")
    drive = asyncio.ensure_future(lane.drive())
    await model.hanging()
    live = await first(lane.watch())
    assert live.answer.text == "what was shown"
    await session.close()
    with pytest.raises(SessionClosed):
        await drive

    async with open_session(where, durability="process", clock=clock) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([hang(), "done"])))
        async with lane.watch() as watch:
            snapshot = await anext(watch)
            assert isinstance(snapshot, LaneSnapshot)
            assert snapshot.answer is not None
            assert (snapshot.answer.text, snapshot.answer.response_id) == ("what was shown", live.answer.response_id)
            drive = asyncio.ensure_future(lane.drive())
            settled = await anext(watch)
            assert isinstance(settled, EntryAdded) and settled.recovered
            after = snapshot.apply(settled)
            assert after.answer is None and after.tip == live.answer.response_id
            drive.cancel()
            await asyncio.wait([drive])


async def test_a_bug_in_telling_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one"])))
        async with lane.watch() as watch, session.watch() as other:
            await anext(watch)
            await anext(other)
            monkeypatch.setattr(Feed, "_tell", lambda *_: 1 // 0)
            result = await lane.run("go")
            monkeypatch.undo()
            assert result.status == "completed"
            assert "ZeroDivisionError" in session.findings[0]
            (item,) = await rest(watch)
            assert isinstance(item, Resnapshot) and item.snapshot.last_result == result
            (item,) = await rest(other)
            assert item.snapshot.lanes["main"].last_result == result
            await lane.append_custom("note", 1)
            assert kinds(await rest(watch)) == kinds(await rest(other)) == ["EntryAdded"]


async def test_what_a_watcher_does_to_what_it_was_given_means_nothing() -> None:
    @tool
    async def count(numbers: list[int]) -> dict[str, list[int]]:
        """Count."""
        return {"sum": numbers}

    def spoil(value: Any) -> None:
        if isinstance(value, dict):
            for each in value.values():
                spoil(each)
            value["spoiled"] = True
        elif isinstance(value, list):
            value.append("spoiled")
        elif isinstance(value, tuple):
            for each in value:
                spoil(each)
        elif isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                if name != "lanes":
                    spoil(getattr(value, name))

    model = ScriptedModel([[call("count", numbers=[1, 2])], "done"], deltas=3)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[count], settings={"a": {"b": 1}}))

        async def read() -> None:
            async for item in lane.watch():
                spoil(item)

        readings = [asyncio.ensure_future(read())]
        await asyncio.sleep(0)
        await lane.configure(settings={"a": {"b": 1}})
        readings.append(asyncio.ensure_future(read()))
        await asyncio.sleep(0)
        await lane.run("go")
        for reading in readings:
            reading.cancel()

        assert "spoiled" not in msgspec.json.encode(await lane.entries()).decode()
        assert model.requests[0].settings == model.requests[1].settings == {"a": {"b": 1}}
        assert "spoiled" not in repr(model.requests[1].messages)


async def test_what_was_shown_of_a_call_is_nobodys_to_change() -> None:
    model = ScriptedModel([hang([call("count", numbers=[1])])], deltas=3)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        async with lane.watch() as watch:
            await lane.accept(Prompt("go"), operation_id="op")
            drive = asyncio.ensure_future(lane.drive())
            await model.hanging()
            parts = [part.whole for part in (await first(lane.watch())).answer.parts]
            for item in await rest(watch):
                if isinstance(item, AnswerShown):
                    parts += [frame.part for frame in item.frames if isinstance(frame, PartEnd)]
            assert len(parts) == 2
            for part in parts:
                part.arguments["numbers"].append(2)
            await lane.request_abort("op")
            await drive
        answer: Any = (await lane.messages())[-1]
        assert [each.arguments for each in answer.content] == [{"numbers": [1]}]


async def test_what_a_model_streams_that_was_left_behind_is_shown_to_nobody() -> None:
    clock, go_on = ManualClock(), asyncio.Event()

    class Deaf:
        """Does not hear that it is cancelled, and says more."""

        identity = ModelIdentity(provider="deaf", name="deaf")
        limits = ModelLimits()

        async def stream(self, request: Any) -> Any:
            yield PartDelta(index=0, text="heard")
            while not go_on.is_set():
                try:
                    await go_on.wait()
                except asyncio.CancelledError:
                    pass
            yield PartDelta(index=0, text="unheard")
            yield PartDelta(index=1, text="unheard")

    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=Deaf(), cancel_grace_ms=10))
        async with lane.watch() as watch:
            await lane.accept(Prompt("go"), operation_id="op")
            drive = asyncio.ensure_future(lane.drive())
            await until(lambda: lane.inspect().operation.at == "generating")  # type: ignore[union-attr]
            for _ in range(20):
                await asyncio.sleep(0)
            await lane.request_abort("op")
            for _ in range(20):
                await asyncio.sleep(0)
            clock.advance(10)
            await drive
            go_on.set()
            items = await rest(watch)
        assert "unheard" not in repr(items)
        assert isinstance(items[-1], OperationSettled)
        assert [frame for item in items if isinstance(item, AnswerShown) for frame in item.frames] == [
            PartDelta(index=0, text="heard")
        ]


async def test_a_slow_reader_that_is_cancelled_while_it_looks_anew_looks_again(tmp_path: Path) -> None:
    async with open_session(tmp_path / "session.db", durability="process") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["one"])))
        async with lane.watch(buffer=1) as watch:
            await anext(watch)
            await lane.run("go")
            looking = asyncio.ensure_future(watch.__anext__())
            await asyncio.sleep(0)
            looking.cancel()
            await asyncio.wait([looking])
            assert looking.cancelled()
            assert await anext(watch) == Resnapshot(await first(lane.watch()))


async def test_a_session_is_watched_with_lanes_made_meanwhile() -> None:
    agent = Agent(model=ScriptedModel(["answer"] * 4))
    async with open_session(":memory:") as session:
        one = await session.lane("one", agent)
        await one.run("before")
        await session.create_branch("side", at=one.tip())
        async with session.watch(history=1) as watch:
            start = await anext(watch)
            assert isinstance(start, SessionSnapshot) and list(start.lanes) == ["one"]
            assert len(start.lanes["one"].entries) == 1
            two = await session.lane("two", agent)
            side = await session.lane("side", agent)
            await asyncio.gather(one.run("a"), two.run("b"))
            await side.configure(settings={"temperature": 1})
            items = await rest(watch)
        opened = [item for item in items if isinstance(item, LaneOpened)]
        assert [(each.lane, [entry.id for entry in each.snapshot.entries]) for each in opened] == [
            ("two", []),
            ("side", [start.lanes["one"].tip]),
        ]
        assert {item.lane for item in items if isinstance(item, OperationSettled)} == {"one", "two"}
        assert [(item.lane, item.settings) for item in items if isinstance(item, LaneConfigured)] == [
            ("side", {"temperature": 1})
        ]
        folded = start
        for item in items:
            folded = folded.apply(item)
        now = await first(session.watch(history=1))
        assert msgspec.structs.replace(folded, lanes=without_cursors(folded)) == msgspec.structs.replace(
            now, lanes=without_cursors(now)
        )
        assert len(items) == len({item.cursor for item in items})


def without_cursors(snapshot: SessionSnapshot) -> dict[str, LaneSnapshot]:
    return {name: msgspec.structs.replace(lane, cursor="") for name, lane in sorted(snapshot.lanes.items())}


async def test_only_what_is_watched_is_made() -> None:
    agent = Agent(model=ScriptedModel(["answer"] * 4))
    async with open_session(":memory:") as session:
        one, two = await session.lane("one", agent), await session.lane("two", agent)
        async with one.watch() as watch:
            await anext(watch)
            await two.run("b")
            assert session._runtime.hub.numbers.last == 0
            await one.run("a")
            assert {item.lane for item in await rest(watch)} == {"one"}


async def test_what_stands_side_by_side_is_joined_for_who_wants_that() -> None:
    text = "x" * 5_000
    model = ScriptedModel([[say(text)]], deltas=1)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        async with lane.watch(coalesce=True) as watch, lane.watch(buffer=10_000) as plain:
            await anext(watch)
            await anext(plain)
            await lane.run("go")
            items = await rest(watch)
            assert len(await rest(plain)) > 5_000
        (shown,) = [item for item in items if isinstance(item, AnswerShown)]
        assert [type(frame).__name__ for frame in shown.frames] == ["PartStart", "PartDelta", "PartEnd"]
        assert shown.frames[1].text == text  # type: ignore[union-attr]


async def test_another_path_is_told_with_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moves a tip elsewhere need not know of feeds."""
    agent = Agent(model=ScriptedModel(["answer"] * 4))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        await lane.run("one")
        tip = lane.tip()
        await lane.run("two")
        async with lane.watch(history=2) as watch:
            snapshot: Any = await anext(watch)
            lane._core.tip = tip
            lane._core.loaded = False
            lane._core.context = type(lane._core.context)()
            await lane.append_custom("note", 1)
            items = await rest(watch)
            assert isinstance(items[0], PathMoved) and len(items) == 1
            now = await first(lane.watch(history=2))
            assert msgspec.structs.replace(snapshot.apply(items[0]), cursor=now.cursor) == now
            assert [entry.parent_id for entry in now.entries][1] == tip


async def test_items_are_json() -> None:
    desk = Desk()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", desk.agent())
        async with lane.watch() as watch:
            snapshot: Any = await anext(watch)
            await run_of(desk, lane)
            items: list[Any] = await rest(watch)
        decoder = msgspec.json.Decoder(Event)
        assert [decoder.decode(msgspec.json.encode(item)) for item in items] == items
        for item in items:
            snapshot = snapshot.apply(item)
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=LaneSnapshot) == snapshot
        other = await session.lane("other", desk.agent())
        with pytest.raises(InvalidMessage, match="other"):
            (await first(other.watch())).apply(items[0])


async def test_a_viewer_that_leaves_or_breaks_stops_nothing() -> None:
    """R48: who only looks does not own the run; R138: and what is stored does not depend on who looks."""
    stored: list[list[Any]] = []
    for watched in (False, True):
        desk = Desk()
        async with open_session(":memory:") as session:
            lane = await session.lane("main", desk.agent())
            viewers: list[asyncio.Task[Any]] = []
            if watched:
                viewers = [asyncio.ensure_future(rest(lane.watch())), asyncio.ensure_future(breaks(lane.watch()))]
            await lane.accept(Prompt("go"), operation_id="op")
            drive = asyncio.ensure_future(lane.drive())
            await desk.begun.wait()
            for viewer in viewers:
                viewer.cancel()
            desk.open_all()
            outcome = await drive
            assert isinstance(outcome, Settled) and outcome.result.status == "completed"
            stored.append([m for m in await lane.messages() if isinstance(m, UserMessage | ToolResultMessage)])
            await asyncio.gather(*viewers, return_exceptions=True)
    assert stored[0] == stored[1]


async def read_into(items: list[Any], watch: Watch[Any]) -> None:
    async for item in watch:
        items.append(item)


async def breaks(watch: Watch[Any]) -> None:
    async for item in watch:
        if isinstance(item, OperationAdvanced):
            raise RuntimeError("a viewer with a bug")


async def test_a_lane_that_is_renamed_and_deleted() -> None:
    agent = Agent(model=ScriptedModel(["answer"] * 4))
    async with open_session(":memory:") as session:
        lane = await session.lane("old", agent)
        await lane.run("go")
        async with lane.watch() as watch, session.watch() as every:
            snapshot: Any = await anext(watch)
            whole: Any = await anext(every)
            await session.rename_branch("old", "new")
            await lane.append_custom("note", 1)
            (renamed, added) = await rest(watch)
            assert (renamed.lane, renamed.before, added.lane) == ("new", "old", "new")
            snapshot = snapshot.apply(renamed).apply(added)
            now = await first(lane.watch())
            assert msgspec.structs.replace(now, cursor=snapshot.cursor) == snapshot
            again = await session.lane("old", agent)
            await session.delete_branch("new")
            items = [item async for item in watch]
            assert kinds(items) == ["LaneRemoved"]
            with pytest.raises(UnknownBranch):
                await anext(lane.watch())
            await again.run("once more")
            items = await rest(every)
            assert [each for each in kinds(items) if each.startswith("Lane")] == [
                "LaneRenamed",
                "LaneOpened",
                "LaneRemoved",
            ]
            for item in items:
                whole = whole.apply(item)
            assert without_cursors(whole) == without_cursors(await first(session.watch()))
            assert list(whole.lanes) == ["old"]


async def test_what_waits_in_the_inbox_is_told_with_what_became_of_it() -> None:
    model = ScriptedModel([hold("first"), "second", "third"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        await lane.next_run("for later")
        async with lane.watch() as watch:
            snapshot: Any = await anext(watch)
            assert [each.text for each in snapshot.queued] == ["for later"]
            await lane.accept(Prompt("go"), operation_id="op")
            drive = asyncio.ensure_future(lane.drive())
            await model.hanging()
            queued = await lane.follow_up("and then")
            dropped = await lane.follow_up("never mind")
            await lane.cancel_queued(dropped.id)
            model.release()
            await drive
            items = await rest(watch)
        changes = [item for item in items if isinstance(item, QueueChanged)]
        assert [([each.text for each in item.added], item.removed) for item in changes] == [
            ([], (snapshot.queued[0].id,)),
            (["and then"], ()),
            (["never mind"], ()),
            ([], (dropped.id,)),
            ([], (queued.id,)),
        ]
        assert {item.operation_id for item in changes} == {"op"}
        for item in items:
            snapshot = snapshot.apply(item)
        assert snapshot == msgspec.structs.replace(await first(lane.watch()), cursor=snapshot.cursor)
        assert snapshot.queued == ()
