"""Claim: SQLite is written by one connection, in short transactions, and the log it keeps is never held by us."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    ListAddress,
    Prompt,
    Session,
    StoreBusy,
    Tool,
    ToolContext,
    ToolResultMessage,
    ValueAddress,
    open_session,
)
from agentlane.data.usage import Stats
from agentlane.storage import SqliteStore, schema, sqlite_connect, sqlite_log
from agentlane.storage.sqlite_stats import stats_text
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.races.stage import settled, shape
from tests.session.copies import rows_of
from tests.session.places import Place, agent_of


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A SQLite file."""
    return Place("sqlite", tmp_path)


class Connections:
    """Every connection to one file, and what each one ran; put in the place of ``sqlite3.connect``."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.writing = 0
        self.writing_max = 0
        self.read: list[str] = []
        self.written: list[str] = []
        self._connect = sqlite3.connect

    def connect(self, database: str, **options: Any) -> sqlite3.Connection:
        if self.path not in database:
            return self._connect(database, **options)
        seen, reads = self, "mode=ro" in database

        class Watched(sqlite3.Connection):
            def close(self) -> None:
                super().close()
                seen.writing -= not reads

        found = self._connect(database, factory=Watched, **options)
        self.writing += not reads
        self.writing_max = max(self.writing_max, self.writing)
        found.set_trace_callback((self.read if reads else self.written).append)
        return found


async def test_one_connection_writes_and_checkpoints(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is done in one process, by stores of one file and readers beside them; SQLite before 3.51.3 can lose
    a commit to a second one."""
    path = tmp_path / "sessions.db"
    await place.open()
    await place.end()
    connections = Connections(path)
    monkeypatch.setattr(sqlite3, "connect", connections.connect)

    place.store = place.new_store()
    second = SqliteStore(path, durability="process")
    session = await place.open()
    other = await second.create("other")
    lane = await session.lane("main", agent_of("hello", "again"))
    await lane.run("hi")
    reading = await second.open("s", read_only=True)
    writing = await second.open(other.id)
    await reading.scan()
    await session.search("hello")
    await session.backup(second, session_id="backup")
    await session.fork(session_id="fork")
    await session.export(tmp_path / "export")
    await second.import_session(tmp_path / "export", session_id="imported")
    await session.compact_storage()
    await second.optimize()
    await second.open_operations()
    await second.delete("fork")
    await lane.run("hi")
    await writing.close()
    await reading.close()
    await place.end()
    await second.close()

    assert (connections.writing_max, connections.writing) == (1, 0)
    changing = ("checkpoint", "BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "VACUUM", "REPLACE")
    assert [text for text in connections.read if text.lstrip().startswith(changing) or "checkpoint" in text] == []
    assert any("SELECT" in text for text in connections.read) and any(
        "checkpoint" in text for text in connections.written
    )


class Paying:
    """An agent with a tool that must not run twice, and a safe one."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.model = ScriptedModel([[call("pay", x=1), call("look", x=2)], "done"])
        tools = [Tool("pay", self._run("pay")), Tool("look", self._run("look"), replay="safe")]
        self.agent = Agent(model=self.model, tools=tools)

    def _run(self, name: str) -> Callable[..., Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            self.starts.append(name)
            return f"{name} is done"

        return run


async def test_a_run_whose_file_is_held_for_too_long_can_be_driven_on(tmp_path: Path) -> None:
    """From each commit of it on another program holds the write lock: it is told, keeps what it has, and goes on."""
    for held_from in range(1, 40):
        path = tmp_path / f"{held_from}.db"
        store = SqliteStore(path, durability="process", busy_timeout_ms=1)
        await store.create("s")
        session = await open_session(store, session_id="s")
        paying = Paying()
        stranger = sqlite3.connect(path, isolation_level=None)
        told = await _held_run(session, paying, stranger, held_from)
        lane = await session.lane("main", paying.agent)
        assert shape(await lane.messages()) == [
            "user go",
            "assistant[tool_calls]  (pay,look)",
            "result pay is done",
            "result look is done",
            "assistant[stop] done",
        ]
        assert sorted(paying.starts) == ["look", "pay"]
        assert len(paying.model.requests) == 2
        assert await check_invariants(session) == []
        stranger.close()
        await session.close()
        await store.close()
        if not told:
            break
    assert 5 <= held_from < 39, "each commit of the run, and of the lane"


async def _held_run(session: Session, paying: Paying, stranger: sqlite3.Connection, held_from: int) -> int:
    """A run from the lane's first commit to its end; how often it was told that the file is held."""
    storage = session._runtime.storage
    submit, commits, told = storage.submit, 0, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == held_from:
            stranger.execute("BEGIN IMMEDIATE")
        return submit(*args, **options)

    storage.submit = counted  # type: ignore[method-assign]
    while True:
        try:
            lane = await session.lane("main", paying.agent)
            await lane.accept(Prompt("go"), operation_id="op")
            assert settled(await lane.drive("op")).status == "completed"
            return told
        except StoreBusy:
            told += 1
            stranger.execute("ROLLBACK")


async def test_nothing_is_encoded_while_a_transaction_is_open(place: Place) -> None:
    """A result of megabytes is one bound value among the others: as many statements, and no work on its text."""
    sizes = {10: "", 1_000_000: ""}
    seen: dict[int, list[str]] = {}
    for size in sizes:
        session = await place.open(f"s-{size}")
        result = "x\n\x00é" * (size // 4)

        async def large(arguments: dict[str, Any], ctx: ToolContext[Any], result: str = result) -> str:
            return result

        tool = Tool("large", large, max_result_bytes=1 << 30)
        lane = await session.lane("main", Agent(model=ScriptedModel([[call("large")], "done"]), tools=[tool]))
        watched = Transactions()
        thread = session._runtime.storage._use.writer.thread  # type: ignore[attr-defined]
        await thread.call(watched.watch)
        await lane.run("go")
        await thread.call(watched.stop)
        (told,) = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
        assert told.content[0].text == result  # type: ignore[union-attr]
        assert not watched.calls & ENCODING, watched.calls
        seen[size] = watched.statements
        await session.close()
    await place.end()

    assert [text.split(" ", 1)[0] for text in seen[10]] == [text.split(" ", 1)[0] for text in seen[1_000_000]]


ENCODING = {"encode", "decode", "dumps", "loads", "crc32", "to_builtins", "clean_json", "clean_text"}


class Transactions:
    """What a thread does between BEGIN and COMMIT: statements, and the names of all functions that are called."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.calls: set[str] = set()
        self._inside = False

    def watch(self, database: sqlite3.Connection) -> None:
        database.set_trace_callback(self._statement)
        sys.setprofile(self._called)

    def stop(self, database: sqlite3.Connection) -> None:
        sys.setprofile(None)
        database.set_trace_callback(None)

    def _statement(self, text: str) -> None:
        self._inside = self._inside or text.startswith("BEGIN")
        if self._inside:
            self.statements.append(text[:40])
        if text == "COMMIT":
            self._inside = False

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        if self._inside and event == "call":
            self.calls.add(frame.f_code.co_name)
        elif self._inside and event == "c_call" and frame.f_code.co_name != "stats_text":  # a few numbers, not the text
            self.calls.add(argument.__name__)


@pytest.mark.parametrize("target", ["work.db", "work.jsonl", "folder"])
async def test_a_file_system_without_locks_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """As network mounts and folders shared with a container are; nothing is made that could be opened by two."""

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="locks no files.*use a local disk") as caught:
        await open_session(tmp_path / target)
    assert caught.value.errno == errno.ENOLCK and str(tmp_path) in str(caught.value)
    monkeypatch.undo()
    async with open_session(tmp_path / target) as session:
        assert session.stats().entries == 0


async def test_what_is_left_open_by_a_reader_of_ours_does_not_hold_the_log(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that nobody takes, a watcher that is left standing, copies that failed in the middle, a search."""
    pages = 100
    for module in (sqlite_log, sqlite_connect):
        monkeypatch.setattr(module, "LOG_PAGES_MAX", pages)
    monkeypatch.setattr(sqlite_connect, "LOG_BYTES_MAX", pages * schema.PAGE_BYTES)
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    await lane.run("hi")
    for number in range(50):
        await lane.append_custom("note", {"n": number, "text": "x" * 500})
    storage = session._runtime.storage
    kept: list[Any] = []

    class Full:
        """A file object that takes nothing."""

        def write(self, data: bytes) -> int:
            raise OSError("no room")

    log, largest = Path(f"{tmp_path / 'sessions.db'}-wal"), 0
    for turn in range(10):
        snapshot = await storage.snapshot()
        rows = snapshot.pages()
        await anext(rows)
        watch = lane.watch()
        await anext(aiter(watch))
        await lane.entries(limit=1)
        with pytest.raises(OSError, match="no room"):
            await session.export(Full())  # type: ignore[arg-type]
        await session.search("hello", limit=1)
        kept += [snapshot, rows, watch]
        for number in range(60):
            await session.set_value(ValueAddress("app.check", "v", str), f"{turn} {number} " + "y" * 4000)
            await session.append(ListAddress("app.check", "l", int), number)
        largest = max(largest, log.stat().st_size)
    assert largest < 4 * pages * schema.PAGE_BYTES
    assert session.findings == ()
    for snapshot in kept[::3]:
        await snapshot.close()
    await place.end()
    assert not log.exists()


@pytest.mark.parametrize(
    "kept",
    [
        *("", "{", "[]", '{"entries":"x"}', '{"entries":3,"usage":{"rows":"y"}}', "null"),
        stats_text(Stats(entries=3)).replace(":3,", ":7,"),  # to be read, and not what was written
        stats_text(Stats(entries=7))[:-2] + "}",
        '{"entries":7,"check":"x"}',
    ],
)
async def test_what_rows_add_up_to_is_counted_where_the_sum_cannot_be_read(
    place: Place, tmp_path: Path, kept: str
) -> None:
    """The rows are whole, so the session opens, and for reading too; the next commit keeps the right sum."""
    session = await place.open()
    lane = await session.lane("main", agent_of("hello", "again"))
    await lane.run("hi")
    right = session.stats()
    await place.end()
    change(tmp_path, kept)

    place.store = place.new_store()
    session = await place.open(read_only=True)
    assert session.stats() == right
    await session.close()
    session = await place.open()
    assert session.stats() == right
    await (await session.lane("main", agent_of("hello", "again"))).run("hi")
    grown = session.stats()
    assert (grown.entries, grown.usage.rows) == (right.entries + 2, right.usage.rows + 1)
    await place.end()
    place.store = place.new_store()
    session = await place.open()
    assert session.stats() == grown
    assert not (await place.store.verify("s")).findings  # type: ignore[attr-defined]
    await place.end()


async def test_a_sum_that_is_wrong_is_found_and_is_right_in_a_repaired_copy(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    await (await session.lane("main", agent_of("hello"))).run("hi")
    right = session.stats()
    await place.end()
    change(tmp_path, '{"entries":1,"usage":{"rows":7}}')

    place.store = place.new_store()
    report = await place.store.verify("s")  # type: ignore[attr-defined]
    assert [each.code for each in report.findings] == ["stats"]
    await place.store.repair("s", session_id="copy")  # type: ignore[attr-defined]
    copy = await place.open("copy")
    assert copy.stats() == right
    await place.end()


async def test_who_looks_for_damage_takes_nothing_from_an_owner(place: Place) -> None:
    """An owner who opens the file in the same process while it is looked at, beside a log, commits as ever."""
    session = await place.open()
    lane = await session.lane("main", agent_of("hello", "again"))
    await lane.run("hi")
    await session.close()
    await rows_of(place.store, "s")  # readers leave a log
    salvage = await place.store.salvage("s")  # type: ignore[attr-defined]
    pages = salvage.pages()
    rows = list(await anext(pages))

    session = await place.open()
    await (await session.lane("main", agent_of("hello", "again"))).run("hi")
    await session.search("hello")
    rows += [row async for page in pages for row in page]
    await salvage.close()
    await session.set_name("as ever")
    assert session.stats().entries == 4 and len(rows) > 4
    assert not (await place.store.verify("s")).findings  # type: ignore[attr-defined]
    await place.end()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_nothing_that_is_made_can_be_read_by_others(tmp_path: Path, kind: str) -> None:
    """With a mask that keeps nothing back: new files, copies, exports, torn tails, logs, repairs."""
    before, folder = os.umask(0), tmp_path / "new" / "sessions"
    seen: set[str] = set()

    def look() -> None:
        for each in (tmp_path / "new").rglob("*"):
            mode = each.stat().st_mode & 0o777
            assert mode == (0o700 if each.is_dir() else 0o600), (each, oct(mode))
            seen.add(each.name)

    try:
        place = Place(kind, folder)
        session = await place.open()
        lane = await session.lane("main", agent_of("hello", "again"))
        await lane.run("hi")
        await session.search("hello")
        look()
        await session.compact_storage()
        look()
        await lane.run("hi")
        await session.fork(session_id="fork")
        await session.backup(folder / "backup.jsonl")
        await session.backup(folder / "backup.db")
        await session.export(folder / "exported")
        look()
        store: Any = place.store
        await store.import_session(folder / "exported", session_id="imported")
        await place.end()
        if kind == "jsonl":
            with open(folder / "sessions" / "s.jsonl", "ab") as file:
                file.write(b"torn")
        place.store = place.new_store()
        session = await place.open()
        await session.set_name("named")
        store = place.store
        await store.repair("s", session_id="repaired")
        look()
        await place.end()
        look()
    finally:
        os.umask(before)
    wanted = {"exported", "backup.db", "backup.jsonl"}
    wanted |= {"s.jsonl.torn-1", "repaired.jsonl"} if kind == "jsonl" else {"sessions.db", "sessions.db-wal"}
    assert wanted <= seen


def change(folder: Path, kept: str) -> None:
    """As a damaged page, or a hand, would leave the sum that is kept of each session."""
    database = sqlite3.connect(folder / "sessions.db")
    with database:
        database.execute("UPDATE session SET stats = ?", (kept,))
    database.close()
