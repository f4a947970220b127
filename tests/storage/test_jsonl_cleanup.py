"""Claim: a session file that is cleaned up is, at every moment, a file that holds all that was reported."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from agentlane.data.writes import Address, AppendElement, DeleteList, DeleteValue, InsertEntry, SetValue, Write
from agentlane.errors import OwnershipLost, SessionFaulted
from agentlane.storage import JsonlStore
from agentlane.storage.contract import Compacted, Durability, SessionStorage
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import intact
from agentlane.storage.jsonl_base import fresh_path
from agentlane.testing.conformance import ReferenceSession, dump
from tests.storage.disk import TestDisk

DURABILITIES: tuple[Durability, ...] = ("process", "disk")
NAMESPACES = {"app.check", "op.meta"}
CALLS = ("open", "write", "sync", "rename", "sync_folder", "pread")


def at(key: str) -> Address:
    return Address("app.check", key)


async def commit(storage: SessionStorage, model: ReferenceSession, *writes: Write) -> None:
    model.commit(writes, await storage.submit(writes))


async def fill(storage: SessionStorage, model: ReferenceSession, count: int = 30, start: int = 0) -> None:
    for number in range(start, start + count):
        parent = f"e{number - 1}" if number else None
        meta = Address("op.meta", f"op{number // 10}")
        await commit(
            storage,
            model,
            InsertEntry(f"e{number}", parent, "user", b'"%s"' % (b"x" * 50)),
            SetValue(at("state"), b'"%d %s"' % (number, b"y" * 2000)),
            SetValue(meta, b'{"lane":"main","started_at":%d}' % number)
            if number % 10 < 5
            else DeleteValue(Address("op.meta", f"op{number // 10}")),
            *([DeleteList(at("l"))] if number % 7 == 6 else []),
            AppendElement(at("l"), b'"%d"' % number),
        )


async def same(storage: SessionStorage, model: ReferenceSession) -> None:
    assert await dump(storage, NAMESPACES) == model.dump(NAMESPACES)


class Imaged(FileSystem):
    """The real disk; what it holds before each call that changes it is kept, as a death there would leave it."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder = folder
        self.images = images
        self.taken: list[tuple[str, Path]] = []
        self.on = False

    def image(self, call: str) -> None:
        if self.on:
            copy = self.images / str(len(self.taken))
            shutil.copytree(self.folder, copy)
            self.taken.append((call, copy))

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.image("write")
        taken = super().write(descriptor, memoryview(data)[: max(1, len(data) // 2)] if self.on else data)
        self.image("half a write")
        return taken

    def sync(self, descriptor: int) -> None:
        self.image("sync")
        super().sync(descriptor)

    def rename(self, path: Path, to: Path) -> None:
        self.image("rename")
        super().rename(path, to)
        self.image("renamed")

    def sync_folder(self, path: Path) -> None:
        self.image("sync_folder")
        super().sync_folder(path)

    def unlink(self, path: Path) -> None:
        self.image("unlink")
        super().unlink(path)

    def truncate(self, descriptor: int, size: int) -> None:
        self.image("truncate")
        super().truncate(descriptor, size)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("torn", [False, True])
async def test_killed_at_any_call_it_holds_what_was_reported(
    tmp_path: Path, durability: Durability, torn: bool
) -> None:
    """Alone, and behind a torn tail, which is kept aside first as before any commit."""
    folder = tmp_path / "sessions"
    files = Imaged(folder, tmp_path / "images")
    store = JsonlStore(folder, durability=durability, files=files)
    await store.create("s")
    storage, model = await store.open("s"), ReferenceSession()
    await fill(storage, model)
    if torn:
        await storage.close()
        with open(folder / "s.jsonl", "ab") as file:
            file.write(b'{"k":"0000')
        storage = await store.open("s")
    files.on = True
    await storage.compact()
    files.on = False
    calls = {call for call, _ in files.taken}
    assert calls >= {"write", "half a write", "sync", "rename", "renamed", "sync_folder"}
    await same(storage, model)
    await fill(storage, model, 3, start=30)
    await store.close()

    for call, image in files.taken:
        other = JsonlStore(image, durability=durability)
        found = await other.open("s")
        rows = await found.scan()
        assert [row.id for row in rows] == [f"e{number}" for number in range(30)], call
        assert [each.operation_id for each in await other.open_operations()] == [], call
        # It goes on, also over what the dead one left, and cleans up.
        await found.submit([InsertEntry("next", "e29", "user", b'"n"')])
        await found.compact()
        assert len(await found.scan()) == 31
        await other.close()
        assert not os.path.lexists(fresh_path(image / "s.jsonl"))


class Disk(TestDisk):
    """With the calls that make files and move them."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._call("open")
        return super().open(path, flags, mode)

    def rename(self, path: Path, to: Path) -> None:
        self._call("rename")
        super().rename(path, to)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("call", CALLS)
async def test_each_call_that_fails_leaves_it_whole(tmp_path: Path, durability: Durability, call: str) -> None:
    """The n-th call of a kind fails, for each n: the session goes on as it was, or is faulted, and nothing is lost."""
    ends: set[str] = set()
    for nth in range(60):
        folder = tmp_path / str(nth)
        files = Disk()
        store = JsonlStore(folder, durability=durability, files=files)
        await store.create("s")
        storage, model = await store.open("s"), ReferenceSession()
        await fill(storage, model, 12)
        faults: list[BaseException] = []
        storage.on_fault = faults.append
        files.fail[call] = [*([None] * nth), errno.ENOSPC if call == "write" else errno.EIO]
        told = (await asyncio.gather(storage.compact(), return_exceptions=True))[0]
        if isinstance(told, SessionFaulted):
            assert isinstance(told.__cause__, OSError) and faults == [told.__cause__]
        else:
            assert isinstance(told, OSError | Compacted) and not faults
        ends.add(type(told).__name__)
        done = not files.fail.pop(call)[:1]
        await same(storage, model)
        if faults:
            with pytest.raises(SessionFaulted):
                storage.submit([SetValue(at("v"), b"1")])
            await storage.close()
            storage = await store.open("s")
        await fill(storage, model, 2, start=12)
        await same(storage, model)
        await storage.close()
        storage = await store.open("s")
        await same(storage, model)
        await store.close()
        assert sorted(each.name for each in folder.iterdir()) == ["s.jsonl", "s.jsonl.lock"]
        if not done:
            break
    else:
        raise AssertionError("the plan never ran out")
    assert ends == {"Compacted", "SessionFaulted" if call == "sync_folder" else "OSError"}


async def test_by_itself_when_enough_is_superseded_and_not_before(tmp_path: Path) -> None:
    """The file stays within a few times of what it holds, whatever the number of commits; and opens at once."""
    store = JsonlStore(tmp_path, durability="process", compact_min_bytes=20_000)
    await store.create("s")
    storage, model = await store.open("s"), ReferenceSession()
    path = tmp_path / "s.jsonl"
    cleaner = storage._cleaner  # type: ignore[attr-defined]
    for number in range(60):
        await fill(storage, model, 10, start=number * 10)
        if number % 2:  # else the next commits come beside a cleanup that is under way
            await cleaner.ended()
    await same(storage, model)
    assert path.stat().st_size < 600 * 2300 / 3
    assert path.read_bytes().splitlines()[0].find(b'"agentlane":2') > 0
    assert all(intact(line) for line in path.read_bytes().splitlines())
    await store.close()
    assert await _sizes_of_plain(tmp_path / "plain", share=None) > 600 * 2000


async def _sizes_of_plain(folder: Path, share: float | None) -> int:
    store = JsonlStore(folder, durability="process", compact_share=share, compact_min_bytes=20_000)
    await store.create("s")
    storage = await store.open("s")
    await fill(storage, ReferenceSession(), 600)
    await store.close()
    return (folder / "s.jsonl").stat().st_size


async def test_what_is_not_superseded_is_not_written_again(tmp_path: Path) -> None:
    files = Disk()
    store = JsonlStore(tmp_path, durability="process", compact_min_bytes=1000, files=files)
    await store.create("s")
    storage = await store.open("s")
    for number in range(200):
        await storage.submit([InsertEntry(f"e{number}", None, "user", b'"%s"' % (b"x" * 1000))])
        await asyncio.sleep(0)
    await store.close()
    assert files.bytes_written < 250_000 and files.calls["rename"] == 1  # of the header


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_readers_of_the_old_file_read_on(tmp_path: Path, durability: Durability) -> None:
    """A session that is open for reading, and a snapshot of it, beside cleanups and commits of the owner."""
    store = JsonlStore(tmp_path, durability=durability)
    await store.create("s")
    storage, model = await store.open("s"), ReferenceSession()
    await fill(storage, model)
    reader = await store.open("s", read_only=True)
    then = model.dump(NAMESPACES)
    snapshot = await reader.snapshot()
    for start in (30, 60):
        await storage.compact()
        await fill(storage, model, 30, start=start)
    assert await dump(reader, NAMESPACES) == then
    rows = [row async for page in snapshot.pages() for row in page]
    assert len(rows) == 30 + sum(len(each) for each in then["lists"]["app.check"].values()) + 1
    await snapshot.close()
    await same(storage, model)
    await store.close()


async def test_a_cleanup_of_a_file_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path, durability="process")
    await store.create("s")
    storage, model = await store.open("s"), ReferenceSession()
    await fill(storage, model)
    path = tmp_path / "s.jsonl"
    os.rename(path, tmp_path / "aside")
    path.write_bytes(b"somebody else's")
    with pytest.raises(OwnershipLost):
        await storage.compact()
    assert path.read_bytes() == b"somebody else's"
    assert not os.path.lexists(fresh_path(path))
    await store.close()


async def test_deleting_a_session_removes_what_a_killed_cleanup_left(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    await store.create("s")
    fresh_path(tmp_path / "s.jsonl").write_bytes(b"half of a file")
    await store.delete("s")
    assert list(tmp_path.iterdir()) == []
    await store.close()
