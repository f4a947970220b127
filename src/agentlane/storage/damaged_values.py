"""The values and lists of a session in a SQLite file that may be damaged: what can be read, and what is wrong with it.

A row is found in the index of addresses, and else by a look at each place of its table; a row and the index must say
the same of each other.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from typing import Any

from agentlane.data.findings import Finding, FindingCode
from agentlane.data.writes import Address
from agentlane.errors import AgentLaneError
from agentlane.storage import damaged_tables as tables
from agentlane.storage.contract import ElementRow, ValueRow
from agentlane.storage.damaged_tables import Broken, Damage, rows_behind, tried
from agentlane.storage.index import check_payload, check_texts

REPAIR = "repair the session into a copy, or restore it from a backup"
SEQ_MAX = 1 << 61
"""No session comes to a number like this; what is greater is damage."""

_FIRST = -(2**63)
_COLUMNS = {"value": ("namespace", "key"), "element": ("namespace", "key", "seq")}
"""What a row is looked up by, beside its session."""


def row_finding(
    path: str, code: FindingCode, where: str, text: str, *, advice: str = REPAIR, loses: bool = False
) -> Finding:
    """A finding at a place in the file; an empty one is the file."""
    name = os.path.basename(path)
    return Finding(code=code, place=f"{name}: {where}" if where else name, text=text, advice=advice, loses=loses)


def read_values(
    path: str, key: int, damaged: bool, found: list[Finding], database: sqlite3.Connection
) -> list[ValueRow]:
    """The values of a session. ``damaged``: SQLite's own check has found something in the file."""
    rows: dict[Address, ValueRow] = {}
    for namespace, name, payload in _rows(path, "value", key, damaged, found, database):
        if _fits(path, f"value {namespace}/{name}", found, payload, namespace, name):
            address = Address(namespace, name)
            rows[address] = ValueRow(address, payload)
    return [rows[address] for address in sorted(rows)]


def read_elements(
    path: str, key: int, damaged: bool, found: list[Finding], database: sqlite3.Connection
) -> list[ElementRow]:
    """The elements of its lists."""
    rows: dict[tuple[Address, int], ElementRow] = {}
    for namespace, name, seq, payload in _rows(path, "element", key, damaged, found, database):
        where = f"element {seq} of the list {namespace}/{name}"
        if type(seq) is not int or not 1 <= seq <= SEQ_MAX:
            if (namespace, name, seq) != ("", "", 0):
                text = "its number is not what was written"
                found.append(row_finding(path, "undecodable", where, text, loses=True))
        elif _fits(path, where, found, payload, namespace, name):
            address = Address(namespace, name)
            rows[address, seq] = ElementRow(address, seq, payload)
    return [rows[each] for each in sorted(rows)]


def _rows(
    path: str, table: str, key: int, damaged: bool, found: list[Finding], database: sqlite3.Connection
) -> Iterable[tuple[Any, ...]]:
    """What each row of the session is looked up by, and its payload."""
    columns = ", ".join(_COLUMNS[table])
    placed = tried(lambda: database.execute(tables.SELECT_HAS_PLACES).fetchone()) == (1,)
    if placed and damaged:
        return _by_place(path, table, key, found, database)
    first, last, reason = _ends(database, table, f"{columns}, CAST(payload AS BLOB)", key)
    if reason and placed:
        return _by_place(path, table, key, found, database)
    if reason:
        behind = "/".join(map(str, first[-1][:2])) if first else "the beginning"
        before = "/".join(map(str, last[0][:2])) if last else "the end"
        text = f"rows behind {behind} and before {before} cannot be read: {reason}"
        found.append(row_finding(path, "unreadable", f"table {table}", text, loses=True))
    if placed and table == "value":
        _check_operations(path, key, found, database)
    return (*first, *last)


def _ends(database: sqlite3.Connection, table: str, wanted: str, key: int) -> tuple[list[Any], list[Any], str]:
    columns = _COLUMNS[table]
    forwards = f"SELECT {wanted} FROM {table} WHERE session = ? ORDER BY {', '.join(columns)}"
    backwards = (
        f"SELECT {wanted} FROM {table} WHERE session = ? ORDER BY {', '.join(f'{each} DESC' for each in columns)}"
    )
    return tables.read_ends(database, forwards, backwards, key)


def _by_place(
    path: str, table: str, key: int, found: list[Finding], database: sqlite3.Connection
) -> Iterable[tuple[Any, ...]]:
    """Every row that can be read, those last that the index has too: an address that comes twice is theirs."""
    columns = _COLUMNS[table]
    rows, broken = _placed_rows(database, table, key)
    first, last, reason = _ends(database, table, f"{', '.join(columns)}, place", key)
    indexed = {each[-1]: each[:-1] for each in (*first, *last)}
    if reason:
        for part in broken:
            end = "to its end" if part.before is None else f"and before {part.before}"
            text = f"rows behind place {part.after} {end} cannot be read: {part.reason}"
            found.append(row_finding(path, "unreadable", f"table {table}, place {part.after}", text, loses=True))
    for place, address in indexed.items():
        if place not in rows:
            text = f"the index has it, and no such row of the session can be read at place {place}"
            found.append(row_finding(path, "unreadable", _name(table, address), text, loses=True))
    for place, row in rows.items():
        address = indexed.get(place)
        if address is None and not reason:
            text = f"the row at place {place} is not in the index: one of them was changed, or it is another session's"
            found.append(row_finding(path, "undecodable", _name(table, row), text))
        elif address is not None and address != row[:-1]:
            text = f"the row at place {place} is {_name(table, address)} in the index: one of them was changed"
            found.append(row_finding(path, "undecodable", _name(table, row), text, loses=True))
    return [rows[place] for place in sorted(rows, key=lambda each: rows[each][:-1] == indexed.get(each))]


def _placed_rows(database: sqlite3.Connection, table: str, key: int) -> tuple[dict[int, tuple[Any, ...]], list[Broken]]:
    """The rows of a session by their places, and the parts of the table that cannot be read."""
    statement = f"""
        SELECT place, session, {", ".join(_COLUMNS[table])}, CASE WHEN session = ? THEN CAST(payload AS BLOB) END
        FROM {table} NOT INDEXED WHERE place > ? ORDER BY place LIMIT ?
    """
    rows: dict[int, tuple[Any, ...]] = {}
    broken: list[Broken] = []
    place: int | None = _FIRST
    while place is not None:
        some = rows_behind(database, statement, (key,), place)
        if isinstance(some, Broken):
            broken.append(some)
            place = None if some.before is None else some.before - 1
            continue
        rows.update((each[0], each[2:]) for each in some if each[1] == key)
        place = some[-1][0] if some else None
    return rows, broken


def _check_operations(path: str, key: int, found: list[Finding], database: sqlite3.Connection) -> None:
    """Open operations are found by where they stand in the table."""
    rows = tried(lambda: database.execute(tables.SELECT_STRAY_OPERATIONS, (key,)).fetchall())
    for operation, place in () if isinstance(rows, Damage) else rows:
        text = f"the operation is open, and stands at place {place}, where none is looked for: it is not listed as open"
        found.append(row_finding(path, "open_operations", f"value op.meta/{operation}", text))


def _name(table: str, row: tuple[Any, ...]) -> str:
    return f"value {row[0]}/{row[1]}" if table == "value" else f"element {row[2]} of the list {row[0]}/{row[1]}"


def _fits(path: str, where: str, found: list[Finding], payload: Any, *texts: Any) -> bool:
    """Whether what was read can be an address with its payload."""
    try:
        check_texts(*texts)
        check_payload(payload)
    except AgentLaneError as error:
        found.append(row_finding(path, "undecodable", where, str(error), loses=True))
        return False
    return True
