"""What a session's rows in the SQLite file add up to: counted, and as ``session.stats`` keeps it."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence

import msgspec

from agentlane.data.usage import Stats, UsageTotals
from agentlane.errors import CorruptSession
from agentlane.storage import schema

_MARK = b',"check":'
_CHECK = _MARK + b"%d}"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Stats).decode


def stats_text(stats: Stats) -> str:
    """``stats`` as a session's row has it: with a checksum, so that a sum that was changed is not believed."""
    text = _encode(stats)[:-1]
    return "{}" if text == b"{" else (text + _CHECK % zlib.crc32(text)).decode()


def kept_stats(session_id: str, payload: bytes) -> Stats:
    """What the row of a session says; ``CorruptSession``. One without a checksum is as an older version wrote it."""
    try:
        text, mark, check = payload.rpartition(_MARK)
        if mark and mark + check != _CHECK % zlib.crc32(text):
            raise CorruptSession(f"session {session_id}: what its rows add up to is not what was written: {payload!r}")
        return _decode(payload)
    except (msgspec.MsgspecError, TypeError) as error:
        raise CorruptSession(f"session {session_id}: what its rows add up to cannot be read: {error}") from error


def counted_stats(database: sqlite3.Connection, key: int) -> Stats:
    """What the rows of a session are, each of them looked at; ``CorruptSession``."""
    entries, *sums = database.execute(schema.SELECT_STATS, (key, key)).fetchall()[0]
    if not all(type(each) is int for each in (entries, *sums)):
        raise CorruptSession(f"session number {key}: a number of its rows is of another type; the file is damaged")
    return Stats(entries=entries, usage=_totals(sums))


def _totals(sums: Sequence[int]) -> UsageTotals:
    """Totals from the rows' numbers, and the high and low half of each sum."""
    rows, unknown_rows, *halves = sums
    whole = [(high << 32) + low for high, low in zip(halves[::2], halves[1::2], strict=True)]
    return UsageTotals(
        rows=rows,
        unknown_rows=unknown_rows,
        input_tokens=whole[0],
        output_tokens=whole[1],
        cache_read_tokens=whole[2],
        cache_write_tokens=whole[3],
        reasoning_tokens=whole[4],
        cost_nanos=whole[5],
    )
