"""Claim: the invariants hold of what the library makes, and each predicate sees a session or history that breaks it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, Prompt, Session, Tool, ToolContext, open_session
from agentlane.data import addresses, codec
from agentlane.data.entries import EntryBody, kind_of
from agentlane.data.messages import AssistantMessage, TextPart, ToolCallPart, ToolResultMessage, user
from agentlane.data.operations import Checkpoint, EffectPending, Generating, LaneState, Placed, Planned, Tools
from agentlane.data.results import OperationResult
from agentlane.data.usage import Stats, Usage, UsageRow
from agentlane.data.writes import AppendElement, DeleteValue, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import LaneBusy, SessionFaulted
from agentlane.ids import call_id
from agentlane.storage.contract import EntryRow, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FailingStore
from agentlane.testing.invariants import (
    check_invariants,
    check_nothing_written,
    check_trace,
    check_trace_against,
)
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from agentlane.testing.trace import Began, Committed, Event, Opened, Submitted, Trace
from agentlane.testing.wrapping import WrappedStorage

GHOST = CountingIds(series=99).new()


class HalfWay:
    """A session in the middle of a batch: one call placed, one running, one staged, one planned."""

    def __init__(self, session: Session, trace: Trace, driving: asyncio.Task[Any]) -> None:
        self.session = session
        self.storage: SessionStorage = session._runtime.storage
        self.trace = trace
        self.driving = driving
        state = session._cores["main"].operation
        assert state is not None
        assert isinstance(state.state, Tools)
        self.state = state.state
        self.answer = state.state.answer

    def id(self, index: int) -> str:
        return call_id(self.answer, index)

    async def submit(self, *writes: Write) -> None:
        await self.storage.submit(writes)


@pytest.fixture
async def half_way() -> AsyncIterator[HalfWay]:
    clock, trace = ManualClock(), Trace()
    release = asyncio.get_running_loop().create_future()
    staged = asyncio.get_running_loop().create_future()

    async def quick(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "quick"

    async def slow(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.set_memo("step", 1)
        await ctx.progress("half")
        staged.set_result(None)
        await release
        return "slow"

    agent = Agent(
        model=ScriptedModel([[call("quick"), call("slow"), call("quick"), call("alone")], "done"]),
        tools=[Tool("quick", quick), Tool("slow", slow, replay="safe"), Tool("alone", quick, parallel=False)],
    )
    store = trace.store(MemoryStore(clock=clock, ids=CountingIds(series=7)))
    await store.create("s")
    session = await open_session(store, session_id="s", clock=clock, ids=CountingIds(), probe=trace.probe())
    lane = await session.lane("main", trace.agent(agent))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.create_task(lane.drive())
    await staged
    while lane.inspect().operation.calls[2].status != "outcome_ready":
        await asyncio.sleep(0)
    yield HalfWay(session, trace, driving)
    driving.cancel()
    session._runtime.storage.kill()
    session._runtime.fault(asyncio.CancelledError())
    await asyncio.gather(driving, *session._runtime.tasks, return_exceptions=True)


def entry(id: str, parent: str | None, body: EntryBody) -> InsertEntry:
    return InsertEntry(id, parent, kind_of(body), codec.encode(body))


def result_message(call_id: str, name: str = "quick") -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, name=name, content=(TextPart(text="x"),))


def record(id: str = "op", status: Any = "completed", to_tip: str | None = None) -> SetValue:
    return SetValue(
        addresses.result(id),
        codec.encode(
            OperationResult(
                operation_id=id,
                lane="main",
                agent="agent",
                kind="prompt",
                status=status,
                request_digest="d",
                key_operation=id,
                inputs=(),
                from_tip=None,
                to_tip=to_tip,
                started_at=1,
                ended_at=2,
            )
        ),
    )


async def test_they_hold_in_the_middle_of_a_batch(half_way: HalfWay) -> None:
    kinds = [type(each).__name__ for each in half_way.state.calls]

    assert kinds == ["Placed", "EffectPending", "OutcomeReady", "Planned"]
    assert await check_invariants(half_way.session) == []
    assert check_trace(half_way.trace) == []
    assert await check_trace_against(half_way.trace, half_way.session) == []


Break = Callable[[HalfWay], Sequence[Write]]

BREAKS: dict[str, tuple[str, Break]] = {
    "an operation without its configuration": ("I3", lambda at: [DeleteValue(addresses.op_config("op"))]),
    "a lane that is idle while its operation is open": (
        "I3",
        lambda at: [SetValue(addresses.lane_state("main"), codec.encode(LaneState()))],
    ),
    "a lane that names an operation that is not open": (
        "I3",
        lambda at: [SetValue(addresses.lane_state("main"), codec.encode(LaneState(current="gone")))],
    ),
    "half a lane": ("I3", lambda at: [DeleteValue(addresses.lane_config("main"))]),
    "a memo that outlived its operation": (
        "I3",
        lambda at: [SetValue(addresses.op_memo("gone", at.id(0), "step"), b"1")],
    ),
    "frames that outlived their operation": (
        "I3",
        lambda at: [AppendElement(addresses.pending_frames("gone", GHOST), b"[]")],
    ),
    "a placed result that is still pending": ("I4", lambda at: [SetValue(addresses.pending_entry(at.id(0)), b"{}")]),
    "a pending entry of nobody": ("I4", lambda at: [SetValue(addresses.pending_entry(GHOST), b"{}")]),
    "a staged result that is gone": ("I4", lambda at: [DeleteValue(addresses.pending_entry(at.id(2)))]),
    "progress of a call that has not started": (
        "I4",
        lambda at: [SetValue(addresses.pending_output("op", at.id(3)), b"[]")],
    ),
    "a memo of a call that is done": ("I4", lambda at: [SetValue(addresses.op_memo("op", at.id(0), "step"), b"1")]),
    "frames of no request": ("I4", lambda at: [AppendElement(addresses.pending_frames("op", GHOST), b"[]")]),
    "a result before its call has one": (
        "I4",
        lambda at: [entry(at.id(1), at.id(0), result_message("call_1_2", "slow"))],
    ),
    "a reserved answer that is there": (
        "I4",
        lambda at: [
            SetValue(addresses.op_state("op"), codec.encode(Generating(response_id=at.answer, attempt=1))),
        ],
    ),
    "a path that goes on past an unfinished batch": ("I5", lambda at: [entry(GHOST, at.id(0), user("too soon"))]),
    "a result of another call": ("I5", lambda at: [entry(GHOST, at.id(0), result_message("call_1_4", "alone"))]),
    "a batch that is left": (
        "I5",
        lambda at: [SetValue(addresses.op_state("op"), codec.encode(Checkpoint(next="respond", trigger=at.id(0))))],
    ),
    "placed calls that are no prefix": (
        "I5",
        lambda at: [
            SetValue(
                addresses.op_state("op"),
                codec.encode(Tools(answer=at.answer, calls=(Planned(), Placed(), Planned(), Planned()))),
            )
        ],
    ),
    "a terminal record of an open operation": ("I8", lambda at: [record()]),
    "a terminal record that ends nowhere": ("I8", lambda at: [record("other", to_tip=GHOST)]),
    "a call that cannot be sent": (
        "I10",
        lambda at: [
            SetValue(addresses.branch_tip("other"), codec.encode(GHOST)),
            entry(
                GHOST,
                None,
                AssistantMessage(content=(ToolCallPart(id="c", name="quick"),), stop_reason="tool_calls"),
            ),
        ],
    ),
    "a tip that is no entry": ("I11", lambda at: [SetValue(addresses.branch_tip("other"), codec.encode(GHOST))]),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_session_is_seen(half_way: HalfWay, name: str) -> None:
    number, make = BREAKS[name]

    await half_way.submit(*make(half_way))

    found = await check_invariants(half_way.session)
    assert any(line.startswith(f"{number}: ") for line in found), found


class Lying(WrappedStorage):
    """A storage of which every so many-th scan is changed (a check scans for each reading, and for what is left)."""

    def __init__(
        self, inner: SessionStorage, change: Callable[[list[EntryRow]], list[EntryRow]], *, every: int
    ) -> None:
        self.inner = inner
        self._change = change
        self._every = every
        self._scans = 0
        self.told = inner.stats()

    def stats(self) -> Stats:
        return self.told

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        rows = await self.inner.scan(after_seq=after_seq, limit=limit)
        self._scans += 1
        return rows if self._scans % self._every else self._change(rows)


@pytest.mark.parametrize(
    ("number", "change", "every"),
    [
        ("I1", lambda rows: [*rows, rows[-1]], 1),
        ("I1", lambda rows: rows[1:], 1),
        ("I9", lambda rows: rows[:-1], 1),
        ("I12", lambda rows: rows[1:], 2),
    ],
    ids=["an id twice", "a parent missing", "an entry that stats count", "what is left cannot be put together"],
)
async def test_a_broken_storage_is_seen(
    half_way: HalfWay, number: str, change: Callable[[list[EntryRow]], list[EntryRow]], every: int
) -> None:
    found = await check_invariants(Lying(half_way.storage, change, every=every))

    assert any(line.startswith(f"{number}: ") for line in found), found


async def test_stats_beside_the_ledger_are_seen(half_way: HalfWay) -> None:
    storage = Lying(half_way.storage, lambda rows: rows, every=1)
    storage.told = Stats(entries=storage.told.entries)

    assert [line[:3] for line in await check_invariants(storage)] == ["I9:"]


# Traces.


IDS = [CountingIds(series=50 + number).new() for number in range(6)]
ANSWER = IDS[0]
RUNNING = Tools(answer=ANSWER, calls=(EffectPending(policy="never"),))
AGAIN = Tools(answer=ANSWER, calls=(EffectPending(policy="safe", attempt=2, replays=1),))


def state(value: Any) -> SetValue:
    return SetValue(addresses.op_state("op"), codec.encode(value))


def commit(*writes: Write, seq: int, number: int, name: str = "c") -> list[Event]:
    return [
        Submitted(number=number, session_id="s", name=name, writes=writes),
        Committed(number=number, first_seq=seq, at=1),
    ]


def began(number: int, *, attempt: int = 1, policy: Any = "safe") -> Began:
    return Began(
        kind="call",
        number=number,
        operation_id="op",
        attempt=attempt,
        name="t",
        call_id=call_id(ANSWER, 0),
        policy=policy,
    )


def request(number: int, *, attempt: int = 1) -> Began:
    return Began(kind="request", number=number, operation_id="op", attempt=attempt, name="m")


def tip(value: str | None) -> SetValue:
    return SetValue(addresses.branch_tip("main"), codec.encode(value))


GENERATING = Generating(response_id=ANSWER, attempt=1)
CANCELLED = Generating(response_id=ANSWER, attempt=1, cancel_requested_at=5)
OPENED = Opened(session_id="s", epoch=1, read_only=False)
HELLO = entry(IDS[1], None, user("hello"))

GOOD: list[list[Event]] = [
    [*commit(state(GENERATING), seq=1, number=1), request(2)],
    [*commit(state(RUNNING), seq=1, number=1), began(2), *commit(state(AGAIN), seq=2, number=3), began(4, attempt=2)][
        :3
    ],
    # An intent that was durable and never reported: the next life may act on it.
    [Submitted(number=1, session_id="s", name="c", writes=(state(RUNNING),)), OPENED, began(2)],
    # A never call that a close put back, and that another process declares safe.
    [
        *commit(state(RUNNING), seq=1, number=1),
        *commit(state(Tools(answer=ANSWER, calls=(Planned(),))), seq=2, number=2),
        *commit(state(Tools(answer=ANSWER, calls=(EffectPending(policy="safe"),))), seq=3, number=3),
        began(4),
        *commit(state(AGAIN), seq=4, number=5),
        began(6, attempt=2),
    ],
    [*commit(HELLO, tip(IDS[1]), seq=1, number=1), *commit(state(CANCELLED), seq=3, number=2)],
    [*commit(state(CANCELLED), seq=1, number=1), *commit(record(status="aborted"), seq=2, number=2)],
    [
        *commit(HELLO, tip(IDS[1]), seq=1, number=1),
        *commit(tip(None), seq=3, number=2, name="navigate"),
        *commit(tip(IDS[1]), seq=4, number=3, name="navigate"),
    ],
    # Back to an entry whose commit was durable and never reported.
    [
        *commit(state(GENERATING), seq=1, number=1),
        Submitted(number=2, session_id="s", name="c", writes=(HELLO, tip(IDS[1]))),
        OPENED,
        *commit(tip(None), seq=4, number=3, name="navigate"),
        *commit(tip(IDS[1]), seq=5, number=4, name="navigate"),
    ],
    # To an entry of before the trace.
    [*commit(tip(None), seq=9, number=1), *commit(tip(IDS[1]), seq=10, number=2, name="navigate")],
]

BAD: dict[str, tuple[str, list[Event]]] = {
    "an id in two commits": ("I1", [*commit(HELLO, seq=1, number=1), *commit(HELLO, seq=2, number=2)]),
    "an id twice in one commit": (
        "I1",
        commit(HELLO, InsertUsage(UsageRow(id=IDS[1], kind="attempt", usage=Usage())), seq=1, number=1),
    ),
    "sequence numbers that stand still": (
        "I2",
        [*commit(state(GENERATING), tip(None), seq=1, number=1), *commit(state(GENERATING), seq=2, number=2)],
    ),
    "a request without an intent": ("I6", [request(1)]),
    "a request under the intent of another attempt": (
        "I6",
        [*commit(state(GENERATING), seq=1, number=1), request(2, attempt=2)],
    ),
    "a request before its intent is reported": (
        "I6",
        [
            Submitted(number=1, session_id="s", name="c", writes=(state(GENERATING),)),
            request(2),
            Committed(number=1, first_seq=1, at=1),
        ],
    ),
    "a call without an intent": ("I6", [*commit(state(GENERATING), seq=1, number=1), began(2)]),
    "a call that began twice under one intent": (
        "I6",
        [*commit(state(AGAIN), seq=1, number=1), began(2, attempt=2), began(3, attempt=2)],
    ),
    "a never call that ran again": (
        "I7",
        [
            *commit(state(RUNNING), seq=1, number=1),
            began(2),
            *commit(state(AGAIN), seq=2, number=3),
            began(4, attempt=2),
        ],
    ),
    "a call that is never now and ran again": (
        "I7",
        [*commit(state(AGAIN), seq=1, number=1), began(2, attempt=1), began(3, attempt=2, policy="never")],
    ),
    "two terminal records": ("I8", [*commit(record(), seq=1, number=1), *commit(record(), seq=2, number=2)]),
    "an abort that ended completed": (
        "I8",
        [*commit(state(CANCELLED), seq=1, number=1), *commit(record(), seq=2, number=2)],
    ),
    "a tip that moved by itself": (
        "I11",
        [*commit(HELLO, tip(IDS[1]), seq=1, number=1), *commit(tip(None), seq=3, number=2)],
    ),
    "a tip that was moved to no entry": (
        "I11",
        [*commit(HELLO, tip(IDS[1]), seq=1, number=1), *commit(tip(IDS[2]), seq=3, number=2, name="navigate")],
    ),
}


def traced(events: Sequence[Event]) -> Trace:
    trace = Trace()
    for event in events:
        trace.add(lambda _number, event=event: event)  # type: ignore[misc]
    return trace


@pytest.mark.parametrize("events", GOOD)
def test_a_sound_trace_passes(events: list[Event]) -> None:
    trace = traced(events)

    assert check_trace(trace) == [], trace.history()


@pytest.mark.parametrize("name", BAD)
def test_a_broken_trace_is_seen(name: str) -> None:
    number, events = BAD[name]

    found = check_trace(traced(events))

    assert any(line.startswith(f"{number}: ") for line in found), found


async def stored(*writes: Write) -> SessionStorage:
    store = MemoryStore(clock=ManualClock())
    await store.create("s")
    storage = await store.open("s")
    await storage.submit(writes)
    return storage


SECOND = entry(IDS[2], IDS[1], user("there"))
UNREPORTED = Submitted(number=1, session_id="s", name="c", writes=(HELLO, SECOND))


async def test_half_a_commit_is_seen() -> None:
    trace = traced([UNREPORTED])

    assert [line[:3] for line in await check_trace_against(trace, await stored(HELLO))] == ["I2:"]
    assert await check_trace_against(trace, await stored(HELLO, SECOND)) == []
    assert await check_trace_against(trace, await stored(tip(None))) == []


async def test_a_reported_commit_that_is_lost_is_seen() -> None:
    trace = traced(commit(HELLO, seq=1, number=1))

    assert [line[:3] for line in await check_trace_against(trace, await stored(tip(None)))] == ["I2:"]


async def test_an_entry_that_was_rewritten_is_seen() -> None:
    trace = traced(commit(HELLO, seq=1, number=1))
    rewritten = entry(IDS[1], None, user("good bye"))

    assert [line[:3] for line in await check_trace_against(trace, await stored(rewritten))] == ["I1:"]


def test_a_write_where_there_is_nothing_to_do_is_seen() -> None:
    trace = traced([*commit(HELLO, seq=1, number=1), OPENED])

    assert check_nothing_written(trace, since=2) == []
    assert [line[:4] for line in check_nothing_written(trace, since=0)] == ["I15:"]


def test_a_history_reads_line_by_line() -> None:
    trace = traced([OPENED, *commit(HELLO, tip(IDS[1]), seq=1, number=1, name="accept"), began(2)])

    assert trace.history().splitlines() == [
        "-- opened s (epoch 1)",
        f"submitted 1 accept: InsertEntry({IDS[1]}), SetValue(branch.tip/main)",
        "committed 1 at seq 1",
        f"began     2 call t {call_id(ANSWER, 0)} attempt 1",
    ]


class Moving(WrappedStorage):
    """A storage on which the pass goes on between two reads of a check, as it does on a disk."""

    def __init__(self, inner: SessionStorage, go_on: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._go_on = go_on

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> Any:
        await self._go_on()
        return await super().usage(after_seq=after_seq, limit=limit)


async def test_a_session_that_is_driven_on_while_it_is_read_is_refused_not_called_broken(half_way: HalfWay) -> None:
    written = CountingIds(series=3)

    async def go_on() -> None:
        tip = written.new()
        place = SetValue(addresses.branch_tip("side"), codec.encode(tip))
        await half_way.submit(entry(tip, None, user("more")), place)

    half_way.session._runtime.storage = Moving(half_way.storage, go_on)

    with pytest.raises(LaneBusy, match="was written at each of 10 readings"):
        await check_invariants(half_way.session)


async def test_a_commit_between_the_reads_of_a_check_is_no_violation(half_way: HalfWay) -> None:
    tip = CountingIds(series=3).new()
    commits: list[list[Write]] = [
        [entry(tip, None, user("more")), SetValue(addresses.branch_tip("side"), codec.encode(tip))]
    ]

    async def go_on() -> None:
        if commits:
            await half_way.submit(*commits.pop())

    half_way.session._runtime.storage = Moving(half_way.storage, go_on)

    assert await check_invariants(half_way.session) == []


async def test_a_live_session_on_disk_is_never_called_broken(tmp_path: Path) -> None:
    async with open_session(tmp_path / "a.db", durability="process") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([str(number) for number in range(20)])))
        for _ in range(20):
            driving = asyncio.create_task(lane.run("go"))
            while not driving.done():
                with contextlib.suppress(LaneBusy):
                    assert await check_invariants(session) == []
            await driving
        assert await check_invariants(session) == []


async def test_a_branch_whose_making_failed_may_be_made_anywhere() -> None:
    trace = Trace()
    inner = FailingStore(MemoryStore(), nth=None)
    async with open_session(trace.store(inner)) as session:
        root = await session.create_branch("root")
        await root.append_message(user("hi"))
        inner.fail_next()
        with pytest.raises(SessionFaulted):
            await session.create_branch("b")
        await session.reopen()
        await session.create_branch("b", at=root.tip())

    assert check_trace(trace) == []
