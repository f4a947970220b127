"""Upkeep of the SQLite file: room that holds nothing any more is given back."""

from __future__ import annotations

import sqlite3

from agentlane.storage.contract import Compacted


def vacuum(database: sqlite3.Connection) -> Compacted:
    """Write the file anew without free pages, and copy the log into it. On the writer's thread, between commits."""
    before = _bytes(database)
    database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Compacted(before, _bytes(database))


def _bytes(database: sqlite3.Connection) -> int:
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    (size,) = database.execute("PRAGMA page_size").fetchone()
    return int(pages * size)
