"""Claim: the manual clock moves only when told and wakes by due time; counted ids are valid, growing and the same."""

from __future__ import annotations

import asyncio
import uuid
from itertools import pairwise

import anyio
import pytest

from agentlane.ids import DERIVED_MAX, derive
from agentlane.testing.clock import START_MS, CountingIds, ManualClock


async def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(start_ms=50)

    assert [clock.now_ms(), clock.now_ms()] == [50, 50]
    clock.advance(7)
    assert clock.now_ms() == 57
    assert ManualClock().now_ms() == START_MS
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-1)
    assert clock.now_ms() == 57


async def test_sleepers_wake_in_order_of_due_time_and_equal_ones_in_order_of_going_to_sleep() -> None:
    clock = ManualClock(start_ms=0)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, due_ms: int) -> None:
        await clock.sleep_until(due_ms)
        woken.append((name, clock.now_ms()))

    tasks = [asyncio.create_task(sleeper(*each)) for each in [("c", 30), ("a", 10), ("d", 40), ("b1", 20), ("b2", 20)]]
    await clock.sleeping(5)
    assert clock.sleepers == (10, 20, 20, 30, 40) and clock.next_due == 10

    clock.advance(9)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(21)
    await asyncio.gather(*tasks[:2], *tasks[3:])

    assert woken == [("a", 30), ("b1", 30), ("b2", 30), ("c", 30)]
    assert list(clock.sleepers) == [40]
    assert clock.advance_to_next() == 10
    await tasks[2]
    assert woken[-1] == ("d", 40) and clock.next_due is None
    with pytest.raises(RuntimeError, match="nobody sleeps"):
        clock.advance_to_next()


async def test_a_time_that_has_come_needs_no_waiting() -> None:
    clock = ManualClock(start_ms=100)
    ran_between = False

    async def other() -> None:
        nonlocal ran_between
        ran_between = True

    task = asyncio.create_task(other())
    await clock.sleep_until(100)
    await clock.sleep_until(-5)

    assert not ran_between
    await task


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock(start_ms=0)
    with anyio.move_on_after(0):
        await clock.sleep_until(10)
    task = asyncio.create_task(clock.sleep_until(20))
    await clock.sleeping()
    task.cancel()
    await asyncio.wait([task])

    assert clock.sleepers == () and clock.next_due is None
    clock.advance(100)


async def test_a_sleeper_cancelled_in_the_moment_it_is_woken_stays_cancelled() -> None:
    clock = ManualClock(start_ms=0)
    task = asyncio.create_task(clock.sleep_until(10))
    await clock.sleeping()
    clock.advance(10)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled() and clock.sleepers == ()


async def test_waiting_for_sleepers_counts_those_of_the_same_time() -> None:
    clock = ManualClock(start_ms=0)
    watcher = asyncio.create_task(clock.sleeping(2))
    first = asyncio.create_task(clock.sleep_until(1))
    await clock.sleeping(1)
    clock.advance(1)
    await first
    assert not watcher.done()
    others = [asyncio.create_task(clock.sleep_until(5)) for _ in range(2)]
    await watcher
    clock.advance(4)
    await asyncio.gather(*others)

    given_up = asyncio.create_task(clock.sleeping(9))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert given_up.cancelled()


def test_counted_ids_are_uuid7_and_grow_and_leave_room_to_derive() -> None:
    source, again, later = CountingIds(), CountingIds(), CountingIds(series=1)
    made = [source.new() for _ in range(20_000)]

    assert made[0] == "00000000-0000-7000-8000-000000010000"
    assert made[:50] == [again.new() for _ in range(50)]
    assert all(a < b for a, b in pairwise(made)) and later.new() > made[-1]
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in made} == {(7, uuid.RFC_4122)}
    assert all(each.endswith("0000") for each in made)
    assert made[0] < derive(made[0], 1) < derive(made[0], DERIVED_MAX) < made[1]
    with pytest.raises(ValueError, match="series"):
        CountingIds(series=2**32)
