"""Claim: an exported session is a file of which any store makes the same again, to the byte, or nothing at all."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import Prompt, Session, Settled, open_session
from agentlane.errors import (
    AgentLaneError,
    CorruptSession,
    InvalidMessage,
    InvalidName,
    InvalidWrite,
    SessionOwned,
    UnknownSession,
    UnsupportedFormat,
)
from agentlane.storage import JsonlStore, MemoryStore, Row, SessionInfo, SqliteStore
from agentlane.storage.lock import OwnerLock
from agentlane.testing import check_invariants
from agentlane.testing.wrapping import WrappedStore
from tests.session.copies import play, rows_in, rows_of, speaker
from tests.session.places import KINDS, Place
from tests.session.test_forks_killed import FILL, run

METADATA = {"user": "ann", "n": [1, None, 0.5, "\u2028 現"]}


async def played(kind: str, folder: Path, seed: int) -> tuple[Place, Session]:
    folder.mkdir(exist_ok=True)
    place = Place(kind, folder)
    await place.store.create("s", metadata=METADATA)
    session = await place.open()
    await play(session, seed)
    return place, session


def names(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


@pytest.mark.parametrize("seed", [1, 2])
async def test_it_is_the_same_again_in_every_store(seed: int, tmp_path: Path) -> None:
    """Also open operations, the ledger and what waits; of every store the file has the same bytes."""
    files: list[bytes] = []
    for kind in KINDS:
        place, session = await played(kind, tmp_path / kind, seed)
        assert session.open_operations()
        wanted = await rows_in(session._runtime.storage)
        stream = io.BytesIO()
        await session.export(stream)
        await session.export(tmp_path / f"{kind}.jsonl")
        await place.store.export("s", tmp_path / f"{kind}-2")  # type: ignore[attr-defined]
        files += [stream.getvalue(), (tmp_path / f"{kind}.jsonl").read_bytes(), (tmp_path / f"{kind}-2").read_bytes()]
        for to in KINDS:
            (tmp_path / f"{kind}-{to}").mkdir()
            elsewhere = Place(to, tmp_path / f"{kind}-{to}")
            elsewhere.clock.advance(5)  # so that the time of making is not that of the import
            store: Any = elsewhere.store
            stream.seek(0)
            info = await store.import_session(stream)
            (there,) = [each for each in await place.store.list() if each.id == "s"]
            assert info == there
            assert (info.id, info.metadata) == ("s", METADATA)
            assert await rows_of(store, "s") == wanted, (kind, to)
            await store.import_session(tmp_path / f"{kind}.jsonl", session_id="again")
            assert await rows_of(store, "again") == wanted, (kind, to)
            with pytest.raises(InvalidWrite, match="exists already"):
                await store.import_session(tmp_path / f"{kind}-2")
            async with open_session(store, session_id="s") as copy:
                assert await check_invariants(copy) == []
            await store.close()
        await place.end()
    assert len(set(files)) == 1


async def test_an_exported_file_is_a_session_to_be_opened(place: Place, tmp_path: Path) -> None:
    """And one that was worked on there can be imported too, its newer lines included."""
    session = await place.open()
    await play(session, 3)
    wanted = await rows_in(session._runtime.storage)
    await session.export(tmp_path / "s.jsonl")
    assert (tmp_path / "s.jsonl").stat().st_mode & 0o777 == 0o600
    async with open_session(tmp_path / "s.jsonl", create=False) as copy:
        assert await rows_in(copy._runtime.storage) == wanted
        await (await copy.lane("new", speaker())).run("hello")
        assert await check_invariants(copy) == []
        newer = await rows_in(copy._runtime.storage)
    store = MemoryStore()
    await store.import_session(tmp_path / "s.jsonl")
    assert await rows_of(store, "s") == newer


async def test_an_operation_that_was_open_goes_on_where_it_is_imported(place: Place, tmp_path: Path) -> None:
    """As after the death of a process: what was safe runs again, the rest of the batch has one result each."""
    session = await place.open()
    began = asyncio.Event()
    lane = await session.lane("main", speaker(began))
    await lane.accept(Prompt("call echo hold echo"), operation_id="op-1")
    driving = asyncio.create_task(lane.drive("op-1"))
    await began.wait()
    await lane.steer("and then")
    await session.export(tmp_path / "file")

    store = SqliteStore(tmp_path / "elsewhere.db")
    await store.import_session(tmp_path / "file")
    assert [each.operation_id for each in await store.open_operations()] == ["op-1"]
    async with open_session(store, session_id="s") as copy:
        again = asyncio.Event()
        other = await copy.lane("main", speaker(again))
        assert [each.text for each in other.queued()] == ["and then"]
        going = asyncio.create_task(other.drive("op-1"))
        await again.wait()  # the tool, once more
        await other.abort()
        assert isinstance(ended := await going, Settled) and ended.result.status == "aborted"
        assert await check_invariants(copy) == []
    await store.close()
    assert not driving.done()
    await lane.abort()
    await driving


async def small(tmp_path: Path) -> bytes:
    async with open_session(":memory:", session_id=None, metadata={"a": 1}) as session:
        await (await session.lane("main", speaker())).accept(Prompt("hello"))
        stream = io.BytesIO()
        await session.export(stream)
        return stream.getvalue()


async def test_damage_anywhere_is_refused_with_its_place(tmp_path: Path, whole: bool) -> None:
    """Each byte changed, and each cut: nothing is made of it, and the error names a line."""
    good = await small(tmp_path)
    store = MemoryStore()
    step = 1 if whole else 5
    broken = [good[:cut] for cut in range(0, len(good), step)]
    broken += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), step)]
    broken += [good + b"more\n", good + b"\0" * 100, good + good, good + b"{"]
    for data in broken:
        with pytest.raises((CorruptSession, UnsupportedFormat)) as caught:
            await store.import_session(io.BytesIO(data))
        assert any(word in str(caught.value) for word in ("line", "byte", "format 3"))
    assert await store.list() == []
    assert (await store.import_session(io.BytesIO(good))).metadata == {"a": 1}


async def test_a_torn_file_of_a_session_is_refused_with_its_line(tmp_path: Path) -> None:
    """To open it sets the tail aside; an import loses nothing in silence."""
    async with open_session(tmp_path / "s.jsonl") as session:
        await (await session.lane("main", speaker())).run("hello")
        wanted = await rows_in(session._runtime.storage)
    data = (tmp_path / "s.jsonl").read_bytes()
    store = MemoryStore()
    (tmp_path / "torn").write_bytes(data + b'{"k":"')
    with pytest.raises(CorruptSession, match=f"line {len(data.splitlines()) + 1} .*incomplete"):
        await store.import_session(tmp_path / "torn")
    assert await store.list() == []
    await store.import_session(tmp_path / "s.jsonl")
    assert await rows_of(store, "s") == wanted


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptSession),
        (b"\n\n", CorruptSession),
        (b'[{"role": "user", "content": "hi"}]', CorruptSession),
        (b'{"role": "user", "content": "hi"}\n', CorruptSession),
        (b"SQLite format 3\x00" + b"\0" * 5000, CorruptSession),
        (os.urandom(20_000), CorruptSession),
        (b'{"agentlane":99,"s":"s","t":1}\n', UnsupportedFormat),
        (b"x" * 3_000_000, CorruptSession),
    ],
    ids=["empty", "newlines", "list", "message", "sqlite", "noise", "newer", "long"],
)
async def test_a_foreign_file_is_refused(content: bytes, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    store = SqliteStore(tmp_path / "store.db")
    for file in (tmp_path / "file", io.BytesIO(content)):
        with pytest.raises(error):
            await store.import_session(file)
    assert names(tmp_path) == ["file"], "not even a database is made"
    assert (tmp_path / "file").read_bytes() == content


class Trickle(io.RawIOBase):
    """Takes and gives a few bytes at a time, and fails at ``full``."""

    def __init__(self, data: bytes = b"", full: int | None = None) -> None:
        self.data = bytearray(data)
        self.full = full
        self.at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.full is not None and len(self.data) >= self.full:
            raise OSError(28, "No space left on device")
        taken = bytes(data[:1000])
        self.data += taken
        return len(taken)

    def read(self, size: int = -1) -> bytes:
        part = bytes(self.data[self.at : self.at + min(size, 1000)])
        self.at += len(part)
        return part


async def test_file_objects_that_take_little_and_that_fail(place: Place) -> None:
    session = await place.open()
    await play(session, 1)
    wanted = await rows_in(session._runtime.storage)
    trickle = Trickle()
    await session.export(trickle)  # type: ignore[arg-type]
    store = MemoryStore()
    await store.import_session(trickle)  # type: ignore[arg-type]
    assert await rows_of(store, "s") == wanted

    full = Trickle(full=4000)
    with pytest.raises(OSError, match="No space"):
        await session.export(full)  # type: ignore[arg-type]
    with pytest.raises(CorruptSession):
        await MemoryStore().import_session(io.BytesIO(bytes(full.data)))
    await session.set_name("goes on")


async def test_what_cannot_be_is_refused_and_changes_nothing(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    await session.set_name("x")
    (tmp_path / "there").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = names(tmp_path)
    wrong: list[tuple[type[Exception], str, Any]] = [
        (InvalidWrite, "there already", tmp_path / "there"),
        (InvalidWrite, "there already", tmp_path / "folder"),
        (InvalidName, "no folder", tmp_path / "there" / "x"),
        (InvalidName, "no file can", ""),
        (InvalidName, "no file can", "a\0b"),
        (InvalidName, "no file can", b"bytes"),
        (InvalidMessage, "bytes", 5),
        (InvalidMessage, "bytes", io.StringIO()),
    ]
    for error, match, file in wrong:
        if not (isinstance(file, bytes)):
            with pytest.raises(error, match=match):
                await session.export(file)
    held = OwnerLock.acquire(tmp_path / "held.lock", error=SessionOwned, what="it")
    with pytest.raises(SessionOwned, match="held"):
        await session.export(tmp_path / "held")
    held.release(unlink=True)
    with pytest.raises(UnknownSession):
        await place.store.export("ghost", tmp_path / "x")  # type: ignore[attr-defined]
    for error, match, file in [
        (UnknownSession, "no file", tmp_path / "ghost"),
        (InvalidName, "no plain file", tmp_path / "folder"),
        (InvalidName, "no plain file", "/dev/null"),
        (InvalidMessage, "bytes", io.StringIO()),
        (InvalidMessage, "bytes", None),
    ]:
        with pytest.raises(error, match=match):
            await place.store.import_session(file)  # type: ignore[attr-defined]
    assert names(tmp_path) == before
    assert (tmp_path / "there").read_text() == "mine"
    assert [each.id for each in await place.store.list()] == ["s"]


class Stopping(WrappedStore):
    """A store whose ``load`` is stopped before its ``at``-th page."""

    def __init__(self, inner: Any, at: int) -> None:
        super().__init__(inner)
        self.at = at

    async def load(self, pages: Any, **options: Any) -> SessionInfo:
        return await super().load(self._stopped(pages), **options)

    async def _stopped(self, pages: Any) -> AsyncIterator[Sequence[Row]]:
        left = self.at
        async for page in pages:
            if not left:
                raise Stopped
            left -= 1
            yield page
        if not left:
            raise Stopped


class Stopped(Exception):
    """What ends a load here."""


async def test_an_import_that_ends_early_leaves_nothing(place: Place, tmp_path: Path) -> None:
    memory = Place("memory", tmp_path)
    session = await memory.open("other")
    await play(session, 2)
    wanted = await rows_in(session._runtime.storage)
    await session.export(tmp_path / "file")
    await place.store.create("s")
    at = 0
    while True:
        try:
            await Stopping(place.store, at).import_session(tmp_path / "file")
        except Stopped:
            assert [each.id for each in await place.store.list()] == ["s"]
        else:
            break
        at += 1
    assert at >= 4
    assert await rows_of(place.store, "other") == wanted
    await memory.end()


async def test_an_export_that_is_cancelled_or_fails_leaves_no_file(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path / "sessions", durability="process")
    await store.create("s")
    async with open_session(store) as session:
        lane = await session.lane("main", speaker())
        for _ in range(600):
            await lane.append_custom("note")
        before = names(tmp_path)
        for turns in (1, 2, 3):
            exporting = asyncio.ensure_future(session.export(tmp_path / "out"))
            for _ in range(turns):
                await asyncio.sleep(0)
            exporting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await exporting
            assert names(tmp_path) == before
        await session.export(tmp_path / "out")
        assert names(tmp_path) == sorted([*before, "out"])
    with pytest.raises(AgentLaneError, match="closed"):
        await session.export(tmp_path / "late")
    await store.close()


MEASURE = """
import asyncio, sys, time
from agentlane import open_session
from agentlane.storage import SqliteStore

folder = sys.argv[1]

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

async def main():
    async with open_session(folder + "/first") as session:
        idle = peak()
        await session.export(folder + "/file")
        print(peak() - idle)
    idle = peak()
    await SqliteStore(folder + "/second.db").import_session(folder + "/file")
    print(peak() - idle)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sizes are read from /proc")
async def test_a_large_session_takes_little_memory(tmp_path: Path, whole: bool) -> None:
    count, kilobytes = (50_000, 64 << 10) if whole else (5_000, 16 << 10)
    await run(FILL, str(tmp_path / "first"), str(count))
    for taken in await run(MEASURE, str(tmp_path)):
        print(f"{count} entries: {taken} KiB")
        assert taken < kilobytes
