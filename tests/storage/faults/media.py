"""The two kinds of disk store on a medium that fails as planned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from agentlane.storage import (
    database_look,
    exchange,
    jsonl,
    jsonl_folder,
    lock,
    paths,
    sqlite_connect,
    sqlite_file,
    sqlite_log,
)
from agentlane.storage.contract import Durability, Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from tests.storage.faults.planned import Faults, Kind
from tests.storage.faults.sqlite_vfs import SQLITE_KINDS, faulty_vfs
from tests.storage.faults.system import SYSTEM_KINDS, FaultyFiles, patch_files, patch_system


class Medium(NamedTuple):
    """Stores on one place, whose calls meet ``faults``."""

    faults: Faults
    clock: ManualClock
    store: Callable[[], Store]


INDEX_MIN_BYTES: int | None = 0
"""Session files that have an index beside them: all."""

Media: TypeAlias = Callable[[Path, Faults], Iterator[Medium]]


def jsonl_medium(durability: Durability) -> Media:
    def medium(folder: Path, faults: Faults) -> Iterator[Medium]:
        clock, numbers = ManualClock(), count()

        def store() -> JsonlStore:
            ids = CountingIds(series=next(numbers))
            return JsonlStore(
                folder / "s",
                durability=durability,
                clock=clock,
                ids=ids,
                files=FaultyFiles(faults),
                index_min_bytes=INDEX_MIN_BYTES,
            )

        with pytest.MonkeyPatch.context() as patch:
            patch_system(patch.setattr, (jsonl, jsonl_folder, lock, paths, exchange), faults)
            patch_files(patch.setattr, (jsonl, exchange), faults)
            yield Medium(faults, clock, store)

    return medium


def sqlite_medium(durability: Durability) -> Media:
    def medium(folder: Path, faults: Faults) -> Iterator[Medium]:
        clock, numbers = ManualClock(), count()

        def store() -> SqliteStore:
            ids = CountingIds(series=next(numbers))
            return SqliteStore(folder / "s" / "x.db", durability=durability, clock=clock, ids=ids, busy_timeout_ms=0)

        vfs = faulty_vfs()
        if vfs is None:
            pytest.skip("SQLite is built into this Python: its file layer cannot be reached")
        with pytest.MonkeyPatch.context() as patch, vfs.used_with(faults):
            modules = (lock, paths, sqlite_connect, sqlite_file, sqlite_log, exchange, database_look)
            patch_system(patch.setattr, modules, faults)
            patch_files(patch.setattr, (jsonl, exchange), faults)
            yield Medium(faults, clock, store)

    return medium


MEDIA: dict[str, Media] = {
    "jsonl-process": jsonl_medium("process"),
    "jsonl-disk": jsonl_medium("disk"),
    "sqlite-process": sqlite_medium("process"),
    "sqlite-disk": sqlite_medium("disk"),
}

KINDS: dict[str, tuple[Kind, ...]] = {
    name: SYSTEM_KINDS if name.startswith("jsonl") else (*SYSTEM_KINDS, *SQLITE_KINDS) for name in MEDIA
}


@contextmanager
def medium_at(name: str, folder: Path, faults: Faults) -> Iterator[Medium]:
    """A medium of that name on a fresh folder."""
    yield from MEDIA[name](folder, faults)


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
