"""Claim: of an old owner's commit and a new owner's start one comes first, and nothing is written by both at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agentlane import ListAddress, OwnershipLost, SessionFaulted, SessionOwned, StoreOwned, open_session
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds
from agentlane.testing.gates import Hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged

LOG = ListAddress("app.races", "log", str)

SQLITE_HIDES_LOST_OWNERSHIP = False
"""A replaced owner whose sequence numbers the new one has used is told `InvalidWrite`; remove this when it is not."""

SUCCESSOR = """
import asyncio, json, sys
from agentlane import AgentLaneError, ListAddress, open_session
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.sqlite import SqliteStore

LOG = ListAddress("app.races", "log", str)

async def main(kind, place):
    store = (JsonlStore if kind == "jsonl" else SqliteStore)(place, durability="process")
    try:
        session = await open_session(store, session_id="s")
    except AgentLaneError as error:
        await store.close()
        return error.code
    seen = [text for _, text in await session.elements(LOG)]
    await session.append(LOG, "new")
    await session.close()
    await store.close()
    return seen

for line in sys.stdin:
    print(json.dumps(asyncio.run(main(*json.loads(line)))), flush=True)
"""
"""Another process: for each store it is told, what it sees of the log before it appends; or why it may not."""


@pytest.fixture(scope="module")
def other_process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUCCESSOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.communicate()


@plays("takeover/commit", first="commit")
async def test_commit_then_takeover(staged: Staged, other_process: subprocess.Popen[str]) -> None:
    """The new owner starts behind a commit of which the old one has no report yet: it is there, and told as made."""
    async with staged([], hold="before_report") as at:
        at.gate.shut()
        appending = asyncio.ensure_future(at.session.append(LOG, "old"))
        await at.gate.arrived()
        steal(staged, at)
        assert await successor(staged, at, other_process) == ["old"]
        at.gate.open()
        await appending

        with pytest.raises((OwnershipLost, SessionFaulted)) as caught:
            await at.session.append(LOG, "too late")
        assert isinstance(cause(caught.value), OwnershipLost)
        await at.session.close()
        assert await written(at) == ["old", "new"]


@plays("takeover/commit", first="takeover")
@pytest.mark.parametrize("what", ["list", "intent"])
async def test_takeover_then_commit(staged: Staged, other_process: subprocess.Popen[str], what: str) -> None:
    """The old owner's commit comes behind the new owner's first: it is refused whole, and no effect starts of it."""
    async with staged(["not asked"], hold="before_write") as at:
        at.gate.shut()
        acting: asyncio.Future[Any] = asyncio.ensure_future(
            at.session.append(LOG, "old") if what == "list" else at.lane.drive()
        )
        await at.gate.arrived()
        assert at.gate.held == (what,)
        steal(staged, at)
        assert await successor(staged, at, other_process) == []
        at.gate.open()

        with pytest.raises((OwnershipLost, SessionFaulted)) as caught:
            await acting
        assert isinstance(cause(caught.value), OwnershipLost)
        assert at.model.requests == []
        await at.session.close()
        assert await written(at) == ["new"]


@pytest.mark.parametrize("where", HOLDS)
async def test_a_live_owner_is_not_replaced_in_the_middle_of_its_commit(
    staged: Staged, other_process: subprocess.Popen[str], where: Hold
) -> None:
    async with staged([], hold=where) as at:
        at.gate.shut()
        appending = asyncio.ensure_future(at.session.append(LOG, "old"))
        await at.gate.arrived()
        refused = await successor(staged, at, other_process)
        assert refused == {"memory": "session_owned", "jsonl": "session_owned", "sqlite": "store_owned"}[staged.backend]
        with pytest.raises((SessionOwned, StoreOwned)):
            await open_session(at.failing.inner, session_id="s")
        at.gate.open()
        await appending
        await at.session.close()
        await at.failing.inner.close() if staged.backend != "memory" else None
        assert await successor(staged, at, other_process) == ["old"]


@pytest.mark.parametrize("where", HOLDS)
async def test_a_dead_owner_is_replaced_at_once(
    staged: Staged, other_process: subprocess.Popen[str], where: Hold
) -> None:
    """R76: what it had committed is there, what it had not is not, and nobody waits for a time to pass."""
    async with staged([], hold=where) as at:
        at.gate.shut()
        appending = asyncio.ensure_future(at.session.append(LOG, "old"))
        await at.gate.arrived()
        at.session._runtime.storage.kill()
        await at.failing.inner.close() if staged.backend == "sqlite" else None

        assert await successor(staged, at, other_process) == (["old"] if where == "before_report" else [])
        appending.cancel()
        await asyncio.wait([appending])


def cause(error: BaseException) -> BaseException | None:
    """What the commit failed with, or the fault that it met failed with."""
    return error.__cause__ if isinstance(error, SessionFaulted) else error


def steal(staged: Staged, at: Stage) -> None:
    """Let go of the ownership behind the owner's back: what the lock rules out, and the epoch must catch."""
    match staged.backend:
        case "memory":
            store = at.failing.inner
            assert isinstance(store, MemoryStore)
            store._media["s"].owner = None
        case "jsonl":
            (staged.folder / "sessions" / "s.jsonl.lock").unlink()
        case "sqlite":
            (staged.folder / "sessions.db.lock").unlink()


async def successor(staged: Staged, at: Stage, process: subprocess.Popen[str]) -> Any:
    """A new owner, in a process of its own on disk: what of the log it sees before it appends; or why it may not."""
    if staged.backend == "memory":
        try:
            session = await open_session(at.failing.inner, session_id="s", clock=at.clock, ids=CountingIds(series=3))
        except SessionOwned as error:
            return error.code
        seen = [text for _, text in await session.elements(LOG)]
        await session.append(LOG, "new")
        await session.close()
        return seen
    place = staged.folder / ("sessions" if staged.backend == "jsonl" else "sessions.db")
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps([staged.backend, str(place)]), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


async def written(at: Stage) -> list[str]:
    """The log as it is in the end."""
    async with open_session(at.failing.inner, session_id="s", read_only=True) as session:
        return [text for _, text in await session.elements(LOG)]
