"""Claim: a process that dies in a fork leaves its source as it was and no session, or a whole one; the next clears up.

And a fork of a large session takes memory for its ids, not for what is in it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentlane import open_session
from agentlane.storage import JsonlStore, SqliteStore, Store
from agentlane.storage.files import FileSystem
from agentlane.testing import check_invariants
from tests.session.copies import rows_in, rows_of, speaker
from tests.session.places import Place
from tests.session.test_forking import tree_of

ENTRIES = 600


class Killed(BaseException):
    """What ends a process here."""


class DyingFiles(FileSystem):
    """Files of a process that dies at its ``at``-th call: half a write is made, and nothing is cleared up."""

    def __init__(self, at: int | None) -> None:
        self.calls = 0
        self.at = at

    def _called(self) -> bool:
        self.calls += 1
        if self.at is not None and self.calls > self.at:
            raise Killed
        return self.calls == self.at

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if self._called():
            super().write(descriptor, data[: len(data) // 2])
            raise Killed
        return super().write(descriptor, data)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("open", "sync", "sync_folder", "rename", "unlink", "names", "close"):

            def call(*arguments: Any) -> Any:
                if self._called():
                    raise Killed
                return found(*arguments)

            return call
        return found


async def filled(folder: Path) -> Place:
    """A session with several pages of entries."""
    place = Place("memory", folder)
    session = await place.open()
    lane = await session.lane("main", speaker())
    for number in range(ENTRIES):
        await lane.append_custom("note", {"n": number, "text": "x" * 1_000})
    await lane.run("hello")
    return place


async def test_killed_at_each_call_of_the_file_system(tmp_path: Path) -> None:
    """Each call in turn until none is left: before the file has its name nothing is there, from then on all of it."""
    place = await filled(tmp_path)
    session = await place.open(read_only=True)
    wanted = tree_of(await rows_in(session._runtime.storage))
    seen: list[bool] = []
    while True:
        folder = tmp_path / f"killed-{len(seen)}"
        files = DyingFiles(len(seen) + 1)
        try:
            await session.fork(JsonlStore(folder, files=files), session_id="f")
        except Killed:
            pass
        else:
            break
        after = JsonlStore(folder)
        there = [each.id for each in await after.list()]
        assert there in ([], ["f"])
        seen.append(bool(there))
        if there:
            assert await rows_of(after, "f") == wanted
            await after.delete("f")
        info = await session.fork(after, session_id="g")
        assert [each.id for each in await after.list()] == [info.id]
        assert await rows_of(after, "g") == wanted
        left = {each.name for each in folder.iterdir()}
        assert left - {"f.jsonl.lock"} == {"g.jsonl", "g.jsonl.lock"}, "what was left is not cleared up"
    assert len(seen) > 8 and seen == sorted(seen) and set(seen) == {True, False}
    await place.end()


FORKER = """
import asyncio, os, sys
from agentlane import open_session
from agentlane.storage import JsonlStore, SqliteStore, forks

folder, kind, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
kept, pages = forks.Rows, 0

async def rows(*arguments):
    global pages
    async for page in kept(*arguments):
        if pages == at:
            os._exit(9)
        pages += 1
        yield page
    if pages == at:
        os._exit(9)

async def main():
    forks.Rows = rows
    name = "s.db" if kind == "sqlite" else "sessions"
    session = await open_session(os.path.join(folder, name), session_id="s")
    await session.fork(session_id="f")
    os._exit(pages)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_killed_at_each_page_in_the_store_of_the_session(kind: str, tmp_path: Path, whole: bool) -> None:
    place = await filled(tmp_path)
    memory = await place.open(read_only=True)
    store: Store = SqliteStore(tmp_path / "s.db") if kind == "sqlite" else JsonlStore(tmp_path / "sessions")
    await memory.fork(store, session_id="s")
    before = await rows_of(store, "s")
    tried = 0
    for at in range(10) if whole else (2,):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORKER, str(tmp_path), kind, str(at), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        if process.returncode != 9:
            assert process.returncode == at - 1, errors.decode()  # it was whole before that page
            assert await rows_of(store, "f") == tree_of(before)
            await store.delete("f")
            break
        tried += 1
        assert [each.id for each in await store.list()] == ["s"]
        assert await rows_of(store, "s") == before
    assert tried >= (4 if whole else 1)
    async with open_session(store, session_id="s") as session:
        info = await session.fork(session_id="f")
        assert await rows_of(store, info.id) == tree_of(before)
        assert (await (await session.lane("main", speaker())).run("more")).text == "said more"
        assert await check_invariants(session) == []
    await place.end()


# How much memory a fork takes: in a process of its own, whose greatest size is then known.

FILL = """
import asyncio, sys
from agentlane import SystemClock, TextPart, UserMessage, Uuid7Source
from agentlane.data import codec
from agentlane.storage import Address, EntryRow, JsonlStore, ValueRow

folder, count = sys.argv[1], int(sys.argv[2])

async def pages():
    ids = Uuid7Source(SystemClock())
    payload = codec.encode(UserMessage(content=(TextPart(text="x" * 500),)))
    parent, page = None, []
    for number in range(1, count + 1):
        new = ids.new()
        page.append(EntryRow(new, parent, number, 1, "user", payload))
        parent = new
        if len(page) == 256 or number == count:
            yield page
            page = []
    yield [ValueRow(Address("branch.tip", "main"), b'"%b"' % parent.encode())]

asyncio.run(JsonlStore(folder).load(pages(), last_seq=count, session_id="s"))
"""

MEASURE = """
import asyncio, sys, time
from agentlane import open_session

source, target, scope = sys.argv[1:]

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

async def main():
    async with open_session(source) as session:
        idle, began = peak(), time.process_time()
        await session.fork(target, scope=scope)
        print(peak() - idle, int(1000 * (time.process_time() - began)))

asyncio.run(main())
"""


async def run(script: str, *arguments: str) -> list[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return [int(each) for each in said.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="sizes are read from /proc")
async def test_a_large_fork_takes_little_memory(tmp_path: Path, whole: bool) -> None:
    """100,000 entries of half a kilobyte, 60 MB in all, under 64 MiB; reduced, a tenth of them under a quarter."""
    count, kilobytes = (100_000, 64 << 10) if whole else (10_000, 16 << 10)
    await run(FILL, str(tmp_path / "first"), str(count))
    for source, target, scope in [("first", "second.db", "tree"), ("second.db", "third", "branch")]:
        taken, milliseconds = await run(MEASURE, str(tmp_path / source), str(tmp_path / target), scope)
        print(f"{source} to {target}, {count} entries: {taken} KiB, {milliseconds} ms")
        assert taken < kilobytes, f"{source} to {target}: {taken} KiB"
