"""Claim: a fault plan ends things where it says; a failing and a gated store fail and wait as the contract says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import anyio
import pytest

from agentlane.data.writes import Address, InsertEntry, SetValue
from agentlane.errors import InvalidWrite, ReadOnlySession, SessionClosed, SessionFaulted
from agentlane.storage.contract import Commit, Pending, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds
from agentlane.testing.faults import FailingStore, FaultPlan, Killed, Point, Where
from agentlane.testing.gates import GatedStore, Hold

KEY = Address("app.test", "n")


def number(value: int) -> SetValue:
    return SetValue(KEY, b"%d" % value)


# The plan.


def test_a_plan_records_boundaries_and_how_often_each_was_reached() -> None:
    plan = FaultPlan()
    for boundary in ("a", "b", "a", "c", "a"):
        plan.reached(boundary)

    assert plan.trace == ("a", "b", "a", "c", "a")
    assert plan.all_boundaries() == [Point("a", 1), Point("b", 1), Point("a", 2), Point("c", 1), Point("a", 3)]
    assert plan.died_at is None


@pytest.mark.parametrize(
    ("plan", "reached"),
    [
        (FaultPlan().kill_at("a", nth=2), ["a", "b", "a"]),
        (FaultPlan().kill_at("c"), ["a", "b", "a", "c"]),
        (FaultPlan().kill_at(1), ["a", "b"]),
        (FaultPlan().kill_at("a", nth=9).kill_at("b"), ["a", "b"]),
    ],
)
def test_a_killed_process_reaches_nothing_more(plan: FaultPlan, reached: list[str]) -> None:
    for boundary in reached[:-1]:
        plan.reached(boundary)
    with pytest.raises(Killed):
        plan.reached(reached[-1])

    assert list(plan.trace) == reached
    assert plan.died_at == plan.all_boundaries()[-1]
    with pytest.raises(Killed, match="dead since"):
        plan.reached("z")
    assert list(plan.trace) == reached


def test_killed_is_no_exception_that_code_between_would_handle() -> None:
    assert not issubclass(Killed, Exception)
    with pytest.raises(ValueError, match="counted from 1"):
        FaultPlan().kill_at("a", nth=0)


async def test_death_on_another_thread_is_told_to_the_loop() -> None:
    plan = FaultPlan().kill_at("x", nth=500)
    died = asyncio.create_task(plan.died())
    await asyncio.sleep(0)

    def work() -> None:
        try:
            for _ in range(400):
                plan.reached("x")
        except Killed:
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert await died == Point("x", 500)
    for thread in threads:
        thread.join()
    assert len(plan.trace) == 500
    assert await plan.died() == Point("x", 500)


@pytest.mark.parametrize("where", ["'b', nth=2", "2"])
def test_exit_at_kills_a_real_process(where: str) -> None:
    program = f"""
from agentlane.testing.faults import FaultPlan
plan = FaultPlan().exit_at({where})
try:
    for boundary in "abba":
        print(boundary, flush=True)
        plan.reached(boundary)
finally:
    print("cleaned up", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout.split("\n")) == (-9, ["a", "b", "b", ""]), ended.stderr


async def test_a_plan_is_a_probe() -> None:
    """Every boundary of a recorded run, killed at: the session opens again, with the commit whole or not at all."""

    async def run(plan: FaultPlan) -> list[int]:
        store = MemoryStore()
        await store.create("s")
        storage = await store.open("s", probe=plan)
        try:
            for value in range(3):
                await storage.submit([number(value), InsertEntry(str(value), None, "user", b"{}")], name="step")
        except Killed:
            storage.kill()
        storage = await (store.open("s") if plan.died_at else _same(storage))
        return [int(row.id) for row in await storage.scan()]

    recorded = FaultPlan()
    assert await run(recorded) == [0, 1, 2]
    assert recorded.trace == tuple(f"commit.step.{when}" for when in ("before", "inside", "after")) * 3
    found = [await run(FaultPlan().kill_at(point.boundary, nth=point.nth)) for point in recorded.all_boundaries()]

    assert found == [[], [], [0], [0], [0], [0, 1], [0, 1], [0, 1], [0, 1, 2]]


# The failing store.


@pytest.mark.parametrize("where", ["before", "half", "after"])
@pytest.mark.parametrize("nth", [1, 3])
async def test_the_nth_commit_fails_and_what_is_left_shows_after_reopening(nth: int, where: Where) -> None:
    inner = MemoryStore()
    store = FailingStore(inner, nth=nth, where=where, error=OSError("the disk is full"))
    await store.create("s")
    storage = await store.open("s")
    published: list[int] = []
    told: list[str] = []
    storage.on_fault = lambda error: told.append(f"fault: {error}")

    def submit(value: int) -> Pending:
        return storage.submit([number(value)], publish=lambda done: published.append(value))

    pending = [submit(value) for value in range(1, nth + 3)]
    waiters = [asyncio.create_task(_tell(told, str(value), each)) for value, each in enumerate(pending, start=1)]
    await asyncio.gather(*waiters)

    failed = [f"{value}: SessionFaulted by the disk is full" for value in range(nth, nth + 3)]
    assert published == list(range(1, nth))
    assert [each for each in told if "fault:" not in each] == [f"{value}: done" for value in range(1, nth)] + failed
    assert told.count("fault: the disk is full") == 1
    assert await storage.value(KEY) == (b"%d" % (nth - 1) if nth > 1 else None)
    with pytest.raises(SessionFaulted) as refused:
        submit(9)
    assert str(refused.value.__cause__) == "the disk is full"

    await storage.close()
    await storage.close()
    with pytest.raises(SessionClosed):
        submit(9)
    storage = await store.open("s")
    there = nth if where == "after" else nth - 1
    assert await storage.value(KEY) == (b"%d" % there if there else None)
    assert store.failed
    await submit(7)  # it fails once
    assert await storage.value(KEY) == b"7"
    await store.close()


async def test_refused_commits_do_not_count_towards_the_failing_one() -> None:
    store = FailingStore(MemoryStore(), nth=2)
    await store.create("s")
    storage = await store.open("s")
    for _ in range(3):
        with pytest.raises(InvalidWrite):
            storage.submit([])
        with pytest.raises(InvalidWrite):
            storage.submit([InsertEntry("a", "nobody", "user", b"{}")])
    await storage.submit([number(1)])
    reader = await store.open("s", read_only=True)
    with pytest.raises(ReadOnlySession):
        reader.submit([number(2)])
    with pytest.raises(SessionFaulted):
        await storage.submit([number(2)])
    await store.close()


async def test_a_killed_storage_reports_no_fault() -> None:
    store = FailingStore(MemoryStore(), nth=1, where="after")
    await store.create("s")
    storage = await store.open("s")
    told: list[BaseException] = []
    storage.on_fault = told.append
    pending = storage.submit([number(1)])
    storage.kill()
    storage = await store.open("s")

    assert not pending.done() and told == []
    assert await storage.value(KEY) is None
    await store.close()


# The gate.


async def test_commits_wait_until_they_are_released_one_by_one() -> None:
    store, storage, published = await _gated("before_write")
    pending = [storage.submit([number(n)], publish=published(n), name=f"n{n}") for n in range(3)]
    waiter = asyncio.create_task(_wait(pending[1]))
    await store.gate.arrived(3)

    assert store.gate.held == ("n0", "n1", "n2")
    assert [each.done() for each in pending] == [False] * 3 and await storage.value(KEY) is None
    store.gate.release()
    assert (await pending[0]).first_seq == 1
    assert await storage.value(KEY) == b"0"
    assert published.order == [0] and not waiter.done()
    store.gate.release(2)
    assert (await waiter).first_seq == 2 and (await pending[2]).first_seq == 3
    assert published.order == [0, 1, 2]
    with pytest.raises(RuntimeError, match="0 commits wait at the gate, not 1"):
        store.gate.release()


async def test_a_held_report_leaves_the_medium_written_and_nobody_told() -> None:
    store, storage, published = await _gated("before_report")
    pending = [storage.submit([number(n)], publish=published(n)) for n in range(3)]
    await store.gate.arrived(3)

    assert await storage.value(KEY) == b"2"  # S6: what the medium has between reports may be seen
    assert published.order == [] and not any(each.done() for each in pending)
    store.gate.release()
    assert published.order == [0] and pending[0].done() and not pending[1].done()
    with pytest.raises(InvalidWrite):
        storage.submit([InsertEntry("a", "nobody", "user", b"{}")])
    store.gate.open()
    await pending[2]
    assert published.order == [0, 1, 2]


async def test_the_gate_can_be_opened_for_a_while() -> None:
    store, storage, published = await _gated("before_write")
    arrived = asyncio.create_task(store.gate.arrived(2))
    first = storage.submit([number(1)])
    await asyncio.sleep(0)
    assert not arrived.done()
    store.gate.open()
    await first
    await storage.submit([number(2)], publish=published(2))
    store.gate.shut()
    pending = [storage.submit([number(n)]) for n in (3, 4)]
    await arrived

    assert published.order == [2] and await storage.value(KEY) == b"2"
    store.gate.release(2)
    await asyncio.gather(*map(_wait, pending))


async def test_a_refusal_at_the_gate_is_the_pending_commit_s() -> None:
    store, storage, published = await _gated("before_write")
    faults: list[BaseException] = []
    storage.on_fault = faults.append
    with pytest.raises(InvalidWrite):
        storage.submit([])
    bad = storage.submit([InsertEntry("a", "nobody", "user", b"{}")], publish=published(1))
    good = storage.submit([number(2)], publish=published(2))
    store.gate.release(2)
    with pytest.raises(InvalidWrite):
        await bad
    await good

    assert published.order == [2] and faults == []


@pytest.mark.parametrize("hold", ["before_write", "before_report"])
async def test_a_fault_behind_the_gate_fails_all_in_order_after_reports_that_were_given(hold: Hold) -> None:
    told: list[str] = []

    def publisher(n: int) -> Callable[[Commit], None]:
        return lambda done: told.append(f"{n}: published")

    def mourner(n: int) -> Callable[[BaseException], None]:
        return lambda error: told.append(f"{n}: {error.__cause__}")

    store = GatedStore(FailingStore(MemoryStore(), nth=2, error=OSError("no space")), hold=hold)
    await store.create("s")
    storage = await store.open("s")
    storage.on_fault = lambda error: told.append(f"fault: {error}")
    pending = [storage.submit([number(n)], publish=publisher(n)) for n in range(4)]
    for n, each in enumerate(pending):
        each.on_failure(mourner(n))
    if hold == "before_write":
        store.gate.release(2)
    await asyncio.gather(*(_tell([], "", each) for each in pending))
    await asyncio.sleep(0)

    assert told == ["0: published", "1: no space", "2: no space", "3: no space", "fault: no space"]
    with pytest.raises(SessionFaulted):
        storage.submit([number(9)])
    assert store.gate.held == ()
    await store.close()


@pytest.mark.parametrize("hold", ["before_write", "before_report"])
async def test_close_waits_at_the_gate_and_when_cancelled_lets_everything_pass(hold: Hold) -> None:
    store, storage, published = await _gated(hold)
    first = storage.submit([number(1)], publish=published(1))
    closing = asyncio.create_task(storage.close())
    await asyncio.sleep(0)
    assert not closing.done()
    store.gate.release()
    await closing
    assert first.done()
    with pytest.raises(SessionClosed):
        storage.submit([number(2)])

    storage = await store.open("s")
    storage.submit([number(2)], publish=published(2))
    with anyio.move_on_after(0):
        await storage.close()
    storage = await store.open("s")
    assert published.order == [1, 2] and await storage.value(KEY) == b"2"
    await store.close()


@pytest.mark.parametrize(("hold", "there"), [("before_write", b"1"), ("before_report", b"2")])
async def test_kill_at_the_gate_reports_nothing(hold: Hold, there: bytes) -> None:
    store, storage, published = await _gated(hold)
    first = storage.submit([number(1)], publish=published(1))
    store.gate.release()
    await first
    second = storage.submit([number(2)], publish=published(2))
    storage.kill()
    storage = await store.open("s")

    assert await storage.value(KEY) == there
    assert published.order == [1] and not second.done() and store.gate.held == ()
    await store.close()


class Published:
    """Remembers in which order commits were published."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __call__(self, value: int) -> Callable[[Commit], None]:
        return lambda done: self.order.append(value)


async def _gated(hold: Hold) -> tuple[GatedStore, SessionStorage, Published]:
    store = GatedStore(MemoryStore(ids=CountingIds()), hold=hold)
    await store.create("s")
    return store, await store.open("s"), Published()


async def _wait(pending: Pending) -> Commit:
    return await pending


async def _tell(told: list[str], name: str, pending: Pending) -> None:
    try:
        await pending
        told.append(f"{name}: done")
    except SessionFaulted as error:
        told.append(f"{name}: SessionFaulted by {error.__cause__}")


async def _same(storage: SessionStorage) -> SessionStorage:
    return storage


@pytest.mark.parametrize("hold", ["before_write", "before_report"])
async def test_a_gated_storage_can_be_closed_after_a_kill_in_its_submit(hold: Hold) -> None:
    store = GatedStore(MemoryStore(), hold=hold)
    store.gate.open()
    await store.create("s")
    storage = await store.open("s", probe=FaultPlan().kill_at("commit.x.before"))

    with pytest.raises(Killed):
        storage.submit([number(1)], name="x")

    await asyncio.wait_for(storage.close(), timeout=60)


@pytest.mark.parametrize("hold", ["before_write", "before_report"])
async def test_a_kill_ends_a_close_that_waits_at_the_gate(hold: Hold) -> None:
    """What was held is reported to nobody, and the close does not wait for it."""
    store, storage, published = await _gated(hold)
    held = storage.submit([number(1)], publish=published(1))
    closing = asyncio.ensure_future(storage.close())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not closing.done()

    storage.kill()
    for _ in range(5):
        await asyncio.sleep(0)

    assert closing.done() and closing.exception() is None
    assert held.done() and published.order == []
    assert store.gate.held == ()
