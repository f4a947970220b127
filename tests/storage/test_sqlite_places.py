"""Claim: where rows stand in the SQLite file keeps what is done near them cheap: a large value is not read for what is
looked up beside it, no query reads a table or sorts, and one changed number of a segment stops no other session.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from agentlane import storage
from agentlane.data.writes import Address, AppendElement, DeleteList, DeleteValue, InsertEntry, SetValue, Write
from agentlane.errors import CorruptSession, InvalidWrite
from agentlane.storage import MemoryStore, SqliteStore, schema
from agentlane.storage import damaged_tables as tables
from agentlane.storage.contract import ElementRow, ValueRow
from tests.storage.faults.media import medium_at
from tests.storage.faults.planned import Faults
from tests.storage.sqlite_samples import entry, put, sql
from tests.storage.verified import rows_of

OPERATION = b'{"lane":"main","started_at":%d}'
MESSAGE = b'{"role":"user","content":[]}'


# What lies beside large values.


def beside(number: int) -> list[Write]:
    """Writes of a commit whose addresses lie on both sides of ``m``, and between its elements."""
    return [
        SetValue(Address("app.a", f"{number:03}"), b"1"),
        SetValue(Address("app.m", f"l{number:03}"), b"1"),
        SetValue(Address("app.m", f"n{number:03}"), b"1"),
        AppendElement(Address("app.m", "m"), b"%d" % number),
        SetValue(Address("app.z", f"{number:03}"), b"1"),
    ]


async def calls_beside(folder: Path, size: int) -> int:
    """How often a file is read by commits and reads beside a value, and an element of a list, of so many bytes."""
    faults = Faults()
    large = b'"%s"' % (b"x" * size)
    with medium_at("sqlite-process", folder, faults) as medium:
        store = medium.store()
        await store.create("s")
        storage = await store.open("s")
        await storage.submit(beside(0))
        await storage.submit([SetValue(Address("app.m", "m"), large), AppendElement(Address("app.m", "m"), large)])
        await storage.submit(beside(2))
        await store.close()  # what is read from here on was in no cache
        faults.calls.clear()
        store = medium.store()
        storage = await store.open("s")
        for number in (1, 3, 0):
            await storage.submit(beside(number))
        await storage.submit([DeleteValue(Address("app.m", "l002")), DeleteList(Address("app.n", "m"))])
        assert await storage.value(Address("app.m", "n002")) == b"1"
        assert list(await storage.values("app.m", "n")) == ["n000", "n001", "n002", "n003"]
        assert await storage.lists("app.m") == ["m"]
        newest = await storage.elements(Address("app.m", "m"), limit=3, reverse=True)
        assert [each.payload for each in newest] == [b"0", b"3", b"1"]
        reads = faults.calls["db.read"]
        assert await storage.value(Address("app.m", "m")) == large
        assert faults.calls["db.read"] - reads >= size // schema.PAGE_BYTES  # what is read is counted
        await store.close()
    return reads


async def test_what_is_beside_a_large_value_is_read_and_written_without_reading_it(tmp_path: Path) -> None:
    small, large = [await calls_beside(tmp_path / str(size), size) for size in (10, 1_000_000)]

    assert small > 10 and abs(large - small) <= 12, (small, large)


# Plans.


def texts() -> Iterator[tuple[str, str]]:
    """Every statement on values and lists, by name."""
    for module in (schema, tables):
        for name, value in sorted(vars(module).items()):
            several = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
            for text in several:
                statement = isinstance(text, str) and re.match(r"\s*(SELECT|INSERT|DELETE|UPDATE)", text)
                if statement and re.search(r"\b(value|element)\b", text) and "BEFORE_PLACES" not in name:
                    yield name, text


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_statement_on_values_and_lists_reads_a_table_or_sorts(analyzed: bool) -> None:
    """Whatever SQLite knows of how many rows there are."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in schema.CREATE:
            database.execute(statement)
        for key in range(1, 4):
            database.execute(schema.INSERT_SESSION, (f"s{key}", 1, "{}"))
            for number in range(200):
                row = (key, ("result", "op.state", "op.meta", "app.a")[number % 4], f"k{number}", number + 1, "1")
                statement, place = schema.setting(key, row[1])
                database.execute(statement, (*place, *row))
                database.execute(schema.INSERT_ELEMENT, (key, "app.l", f"k{number % 5}", number + 1, "1"))
        if analyzed:
            database.execute("ANALYZE")
        found = dict(texts())
        assert len(found) >= 20 and {"SET_OPERATION", "DELETE_LIST", "SELECT_OPEN_OPERATIONS", "SELECT_LISTS"} <= set(
            found
        )
        for name, text in texts():
            plan = [each for *_, each in database.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?"))]
            wrong = [each for each in plan if re.match(r"SCAN (value|element)|USE TEMP", each)]
            assert wrong == [], (name, plan)
            if name == "SELECT_OPEN_OPERATIONS":  # not each session in turn
                assert plan[0] == "SEARCH value USING INTEGER PRIMARY KEY (rowid<?)", plan


def test_arguments_of_statements_have_neither_names_nor_numbers() -> None:
    """Python 3.12 and newer warn of a sequence of arguments for such, and 3.14 refuses it."""
    modules = list(Path(storage.__path__[0]).glob("*.py"))
    assert len(modules) > 50
    assert [each.name for each in modules if re.search(r"\?[0-9]", each.read_text())] == []


# Open operations.


async def test_open_operations_stand_before_everything_and_those_of_other_files_stay_where_they_were(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path, durability="process")
    for name in ("a", "b"):
        await store.create(name)
        storage = await store.open(name)
        for number in range(3):
            await storage.submit([put("x"), SetValue(Address("op.meta", f"{name}{number}"), OPERATION % number)])
        await storage.submit([DeleteValue(Address("op.meta", f"{name}1")), put("y")])
        await storage.submit([SetValue(Address("op.meta", f"{name}2"), OPERATION % 9)])
    listed = [(each.session_id, each.operation_id) for each in await store.open_operations()]
    await store.close()

    assert listed == [("a", "a0"), ("b", "b0"), ("a", "a2"), ("b", "b2")]
    with sql(path) as database:
        rows = database.execute("SELECT place < 0, namespace = 'op.meta' FROM value").fetchall()
        assert len(rows) == 8 and all(first == second for first, second in rows)
        assert database.execute("SELECT max(place) FROM value WHERE place < 0").fetchone() == (-1,)
        database.execute("UPDATE value SET place = 7 WHERE key = 'b0'")
    store = SqliteStore(path)
    for name, found in (("a", []), ("b", [("x.db: value op.meta/b0", False)])):
        findings = (await store.verify(name)).findings
        assert [(each.place, each.loses) for each in findings if each.code == "open_operations"] == found
    await store.close()


# Numbers of segments.


def said(entry_id: str, parent: str | None = None) -> InsertEntry:
    return entry(entry_id, parent, MESSAGE)


async def two_sessions(path: Path) -> None:
    store = SqliteStore(path, durability="process")
    for name in ("talk", "other"):
        await store.create(name)
        storage = await store.open(name)
        await storage.submit([said(f"{name}-1"), said(f"{name}-2", f"{name}-1"), said(f"{name}-3", f"{name}-1")])
    await store.close()


async def test_a_changed_number_of_a_segment_stops_no_other_session(tmp_path: Path, whole: bool) -> None:
    """One bit of it, each that makes it greater than numbers are, or nearly: they commit, branch off, fork, verify."""
    await two_sessions(tmp_path / "made.db")
    for bit in (*range(24, 63, 3), 31, 62) if whole else (24, 30, 31, 32, 47, 62):
        path = tmp_path / f"{bit}.db"
        shutil.copyfile(tmp_path / "made.db", path)
        with sql(path) as database:
            database.execute(f"UPDATE segment SET id = id | {1 << bit} WHERE id = 1")
        store = SqliteStore(path, durability="process")
        assert (await store.verify("other")).findings == (), bit
        findings = [str(each) for each in (await store.verify("talk")).findings]
        assert sum(f"segment, id {1 | 1 << bit}" in each for each in findings) == 1, (bit, findings)
        storage = await store.open("other")
        await storage.submit([said("root"), said("on", "other-2"), said("off", "other-1")])
        page = await storage.path("off", newest_first=True)
        assert [each.id for each in page] == ["off", "other-1"]
        await store.fork("other", session_id="fork")
        await store.repair("talk", session_id="mended")
        for name, entries in (("mended", 3), ("other", 6), ("fork", 6)):
            assert len(await (await store.open(name, read_only=True)).scan()) == entries, (bit, name)
        for name in ("other", "fork", "mended"):
            assert (await store.verify(name)).findings == (), (bit, name)
        await store.close()


async def test_numbers_of_segments_are_never_given_twice_nor_run_out(tmp_path: Path) -> None:
    """Whatever one of the places that tell of them says: the table, the entries, SQLite's own note of the last one."""
    for statement in (
        "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'segment'",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'segment'",
        "UPDATE sqlite_sequence SET seq = NULL",
        "DELETE FROM sqlite_sequence",
        "DELETE FROM segment WHERE id = 4",
        "DELETE FROM sqlite_sequence; DELETE FROM segment WHERE id = 4",
        f"INSERT INTO segment (id, session) VALUES ({schema.SEGMENT_MAX}, 1)",
        f"INSERT INTO segment (id, session) VALUES ({2**63 - 1}, 1)",
    ):
        path = tmp_path / "x.db"
        await two_sessions(path)
        with sql(path) as database:
            database.executescript(statement)
        store = SqliteStore(path, durability="process")
        storage = await store.open("other")
        await storage.submit([said("root"), said("on", "other-2"), said("off", "other-1")])
        await storage.submit([said("later"), said("last", "root")])
        await store.close()
        with sql(path) as database:
            ids = dict(database.execute("SELECT id, place >> 32 FROM entry").fetchall())
            assert len({ids[each] for each in ("root", "off", "later", "talk-1", "talk-3", "other-1", "other-3")}) == 7
            assert ids["on"] == ids["other-2"] == ids["other-1"] and ids["last"] == ids["root"], statement
        path.unlink()


async def test_a_segment_that_no_greater_number_is_left_for_is_refused_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await two_sessions(path)
    last = schema.SEGMENT_MAX << schema.POSITION_BITS
    with sql(path) as database:
        database.execute("UPDATE segment SET id = ? WHERE id = 3", (schema.SEGMENT_MAX,))
        database.execute("UPDATE entry SET place = place - (3 << 32) + ? WHERE place >> 32 = 3", (last,))
    store = SqliteStore(path, durability="process")
    assert (await store.verify("other")).findings[0].code == "entry_path"  # what grew from it is older
    storage = await store.open("other")
    with pytest.raises(InvalidWrite, match="no number is left for a segment that grows from segment 2147483647"):
        await storage.submit([said("off", "other-1")])
    await storage.submit([said("root"), said("on", "other-2")])
    await store.close()


async def test_a_segment_that_grows_from_what_is_no_place_is_told_and_refused(tmp_path: Path) -> None:
    """A page of another table can stand where the segments' belongs: what is read of it is of any type."""
    path = tmp_path / "x.db"
    await two_sessions(path)
    definition = "CREATE TABLE i (id INTEGER PRIMARY KEY, session, base)"
    on_its_pages(path, "segment", definition, "UPDATE i SET base = 'x' WHERE id = 2")
    store = SqliteStore(path, durability="process")
    told = [each.text for each in (await store.verify("talk")).findings if each.code == "entry_path"]
    assert len(told) == 1 and "behind 'x', which is no place" in told[0]
    storage = await store.open("talk", read_only=True)
    with pytest.raises(CorruptSession, match="segment 2: what it grows from is of another type"):
        await storage.path("talk-3", newest_first=True)
    copy = MemoryStore()
    assert (await store.repair("talk", copy)).losses == ()
    assert (await copy.verify("talk")).findings == ()
    await store.close()


# Values of a damaged file.


async def with_values(path: Path) -> tuple[list[ValueRow], list[ElementRow]]:
    store = SqliteStore(path, durability="process")
    for name in ("s", "t"):
        await store.create(name)
        storage = await store.open(name)
        for number in range(40):
            payload = b'"%s-%02d"' % (name.encode(), number)
            await storage.submit(
                [SetValue(Address("app.a", f"k{number:02}"), payload), AppendElement(Address("app.l", "l"), payload)]
            )
    rows = await rows_of(await store.salvage("s"))
    await store.close()
    return [each for each in rows if isinstance(each, ValueRow)], [
        each for each in rows if isinstance(each, ElementRow)
    ]


async def test_an_operation_at_the_first_place_there_is_stops_no_other(tmp_path: Path) -> None:
    """Only damage can bring one there: the next ones stand behind it, and are found."""
    store = SqliteStore(tmp_path / "x.db", durability="process")
    await store.create("s")
    for number in range(4):
        session = await store.open("s")
        meta = b'{"lane":"b%d","started_at":%d}' % (number, number)
        await session.submit([SetValue(Address("op.meta", f"op-{number}"), meta)])
        await session.close()
        if not number:
            with sql(tmp_path / "x.db") as other:
                other.execute(f"UPDATE value SET place = {-(1 << 62)} WHERE namespace = 'op.meta'")
    assert [each.operation_id for each in await store.open_operations()] == [f"op-{number}" for number in range(4)]
    await store.close()
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        places = database.execute("SELECT place FROM value WHERE namespace = 'op.meta' ORDER BY key").fetchall()
    assert places == [(-(1 << 62) + number,) for number in range(4)]


@pytest.mark.parametrize("table", ["value", "element"])
async def test_rows_and_their_index_are_held_to_each_other(tmp_path: Path, table: str) -> None:
    """With the index gone, changed or short of a row nothing is lost; what the row itself says otherwise is told."""
    made = tmp_path / "made.db"
    values, elements = await with_values(made)
    rows = values if table == "value" else elements
    row = f"place = (SELECT place FROM {table} WHERE session = 1 AND payload LIKE '%-07%')"
    key = "key = 'k99'" if table == "value" else "seq = 9999"
    for damage, told, loses in (
        ("DELETE FROM i", "is not in the index", False),
        (f"DELETE FROM i WHERE {row}", "is not in the index", False),
        (f"UPDATE i SET {key} WHERE {row}", "in the index: one of them was changed", True),
        (f"UPDATE i SET session = 2, {key} WHERE {row}", "is not in the index", False),
        (f"UPDATE i SET place = 9999 WHERE {row}", "no such row of the session can be read at place 9999", True),
    ):
        path = tmp_path / "x.db"
        shutil.copyfile(made, path)
        columns = {"value": "session, namespace, key, place", "element": "session, namespace, key, seq, place"}[table]
        definition = f"CREATE TABLE i ({columns}, PRIMARY KEY ({columns})) WITHOUT ROWID"
        on_its_pages(path, f"sqlite_autoindex_{table}_1", definition, damage)
        store = SqliteStore(path)
        salvage = await store.salvage("s")
        found = await rows_of(salvage)
        assert [each for each in found if isinstance(each, type(rows[0]))] == rows and len(rows) == 40, damage
        assert any(told in str(each) for each in salvage.findings.all), (damage, salvage.findings.all)
        assert salvage.trusted_from == (salvage.last_seq + 1 if loses else 0), damage
        report = await store.repair("s", MemoryStore())
        assert report.session_id == "s"
        await store.close()
        path.unlink()


def on_its_pages(path: Path, name: str, definition: str, statement: str) -> None:
    """Run a statement on a table ``i`` that stands on the pages of another table, or of an index."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA writable_schema = ON")
        (page,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
        database.execute("INSERT INTO sqlite_schema VALUES ('table', 'i', 'i', ?, ?)", (page, definition))
        database.execute("PRAGMA writable_schema = RESET")
        database.execute(statement)
        database.execute("PRAGMA writable_schema = ON")
        database.execute("DELETE FROM sqlite_schema WHERE name = 'i'")
        database.execute("PRAGMA journal_mode = WAL")
