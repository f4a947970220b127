"""Claim: whatever becomes of the files of a SQLite store, a whole first part of its commits is read, or an error of
ours says why not; looking changes nothing.

A database has no checksums: a changed byte in a text, or in a key of an index, is not noticed where it is read. Those
that SQLite's full check would find are counted, and are few.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentlane.errors import AgentLaneError, CorruptSession
from agentlane.storage.schema import PAGE_BYTES
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.conformance.model import ReferenceSession, difference, dump
from tests.storage.faults.workload import LAST, NAMESPACES, commits

GROUPS = [writes for group in [*commits(), LAST] for writes in group]
SUFFIXES = ("", "-wal", "-shm")
FIRST = 5
"""So many commits are copied into the database; the others are in its log alone."""


def store_at(path: Path) -> SqliteStore:
    return SqliteStore(path, durability="process", clock=ManualClock(), ids=CountingIds())


class Sample:
    """Files of a session: closed, as a killed owner leaves them, and what is there after each commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = [ReferenceSession().dump(NAMESPACES)]
        self.live: dict[str, bytes] = {}
        self.closed = b""

    async def make(self) -> Sample:
        path = self.folder / "made.db"
        store, model = store_at(path), ReferenceSession()
        await store.create("s")
        for part in (GROUPS[:FIRST], GROUPS[FIRST:]):
            storage = await store.open("s")
            for writes in part:
                model.commit(writes, await storage.submit(writes))
                self.models.append(model.dump(NAMESPACES))
            if part is not GROUPS[:FIRST] and len(self.models) == len(GROUPS) + 1:
                self.live = {each: Path(f"{path}{each}").read_bytes() for each in SUFFIXES}
            await storage.close()
        self.closed = path.read_bytes()
        return self

    def put(self, files: dict[str, bytes]) -> Path:
        """A place with these files and no others."""
        path = self.folder / "x.db"
        for each in SUFFIXES:
            Path(f"{path}{each}").unlink(missing_ok=True)
        for each, content in files.items():
            Path(f"{path}{each}").write_bytes(content)
        return path

    async def read(self, path: Path, *, read_only: bool = True) -> int | str:
        """After how many commits the session is as it is read, or which error there was, or ``differs``."""
        store = store_at(path)
        try:
            storage = await store.open("s", read_only=read_only)
            found = await dump(storage, NAMESPACES)
        except (AgentLaneError, OSError) as error:
            return type(error).__name__
        finally:
            await store.close()
        return next((at for at, each in enumerate(self.models) if difference(found, each) is None), "differs")

    async def goes_on(self, path: Path, there: int) -> None:
        """An owner commits the rest, and all of it is there."""
        store = store_at(path)
        storage = await store.open("s")
        for writes in GROUPS[there:]:
            await storage.submit(writes)
        await store.close()
        assert await self.read(path) == len(GROUPS)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
async def sample(tmp_path: Path) -> Sample:
    return await Sample(tmp_path).make()


async def test_a_killed_owners_files_are_whole_with_and_without_the_index_of_the_log(sample: Sample) -> None:
    last = len(GROUPS)
    stale = bytes(reversed(sample.live["-shm"]))
    for files in (
        sample.live,
        {**sample.live, "-shm": b""},
        {**sample.live, "-shm": stale},
        {**sample.live, "-shm": sample.live["-shm"][:1000]},
        {each: sample.live[each] for each in ("", "-wal")},
        {"": sample.closed, "-shm": sample.live["-shm"]},
        {"": sample.closed, "-shm": stale},
    ):
        assert await sample.read(sample.put(files)) == last
        path = sample.put(files)
        assert await sample.read(path, read_only=False) == last
        await sample.goes_on(path, last)


async def test_without_its_log_a_database_is_as_it_was_when_that_was_begun(sample: Sample) -> None:
    """A lost log, a copy of a live database alone: a first part of the commits, each whole, and it goes on from there.

    That something is missing cannot be known from the file.
    """
    for files in ({"": sample.live[""]}, {"": sample.live[""], "-wal": b""}, {"": sample.live[""], "-shm": b""}):
        path = sample.put(files)
        there = await sample.read(path)
        assert there == FIRST
        await sample.goes_on(path, FIRST)
    path = sample.put({"": sample.live[""], "-shm": sample.live["-shm"]})
    assert await sample.read(path) == FIRST


async def test_a_log_cut_anywhere_is_a_first_part_of_its_commits(sample: Sample, whole: bool) -> None:
    log, before = sample.live["-wal"], FIRST
    for size in range(0, len(log), 311 if whole else 1511):
        path = sample.put({"": sample.live[""], "-wal": log[:size]})
        there = await sample.read(path)
        assert isinstance(there, int) and there >= before, (size, there)
        before = there
    assert before == len(GROUPS) - 1


async def test_a_flipped_byte_in_the_log_ends_it_there(sample: Sample, whole: bool) -> None:
    """SQLite's checksums in the log: what is behind a changed byte is no part of it."""
    log = sample.live["-wal"]
    for place in range(0, len(log), 397 if whole else 2003):
        damaged = bytearray(log)
        damaged[place] ^= 1 << place % 8
        there = await sample.read(sample.put({"": sample.live[""], "-wal": bytes(damaged)}))
        if place < 4:
            assert there in (FIRST, "OSError", "CorruptSession"), (place, there)  # the log's own mark
        elif place < 8:
            assert there in (FIRST, "OSError", "PermissionError"), (place, there)  # its version
        else:
            assert isinstance(there, int) and there >= FIRST, (place, there)


async def test_a_log_of_nothing_that_sqlite_knows_is_no_log(sample: Sample) -> None:
    for log in (b"\0" * 100_000, b"hello\n" * 1000, sample.live["-wal"][32:], sample.live[""]):
        assert await sample.read(sample.put({"": sample.live[""], "-wal": log})) == FIRST


async def test_a_database_cut_anywhere_is_refused(sample: Sample, whole: bool) -> None:
    for size in range(0, len(sample.closed) - 1, 509 if whole else 4093):
        files = {"": sample.closed[:size]}
        path = sample.put(files)
        there = await sample.read(path)
        if size < len(sample.closed) - PAGE_BYTES:
            assert there in ("CorruptSession", "UnsupportedFormat"), (size, there)
        else:  # what is cut of the last page may hold nothing
            assert there in ("CorruptSession", len(GROUPS)), (size, there)
        assert path.read_bytes() == files[""], size


async def test_a_database_of_no_bytes_is_refused_also_with_a_log(sample: Sample) -> None:
    for files in ({"": b""}, {"": b"", "-wal": sample.live["-wal"]}):
        path = sample.put(files)
        for read_only in (True, False):
            store = store_at(path)
            with pytest.raises(CorruptSession, match="is empty"):
                await store.open("s", read_only=read_only)
            with pytest.raises(CorruptSession, match="is empty"):
                await store.create("t")
            await store.close()
        assert {each: Path(f"{path}{each}").read_bytes() for each in files} == files


async def test_a_flipped_byte_is_refused_or_harmless_as_far_as_sqlite_reads(sample: Sample, whole: bool) -> None:
    """Never an error that is not ours, never a changed file; what SQLite's own full check finds is read wrongly rarely.

    The header is looked at byte by byte.
    """
    last, answers = len(GROUPS), list[int | str]()
    places = [*range(0, 100, 1 if whole else 7), *range(100, len(sample.closed), 113 if whole else 487)]
    unnoticed = []
    for place in places:
        damaged = bytearray(sample.closed)
        damaged[place] ^= 1 << place % 8
        path = sample.put({"": bytes(damaged)})
        there = await sample.read(path)
        assert path.read_bytes() == damaged, place
        answers.append(there)
        if there == "differs":
            with closing(sqlite3.connect(path)) as database:
                try:
                    known = database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
                except sqlite3.DatabaseError:
                    known = True
            if known:
                unnoticed.append(place)
        else:
            assert there == last or isinstance(there, str), (place, there)
    assert "CorruptSession" in answers and last in answers
    assert len(unnoticed) <= len(places) // 20, f"{len(unnoticed)} of {len(places)}: {unnoticed}"


async def test_a_log_of_another_database_is_met_by_the_session_that_is_opened(sample: Sample, tmp_path: Path) -> None:
    """The log is whole, so SQLite takes it in, and cannot know; the row of the session is another one then."""
    other = store_at(tmp_path / "other.db")
    await other.create("t")
    storage = await other.open("t")
    for writes in GROUPS:
        await storage.submit(writes)
    log = Path(f"{tmp_path / 'other.db'}-wal").read_bytes()
    storage.kill()
    path = sample.put({"": sample.live[""], "-wal": log})
    for read_only in (True, False):
        store = store_at(path)
        with pytest.raises(CorruptSession, match="that of another session"):
            await store.open("s", read_only=read_only)
        await store.close()
    assert Path(f"{path}-wal").read_bytes() == log
