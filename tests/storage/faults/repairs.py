"""What reads a session that may be damaged, on a medium that fails: ``verify``, and ``repair`` into a copy.

What cannot be read now is an error. A report is the one that there is where nothing fails: no read that failed is told
as damage, and no copy lacks what was only out of reach.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentlane.data.findings import VerifyReport
from agentlane.data.repairs import RepairReport
from agentlane.storage import JsonlStore, Store
from agentlane.storage.schema import PAGE_BYTES
from tests.session.copies import Rows, rows_of
from tests.session.damaged import make
from tests.storage.backends import content
from tests.storage.faults import copies
from tests.storage.faults.copies import Action, World
from tests.storage.faults.media import Medium

COPY = "r"
"""The id of a copy."""


class Wanted(NamedTuple):
    """What is wrong with session ``s``: as it is told, and as it is in a copy."""

    damaged: bool
    verified: VerifyReport
    repaired: RepairReport
    copy: Rows
    files: Mapping[str, bytes]
    """The session's own."""


async def fill(medium: Medium, folder: Path, *, damaged: bool) -> Wanted:
    """Session ``s``, damaged or whole: then with what its process left that was killed."""
    await make(medium.store())
    store: Any = medium.store()
    if damaged:
        (_damage_lines if isinstance(store, JsonlStore) else _damage_pages)(folder / "s")
    for name in ("x.db-shm", "s.jsonl.lock", "x.db.lock"):
        (folder / "s" / name).unlink(missing_ok=True)
    files = content(folder / "s")
    target = JsonlStore(folder / "copy")
    verified, repaired = await store.verify("s"), await store.repair("s", target, session_id=COPY)
    copy = await rows_of(target, COPY)
    assert bool(verified.losses) == damaged and content(folder / "s") == files
    await store.close()
    await target.close()
    shutil.rmtree(folder / "copy")
    return Wanted(damaged, verified, repaired, copy, files)


def _damage_lines(folder: Path) -> None:
    """One line spoilt, and one that has lost its end."""
    lines = (folder / "s.jsonl").read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b"one" in line)
    spoilt = [b"\0" * 300 + b"\n", lines[at + 1][:-1]]
    (folder / "s.jsonl").write_bytes(b"".join([*lines[:at], *spoilt, *lines[at + 2 :]]))


def _damage_pages(folder: Path) -> None:
    """One payload that is no JSON, and one page of the entries that is no page."""
    path = folder / "x.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE entry SET payload = 'no JSON' WHERE seq = (SELECT max(seq) FROM entry)")
        (text,) = database.execute("SELECT payload FROM entry ORDER BY seq LIMIT 1 OFFSET 1").fetchone()
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    data = bytearray(path.read_bytes())
    page = data.index(text.encode()) // PAGE_BYTES * PAGE_BYTES
    data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)


class RepairWorld(World):
    """One go at a session that may be damaged."""

    def __init__(self, medium: Medium, folder: Path, expected: Wanted) -> None:
        super().__init__(medium, folder, copies.Wanted(expected.copy, 0))
        self.expected = expected

    def files(self) -> list[Path]:
        if self.expected.damaged:
            return [*(self.folder / "out").rglob("*.db")] if (self.folder / "out").exists() else []
        return super().files()

    async def _sweep(self) -> None:
        if self.disk or not self.expected.damaged:  # nothing is written to a damaged database
            await super()._sweep()


async def _verify(world: World) -> None:
    store: Any = world.store
    _told(world, await store.verify("s"))


async def _repair_here(world: World) -> None:
    await _repair(world, None)


async def _repair_out(world: World) -> None:
    await _repair(world, world.place("b"))


async def _repair(world: World, target: Path | None) -> None:
    store: Any = world.store
    report = await store.repair("s", target, session_id=COPY)
    _told(world, report)


def _told(world: World, report: VerifyReport | RepairReport) -> None:
    assert isinstance(world, RepairWorld)
    if isinstance(report, RepairReport):
        found, wanted = msgspec.structs.replace(report, source=_own(report.source)), world.expected.repaired
        right = found == wanted
    else:
        right = _own(report) == world.expected.verified
    if not right:
        raise copies.Wrong(f"{report} is told after {world.told()}")


def _own(report: VerifyReport) -> VerifyReport:
    """Without what an attempt that failed has left, which the next one clears up."""
    left = ("half_loaded", "leftover")
    return msgspec.structs.replace(report, findings=tuple(each for each in report.findings if each.code not in left))


async def _source(world: World, made: bool) -> None:
    """Not a byte of it is another; what SQLite notes beside a log of who reads is no part of it."""
    assert isinstance(world, RepairWorld)
    there = content(world.folder / "s")
    assert {name: there.get(name) for name in world.expected.files} == world.expected.files


async def _here(world: World, made: bool) -> None:
    """The copy is in the same store, whole or not at all."""
    store: Any = world.medium.store()
    assert isinstance(world, RepairWorld)
    there = {each.id for each in await store.list()}
    assert there == {"s", COPY} if made else there in ({"s"}, {"s", COPY}), there
    await _copied(world, store, there)
    found: VerifyReport = await store.verify("s")
    assert (found if made else _own(found)) == world.expected.verified
    await store.close()


async def _out(world: World, made: bool) -> None:
    await _source(world, made)
    store = world.at("b")
    there = {each.id for each in await store.list()}
    assert there == {COPY} if made else there in (set(), {COPY}), there
    await _copied(world, store, there)
    await store.close()


async def _copied(world: World, store: Store, there: set[str]) -> None:
    if COPY in there:
        assert await rows_of(store, COPY) == world.wanted.rows


ACTIONS = {
    "verify": Action("verify", _verify, _source),
    "repair here": Action("repair here", _repair_here, _here),
    "repair": Action("repair", _repair_out, _out),
}
