"""Whether the search index of a SQLite file says of a session's entries what they hold. It is derived: nothing is lost
where it does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from agentlane.data.findings import Finding
from agentlane.storage import damaged_tables as tables
from agentlane.storage import search_index as index
from agentlane.storage.damaged_tables import Broken, Damage, rows_behind, tried
from agentlane.storage.damaged_values import row_finding
from agentlane.storage.database_check import Copied
from agentlane.storage.salvage import Findings

_ADVICE = (
    "nothing is lost: `search(..., scan=True)` reads the entries; drop the tables search_*, and a search makes them"
)


def check_search(
    path: str, copied: Copied, findings: Findings
) -> Generator[Callable[[sqlite3.Connection], Any], Any, None]:
    """The queries of one check, each short; what they find is added to ``findings``."""
    cursor = yield partial(_cursor, key=copied.key)
    if isinstance(cursor, str):
        findings.add(_finding(path, "", cursor))
        return
    after = 0
    while after < cursor:
        found = yield partial(_wrong_rows, key=copied.key, upto=min(cursor, copied.last_seq), after=after)
        if found is None:
            return
        after, wrong = found
        for where, text in wrong:
            findings.add(_finding(path, where, text))


def _cursor(database: sqlite3.Connection, key: int) -> int | str:
    """Up to where the index has a session; 0 where it has nothing, or there is none; or what is wrong with it."""
    found = tried(lambda: index.is_usable(database) and index.has_fts5(database))
    if isinstance(found, Damage):
        return str(found)
    if not found:
        return 0
    counts = tried(lambda: database.execute(tables.SEARCH_COUNTS).fetchall()[0])
    if isinstance(counts, Damage):
        return f"its words cannot be read: {counts}"
    if counts[0] != counts[1]:
        return f"it holds {counts[0]} words, and its entries are said to have {counts[1]}"
    cursor = tried(lambda: index.cursor(database, key))
    if isinstance(cursor, Damage) or type(cursor) is not int:
        return f"how far it has got cannot be read: {cursor}"
    return cursor


def _wrong_rows(
    database: sqlite3.Connection, key: int, upto: int, after: int
) -> tuple[int, list[tuple[str, str]]] | None:
    """The next entries of which the index is wrong, and where to go on; None at the end."""
    if not index.is_usable(database):
        return None  # made anew meanwhile
    found = rows_behind(database, tables.SEARCH_ROWS, (key, upto), after)
    if isinstance(found, Broken) or not found:
        return None
    wrong = []
    for seq, entry_id, at, kind, payload, *known in found:
        try:
            words = index.words_in(payload)
        except Exception:  # what cannot be read has no words; it is told of as an entry
            continue
        want = [seq, at, kind, words] if words else [None] * 4
        if known != want:
            has = "it is not there" if known[0] is None else f"it is there with {known}"
            wrong.append((f"entry {entry_id}", f"the index should have {words} words of it, and {has}"))
    return found[-1][0], wrong


def _finding(path: str, where: str, text: str) -> Finding:
    return row_finding(path, "search_index", where, f"the search index: {text}", advice=_ADVICE)
