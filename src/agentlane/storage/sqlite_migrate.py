"""The formats of the SQLite file: each step from one to the next is one transaction, its number included.

1. The first.
2. ``session.stats`` holds what the session's rows add up to, so that opening one takes no time that grows with it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Final, TypeAlias

from agentlane.storage import schema
from agentlane.storage.migrating import Chain, Step, migrated
from agentlane.storage.sqlite_stats import counted_stats, stats_text

Change: TypeAlias = Callable[[sqlite3.Connection], None]
"""What a step does, inside its transaction; it commits nothing, and leaves the number to others."""

_log = logging.getLogger("agentlane")


def _keep_stats(database: sqlite3.Connection) -> None:
    """1 to 2. Texts of their own, as they were then: those of the schema may go on to mean something newer."""
    database.execute("ALTER TABLE session ADD COLUMN stats TEXT NOT NULL DEFAULT ''")
    for (key,) in database.execute("SELECT key FROM session").fetchall():
        stats = stats_text(counted_stats(database, key))
        database.execute("UPDATE session SET stats = ? WHERE key = ?", (stats, key))


CHAIN: Final[Chain[Change]] = Chain(
    Step(1, "sessions are opened in the same time however long they are", _keep_stats), newest=schema.FORMAT_VERSION
)


def migrate(database: sqlite3.Connection, path: str, found: Callable[[str], None]) -> None:
    """Bring the file to the format of this version, step by step, each in a transaction. For the connection that
    writes, under the file's lock. ``found`` is told what was done.

    ``sqlite3.Error`` where a step fails: the file is whole, of the format that it had reached.
    """
    begun_at = version = format_of(database)
    while (step := CHAIN.step_from(version)) is not None:
        _take(database, step)
        version = step.since + 1
        _log.info("%s: migrated from format %d to %d: %s", path, step.since, version, step.why)
    if version != begun_at:
        found(migrated(path, begun_at, version))


def format_of(database: sqlite3.Connection) -> int:
    """The format of the file, as this connection sees it now."""
    (version,) = database.execute(schema.SELECT_FORMAT).fetchone()
    return int(version)


def _take(database: sqlite3.Connection, step: Step[Change]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        step.change(database)
        database.execute(f"PRAGMA user_version = {step.since + 1}")
        database.execute("COMMIT")
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
