"""What can be asked of the SQLite file: plain functions of a connection that leave no statement open (S18)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from agentlane.data.usage import USAGE_KINDS, Stats, Usage, UsageRow
from agentlane.data.writes import Address
from agentlane.errors import CorruptSession, UnknownEntry, UnsupportedFormat
from agentlane.storage import schema
from agentlane.storage.contract import Element, EntryRow, LedgerRow, OpenOperation, SessionInfo
from agentlane.storage.sqlite_stats import counted_stats, kept_stats

ROWS_MAX = 1024
"""How many rows of a path one statement fetches."""
LOOKED_MIN = 64
"""How many rows the first statement looks at where only some kinds are wanted; each further one twice as many."""
POSITION_MASK = (1 << schema.POSITION_BITS) - 1
EVERYTHING = -1
"""SQLite's limit for no limit."""
_BEYOND = 2**63 - 1


class _OpenMeta(msgspec.Struct):
    """What ``op.meta`` must hold for S20; what else it holds is not looked at."""

    lane: str
    started_at: int


# A named tuple from a row without a Python call for each.
_entry_row: Callable[[tuple[Any, ...]], EntryRow] = partial(tuple.__new__, EntryRow)
_meta_decoder = msgspec.json.Decoder(_OpenMeta)
_metadata_decoder = msgspec.json.Decoder(dict[str, Any])


class Loaded(NamedTuple):
    """A session as it is found when it is opened."""

    key: int
    info: SessionInfo
    epoch: int
    seq: int
    stats: Stats
    sealed: int
    """The number that is kept for ``seq``, as it is in the file."""


def load_session(database: sqlite3.Connection, session_id: str) -> Loaded | None:
    """The session, None if there is none. The highest ``seq`` is taken from the rows too."""
    (version,) = database.execute(schema.SELECT_FORMAT).fetchone()  # an owner may have migrated the file since
    statement = schema.SELECT_SESSION if version >= schema.STATS_SINCE else schema.SELECT_SESSION_BEFORE_STATS
    rows = database.execute(statement, (session_id,)).fetchall()
    if not rows:
        return None
    key, created_at, metadata, epoch, seq, stats = rows[0]
    info = _info(session_id, created_at, metadata)
    if database.execute(schema.SELECT_SESSION_ID, (key,)).fetchall() != [(session_id,)]:
        # The index by id and the table do not belong together, as after the log of another database was put here.
        raise CorruptSession(
            f"session {session_id}: its row is that of another session; the file, or its log, is damaged"
        )
    (highest,) = database.execute(schema.SELECT_HIGHEST_SEQ, (key, key)).fetchall()[0]
    if not all(type(each) is int for each in (epoch, seq, highest)):
        raise _other_type(f"session {session_id}: a number of its rows")
    return Loaded(key, info, epoch, max(seq, highest), _stats(database, key, session_id, stats), seq)


def _stats(database: sqlite3.Connection, key: int, session_id: str, kept: bytes | None) -> Stats:
    """What the row of the session says that its rows add up to; counted where it says nothing, or nothing that can be
    believed."""
    if kept is not None:
        try:
            return kept_stats(session_id, kept)
        except CorruptSession:
            pass  # the rows are what counts; the next commit writes it anew
    return counted_stats(database, key)


def list_sessions(database: sqlite3.Connection) -> list[SessionInfo]:
    return [_info(*row) for row in database.execute(schema.SELECT_SESSIONS).fetchall()]


def open_operations(database: sqlite3.Connection) -> list[OpenOperation]:
    """The values of ``op.meta`` in every session, oldest first (S20)."""
    found = []
    (version,) = database.execute(schema.SELECT_FORMAT).fetchone()  # the text for older files is right for newer ones
    placed = version >= schema.PLACES_SINCE
    statement = schema.SELECT_OPEN_OPERATIONS if placed else schema.SELECT_OPEN_OPERATIONS_BEFORE_PLACES
    for session_id, operation_id, payload in database.execute(statement).fetchall():
        try:
            meta = _meta_decoder.decode(payload)
        except (msgspec.MsgspecError, TypeError) as error:
            raise CorruptSession(
                f"session {session_id}: op.meta of operation {operation_id} cannot be read: {error}",
                session_id=session_id,
                operation_id=operation_id,
            ) from error
        found.append(OpenOperation(session_id, operation_id, meta.lane, meta.started_at))
    return sorted(found, key=lambda each: (each.started_at, each.session_id, each.operation_id))


def entries(database: sqlite3.Connection, key: int, ids: Sequence[str]) -> list[EntryRow | None]:
    found: list[EntryRow | None] = []
    for each in ids:
        rows = _whole(_rows(database, schema.SELECT_ENTRY, (key, each)))
        found.append(_entry_row(rows[0]) if rows else None)
    return found


def scan(database: sqlite3.Connection, key: int, after_seq: int, limit: int | None) -> list[EntryRow]:
    rows = database.execute(schema.SCAN_ENTRIES, (key, _within(after_seq), _limit(limit))).fetchall()
    return [_entry_row(row) for row in _whole(rows)]


def highest_seq(database: sqlite3.Connection, key: int) -> int:
    """The highest ``seq`` that was written in a session; 0 where there is no such session any more."""
    rows = database.execute(schema.SELECT_SEQ, (key,)).fetchall()
    return rows[0][0] if rows else 0


def usage(database: sqlite3.Connection, key: int, after_seq: int, limit: int | None) -> list[LedgerRow]:
    rows = database.execute(schema.SCAN_USAGE, (key, _within(after_seq), _limit(limit))).fetchall()
    return [LedgerRow(row[0], row[1], usage_row(row)) for row in rows]


def value(database: sqlite3.Connection, key: int, address: Address) -> bytes | None:
    rows = _whole(_rows(database, schema.SELECT_VALUE, (key, *address)))
    payload: bytes | None = rows[0][0] if rows else None
    return payload


def values(
    database: sqlite3.Connection, key: int, namespace: str, prefix: str, after: str | None, limit: int | None
) -> dict[str, bytes]:
    start = prefix if after is None else max(prefix, after + "\0")  # the least text that is greater than ``after``
    end = _end_of(prefix)
    if end is None:
        rows = _rows(database, schema.SELECT_VALUES, (key, namespace, start, _limit(limit)))
    else:
        rows = _rows(database, schema.SELECT_VALUES_BETWEEN, (key, namespace, start, end, _limit(limit)))
    return dict(_whole(rows))


def elements(
    database: sqlite3.Connection, key: int, address: Address, after: int | None, limit: int | None, reverse: bool
) -> list[Element]:
    if reverse:
        bound = _BEYOND if after is None else _within(after)
        rows = _rows(database, schema.SELECT_ELEMENTS_REVERSE, (key, *address, bound, _limit(limit)))
    else:
        bound = 0 if after is None else _within(after)
        rows = _rows(database, schema.SELECT_ELEMENTS, (key, *address, bound, _limit(limit)))
    return [Element(*row) for row in _whole(rows)]


def lists(database: sqlite3.Connection, key: int, namespace: str, prefix: str) -> list[str]:
    end = _end_of(prefix)
    if end is None:
        rows = _rows(database, schema.SELECT_LISTS, (key, namespace, prefix))
    else:
        rows = _rows(database, schema.SELECT_LISTS_BETWEEN, (key, namespace, prefix, end))
    return [each for (each,) in rows]


def path(
    database: sqlite3.Connection,
    key: int,
    start: str,
    *,
    newest_first: bool,
    limit: int | None,
    after: str | None,
    kinds: Collection[str] | None,
    stop_at: str | None,
    stop_kind: str | None,
    payloads: bool,
) -> list[EntryRow]:
    """The walk of S16: a chain of segments, each one range of places, cut where the walk stops and where it goes on."""
    start_place = _place(database, key, start)
    after_place = None if after is None else _place(database, key, after)
    stop_place = None if stop_at is None else _find_place(database, key, stop_at)
    if after_place is not None and not _on_path(_ranges(database, key, start_place, None, None), after_place):
        raise UnknownEntry(f"entry {after!r} is not on the path that starts at {start!r}", entry_id=after)
    ranges = _ranges(database, key, start_place, stop_place, stop_kind)
    if not newest_first:
        ranges = reversed(list(ranges))
    if after_place is not None:
        ranges = _go_on(ranges, after_place, newest_first)
    walk = _Walk(database, key, newest_first, kinds, payloads)
    found: list[EntryRow] = []
    for low, high in ranges:
        if limit is not None and len(found) >= limit:
            break
        walk.collect(found, low, high, limit)
    return found


def path_ranges(database: sqlite3.Connection, key: int, start: str) -> list[tuple[int, int]]:
    """The places of a path, as ranges in ascending order. ``UnknownEntry``."""
    return sorted(_ranges(database, key, _place(database, key, start), None, None))


class _Walk:
    """Fetches ranges one after the other and checks that each row is the parent, or child, of the one before."""

    def __init__(
        self,
        database: sqlite3.Connection,
        key: int,
        newest_first: bool,
        kinds: Collection[str] | None,
        payloads: bool,
    ) -> None:
        self._database = database
        self._key = key
        self._newest_first = newest_first
        self._kinds = None if kinds is None else frozenset(kinds)
        # What is no text is the kind of no entry, and SQLite does not take it.
        self._wanted = None if kinds is None else f"|{'|'.join(kinds)}|".encode(errors="ignore").decode()
        self._payloads = payloads
        self._looked = LOOKED_MIN
        self._before: tuple[Any, ...] | None = None

    def collect(self, found: list[EntryRow], low: int, high: int, limit: int | None) -> None:
        """Append the wanted rows of places ``low`` to ``high`` until ``found`` has ``limit`` rows."""
        statement = schema.WALK_NEWEST_FIRST if self._newest_first else schema.WALK_OLDEST_FIRST
        while low <= high and (limit is None or len(found) < limit):
            count = min(high - low + 1, ROWS_MAX)
            if limit is not None:
                wanted_more = limit - len(found)
                count = min(count, wanted_more if self._kinds is None else max(wanted_more, self._looked))
                self._looked *= 2  # what is wanted may be rare
            bounds = (self._payloads, self._wanted, self._wanted, low, high, self._key, count)
            rows = self._database.execute(statement, bounds).fetchall()
            if len(rows) != count:
                raise CorruptSession(f"{_name(low)} to {_name(high)}: an entry of the path is missing")
            self._check(rows, low, high)
            kinds = self._kinds
            wanted = rows if kinds is None else [row for row in rows if row[4] in kinds]
            if limit is not None:
                wanted = wanted[: limit - len(found)]
            found.extend(map(_entry_row, wanted))
            if self._newest_first:
                high -= count
            else:
                low += count

    def _check(self, rows: list[tuple[Any, ...]], low: int, high: int) -> None:
        """Each row's parent is its neighbour: what is missing, moved or changed in between shows as well."""
        if self._before is not None:
            rows = [self._before, *rows]
        self._before = rows[-1]
        ids = [row[0] for row in rows]
        parents = [row[1] for row in rows]
        if (ids[1:] != parents[:-1]) if self._newest_first else (parents[1:] != ids[:-1]):
            raise CorruptSession(
                f"{_name(low)} to {_name(high)}: an entry of the path has another parent than its place"
            )


def _ranges(
    database: sqlite3.Connection, key: int, start: int, stop: int | None, stop_kind: str | None
) -> Iterator[tuple[int, int]]:
    """The path from ``start`` to the root as ranges of places, ended at ``stop`` and at the first of ``stop_kind``."""
    place: int | None = start
    while place is not None:
        segment = place >> schema.POSITION_BITS
        low = segment << schema.POSITION_BITS
        ended = False
        if stop is not None and low <= stop <= place:
            low, ended = stop, True
        if stop_kind is not None:
            query = schema.SELECT_TALK_PLACE if stop_kind in schema.TALK_KINDS else schema.SELECT_LANDMARK_PLACE
            rows = _rows(database, query, (low, place, stop_kind))
            if rows:
                low, ended = rows[0][0], True
        yield low, place
        if ended:
            return
        bases = database.execute(schema.SELECT_BASE, (segment, key)).fetchall()
        if not bases:
            raise CorruptSession(f"segment {segment}, which a path leads through, is missing")
        place = bases[0][0]
        if not isinstance(place, int | None):
            raise _other_type(f"segment {segment}: what it grows from")
        # A segment is younger than what it grows from, so a walk that always goes to an older one ends.
        if place is not None and place >> schema.POSITION_BITS >= segment:
            raise CorruptSession(f"segment {segment} grows from {_name(place)}, which is not older: a cycle")


def _on_path(ranges: Iterator[tuple[int, int]], place: int) -> bool:
    return any(low <= place <= high for low, high in ranges)


def _go_on(ranges: Iterator[tuple[int, int]], after: int, newest_first: bool) -> Iterator[tuple[int, int]]:
    """What is left of ``ranges`` beyond ``after``, a place on their path: places grow along it, away from the root."""
    for low, high in ranges:
        if newest_first:
            high = min(high, after - 1)
        else:
            low = max(low, after + 1)
        if low <= high:
            yield low, high


def _place(database: sqlite3.Connection, key: int, entry_id: str) -> int:
    place = _find_place(database, key, entry_id)
    if place is None:
        raise UnknownEntry(f"entry {entry_id!r} is not in this session", entry_id=entry_id)
    return place


def _find_place(database: sqlite3.Connection, key: int, entry_id: str) -> int | None:
    rows = _rows(database, schema.SELECT_PLACE, (key, entry_id))
    return rows[0][0] if rows else None


def _name(place: int) -> str:
    return f"segment {place >> schema.POSITION_BITS}, position {place & POSITION_MASK}"


def _other_type(what: str) -> CorruptSession:
    """Tables are STRICT: SQLite stores no other type in a column, so the file was damaged."""
    return CorruptSession(f"{what} is of another type than was written: the file is damaged")


def _whole(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows whose last column is a payload, of which each has one."""
    for row in rows:
        if row[-1] is None:
            raise _other_type(f"the payload beside {row[0]!r}")
    return rows


def _info(session_id: str, created_at: int, metadata: bytes) -> SessionInfo:
    if type(session_id) is not str or type(created_at) is not int or type(metadata) is not bytes:
        raise _other_type(f"session {session_id!r}: its id, time or metadata")
    try:
        return SessionInfo(id=session_id, created_at=created_at, metadata=_metadata_decoder.decode(metadata))
    except msgspec.MsgspecError as error:
        raise CorruptSession(f"session {session_id}: its metadata cannot be read: {error}") from error


def usage_row(row: tuple[Any, ...]) -> UsageRow:
    """A ledger row of what ``SCAN_USAGE`` finds; ``UnsupportedFormat`` for one of an unknown kind."""
    if row[3] not in USAGE_KINDS:
        raise UnsupportedFormat(f"usage row {row[2]} is of kind {row[3]!r}, which this version does not know")
    counts = Usage(
        input_tokens=row[8],
        output_tokens=row[9],
        cache_read_tokens=row[10],
        cache_write_tokens=row[11],
        reasoning_tokens=row[12],
        cost_nanos=row[13],
    )
    return UsageRow(
        id=row[2], kind=row[3], usage=counts, entry_id=row[4], operation_id=row[5], model=row[6], note=row[7]
    )


def _rows(database: sqlite3.Connection, statement: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
    """The rows that have ``values``. None do if one of them is no text, a lone surrogate say, which is never stored."""
    try:
        return database.execute(statement, values).fetchall()
    except UnicodeEncodeError:
        return []


def _limit(limit: int | None) -> int:
    return EVERYTHING if limit is None else max(_within(limit), 0)


def _within(number: int) -> int:
    """The nearest number that SQLite can hold."""
    return max(-_BEYOND, min(number, _BEYOND))


def _end_of(prefix: str) -> str | None:
    """The least text that is greater than all that begin with ``prefix``; None if there is none.

    SQLite compares the bytes of UTF-8, which is the order of code points.
    """
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:  # surrogates are not text
            last = 0xE000
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None
