"""What is wrong with a SQLite file as a whole, and what of one session in it can change: read at one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentlane.data.findings import Finding
from agentlane.data.usage import Stats
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage import damaged_tables as tables
from agentlane.storage import schema
from agentlane.storage.contract import ElementRow, SessionInfo, ValueRow
from agentlane.storage.damaged_tables import Damage, tried
from agentlane.storage.damaged_values import SEQ_MAX, read_elements, read_values, row_finding
from agentlane.storage.lock import is_held
from agentlane.storage.sqlite_connect import leftovers
from agentlane.storage.sqlite_stats import counted_stats, kept_stats

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Checked(NamedTuple):
    """What was found of the file."""

    findings: list[Finding]
    readable: bool
    """Whether sessions can be looked for in it."""
    damaged: bool
    """Whether SQLite's own check has found something."""
    unowned: list[int]
    """Numbers of sessions that have rows and are no sessions."""


class Copied(NamedTuple):
    """Where a session stands, and all of it that can change later."""

    key: int
    info: SessionInfo
    last_seq: int
    stats: Stats | None
    """What it is said to hold; None where that cannot be known."""
    elements: list[ElementRow]
    values: list[ValueRow]


def check_file(
    path: str,
    refused: CorruptSession | UnsupportedFormat | None,
    loading: Collection[int],
    database: sqlite3.Connection,
) -> Checked:
    """Look at the file's marks, at its pages, and for rows that are no session's. ``refused``: by its first bytes."""
    findings = []
    found = tried(lambda: _marks(database))
    if isinstance(found, Damage):
        # Lets SQLite pass over what it cannot make out of its own table of tables; nothing can be written here.
        again = tried(lambda: (database.execute("PRAGMA writable_schema = ON").fetchall(), _marks(database))[1])
        if not isinstance(again, Damage):
            findings.append(row_finding(path, "database", "table sqlite_schema", str(found), loses=True))
            found = again
    if isinstance(found, Damage):
        text = str(refused) if refused is not None else f"SQLite cannot read the file: {found}"
        return _hopeless(row_finding(path, "not_a_session", "", text, advice="restore it from a backup", loses=True))
    application_id, version, names = found
    missing = [name for name in tables.TABLES if name not in names]
    if application_id != schema.APPLICATION_ID and missing:
        lost = isinstance(refused, CorruptSession)
        text = str(refused or f"it is a SQLite file of another application (application_id {application_id:#x})")
        advice = "restore it from a backup" if lost else "choose another path"
        return _hopeless(row_finding(path, "not_a_session", "", text, advice=advice, loses=lost))
    if version > schema.FORMAT_VERSION:
        text = f"the file has format {version}, and this version reads up to {schema.FORMAT_VERSION}"
        advice = "open it with a newer version of agentlane"
        return _hopeless(row_finding(path, "newer_format", "PRAGMA user_version", text, advice=advice))
    if application_id != schema.APPLICATION_ID:
        text = f"it is {application_id:#x}, and the tables are agentlane's: the file's header was changed"
        findings.append(row_finding(path, "database", "PRAGMA application_id", text))
    if version < 1:
        text = f"it is {version}, which no version wrote: the file's header was changed"
        findings.append(row_finding(path, "database", "PRAGMA user_version", text))
    if not missing and _tables_of(database) != (version >= schema.STATS_SINCE, version >= schema.PLACES_SINCE):
        text = f"it is {version}, and the tables are of another format: the file's header was changed"
        findings.append(row_finding(path, "database", "PRAGMA user_version", text))
    if missing:
        text = f"the tables {', '.join(missing)} are missing"
        return Checked([*findings, row_finding(path, "database", "", text, loses=True)], False, True, [])
    for name in leftovers(path):
        text = "what somebody was making the file with when that process died"
        advice = "it is not needed, and goes when a file is next made there; delete it when you like"
        findings.append(Finding(code="leftover", place=name, text=text, advice=advice))
    damages = _damages(path, database)
    unowned, strangers = _strangers(path, loading, database)
    return Checked([*findings, *damages, *strangers], True, bool(damages), unowned)


def copy_session(
    path: str, session_id: str, checked: Checked, database: sqlite3.Connection
) -> tuple[Copied | None, list[Finding]]:
    """All of a session that can change, as of one commit; None if there is no such session, or no telling which it
    is, and what is wrong with it."""
    database.execute("BEGIN")  # an owner may commit beside us: what is read here belongs together
    try:
        found: list[Finding] = []
        row = _session_row(path, session_id, found, database)
        if row is None and checked.unowned:
            row = _nameless(path, session_id, checked.unowned, found)
        elif row is not None and checked.unowned and not _has_rows(row[0], database):
            row = _renumbered(path, session_id, row, checked.unowned, found)
        if row is None:
            return None, found
        key, created_at, metadata = row[:3]
        info = _info(path, session_id, created_at, metadata, found)
        last_seq, stats = _counts(path, session_id, row, found, database)
        _check_segments(path, key, found, database)
        elements = read_elements(path, key, checked.damaged, found, database)
        last_seq = max(last_seq, *(each.seq for each in elements), 0)  # a row that is lost, or says less, loses no list
        values = read_values(path, key, checked.damaged, found, database)
        return Copied(key, info, last_seq, stats, elements, values), found
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _hopeless(finding: Finding) -> Checked:
    return Checked([finding], False, True, [])


def _marks(database: sqlite3.Connection) -> tuple[int, int, set[str]]:
    (application_id,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return application_id, version, {name for (name,) in database.execute(tables.SELECT_TABLES).fetchall()}


def _tables_of(database: sqlite3.Connection) -> tuple[bool, bool]:
    """What tells one format from another in the tables: whether sums are kept, and whether values have places."""
    (stats,) = database.execute(tables.SELECT_HAS_STATS).fetchone()
    (places,) = database.execute(tables.SELECT_HAS_PLACES).fetchone()
    return stats > 0, places > 0


def _damages(path: str, database: sqlite3.Connection) -> list[Finding]:
    """What SQLite's own check finds."""
    found = tried(lambda: database.execute(tables.CHECK_ALL).fetchall())
    if isinstance(found, Damage):
        return [row_finding(path, "database", "PRAGMA integrity_check", str(found))]
    for (text,) in found:
        tables.check_was_read(str(text))
    return [row_finding(path, "database", "PRAGMA integrity_check", str(text)) for (text,) in found if text != "ok"]


def _strangers(path: str, loading: Collection[int], database: sqlite3.Connection) -> tuple[list[int], list[Finding]]:
    """Rows of numbers that no session has: loads that are under way or were killed, and others."""
    known = tried(lambda: {key for (key,) in database.execute("SELECT key FROM session NOT INDEXED").fetchall()})
    if isinstance(known, Damage):
        return [], []
    strangers: dict[int, list[str]] = {}
    for table in tables.SELECT_NEXT_KEYS:
        for key in tables.keys_of(database, table):
            if key not in known:
                strangers.setdefault(key, []).append(table)
    unowned, findings = [], []
    for key, named in sorted(strangers.items()):
        where = f"table {named[0]}, session {key}"
        if tried(lambda each=key: database.execute(schema.SELECT_LOAD_MARK, (each,)).fetchall()):  # type: ignore[misc]
            if key not in loading and not is_held(Path(f"{path}.lock")):
                text = "what is there of a session whose making was killed half-way: it never was one"
                advice = "nothing is lost; the next load or `SqliteStore.optimize` removes it"
                findings.append(row_finding(path, "half_loaded", where, text, advice=advice))
            continue
        unowned.append(key)
        text = f"rows in {', '.join(named)} are of session number {key}, and there is no such session"
        findings.append(row_finding(path, "unowned_rows", where, text, advice="restore the file from a backup"))
    return unowned, findings


def _session_row(
    path: str, session_id: str, found: list[Finding], database: sqlite3.Connection
) -> tuple[Any, ...] | None:
    """The row of the session, by its index and else by a look at each."""
    place = f"table session, id {session_id}"
    kept = tried(lambda: database.execute(tables.SELECT_HAS_STATS).fetchone()) == (1,)
    indexed = schema.SELECT_SESSION if kept else schema.SELECT_SESSION_BEFORE_STATS
    unindexed = tables.SELECT_SESSION_UNINDEXED if kept else tables.SELECT_SESSION_UNINDEXED_BEFORE_STATS
    rows = tried(lambda: database.execute(indexed, (session_id,)).fetchall())
    if not isinstance(rows, Damage) and rows:
        same = tried(lambda: database.execute(schema.SELECT_SESSION_ID, (rows[0][0],)).fetchall())
        if same == [(session_id,)]:
            return _checked_row(path, place, rows[0], found)
    each = tried(lambda: database.execute(unindexed, (session_id,)).fetchall())
    if isinstance(each, Damage):
        text = f"the table of sessions cannot be read: {each}"
        found.append(row_finding(path, "session_row", place, text, loses=True))
        return None
    if isinstance(rows, Damage) or rows or each:
        text = "its row and the index of sessions do not belong together: the file, or its log, is damaged or another's"
        found.append(row_finding(path, "session_row", place, text, loses=not each))
    return _checked_row(path, place, each[0], found) if each else None


def _checked_row(path: str, place: str, row: tuple[Any, ...], found: list[Finding]) -> tuple[Any, ...] | None:
    key, _, _, epoch, seq, _ = row
    if type(key) is int and type(epoch) is int and type(seq) is int and 0 <= seq <= SEQ_MAX:
        return row
    found.append(row_finding(path, "session_row", place, "a number of it is not what was written", loses=True))
    return (key, *row[1:3], 0, 0, row[5]) if type(key) is int else None


def _nameless(path: str, session_id: str, unowned: Sequence[int], found: list[Finding]) -> tuple[Any, ...] | None:
    """The rows of the one session that has no row, taken to be the one that is asked for."""
    place = f"table session, id {session_id}"
    if len(unowned) > 1:
        text = (
            f"there is no row of it, and rows of several sessions without one (numbers {unowned}): whose is not known"
        )
        found.append(row_finding(path, "session_row", place, text, loses=True))
        return None
    text = f"there is no row of it; rows of number {unowned[0]}, which has none, are taken to be its"
    found.append(row_finding(path, "session_row", place, text, loses=True))
    return unowned[0], 0, b"{}", 0, 0, None


def _has_rows(key: int, database: sqlite3.Connection) -> bool:
    return any(key in tables.keys_of(database, table) for table in tables.SELECT_NEXT_KEYS)


def _renumbered(
    path: str, session_id: str, row: tuple[Any, ...], unowned: Sequence[int], found: list[Finding]
) -> tuple[Any, ...]:
    """The row of a session that was committed to and has no rows, with the number of those that have no session."""
    if row[4] == 0:
        return row
    place = f"table session, id {session_id}"
    if len(unowned) > 1:
        text = f"it is number {row[0]}, which has no rows; those of which numbers {unowned} are its is not known"
        found.append(row_finding(path, "session_row", place, text, loses=True))
        return row
    text = f"it is number {row[0]}, which has no rows; rows of number {unowned[0]}, which no session has, are its"
    found.append(row_finding(path, "session_row", place, text))
    return unowned[0], *row[1:]


def _info(path: str, session_id: str, created_at: Any, metadata: Any, found: list[Finding]) -> SessionInfo:
    wrong = "" if type(created_at) is int else f"its time {created_at!r} is no number"
    known: dict[str, Any] = {}
    try:
        known = _decode(metadata)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        wrong = f"its metadata cannot be read: {error}"
    if wrong:
        found.append(row_finding(path, "session_row", f"table session, id {session_id}", wrong, loses=True))
    return SessionInfo(id=session_id, created_at=created_at if type(created_at) is int else 0, metadata=known)


def _counts(
    path: str, session_id: str, row: tuple[Any, ...], found: list[Finding], database: sqlite3.Connection
) -> tuple[int, Stats | None]:
    """The highest number, and what the rows of the session add up to."""
    key, _, _, _, seq, kept = row
    numbers = tried(lambda: database.execute(tables.SELECT_NUMBERS, 4 * (key, SEQ_MAX)).fetchall()[0])
    if isinstance(numbers, Damage) or type(numbers[0]) is not int:
        return SEQ_MAX, None
    highest, beyond = numbers
    if beyond:
        text = f"{beyond} of its entries and usage rows have numbers beyond {SEQ_MAX}, which nobody has written"
        found.append(row_finding(path, "undecodable", f"table session, id {session_id}", text, loses=True))
    try:
        counted = tried(lambda: counted_stats(database, key))
        if isinstance(counted, Damage):
            return max(seq, highest), None
    except CorruptSession as error:
        found.append(row_finding(path, "stats", f"table session, id {session_id}", str(error)))
        return max(seq, highest), None
    try:
        if kept is not None and (said := kept_stats(session_id, kept)) != counted:
            text = f"its row says that the session holds {said}, and its rows are {counted}"
            fewer = counted.entries < said.entries or counted.usage.rows < said.usage.rows
            found.append(row_finding(path, "stats", f"table session, id {session_id}", text, loses=fewer))
    except CorruptSession as error:
        advice = "nothing is lost: its rows are counted when it is opened, and the next commit writes it anew"
        found.append(row_finding(path, "stats", f"table session, id {session_id}", str(error), advice=advice))
    return max(seq, highest), counted


def _check_segments(path: str, key: int, found: list[Finding], database: sqlite3.Connection) -> None:
    """Each segment is made with its first entry, so that one without is not the one that was made."""
    rows = tried(lambda: database.execute(tables.SELECT_EMPTY_SEGMENTS, (key,)).fetchall())
    for (number,) in () if isinstance(rows, Damage) else rows:
        text = f"segment {number} has no entry: its number was changed, or its entries are gone"
        if type(number) is not int or not 1 <= number <= schema.SEGMENT_MAX:
            text = f"{number} is the number of no segment, which is from 1 to {schema.SEGMENT_MAX}: it was changed"
        found.append(row_finding(path, "segment", f"table segment, id {number}", text))
