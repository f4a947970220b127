"""Makes a session of a SQLite file of rows, page by page, each in a short transaction of its own (S27).

Until the last of them nobody sees it: every read goes by a session's number, which is taken first and given to no other
session, and its row in ``session`` comes last. A list element that no list can have (its ``seq`` is 0) marks what is
being loaded, so that what was left by one who died is found without looking at every row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence

import msgspec

from agentlane.data.usage import Stats, UsageTotals
from agentlane.errors import InvalidWrite
from agentlane.storage import schema
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, SessionInfo
from agentlane.storage.intake import Intake
from agentlane.storage.sqlite_commit import Places, usage_row
from agentlane.storage.sqlite_stats import stats_text


class Load:
    """One session on its way into the file. Each method is the content of one transaction, on the writer's thread."""

    def __init__(self, info: SessionInfo, last_seq: int) -> None:
        self.key = 0
        """The session's number, once it is taken."""
        self._info = info
        self._last_seq = last_seq
        self._intake = Intake(last_seq)
        self._ends: dict[str, int] = {}
        self._entries = 0
        self._usage = UsageTotals()

    def begin(self, database: sqlite3.Connection) -> int:
        """Take a number for the session and mark it as being loaded."""
        self._insert(database, None)
        (self.key,) = database.execute("SELECT last_insert_rowid()").fetchone()
        database.execute(schema.DELETE_SESSION_ROW, (self.key,))
        database.execute(schema.INSERT_ELEMENT, (self.key, "", "", 0, '""'))
        return self.key

    def add(self, database: sqlite3.Connection, page: Sequence[Row]) -> None:
        """Take in rows in the order of ``Snapshot.pages``. ``InvalidWrite`` for one that does not fit."""
        key = self.key
        places = Places(database, key, self._ends)
        entries, ledger, elements = [], [], []
        values: dict[str, list[tuple[object, ...]]] = {}
        for row in page:
            self._intake.check(row)
            if isinstance(row, EntryRow):
                place = places.take(row.id, row.parent_id)
                payload = row.payload.decode()
                entries.append((place, key, row.seq, row.id, row.parent_id, row.at, row.kind, payload))
            elif isinstance(row, LedgerRow):
                ledger.append(usage_row(key, row.seq, row.at, row.row))
                self._usage = self._usage.plus(row.row)
            elif isinstance(row, ElementRow):
                elements.append((key, *row.address, row.seq, row.payload.decode()))
            else:
                (namespace, name), payload = row.address, row.payload.decode()
                statement, where = schema.setting(key, namespace)
                values.setdefault(statement, []).append((*where, key, namespace, name, self._last_seq, payload))
        self._entries += len(entries)
        database.executemany(schema.INSERT_ENTRY, entries)
        database.executemany(schema.INSERT_USAGE, ledger)
        database.executemany(schema.INSERT_ELEMENT, elements)
        for statement, each in values.items():
            database.executemany(statement, each)

    def end(self, database: sqlite3.Connection) -> None:
        """Show the session. ``InvalidWrite`` if its id is used by now."""
        database.execute(schema.DELETE_LOAD_MARK, (self.key,))
        self._insert(database, self.key)

    def undo(self, database: sqlite3.Connection) -> None:
        """Remove what there is of it, where it has not ended."""
        if self.key:
            _remove(database, self.key)

    def _insert(self, database: sqlite3.Connection, key: int | None) -> None:
        info = self._info
        metadata = msgspec.json.encode(info.metadata).decode()
        stats = stats_text(Stats(entries=self._entries, usage=self._usage))
        row = (key, info.id, info.created_at, metadata, self._last_seq, stats)
        try:
            database.execute(schema.INSERT_SESSION_AT, row)
        except sqlite3.IntegrityError as error:
            raise InvalidWrite(f"session {info.id!r} exists already; take another id", id=info.id) from error


def sweep(database: sqlite3.Connection, loading: Collection[int]) -> None:
    """Remove what was being loaded when its process died; ``loading`` are those under way now."""
    for key in list(_left(database)):
        if key not in loading:
            _remove(database, key)


def _left(database: sqlite3.Connection) -> Iterator[int]:
    key = 0
    while (found := database.execute(schema.SELECT_NEXT_LIST_SESSION, (key,)).fetchone()[0]) is not None:
        key = found
        if database.execute(schema.SELECT_LOAD_MARK, (key,)).fetchone() is not None:
            yield key


def _remove(database: sqlite3.Connection, key: int) -> None:
    if database.execute(schema.SELECT_EPOCH, (key,)).fetchone() is None:  # else it has ended, and is a session
        for statement in schema.DELETE_SESSION:
            database.execute(statement, (key,))
