"""The search index of the SQLite file: its tables and every SQL text on them. Derived data, made again at any doubt.

A word is stored as ``{session key}·{word}``: what one session holds is found without a look at the others.
"""

from __future__ import annotations

from typing import Final

from agentlane.data.search import SHARE

OBJECTS: Final = {
    "search_index": """
        CREATE TABLE search_index (
            version TEXT NOT NULL
        ) STRICT
    """,
    "search_cursor": """
        CREATE TABLE search_cursor (
            session INTEGER PRIMARY KEY,
            seq INTEGER NOT NULL
        ) STRICT
    """,
    "search_entry": """
        CREATE TABLE search_entry (
            place INTEGER PRIMARY KEY,
            seq INTEGER NOT NULL,
            at INTEGER NOT NULL,
            kind TEXT NOT NULL,
            words INTEGER NOT NULL
        ) STRICT
    """,
    # Only words, each between spaces: whatever is in them is cut as it was cut by us.
    "search_text": """
        CREATE VIRTUAL TABLE search_text USING fts5(words, content = '', columnsize = 0, tokenize = 'ascii')
    """,
    "search_word": "CREATE VIRTUAL TABLE search_word USING fts5vocab(search_text, instance)",
}
"""What the index is made of, by name, in the order of making."""
OBJECTS_OF_TEXT: Final = ("search_text_data", "search_text_idx", "search_text_config", "search_text_docsize")
"""Tables that FTS5 makes, or may make, for ``search_text``."""

SELECT_FTS5: Final = "SELECT count(*) FROM pragma_module_list WHERE name IN ('fts5', 'fts5vocab')"
SELECT_OBJECTS: Final = f"""
    SELECT name, type, sql FROM sqlite_schema WHERE name IN ({", ".join(f"'{name}'" for name in OBJECTS)})
"""
SELECT_VERSION: Final = "SELECT version FROM search_index"
INSERT_VERSION: Final = "INSERT INTO search_index (version) VALUES (?)"
DELETE_VERSION: Final = "DELETE FROM search_index"

# FTS5 cannot drop its table when it cannot read these of its own: they are made as those of a table without rows.
MEND_TEXT: Final = (
    "DROP TABLE IF EXISTS search_text_data",
    "CREATE TABLE search_text_data (id INTEGER PRIMARY KEY, block BLOB)",
    "INSERT INTO search_text_data VALUES (1, x''), (10, x'00000000000000')",
    "DROP TABLE IF EXISTS search_text_config",
    "CREATE TABLE search_text_config (k PRIMARY KEY, v) WITHOUT ROWID",
    "INSERT INTO search_text_config VALUES ('version', 4)",
)
CHECK_PAGES: Final = "PRAGMA quick_check({})"
SELECT_TYPE: Final = "SELECT type FROM sqlite_schema WHERE name = ?"

SELECT_CURSOR: Final = "SELECT seq FROM search_cursor WHERE session = ?"
SET_CURSOR: Final = "INSERT OR REPLACE INTO search_cursor (session, seq) VALUES (?, ?)"
DELETE_CURSOR: Final = "DELETE FROM search_cursor WHERE session = ?"

SELECT_NEXT: Final = """
    SELECT place, seq, at, kind, CAST(payload AS BLOB) FROM entry WHERE session = ? AND seq > ? AND seq <= ?
    ORDER BY seq
"""
SELECT_LAST: Final = """
    SELECT place, seq, at, kind, CAST(payload AS BLOB) FROM entry WHERE session = ? AND seq > ? AND seq <= ?
    ORDER BY seq DESC
"""
INSERT_TEXT: Final = "INSERT INTO search_text (rowid, words) VALUES (?, ?)"
DELETE_TEXT: Final = "INSERT INTO search_text (search_text, rowid, words) VALUES ('delete', ?, ?)"
INSERT_ENTRY: Final = "INSERT INTO search_entry (place, seq, at, kind, words) VALUES (?, ?, ?, ?, ?)"
DELETE_ENTRY: Final = "DELETE FROM search_entry WHERE place = ?"

SELECT_ROW: Final = "SELECT id, parent_id, seq, at, kind, x'' FROM entry WHERE place = ? AND session = ?"


def select_found(words: int, kinds: int | None) -> str:
    """The query for so many words, and so many kinds (None: any); totals are those of ``data.search.total_of``.

    A total that is null, which comes first, tells of words whose entry the index does not know.

    Its arguments: of each word its number and the first and last stored word that will do; the highest ``seq``, the
    first and the last time, the kinds, and the number of words.
    """
    kind = "" if kinds is None else f"AND entry.kind IN ({', '.join('?' * kinds)})"
    return f"""
        SELECT
            found.place,
            sum({100 * SHARE} * found.count / (100 * found.count + 50 + entry.words)) AS total
        FROM (
            SELECT word.doc AS place, count(*) AS count
            FROM (VALUES {", ".join(["(?, ?, ?)"] * words)}) AS wanted CROSS JOIN search_word AS word
            WHERE word.term >= wanted.column2 AND word.term <= wanted.column3
            GROUP BY word.doc, wanted.column1
        ) AS found LEFT JOIN search_entry AS entry ON entry.place = found.place
        WHERE entry.seq IS NULL OR (entry.seq <= ? AND entry.at >= ? AND entry.at <= ? {kind})
        GROUP BY found.place HAVING count(*) = ? OR entry.seq IS NULL
        ORDER BY entry.seq IS NULL DESC, total DESC, entry.at DESC, entry.seq DESC
    """
