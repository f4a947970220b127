"""Claim: the file of sessions that live long stays as small as what they hold, and its log stays bounded."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import pytest

from agentlane.data.writes import Address, AppendElement, DeleteValue, InsertEntry, SetValue
from agentlane.storage import SqliteStore, schema, sqlite_connect, sqlite_log
from agentlane.storage.contract import SessionStorage
from agentlane.testing.conformance import ReferenceSession, dump

LOG_PAGES = 100


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is long after few pages."""
    for module in (sqlite_log, sqlite_connect):
        monkeypatch.setattr(module, "LOG_PAGES_MAX", LOG_PAGES)
    monkeypatch.setattr(sqlite_connect, "LOG_BYTES_MAX", LOG_PAGES * schema.PAGE_BYTES)


async def work(storage: SessionStorage, commits: int, start: int = 0) -> None:
    for number in range(start, start + commits):
        parent = f"e{number - 1}" if number else None
        entry = InsertEntry(f"e{number}", parent, "user", b'"%s"' % (b"x" * 500))
        await storage.submit([entry, SetValue(Address("app.check", "state"), b'"%s"' % (b"y" * 4000))])


def log_bytes(path: Path) -> int:
    return os.path.getsize(f"{path}-wal")


async def test_the_log_stays_bounded_whatever_is_written(tmp_path: Path, small_log: None) -> None:
    """Ours read page by page meanwhile, through a session for reading, and hold nothing."""
    path = tmp_path / "s.db"
    store = SqliteStore(path, durability="process")
    await store.create("s")
    storage = await store.open("s")
    reader = await store.open("s", read_only=True)
    largest = 0
    for turn in range(20):
        await work(storage, 50, turn * 50)
        await reader.scan(limit=10)
        snapshot = await storage.snapshot()
        await anext(aiter(snapshot.pages()))
        largest = max(largest, log_bytes(path))
    assert largest < 4 * LOG_PAGES * schema.PAGE_BYTES
    assert storage.findings == ()
    await store.close()


async def test_a_log_that_an_owner_has_left_is_copied_before_the_next_one_writes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it has filled the disk, what is freed would else go into it as well."""
    monkeypatch.setattr(sqlite_log, "BACKLOG_PAGES", 50)
    path = tmp_path / "s.db"
    store = SqliteStore(path, durability="process")
    await store.create("s")
    storage = await store.open("s")
    await work(storage, 60)
    stranger = sqlite3.connect(path)  # as long as somebody has the file open, nobody removes its log
    stranger.execute("SELECT count(*) FROM session").fetchall()
    storage.kill()
    left = log_bytes(path)
    assert left > 50 * schema.PAGE_BYTES
    heir = SqliteStore(path, durability="process")
    storage = await heir.open("s")
    assert log_bytes(path) == left  # opening writes nothing
    await work(storage, 15, 60)
    assert log_bytes(path) == left
    assert storage.stats().entries == 75
    stranger.close()
    await heir.close()
    await store.close()


async def test_a_stranger_who_holds_the_log_is_told_of_once(
    tmp_path: Path, small_log: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path, durability="process")
    await store.create("s")
    storage = await store.open("s")
    await work(storage, 5)
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN")
    stranger.execute("SELECT count(*) FROM entry").fetchone()
    await work(storage, 300, 5)
    (finding,) = storage.findings
    assert re.search(
        r"s\.db: the log beside it has \d+ MB and grows, for another program has a read transaction", finding
    )
    assert [record.message for record in caplog.records if "read transaction" in record.message] == [finding]
    held = log_bytes(path)
    assert held > 10 * LOG_PAGES * schema.PAGE_BYTES

    stranger.execute("ROLLBACK")
    stranger.close()
    await work(storage, 300, 305)
    assert log_bytes(path) < 4 * LOG_PAGES * schema.PAGE_BYTES, "it is cut once nobody holds it"
    assert len(storage.findings) == 1
    await store.close()


@pytest.mark.parametrize("by", ["compact", "optimize"])
async def test_room_that_holds_nothing_is_given_back(tmp_path: Path, by: str) -> None:
    """Of sessions that were deleted, beside one that is open and goes on; with what a killed load left."""
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.create("s")
    await store.create("gone")
    storage, model = await store.open("s"), ReferenceSession()
    writes = [InsertEntry("a", None, "user", b'"a"'), AppendElement(Address("app.check", "l"), b'"1"')]
    model.commit(writes, await storage.submit(writes))
    gone = await store.open("gone")
    await work(gone, 300)
    await gone.close()
    await store.delete("gone")
    database = sqlite3.connect(path)  # as a process that died in a load leaves it
    with database:
        database.execute(schema.INSERT_ELEMENT, (99, "", "", 0, '""'))
        database.execute(schema.INSERT_ENTRY, (1 << 50, 99, 1, "left", None, 0, "user", '"left"'))
    database.close()

    sizes = await (storage.compact() if by == "compact" else store.optimize())
    assert sizes.bytes_after < sizes.bytes_before / 3
    writes = [InsertEntry("b", "a", "user", b'"b"'), DeleteValue(Address("app.check", "v"))]
    model.commit(writes, await storage.submit(writes))
    assert await dump(storage, {"app.check"}) == model.dump({"app.check"})
    await store.close()
    assert path.stat().st_size <= sizes.bytes_after + 10 * schema.PAGE_BYTES
    database = sqlite3.connect(path)
    left = database.execute("SELECT count(*) FROM entry WHERE session = 99").fetchone()[0]
    assert left == (1 if by == "compact" else 0)
    assert database.execute("SELECT key FROM session WHERE id = 's'").fetchall() == [(1,)]
    database.close()
    again = SqliteStore(path)
    assert (await again.create("new")) in await again.list()
    await again.close()


async def test_optimize_writes_nothing_anew_where_little_is_free(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    assert await store.optimize() == (0, 0)
    assert not path.exists()
    await store.create("s")
    storage = await store.open("s")
    await work(storage, 100)
    await storage.close()
    before, after = path.stat().st_size, await store.optimize()
    assert after.bytes_before == before
    assert before <= after.bytes_after <= before + 2 * schema.PAGE_BYTES, "what SQLite learned of it has a page"
    await store.close()


HOT = {
    "SELECT_ENTRY": (1, "e5"),
    "SELECT_PLACE": (1, "e5"),
    "WALK_NEWEST_FIRST": (1, None, None, 1 << 32, 1 << 33, 1, 10),
    "SELECT_VALUE": (1, "app.check", "state"),
    "SCAN_ENTRIES": (1, 5, 10),
    "SELECT_LAST_PLACE": (1 << 32, 1 << 33),
    "SELECT_OPEN_OPERATIONS": (),
}


async def test_what_sqlite_learns_of_the_data_makes_no_query_slower(tmp_path: Path) -> None:
    """Each is answered by the same index after ``optimize`` as before it, and none by a look at every row."""
    path = tmp_path / "s.db"
    store = SqliteStore(path, durability="process")
    for name in ("s", "t", "u"):
        await store.create(name)
        storage = await store.open(name)
        await work(storage, 300 if name == "s" else 20)
        await storage.close()

    def plans() -> dict[str, list[str]]:
        database = sqlite3.connect(path)
        found = {
            name: [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {getattr(schema, name)}", values)]
            for name, values in HOT.items()
        }
        database.close()
        return found

    before = plans()
    await store.optimize()
    assert plans() == before
    assert not [step for name, steps in before.items() for step in steps if step.startswith("SCAN entry")]
    await store.close()
