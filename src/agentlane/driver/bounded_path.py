"""As much of a path as a lane needs: what the model is shown of it, and what an open operation goes on from."""

from __future__ import annotations

from agentlane.data import codec
from agentlane.data.entries import Compaction, Entry
from agentlane.data.operations import OperationMeta
from agentlane.machine.context import begins_anew
from agentlane.storage.contract import EntryRow, SessionStorage

COMPACTION = "compaction"
END_PAGE = 16
"""How many entries at a time the end of a path is read by; the newest one alone mostly tells."""


async def read_path(storage: SessionStorage, tip: str | None, *, since: str | None = None) -> list[Entry]:
    """The end of a path without a gap, oldest first: from where the newest compaction keeps it on, or all of it.

    It goes further up to the entry ``since``, where that is not behind it already; to the root if it is not there.
    """
    if tip is None:
        return []
    rows = await storage.path(tip, stop_kind=COMPACTION)
    body = codec.BODY.decode(rows[-1].payload, f"entry {rows[-1].id}") if rows[-1].kind == COMPACTION else None
    if isinstance(body, Compaction):
        await _go_on(storage, rows, body.kept_from)
        await _go_on(storage, rows, since)
    return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in reversed(rows)]


def first_input(meta: OperationMeta | None) -> str | None:
    """The entry that an operation began with; None of one that has no input, as of a compaction."""
    return meta.inputs[0] if meta is not None and meta.inputs else None


async def end_of_path(storage: SessionStorage, tip: str | None) -> list[Entry]:
    """The newest entries of a path, oldest first, from the newest one on before which nothing counts."""
    found: list[Entry] = []
    limit = 1
    while tip is not None:
        rows = await storage.path(tip, limit=limit, after=found[-1].id if found else None)
        for row in rows:
            found.append(codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload))
            if begins_anew(found[-1].body):
                return found[::-1]
        if len(rows) < limit:
            break
        limit = END_PAGE
    return found[::-1]


async def _go_on(storage: SessionStorage, rows: list[EntryRow], to: str | None) -> None:
    """Read on towards the root, up to an entry that is not read yet."""
    parent = rows[-1].parent_id
    if to is not None and parent is not None and all(row.id != to for row in rows):
        rows += await storage.path(parent, stop_at=to)
