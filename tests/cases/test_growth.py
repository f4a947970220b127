"""Claim: what a commit, an open and a request cost does not grow with what the session has lived through."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, ListAddress, Session, Tool, ToolContext, UserMessage, ValueAddress, open_session
from agentlane.data.messages import TextPart
from agentlane.data.usage import Usage
from agentlane.data.writes import Address, AppendElement, InsertEntry, SetValue, Write
from agentlane.storage import JsonlStore
from agentlane.storage.contract import SessionStorage
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from agentlane.testing.wrapping import WrappedStorage, WrappedStore
from tests.session.places import Place, agent_of
from tests.storage.disk import TestDisk

WORD = "history "


def user(text: str) -> UserMessage:
    return UserMessage(content=(TextPart(text=text),))


class Counting(WrappedStore):
    """A store whose sessions count the reads that are asked of them, and keep the payloads of each commit."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reads: Counter[str] = Counter()
        self.commits: list[list[bytes]] = []

    def wrap(self, storage: SessionStorage) -> SessionStorage:
        return _CountingStorage(storage, self)


class _CountingStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, store: Counting) -> None:
        super().__init__(inner)
        self._store = store

    def submit(self, writes: Sequence[Write], **options: Any) -> Any:
        payloads = [each.payload for each in writes if isinstance(each, InsertEntry | SetValue | AppendElement)]
        self._store.commits.append(payloads)
        return self.inner.submit(writes, **options)

    def __getattribute__(self, name: str) -> Any:
        if name in ("entries", "path", "value", "values", "elements", "scan", "usage", "search", "snapshot"):
            self._store.reads[name] += 1
        return super().__getattribute__(name)


def written_by(place: Place, store: Counting) -> int:
    """The bytes that all commits so far have written: in memory, those of their payloads."""
    if place.kind == "memory":
        return sum(len(payload) for commit in store.commits for payload in commit)
    if place.kind == "jsonl":
        return os.path.getsize(place.folder / "sessions" / "s.jsonl")
    return os.path.getsize(f"{place.folder / 'sessions.db'}-wal")


async def test_a_run_costs_as_many_bytes_late_as_early(place: Place) -> None:
    """Beside a value of a megabyte that nobody changes: it is written once, and never again."""
    store = Counting(place.store)
    await place.store.create("s")
    async with open_session(store, session_id="s", clock=place.clock) as session:
        lane = await session.lane("main", agent_of(*["ok"] * 100))
        before = written_by(place, store)
        await session.set_value(ValueAddress("app.check", "large", str), "v" * 1_000_000)
        assert written_by(place, store) - before > 1_000_000
        costs = []
        for _ in range(100):
            before = written_by(place, store)
            await lane.run("go on")
            costs.append(written_by(place, store) - before)

    early, late = sum(costs[10:30]), sum(costs[-20:])  # a run in which a page of SQLite's is divided costs more
    assert 0 < late <= early * 1.3, (early, late)
    assert max(costs) < 100_000


async def test_a_request_is_kept_as_what_it_refers_to(place: Place) -> None:
    """A history of 800,000 characters and a run of 40 calls: no commit holds any of the history's text again."""

    async def look(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "seen"

    model = ScriptedModel([*([call("look", n=n)] for n in range(40)), "done"])
    store = Counting(place.store)
    await place.store.create("s")
    async with open_session(store, session_id="s", clock=place.clock) as session:
        lane = await session.lane("main", Agent(model=model, tools=[Tool("look", look)]))
        for _ in range(20):
            await lane.append_message(user(WORD * 5_000))
        store.commits.clear()
        assert (await lane.run("go on")).turns == 41

    assert sum(len(part.text) for part in model.requests[-1].messages[0].content) == len(WORD) * 5_000  # type: ignore[union-attr, misc]
    assert not [payload for commit in store.commits for payload in commit if WORD.encode() * 2 in payload]
    assert max(sum(map(len, commit)) for commit in store.commits) < 4_000
    assert sum(len(payload) for commit in store.commits for payload in commit) < 80_000


@pytest.mark.parametrize("lanes", [3, 60])
async def test_opening_asks_for_no_history(place: Place, lanes: int) -> None:
    """However many lanes and entries: as many reads as of a session with few, none of them of a path. The first run
    of a lane reads its own path, once."""
    session = await place.open()
    for number in range(lanes):
        lane = await session.lane(f"lane-{number}", agent_of("fine"))
        for entry in range(5):
            await lane.append_custom("note", {"n": entry})
    await session.close()

    store = Counting(place.store)
    async with open_session(store, session_id="s", clock=place.clock) as session:
        assert len(session.lanes()) == lanes
        for number in range(lanes):
            await session.lane(f"lane-{number}", agent_of("fine"))
        assert set(store.reads) <= {"values", "value", "entries"}, store.reads
        assert sum(store.reads.values()) <= 10, store.reads
        lane = await session.lane("lane-1", agent_of("fine"))
        store.reads.clear()
        await lane.run("go")
        assert (store.reads["path"], store.reads["scan"]) == (1, 0), store.reads
        store.reads.clear()
        await (await session.lane("lane-1", agent_of("more"))).run("go on")
        assert store.reads["path"] == 0, store.reads


async def test_what_was_superseded_is_read_once_and_held_nowhere(tmp_path: Path) -> None:
    """Four times as many records of progress in a file take four times as many bytes to read, and no page twice."""
    costs = {}
    for records in (200, 800):
        folder = tmp_path / str(records)
        files = TestDisk()
        store = JsonlStore(folder, durability="process", compact_share=None, files=files)
        await store.create("s")
        storage = await store.open("s")
        await storage.submit([InsertEntry("e", None, "user", b'"e"')])
        for number in range(records):
            await storage.submit([SetValue(Address("pending.output", "o|c"), b'"%d %s"' % (number, b"p" * 5_000))])
        await storage.close()
        size = (folder / "s.jsonl").stat().st_size
        files.bytes_read = 0
        reader = await store.open("s", read_only=True)
        costs[records] = files.bytes_read
        assert size <= files.bytes_read <= size + 300_000
        assert [row.id for row in await reader.scan()] == ["e"]
        await store.close()
    assert costs[800] < 4.3 * costs[200]


async def test_records_that_are_no_part_of_the_conversation_never_enter_its_tree(place: Place) -> None:
    """Hundreds of rows, values, elements and operations between two messages: the second one's parent is the first, the
    conversation reads back the same ten times, and opening has written nothing."""
    session = await place.open()
    lane = await session.lane("main", agent_of(*["noted"] * 21, "good day"))
    await lane.run("hello")
    tip = lane.tip()
    other = await session.lane("other", agent_of(*["aside"] * 20))
    for number in range(120):
        await session.record_usage(Usage(cost_nanos=number))
        await session.set_value(ValueAddress("app.check", f"v{number % 7}", int), number)
        await session.append(ListAddress("app.check", "l", int), number)
        await session.set_label(tip or "", f"label {number}")
    for number in range(20):
        await other.run(f"aside {number}")
        await session.set_name(f"name {number}")
    await lane.run("still there?")
    entries = await lane.entries(newest_first=False)
    assert [each.parent_id for each in entries] == [None, *(each.id for each in entries[:-1])]
    assert len(entries) == 4 and entries[1].id == tip
    live = await lane.messages()
    last = await last_seq(session)
    await session.close()

    files = bytes_of(place)
    for _ in range(10):
        session = await place.open()
        lane = await session.lane("main", agent_of("never asked"))
        assert await lane.messages() == live
        assert [each.id for each in await lane.entries(newest_first=False)] == [each.id for each in entries]
        assert session.stats().usage.rows == 120 + 22
        await session.close()
    assert bytes_of(place) == files
    session = await place.open()
    lane = await session.lane("main", agent_of("never asked"))
    written = await lane.append_custom("note")
    assert written.seq == last + 1, "nothing was written in between"


async def last_seq(session: Session) -> int:
    snapshot = await session._runtime.storage.snapshot()
    await snapshot.close()
    return snapshot.last_seq


def bytes_of(place: Place) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(place.folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", "-wal", "-shm"))
    }
