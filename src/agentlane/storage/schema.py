"""Format 3 of the SQLite file: every SQL text that the store uses, constant, so that each is prepared once."""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x61676C6E  # "agln"
FORMAT_VERSION: Final = 3
"""``user_version`` of files that this version writes; ``sqlite_migrate`` has the way from each older one, and a greater
one is refused."""
STATS_SINCE: Final = 2
"""The first format with ``session.stats``."""
PLACES_SINCE: Final = 3
"""The first format with ``value.place`` and ``element.place``."""

PAGE_BYTES: Final = 2048
"""A commit changes a few rows in each of a few trees and logs whole pages: half the usual size logs a third less."""

TALK_KINDS: Final = frozenset({"user", "assistant", "tool_result"})
"""The kinds that most entries are of, which the index of landmarks leaves out."""
_IS_LANDMARK: Final = "kind <> 'user' AND kind <> 'assistant' AND kind <> 'tool_result'"

POSITION_BITS: Final = 32
"""``place`` is ``segment << POSITION_BITS | position``: a path is a few ranges of one integer key."""
SEGMENT_MAX: Final = (1 << (63 - POSITION_BITS)) - 1
"""The greatest number of a segment whose places are 64-bit integers."""

CREATE: Final = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
    # Numbers of what was deleted are not used again: whoever still has one finds nothing, never somebody else's rows.
    """
    CREATE TABLE session (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        stats TEXT NOT NULL DEFAULT ''
    ) STRICT
    """,
    """
    CREATE TABLE segment (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session INTEGER NOT NULL,
        base INTEGER
    ) STRICT
    """,
    """
    CREATE TABLE entry (
        place INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        id TEXT NOT NULL,
        parent_id TEXT,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        UNIQUE (session, id),
        UNIQUE (session, seq)
    ) STRICT
    """,
    # For people who read; generated columns would be computed for each insert.
    f"""
    CREATE VIEW entry_by_segment AS
    SELECT place >> {POSITION_BITS} AS segment, place & {(1 << POSITION_BITS) - 1} AS position, entry.* FROM entry
    """,
    # The few entries that are not part of the talk are where walks stop (compactions): found without reading others.
    # Not `NOT IN`, for which SQLite builds a table at each insert.
    f"CREATE INDEX entry_landmark ON entry (kind, place) WHERE {_IS_LANDMARK}",
    # Addresses are looked up in an index, and the payload is last: a lookup that met it would read all of it.
    """
    CREATE TABLE value (
        place INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        payload TEXT NOT NULL,
        UNIQUE (session, namespace, key)
    ) STRICT
    """,
    """
    CREATE TABLE element (
        place INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        payload TEXT NOT NULL,
        UNIQUE (session, namespace, key, seq)
    ) STRICT
    """,
    """
    CREATE TABLE usage (
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        id TEXT NOT NULL,
        kind TEXT NOT NULL,
        entry_id TEXT,
        operation_id TEXT,
        model TEXT,
        note TEXT,
        input_tokens INTEGER,
        output_tokens INTEGER,
        cache_read_tokens INTEGER,
        cache_write_tokens INTEGER,
        reasoning_tokens INTEGER,
        cost_nanos INTEGER,
        PRIMARY KEY (session, seq),
        UNIQUE (session, id)
    ) STRICT, WITHOUT ROWID
    """,
)

# Payloads are text in the file, readable in the sqlite3 shell, and come out as the bytes that they are.

# Sessions.

INSERT_SESSION: Final = """
    INSERT INTO session (id, created_at, metadata, epoch, seq, stats) VALUES (?, ?, ?, 0, 0, '{}')
"""
INSERT_FIRST_SESSION: Final = """
    INSERT INTO session (id, created_at, metadata, epoch, seq, stats)
    SELECT ?, ?, ?, 0, 0, '{}' WHERE NOT EXISTS (SELECT 1 FROM session)
"""
INSERT_SESSION_AT: Final = """
    INSERT INTO session (key, id, created_at, metadata, epoch, seq, stats) VALUES (?, ?, ?, ?, 0, ?, ?)
"""
DELETE_SESSION_ROW: Final = "DELETE FROM session WHERE key = ?"
# What a session that is being loaded is found by: the element of a list that no list can have.
SELECT_NEXT_LIST_SESSION: Final = "SELECT min(session) FROM element WHERE session > ?"
SELECT_LOAD_MARK: Final = "SELECT 1 FROM element WHERE session = ? AND namespace = '' AND key = '' AND seq = 0"
DELETE_LOAD_MARK: Final = "DELETE FROM element WHERE session = ? AND namespace = '' AND key = '' AND seq = 0"
SELECT_SESSIONS: Final = "SELECT id, created_at, CAST(metadata AS BLOB) FROM session ORDER BY created_at, id"
SELECT_FORMAT: Final = "PRAGMA user_version"
SELECT_SESSION: Final = """
    SELECT key, created_at, CAST(metadata AS BLOB), epoch, seq, CAST(stats AS BLOB) FROM session WHERE id = ?
"""
SELECT_SESSION_BEFORE_STATS: Final = """
    SELECT key, created_at, CAST(metadata AS BLOB), epoch, seq, NULL FROM session WHERE id = ?
"""
SELECT_SESSION_ID: Final = "SELECT id FROM session WHERE key = ?"
SELECT_KEYS: Final = "SELECT key, id FROM session WHERE ? IS NULL OR id = ? ORDER BY created_at, id"
SELECT_SEQ: Final = "SELECT seq FROM session WHERE key = ?"
SELECT_SESSION_KEY: Final = "SELECT key FROM session WHERE id = ?"
# S22: the epoch that was last seen must still be there.
SELECT_EPOCH: Final = "SELECT epoch FROM session WHERE key = ?"
SELECT_MARK: Final = "SELECT epoch, seq FROM session WHERE key = ?"
UPDATE_SESSION: Final = "UPDATE session SET epoch = ?, seq = ?, stats = ? WHERE key = ? AND epoch = ? AND seq = ?"
DELETE_SESSION: Final = (
    "DELETE FROM entry WHERE session = ?",
    "DELETE FROM segment WHERE session = ?",
    "DELETE FROM value WHERE session = ?",
    "DELETE FROM element WHERE session = ?",
    "DELETE FROM usage WHERE session = ?",
    "DELETE FROM session WHERE key = ?",
)
SELECT_HIGHEST_SEQ: Final = """
    SELECT max(
        coalesce((SELECT max(seq) FROM entry WHERE session = ?), 0),
        coalesce((SELECT max(seq) FROM usage WHERE session = ?), 0)
    )
"""
# Counts are summed as their high and low halves: SQLite refuses a sum beyond 64 bits, and one bad row is kept for ever.
SELECT_STATS: Final = """
    SELECT
        (SELECT count(*) FROM entry WHERE session = ?),
        count(*),
        coalesce(sum(kind <> 'adjustment' AND (input_tokens IS NULL OR output_tokens IS NULL)), 0),
        coalesce(sum(input_tokens >> 32), 0), coalesce(sum(input_tokens & 4294967295), 0),
        coalesce(sum(output_tokens >> 32), 0), coalesce(sum(output_tokens & 4294967295), 0),
        coalesce(sum(cache_read_tokens >> 32), 0), coalesce(sum(cache_read_tokens & 4294967295), 0),
        coalesce(sum(cache_write_tokens >> 32), 0), coalesce(sum(cache_write_tokens & 4294967295), 0),
        coalesce(sum(reasoning_tokens >> 32), 0), coalesce(sum(reasoning_tokens & 4294967295), 0),
        coalesce(sum(cost_nanos >> 32), 0), coalesce(sum(cost_nanos & 4294967295), 0)
    FROM usage WHERE session = ?
"""
# Not by the index of addresses, which says nothing of all sessions: whatever it is taken for, all of it would be read.
SELECT_OPEN_OPERATIONS: Final = """
    SELECT session.id, value.key, CAST(value.payload AS BLOB)
    FROM value NOT INDEXED CROSS JOIN session ON session.key = value.session
    WHERE value.place < 0 AND value.namespace = 'op.meta'
"""
SELECT_OPEN_OPERATIONS_BEFORE_PLACES: Final = """
    SELECT session.id, value.key, CAST(value.payload AS BLOB)
    FROM value JOIN session ON session.key = value.session
    WHERE value.namespace = 'op.meta'
"""

# Writes. Entries and usage rows share one id space: where the other has the id no row is inserted, and the count tells.

INSERT_SEGMENT: Final = "INSERT INTO segment (id, session, base) VALUES (?, ?, ?)"
# Behind every number that was given out, as far as such can have been: what is greater is damage, and takes none along.
SELECT_LAST_SEGMENT: Final = f"""
    SELECT max(
        coalesce((SELECT max(id) FROM segment WHERE id <= {SEGMENT_MAX}), 0),
        coalesce((SELECT max(place) >> {POSITION_BITS} FROM entry), 0),
        coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'segment' AND seq BETWEEN 0 AND {SEGMENT_MAX}), 0)
    )
"""
# Where the last number is taken: one that is free between a number that must be less and the greatest.
SELECT_FREE_SEGMENT: Final = f"""
    SELECT id + 1 FROM (SELECT ? AS id UNION ALL SELECT id FROM segment WHERE id > ?) AS taken
    WHERE id < {SEGMENT_MAX} AND NOT EXISTS (SELECT 1 FROM segment WHERE id = taken.id + 1)
        AND NOT EXISTS (
            SELECT 1 FROM entry WHERE place
            BETWEEN (taken.id + 1) << {POSITION_BITS} AND (taken.id + 1) << {POSITION_BITS} | {(1 << POSITION_BITS) - 1}
        )
    ORDER BY id DESC LIMIT 1
"""
INSERT_ENTRY: Final = """
    INSERT INTO entry (place, session, seq, id, parent_id, at, kind, payload)
    SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) AS new
    WHERE NOT EXISTS (SELECT 1 FROM usage WHERE session = new.column2 AND id = new.column4)
"""
INSERT_USAGE: Final = """
    INSERT INTO usage (
        session, seq, at, id, kind, entry_id, operation_id, model, note, input_tokens, output_tokens,
        cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_nanos
    )
    SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) AS new
    WHERE NOT EXISTS (SELECT 1 FROM entry WHERE session = new.column1 AND id = new.column4)
"""


# A value stands among those that change with it, so that a commit changes few pages: each session has a part of the
# table for what every step replaces, and one for all else. Open operations, of all sessions, stand before everything.


def _set_value(place: str) -> str:
    return f"""
    INSERT INTO value (place, session, namespace, key, seq, payload) VALUES (({place}), ?, ?, ?, ?, ?)
    ON CONFLICT (session, namespace, key) DO UPDATE SET seq = excluded.seq, payload = excluded.payload
"""


# Behind the last of a part; where that is full, which only damage can make it, SQLite takes a place.
SET_VALUE: Final = _set_value("""
    SELECT CASE WHEN max(place) < ? THEN max(place) + 1 WHEN max(place) IS NULL THEN ? END
    FROM value WHERE place BETWEEN ? AND ?
""")
# Before the first; where that stands at the very beginning, as only damage can have it, behind it where it is free.
_OPERATIONS_MIN: Final = -(1 << 62)
SET_OPERATION: Final = _set_value(f"""
    SELECT CASE
        WHEN min(place) IS NULL THEN -1
        WHEN min(place) > {_OPERATIONS_MIN} THEN min(place) - 1
        ELSE (
            SELECT place + 1 FROM value AS taken
            WHERE place BETWEEN {_OPERATIONS_MIN} AND -2
                AND NOT EXISTS (SELECT 1 FROM value WHERE value.place = taken.place + 1)
            ORDER BY place LIMIT 1
        )
    END
    FROM value WHERE place BETWEEN {_OPERATIONS_MIN} AND -1
""")
_PART_BITS: Final = 32
_STEP: Final = frozenset(("op.state", "lane.state", "branch.tip"))


def setting(key: int, namespace: str) -> tuple[str, tuple[int, ...]]:
    """The statement that sets a value in a namespace of a session, and its arguments before the row's own (session,
    namespace, key, seq and payload). They say where it goes if it is new."""
    if namespace == "op.meta":
        return SET_OPERATION, ()
    low = (key & (1 << 29) - 1) << _PART_BITS + 1
    if namespace not in _STEP:
        low += 1 << _PART_BITS
    high = low + (1 << _PART_BITS) - 1
    return SET_VALUE, (high, low, low, high)


DELETE_VALUE: Final = "DELETE FROM value WHERE session = ? AND namespace = ? AND key = ?"
INSERT_ELEMENT: Final = """
    INSERT INTO element (session, namespace, key, seq, payload) VALUES (?, ?, ?, ?, ?)
"""
DELETE_LIST: Final = "DELETE FROM element WHERE session = ? AND namespace = ? AND key = ?"

# Places.

SELECT_PLACE: Final = "SELECT place FROM entry WHERE session = ? AND id = ?"
SELECT_LAST_PLACE: Final = "SELECT max(place) FROM entry WHERE place BETWEEN ? AND ?"
SELECT_BASE: Final = "SELECT base FROM segment WHERE id = ? AND session = ?"
SELECT_TALK_PLACE: Final = """
    SELECT place FROM entry WHERE place BETWEEN ? AND ? AND kind = ? ORDER BY place DESC LIMIT 1
"""
SELECT_LANDMARK_PLACE: Final = f"""
    SELECT place FROM entry WHERE place BETWEEN ? AND ? AND kind = ? AND {_IS_LANDMARK}
    ORDER BY place DESC LIMIT 1
"""

# Reads. A walk sees every row of its range, so that a missing one is noticed; payloads only of those that are wanted:
# its arguments are whether payloads are wanted, twice the kinds that are (joined by and put between "|"; null for all),
# the range, the session and the limit. The plus before `session` keeps SQLite from taking an index that begins with it,
# which would sort the whole session for each page.

_WALK: Final = """
    SELECT
        id, parent_id, seq, at, kind,
        CASE WHEN ? AND (? IS NULL OR instr(?, '|' || kind || '|')) THEN CAST(payload AS BLOB) ELSE x'' END
    FROM entry WHERE place BETWEEN ? AND ? AND +session = ?
"""
WALK_NEWEST_FIRST: Final = _WALK + "ORDER BY place DESC LIMIT ?"
WALK_OLDEST_FIRST: Final = _WALK + "ORDER BY place LIMIT ?"
SELECT_ENTRY: Final = """
    SELECT id, parent_id, seq, at, kind, CAST(payload AS BLOB) FROM entry WHERE session = ? AND id = ?
"""
SCAN_ENTRIES: Final = """
    SELECT id, parent_id, seq, at, kind, CAST(payload AS BLOB)
    FROM entry WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?
"""
SCAN_USAGE: Final = """
    SELECT
        seq, at, id, kind, entry_id, operation_id, model, note, input_tokens, output_tokens, cache_read_tokens,
        cache_write_tokens, reasoning_tokens, cost_nanos
    FROM usage WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?
"""
SELECT_VALUE: Final = "SELECT CAST(payload AS BLOB) FROM value WHERE session = ? AND namespace = ? AND key = ?"
SELECT_VALUES: Final = """
    SELECT key, CAST(payload AS BLOB) FROM value WHERE session = ? AND namespace = ? AND key >= ? ORDER BY key
    LIMIT ?
"""
SELECT_VALUES_BETWEEN: Final = """
    SELECT key, CAST(payload AS BLOB) FROM value
    WHERE session = ? AND namespace = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?
"""
SELECT_NEWER_KEYS: Final = "SELECT key FROM value WHERE session = ? AND namespace = ? AND seq > ?"
SELECT_ALL_VALUES: Final = """
    SELECT namespace, key, CAST(payload AS BLOB) FROM value WHERE session = ? ORDER BY namespace, key
"""
SELECT_ALL_ELEMENTS: Final = """
    SELECT namespace, key, seq, CAST(payload AS BLOB) FROM element WHERE session = ? ORDER BY namespace, key, seq
"""
SELECT_ELEMENTS: Final = """
    SELECT seq, CAST(payload AS BLOB) FROM element
    WHERE session = ? AND namespace = ? AND key = ? AND seq > ? ORDER BY seq LIMIT ?
"""
SELECT_ELEMENTS_REVERSE: Final = """
    SELECT seq, CAST(payload AS BLOB) FROM element
    WHERE session = ? AND namespace = ? AND key = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
SELECT_LISTS: Final = """
    SELECT DISTINCT key FROM element WHERE session = ? AND namespace = ? AND key >= ? ORDER BY key
"""
SELECT_LISTS_BETWEEN: Final = """
    SELECT DISTINCT key FROM element
    WHERE session = ? AND namespace = ? AND key >= ? AND key < ? ORDER BY key
"""
