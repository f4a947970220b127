"""Stored records, decoded once: checks look at the same payloads again and again. What is handed out is shared."""

from __future__ import annotations

from functools import lru_cache

from agentlane.data import codec
from agentlane.data.entries import Entry, EntryBody
from agentlane.data.operations import OperationState
from agentlane.storage.contract import EntryRow

KEPT_MAX = 2048
"""How many payloads of each kind are remembered."""


@lru_cache(maxsize=KEPT_MAX)
def state_of(payload: bytes) -> OperationState:
    """The state of an operation; ``CorruptSession``, ``UnsupportedFormat``."""
    return codec.STATE.decode(payload, "op.state")


def entry_of(row: EntryRow) -> Entry:
    """The entry of a stored row; ``CorruptSession``, ``UnsupportedFormat``."""
    return Entry(id=row.id, parent_id=row.parent_id, seq=row.seq, at=row.at, body=body_of(row.payload, row.id))


@lru_cache(maxsize=KEPT_MAX)
def body_of(payload: bytes, id: str) -> EntryBody:
    """What an entry holds; ``CorruptSession``, ``UnsupportedFormat``."""
    return codec.BODY.decode(payload, f"entry {id}")
