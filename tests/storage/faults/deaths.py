"""A program that migrates and repairs, each time in a process of its own that kills itself at one of its I/O calls.

``python -m tests.storage.faults.deaths DEATHS FOLDER WORK ...``: of each work ``FOLDER/WORK`` is the place as it is
before. Every life has a copy of it, ``FOLDER/WORK-N``: the first, 0, comes to its end; the others die, far from each
other and the last before the last call that changes something.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentlane.storage import JsonlStore, index_snapshot, sqlite_snapshot
from tests.compat.every_state import SESSION
from tests.storage.faults.media import Medium, medium_at
from tests.storage.faults.planned import Faults, Kind
from tests.storage.faults.repairs import COPY
from tests.storage.faults.system import FaultyFiles
from tests.storage.test_migrating_jsonl import later_version

CHANGING = {
    *("write", "sync", "sync_folder", "truncate", "rename", "unlink"),
    *("db.write", "db.sync", "db.truncate", "db.delete"),
}
"""Calls after which the disk is another, or is known to be what it is."""
HALF = Kind("half of it", ("write", "db.write"), sqlite3.SQLITE_FULL, part=True)


class Death(Faults):
    """The process dies before the ``nth`` call that changes something; of a write every other time behind half."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.changes = 0
        self._at = nth
        self._half = False

    def meet(self, call: str) -> Kind | None:
        if self._half:
            os.kill(os.getpid(), signal.SIGKILL)
        if call not in CHANGING:
            return None
        self.changes += 1
        if self.changes != self._at:
            return None
        if call in HALF.calls and self._at % 2:
            self._half = True
            return HALF
        os.kill(os.getpid(), signal.SIGKILL)
        return None


async def _migrate(medium: Medium, folder: Path) -> None:
    store = medium.store()
    await (await store.open(SESSION)).close()
    await store.close()


async def _migrate_file(medium: Medium, folder: Path) -> None:
    with later_version():
        await _migrate(medium, folder)


async def _repair_to_path(medium: Medium, folder: Path) -> None:
    store = JsonlStore(folder / "s")
    await store.repair("s", folder / "out" / "b.db", session_id=COPY)
    await store.close()


async def _repair_to_store(medium: Medium, folder: Path) -> None:
    store: Any = medium.store()
    target = JsonlStore(folder / "out" / "b", files=FaultyFiles(medium.faults))
    await store.repair("s", target, session_id=COPY)
    await target.close()
    await store.close()


PAGE_ROWS = 4
"""How long pages are here, so that a small session has several of them."""
WORKS: dict[str, tuple[str, Callable[[Medium, Path], Awaitable[None]]]] = {
    "migrate-sqlite": ("sqlite-disk", _migrate),
    "migrate-jsonl": ("jsonl-disk", _migrate_file),
    "repair-jsonl": ("sqlite-disk", _repair_to_path),
    "repair-sqlite": ("sqlite-disk", _repair_to_store),
}


def main(deaths: int, folder: Path, works: list[str]) -> None:
    for work in works:
        changes = _live(folder, work, 0, 0)
        for number in range(1, deaths + 1):
            _live(folder, work, number, max(1, changes * number // deaths))


def _live(folder: Path, work: str, number: int, nth: int) -> int:
    """One life; how many calls changed something in one that comes to its end."""
    place = folder / f"{work}-{number}"
    shutil.copytree(folder / work, place)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        index_snapshot.PAGE_ROWS = sqlite_snapshot.PAGE_ROWS = PAGE_ROWS
        name, live = WORKS[work]
        death = Death(nth)
        with medium_at(name, place, death) as medium:
            asyncio.run(live(medium, place))
        os.write(writer, str(death.changes).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as told:
        changes = int(told.read() or 0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != (-signal.SIGKILL if nth else 0):
        raise SystemExit(f"{work} {number}, which was to die at {nth}: {os.waitstatus_to_exitcode(status)}")
    return changes


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
