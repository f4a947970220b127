"""Claim: the fault loop finds stores that are wrong about faults: each of these is wrong in one way."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agentlane.storage import jsonl_file, sqlite_connect, sqlite_writer
from agentlane.storage.framing import Draft
from agentlane.storage.jsonl_folder import JsonlFolder
from agentlane.storage.jsonl_session import JsonlSession
from agentlane.storage.jsonl_writer import JsonlWriter, Placed, Tail
from agentlane.storage.lock import OwnerLock
from tests.storage.faults.media import KINDS
from tests.storage.faults.planned import Faults
from tests.storage.faults.test_fault_loop import made, one_go

Patch = pytest.MonkeyPatch
STEP = 3
"""Each so-maniest call of SQLite."""


def reports_what_failed(patch: Patch) -> None:
    """JSONL: a commit whose write failed is reported all the same, so memory is ahead of the disk."""
    append = JsonlWriter.append

    def lying(self: JsonlWriter, drafts: Sequence[Draft], half_written: Any = ()) -> list[Placed]:
        try:
            return append(self, drafts, half_written)
        except OSError:
            return [Placed(0, 0) for _ in drafts]

    patch.setattr(JsonlWriter, "append", lying)


def goes_on_behind_a_failure(patch: Patch) -> None:
    """JSONL: after a failed write the next commit is taken, behind what the failed one left."""
    patch.setattr(JsonlSession, "_end", lambda self, cause: self._pendings.popleft().fail(self._failure(cause)))


def throws_the_tail_away(patch: Patch) -> None:
    """JSONL: a torn tail is cut off before it is kept aside."""

    def cut(self: JsonlWriter, tail: Tail) -> None:
        self._files.truncate(self._descriptor, tail.offset)
        self._size = tail.offset

    patch.setattr(JsonlWriter, "_cut", cut)


def forgets_a_descriptor(patch: Patch) -> None:
    """JSONL: a file whose kind cannot be asked for stays open."""

    def open_file(self: JsonlFolder, session_id: str, flags: int) -> int:
        descriptor = self._files.open(self.path(session_id), flags)
        self._files.status(descriptor)
        return descriptor

    patch.setattr(JsonlFolder, "open_file", open_file)


def keeps_the_lock(patch: Patch) -> None:
    """Either: an owner that cannot be closed cleanly keeps its lock."""
    release = OwnerLock.release

    def kept(self: OwnerLock, *, unlink: bool = False) -> None:
        if self._descriptor >= 0:
            os.dup(self._descriptor)
        release(self, unlink=unlink)

    patch.setattr(OwnerLock, "release", kept)


def tells_a_full_disk_as_it_is_named_by_sqlite(patch: Patch) -> None:
    """SQLite: what fails while a database is made is no error of ours."""

    class Untranslated:
        def __init__(self, path: str) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    patch.setattr(sqlite_connect, "translated", Untranslated)


def takes_a_failed_commit_for_made(patch: Patch) -> None:
    """SQLite: whatever COMMIT says, the commit is reported."""

    class Careless:
        def __init__(self, database: sqlite3.Connection) -> None:
            self._database = database

        def __getattr__(self, name: str) -> Any:
            return getattr(self._database, name)

        def execute(self, statement: str, *values: Any) -> Any:
            if statement != "COMMIT":
                return self._database.execute(statement, *values)
            with suppress(sqlite3.Error):
                self._database.execute(statement)
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            return None

    commit = sqlite_writer.Writer._commit
    patch.setattr(
        sqlite_writer.Writer,
        "_commit",
        lambda self, database, jobs: commit(self, Careless(database), jobs),  # type: ignore[arg-type]
    )


def tells_a_lost_race_as_damage(patch: Patch) -> None:
    """SQLite: who loses the races for a lock too often is told that the file is damaged."""
    patch.setattr(sqlite_connect, "BUSY", {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def reads_what_is_torn_as_damage(patch: Patch) -> None:
    """JSONL: a read that fails ends the file, so that the rest of it is a torn tail, or damage."""
    blocks = jsonl_file.JsonlFile.blocks

    def cut_short(self: jsonl_file.JsonlFile, *place: Any) -> Iterator[tuple[int, list[bytes] | None]]:
        with suppress(OSError):
            yield from blocks(self, *place)

    patch.setattr(jsonl_file.JsonlFile, "blocks", cut_short)


Breakage = Callable[[Patch], None]
BREAKAGES: list[tuple[Breakage, str, str]] = [
    (reports_what_failed, "jsonl-process", "work"),
    (goes_on_behind_a_failure, "jsonl-process", "work"),
    (throws_the_tail_away, "jsonl-process", "work"),
    (forgets_a_descriptor, "jsonl-process", "work"),
    (keeps_the_lock, "jsonl-process", "make"),
    (keeps_the_lock, "sqlite-process", "make"),
    (tells_a_full_disk_as_it_is_named_by_sqlite, "sqlite-process", "make"),
    (takes_a_failed_commit_for_made, "sqlite-process", "work"),
    (tells_a_lost_race_as_damage, "sqlite-process", "work"),
    (reads_what_is_torn_as_damage, "jsonl-process", "work"),
]


BEGIN = {takes_a_failed_commit_for_made: 100}
"""Calls before this one belong to the open."""


@pytest.mark.parametrize(
    ("breakage", "name", "program"), BREAKAGES, ids=[f"{each[0].__name__}-{each[1]}" for each in BREAKAGES]
)
async def test_a_store_that_is_wrong_about_faults_is_caught(
    breakage: Breakage, name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = await made(name, tmp_path / "template") if program == "work" else None
    breakage(monkeypatch)
    nth, caught = BEGIN.get(breakage, 0), False
    while not caught:
        nth += 1 if name.startswith("jsonl") else STEP
        for permanent in (False, True):
            faults = Faults(KINDS[name], nth=nth, permanent=permanent)
            with TemporaryDirectory(dir=tmp_path) as folder:
                try:
                    await one_go(name, program, faults, Path(folder), template)
                except Exception:
                    caught = True
                    break
            assert faults.struck, f"not caught by the failure of any of {nth} calls"
