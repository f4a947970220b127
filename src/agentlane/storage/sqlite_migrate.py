"""The formats of the SQLite file: each step from one to the next is one transaction, its number included.

1. The first.
2. ``session.stats`` holds what the session's rows add up to, so that opening one takes no time that grows with it.
3. ``value`` and ``element`` have their payloads apart from what they are looked up by, in rows with a ``place``: what
   is large is not read for what is looked up beside it. Open operations are found by their places, without an index.
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


_TABLES_OF_3: Final = """
    CREATE TABLE {} (
        place INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        payload TEXT NOT NULL,
        UNIQUE (session, namespace, key{})
    ) STRICT
"""
_VALUES_OF_2: Final = "SELECT session, namespace, key, seq, CAST(payload AS BLOB) FROM value_of_2"
_SET_IN_3: Final = "INSERT INTO value VALUES (({}), ?, ?, ?, ?, CAST(? AS TEXT))"
_SET_OPERATION_IN_3: Final = _SET_IN_3.format("SELECT coalesce(min(place), 0) - 1 FROM value WHERE place < 0")
_SET_VALUE_IN_3: Final = _SET_IN_3.format("SELECT coalesce(max(place) + 1, ?) FROM value WHERE place BETWEEN ? AND ?")


def _place_values(database: sqlite3.Connection) -> None:
    """2 to 3. Each value is placed as one that is set in format 3 is; bytes that are no text are kept as they are."""
    for name, also in (("value", ""), ("element", ", seq")):
        database.execute(f"ALTER TABLE {name} RENAME TO {name}_of_2")
        database.execute(_TABLES_OF_3.format(name, also))
    database.execute("""
        INSERT INTO element (session, namespace, key, seq, payload)
        SELECT session, namespace, key, seq, payload FROM element_of_2 ORDER BY session, namespace, key, seq
    """)
    step = "namespace IN ('op.state', 'lane.state', 'branch.tip')"
    rows = database.execute(f"{_VALUES_OF_2} WHERE namespace = 'op.meta' ORDER BY session, namespace, key")
    database.executemany(_SET_OPERATION_IN_3, rows)
    for which, part in ((step, 0), (f"namespace <> 'op.meta' AND NOT {step}", 1 << 32)):
        rows = database.execute(f"{_VALUES_OF_2} WHERE {which} ORDER BY session, namespace, key")
        lows = ((((row[0] & 0x1FFFFFFF) << 33) + part, row) for row in rows)
        database.executemany(_SET_VALUE_IN_3, ((low, low, low + 0xFFFFFFFF, *row) for low, row in lows))
    for name in ("value", "element"):
        database.execute(f"DROP TABLE {name}_of_2")


CHAIN: Final[Chain[Change]] = Chain(
    Step(1, "sessions are opened in the same time however long they are", _keep_stats),
    Step(2, "large values no longer slow what is written beside them", _place_values),
    newest=schema.FORMAT_VERSION,
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
