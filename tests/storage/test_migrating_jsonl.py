"""Claim: a session file of an older format is written anew when it is first opened for writing, whole at each moment
and nothing lost; until then, and wherever that cannot be, it is read as it is.

There is no step of our own yet: formats 1 and 2 are both written. So the steps are those of a later version.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentlane import open_session
from agentlane.errors import SessionOwned, UnsupportedFormat
from agentlane.storage import JsonlStore, SqliteStore, jsonl_formats
from agentlane.storage.contract import Row
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import FORMAT, decode_header
from agentlane.storage.migrating import Chain, Step
from tests.compat.every_state import SESSION
from tests.compat.test_every_state import GOLDEN, check_ends, stored
from tests.storage.backends import content
from tests.storage.disk import TestDisk
from tests.storage.faults.media import KINDS, descriptors, medium_at
from tests.storage.faults.planned import Faults
from tests.storage.faults.workload import judge

FILES = ["states-1.jsonl", "states-2.jsonl"]
OPEN = 25
"""How many operations are open in them."""
LATER = FORMAT + 2
TORN = b'{"k":"torn'
STEP, STEP_WHOLE = 11, 5
"""Each so-maniest call of a migrating open fails. By hand: each."""


@contextmanager
def later_version() -> Iterator[None]:
    """The library as one that is two formats later."""
    with pytest.MonkeyPatch.context() as patch:
        steps = (Step(FORMAT, "a test", None), Step(FORMAT + 1, "another", None))
        patch.setattr(jsonl_formats, "CHAIN", Chain(*steps, newest=LATER))
        yield


def older(folder: Path, name: str, tail: bytes = b"") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SESSION}.jsonl"
    path.write_bytes((GOLDEN / name).read_bytes() + tail)
    path.chmod(0o600)
    return path


def format_of(path: Path) -> int:
    return decode_header(path.read_bytes().partition(b"\n")[0]).format


async def rows_of(path: Path) -> list[Row]:
    store = JsonlStore.for_file(path)
    storage = await store.open(SESSION, read_only=True)
    rows = await stored(storage)
    await store.close()
    return rows


def test_a_file_takes_the_steps_from_its_format_on() -> None:
    assert [jsonl_formats.due(each) for each in (1, FORMAT)] == [(), ()]
    with later_version():
        assert [len(jsonl_formats.due(each)) for each in (1, FORMAT, FORMAT + 1, LATER)] == [2, 2, 1, 0]


@pytest.mark.parametrize("name", FILES)
async def test_what_this_version_writes_itself_is_left_alone(tmp_path: Path, name: str) -> None:
    path = older(tmp_path, name)
    before = content(tmp_path)
    store = JsonlStore(tmp_path)
    storage = await store.open(SESSION)
    assert list(storage.findings) == []
    await store.close()
    assert content(tmp_path) == before and path.exists()


@pytest.mark.parametrize("name", FILES)
async def test_the_first_open_for_writing_migrates_and_loses_nothing(tmp_path: Path, name: str) -> None:
    path = older(tmp_path, name)
    rows = await rows_of(path)
    with later_version():
        store = JsonlStore(tmp_path)
        storage = await store.open(SESSION)
        (told,) = storage.findings
        assert f"migrated from format {name[7]} to {LATER}" in told
        assert (await stored(storage), storage.epoch) == (rows, 3)
        assert len(await store.open_operations()) == OPEN
        await store.close()
        assert format_of(path) == LATER and await rows_of(path) == rows
        assert sorted(content(tmp_path)) == [path.name]
        storage = await JsonlStore(tmp_path).open(SESSION)
        assert list(storage.findings) == []
        await storage.close()
        await check_ends(JsonlStore(tmp_path, durability="process"))
        assert format_of(path) == LATER
    after = content(tmp_path)
    for read_only in (True, False):
        with pytest.raises(UnsupportedFormat, match=f"format {LATER}, and this version reads up to {FORMAT}"):
            await JsonlStore(tmp_path).open(SESSION, read_only=read_only)
    assert content(tmp_path) == after


@pytest.mark.parametrize("name", FILES)
async def test_an_older_file_is_read_as_it_is_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    path = older(tmp_path / "s", name)
    before = content(path.parent)
    with later_version():
        store = JsonlStore(path.parent)
        assert [info.id for info in await store.list()] == [SESSION]
        assert len(await store.open_operations()) == OPEN
        assert {hit.session_id for hit in await store.search("generating")} == {SESSION}
        session = await open_session(store, session_id=SESSION, read_only=True)
        rows = await stored(session._runtime.storage)
        assert await session.search("generating")
        await session.backup(tmp_path / "backup")
        await session.backup(tmp_path / "backup.db")
        await session.fork(JsonlStore(tmp_path / "forks"), session_id="fork")
        await session.close()
        await store.export(SESSION, tmp_path / "export.jsonl")
        await store.import_session(tmp_path / "export.jsonl", session_id="import")
        storage = await store.open("import", read_only=True)
        assert await stored(storage) == rows
        await storage.close()
        await store.delete("import")
        await store.close()
        for copy in (JsonlStore(tmp_path / "backup"), SqliteStore(tmp_path / "backup.db")):
            storage = await copy.open(SESSION, read_only=True)
            assert await stored(storage) == rows
            await copy.close()
        assert format_of(tmp_path / "backup" / path.name) == LATER
    assert content(path.parent) == before


async def test_a_torn_tail_is_kept_aside(tmp_path: Path) -> None:
    path = older(tmp_path, FILES[0], TORN)
    rows = await rows_of(path)
    with later_version():
        store = JsonlStore(tmp_path)
        storage = await store.open(SESSION)
        assert len([each for each in storage.findings if "were cut off" in each]) == 1
        await store.close()
        assert await rows_of(path) == rows and format_of(path) == LATER
    assert (tmp_path / f"{path.name}.torn-1").read_bytes() == TORN


class DyingFiles(FileSystem):
    """Files of a process that may die at each call that changes something: before it, in the middle, and after it."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder = folder
        self.copies = copies
        self.dead: list[Path] = []

    def _die(self) -> None:
        self.dead.append(self.copies / str(len(self.dead)))
        shutil.copytree(self.folder, self.dead[-1])

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        descriptor = super().open(path, flags, mode)
        if flags & os.O_CREAT:
            self._die()
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        half = super().write(descriptor, memoryview(data)[: len(data) // 2])
        self._die()
        return half + super().write(descriptor, memoryview(data)[half:])

    def sync(self, descriptor: int) -> None:
        self._die()

    def sync_folder(self, path: Path) -> None:
        self._die()

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self._die()

    def rename(self, path: Path, to: Path) -> None:
        self._die()
        super().rename(path, to)
        self._die()


@pytest.mark.parametrize("name", FILES)
async def test_a_death_at_any_call_leaves_a_whole_file_of_one_format(tmp_path: Path, name: str) -> None:
    path = older(tmp_path / "s", name, TORN)
    rows = await rows_of(path)
    with later_version():
        files = DyingFiles(path.parent, tmp_path / "dead")
        store = JsonlStore(path.parent, files=files)
        await (await store.open(SESSION)).close()
        await store.close()
        found = [format_of(each / path.name) for each in files.dead]
        assert set(found) == {int(name[7]), LATER} and found == sorted(found) and len(found) >= 10
        for each in files.dead:
            assert await rows_of(each / path.name) == rows
            again = JsonlStore(each)
            storage = await again.open(SESSION)
            assert await stored(storage) == rows and len(await again.open_operations()) == OPEN
            await again.close()
            assert format_of(each / path.name) == LATER
            assert {file.split(".torn")[0] for file in content(each)} == {path.name}, "nothing is left of the dead one"
            assert (each / f"{path.name}.torn-1").read_bytes() in (TORN, TORN[: len(TORN) // 2], b"")
    old = [each for each, number in zip(files.dead, found, strict=True) if number <= FORMAT]
    assert len(old) > 3


@pytest.mark.parametrize("medium", ["jsonl-process", "jsonl-disk"])
async def test_every_call_of_a_migrating_open_may_fail(tmp_path: Path, medium: str, whole: bool) -> None:
    rows = await rows_of(older(tmp_path / "first", FILES[0]))
    step = STEP_WHOLE if whole else STEP
    nth, failures = 1, 0
    with later_version():
        while True:
            folder = tmp_path / f"at-{nth}"
            path = older(folder / "s", FILES[0], TORN)
            before = descriptors()
            faults = Faults(KINDS[medium], nth=nth, permanent=nth // step % 2 == 1)
            with medium_at(medium, folder, faults) as made:
                store = made.store()
                try:
                    await (await store.open(SESSION)).close()
                except Exception as error:
                    failures += 1
                    judge(faults, "a migrating open", error)
                faults.lift()
                assert await rows_of(path) == rows, faults.struck
                assert format_of(path) in (1, LATER), faults.struck
                await (await store.open(SESSION)).close()
                await store.close()
            assert descriptors() == before, f"left open after {faults.struck}"
            assert format_of(path) == LATER and await rows_of(path) == rows, faults.struck
            assert not [each for each in content(path.parent) if each.endswith(".new")], faults.struck
            shutil.rmtree(folder)
            if not faults.struck:
                break
            nth += step
    assert failures > 3


async def test_a_full_disk_leaves_the_old_file_usable(tmp_path: Path) -> None:
    path = older(tmp_path, FILES[0])
    before, rows = content(tmp_path), await rows_of(path)
    files = TestDisk()
    with later_version():
        store = JsonlStore(tmp_path, files=files)
        files.full_after(1000)
        with pytest.raises(OSError) as caught:
            await store.open(SESSION)
        assert caught.value.errno == errno.ENOSPC
        assert content(tmp_path) == before
        reader = await store.open(SESSION, read_only=True)
        assert await stored(reader) == rows
        await (await store.open(SESSION)).close()  # there is space again
        assert format_of(path) == LATER and await stored(reader) == rows
        await store.close()


async def test_a_folder_that_cannot_be_synced_behind_it_is_an_error_and_nothing_stays_open(tmp_path: Path) -> None:
    """The new file has its place, and it is not known whether it keeps it when the power is lost."""
    path = older(tmp_path, FILES[0])
    rows, before = await rows_of(path), descriptors()
    files = TestDisk()
    with later_version():
        store = JsonlStore(tmp_path, files=files)
        files.fail["sync_folder"] = [errno.EIO]
        with pytest.raises(OSError) as caught:
            await store.open(SESSION)
        assert (caught.value.errno, descriptors()) == (errno.EIO, before)
        assert format_of(path) == LATER and await rows_of(path) == rows
        await (await store.open(SESSION)).close()
        await store.close()


async def test_of_two_that_open_at_once_one_migrates(tmp_path: Path) -> None:
    path = older(tmp_path, FILES[0])
    rows = await rows_of(path)
    with later_version():
        stores = [JsonlStore(tmp_path), JsonlStore(tmp_path)]
        opened = await asyncio.gather(*(store.open(SESSION) for store in stores), return_exceptions=True)
        assert sorted(isinstance(each, SessionOwned) for each in opened) == [False, True]
        for store in stores:
            await store.close()
        assert await rows_of(path) == rows and format_of(path) == LATER


class HeldFiles(FileSystem):
    """The new file is held back before it takes its place."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.look = ""

    def rename(self, path: Path, to: Path) -> None:
        done = subprocess.run([sys.executable, "-c", self.look], capture_output=True, text=True, check=False)
        self.seen += (done.stdout or done.stderr).split()
        super().rename(path, to)


async def test_beside_a_migration_others_are_refused_and_readers_read(tmp_path: Path) -> None:
    older(tmp_path, FILES[0])
    files = HeldFiles()
    files.look = f"""
import asyncio
from agentlane.errors import SessionOwned
from agentlane.storage import JsonlStore
async def main():
    store = JsonlStore({str(tmp_path)!r})
    reader = await store.open({SESSION!r}, read_only=True)
    print(len(await reader.values("op.meta")))
    try:
        await store.open({SESSION!r})
    except SessionOwned as error:
        print(error.code)
    await store.close()
asyncio.run(main())
"""
    with later_version():
        store = JsonlStore(tmp_path, files=files)
        reader = await JsonlStore(tmp_path).open(SESSION, read_only=True)
        page = await reader.scan(limit=3)
        storage = await store.open(SESSION)
        assert files.seen == [str(OPEN), SessionOwned.code]
        rest = await reader.scan(after_seq=page[-1].seq)  # from the file that is no longer there
        assert rest == await storage.scan(after_seq=page[-1].seq) != []
        await reader.close()
        await store.close()


async def test_cancelled_it_leaves_the_old_file(tmp_path: Path) -> None:
    path = older(tmp_path, FILES[0])
    before = content(tmp_path)
    with later_version():
        store = JsonlStore(tmp_path)
        opening = asyncio.create_task(store.open(SESSION))
        while not (tmp_path / f".{path.name}.new").exists():
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert content(tmp_path) == before
        await (await store.open(SESSION)).close()
        await store.close()
        assert format_of(path) == LATER
