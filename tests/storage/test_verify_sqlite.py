"""Claim: whatever is wrong with a SQLite file, ``verify`` names it by kind and place and gives what can be read; its
files are left as they are.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentlane.data.findings import VerifyReport
from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import UnknownSession
from agentlane.storage.contract import EntryRow, LedgerRow, Row, ValueRow
from agentlane.storage.schema import PAGE_BYTES
from agentlane.testing.clock import ManualClock
from tests.storage.test_sqlite_bytes import GROUPS, SUFFIXES, Sample, store_at
from tests.storage.verified import counted, left_alone, rows_of, rows_without

AT = ManualClock().now_ms()


@pytest.fixture
async def sample(tmp_path: Path) -> Sample:
    return await Sample(tmp_path).make()


async def look(path: Path, session_id: str = "s") -> tuple[VerifyReport, list[Row]]:
    store = store_at(path)
    with left_alone(path.parent):
        report = await store.verify(session_id)
        rows = await rows_of(await store.salvage(session_id))
    kinds = [type(row).__name__ for row in rows]
    assert counted(report) == tuple(kinds.count(each) for each in ("EntryRow", "LedgerRow", "ElementRow", "ValueRow"))
    await store.close()
    return report, rows


def whole_rows() -> list[Row]:
    return rows_without(GROUPS, set(), at=AT)


def codes(report: VerifyReport) -> list[str]:
    return [each.code for each in report.findings]


def changed(sample: Sample, *statements: str) -> Path:
    path = sample.put({"": sample.closed})
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.execute("PRAGMA journal_mode = WAL")
    for each in SUFFIXES[1:]:
        Path(f"{path}{each}").unlink(missing_ok=True)
    return path


async def test_good_files_have_no_findings_and_all_their_rows(sample: Sample) -> None:
    stale = bytes(reversed(sample.live["-shm"]))
    for files in (
        {"": sample.closed},
        sample.live,
        {**sample.live, "-shm": b""},
        {**sample.live, "-shm": stale},
        {"": sample.closed, "-shm": stale},
        {"": sample.closed, "-wal": b""},
    ):
        report, rows = await look(sample.put(files))
        assert report.findings == (), report
        assert rows == whole_rows()
        assert report.last_seq == sum(map(len, GROUPS))
    with pytest.raises(UnknownSession):
        await store_at(sample.put({"": sample.closed})).verify("nobody")


DAMAGES: dict[str, tuple[list[str], list[tuple[str, str, bool]]]] = {
    "the mark of the application": (
        ["PRAGMA application_id = 7"],
        [("database", "PRAGMA application_id", False)],
    ),
    "the mark of the format": (
        ["PRAGMA user_version = 0"],
        [("database", "PRAGMA user_version", False), ("database", "PRAGMA user_version", False)],
    ),
    "a segment is gone": (
        ["DELETE FROM segment WHERE base IS NOT NULL"],
        [("segment", "table entry, place 8589934592", False)],
    ),
    "a segment grows from elsewhere": (
        ["UPDATE segment SET base = base + 1 WHERE base IS NOT NULL"],
        [("entry_path", "table entry, place 8589934592", False)],
    ),
    "a segment grows from itself": (
        ["UPDATE segment SET base = id << 32 WHERE base IS NOT NULL"],
        [("entry_path", "table entry, place 8589934592", False)],
    ),
    "an entry stands elsewhere": (
        ["UPDATE entry SET place = place + 7 WHERE id = 'e3'"],
        [("entry_path", "table entry, place 4294967306", False)],
    ),
    "an entry has another parent": (
        ["UPDATE entry SET parent_id = 'e0' WHERE id = 'e2'"],
        [("entry_path", "table entry, place 4294967298", False)],
    ),
    "an entry has a parent that is not there": (
        ["UPDATE entry SET parent_id = 'nobody' WHERE id = 'e3'"],
        [("entry_path", "table entry, place 4294967299", False), ("missing_parent", "place 4294967299", True)],
    ),
    "a parent is of no text": (
        ["UPDATE entry SET parent_id = CAST(x'ff' AS TEXT) WHERE id = 'e2'"],
        [("entry_path", "table entry, place 4294967298", False)],
    ),
    "a parent is of no text, and none stands before": (
        ["UPDATE entry SET parent_id = CAST(x'ff' AS TEXT) WHERE id = 'e0'"],
        [("missing_parent", "table entry, place 4294967296", True)],
    ),
    "a time that is none": (
        [
            f"UPDATE entry SET at = at + {1 << 62} WHERE id = 'e1'",
            f"UPDATE usage SET at = -{1 << 62} - at WHERE id = 'u1'",
        ],
        [("undecodable", "table entry, place 4294967297", True), ("undecodable", "table usage, seq 12", True)],
    ),
    "a number that is none": (
        [f"UPDATE entry SET seq = {1 << 62} WHERE id = 'e3'"],
        [
            ("undecodable", "table session, id s", True),
            ("stats", "", True),
        ],
    ),
    "the number of the newest commit is none": (
        [f"UPDATE session SET seq = seq + {1 << 62}"],
        [("session_row", "table session, id s", True)],
    ),
    "the session has another number": (
        ["UPDATE session SET key = 3"],
        [("unowned_rows", "table segment, session 1", False), ("session_row", "table session, id s", False)],
    ),
    "the session has another number, and rows of others have none": (
        ["UPDATE session SET key = 3", "INSERT INTO value VALUES (NULL, 77, 'app.test', 'a', 1, '1')"],
        [
            ("unowned_rows", "table segment, session 1", False),
            ("unowned_rows", "table value, session 77", False),
            ("session_row", "table session, id s", True),
            ("stats", "table session, id s", True),
        ],
    ),
    "an entry is its own ancestor": (
        ["UPDATE entry SET parent_id = 'e3' WHERE id = 'e1'"],
        [("entry_path", "table entry, place 4294967297", False), ("entry_path", "place 4294967297", False)],
    ),
    "an entry is gone": (
        ["DELETE FROM entry WHERE id = 'e2'"],
        [
            ("stats", "table session, id s", True),
            ("entry_path", "table entry, place 4294967299", False),
            ("missing_parent", "place 4294967299", True),
        ],
    ),
    "a payload is no JSON": (
        ["UPDATE entry SET payload = '{' WHERE id = 'e1'"],
        [("undecodable", "entry e1", True)],
    ),
    "a payload has a newline": (
        ["UPDATE entry SET payload = '{' || char(10) || '}' WHERE id = 'other'"],
        [("undecodable", "table entry, place 8589934592", True)],
    ),
    "a value is no JSON": (
        ["UPDATE value SET payload = 'x' WHERE key = 'a'"],
        [("undecodable", "value app.test/a", True)],
    ),
    "a value is of no text": (
        ["UPDATE value SET payload = CAST(x'ff' AS TEXT) WHERE key = 'a'"],
        [("undecodable", "value app.test/a", True)],
    ),
    "an id is of no text": (
        ["UPDATE entry SET id = CAST(x'ff' AS TEXT) WHERE id = 'other'"],
        [("undecodable", "table entry, place 8589934592", True)],
    ),
    "an id is in both tables": (
        ["UPDATE usage SET id = 'e1' WHERE id = 'u1'"],
        [("duplicate_id", "table entry, place 4294967297", False), ("duplicate_id", "table usage, seq 12", True)],
    ),
    "a row of the ledger of an unknown kind": (
        ["UPDATE usage SET kind = 'gift' WHERE id = 'u1'"],
        [("newer_format", "table usage, seq 12", True)],
    ),
    "the metadata is no JSON": (
        ["UPDATE session SET metadata = 'x'"],
        [("session_row", "table session, id s", True)],
    ),
    "the sums are others": (
        ["UPDATE session SET stats = '{\"entries\":4}'"],
        [("stats", "table session, id s", False)],
    ),
    "the sums are none": (
        ["UPDATE session SET stats = ''"],
        [("stats", "table session, id s", False)],
    ),
    "the mark of an older format": (
        ["PRAGMA user_version = 1"],
        [("database", "PRAGMA user_version", False)],
    ),
    "the mark of the format before": (
        ["PRAGMA user_version = 2"],
        [("database", "PRAGMA user_version", False)],
    ),
    "the row of the session is gone": (
        ["DELETE FROM session"],
        [("unowned_rows", "table segment, session 1", False), ("session_row", "table session, id s", True)],
    ),
    "rows of no session": (
        ["INSERT INTO value VALUES (NULL, 77, 'app.test', 'a', 1, '1')"],
        [("unowned_rows", "table value, session 77", False)],
    ),
    "a load that was killed": (
        ["INSERT INTO element VALUES (NULL, 78, '', '', 0, '\"\"')", "INSERT INTO segment (session) VALUES (78)"],
        [("half_loaded", "table segment, session 78", False)],
    ),
    "a table is missing": (
        ["DROP TABLE element"],
        [("database", "x.db", True)],
    ),
}


MISSING = {
    "an entry is gone": 1,
    "a payload has a newline": 1,
    "a value is of no text": 1,
    "an id is of no text": 1,
    "an id is in both tables": 1,
    "a number that is none": 1,
    "the session has another number, and rows of others have none": 10,
    "a row of the ledger of an unknown kind": 1,
    "a table is missing": 10,
}
"""How many rows cannot be read."""


@pytest.mark.parametrize("what", DAMAGES)
async def test_what_is_wrong_in_tables_is_named(sample: Sample, what: str) -> None:
    statements, want = DAMAGES[what]
    report, rows = await look(changed(sample, *statements))
    assert [(each.code, each.loses) for each in report.findings] == [(code, loses) for code, _, loses in want]
    assert all(place in each.place for each, (_, place, _) in zip(report.findings, want, strict=True))
    assert len(rows) == len(whole_rows()) - MISSING.get(what, 0)
    if not statements[0].startswith(("UPDATE entry", "UPDATE value")) and what not in MISSING:
        assert rows == whole_rows()


async def test_rows_that_go_backwards_end_the_part_that_can_be_read(sample: Sample, whole: bool) -> None:
    """As SQLite gives them of a page of which only half was written, or that holds what belongs on another."""
    content = sample.closed
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    step = 2 if whole else 5
    for place in range(1, len(pages)):
        half = pages[place][: PAGE_BYTES // 2] + bytes(PAGE_BYTES // 2)
        for other in (half, *pages[1 + place % step :: step]):
            damaged = [*pages[:place], other, *pages[place + 1 :]]
            path = sample.put({"": b"".join(damaged)})
            try:
                report, rows = await look(path)
            except UnknownSession:
                continue
            if len(rows) < len(whole_rows()):
                assert report.findings, place


async def test_a_file_that_is_none_or_newer_is_named(sample: Sample) -> None:
    for content, code, loses in (
        (b"", "not_a_session", True),
        (b"hello, this is no database" * 100, "not_a_session", True),
        (sample.closed[:60], "not_a_session", True),
        (sample.closed[:60] + (99).to_bytes(4, "big") + sample.closed[64:], "newer_format", False),
    ):
        report, rows = await look(sample.put({"": content}))
        assert [(each.code, each.loses) for each in report.findings] == [(code, loses)], report
        assert rows == []
    path = sample.put({})
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (a)")
    report, _ = await look(path)
    assert [(each.code, each.loses) for each in report.findings] == [("not_a_session", False)]


async def test_of_a_damaged_page_the_rows_on_the_others_are_read(tmp_path: Path, whole: bool) -> None:
    """Each page overwritten in turn: what is lost is told, and what is not is there."""
    path = tmp_path / "x.db"
    store = store_at(path)
    await store.create("t")
    await store.create("s")
    for name in ("t", "s"):
        storage = await store.open(name)
        tip = None
        for number in range(120):
            writes: list[Write] = [InsertEntry(f"{name}{number}", tip, "user", b'"%s"' % (b"x" * (number % 50 * 9)))]
            tip = f"{name}{number}"
            usage = Usage(input_tokens=number, output_tokens=1)
            writes.append(InsertUsage(UsageRow(id=f"u{name}{number}", kind="attempt", usage=usage)))
            writes.append(SetValue(Address("app.a", f"k{number}"), b'"%s"' % (b"v" * number)))
            writes.append(AppendElement(Address("app.l", f"l{number // 40}"), b"%d" % number))
            await storage.submit(writes)
        await storage.close()
    await store.close()
    content = path.read_bytes()
    report, all_rows = await look(path)
    assert report.findings == () and len(all_rows) == 480
    pages = len(content) // PAGE_BYTES
    read = 0
    with_ledger = [each for each in range(1, pages) if b"us60" in content[each * PAGE_BYTES : (each + 1) * PAGE_BYTES]]
    gaps = 0
    for page in sorted({*range(1, pages, 9 if whole else 23), *with_ledger}):
        damaged = bytearray(content)
        damaged[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = b"\xa5" * PAGE_BYTES
        path.write_bytes(damaged)
        try:
            report, rows = await look(path)
        except UnknownSession:  # the page of the sessions' rows; nothing says that there was one of this name
            continue
        assert report.findings, page
        missing = set(all_rows) - set(rows)
        assert set(rows) <= set(all_rows), page
        assert not missing or report.losses, (page, len(missing), report)
        read += len(rows) > 400
        ledger = [row.row.id for row in rows if isinstance(row, LedgerRow)]
        gaps += "us60" not in ledger and {"us0", "us119"} <= set(ledger)
    assert gaps > 0, "rows of the ledger behind damaged ones"
    assert read > pages // (18 if whole else 46)


async def test_flipped_bytes_are_found_where_sqlite_can_know(sample: Sample, whole: bool) -> None:
    for place in [*range(0, 100, 3 if whole else 13), *range(100, len(sample.closed), 499 if whole else 1999)]:
        damaged = bytearray(sample.closed)
        damaged[place] ^= 1 << place % 8
        try:
            report, rows = await look(sample.put({"": bytes(damaged)}))
        except UnknownSession:
            continue
        if not report.findings:  # a text or a number was changed into another
            with closing(sqlite3.connect(sample.folder / "x.db")) as database:
                assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], place
            assert len(rows) == len(whole_rows()), place


async def test_damaged_text_in_the_table_of_tables_is_passed_over(sample: Sample) -> None:
    """Also where SQLite's message about it is no text."""
    place = sample.closed.index(b"CREATE TABLE segment")
    damaged = sample.closed[:place] + b"CREATE \xa8\xa8\xa8\xa8\xa8" + sample.closed[place + 12 :]
    report, rows = await look(sample.put({"": damaged}))
    assert report.findings[0].place == "x.db: table sqlite_schema" and report.losses
    assert rows == whole_rows()


async def test_a_file_that_was_cut_is_damaged_and_what_is_left_of_it_is_read(sample: Sample) -> None:
    for size in range(100, len(sample.closed) - PAGE_BYTES, 3 * PAGE_BYTES + 11):
        report, rows = await look(sample.put({"": sample.closed[:size]}))
        assert report.findings, size
        assert set(rows) <= set(whole_rows())


async def test_files_that_are_not_all_there_are_whole_as_far_as_they_go(sample: Sample) -> None:
    """Without the index of its log, which SQLite makes again, and with what a killed making left beside it."""
    path = sample.put({each: sample.live[each] for each in ("", "-wal")})
    store = store_at(path)
    report = await store.verify("s")
    assert report.findings == () and await rows_of(await store.salvage("s")) == whole_rows()
    report, rows = await look(sample.put({"": sample.live[""]}))  # that something is missing cannot be known
    assert report.findings == () and len(rows) < len(whole_rows())
    Path(sample.folder / f".x.db.{'a' * 16}.new-wal").write_bytes(b"half")
    report, rows = await look(sample.put({"": sample.closed}))
    assert [(each.code, each.place, each.loses) for each in report.findings] == [
        ("leftover", f".x.db.{'a' * 16}.new-wal", False)
    ]
    assert rows == whole_rows()


async def test_a_log_of_another_database_shows_as_rows_that_do_not_belong_together(
    sample: Sample, tmp_path: Path
) -> None:
    other = store_at(tmp_path / "other.db")
    await other.create("t")
    storage = await other.open("t")
    for writes in GROUPS:
        await storage.submit(writes)
    log = Path(f"{tmp_path / 'other.db'}-wal").read_bytes()
    storage.kill()
    path = sample.put({"": sample.live[""], "-wal": log})
    report = await store_at(path).verify("s")  # there is no index of the log: SQLite makes one
    assert "session_row" in codes(report) and report.losses


async def test_a_search_index_that_says_something_else_is_told_and_loses_nothing(sample: Sample) -> None:
    path = sample.put({"": sample.closed})
    store = store_at(path)
    storage = await store.open("s")
    payload = b'{"role":"custom","type":"note","data":"blue green"}'
    first = 1 + sum(map(len, GROUPS))
    for number in range(3):
        await storage.submit([InsertEntry(f"w{number}", None, "user", payload)])
    await store.search("blue")
    await store.close()
    content = path.read_bytes()
    report, _ = await look(path)
    assert report.findings == ()
    for statement, where in (
        (f"UPDATE search_entry SET words = 7 WHERE seq = {first}", "x.db"),
        (f"DELETE FROM search_entry WHERE seq = {first + 1}", "x.db"),
        (f"UPDATE search_entry SET seq = 99 WHERE seq = {first + 1}", "x.db: entry w1"),
        (f"UPDATE search_entry SET kind = 'custom' WHERE seq = {first}", "x.db: entry w0"),
    ):
        sample.closed = content
        report, _ = await look(changed(sample, statement))
        assert [(each.code, each.place, each.loses) for each in report.findings] == [("search_index", where, False)]


async def test_an_owner_that_comes_and_goes_meanwhile(sample: Sample) -> None:
    """What was nobody's file has an owner between two pages, who changes it and goes; the rows are those of before."""
    path = sample.put({"": sample.closed})
    store = store_at(path)
    salvage = await store.salvage("s")
    for _ in range(3):
        assert [row async for page in salvage.pages() for row in page] == whole_rows()
        storage = await store.open("s")
        await storage.submit(
            [InsertEntry(f"new{storage.epoch}", "e3", "user", b"1"), SetValue(Address("app.test", "a"), b"9")]
        )
        assert [row async for page in salvage.pages() for row in page] == whole_rows()
        await storage.close()
    await salvage.close()
    assert len(salvage.findings) == 0
    await (await store.open("s")).close()  # who closes last takes the log along, and a reader cannot
    assert sorted(each.name for each in path.parent.glob("x.db*")) == ["x.db", "x.db.lock"]


async def test_beside_an_owner_that_commits(tmp_path: Path) -> None:
    """No finding, nobody held up, and rows as of one moment; in this process, where the file has connections."""
    path = tmp_path / "x.db"
    store = store_at(path)
    await store.create("s")
    storage = await store.open("s")
    tip = None
    for number in range(300):
        await storage.submit(
            [InsertEntry(f"e{number}", tip, "user", b"1"), SetValue(Address("app.a", "n"), b"%d" % number)]
        )
        tip = f"e{number}"
    salvage = await store.salvage("s")
    found: list[Row] = []
    number = 300
    async for page in salvage.pages():
        await storage.submit(
            [InsertEntry(f"e{number}", tip, "user", b"1"), SetValue(Address("app.a", "n"), b"%d" % number)]
        )
        tip = f"e{number}"
        number += 1
        found += page
    await salvage.close()
    assert len(salvage.findings) == 0
    assert [row.id for row in found if isinstance(row, EntryRow)] == [f"e{each}" for each in range(300)]
    assert found[-1] == ValueRow(Address("app.a", "n"), b"299")
    assert (await store.verify("s")).entries == number
    await storage.submit([SetValue(Address("app.a", "n"), b"1")])
    await store.close()
    assert not Path(f"{path}-wal").exists()
