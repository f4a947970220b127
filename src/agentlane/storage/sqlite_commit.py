"""One commit on its way to the SQLite file: its writes as rows, and what they do to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentlane.data.usage import Stats, UsageRow, UsageTotals
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import InvalidWrite, OwnershipLost
from agentlane.storage import schema
from agentlane.storage.contract import Commit, Pending
from agentlane.storage.index import OPERATIONS, check_usage_row, operation_meta
from agentlane.storage.sqlite_stats import stats_text

ENDS_MAX = 256
"""How many ends of segments a session keeps in memory; other places are looked up in the file."""
_MASK = (1 << schema.POSITION_BITS) - 1


class Written:
    """What the file holds of one session, as the writer's thread knows it. Nothing here grows with the session."""

    __slots__ = ("ends", "epoch", "sealed", "seq", "stats")

    def __init__(self, ends: dict[str, int], epoch: int, seq: int, stats: Stats, sealed: int) -> None:
        self.ends = ends
        """Ids of entries that are the last of their segments, with their places; the most recently used ones."""
        self.epoch = epoch
        self.seq = seq
        self.stats = stats
        self.sealed = sealed
        """What is kept for ``seq`` in the file, which ``seq`` is ahead of within a transaction."""

    def copy(self) -> Written:
        return Written(self.ends.copy(), self.epoch, self.seq, self.stats, self.sealed)


class CommitRows:
    """The writes of one commit as rows of tables, made before anything is asked of the file.

    Values and lists are reduced to what the commit leaves behind, so that the order among its statements is free.
    """

    __slots__ = (
        "at",
        "commit",
        "deleted_lists",
        "deleted_values",
        "elements",
        "entries",
        "error",
        "first_seq",
        "generation",
        "last_seq",
        "name",
        "pages",
        "pending",
        "publish",
        "set_values",
        "usage",
        "usage_rows",
    )

    def __init__(
        self,
        key: int,
        writes: Sequence[Write],
        *,
        first_seq: int,
        at: int,
        publish: Callable[[Commit], None] | None,
        name: str,
        generation: int,
    ) -> None:
        """``InvalidWrite`` for what can be known without the file: nothing to write, an id twice, a parent too late.

        ``generation``: how many times the session had been told ``StoreBusy`` when this was submitted.
        """
        if not writes:
            raise InvalidWrite("a commit without writes: there is nothing to commit")
        self.at = at
        self.first_seq = first_seq
        self.last_seq = first_seq + len(writes) - 1
        self.publish = publish
        self.name = name
        self.generation = generation
        self.pending = Pending()
        self.commit: Commit | None = None
        self.error: BaseException | None = None
        self.entries: list[tuple[int, str, str | None, str, str]] = []
        self.usage_rows: list[UsageRow] = []
        self.usage: list[tuple[Any, ...]] = []
        self.elements: list[tuple[int, str, str, int, str]] = []
        self.deleted_lists: list[tuple[int, str, str]] = []
        self.set_values: dict[str, list[tuple[Any, ...]]] = {}
        self.deleted_values: list[tuple[int, str, str]] = []
        try:
            self._sort(key, writes)
        except UnicodeDecodeError as error:
            raise InvalidWrite(f"a payload is not UTF-8, so it is not JSON: {error}") from error
        if len(self.entries) + len(self.usage) > 1:
            self._check_ids()

    def _sort(self, key: int, writes: Sequence[Write]) -> None:
        values: dict[Address, tuple[int, str] | None] = {}
        size_bytes = 0
        for seq, write in enumerate(writes, self.first_seq):
            if type(write) is SetValue:
                address, payload = write
                if address.namespace == OPERATIONS:
                    _check_operation(address.key, payload)
                values[address] = (seq, _text(payload))
                size_bytes += len(payload)
            elif type(write) is InsertEntry:
                entry_id, parent_id, entry_kind, payload = write
                self.entries.append((seq, entry_id, parent_id, entry_kind, _text(payload)))
                size_bytes += len(payload)
            elif type(write) is DeleteValue:
                values[write.address] = None
            elif type(write) is InsertUsage:
                check_usage_row(write.row)
                self.usage_rows.append(write.row)
                self.usage.append(usage_row(key, seq, self.at, write.row))
            elif type(write) is AppendElement:
                (namespace, list_key), payload = write
                self.elements.append((key, namespace, list_key, seq, _text(payload)))
                size_bytes += len(payload)
            elif type(write) is DeleteList:
                namespace, list_key = write.address
                self.elements = [each for each in self.elements if each[1:3] != (namespace, list_key)]
                self.deleted_lists.append((key, namespace, list_key))
            else:
                raise InvalidWrite(f"write {seq - self.first_seq}: {write!r} is not one of the six writes")
        for (namespace, value_key), value in values.items():
            if value is None:
                self.deleted_values.append((key, namespace, value_key))
            else:
                statement, place = schema.setting(key, namespace)
                self.set_values.setdefault(statement, []).append((*place, key, namespace, value_key, *value))
        # A rough count of the pages that change, for when to checkpoint: a leaf each in a table and its indexes.
        self.pages = 2 * len(writes) + size_bytes // schema.PAGE_BYTES

    def _check_ids(self) -> None:
        later = {entry[1] for entry in self.entries}
        used = {row.id for row in self.usage_rows}
        if len(later) + len(used) < len(self.entries) + len(self.usage) or later & used:
            raise InvalidWrite("one commit uses an id twice; entries and usage rows share one id space")
        for _, entry_id, parent_id, _, _ in self.entries:
            if parent_id in later:
                raise InvalidWrite(f"entry {entry_id}: its parent {parent_id} comes later in the commit, or is itself")
            later.discard(entry_id)
        # From here `later` was emptied in order: an entry's parent is before it, or is for the file to know.

    def apply(self, database: sqlite3.Connection, key: int, written: Written) -> None:
        """Run the commit's statements inside the open transaction, and move ``written`` on.

        ``InvalidWrite`` where the file knows better; the caller then undoes both.
        """
        executemany = database.executemany
        if self.entries:
            places = Places(database, key, written.ends)
            rows = [
                (places.take(entry_id, parent_id), key, seq, entry_id, parent_id, self.at, kind, payload)
                for seq, entry_id, parent_id, kind, payload in self.entries
            ]
            if executemany(schema.INSERT_ENTRY, rows).rowcount != len(rows):
                raise InvalidWrite(
                    "the id of an entry is used by a usage row; entries and usage rows share one id space"
                )
        if self.deleted_lists:
            executemany(schema.DELETE_LIST, self.deleted_lists)
        if self.elements:
            executemany(schema.INSERT_ELEMENT, self.elements)
        if self.deleted_values:
            executemany(schema.DELETE_VALUE, self.deleted_values)
        for statement, values in self.set_values.items():
            executemany(statement, values)
        if self.usage and executemany(schema.INSERT_USAGE, self.usage).rowcount != len(self.usage):
            raise InvalidWrite("the id of a usage row is used by an entry; entries and usage rows share one id space")
        if self.entries or self.usage_rows:
            totals: UsageTotals = written.stats.usage
            for each in self.usage_rows:
                totals = totals.plus(each)
            written.stats = Stats(entries=written.stats.entries + len(self.entries), usage=totals)
        written.seq = self.last_seq
        self.commit = Commit(self.first_seq, self.at, written.stats)


def seal(database: sqlite3.Connection, key: int, session_id: str, epoch: int, written: Written) -> None:
    """Write the session's high-water mark and stats under ``epoch``; ``OwnershipLost`` if another owner wrote (S22).

    The epoch alone would not tell: until the first commit of a new owner, one that was replaced still writes under its
    own, and the new one would build on what it read before that.
    """
    stats = stats_text(written.stats)
    sealed = database.execute(schema.UPDATE_SESSION, (epoch, written.seq, stats, key, written.epoch, written.sealed))
    if sealed.rowcount != 1:
        raise _lost(session_id, written)
    written.epoch = epoch
    written.sealed = written.seq


def check_epoch(database: sqlite3.Connection, key: int, session_id: str, written: Written) -> None:
    """``OwnershipLost`` if another owner has written, before ``seal`` is reached."""
    if database.execute(schema.SELECT_MARK, (key,)).fetchone() != (written.epoch, written.sealed):
        raise _lost(session_id, written)


def _lost(session_id: str, written: Written) -> OwnershipLost:
    return OwnershipLost(
        f"session {session_id}: another owner has written since this one opened it (it is no longer at epoch "
        f"{written.epoch} and number {written.sealed}), or it was deleted; open it again",
        session_id=session_id,
    )


def _text(payload: bytes) -> str:
    if not isinstance(payload, bytes):
        raise InvalidWrite(f"a payload is {type(payload).__name__}; payloads are bytes")
    if b"\n" in payload:
        raise InvalidWrite("a payload holds a newline byte; payloads are JSON texts on one line")
    return payload.decode()


def _check_operation(key: str, payload: bytes) -> None:
    """One that cannot be read would hide the open operations of every session in the file. # S20"""
    try:
        operation_meta(payload)
    except (msgspec.DecodeError, TypeError) as error:
        raise InvalidWrite(
            f"{OPERATIONS}/{key}: the payload must be an object with text `lane` and integer `started_at`: {error}"
        ) from error


class Places:
    """Gives new entries their places, before any of them is inserted; made anew when they are."""

    def __init__(self, database: sqlite3.Connection, key: int, ends: dict[str, int]) -> None:
        self._database = database
        self._key = key
        self._ends = ends
        self._new: dict[str, int] = {}
        self._taken: set[int] = set()

    def take(self, entry_id: str, parent_id: str | None) -> int:
        """Behind a parent that ends its segment, else at the start of a new segment."""
        if parent_id is None:
            place = self._new_segment(None)
        elif parent_id in self._ends:
            place = self._ends.pop(parent_id) + 1
        else:
            base = self._new.get(parent_id)
            if base is None:
                base = self._in_file(entry_id, parent_id)
            place = base + 1 if self._is_end(base) else self._new_segment(base)
        if len(self._ends) >= ENDS_MAX:
            del self._ends[next(iter(self._ends))]
        self._ends[entry_id] = self._new[entry_id] = place
        self._taken.add(place)
        return place

    def _is_end(self, place: int) -> bool:
        if place + 1 in self._taken:
            return False
        if place in self._taken:
            return True
        segment = place & ~_MASK
        last: int = self._database.execute(schema.SELECT_LAST_PLACE, (segment, segment | _MASK)).fetchall()[0][0]
        return last == place

    def _in_file(self, entry_id: str, parent_id: str) -> int:
        rows = self._database.execute(schema.SELECT_PLACE, (self._key, parent_id)).fetchall()
        if not rows:
            raise InvalidWrite(f"entry {entry_id}: its parent {parent_id} is not in the session", parent_id=parent_id)
        place: int = rows[0][0]
        return place

    def _new_segment(self, base: int | None) -> int:
        segment: int = self._database.execute(schema.SELECT_LAST_SEGMENT).fetchall()[0][0] + 1
        if segment > schema.SEGMENT_MAX:
            segment = self._free_segment(0 if base is None else base >> schema.POSITION_BITS)
        self._database.execute(schema.INSERT_SEGMENT, (segment, self._key, base))
        return segment << schema.POSITION_BITS

    def _free_segment(self, above: int) -> int:
        """The last number was taken: by damage, for nobody comes to it."""
        rows = self._database.execute(schema.SELECT_FREE_SEGMENT, (above, above)).fetchall()
        if not rows:
            raise InvalidWrite(
                f"no number is left for a segment that grows from segment {above}: it must be greater, and "
                f"{schema.SEGMENT_MAX}, the greatest, is taken. Nothing more can branch off there in this file; fork "
                "the session into another"
            )
        return int(rows[0][0])


def usage_row(key: int, seq: int, at: int, row: UsageRow) -> tuple[Any, ...]:
    """A ledger row as the table has it."""
    usage = row.usage
    return (
        key,
        seq,
        at,
        row.id,
        row.kind,
        row.entry_id,
        row.operation_id,
        row.model,
        row.note,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.cost_nanos,
    )
