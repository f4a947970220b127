"""Claim: a SQLite file of an older format becomes one of this version's when it is first opened for writing, step by
step, whole at each moment and nothing lost; until then, and wherever that cannot be, it is read as it is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentlane import open_session
from agentlane.data.usage import Stats, UsageTotals
from agentlane.errors import StoreOwned, UnsupportedFormat
from agentlane.storage import JsonlStore, SqliteStore, schema, sqlite_migrate
from agentlane.storage.migrating import Chain, Step
from agentlane.storage.sqlite_stats import stats_text
from tests.compat.every_state import SESSION
from tests.compat.test_every_state import GOLDEN, check_ends, stored
from tests.storage.backends import child, content
from tests.storage.faults.media import KINDS, descriptors, medium_at
from tests.storage.faults.planned import Faults, Kind
from tests.storage.faults.workload import judge

FIRST = GOLDEN / "states-1.db"
"""A file of format 1 with operations open in every state."""
OTHER = "other"
OPEN = 25
"""How many operations are open in it."""
STEP, STEP_WHOLE = 29, 8
"""Each so-maniest call of a migrating open fails."""


def older(folder: Path, since: int = 1) -> Path:
    """A file of an older format in ``folder``, with a second session in it."""
    path = folder / "s" / "x.db"
    path.parent.mkdir(mode=0o700, parents=True)
    shutil.copyfile(GOLDEN / f"states-{since}.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO session (id, created_at, metadata, epoch, seq) VALUES (?, 5, '{\"a\":1}', 0, 0)", (OTHER,)
        )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return path


def format_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def rows_of(path: Path) -> dict[str, list[Any]]:
    """Every row of every table that format 1 has, by the columns that it has."""
    with closing(sqlite3.connect(path)) as connection:
        old = closing(sqlite3.connect(f"file:{FIRST}?mode=ro&immutable=1", uri=True))
        with old as first:
            tables = [name for (name,) in first.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            columns = {name: [each[1] for each in first.execute(f"PRAGMA table_info({name})")] for name in tables}
        return {
            name: sorted(connection.execute(f"SELECT {', '.join(columns[name])} FROM {name}").fetchall(), key=repr)
            for name in tables
        }


def shape_of(path: Path) -> dict[str, Any]:
    """What the file is made of: its tables with their columns, its indexes and views, and their options."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_schema ORDER BY type, name").fetchall()
        return {
            "all": names,
            "columns": {
                name: connection.execute(f"PRAGMA table_info({name})").fetchall()
                for kind, name in names
                if kind == "table"
            },
            "options": sorted(connection.execute("PRAGMA table_list").fetchall()),
            "format": connection.execute("PRAGMA user_version").fetchone(),
        }


def noted(name: str) -> Callable[[sqlite3.Connection], None]:
    """A step of a later version: a table with what the values of each session take."""

    def change(database: sqlite3.Connection) -> None:
        database.execute(f"CREATE TABLE {name} (session INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) STRICT")
        database.execute(f"INSERT INTO {name} SELECT session, sum(length(payload)) FROM value GROUP BY session")

    return change


@contextmanager
def later_version(*changes: Callable[[sqlite3.Connection], None]) -> Iterator[int]:
    """The library as a later one, with these steps behind its own; gives the format of that."""
    own = sqlite_migrate.CHAIN
    steps = [Step(own.newest + number, "a test", change) for number, change in enumerate(changes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_migrate, "CHAIN", Chain(*own.steps, *steps, newest=own.newest + len(steps)))
        yield own.newest + len(steps)


def test_steps_lead_from_each_format_to_the_next() -> None:
    one, two = Step(1, "", None), Step(2, "", None)
    chain = Chain(one, two, newest=3)

    assert (chain.oldest, [chain.step_from(each) for each in (1, 2, 3)]) == (1, [one, two, None])
    assert list(chain.due(1)) == [one, two] and list(chain.due(3)) == []
    for found in (0, 4):
        with pytest.raises(ValueError, match="no step"):
            chain.step_from(found)
    for steps, newest in (((two,), 2), ((one,), 3), ((two, one), 3), ((one, one), 3)):
        with pytest.raises(ValueError, match="steps from"):
            Chain(*steps, newest=newest)


@pytest.mark.parametrize("since", range(1, schema.FORMAT_VERSION))
async def test_the_first_open_for_writing_migrates_and_loses_nothing(tmp_path: Path, since: int) -> None:
    path = older(tmp_path, since)
    before = rows_of(path)
    new = SqliteStore(tmp_path / "new.db")
    await new.create("s")
    await new.close()

    store = SqliteStore(path)
    storage = await store.open(OTHER)
    told = f"migrated from format {since} to {schema.FORMAT_VERSION}"
    assert any(told in each for each in storage.findings)
    await store.close()

    assert format_of(path) == schema.FORMAT_VERSION
    assert rows_of(path) == before
    assert shape_of(path) == shape_of(tmp_path / "new.db")
    with closing(sqlite3.connect(path)) as connection:
        kept = dict(connection.execute("SELECT id, stats FROM session").fetchall())
    assert (
        kept[OTHER] == (stats_text(Stats(usage=UsageTotals(rows=0))) if since < schema.STATS_SINCE else "")
        and '"rows":' in kept[SESSION]
    )
    again = SqliteStore(path)
    storage = await again.open(SESSION)
    assert storage.findings == [] or "migrated" not in str(storage.findings)
    await again.close()
    await check_ends(SqliteStore(path, durability="process"))


async def test_the_last_step_taken_again_ends_where_it_did(tmp_path: Path) -> None:
    """As where the number alone was changed: and an index of the search is no hindrance, known to SQLite or not."""
    path = older(tmp_path)
    before = rows_of(path)
    store = SqliteStore(path)
    assert [hit.session_id for hit in await store.search("generating")] == [SESSION]
    await store.close()
    shape = shape_of(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'fts5(', 'unheard(') WHERE name = 'search_text'"
        )
        connection.execute(f"PRAGMA user_version = {schema.FORMAT_VERSION - 1}")
        connection.commit()
    store = SqliteStore(path)
    await (await store.open(SESSION)).close()
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'unheard(', 'fts5(') WHERE name = 'search_text'"
        )
        connection.commit()

    assert rows_of(path) == before and shape_of(path) == shape
    await check_ends(SqliteStore(path, durability="process"))


async def test_an_older_file_is_read_as_it_is_and_nothing_is_written(tmp_path: Path) -> None:
    """Listing, open operations, opening, searching, snapshots, copies of every kind: without a change to the file."""
    path = older(tmp_path)
    before = content(path.parent)
    store = SqliteStore(path)

    assert [info.id for info in await store.list()] == [OTHER, SESSION]
    operations = await store.open_operations()
    assert len(operations) == OPEN
    storage = await store.open(SESSION, read_only=True)
    rows, stats = await stored(storage), storage.stats()
    assert stats.entries == sum(1 for each in await storage.scan()) and stats.usage.rows == len(await storage.usage())
    await storage.close()
    session = await open_session(store, session_id=SESSION, read_only=True)
    found = [hit.entry_id for hit in await session.search("steered", scan=True)]
    assert sorted(session.lanes())[:2] == ["aborting", "accepted"] and found == []
    await session.backup(tmp_path / "backup", session_id=SESSION)
    await session.fork(JsonlStore(tmp_path / "forks"), session_id="fork")
    await session.close()
    await store.export(SESSION, tmp_path / "export.jsonl")
    await store.close()

    assert content(path.parent) == before
    for copy in (JsonlStore(tmp_path / "backup"), JsonlStore.for_file(tmp_path / "backup" / f"{SESSION}.jsonl")):
        storage = await copy.open(SESSION, read_only=True)
        assert await stored(storage) == rows and storage.stats() == stats
        await copy.close()
    migrated = SqliteStore(path)
    storage = await migrated.open(SESSION)
    assert await stored(storage) == rows and storage.stats() == stats
    assert await migrated.open_operations() == operations
    await migrated.close()


@pytest.mark.parametrize("verb", ["create", "delete", "search", "load", "optimize"])
async def test_whatever_else_writes_to_the_file_migrates_it_first(tmp_path: Path, verb: str) -> None:
    path = older(tmp_path)
    store = SqliteStore(path)
    if verb == "create":
        await store.create("third")
    elif verb == "delete":
        await store.delete(OTHER)
    elif verb == "search":
        assert [hit.session_id for hit in await store.search("generating")] == [SESSION]
    elif verb == "load":
        await store.export(SESSION, tmp_path / "export.jsonl")
        assert format_of(path) == 1
        await store.import_session(tmp_path / "export.jsonl", session_id="third")
    else:
        await store.optimize()
    await store.close()

    assert format_of(path) == schema.FORMAT_VERSION
    await check_ends(SqliteStore(path, durability="process"))


async def test_a_file_with_its_log_is_migrated_with_what_is_in_the_log(tmp_path: Path) -> None:
    path, copy = older(tmp_path), tmp_path / "killed"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('UPDATE session SET metadata = \'{"in":"log"}\' WHERE id = ?', (OTHER,))
        connection.commit()
        shutil.copytree(path.parent, copy)
    store = SqliteStore(copy / "x.db")
    storage = await store.open(OTHER)

    assert storage.info.metadata == {"in": "log"}
    await store.close()
    assert format_of(copy / "x.db") == schema.FORMAT_VERSION


async def test_a_death_at_any_statement_leaves_a_whole_file_of_one_format(tmp_path: Path) -> None:
    """Of a chain of three steps, one of which is a later version's: between the steps, and within each."""
    path = older(tmp_path)
    before = rows_of(path)
    dead: list[Path] = []
    rows = 0

    def died(statement: str) -> None:
        nonlocal rows
        if statement.startswith("INSERT INTO value VALUES"):
            rows += 1
            if rows % 50 != 1:
                return
        dead.append(tmp_path / f"dead-{len(dead)}")
        shutil.copytree(path.parent, dead[-1])  # what is on the disk, its log included: nobody closes anything

    with later_version(noted("one")) as newest:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.set_trace_callback(died)
            sqlite_migrate.migrate(connection, str(path), lambda text: None)
            connection.set_trace_callback(None)
        found = [format_of(each / "x.db") for each in dead]
        assert sorted(set(found)) == [1, 2, 3] and found == sorted(found) and len(found) >= 16
        for each in dead:
            store = SqliteStore(each / "x.db")
            await (await store.open(OTHER)).close()
            await store.close()
            assert format_of(each / "x.db") == newest == 4
            assert rows_of(each / "x.db") == before, each
            assert shape_of(each / "x.db") == shape_of(path)
    with closing(sqlite3.connect(path)) as connection:
        (bytes_of_values,) = connection.execute("SELECT sum(length(payload)) FROM value").fetchone()
        assert connection.execute("SELECT sum(bytes) FROM one").fetchall() == [(bytes_of_values,)]


async def test_a_step_that_fails_leaves_those_before_it_done(tmp_path: Path) -> None:
    """And the file is a good one of the format that was reached, to be read here or by a version that stops there."""
    path = older(tmp_path)
    before = rows_of(path)

    def broken(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM value")
        raise sqlite3.OperationalError("a test")

    with later_version(broken):
        store = SqliteStore(path)
        with pytest.raises(Exception, match="a test"):
            await store.open(SESSION)
        reader = await store.open(SESSION, read_only=True)
        assert len(await reader.values("op.meta")) == OPEN
        await store.close()
    assert format_of(path) == schema.FORMAT_VERSION and rows_of(path) == before
    with later_version(noted("one")) as newest:
        store = SqliteStore(path)
        await (await store.open(SESSION)).close()
        await store.close()
        assert format_of(path) == newest
    with pytest.raises(UnsupportedFormat, match=f"has format {newest}; this version of agentlane knows up to"):
        await SqliteStore(path).open(SESSION, read_only=True)


@pytest.mark.parametrize("name", ["sqlite-process", "sqlite-disk"])
async def test_every_call_of_a_migrating_open_may_fail(tmp_path: Path, name: str, whole: bool) -> None:
    """It raises, or did it after all; then the file is a whole one of some format, holds the same, and is migrated."""
    before = rows_of(older(tmp_path))
    nth, step = 1 + name.endswith("-disk"), STEP_WHOLE if whole else STEP
    failures = 0
    while True:
        folder = tmp_path / str(nth)
        path = older(folder)
        faults = Faults(KINDS[name], nth=nth, permanent=nth // step % 2 == 1)
        there = descriptors()
        with medium_at(name, folder, faults) as medium:
            store = medium.store()
            try:
                await (await store.open(SESSION)).close()
            except Exception as error:
                failures += 1
                judge(faults, "a migrating open", error)
            await store.close()
            faults.lift()
            struck = list(faults.struck)
            reader = medium.store()
            storage = await reader.open(SESSION, read_only=True)
            assert storage.stats().entries == len(await storage.scan()), struck
            await reader.close()
            again = medium.store()
            await (await again.open(SESSION)).close()
            await again.close()
        assert descriptors() == there, f"left open after {struck}"
        assert set(content(path.parent)) == {path.name}, struck
        assert rows_of(path) == before and format_of(path) == schema.FORMAT_VERSION, struck
        shutil.rmtree(folder)
        if not struck:
            break
        nth += step
    assert failures > 3


class FullDisk(Faults):
    """No write finds space, until that is mended."""

    def meet(self, call: str) -> Kind | None:
        return Kind("full", ("db.write",), sqlite3.SQLITE_FULL) if call == "db.write" and not self._lifted else None


async def test_a_full_disk_leaves_the_old_file_usable(tmp_path: Path) -> None:
    path = older(tmp_path)
    faults = FullDisk()
    with medium_at("sqlite-disk", tmp_path, faults) as medium:
        store = medium.store()
        with pytest.raises(OSError) as caught:
            await store.open(SESSION)
        assert caught.value.errno == errno.ENOSPC
        reader = await store.open(SESSION, read_only=True)
        assert len(await reader.values("op.state")) == OPEN
        await reader.close()
        faults.lift()
        assert format_of(path) == 1
        owner = await store.open(SESSION)  # the same store, once there is space
        await owner.close()
        await store.close()
    assert format_of(path) == schema.FORMAT_VERSION


async def test_two_that_open_at_once_migrate_once(tmp_path: Path) -> None:
    path = older(tmp_path)
    stores = [SqliteStore(path), SqliteStore(path)]
    storages = await asyncio.gather(stores[0].open(SESSION), stores[1].open(OTHER))
    told = [each for storage in storages for each in storage.findings if "migrated" in each]

    assert len(told) >= 1 and len(set(told)) == 1
    for store in stores:
        await store.close()
    assert format_of(path) == schema.FORMAT_VERSION


async def test_beside_a_migration_others_are_refused_and_readers_read(tmp_path: Path) -> None:
    """The lock is held: another process can open the file for reading alone, and sees it as it was."""
    path = older(tmp_path)
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(database: sqlite3.Connection) -> None:
        noted("one")(database)
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    with later_version(held) as newest:
        store = SqliteStore(path)
        opening = asyncio.create_task(store.open(SESSION))
        await begun.wait()
        seen = await child(
            f"""
import asyncio
from agentlane.errors import StoreOwned
from agentlane.storage import SqliteStore
async def main():
    store = SqliteStore({str(path)!r})
    reader = await store.open({SESSION!r}, read_only=True)
    print(len(await reader.values("op.meta")), reader.stats().entries)
    try:
        await store.open({SESSION!r})
    except StoreOwned as error:
        print(error.code)
    await store.close()
asyncio.run(main())
"""
        )
        go_on.set()
        storage = await opening
        assert seen.split() == [str(OPEN), str(storage.stats().entries), StoreOwned.code]
        await store.close()
        assert format_of(path) == newest


async def test_a_reader_that_was_there_before_goes_on_beside_a_migration(tmp_path: Path) -> None:
    path = older(tmp_path)
    store = SqliteStore(path)
    reader = await store.open(SESSION, read_only=True)
    page = await reader.scan(limit=3)
    owner = await SqliteStore(path).open(SESSION)

    assert await reader.scan(after_seq=page[-1].seq) == await owner.scan(after_seq=page[-1].seq) != []
    assert await stored(reader) == await stored(owner) and reader.stats() == owner.stats()
    await owner.close()
    await store.close()


async def test_stats_are_kept_by_every_commit(tmp_path: Path) -> None:
    """What a session's row says is what its rows add up to, after all that writes them."""
    path = older(tmp_path)
    await check_ends(SqliteStore(path, durability="process"))
    store = SqliteStore(path)
    await store.export(SESSION, tmp_path / "e.jsonl")
    await store.import_session(tmp_path / "e.jsonl", session_id="loaded")
    await store.close()

    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT key, id, stats FROM session ORDER BY id").fetchall()
        counted = [sqlite_migrate.stats_text(sqlite_migrate.counted_stats(connection, key)) for key, _, _ in kept]
    assert [stats for _, _, stats in kept] == counted
    assert {id: stats for _, id, stats in kept}["loaded"] == {id: stats for _, id, stats in kept}[SESSION] != "{}"


async def test_a_file_that_may_not_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = older(tmp_path)
    before = content(path.parent)
    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK)  # root may write everywhere
    store = SqliteStore(path)

    assert len(await store.open_operations()) == OPEN
    with pytest.raises(PermissionError):
        await store.open(SESSION)
    assert [hit.session_id for hit in await store.search("generating")] == [SESSION]
    storage = await store.open(SESSION, read_only=True)
    assert len(await storage.values("op.state")) == OPEN
    await store.close()
    assert content(path.parent) == before
