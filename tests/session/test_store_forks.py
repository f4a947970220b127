"""Claim: a store forks a session as the session itself does, whoever has it open; of a branch only the path is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import open_session
from agentlane.data.writes import Address
from agentlane.errors import InvalidMessage, InvalidName, InvalidWrite, UnknownBranch, UnknownEntry, UnknownSession
from agentlane.storage import EntryRow, JsonlStore, MemoryStore, Row, SqliteStore, ValueRow, sqlite_snapshot
from agentlane.testing import check_invariants
from agentlane.testing.wrapping import WrappedStore
from tests.session.copies import play, rows_of, speaker
from tests.session.places import Place
from tests.storage.disk import TestDisk

ENTRIES = 3_000
SHORT = 10


@pytest.mark.parametrize("seed", [1, 2])
async def test_it_is_the_fork_that_the_session_makes(place: Place, seed: int) -> None:
    """Of each branch, up to some entry, and of everything; with a writer beside it and without one."""
    session = await place.open()
    await play(session, seed)
    store: Any = place.store
    wishes: list[dict[str, Any]] = [{}, {"scope": "tree", "metadata": {"a": 1}}]
    for name in session.branches():
        wishes.append({"branch": name})
        if (entry := session.branch(name).tip()) is not None:
            wishes += [{"branch": name, "at": entry, "before": True}, {"branch": name, "metadata": {"forked_from": 1}}]
    assert len(wishes) > 5
    wanted = []
    for number, wish in enumerate(wishes):
        info = await session.fork(session_id=f"by-session-{number}", **wish)
        wanted.append((info.metadata, await rows_of(store, info.id)))
    for open_now in (True, False):
        for number, wish in enumerate(wishes):
            for maker, by in ((store, "store"), (WrappedStore(store), "wrapper")):
                info = await maker.fork("s", session_id=f"by-{by}-{number}-{open_now}", **wish)
                assert (info.metadata, await rows_of(store, info.id)) == wanted[number], wish
        await session.close()
    async with open_session(store, session_id="by-store-0-False") as copy:
        assert (await (await copy.lane("new", speaker())).run("hello")).text == "said hello"
        assert await check_invariants(copy) == []


async def test_to_another_place_and_nothing_where_it_is_refused(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    await (await session.lane("main", speaker())).run("hello")
    entries = await session.entries()
    await session.create_branch("early", at=entries[0].id)
    await session.close()
    store: Any = place.store
    other = MemoryStore()
    await store.fork("s", other, branch="main", session_id="f")
    await store.fork("s", tmp_path / "elsewhere", branch="main", session_id="f")
    assert await rows_of(other, "f") == await rows_of(JsonlStore(tmp_path / "elsewhere"), "f")
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UnknownSession, "ghost", {}),
        (InvalidName, "a/b", {}),
        (UnknownBranch, "s", {"scope": "branch"}),
        (UnknownBranch, "s", {"branch": "none"}),
        (UnknownEntry, "s", {"branch": "early", "at": entries[1].id}),
        (UnknownEntry, "s", {"branch": "main", "at": "none"}),
        (InvalidMessage, "s", {"before": True}),
        (InvalidMessage, "s", {"scope": "all"}),
        (InvalidMessage, "s", {"target": 5}),
        (InvalidName, "s", {"session_id": "a/b"}),
        (InvalidWrite, "s", {"session_id": "s"}),
    ]
    for error, source, options in wrong:
        with pytest.raises(error):
            await store.fork(source, **options)
    assert [each.id for each in await store.list()] == ["s"]
    assert await rows_of(store, "s")  # nobody holds it
    await (await place.open()).close()


async def long_session(store: Any) -> None:
    """A long branch, and a short one that parts from it near its root."""
    rows: list[Row] = [
        EntryRow(f"e{n}", f"e{n - 1}" if n else None, n + 1, 1, "custom", b'{"type":"note","data":"%s"}' % (b"x" * 200))
        for n in range(ENTRIES)
    ]
    short = [
        EntryRow(f"s{n}", f"s{n - 1}" if n else "e4", ENTRIES + n + 1, 1, "custom", b'{"type":"note","data":1}')
        for n in range(SHORT - 5)
    ]
    rows += short
    tips = {"long": f"e{ENTRIES - 1}", "short": short[-1].id}

    async def pages() -> Any:
        for begin in range(0, len(rows), 500):
            yield rows[begin : begin + 500]
        yield [ValueRow(Address("branch.tip", name), b'"%b"' % tip.encode()) for name, tip in tips.items()]

    await store.load(pages(), last_seq=len(rows), session_id="s")


async def forked(store: Any, **wish: Any) -> Sequence[EntryRow]:
    other = MemoryStore()
    async with open_session(store, session_id="s", read_only=True) as session:
        await session.fork(other, session_id="f", **wish)
    return (await rows_of(other, "f")).entries


async def test_of_a_short_branch_little_is_read_from_a_jsonl_file(tmp_path: Path) -> None:
    """Beside what opening reads: of payloads those of the branch alone."""
    files = TestDisk()
    store = JsonlStore(tmp_path / "sessions", files=files)
    await long_session(store)
    other = MemoryStore()
    async with open_session(store, session_id="s", read_only=True) as session:
        before = files.calls["pread"]
        await session.fork(other, session_id="f", branch="short")
        assert files.calls["pread"] - before <= SHORT + 2
        await session.fork(other, session_id="none", branch="long", at="e0", before=True)
        assert files.calls["pread"] - before <= SHORT + 5
    assert len((await rows_of(other, "f")).entries) == SHORT
    assert (await rows_of(other, "none")).entries == []


async def test_of_a_short_branch_little_is_read_from_a_sqlite_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are taken from its own places, and no statement goes through the entries of the session."""
    store = SqliteStore(tmp_path / "s.db")
    await long_session(store)
    other, read = MemoryStore(), sqlite_snapshot._page
    rows: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        page = read(*arguments, **options)
        rows.append(len(page))
        return page

    monkeypatch.setattr(sqlite_snapshot, "_page", counted)
    async with open_session(store, session_id="s", read_only=True) as session:
        storage: Any = session._runtime.storage
        said: list[str] = []
        await storage._use.file.read(lambda database: database.set_trace_callback(said.append))
        await session.fork(other, session_id="f", branch="short")
        await session.fork(other, session_id="none", branch="long", at="e0", before=True)
        await storage._use.file.read(lambda database: database.set_trace_callback(None))
    assert len((await rows_of(other, "f")).entries) == SHORT
    assert (await rows_of(other, "none")).entries == []
    assert sum(rows) == SHORT and not [each for each in said if "seq > " in each and "FROM entry" in each], said


async def test_the_long_one_comes_whole_from_each(tmp_path: Path) -> None:
    found = []
    for store in (JsonlStore(tmp_path / "sessions"), SqliteStore(tmp_path / "s.db"), MemoryStore()):
        await long_session(store)
        entries = await forked(store, branch="long")
        assert [each.id for each in entries] == [f"e{n}" for n in range(ENTRIES)]
        found.append(entries)
        await store.close()
    assert found[0] == found[1] == found[2]
