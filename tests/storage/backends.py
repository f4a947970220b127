"""The backends that the storage tests run on: how to make each, and how to do it harm."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

from agentlane.storage.contract import Durability
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import FORMAT, Header, header_line
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.schema import FORMAT_VERSION
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.conformance import Harness

Backend: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Harness]]
"""Makes a harness on a fresh place below a folder."""


class TickingClock(ManualClock):
    """A clock that moves on by a millisecond each time it is looked at: what comes later is later."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


# Memory.


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Harness]:
    clock, stores = TickingClock(), list[MemoryStore]()

    def store() -> MemoryStore:
        stores.append(MemoryStore(clock=clock, ids=CountingIds(series=len(stores))))
        return stores[-1]

    async def take_over(session_id: str) -> None:
        medium = stores[-1]._media[session_id]
        medium.owner = None
        medium.epoch += 1

    yield Harness(store=store, take_over=take_over)


# JSONL.


class BreakingFiles(FileSystem):
    """Files on a medium that can be told to fail: half a line is written and no more, or nothing is synced."""

    def __init__(self) -> None:
        self.broken: Literal["write", "sync"] | None = None

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self.broken != "write":
            return super().write(descriptor, data)
        half = len(data) // 2
        if half:
            return super().write(descriptor, data[:half])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, descriptor: int) -> None:
        if self.broken == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


def jsonl(durability: Durability, breaks: Literal["write", "sync"]) -> Backend:
    @asynccontextmanager
    async def backend(folder: Path) -> AsyncIterator[Harness]:
        clock, numbers, files = TickingClock(), count(), BreakingFiles()

        def store() -> JsonlStore:
            ids, index = CountingIds(series=next(numbers)), 0 if durability == "process" else None
            return JsonlStore(folder, durability=durability, clock=clock, ids=ids, files=files, index_min_bytes=index)

        @contextmanager
        def break_medium(session_id: str) -> Iterator[None]:
            files.broken = breaks
            try:
                yield
            finally:
                files.broken = None

        async def take_over(session_id: str) -> None:
            lock = folder / f"{session_id}.jsonl.lock"
            lock.unlink()
            lock.touch(0o600)

        def path(session_id: str) -> Path:
            return folder / f"{session_id}.jsonl"

        def make_newer(session_id: str) -> None:
            lines = path(session_id).read_bytes().split(b"\n")
            lines[0] = header_line(Header(format=FORMAT + 1, id=session_id, created_at=1, metadata={})).rstrip(b"\n")
            path(session_id).write_bytes(b"\n".join(lines))

        def with_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[str], None]:
            def damage(session_id: str) -> None:
                lines = path(session_id).read_bytes().split(b"\n")
                assert len(lines) == 12, "a header, ten commits, and the end of the last line"
                path(session_id).write_bytes(b"\n".join(change(lines)))

            return damage

        yield Harness(
            store=store,
            break_medium=break_medium,
            take_over=take_over,
            open_elsewhere=elsewhere(f"JsonlStore({str(folder)!r}, durability={durability!r})"),
            damages={
                "a bit flipped in a commit": with_lines(lambda each: [*each[:4], flipped(each[4]), *each[5:]]),
                "a bit flipped in the header": with_lines(lambda each: [flipped(each[0]), *each[1:]]),
                "a commit missing": with_lines(lambda each: [*each[:4], *each[5:]]),
                "a commit twice": with_lines(lambda each: [*each[:5], *each[4:]]),
                "two commits in the wrong order": with_lines(lambda each: [*each[:4], each[5], each[4], *each[6:]]),
                "a commit cut short": with_lines(lambda each: [*each[:4], each[4][:-9], *each[5:]]),
                "nothing but a byte": with_lines(lambda each: [b"{"]),
            },
            make_newer=make_newer,
            content=lambda: content(folder),
        )

    return backend


# SQLite.


def sqlite(durability: Durability) -> Backend:
    @asynccontextmanager
    async def backend(folder: Path) -> AsyncIterator[Harness]:
        clock, numbers, path = TickingClock(), count(), folder / "sessions.db"

        def store() -> SqliteStore:
            return SqliteStore(path, durability=durability, clock=clock, ids=CountingIds(series=next(numbers)))

        @contextmanager
        def break_medium(session_id: str) -> Iterator[None]:
            # No file of this process may grow or be written beyond its first bytes: the log cannot be written.
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

        async def take_over(session_id: str) -> None:
            # In another process: opening and closing the file here would drop the owner's locks.
            statement = f"UPDATE session SET epoch = epoch + 1 WHERE id = {session_id!r}"
            await child(f"import sqlite3\nwith sqlite3.connect({str(path)!r}) as c: c.execute({statement!r})")

        def with_sql(*statements: str) -> Callable[[str], None]:
            def damage(session_id: str) -> None:
                with closing(sqlite3.connect(path)) as connection:
                    connection.executescript(";".join(statements))

            return damage

        def with_page(session_id: str) -> None:
            """Overwrite every page but the first few, so that one with our rows is hit."""
            size = path.stat().st_size
            with path.open("r+b") as file:
                for start in range(4096, size, 4096):
                    file.seek(start)
                    file.write(b"\xff" * 64)

        one = "(SELECT place FROM entry ORDER BY seq LIMIT 1 OFFSET 4)"
        yield Harness(
            store=store,
            break_medium=break_medium,
            take_over=take_over,
            open_elsewhere=elsewhere(f"SqliteStore({str(path)!r}, durability={durability!r})"),
            damages={
                "an entry missing": with_sql(f"DELETE FROM entry WHERE place = {one}"),
                "a segment based on itself": with_sql("UPDATE segment SET base = (SELECT max(place) FROM entry)"),
                "a segment based on nothing": with_sql("UPDATE segment SET base = (99 << 32) | 7"),
                "pages overwritten": with_page,
                "half a file": lambda session_id: os.truncate(path, path.stat().st_size // 2),
            },
            make_newer=with_sql(f"PRAGMA user_version = {FORMAT_VERSION + 1}"),
            make_older=with_sql(*_TO_FORMAT_1),
            content=lambda: content(folder),
        )

    return backend


_TO_FORMAT_1 = (
    *("ALTER TABLE value RENAME TO v", "ALTER TABLE element RENAME TO e", "ALTER TABLE session DROP COLUMN stats"),
    """CREATE TABLE value (session INTEGER NOT NULL, namespace TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL,
    payload TEXT NOT NULL, PRIMARY KEY (session, namespace, key)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE element (session INTEGER NOT NULL, namespace TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL,
    payload TEXT NOT NULL, PRIMARY KEY (session, namespace, key, seq)) STRICT, WITHOUT ROWID""",
    "INSERT INTO value SELECT session, namespace, key, seq, payload FROM v",
    "INSERT INTO element SELECT session, namespace, key, seq, payload FROM e",
    *("DROP TABLE v", "DROP TABLE e", "PRAGMA user_version = 1"),
    "CREATE INDEX open_operation ON value (session, key) WHERE namespace = 'op.meta'",
)
"""What makes a database of ours one of the first format."""


BACKENDS: dict[str, Backend] = {
    "memory": memory,
    "jsonl-process": jsonl("process", breaks="write"),
    "jsonl-disk": jsonl("disk", breaks="sync"),
    "sqlite-process": sqlite("process"),
    "sqlite-disk": sqlite("disk"),
}


def maker(name: str, folder: Path) -> Callable[[], AbstractAsyncContextManager[Harness]]:
    """Makes a harness of the backend of that name, as often as called, each in a folder of its own."""
    numbers = count()

    def make() -> AbstractAsyncContextManager[Harness]:
        place = folder / str(next(numbers))
        place.mkdir()
        return BACKENDS[name](place)

    return make


# What they share.


def flipped(line: bytes) -> bytes:
    """``line`` with one bit in its middle changed."""
    middle = len(line) // 2
    return line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :]


def content(folder: Path) -> Mapping[str, bytes]:
    """Every file but locks and the index that SQLite rebuilds from its log; an empty log is none."""
    files = {each.name: each.read_bytes() for each in sorted(folder.iterdir())}
    return {
        name: data
        for name, data in files.items()
        if not name.endswith((".lock", "-shm")) and (data or "-wal" not in name)
    }


def elsewhere(store: str) -> Callable[[str], Awaitable[str | None]]:
    """Opens a session by ``store``, an expression, in another process."""

    async def open_elsewhere(session_id: str) -> str | None:
        code = await child(
            f"""
import asyncio
from agentlane.errors import AgentLaneError
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.sqlite import SqliteStore
async def main():
    store = {store}
    try:
        await (await store.open({session_id!r})).close()
    except AgentLaneError as error:
        print(error.code)
    await store.close()
asyncio.run(main())
"""
        )
        return code.strip() or None

    return open_elsewhere


async def child(program: str) -> str:
    """Run a program in a process of its own and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return printed.decode()
