"""What the tests of the SQLite store share: writes, and ways into the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, InsertEntry, InsertUsage, SetValue
from agentlane.storage import sqlite_file
from agentlane.storage.sqlite_writer import Writer


def connect_in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def entry(entry_id: str, parent: str | None = None, payload: bytes = b'"e"', kind: str = "user") -> InsertEntry:
    return InsertEntry(entry_id, parent, kind, payload)


def usage(usage_id: str, **counts: int) -> InsertUsage:
    return InsertUsage(UsageRow(id=usage_id, kind="attempt", usage=Usage(**counts)))


def put(key: str, payload: bytes = b'"v"') -> SetValue:
    return SetValue(Address("app.test", key), payload)


@contextmanager
def sql(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection, as the sqlite3 shell would be."""
    database = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        yield database
    finally:
        database.close()


def writer_of(path: Path) -> Writer:
    """The writer that this process has for the file."""
    status = path.stat()
    writer = sqlite_file._files[status.st_dev, status.st_ino].writer
    if writer is None:
        raise LookupError(f"{path} is not open for writing")
    return writer
