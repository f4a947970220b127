"""Claim: the search index of a SQLite file is derived: no commit knows of it, it is never wrong, it is made again."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentlane.data.messages import user
from agentlane.data.search import checked_search
from agentlane.data.words import words_of
from agentlane.errors import SearchUnavailable, SessionClosed, StoreOwned, UnknownSession
from agentlane.storage import (
    JsonlStore,
    MemoryStore,
    SessionStorage,
    SqliteStore,
    search_index,
    search_schema,
    sqlite_search,
)
from agentlane.storage.contract import Store
from agentlane.storage.lock import OwnerLock
from agentlane.storage.sqlite_writer import Writer
from agentlane.testing.clock import ManualClock
from agentlane.testing.conformance.model import ReferenceSession
from agentlane.testing.conformance.searching import reference
from tests.storage.sqlite_samples import entry, put, sql, writer_of

WORDS = (
    "red",
    "Fox",
    "café",
    "東京都",
    "jumps",
    "over",
    "lazy",
    "dog",
    "naïve",
    "b2b",
    "x-ray",
    "und",
    "ﬁn",
    "🦊",
    "the",
)


def wanted(text: str, **options: Any) -> Any:
    return checked_search(text, **{"types": None, "since": None, "until": None, "limit": 20} | options)


def said(text: str) -> bytes:
    return msgspec.json.encode(user(text))


async def talk(storage: SessionStorage, texts: list[str], prefix: str = "e") -> ReferenceSession:
    model = ReferenceSession()
    parent = None
    for number, text in enumerate(texts):
        write = entry(f"{prefix}{number}", parent, said(text))
        model.commit([write], await storage.submit([write]))
        parent = write.id
    return model


async def opened(store: Store, session_id: str = "s") -> SessionStorage:
    await store.create(session_id)
    return await store.open(session_id)


def in_index(path: Path) -> tuple[Counter[tuple[str, int]], list[tuple[int, ...]]]:
    """Every word with its place, as often as it is there, and every entry that the index knows."""
    with sql(path) as database:
        words = Counter(database.execute("SELECT term, doc FROM search_word").fetchall())
        return words, database.execute("SELECT place, seq, at, words FROM search_entry ORDER BY place").fetchall()


def should_be(path: Path) -> tuple[Counter[tuple[str, int]], list[tuple[int, ...]]]:
    """The same, worked out from the entries up to the cursor of each session."""
    words: Counter[tuple[str, int]] = Counter()
    entries = []
    with sql(path) as database:
        rows = database.execute(
            "SELECT entry.place, entry.session, entry.seq, entry.at, entry.payload FROM entry JOIN search_cursor "
            "ON search_cursor.session = entry.session AND entry.seq <= search_cursor.seq ORDER BY place"
        ).fetchall()
    for place, session, seq, at, payload in rows:
        found = words_of(search_index.text_of(payload.encode()))
        words.update((f"{session}·{word}", place) for word in found)
        if found:
            entries.append((place, seq, at, len(found)))
    return words, entries


async def on_writer(path: Path, function: Callable[[sqlite3.Connection], Any]) -> Any:
    return await writer_of(path).thread.call(function)


async def pragma(path: Path, text: str) -> Any:
    return await on_writer(path, lambda database: database.execute(f"PRAGMA {text}").fetchall())


@pytest.mark.parametrize("seed", range(12))
async def test_random_sessions_are_searched_alike_by_index_and_by_reading(
    seed: int, tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches, commits of many entries, searches between them: memory, JSONL, SQLite with its index and without."""
    if seed >= 3 and not whole:
        pytest.skip("with --whole")
    rnd = random.Random(seed)
    monkeypatch.setattr(search_index, "READ_ROWS", rnd.randint(1, 5))
    monkeypatch.setattr(sqlite_search, "WRITE_ROWS", rnd.randint(1, 9))
    clock = ManualClock()
    stores: list[Store] = [
        MemoryStore(clock=clock),
        JsonlStore(tmp_path / "j", durability="process", clock=clock),
        SqliteStore(tmp_path / "s.db", durability="process", clock=clock),
    ]
    storages = [await opened(store) for store in stores]
    model, ids = ReferenceSession(), list[str]()
    for _ in range(rnd.randint(10, 25)):
        writes = []
        for _ in range(rnd.randint(1, 4)):
            text = " ".join(rnd.choices(WORDS, k=rnd.randint(0, 12)))
            parent = rnd.choice([None, *ids, *ids[-3:]])
            ids.append(f"e{len(ids)}")
            writes.append(entry(ids[-1], parent, said(text), rnd.choice(("user", "assistant", "custom"))))
        clock.advance(rnd.choice((0, 0, 1, 50)))
        commits = [await storage.submit(writes) for storage in storages]
        model.commit(writes, commits[0])
        start = rnd.choice([None, *ids])
        text = " ".join(rnd.choices(WORDS, k=rnd.choice((1, 1, 2, 3))))
        search = wanted(text, limit=rnd.choice((1, 3, 20)), prefix=rnd.random() < 0.3)
        want = reference(model, search, start)
        for storage in storages:
            for scan in (False, True):
                found = await storage.search(search, start=start, scan=scan)
                assert found == want, (seed, search, start, type(storage).__name__, scan)
    await storages[2].close()
    assert in_index(tmp_path / "s.db") == should_be(tmp_path / "s.db")
    answers = [[(hit.entry_id, hit.snippet, hit.marks) for hit in await store.search("red")] for store in stores]
    assert answers[0] == answers[1] == answers[2] and answers[0]
    for store in stores:
        await store.close()


async def test_no_commit_does_anything_for_it(tmp_path: Path) -> None:
    """The very statements of a commit, before there is an index and after; nothing in the schema fires by itself."""
    store = SqliteStore(tmp_path / "s.db", clock=ManualClock())
    storage = await opened(store)
    ran: list[list[str]] = []
    for number in range(4):
        statements: list[str] = []
        writes = [entry(f"e{number}", f"e{number - 1}" if number else None, said("red")), put("k")]
        trace = statements.append
        await on_writer(tmp_path / "s.db", lambda database, trace=trace: database.set_trace_callback(trace))
        await storage.submit(writes)
        await on_writer(tmp_path / "s.db", lambda database: database.set_trace_callback(None))
        ran.append([each.split("VALUES")[0].split("SET")[0] for each in statements])
        if number == 1:
            await storage.search(wanted("red"))

    assert ran[3] == ran[1] and len(ran[1]) > 3
    assert len(await storage.search(wanted("red"))) == 4
    await store.close()
    with sql(tmp_path / "s.db") as shell:
        assert shell.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall() == []


async def test_a_lane_commits_between_the_steps_of_catching_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "READ_ROWS", 4)
    monkeypatch.setattr(sqlite_search, "WRITE_ROWS", 4)
    store = SqliteStore(tmp_path / "s.db", durability="process")
    storage = await opened(store)
    await storage.submit([entry(f"e{number}", None, said("red")) for number in range(200)])
    maintained, steps = Writer.maintain, 0
    began = asyncio.Event()

    async def counted(self: Writer, change: Any) -> Any:
        nonlocal steps
        changed = await maintained(self, change)
        steps += 1
        began.set()
        return changed

    monkeypatch.setattr(Writer, "maintain", counted)
    searching = asyncio.ensure_future(storage.search(wanted("red", limit=1000)))
    await began.wait()
    await storage.submit([entry("late", None, said("red"))])
    steps_then = steps

    found = await searching

    assert steps == 51 and steps_then < 10, "made, then 50 steps; the commit waited for one of them"
    assert {each.row.id for each in found} == {f"e{number}" for number in range(200)}, (
        "what was there when it was asked"
    )
    await store.close()


async def test_a_search_without_news_writes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    storage = await opened(store)
    await talk(storage, ["red", "fox"])
    await storage.search(wanted("red"))
    await storage.submit([put("k")])
    before = await on_writer(tmp_path / "s.db", lambda database: database.total_changes)

    assert len(await storage.search(wanted("red"))) == 1
    assert await storage.search(wanted("")) == [] and await storage.search(wanted("?!")) == []

    assert await on_writer(tmp_path / "s.db", lambda database: database.total_changes) == before
    await store.close()


async def test_searches_at_once_take_each_entry_in_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "READ_ROWS", 3)
    monkeypatch.setattr(sqlite_search, "WRITE_ROWS", 5)
    store = SqliteStore(tmp_path / "s.db", durability="process")
    storages = [await opened(store, name) for name in ("a", "b")]
    for storage in storages:
        await talk(storage, [f"red {number}" for number in range(40)])
    searches = [storage.search(wanted("red", limit=100)) for storage in storages * 5]
    others = [store.search("red", limit=100) for _ in range(3)]

    found, hits = await asyncio.gather(asyncio.gather(*searches), asyncio.gather(*others))

    assert [len(each) for each in found] == [40] * 10 and [len(each) for each in hits] == [80] * 3
    await store.close()
    assert in_index(tmp_path / "s.db") == should_be(tmp_path / "s.db")
    assert len(in_index(tmp_path / "s.db")[1]) == 80


DAMAGES = {
    "no words": "DELETE FROM search_text_data",
    "words garbled": "UPDATE search_text_data SET block = randomblob(length(block)) WHERE id > 10",
    "structure garbled": "UPDATE search_text_data SET block = x'ffffffffffffffff' WHERE id = 10",
    "no table of words": "DROP TABLE search_text_data",
    "no index of words": "DROP TABLE search_text_idx",
    "no configuration": "DROP TABLE search_text_config",
    "another configuration": "UPDATE search_text_config SET v = 99",
    "an empty configuration": "DELETE FROM search_text_config",
    "no version": "DELETE FROM search_index",
    "an older version": "UPDATE search_index SET version = '0'",
    "two versions": "INSERT INTO search_index SELECT * FROM search_index",
    "no entries": "DROP TABLE search_entry",
    "entries of another form": "DROP TABLE search_entry; CREATE TABLE search_entry (x)",
    "entries that are not there": "UPDATE search_entry SET place = place + (1 << 40)",
    "a view": "DROP TABLE search_word; CREATE VIEW search_word AS SELECT 'red' AS term, 1 AS doc",
    "a foreign index": "DROP TABLE search_word; DROP TABLE search_text; "
    "CREATE VIRTUAL TABLE search_text USING fts5(words, tokenize = 'porter')",
    "a table in place of the index": "DROP TABLE search_word; DROP TABLE search_text; CREATE TABLE search_text (words)",
    "a cursor from another life": "UPDATE search_cursor SET seq = seq + 1000",
    "a leftover of an index": "DROP TABLE search_index; DROP TABLE search_cursor",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_old_or_foreign_index_is_made_again(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storage = await opened(store)
    model = await talk(storage, ["red fox", "the lazy dog", "red red", "fox", "a fox is red"])
    search = wanted("red")
    want = reference(model, search)
    assert await storage.search(search) == want
    await storage.close()
    with sql(path) as database:
        for statement in DAMAGES[damage].split("; "):
            database.execute(statement)

    reader = await store.open("s", read_only=True)
    assert await reader.search(search) == want, "read-only"
    await reader.close()
    storage = await store.open("s")
    assert await storage.search(search) == want
    assert await storage.search(search) == want
    assert await storage.search(wanted("fox red")) == reference(model, wanted("fox red"))
    await store.close()

    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 5


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_session_with_a_damaged_index_is_deleted(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storages = [await opened(store, name) for name in ("a", "b")]
    for storage in storages:
        await talk(storage, ["red fox", "dog"])
    assert len(await store.search("red")) == 2
    for storage in storages:
        await storage.close()
    with sql(path) as database:
        for statement in DAMAGES[damage].split("; "):
            database.execute(statement)

    await store.delete("a")

    assert [hit.session_id for hit in await store.search("red")] == ["b"]
    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 2
    await store.close()


async def test_a_deleted_session_leaves_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "FORGET_ROWS", 3)
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storages = [await opened(store, name) for name in ("a", "b")]
    await talk(storages[0], ["secret plan"] * 10 + ["", "?!"])
    await talk(storages[1], ["plan b"] * 4)
    assert len(await store.search("plan")) == 14
    await storages[0].close()

    await store.delete("a")

    assert [hit.session_id for hit in await store.search("plan")] == ["b"] * 4
    assert await store.search("secret") == []
    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 4
    with pytest.raises(UnknownSession):
        await store.search("plan", session_id="a")
    await store.close()


async def test_without_fts5_it_says_so_and_reading_is_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storages = [await opened(store, name) for name in ("a", "b")]
    for storage in storages:
        await talk(storage, ["red fox", "dog"])
    assert len(await storages[0].search(wanted("red"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(search_schema, "SELECT_FTS5", search_schema.SELECT_FTS5.replace("'fts5'", "'fts4711'"))
        with pytest.raises(SearchUnavailable, match="scan=True") as caught:
            await storages[0].search(wanted("red"))
        assert caught.value.code == "search_unavailable"
        with pytest.raises(SearchUnavailable):
            await store.search("red")
        assert len(await storages[0].search(wanted("red"), scan=True)) == 1
        assert len(await store.search("red", scan=True)) == 2
        await storages[0].close()
        await store.delete("a")
        with sql(path) as database:
            assert database.execute("SELECT count(*) FROM search_text_data").fetchall() == [(0,)]
        assert [hit.session_id for hit in await store.search("red", scan=True)] == ["b"]

    assert [hit.session_id for hit in await store.search("red")] == ["b"], "made again where FTS5 is"
    assert in_index(path) == should_be(path)
    await store.close()


async def test_beside_a_program_that_writes_it_reads_and_waits_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path, busy_timeout_ms=600_000)
    storage = await opened(store)
    await talk(storage, ["red fox", "dog"])
    with sql(path) as other:
        other.execute("BEGIN IMMEDIATE")

        assert len(await asyncio.wait_for(storage.search(wanted("red")), 60)) == 1

        other.execute("ROLLBACK")
    assert await pragma(path, "busy_timeout") == [(600_000,)]
    assert len(await storage.search(wanted("red"))) == 1
    await store.close()
    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 2


async def test_a_full_disk_keeps_nobody_from_searching(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storage = await opened(store)
    await talk(storage, ["red fox", "dog"])
    pages = (await pragma(path, "page_count"))[0][0]
    await pragma(path, f"max_page_count = {pages}")

    assert len(await storage.search(wanted("red"))) == 1

    await pragma(path, "max_page_count = 1000000")
    await storage.submit([entry("later", None, said("red"))])
    assert len(await storage.search(wanted("red"))) == 2
    await store.close()
    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 3


async def test_made_by_other_rules_it_is_made_again_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storage = await opened(store)
    model = await talk(storage, ["red fox", "dog"])
    with monkeypatch.context() as patch:
        patch.setattr(search_index, "TEXTING", "0/older")
        await storage.search(wanted("red"))
    reader = await store.open("s", read_only=True)
    assert await reader.search(wanted("red")) == reference(model, wanted("red"))
    with sql(path) as database:
        assert database.execute("SELECT version FROM search_index").fetchall() == [("0/older",)]

    assert await storage.search(wanted("red")) == reference(model, wanted("red"))

    with sql(path) as database:
        assert database.execute("SELECT version FROM search_index").fetchall() == [(search_index.TEXTING,)]
    await store.close()


async def test_a_store_whose_owner_is_elsewhere_is_searched_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    storage = await opened(store)
    await talk(storage, ["red fox", "dog"])
    await store.close()
    store = SqliteStore(path)
    lock = OwnerLock.acquire(Path(f"{path}.lock"), error=StoreOwned, what=str(path))
    try:
        assert [hit.snippet for hit in await store.search("red")] == ["red fox"]
    finally:
        lock.release()
    with sql(path) as database:
        assert database.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'search%'").fetchall() == []

    assert [hit.snippet for hit in await store.search("red")] == ["red fox"]
    await store.close()
    assert len(in_index(path)[1]) == 2


async def test_a_search_ends_with_its_session(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    storage, other = await opened(store), await opened(store, "other")
    await talk(storage, ["red"] * 5)
    searching = asyncio.ensure_future(storage.search(wanted("red")))
    await asyncio.sleep(0)
    await storage.close()

    with pytest.raises(SessionClosed):
        await searching
    assert await other.search(wanted("red")) == []
    await store.close()


async def test_a_store_that_is_not_there_has_no_hits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")

    assert await store.search("red") == []
    with pytest.raises(UnknownSession):
        await store.search("red", session_id="s")
    assert not (tmp_path / "s.db").exists()
    await store.close()
