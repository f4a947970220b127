"""What a session holds, as an index in memory: who is whose parent, what lies where, and the sums over the ledger.

``P`` is a *place*: what a backend needs to find a payload again. To the memory store it is the payload, to the JSONL
store where in the file the payload lies. Nothing here grows with superseded values.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Generic, Protocol, TypeVar

import msgspec

from agentlane.data.usage import Stats, UsageRow, checked_usage
from agentlane.data.writes import (
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import InvalidMessage, InvalidWrite, UnknownEntry
from agentlane.storage.contract import EntryRow
from agentlane.storage.id_rows import IdRows
from agentlane.storage.segments import NO_ROW, Segments

P = TypeVar("P")

OPERATIONS = "op.meta"
"""The namespace whose values are the open operations (S20)."""


class Places(Protocol[P]):
    """A column of places, appended to and read by number."""

    def append(self, place: P, /) -> None: ...
    def __getitem__(self, number: int, /) -> P: ...


class OperationMeta(msgspec.Struct, frozen=True):
    """The part of an ``op.meta`` payload that a store reads."""

    lane: str
    started_at: int


_decode_meta = msgspec.json.Decoder(OperationMeta).decode


def operation_meta(payload: bytes) -> OperationMeta:
    """Who runs an operation and since when; ``msgspec.DecodeError`` if the payload is not as S20 says."""
    return _decode_meta(payload)


class Elements(Generic[P]):
    """The elements of one list."""

    __slots__ = ("places", "seqs")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.places: list[P] = []

    def numbers(self, after: int | None, limit: int | None, *, reverse: bool) -> range:
        """Which elements lie beyond ``after``, in the order asked for."""
        if reverse:
            end = len(self.seqs) if after is None else bisect_left(self.seqs, after)
            return range(end - 1, -1, -1)[:limit]
        return range(0 if after is None else bisect_right(self.seqs, after), len(self.seqs))[:limit]


class SessionIndex(Generic[P]):
    """The published state of one session."""

    def __init__(self, entry_places: Places[P], ledger_places: Places[P]) -> None:
        self.stats = Stats()
        self.last_seq = 0
        """The highest sequence number that a published write has."""
        self.segments = Segments()
        self.entry_places = entry_places
        self.ledger_places = ledger_places
        self.ledger_seqs = array("q")
        self.values: dict[str, dict[str, P]] = {}
        self.lists: dict[str, dict[str, Elements[P]]] = {}
        self._ordered: dict[str, list[str]] = {}
        """The keys of values in order, for the namespaces that somebody has listed."""
        self.rows = IdRows()
        """Rows of entries by id; ids of usage rows, which share the id space, have a negative number."""
        self._ids = self.rows.ids
        self._entry_seqs = array("q")
        self._commit_seqs = array("q")
        self._commit_times = array("q")

    # Writing.

    def check(self, writes: Sequence[Write], submitted: dict[str, bool]) -> dict[str, bool]:
        """Refuse what S2 refuses; else the ids that the commit uses up, with whether each is an entry's.

        ``submitted`` holds those of commits that are on their way.
        """
        if not writes:
            raise InvalidWrite("a commit without writes: there is nothing to make durable")
        row_of = self.rows
        fresh: dict[str, bool] = {}
        for write in writes:
            if type(write) is SetValue:
                (namespace, key), payload = write
                if namespace == OPERATIONS:
                    check_operation(key, payload)
                check_texts(namespace, key)
            elif type(write) is InsertEntry:
                new_id, parent_id, kind, payload = write
                check_texts(new_id, kind)
                if new_id in row_of or new_id in fresh or new_id in submitted:
                    raise InvalidWrite(f"entry id {new_id!r} is used already; take a fresh id", id=new_id)
                if (
                    parent_id is not None
                    and not fresh.get(parent_id)
                    and row_of.get(parent_id, NO_ROW) < 0
                    and not submitted.get(parent_id)
                ):
                    raise InvalidWrite(
                        f"entry {new_id!r}: its parent {parent_id!r} is no entry of this session", id=new_id
                    )
                fresh[new_id] = True
            elif type(write) is InsertUsage:
                check_usage_row(write.row)
                row_id = write.row.id
                if row_id in row_of or row_id in fresh or row_id in submitted:
                    raise InvalidWrite(f"usage id {row_id!r} is used already; take a fresh id", id=row_id)
                fresh[row_id] = False
                continue
            elif type(write) is AppendElement:
                payload = write.payload
                check_texts(*write.address)
            elif type(write) is DeleteValue or type(write) is DeleteList:
                check_texts(*write.address)
                continue
            else:
                raise InvalidWrite(f"{type(write).__name__} is not one of the six writes")
            check_payload(payload)
        return fresh

    def apply(self, writes: Sequence[Write], *, first_seq: int, at: int, places: Iterator[P]) -> None:
        """Take in a checked commit. ``places`` gives one for each write that has a payload, in order."""
        self.begin(first_seq, at)
        last_id, last_row = "", NO_ROW  # most entries stand behind the one before them
        for seq, write in enumerate(writes, first_seq):
            if type(write) is SetValue:
                namespace, key = write.address
                self.set_value(namespace, key, next(places))
            elif type(write) is InsertEntry:
                entry_id, parent_id, kind, _ = write
                if parent_id is None:
                    parent = NO_ROW
                else:
                    parent = last_row if parent_id == last_id else self.rows[parent_id]
                last_id, last_row = entry_id, self.insert_entry(entry_id, parent, kind, seq, next(places))
            elif type(write) is DeleteValue:
                namespace, key = write.address
                self.delete_value(namespace, key)
            elif type(write) is InsertUsage:
                self.insert_usage(write.row.id, seq, next(places))
            elif type(write) is AppendElement:
                namespace, key = write.address
                self.append_element(namespace, key, seq, next(places))
            elif type(write) is DeleteList:
                self.delete_list(*write.address)
        self.last_seq = first_seq + len(writes) - 1

    def begin(self, first_seq: int, at: int) -> None:
        """The writes that follow belong to this commit; ``last_seq`` is to be set after them."""
        self._commit_seqs.append(first_seq)
        self._commit_times.append(at)

    def end_base(self, last_seq: int) -> None:
        """All that was taken in up to here, in any order of ``seq``, was there already at ``last_seq``."""
        seqs, times = self._commit_seqs, self._commit_times
        ends = [number for number in range(1, len(seqs)) if seqs[number] < seqs[number - 1]]
        parts = [slice(*each) for each in zip([0, *ends], [*ends, len(seqs)], strict=True)]
        self._commit_seqs, self._commit_times = array("q"), array("q")
        for seq, at in merge(*[zip(seqs[part], times[part], strict=True) for part in parts]):
            if not self._commit_times or self._commit_times[-1] != at:
                self.begin(seq, at)
        self.last_seq = last_seq

    def insert_entry(self, entry_id: str, parent: int, kind: str, seq: int, place: P) -> int:
        """An entry under row ``parent``; its row, or ``NO_ROW`` where the id is used already and nothing is changed."""
        row = self.rows.add(entry_id)
        if row >= 0:
            self.segments.append(parent, kind)
            self._entry_seqs.append(seq)
            self.entry_places.append(place)
        return row

    def insert_usage(self, row_id: str, seq: int, place: P) -> bool:
        """A ledger row; False where the id is used already and nothing is changed."""
        if not self.rows.add_usage(row_id):
            return False
        self.ledger_seqs.append(seq)
        self.ledger_places.append(place)
        return True

    def set_value(self, namespace: str, key: str, place: P) -> None:
        """The value there is now at ``place``."""
        keys = self.values.get(namespace)
        if keys is None:
            keys = self.values[namespace] = {}
        if namespace in self._ordered and key not in keys:
            insort(self._ordered[namespace], key)
        keys[key] = place

    def delete_value(self, namespace: str, key: str) -> None:
        """No value is there."""
        keys = self.values.get(namespace)
        if keys is not None and keys.pop(key, None) is not None and namespace in self._ordered:
            ordered = self._ordered[namespace]
            del ordered[bisect_left(ordered, key)]

    def append_element(self, namespace: str, key: str, seq: int, place: P) -> None:
        """One more element for the list there."""
        elements = self.lists.setdefault(namespace, {}).get(key)
        if elements is None:
            elements = self.lists[namespace][key] = Elements()
        elements.seqs.append(seq)
        elements.places.append(place)

    def delete_list(self, namespace: str, key: str) -> None:
        """No list is there."""
        self.lists.get(namespace, {}).pop(key, None)

    # Reading.

    def row_of(self, entry_id: str) -> int:
        """The row of an entry, or a negative number."""
        return self.rows.get(entry_id, NO_ROW)

    def entry(self, row: int) -> EntryRow:
        """An entry without its payload."""
        return self._entry(row, self.segments.parent(row), self.segments.kind(row))

    def path(
        self,
        start: str,
        *,
        newest_first: bool,
        limit: int | None,
        after: str | None,
        kinds: Collection[str] | None,
        stop_at: str | None,
        stop_kind: str | None,
    ) -> tuple[list[EntryRow], list[int]]:
        """The entries of rule S16 without payloads, and their rows."""
        start_row = self._known(start)
        after_row = None
        if after is not None:
            after_row = self._known(after)
            if not self.segments.on_path(after_row, start_row):
                raise UnknownEntry(f"entry {after!r} is not on the path that starts at {start!r}", id=after)
        stop_row = NO_ROW if stop_at is None else self.row_of(stop_at)
        found = self.segments.path(
            start_row,
            newest_first=newest_first,
            limit=limit,
            after=after_row,
            kinds=None if kinds is None else frozenset(kinds),
            stop_at=None if stop_row < 0 else stop_row,
            stop_kind=stop_kind,
        )
        return [self._entry(*each) for each in found], [row for row, _, _ in found]

    def rows_after(self, seq: int, limit: int | None) -> range:
        """Rows of the entries whose seq is greater, by seq."""
        return range(bisect_right(self._entry_seqs, seq), len(self._ids))[:limit]

    def ledger_after(self, seq: int, limit: int | None) -> range:
        """Numbers of the ledger rows whose seq is greater, by seq."""
        return range(bisect_right(self.ledger_seqs, seq), len(self.ledger_seqs))[:limit]

    def keys_after(self, namespace: str, prefix: str, after: str | None, limit: int | None) -> list[str]:
        """Keys of values that begin with ``prefix``, beyond ``after``, in order."""
        ordered = self._ordered.get(namespace)
        if ordered is None:
            ordered = self._ordered[namespace] = sorted(self.values.get(namespace, {}))
        begin = bisect_left(ordered, prefix)
        if after is not None:
            begin = max(begin, bisect_right(ordered, after))
        end = len(ordered) if limit is None else min(begin + limit, len(ordered))
        if not prefix:
            return ordered[begin:end]
        return list(takewhile(lambda key: key.startswith(prefix), islice(ordered, begin, end)))

    def time_of(self, seq: int) -> int:
        """The time of the commit that wrote ``seq``."""
        return self._commit_times[bisect_right(self._commit_seqs, seq) - 1]

    @property
    def columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """The numbers that are kept of entries, ledger rows and commits."""
        return self.ledger_seqs, self._entry_seqs, self._commit_seqs, self._commit_times

    def _entry(self, row: int, parent: int, kind: str) -> EntryRow:
        seq = self._entry_seqs[row]
        parent_id = None if parent == NO_ROW else self._ids[parent]
        return EntryRow(self._ids[row], parent_id, seq, self.time_of(seq), kind, b"")

    def _known(self, entry_id: str) -> int:
        row = self.row_of(entry_id)
        if row < 0:
            raise UnknownEntry(f"no entry {entry_id!r} is in this session", id=entry_id)
        return row


def stats_after(stats: Stats, writes: Sequence[Write], ids: dict[str, bool]) -> Stats:
    """The sums once ``writes`` are in, which use up ``ids`` (see ``check``)."""
    if not ids:
        return stats
    entries, usage = sum(ids.values()), stats.usage
    if entries < len(ids):
        for write in writes:
            if type(write) is InsertUsage:
                usage = usage.plus(write.row)
    return Stats(entries=stats.entries + entries, usage=usage)


_encode_row = msgspec.json.Encoder().encode
_decode_row = msgspec.json.Decoder(UsageRow).decode


def encode_usage(row: UsageRow) -> bytes:
    """A ledger row as a payload; ``InvalidWrite`` if it cannot be one."""
    try:
        return _encode_row(row)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise InvalidWrite(f"usage row {row.id!r} cannot be stored: {error}", id=row.id) from error


def decode_usage(payload: bytes) -> UsageRow:
    """A payload as a ledger row; ``msgspec.DecodeError`` if it is none."""
    return _decode_row(payload)


def check_usage_row(row: object) -> None:
    """``InvalidWrite`` unless the row comes back as it is: known kind, texts, whole counts that fit in 64 bits."""
    if not isinstance(row, UsageRow):
        raise InvalidWrite(f"a usage row is {type(row).__name__}; a UsageRow is needed")
    try:
        checked_usage(row.usage)
        decode_usage(encode_usage(row))
    except (InvalidMessage, msgspec.DecodeError) as error:
        raise InvalidWrite(f"usage row {row.id!r} cannot be stored: {error}", id=row.id) from error


def check_payload(payload: object) -> None:
    """``InvalidWrite`` unless it is bytes of UTF-8 on one line (S11)."""
    if type(payload) is bytes and payload.isascii() and b"\n" not in payload:
        return
    if not isinstance(payload, bytes):
        raise InvalidWrite(f"a payload is {type(payload).__name__}; payloads are bytes")
    if b"\n" in payload:
        raise InvalidWrite("a payload holds a newline byte; payloads are JSON texts on one line")
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            raise InvalidWrite(f"a payload is not UTF-8: {error}; payloads are JSON texts") from error


def check_texts(*texts: object) -> None:
    """``InvalidWrite`` unless all of them are texts that can be encoded."""
    for text in texts:
        if type(text) is str and text.isascii():
            continue
        if not isinstance(text, str):
            raise InvalidWrite(f"{text!r} is {type(text).__name__}; ids, kinds, namespaces and keys are texts")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidWrite(f"{text!r} holds half a character (a lone surrogate): {error}") from error


def check_operation(key: str, payload: bytes) -> None:
    """``InvalidWrite`` for a value of ``op.meta`` that S20 cannot list."""
    try:
        operation_meta(payload)
    except msgspec.DecodeError as error:
        raise InvalidWrite(
            f"{OPERATIONS}/{key}: the payload must be an object with text `lane` and integer `started_at`: {error}"
        ) from error
