"""Searching one session of a SQLite file: the index is made and caught up first where we may write, then asked.

Catching up is reading: a few entries at a time on the reader's thread, then a short transaction on the writer's,
between the commits of lanes. No commit does anything for it, and whatever is not in the index is read (S26).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from agentlane.data.search import Search, SearchHit
from agentlane.data.writes import Address
from agentlane.errors import AgentLaneError, SearchUnavailable
from agentlane.storage import search_index as index
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import EntryRow, Found
from agentlane.storage.schema import SELECT_KEYS, SELECT_SESSION_KEY
from agentlane.storage.search_index import Damaged, Row, Unmendable
from agentlane.storage.searching import Best, Sieve, search_by_reading
from agentlane.storage.sqlite_file import SqliteFile
from agentlane.storage.sqlite_view import View

T = TypeVar("T")

WRITE_ROWS = 512
"""Entries that are taken into the index in one transaction."""
WRITE_CHARS = 1 << 18
"""About as many characters are, but for the last large entry."""

_log = logging.getLogger("agentlane")


class _Asked(NamedTuple):
    """What the index answers: the best it has, and the ``seq`` up to which it has everything."""

    found: list[Found]
    cursor: int


class SqliteSearch:
    """One session as a search reads it. ``write``: the index may be written, which its owner alone may do."""

    def __init__(self, file: SqliteFile, view: View, *, write: bool, check: Callable[[], None]) -> None:
        """``check`` is called between reads, and raises when the search is to end."""
        self._file = file
        self._view = view
        self._key = view.key
        self._write = write
        self._check = check

    # What ``search_by_reading`` and snippets need.

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return await self._read(lambda database: self._view.entries(database, ids))

    async def value(self, address: Address) -> bytes | None:
        return await self._read(lambda database: self._view.value(database, address))

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return await self._read(lambda database: self._view.scan(database, after_seq, limit))

    async def path(
        self, start: str, *, limit: int | None = None, after: str | None = None, kinds: Collection[str] | None = None
    ) -> list[EntryRow]:
        def walk(database: sqlite3.Connection) -> list[EntryRow]:
            self._view.check_start(database, start)
            return reads.path(
                database,
                self._key,
                start,
                newest_first=True,
                limit=limit,
                after=after,
                kinds=kinds,
                stop_at=None,
                stop_kind=None,
                payloads=True,
            )

        return await self._read(walk)

    # The search.

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        """Rule S26."""
        if search.finds_nothing:
            return []
        upto_seq = await self._read(self._view.highest_seq)
        sieve = Sieve(search, upto_seq=upto_seq)
        if scan:
            return await search_by_reading(self, search, start=start, sieve=sieve)
        asked = await self._ask_index(search, start, upto_seq)
        for each in asked.found:
            sieve.add(each)
        if asked.cursor >= upto_seq:
            return sieve.best()
        return await search_by_reading(self, search, start=start, after_seq=asked.cursor, sieve=sieve)

    async def _ask_index(self, search: Search, start: str | None, upto_seq: int) -> _Asked:
        for _ in range(2):  # one that turns out to be damaged is made again, once
            try:
                covered = await self._caught_up(upto_seq) if self._write else (0, 0)
                asking = partial(self._ask, search=search, start=start, upto_seq=upto_seq, covered=covered)
                return await self._read(asking)
            except Damaged as damage:
                _log.warning("%s: the search index is damaged (%s)", self._file.path, damage)
                if not self._write or not await self._written(index.drop):
                    break
        return _Asked([], 0)

    def _ask(
        self, database: sqlite3.Connection, search: Search, start: str | None, upto_seq: int, covered: tuple[int, int]
    ) -> _Asked:
        database.execute("BEGIN")  # the cursor and what is found belong together
        try:
            if start is not None:
                self._view.check_start(database, start)
            ranges = None if start is None else reads.path_ranges(database, self._key, start)
            if not _usable(database):
                return _Asked([], 0)
            with _of_index():
                cursor = index.cursor(database, self._key)
                if cursor > reads.highest_seq(database, self._key):
                    raise Damaged(f"it is at seq {cursor}, which the session has not reached")
                found = index.find(database, self._key, search, upto_seq=upto_seq, ranges=ranges)
            indexed, seen = covered
            return _Asked(found, max(cursor, seen) if cursor >= indexed else cursor)
        finally:
            if database.in_transaction:  # a failed read may have ended it
                database.execute("ROLLBACK")

    async def _caught_up(self, upto_seq: int) -> tuple[int, int]:
        """Have the index hold the session up to ``upto_seq``, as far as it can be written.

        Returns where the cursor is at least, and the ``seq`` up to which there is no entry behind it. ``Damaged``.
        """
        if not await self._read(_usable) and not await self._written(index.make):
            return 0, 0
        cursor = await self._read(self._cursor)
        seq = cursor
        rows: list[Row] = []
        while seq < upto_seq:
            step = await self._read(partial(index.read_step, key=self._key, after_seq=seq, upto_seq=upto_seq))
            rows += step.rows
            seq = step.seq
            if not rows:
                break  # a commit only to move the cursor would be waste
            if step.ended or len(rows) >= WRITE_ROWS or sum(len(row.text) for row in rows) >= WRITE_CHARS:
                moved = await self._take_in(cursor, rows, seq)
                if moved is None:
                    return cursor, cursor
                cursor = seq = moved
                rows = []
        return cursor, seq

    def _cursor(self, database: sqlite3.Connection) -> int:
        with _of_index():
            return index.cursor(database, self._key)

    async def _take_in(self, cursor: int, rows: list[Row], seq: int) -> int | None:
        """Write what was read; None if it could not be written."""
        now: list[int | None] = []
        key = self._key
        if not await self._written(lambda database: now.append(index.write_rows(database, key, cursor, rows, seq))):
            return None
        return now[0]

    async def _written(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """Whether a change of the index was made. ``Damaged``; any other failure leaves it as it is."""
        self._check()
        writer = self._file.writer
        if writer is None:
            return False
        try:
            await writer.maintain(change)
        except sqlite3.Error as error:
            if index.is_damage(error) and change is not index.drop:
                raise Damaged(str(error)) from error
            _log.warning("%s: the search index cannot be written, entries are read instead: %s", self._file.path, error)
            return False
        except (AgentLaneError, Unmendable) as error:  # closed, or replaced
            _log.warning("%s: the search index cannot be written, entries are read instead: %s", self._file.path, error)
            return False
        return True

    async def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        self._check()
        return await self._file.read(function)


def _usable(database: sqlite3.Connection) -> bool:
    if not index.has_fts5(database):
        raise SearchUnavailable(
            f"SQLite {sqlite3.sqlite_version} here is built without FTS5, which the search index needs: use a Python "
            "whose sqlite3 has it, or search with scan=True, which reads the entries themselves"
        )
    with _of_index():
        return index.is_usable(database)


@contextmanager
def _of_index() -> Iterator[None]:
    """Inside, errors that say that something is wrong with the index are ``Damaged``. One is of a read that failed:
    SQLite may then say that a table which another connection has just made is not there."""
    try:
        yield
    except sqlite3.Error as error:
        if index.is_damage(error):
            raise Damaged(str(error)) from error
        raise


async def search_file(
    file: SqliteFile, search: Search, *, session_id: str | None, branch: str | None, write: bool, scan: bool
) -> list[SearchHit]:
    """The best hits in all sessions of a file, or in the one named (which may be gone)."""
    best = Best(search)
    sessions: list[tuple[int, str]] = await file.read(
        lambda database: database.execute(SELECT_KEYS, (session_id, session_id)).fetchall()
    )
    for key, id in sessions:
        searched = SqliteSearch(file, View(key), write=write, check=lambda: None)
        await best.look_into(searched, session_id=id, branch=branch, scan=scan)
    return best.hits()


async def forget(file: SqliteFile, session_id: str) -> None:
    """Take a session that is about to be deleted out of the index, in short steps; deleting it does the rest."""

    def indexed(database: sqlite3.Connection) -> list[tuple[int]]:
        found = database.execute(SELECT_SESSION_KEY, (session_id,)).fetchall()
        return found if found and index.has_fts5(database) and index.is_usable(database) else []

    def some(database: sqlite3.Connection) -> bool:
        return not (found := indexed(database)) or index.forget_some(database, found[0][0])

    writer = file.writer
    try:
        if writer is None or not await file.read(indexed):
            return  # what writes nothing leaves every byte as it is
        try:
            while not await writer.maintain(some):
                pass
        except sqlite3.Error as error:
            if not index.is_damage(error):
                raise
            _log.warning("%s: the search index is damaged (%s)", file.path, error)
            await writer.maintain(index.drop)
    except (sqlite3.Error, OSError, AgentLaneError, Unmendable) as error:
        _log.info("%s: the search index is left to the deletion of the session: %s", file.path, error)
