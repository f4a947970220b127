"""The search index of one SQLite file: plain functions of a connection. Each that writes runs inside a transaction.

The index is derived: it holds the words of entries up to a cursor in each session, and whatever is wrong with it, or
was made by other rules, is dropped and made again. Entries are write-once, so what is in it is never out of date.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from agentlane.data.reads import SEQ_MAX
from agentlane.data.search import TEXTING, Search, text_of
from agentlane.data.words import words_of
from agentlane.storage import schema
from agentlane.storage import search_schema as texts
from agentlane.storage.contract import EntryRow, Found

READ_ROWS = 64
"""Entries that are read, and cut into words, at once."""
READ_BYTES = 1 << 18
"""About as many bytes of payload are read at once, but for the first large one."""
FORGET_ROWS = 256
_PREFIX_END = chr(0x10FFFF)
_FOUND_AT_ONCE = 64


class Row(NamedTuple):
    """An entry as the index has it."""

    place: int
    seq: int
    at: int
    kind: str
    words: int
    text: str


class Step(NamedTuple):
    """What was read of a session: the entries up to ``seq``, the last of them where ``ended``."""

    rows: list[Row]
    seq: int
    ended: bool


class Damaged(Exception):
    """The index is not what it should be."""


class Unmendable(Exception):
    """Pages of the file are damaged where the index lies: nothing may be written there."""


def has_fts5(database: sqlite3.Connection) -> bool:
    """Whether this SQLite can have an index at all."""
    number: int = database.execute(texts.SELECT_FTS5).fetchall()[0][0]
    return number == 2


def is_usable(database: sqlite3.Connection) -> bool:
    """Whether there is an index, made as this version makes it."""
    found = {name: sql for name, _, sql in database.execute(texts.SELECT_OBJECTS).fetchall()}
    if {name: _bare(sql) for name, sql in found.items()} != _WANTED:
        return False
    return database.execute(texts.SELECT_VERSION).fetchall() == [(TEXTING,)]


def make(database: sqlite3.Connection) -> None:
    """An empty index in place of whatever there is, unless there is a usable one."""
    if is_usable(database):
        return
    drop(database)
    for statement in texts.OBJECTS.values():
        database.execute(statement)
    database.execute(texts.INSERT_VERSION, (TEXTING,))


def drop(database: sqlite3.Connection) -> None:
    """No index, and nothing else under its names. ``Unmendable``."""
    names = (*texts.OBJECTS, *texts.OBJECTS_OF_TEXT)
    for name in names:
        if _is_table(database, name):
            # Dropping what lies on damaged pages could give pages of others away.
            found = database.execute(texts.CHECK_PAGES.format(name)).fetchall()
            if found != [("ok",)]:
                raise Unmendable(f"{name}: {found[0][0]}")
    types = {name: type for name, type, _ in database.execute(texts.SELECT_OBJECTS).fetchall()}
    if _is_virtual(database, "search_text"):
        for statement in texts.MEND_TEXT:
            database.execute(statement)
    for name in reversed(texts.OBJECTS):
        if name in types:
            database.execute(f"DROP {'VIEW' if types[name] == 'view' else 'TABLE'} {name}")
    for name in texts.OBJECTS_OF_TEXT:
        database.execute(f"DROP TABLE IF EXISTS {name}")


def cursor(database: sqlite3.Connection, key: int) -> int:
    """The entries of a session up to this ``seq`` are in the index."""
    rows = database.execute(texts.SELECT_CURSOR, (key,)).fetchall()
    return rows[0][0] if rows else 0


def read_step(database: sqlite3.Connection, key: int, after_seq: int, upto_seq: int) -> Step:
    """The next entries of a session behind ``after_seq``, as the index will have them."""
    rows: list[Row] = []
    size_bytes = 0
    found = database.execute(texts.SELECT_NEXT, (key, after_seq, upto_seq))
    try:
        for place, seq, at, kind, payload in found:
            text = _stored_text(key, payload)
            rows.append(Row(place, seq, at, kind, text.count(" ") + 1 if text else 0, text))
            size_bytes += len(payload)
            if len(rows) >= READ_ROWS or size_bytes >= READ_BYTES:
                return Step(rows, seq, ended=seq >= upto_seq)
    finally:
        found.close()
    return Step(rows, upto_seq, ended=True)


def write_rows(database: sqlite3.Connection, key: int, after_seq: int, rows: Sequence[Row], seq: int) -> int | None:
    """Take in what was read behind ``after_seq`` up to ``seq``, and return where the cursor now is.

    If another was faster, that is where it has got; None if the session is gone. ``Damaged``.
    """
    if not is_usable(database):
        raise Damaged("dropped meanwhile")
    if not database.execute(schema.SELECT_SEQ, (key,)).fetchall():
        return None
    now = cursor(database, key)
    if now != after_seq:
        return now
    # FTS5 wants its rows in the order of their numbers; each that is not begins another piece.
    worded = sorted(row for row in rows if row.words)
    database.executemany(texts.INSERT_TEXT, [(row.place, row.text) for row in worded])
    database.executemany(texts.INSERT_ENTRY, [row[:5] for row in worded])
    database.execute(texts.SET_CURSOR, (key, seq))
    return seq


def forget_some(database: sqlite3.Connection, key: int) -> bool:
    """Take the newest entries of a session out of the index; whether that was the last of them."""
    now = cursor(database, key)
    rows = database.execute(texts.SELECT_LAST, (key, 0, now)).fetchmany(FORGET_ROWS) if now else []
    stored = sorted((place, text) for place, _, _, _, payload in rows if (text := _stored_text(key, payload)))
    database.executemany(texts.DELETE_TEXT, stored)
    database.executemany(texts.DELETE_ENTRY, [(place,) for place, _ in stored])
    if len(rows) < FORGET_ROWS:
        database.execute(texts.DELETE_CURSOR, (key,))
        return True
    database.execute(texts.SET_CURSOR, (key, rows[-1][1] - 1))
    return False


def forget_session(database: sqlite3.Connection, key: int) -> None:
    """Nothing of a session is in the index any more; where that takes it, there is no index any more."""
    if not any(_has(database, name) for name in (*texts.OBJECTS, *texts.OBJECTS_OF_TEXT)):
        return
    if not has_fts5(database):
        _wipe(database)
    elif is_usable(database):
        while not forget_some(database, key):
            pass
    else:
        drop(database)


def find(
    database: sqlite3.Connection,
    key: int,
    search: Search,
    *,
    upto_seq: int,
    ranges: Sequence[tuple[int, int]] | None,
) -> list[Found]:
    """The best of what is in the index, on a path of these places (None: anywhere). ``Damaged``."""
    arguments: list[int | str] = []
    for number, wanted in enumerate(search.words):
        first = _stored_word(key, wanted.word)
        arguments += [number, first, first + _PREFIX_END if wanted.prefix else first]
    since = -SEQ_MAX if search.since is None else search.since
    until = SEQ_MAX if search.until is None else search.until - 1
    arguments += [upto_seq, since, until, *(search.kinds or ()), len(search.words)]
    kinds = None if search.kinds is None else len(search.kinds)
    lows = None if ranges is None else [low for low, _ in ranges]
    found: list[Found] = []
    rows = database.execute(texts.select_found(len(search.words), kinds), arguments)
    try:
        while len(found) < search.limit and (page := rows.fetchmany(_FOUND_AT_ONCE)):
            for place, total in page:
                if total is None:
                    raise Damaged(f"it has words at place {place}, and no entry")
                if ranges is None or lows is None or _is_on(place, ranges, lows):
                    found.append(Found(_row(database, key, place), total))
    finally:
        rows.close()
    return found[: search.limit]


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the index is damaged, or perhaps pages of the file: ``drop`` tells them apart."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)


def _row(database: sqlite3.Connection, key: int, place: int) -> EntryRow:
    rows = database.execute(texts.SELECT_ROW, (place, key)).fetchall()
    if not rows:
        raise Damaged(f"it has an entry that is not there, at place {place}")
    return EntryRow(*rows[0])


def _is_on(place: int, ranges: Sequence[tuple[int, int]], lows: Sequence[int]) -> bool:
    number = bisect_right(lows, place) - 1
    return number >= 0 and place <= ranges[number][1]


def words_in(payload: bytes) -> int:
    """How many words of an entry the index has."""
    return sum(1 for _ in words_of(text_of(payload)))


def _stored_text(key: int, payload: bytes) -> str:
    """The words of an entry as they are stored; empty if it has none."""
    return " ".join(_stored_word(key, word) for word in words_of(text_of(payload)))


def _stored_word(key: int, word: str) -> str:
    return f"{key}·{word}"


def _wipe(database: sqlite3.Connection) -> None:
    """Take out what can be taken out without FTS5; what is left is no usable index."""
    for name in (*texts.OBJECTS_OF_TEXT, "search_index", "search_cursor", "search_entry"):
        if _is_table(database, name):
            database.execute(f"DELETE FROM {name}")


def _is_table(database: sqlite3.Connection, name: str) -> bool:
    """Whether there is such a table with pages of its own."""
    found = database.execute(texts.SELECT_TYPE, (name,)).fetchall()
    return found == [("table",)] and not _is_virtual(database, name)


def _has(database: sqlite3.Connection, name: str) -> bool:
    return bool(database.execute(texts.SELECT_TYPE, (name,)).fetchall())


def _is_virtual(database: sqlite3.Connection, name: str) -> bool:
    found = database.execute(texts.SELECT_OBJECTS).fetchall()
    return any(each == name and _bare(sql).startswith("CREATEVIRTUAL") for each, _, sql in found)


def _bare(sql: str | None) -> str:
    return "".join((sql or "").split())


_WANTED = {name: _bare(sql) for name, sql in texts.OBJECTS.items()}
