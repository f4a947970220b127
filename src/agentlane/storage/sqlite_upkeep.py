"""Upkeep of the SQLite file: room that holds nothing any more is given back."""

from __future__ import annotations

import sqlite3

from agentlane.storage.contract import Compacted

FREE_SHARE = 0.2
"""From this share of free pages on ``optimize`` writes the file anew."""


def optimize(database: sqlite3.Connection) -> Compacted:
    """Upkeep of a file that was used for long: what helps SQLite to choose its indexes is brought up to date, the file
    is written anew if a fifth of it is free, the log copied into it. On the writer's thread, between commits."""
    before = _bytes(database)
    database.execute("PRAGMA analysis_limit = 1000").fetchall()
    database.execute("PRAGMA optimize").fetchall()
    (free,) = database.execute("PRAGMA freelist_count").fetchone()
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    if free > FREE_SHARE * pages:
        return Compacted(before, vacuum(database).bytes_after)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Compacted(before, _bytes(database))


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
