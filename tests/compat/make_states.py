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

SECONDS_MAX = 60
"""How long a lane may take to its state before it is said that it does not come to it."""


class Steps:
    """The probe of a session: something is waited for until it is so, and looked at behind each step."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._one_more = asyncio.Event()

    def reached(self, boundary: str) -> None:
        """On any thread; what the step makes true is true when the loop comes to it."""
        self._loop.call_soon_threadsafe(self._one_more.set)

    async def until(self, reached: Callable[[], Awaitable[object]], lane: AgentLane[Any, Any]) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    self._one_more.clear()
                    if await reached():
                        return
                    await self._one_more.wait()
        except TimeoutError:
            raise AssertionError(f"{lane.name} does not come to its state: {lane.inspect()}") from None

    async def show(self, shows: Callable[[AgentLane[Any, Any]], object], lane: AgentLane[Any, Any]) -> None:
        async def reached() -> object:
            return shows(lane)

        await self.until(reached, lane)

    async def store(self, namespace: str, session: Session, lane: AgentLane[Any, Any]) -> None:
        storage = session._runtime.storage

        async def reached() -> object:
            return await storage.values(namespace) or await storage.lists(namespace)

        await self.until(reached, lane)


async def make(store: Callable[[ManualClock], Store]) -> None:
    """Two lives, each killed: the first brings the lanes where they stop, the second those that take a death to it."""
    clock = ManualClock()
    await store(clock).create(SESSION, metadata={"title": "Every state", "made": {"by": "a test"}})
    await _life(store(clock), clock, 0, _first)
    await _life(store(clock), clock, 1, _second)


async def _life(store: Store, clock: ManualClock, series: int, live: Callable[..., Awaitable[None]]) -> None:
    ids, steps = CountingIds(series=series), Steps()
    session = await open_session(store, session_id=SESSION, clock=clock, ids=ids, seed=1, probe=steps)
    tasks: Tasks = []
    hands = Hands(hold=True)
    lanes = {name: await session.lane(name, hands.agent(name)) for name in LANES}
    await live(session, lanes, clock, tasks, steps)
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


async def _first(
    session: Session, lanes: dict[str, AgentLane[Any, Any]], clock: ManualClock, tasks: Tasks, steps: Steps
) -> None:
    for name, lane in lanes.items():
        await lane.accept(Prompt(f"go, {name}"), operation_id=f"{name}-1")
        if name == "accepted":
            continue
        tasks.append(asyncio.create_task(lane.drive(wait_for_retry=False)))
        await steps.show(LANES[name].shows, lane)
    clock.advance(1_000)  # so that what was shown and how far calls came is saved
    for name, namespace in (("generating", "pending.frames"), ("running", "pending.output")):
        await steps.store(namespace, session, lanes[name])
    (asked,) = lanes["approved"].inspect().approvals
    await lanes["approved"].decide(asked.approval_id, allow=True, by="somebody", reason="why not")
    await steps.show(calls_are("effect_pending", "approved"), lanes["approved"])
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


async def _second(
    session: Session, lanes: dict[str, AgentLane[Any, Any]], clock: ManualClock, tasks: Tasks, steps: Steps
) -> None:
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
        await steps.show(calls_are("effect_pending"), lanes[name])
    await lanes["aborting"].steer("given back")
    await lanes["aborting"].request_abort("aborting-1")


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), *sys.argv[2:]))
