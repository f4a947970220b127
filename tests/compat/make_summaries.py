"""Makes the files of ``tests.compat.summary_states``: ``make_summaries FOLDER JSONL SQLITE`` (the numbers of formats).

By hand, once for each format, as ``make_states``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from agentlane import AgentLane, open_session
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import Store
from agentlane.testing import CountingIds, ManualClock
from agentlane.testing.matrix.lives import bury
from tests.compat.every_state import is_at
from tests.compat.make_states import Steps, Tasks
from tests.compat.summary_states import LANES, SESSION, agent, ask


async def make(store: Store, clock: ManualClock) -> None:
    """One life, killed when every lane is where it stops."""
    await store.create(SESSION)
    ids, steps = CountingIds(), Steps()
    session = await open_session(store, session_id=SESSION, clock=clock, ids=ids, seed=1, probe=steps)
    tasks: Tasks = []
    for name, stops in LANES.items():
        lane: AgentLane[Any, Any] = await session.lane(name, agent(name, held=True))
        for number in range(3):
            await lane.run(f"question {number} of {name}")
        await ask(lane)
        if not stops.asks:
            await lane.drive()
        elif stops.at not in ("checkpoint", "navigating"):
            tasks.append(asyncio.create_task(lane.drive(wait_for_retry=False)))
        if stops.at:
            await steps.show(is_at(stops.at), lane)
    await bury(session, *tasks)


async def _main(folder: Path, jsonl: str, sqlite: str) -> None:
    clock = ManualClock()
    await make(JsonlStore(folder, durability="process", clock=clock), clock)
    (folder / f"{SESSION}.jsonl").rename(folder / f"summaries-{jsonl}.jsonl")
    database, clock = folder / f"summaries-{sqlite}.db", ManualClock()
    await make(SqliteStore(database, durability="process", clock=clock), clock)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), *sys.argv[2:]))
