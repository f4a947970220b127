"""Claim: killed at any boundary of any commit, a session opens again with that commit whole or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentlane.data.writes import Address, AppendElement, InsertEntry, SetValue, Write
from agentlane.errors import AgentLaneError
from agentlane.storage.contract import SessionStorage
from agentlane.testing.conformance import Harness
from agentlane.testing.faults import FaultPlan, Killed
from tests.storage.backends import BACKENDS

COMMITS = 4


@pytest.mark.parametrize("backend", BACKENDS)
async def test_every_boundary_survives_a_kill_in_process(backend: str, tmp_path: Path) -> None:
    recorded = FaultPlan()
    async with BACKENDS[backend](tmp_path) as harness:
        assert await killed_at(harness, recorded) == list(range(COMMITS))
    points = recorded.all_boundaries()
    assert [each.boundary for each in points] == [
        f"commit.c{number}.{when}" for number in range(COMMITS) for when in ("before", "inside", "after")
    ]

    for point in points:
        number, when = int(point.boundary.split(".")[1][1:]), point.boundary.split(".")[2]
        with TemporaryDirectory() as folder:
            async with BACKENDS[backend](Path(folder)) as harness:
                there = await killed_at(harness, FaultPlan().kill_at(point.boundary, nth=point.nth))

        assert there == list(range(number + (when == "after"))), f"killed at {point}"


async def killed_at(harness: Harness, plan: FaultPlan) -> list[int]:
    """Which commits are there after a run that ``plan`` may end; each is checked to be whole."""
    store = harness.store()
    await store.create("s")
    storage = await store.open("s", probe=plan)
    run = asyncio.ensure_future(commits(storage))
    death = asyncio.ensure_future(plan.died())
    await asyncio.wait([run, death], return_when=asyncio.FIRST_COMPLETED)
    for task in (run, death):
        task.cancel()
    await asyncio.wait([run, death])
    storage.kill()
    if store.capabilities.persistent:
        await store.close()
        store = harness.store()
    storage = await store.open("s")
    there = [int(row.id) for row in await storage.scan()]
    last = b"%d" % there[-1] if there else None
    assert await storage.value(Address("app.test", "last")) == last
    assert [int(each.payload) for each in await storage.elements(Address("app.test", "all"))] == there
    await storage.submit([InsertEntry("more", None, "user", b"1")])
    await store.close()
    return there


async def commits(storage: SessionStorage) -> None:
    for number in range(COMMITS):
        text = b"%d" % number
        writes: list[Write] = [
            InsertEntry(str(number), None, "user", b"{}"),
            SetValue(Address("app.test", "last"), text),
        ]
        writes.append(AppendElement(Address("app.test", "all"), text))
        try:
            await storage.submit(writes, name=f"c{number}")
        except (Killed, AgentLaneError):
            return
