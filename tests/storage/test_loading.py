"""Claim: a session that is loaded is there whole or not at all, and what a killed load leaves is given back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agentlane.data.writes import InsertEntry
from agentlane.errors import CorruptSession, InvalidWrite
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import EntryRow, Row, Store
from agentlane.storage.framing import intact
from agentlane.storage.jsonl_base import fresh_path

ROWS = [EntryRow(f"e{each}", f"e{each - 1}" if each else None, each + 1, 10, "user", b'"x"') for each in range(600)]

LOADER = """
import asyncio, os, sys
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import EntryRow

async def pages():
    for start in range(0, 600, 100):
        if start == 300:
            os._exit(9)
        numbers = range(start, start + 100)
        yield [EntryRow(f"e{n}", f"e{n - 1}" if n else None, n + 1, 10, "user", b'"x"') for n in numbers]

async def main():
    store = {store}
    await store.load(pages(), last_seq=600, session_id="new")

asyncio.run(main())
"""


async def paged(rows: Sequence[Row], size: int = 100) -> AsyncIterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def store_at(backend: str, folder: Path) -> Store:
    return JsonlStore(folder / "sessions") if backend == "jsonl" else SqliteStore(folder / "s.db")


def tables(folder: Path) -> dict[str, int]:
    """How many rows each table of the SQLite file has."""
    database = sqlite3.connect(folder / "s.db")
    try:
        return {
            name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("session", "segment", "entry", "value", "element", "usage")
        }
    finally:
        database.close()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_a_killed_load_leaves_no_session_and_is_cleared_by_the_next(tmp_path: Path, backend: str) -> None:
    kind, name = ("JsonlStore", "sessions") if backend == "jsonl" else ("SqliteStore", "s.db")
    place = f"{kind}({str(tmp_path / name)!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LOADER.replace("{store}", place))
    assert await process.wait() == 9

    store = store_at(backend, tmp_path)
    assert list(await store.list()) == []
    assert list(await store.open_operations()) == []
    await store.load(paged(ROWS[:50]), last_seq=50, session_id="other")
    if backend == "jsonl":
        assert sorted(each.name for each in (tmp_path / "sessions").iterdir()) == ["other.jsonl", "other.jsonl.lock"]
    else:
        assert tables(tmp_path) == {"session": 1, "segment": 1, "entry": 50, "value": 0, "element": 0, "usage": 0}
    await store.load(paged(ROWS), last_seq=600, session_id="new")
    storage = await store.open("new")
    assert await storage.scan() == ROWS
    await store.close()


async def test_a_load_does_not_clear_another_that_is_under_way(tmp_path: Path) -> None:
    """Two stores of one process, on one file."""
    go = asyncio.Event()

    async def slowly() -> AsyncIterator[Sequence[Row]]:
        yield ROWS[:100]
        await go.wait()
        yield ROWS[100:]

    one, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    await one.create("there")
    held = await one.open("there")
    loading = asyncio.ensure_future(one.load(slowly(), last_seq=600, session_id="slow"))
    while tables(tmp_path)["entry"] < 100:
        await other.list()
    await other.load(paged(ROWS[:10]), last_seq=10, session_id="quick")
    go.set()
    await loading
    storage = await other.open("slow")
    assert await storage.scan() == ROWS
    await held.close()
    await other.close()
    await one.close()
    assert tables(tmp_path)["element"] == 0


async def test_a_number_of_a_load_that_failed_is_given_to_no_other_session(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    with pytest.raises(InvalidWrite):
        await store.load(paged([ROWS[0], ROWS[0]]), last_seq=600, session_id="new")
    await store.create("new")
    database = sqlite3.connect(tmp_path / "s.db")
    assert database.execute("SELECT key FROM session").fetchall() == [(2,)]
    database.close()
    await store.close()


async def _loaded(folder: Path) -> tuple[JsonlStore, Path, list[bytes]]:
    store = JsonlStore(folder)
    rows = [row._replace(payload=b'"%s"' % (b"x" * 2000)) for row in ROWS]
    await store.load(paged(rows), last_seq=600, session_id="s")
    storage = await store.open("s")
    await storage.submit([InsertEntry("later", "e599", "user", b'"later"')])
    await storage.close()
    path = folder / "s.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 5 and all(intact(each[:-1]) for each in lines)
    return store, path, lines


@pytest.mark.parametrize("cut", ["header", "middle", "inside", "last"])
async def test_a_base_that_is_not_whole_is_corruption_and_no_torn_tail(tmp_path: Path, cut: str) -> None:
    """It was put in place whole, so what is missing was lost: nothing may be cut off, and nothing be built on it."""
    store, path, lines = await _loaded(tmp_path)
    kept = {
        "header": lines[:1],
        "middle": lines[:3],
        "inside": [*lines[:3], lines[3][:-100]],
        "last": lines[:-2],
    }[cut]
    path.write_bytes(before := b"".join(kept))
    with pytest.raises(CorruptSession, match="base"):
        await store.open("s")
    if cut != "header":
        with pytest.raises(CorruptSession, match="base"):
            await store.open_operations()
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["gone", "twice", "flipped", "swapped"])
async def test_each_line_of_a_base_counts(tmp_path: Path, damage: str) -> None:
    store, path, lines = await _loaded(tmp_path)
    for number in range(1, len(lines) - 1):
        changed = list(lines)
        if damage == "gone":
            del changed[number]
        elif damage == "twice":
            changed.insert(number, lines[number])
        elif damage == "swapped":
            if number + 1 == len(lines) - 1:
                continue
            changed[number : number + 2] = [lines[number + 1], lines[number]]
        else:
            line = bytearray(lines[number])
            line[len(line) // 2] ^= 1
            changed[number] = bytes(line)
        path.write_bytes(before := b"".join(changed))
        with pytest.raises(CorruptSession):
            await store.open("s")
        assert path.read_bytes() == before


async def test_a_file_that_is_written_for_a_load_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    await store.load(paged(ROWS), last_seq=600, session_id="s")
    path = tmp_path / "s.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not os.path.lexists(fresh_path(path))
