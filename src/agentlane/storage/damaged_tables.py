"""Reads of a SQLite file that may be damaged: each gives what can be had, and goes on behind what cannot."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from agentlane.data.findings import FindingCode
from agentlane.storage import schema
from agentlane.storage.index_snapshot import PAGE_BYTES

T = TypeVar("T")

READ_ROWS = 256
"""Rows that one statement reads."""
_NOT_READ = re.compile(r"error code[= ](\d+)|failed to get page")
_BEYOND = 2**63 - 1
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}
_MASK = (1 << schema.POSITION_BITS) - 1

TABLES = ("session", "segment", "entry", "value", "element", "usage")
"""What every file of ours has."""

CHECK_ALL = "PRAGMA integrity_check(100)"
SELECT_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
SELECT_SESSION_UNINDEXED = """
    SELECT key, created_at, CAST(metadata AS BLOB), epoch, seq, CAST(stats AS BLOB)
    FROM session NOT INDEXED WHERE +id = ?
"""
SELECT_SESSION_UNINDEXED_BEFORE_STATS = """
    SELECT key, created_at, CAST(metadata AS BLOB), epoch, seq, NULL FROM session NOT INDEXED WHERE +id = ?
"""
SELECT_HAS_STATS = "SELECT count(*) FROM pragma_table_info('session') WHERE name = 'stats'"
SELECT_HAS_PLACES = "SELECT count(*) FROM pragma_table_info('value') WHERE name = 'place'"
SELECT_NEXT_KEYS = {
    "segment": "SELECT min(session) FROM segment WHERE session > ?",
    "entry": "SELECT min(session) FROM entry WHERE session > ?",
    "value": "SELECT min(session) FROM value WHERE session > ?",
    "element": "SELECT min(session) FROM element WHERE session > ?",
    "usage": "SELECT min(session) FROM usage WHERE session > ?",
}
COUNT = {
    "entry": "SELECT count(*) FROM entry WHERE session = ?",
    "value": "SELECT count(*) FROM value WHERE session = ?",
    "element": "SELECT count(*) FROM element WHERE session = ?",
    "usage": "SELECT count(*) FROM usage WHERE session = ?",
}
# Numbers of segments that were changed: no entry can stand in such a segment, or none does.
SELECT_EMPTY_SEGMENTS = f"""
    SELECT id FROM segment WHERE session = ? AND (
        id NOT BETWEEN 1 AND {schema.SEGMENT_MAX} OR NOT EXISTS (
            SELECT 1 FROM entry
            WHERE place BETWEEN segment.id << {schema.POSITION_BITS} AND segment.id << {schema.POSITION_BITS} | {_MASK}
        )
    )
"""
_ENTRY = "e.seq, e.place, e.id, e.parent_id, e.at, e.kind, CAST(e.payload AS BLOB)"
# An entry with all that must agree with it: its segment, what stands before it, its parent, a ledger row of its id.
_RELATED = f"""
    SELECT {_ENTRY}, s.id, s.base, b.id, p.seq, u.seq
    FROM entry AS e
        LEFT JOIN segment AS s ON s.id = e.place >> {schema.POSITION_BITS} AND s.session = e.session
        LEFT JOIN entry AS b
            ON b.place = CASE WHEN e.place & {_MASK} THEN e.place - 1 ELSE s.base END AND b.session = e.session
        LEFT JOIN entry AS p ON p.session = e.session AND p.id = e.parent_id
        LEFT JOIN usage AS u ON u.session = e.session AND u.id = e.id
"""
RELATED_BY_SEQ = f"{_RELATED} WHERE e.session = ? AND e.seq <= ? AND e.seq > ? ORDER BY e.seq LIMIT ?"
RELATED_BY_PLACE = f"{_RELATED} WHERE e.place = ?"
ENTRY_BY_PLACE = f"SELECT {_ENTRY} FROM entry AS e WHERE e.place = ?"
PLACES_BY_SEQ = """
    SELECT seq, place FROM entry WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?
"""
PLACES_BY_PLACE = "SELECT place, session, seq FROM entry NOT INDEXED WHERE place > ? ORDER BY place LIMIT ?"
SELECT_STRAY_OPERATIONS = "SELECT key, place FROM value WHERE session = ? AND namespace = 'op.meta' AND place >= 0"
SELECT_NUMBERS = """
    SELECT
        max(
            coalesce((SELECT max(seq) FROM entry WHERE session = ? AND seq <= ?), 0),
            coalesce((SELECT max(seq) FROM usage WHERE session = ? AND seq <= ?), 0)
        ),
        (SELECT count(*) FROM entry WHERE session = ? AND seq > ?)
            + (SELECT count(*) FROM usage WHERE session = ? AND seq > ?)
"""
"""The highest number up to a bound, and how many rows are behind it."""
SELECT_CURSOR = "SELECT seq FROM search_cursor WHERE session = ?"
SEARCH_ROWS = """
    SELECT e.seq, e.id, e.at, e.kind, CAST(e.payload AS BLOB), i.seq, i.at, i.kind, i.words
    FROM entry AS e LEFT JOIN search_entry AS i ON i.place = e.place
    WHERE e.session = ? AND e.seq <= ? AND e.seq > ? ORDER BY e.seq LIMIT ?
"""
SEARCH_COUNTS = "SELECT (SELECT count(*) FROM search_word), (SELECT coalesce(sum(words), 0) FROM search_entry)"


class Broken(NamedTuple):
    """A part that cannot be read: behind a number, up to before the next one that can (None: to the end), and why."""

    after: int
    before: int | None
    reason: str


class Damage(NamedTuple):
    """What SQLite says of a part that it cannot read."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def damage_of(error: sqlite3.Error | UnicodeDecodeError) -> Damage:
    """What an error says of the file; raised again where it says that the file cannot be had now."""
    if isinstance(error, UnicodeDecodeError):  # its message would quote damaged text
        return Damage(bytes(error.object).decode(errors="replace"))
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _DAMAGE:
        raise error
    return Damage(str(error))


def check_was_read(text: str) -> None:
    """Raise what SQLite's own check met, if a line of it says that a page could not be had: it goes on behind that, and
    tells it as it tells of damage. Not every line says why."""
    for found in _NOT_READ.finditer(text):
        code = int(found[1] or sqlite3.SQLITE_IOERR)
        if code & 0xFF not in _DAMAGE:
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = code
            raise error


def tried(function: Callable[[], T]) -> T | Damage:
    """What ``function`` gives, or which damage it met; other errors are raised."""
    try:
        return function()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return damage_of(error)


def rows_behind(
    database: sqlite3.Connection, statement: str, before: tuple[Any, ...], after: int, limit: int = READ_ROWS
) -> list[Any] | Broken:
    """The next rows of a table behind ``after``, a number in their first column; or the part where none can be read.

    ``statement`` takes what is ``before``, the number that rows lie behind, and how many are wanted. As many are read
    as there are before damage, and as fit in a page.
    """
    rows: list[Any] = []
    size = 0
    cursor = None
    damage: Damage | None = None
    try:
        cursor = database.execute(statement, (*before, after, limit))
        for row in cursor:
            if not _is_behind(row, rows[-1][0] if rows else after):
                damage = Damage(f"SQLite gives {row[0]!r} where numbers behind {rows[-1][0] if rows else after} belong")
                break
            rows.append(row)
            size += sum(len(field) for field in row if isinstance(field, bytes))
            if size >= PAGE_BYTES:
                break
    except (sqlite3.Error, UnicodeDecodeError) as error:
        damage = damage_of(error)
    finally:
        if cursor is not None:
            cursor.close()
    if damage is None or rows:
        return rows
    if limit > 1:  # a sorter or a look ahead may have met it
        return rows_behind(database, statement, before, after, 1)
    return Broken(after, _next_readable(database, statement, before, after), damage.reason)


def _is_behind(row: Sequence[Any], number: int) -> bool:
    """Whether a row has a number beyond one that was asked for; what a damaged page holds need not."""
    return type(row[0]) is int and row[0] > number


def _next_readable(database: sqlite3.Connection, statement: str, before: tuple[Any, ...], after: int) -> int | None:
    """The lowest number beyond a part that cannot be read, found by leaping, and then by halving the last leap."""

    def first(number: int) -> int | None:
        """The first number behind ``number``; None if that cannot be read, or there is none."""
        found = tried(lambda: database.execute(statement, (*before, number, 1)).fetchall())
        return None if isinstance(found, Damage) or not found or not _is_behind(found[0], number) else int(found[0][0])

    low, high, leap = after, after, 1
    found: int | None = None
    while found is None:
        low, high = high, high + leap
        if high >= _BEYOND:
            return None
        found, leap = first(high), leap * 2
    while high - low > 1:
        middle = (low + high) // 2
        nearer = first(middle)
        if nearer is None:
            low = middle
        else:
            high, found = middle, nearer
    return found


def read_ends(
    database: sqlite3.Connection, forwards: str, backwards: str, key: int
) -> tuple[list[Any], list[Any], str]:
    """Rows from the beginning as far as they can be read and, where that is not all, from the end; and why."""
    found: list[list[Any]] = []
    reason = ""
    for statement in (forwards, backwards):
        rows: list[Any] = []
        cursor = None
        try:
            cursor = database.execute(statement, (key,))
            for row in cursor:
                rows.append(row)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            reason = damage_of(error).reason
        finally:
            if cursor is not None:
                cursor.close()
        found.append(rows)
        if not reason:
            return rows, [], ""
    return found[0], found[1][::-1], reason


def keys_of(database: sqlite3.Connection, table: str) -> Iterator[int]:
    """Numbers of the sessions that have rows in a table, as far as they can be read."""
    key = -(2**63)
    while True:
        found = tried(lambda after=key: database.execute(SELECT_NEXT_KEYS[table], (after,)).fetchall())  # type: ignore[misc]
        if isinstance(found, Damage) or not _is_behind(found[0], key):
            return
        key = found[0][0]
        yield key


def place_name(place: Any) -> str:
    if type(place) is not int:
        return f"{place!r}, which is no place"
    return f"segment {place >> schema.POSITION_BITS}, position {place & _MASK}"


def disagreements(row: Sequence[Any]) -> Iterator[tuple[FindingCode, str]]:
    """What does not agree with an entry as ``RELATED_BY_SEQ`` gives it: a code and a text for each."""
    seq, place, entry_id, parent_id, _, _, _, segment, base, neighbour, parent_seq, usage_seq = row
    if segment is None:
        yield "segment", f"segment {place >> schema.POSITION_BITS}, in which entry {entry_id} stands, is missing"
    elif place & _MASK or base is not None:
        if neighbour is None or neighbour != parent_id:
            where = place - 1 if place & _MASK else base
            what = "which is missing" if neighbour is None else f"which is {neighbour}"
            yield "entry_path", f"its parent is {parent_id}, and it stands behind {place_name(where)}, {what}"
    elif parent_id is not None:
        yield "entry_path", f"its parent is {parent_id}, and it stands at the beginning of a root"
    if parent_id is not None:
        if parent_seq is None:
            yield "missing_parent", f"its parent {parent_id} is not there"
        elif parent_seq >= seq:
            yield "entry_path", f"its parent {parent_id} (seq {parent_seq}) is not older than it (seq {seq}): a cycle"
    if usage_seq is not None:
        yield "duplicate_id", f"usage row {usage_seq} has the same id"
