"""A session of a SQLite file as it was at one commit (S25).

Entries and ledger rows are written once, so they are read when they are asked for, up to the highest number there was;
values and lists are copied in one short read. No transaction is held in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from agentlane.data.usage import Stats
from agentlane.data.writes import Address
from agentlane.errors import SessionClosed, UnknownSession
from agentlane.storage import schema
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, SessionInfo, ValueRow
from agentlane.storage.index_snapshot import PAGE_BYTES, PAGE_ROWS

T = TypeVar("T")
R = TypeVar("R", bound=Row)
Found: TypeAlias = "list[tuple[Row, int]] | None"
Query: TypeAlias = Callable[[sqlite3.Connection], "list[tuple[Row, int]]"]
"""Rows with their numbers, and what finds some."""


class Read(Protocol):
    """Runs a query where the file is read."""

    def __call__(self, function: Callable[[sqlite3.Connection], T], /) -> Awaitable[T]: ...


class Copied(NamedTuple):
    """What is read at once: where the session stands, and all of it that can change later."""

    loaded: reads.Loaded
    elements: list[ElementRow]
    values: list[ValueRow]


def copy(database: sqlite3.Connection, session_id: str) -> Copied | None:
    """What a snapshot copies, as of one commit; None if there is no such session."""
    database.execute("BEGIN")  # an owner may commit beside us: what is read here belongs together
    try:
        loaded = reads.load_session(database, session_id)
        if loaded is None:
            return None
        elements = database.execute(schema.SELECT_ALL_ELEMENTS, (loaded.key,)).fetchall()
        values = database.execute(schema.SELECT_ALL_VALUES, (loaded.key,)).fetchall()
        return Copied(
            loaded,
            [ElementRow(Address(namespace, key), seq, payload) for namespace, key, seq, payload in elements],
            [ValueRow(Address(namespace, key), payload) for namespace, key, payload in values],
        )
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


class SqliteSnapshot:
    """``Snapshot`` of the contract. It can be read for as long as its session is open."""

    def __init__(self, read: Read, copied: Copied) -> None:
        self._read = read
        self._loaded = copied.loaded
        self._elements = copied.elements
        self._values = copied.values
        self._closed = False

    @property
    def info(self) -> SessionInfo:
        return self._loaded.info

    @property
    def last_seq(self) -> int:
        return self._loaded.seq

    @property
    def stats(self) -> Stats:
        return self._loaded.stats

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        """Every row (S25). ``UnknownSession`` if the session is deleted meanwhile, by an owner beside a reader."""
        return _Pages(self._read, self._steps())

    async def close(self) -> None:
        """Nothing is held but what was copied."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the snapshot of session {self.info.id!r} is closed", id=self.info.id)

    def _steps(self) -> Generator[Query | Sequence[Row], Found, None]:
        stats = self.stats
        yield from self._rows(schema.SCAN_ENTRIES, _entry, stats.entries)
        yield from self._rows(schema.SCAN_USAGE, _ledger_row, stats.usage.rows)
        for rows in (self._elements, self._values):
            for page in paged(rows):
                self._check_open()
                yield page

    def _rows(
        self, statement: str, row_of: Callable[[tuple[Any, ...]], tuple[Row, int]], count: int
    ) -> Generator[Query | Sequence[Row], Found, None]:
        """What ``statement`` finds of this session up to its last number, which are ``count`` rows."""
        after_seq, left = 0, count
        while left > 0:
            self._check_open()
            bounds = (self._loaded.key, after_seq, min(left, PAGE_ROWS))
            page = yield partial(_page, statement=statement, bounds=bounds, row_of=row_of)
            if not page or page[-1][1] > self.last_seq:
                raise UnknownSession(f"session {self.info.id!r} was deleted while it was read", id=self.info.id)
            after_seq = page[-1][1]
            left -= len(page)
            yield [row for row, _ in page]


class _Pages:
    """Runs the queries that stand between pages. No asynchronous generator: one whose waiter is thrown away with its
    event loop stays running for ever (CPython before 3.13), and the loop complains of it."""

    def __init__(self, read: Read, steps: Generator[Query | Sequence[Row], Found, None]) -> None:
        self._read = read
        self._steps = steps

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        found: Found = None
        try:
            while not isinstance(step := self._steps.send(found), Sequence):
                found = await self._read(step)
        except StopIteration:
            raise StopAsyncIteration from None
        return step


def _page(
    database: sqlite3.Connection,
    *,
    statement: str,
    bounds: tuple[int, int, int],
    row_of: Callable[[tuple[Any, ...]], tuple[Row, int]],
) -> list[tuple[Row, int]]:
    """Rows with their numbers, as many as fit in a page."""
    found: list[tuple[Row, int]] = []
    size = 0
    cursor = database.execute(statement, bounds)
    try:
        for each in cursor:
            found.append(row_of(each))
            size += sum(len(field) for field in each if isinstance(field, bytes))
            if size >= PAGE_BYTES:
                break
    finally:
        cursor.close()
    return found


def _entry(row: tuple[Any, ...]) -> tuple[EntryRow, int]:
    entry = EntryRow(*row)
    return entry, entry.seq


def _ledger_row(row: tuple[Any, ...]) -> tuple[LedgerRow, int]:
    return LedgerRow(row[0], row[1], reads.usage_row(row)), row[0]


def paged(rows: Iterable[R]) -> Iterator[list[R]]:
    """Rows in pages of the usual size."""
    page: list[R] = []
    size = 0
    for row in rows:
        page.append(row)
        size += len(row[-1]) if isinstance(row[-1], bytes) else 0
        if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page
