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
from agentlane.errors import CorruptSession, SessionClosed, UnknownEntry, UnknownSession
from agentlane.storage import schema
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, SessionInfo, ValueRow
from agentlane.storage.index_snapshot import PAGE_BYTES, PAGE_ROWS

T = TypeVar("T")
R = TypeVar("R", bound=Row)
Query: TypeAlias = Callable[[sqlite3.Connection], Any]
"""What is to be found before the next page: rows with their numbers, or where they lie."""


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
        return SteppedPages(self._read, self._steps())

    def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
        """The rows of one path (S25), range by range of their places. ``UnknownSession`` as ``pages``."""
        return SteppedPages(self._read, self._steps_of_branch(tip))

    async def close(self) -> None:
        """Nothing is held but what was copied."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the snapshot of session {self.info.id!r} is closed", id=self.info.id)

    def _steps(self) -> Generator[Query | Sequence[Row], Any, None]:
        stats = self.stats
        yield from self._rows(schema.SCAN_ENTRIES, _entry, stats.entries)
        yield from self._rows(schema.SCAN_USAGE, _ledger_row, stats.usage.rows)
        yield from self._copied()

    def _steps_of_branch(self, tip: str | None) -> Generator[Query | Sequence[Row], Any, None]:
        if tip is not None:
            yield from self._path(tip)
        yield from self._copied()

    def _copied(self) -> Iterator[Sequence[Row]]:
        for rows in (self._elements, self._values):
            for page in paged(rows):
                self._check_open()
                yield page

    def _rows(
        self, statement: str, row_of: Callable[[tuple[Any, ...]], tuple[Row, int]], count: int
    ) -> Generator[Query | Sequence[Row], Any, None]:
        """What ``statement`` finds of this session up to its last number, which are ``count`` rows."""
        after_seq, left = 0, count
        while left > 0:
            self._check_open()
            bounds = (self._loaded.key, after_seq, min(left, PAGE_ROWS))
            page = yield partial(_page, statement=statement, bounds=bounds, row_of=row_of)
            if not page or page[-1][1] > self.last_seq:
                raise self._deleted()
            after_seq = page[-1][1]
            left -= len(page)
            yield [row for row, _ in page]

    def _path(self, tip: str) -> Generator[Query | Sequence[Row], Any, None]:
        """The entries from the root to ``tip``, range by range."""
        self._check_open()
        parent: str | None = None
        for low, high in (yield partial(self._ranges, tip=tip)):
            at = low
            while at <= high:
                self._check_open()
                bounds = (True, None, None, at, high, self._loaded.key, PAGE_ROWS)
                page = yield partial(_page, statement=schema.WALK_OLDEST_FIRST, bounds=bounds, row_of=_entry)
                if not page:
                    raise self._deleted()
                for row, _ in page:
                    if row.parent_id != parent:
                        raise CorruptSession(
                            f"session {self.info.id!r}: entry {row.id!r} has another parent than its place",
                            id=self.info.id,
                        )
                    parent = row.id
                at += len(page)
                yield [row for row, _ in page]

    def _ranges(self, database: sqlite3.Connection, *, tip: str) -> list[tuple[int, int]]:
        key = self._loaded.key
        found = reads.entries(database, key, [tip])[0]
        if found is not None and found.seq <= self.last_seq:
            return reads.path_ranges(database, key, tip)
        if not database.execute(schema.SELECT_SEQ, (key,)).fetchall():
            raise self._deleted()
        raise UnknownEntry(f"no entry {tip!r} is in the snapshot of session {self.info.id!r}", entry_id=tip)

    def _deleted(self) -> UnknownSession:
        return UnknownSession(f"session {self.info.id!r} was deleted while it was read", id=self.info.id)


class SteppedPages:
    """Runs the queries that stand between pages. No asynchronous generator: one whose waiter is thrown away with its
    event loop stays running for ever (CPython before 3.13), and the loop complains of it."""

    def __init__(self, read: Read, steps: Generator[Query | Sequence[Row], Any, None]) -> None:
        self._read = read
        self._steps = steps

    def __aiter__(self) -> SteppedPages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        found: Any = None
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
    bounds: tuple[int | None, ...],
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
