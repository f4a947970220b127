"""Makes the files of ``tests.compat.every_state`` as the library writes them now: ``make_states FOLDER NUMBER ...``.

By hand, once for each format: what it made is frozen in ``golden_files``, and CONTRIBUTING.md says when that is due.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from agentlane import AgentLane, Prompt, Session, Waiting, open_session
from agentlane.data.messages import user
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import Store
from agentlane.testing import CountingIds, ManualClock
from agentlane.testing.matrix.lives import bury
from tests.compat.every_state import APP_LIST, APP_VALUE, LANES, SESSION, Hands, calls_are

Tasks: TypeAlias = list[asyncio.Task[Any]]

WAITS_MAX = 5_000


async def make(store: Callable[[ManualClock], Store]) -> None:
    """Two lives, each killed: the first brings the lanes where they stop, the second those that take a death to it."""
    clock = ManualClock()
    await store(clock).create(SESSION, metadata={"title": "Every state", "made": {"by": "a test"}})
    await _life(store(clock), clock, 0, _first)
    await _life(store(clock), clock, 1, _second)


async def _life(store: Store, clock: ManualClock, series: int, live: Callable[..., Awaitable[None]]) -> None:
    session = await open_session(store, session_id=SESSION, clock=clock, ids=CountingIds(series=series), seed=1)
    tasks: Tasks = []
    hands = Hands(hold=True)
    await live(session, {name: await session.lane(name, hands.agent(name)) for name in LANES}, clock, tasks)
    await bury(session, *tasks)


async def _main(folder: Path, jsonl: str, based: str, sqlite: str) -> None:
    """Make the files ``states-{jsonl}.jsonl``, ``states-{based}.jsonl`` (with a base) and ``states-{sqlite}.db``."""
    grown = folder / f"{SESSION}.jsonl"
    await make(lambda clock: JsonlStore(folder, durability="process", clock=clock))
    shutil.copy(grown, folder / f"states-{jsonl}.jsonl")
    session = await open_session(grown, durability="process", clock=ManualClock(start_ms=1_700_000_001_000))
    await session.compact_storage()
    await session.close()
    grown.rename(folder / f"states-{based}.jsonl")
    database = folder / f"states-{sqlite}.db"
    await make(lambda clock: SqliteStore(database, durability="process", clock=clock))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


async def _first(session: Session, lanes: dict[str, AgentLane[Any, Any]], clock: ManualClock, tasks: Tasks) -> None:
    for name, lane in lanes.items():
        await lane.accept(Prompt(f"go, {name}"), operation_id=f"{name}-1")
        if name == "accepted":
            continue
        tasks.append(asyncio.create_task(lane.drive(wait_for_retry=False)))
        await _until(partial(LANES[name].shows, lane), lane)
    clock.advance(1_000)  # so that what was shown and how far calls came is saved
    for name, namespace in (("generating", "pending.frames"), ("running", "pending.output")):
        await _until_stored(session, namespace, lanes[name])
    (asked,) = lanes["approved"].inspect().approvals
    await lanes["approved"].decide(asked.approval_id, allow=True, by="somebody", reason="why not")
    await _until(partial(calls_are("effect_pending", "approved"), lanes["approved"]), lanes["approved"])
    inbox = lanes["inbox"]
    await inbox.steer("steered", request_id="r-1")
    await inbox.follow_up("followed up")
    await inbox.next_run("for later", request_id="r-2")
    await inbox.append_message(user("kept for the next boundary"))
    await inbox.submit("submitted", request_id="r-3")
    await lanes["idle"].next_run("waiting for a run")
    await lanes["retried"].retry("retried-1", operation_id="retried-2")
    await session.set_name("A session of every state")
    await session.set_value(APP_VALUE, {"n": 1})
    await session.append(APP_LIST, 1)
    await session.append(APP_LIST, 2)
    await session.create_branch("side", (await session.entries(limit=1))[0].id)
    await session.set_label((await session.entries(limit=1))[0].id, "the first")


async def _second(session: Session, lanes: dict[str, AgentLane[Any, Any]], clock: ManualClock, tasks: Tasks) -> None:
    for name in ("replay", "permitted"):
        assert isinstance(await lanes[name].drive(f"{name}-1"), Waiting)
    for name in ("decided", "permitted"):
        (asked,) = lanes[name].inspect().approvals
        args = {"x": 20} if name == "decided" else None
        await lanes[name].decide(asked.approval_id, allow=True, args=args, by="somebody", reason="why not")
    (question,) = lanes["answered"].inspect().approvals
    await lanes["answered"].answer(question.approval_id, "first answer", by="somebody")
    (asked,) = lanes["granted"].inspect().approvals
    await lanes["granted"].decide(asked.approval_id, allow=True)
    (question,) = lanes["resumed"].inspect().approvals
    await lanes["resumed"].answer(question.approval_id, "an answer")
    for name in ("granted", "resumed"):
        tasks.append(asyncio.create_task(lanes[name].drive()))
        await _until(partial(calls_are("effect_pending"), lanes[name]), lanes[name])
    await lanes["aborting"].steer("given back")
    await lanes["aborting"].request_abort("aborting-1")


async def _until_stored(session: Session, namespace: str, lane: AgentLane[Any, Any]) -> None:
    storage = session._runtime.storage
    for _ in range(WAITS_MAX):
        if await storage.values(namespace) or await storage.lists(namespace):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"nothing of {lane.name} is in {namespace}")


async def _until(reached: Callable[[], object], lane: AgentLane[Any, Any]) -> None:
    for _ in range(WAITS_MAX):
        if reached():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{lane.name} does not come to its state: {lane.inspect()}")


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), *sys.argv[2:]))
