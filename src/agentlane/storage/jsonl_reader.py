"""Reads a JSONL session file: whole, into an index of places, or from its end, to say which operations are open.

A record that is incomplete, fails its checksum or belongs to another session is *bad*. With nothing good after it, it
is a torn tail: what a crash leaves. With good lines after it, it is corruption, unless each of them was written with
durability ``disk`` and none names a synced offset beyond it: then none of them was acknowledged, and they are the tail.
A record whose checksum is good and whose shape is unknown is a newer version's, and never part of a tail.
"""

from __future__ import annotations

import asyncio
from array import array

import msgspec

from agentlane.data.usage import Stats
from agentlane.errors import CorruptSession
from agentlane.storage.framing import (
    UNKNOWN,
    AppendFrame,
    BaseHead,
    DeleteFrame,
    DropFrame,
    EntryFrame,
    Envelope,
    Head,
    MoveFrame,
    Operations,
    SetFrame,
    UsageFrame,
    all_intact,
    decode_base_head,
    decode_head,
    intact,
    is_base,
)
from agentlane.storage.index import SessionIndex, decode_usage
from agentlane.storage.jsonl_file import JsonlFile, info_of, read_header
from agentlane.storage.jsonl_index import Kept
from agentlane.storage.places import FILE_BYTES_MAX, LENGTH_BITS
from agentlane.storage.segments import NO_ROW
from agentlane.storage.sums import Sums

PAUSE_BYTES = 1 << 22
"""How much is loaded before the event loop gets a turn."""


class LoadedFile:
    """What a whole file holds."""

    def __init__(self, file: JsonlFile, *, sums: bool = False) -> None:
        """Read the header; with ``sums``, what is taken in is summed up too."""
        if file.size > FILE_BYTES_MAX:
            raise file.corrupt(None, file.size, f"a session file may have {FILE_BYTES_MAX} bytes, this one has more")
        self.file = file
        header, self.good_end = read_header(file)
        self.info = info_of(header)
        self.format = header.format
        self.index = SessionIndex[int](array("Q"), array("Q"))
        self.epoch = 0
        self.operations: dict[str, tuple[str, int]] = {}
        self.operations_at = 0
        self.tail_reason = ""
        """Why what lies behind ``good_end`` is a torn tail, if anything does."""
        self.sums = Sums(file.files.pread(file.descriptor, self.good_end, 0)) if sums else None
        """The checksum of what lies before ``good_end``, where it was asked for."""
        self.kept = 0
        """How many of the first bytes of the file an index is kept of, which was taken."""
        self._totals = self.index.stats.usage
        self._lines = 1
        self._base_open = header.base is True
        self._base_lines = 0
        self._bad: tuple[int, int] | None = None  # number and offset of the first bad line
        self._newest = ("", NO_ROW)  # the entry that was read last: mostly the parent of the next one

    async def load(self) -> None:
        """Read every line; the event loop gets a turn now and then. ``CorruptSession``, ``UnsupportedFormat``."""
        file = self.file
        paused, number = self.good_end, self._lines
        for offset, lines in file.blocks(self.good_end):
            if lines is None:
                number += 1
                self._take_bad(None, offset, number)
                continue
            sealed = self._bad is None and all_intact(lines)
            begin = offset
            for line in lines:
                number += 1
                end = offset + len(line) + 1
                if self._bad is None and (sealed or intact(line)) and self.take(line, offset, number):
                    self.good_end = end
                else:
                    self._take_bad(line, offset, number)
                offset = end
            if self.sums is not None and self.good_end > begin:
                self.sums.add(memoryview(b"\n".join([*lines, b""]))[: self.good_end - begin])
            if offset - paused > PAUSE_BYTES:
                paused = offset
                await asyncio.sleep(0)
        if self._base_open:  # it is put in place whole: what is missing of it was lost, and is no torn tail
            raise file.corrupt(
                None if self._bad is None else self._bad[0],
                self.good_end,
                f"the base that the file begins with is not whole ({self.tail_reason or 'its end is missing'})",
            )
        self.sum_up()

    def begin_with(self, kept: Kept) -> None:
        """Take what an index says of the first part of the file; ``load`` reads what lies behind it."""
        head = kept.head
        self.index = kept.index
        self.good_end, self.kept, self._lines = head.size, head.size, kept.lines
        self.epoch = head.epoch
        self.operations = {each[0]: (each[1], each[2]) for each in head.operations}
        self.operations_at = head.operations_at
        self._totals = head.stats.usage
        self._base_open = False
        if self.sums is not None:
            self.sums = kept.sums

    def sum_up(self) -> None:
        """Make the index's stats those of all that was taken in."""
        self.index.stats = Stats(entries=len(self.index.segments), usage=self._totals)

    def take(self, text: bytes, offset: int, number: int) -> bool:
        """Take in an intact line; False if it is another session's."""
        file = self.file
        head: Head | BaseHead
        try:
            head, payloads_at = decode_base_head(text) if is_base(text) else decode_head(text)
        except msgspec.ValidationError as error:
            if file.envelope(text, offset, number)[0] is None:
                return False
            raise file.unsupported(number, offset, error) from error
        except msgspec.DecodeError as error:
            raise file.corrupt(number, offset, f"the record is no JSON though its checksum matches: {error}") from error
        if head.envelope.session_id != file.session_id:
            return False
        if isinstance(head, BaseHead):
            self._take_base(head, text, payloads_at, offset, number)
            return True
        envelope = head.envelope
        operations = envelope.operations
        moved = not isinstance(operations, int)
        if (
            self._base_open
            or envelope.first_seq != self.index.last_seq + 1
            or envelope.epoch < self.epoch
            or (not moved and operations != self.operations_at)
        ):
            raise self._out_of_order(envelope, offset, number)
        self.index.begin(envelope.first_seq, envelope.at)
        self._apply(head, text, payloads_at, offset, number)
        self.epoch = envelope.epoch
        if not isinstance(operations, int):
            self.operations = {each[0]: (each[1], each[2]) for each in operations}
            self.operations_at = offset
        return True

    def _take_bad(self, line: bytes | None, offset: int, number: int) -> None:
        """Look at a line that is bad, or stands behind one that is: it may show that this is no torn tail."""
        envelope, reason = self.file.envelope(line, offset, number)
        if self._bad is None:
            self._bad, self.tail_reason = (number, offset), reason
        elif envelope is not None and (envelope.synced is None or envelope.synced > self._bad[1]):
            raise self.file.corrupt(*self._bad, f"{self.tail_reason}, and line {number} after it is whole")

    def _take_base(self, head: BaseHead, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        """Take in a line of the base."""
        file, envelope = self.file, head.envelope
        if not self._base_open or envelope.number != self._base_lines:
            raise file.corrupt(
                number,
                offset,
                f"line {envelope.number} of a base, where "
                + (f"its line {self._base_lines} belongs" if self._base_open else "none belongs"),
            )
        self._base_lines += 1
        self._apply(head, text, payloads_at, offset, number)
        if envelope.end is not None:
            self._base_open = False
            self.index.end_base(envelope.end.last_seq)
            self.epoch = envelope.end.epoch
            self.operations = {each[0]: (each[1], each[2]) for each in envelope.end.operations}
            self.operations_at = offset

    def _out_of_order(self, envelope: Envelope, offset: int, number: int) -> CorruptSession:
        """What is wrong with a commit that does not follow upon what stands before it."""
        expected = self.index.last_seq + 1
        if self._base_open:
            reason = "a commit before the end of the base that the file begins with"
        elif envelope.first_seq < expected:
            reason = f"sequence number {envelope.first_seq} comes again"
        elif envelope.first_seq > expected:  # a writer leaves no gap, so somebody removed lines
            reason = f"sequence numbers {expected} to {envelope.first_seq - 1} are missing"
        elif envelope.epoch < self.epoch:
            reason = f"epoch {envelope.epoch} after epoch {self.epoch}: two owners wrote"
        else:
            reason = f"open operations are said to be at byte {envelope.operations}, they are at {self.operations_at}"
        return self.file.corrupt(number, offset, reason)

    def _apply(self, head: Head | BaseHead, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        """Take in the writes; everything they name must be there."""
        index = self.index
        insert_entry, values = index.insert_entry, index.values
        seq = head.envelope.first_seq if isinstance(head, Head) else 0
        first = at = offset + payloads_at
        previous, previous_row = "", NO_ROW
        for frame in head.frames:
            if type(frame) is SetFrame:
                keys = values.get(frame.namespace)
                if keys is None:
                    keys = values[frame.namespace] = {}
                length = frame.length
                keys[frame.key] = at << LENGTH_BITS | length
                at += length + 1
            elif type(frame) is EntryFrame:
                entry_id, parent, length = frame.id, frame.parent, frame.length
                if isinstance(entry_id, int):
                    entry_id = f"{previous[:-4]}{entry_id:04x}"
                parent_row = previous_row if parent == 1 else self._row_of(parent)
                if parent_row < 0 and parent is not None:
                    reason = f"entry {entry_id!r}: its parent {parent!r} is not before it"
                    raise self.file.corrupt(number, offset, reason)
                previous = entry_id
                previous_row = insert_entry(entry_id, parent_row, frame.kind, seq, at << LENGTH_BITS | length)
                if previous_row < 0:
                    raise self.file.corrupt(number, offset, f"entry id {entry_id!r} comes again")
                at += length + 1
            elif isinstance(frame, DeleteFrame):
                index.delete_value(frame.namespace, frame.key)
            elif isinstance(frame, UsageFrame):
                self._usage(text[at - offset : at - offset + frame.length], seq, at, offset, number)
                at += frame.length + 1
            elif isinstance(frame, AppendFrame):
                index.append_element(frame.namespace, frame.key, seq, at << LENGTH_BITS | frame.length)
                at += frame.length + 1
            elif isinstance(frame, MoveFrame):
                seq = frame.seq
                if frame.at is not None:
                    index.begin(seq, frame.at)
                continue
            elif isinstance(frame, DropFrame):
                index.delete_list(frame.namespace, frame.key)
            seq += 1
        if previous_row >= 0:
            self._newest = previous, previous_row
        rest = text[at - offset - 1 if at > first else payloads_at :]
        if rest.startswith(b'],"'):
            raise self.file.unsupported(number, offset, "a field behind the payloads")
        if rest != b"]}":
            raise self.file.corrupt(number, offset, "the lengths of the payloads do not add up")
        index.last_seq = seq - 1

    def _row_of(self, entry_id: object) -> int:
        newest, row = self._newest
        return row if entry_id == newest else self.index.rows.get(entry_id, NO_ROW)

    def _usage(self, payload: bytes, seq: int, at: int, offset: int, number: int) -> None:
        """Take in a ledger row."""
        try:
            row = decode_usage(payload)
        except msgspec.ValidationError as error:
            raise self.file.unsupported(number, offset, error) from error
        except msgspec.DecodeError as error:
            raise self.file.corrupt(number, offset, f"a usage row cannot be read: {error}") from error
        if not self.index.insert_usage(row.id, seq, at << LENGTH_BITS | len(payload)):
            raise self.file.corrupt(number, offset, f"usage id {row.id!r} comes again")
        self._totals = self._totals.plus(row)


def read_open_operations(file: JsonlFile) -> Operations:
    """The operations that are open, read from the end of the file: nothing before it is looked at."""
    offset, envelope = _last_good(file, file.size)
    if envelope is not None and envelope.operations == UNKNOWN:
        raise file.corrupt(None, offset, "the base that the file begins with is not whole")
    if envelope is not None and envelope.synced is not None and envelope.synced < offset:
        # What was not synced may have a bad record among it, and then what follows that is the tail.
        good: tuple[int, Envelope] | None = None
        for at, line in file.lines(envelope.synced, offset):
            if at == 0:
                continue  # the header
            found, _ = file.envelope(line, at)
            if found is None:
                offset, envelope = good if good is not None else _last_good(file, at)
                break
            good = at, found
    if envelope is None or envelope.operations == 0:
        return []
    if isinstance(envelope.operations, int):
        offset = envelope.operations
        _, line = next(file.lines(offset), (0, None))
        named, reason = file.envelope(line, offset)
        if named is None or isinstance(named.operations, int):
            raise file.corrupt(None, offset, reason or "the open operations are not there")
        return named.operations
    return envelope.operations


def _last_good(file: JsonlFile, end: int) -> tuple[int, Envelope | None]:
    """The last good line that begins before ``end``; offset 0 and None if only the header is there."""
    for offset, line in file.lines_backwards(end):
        if offset == 0:
            break
        envelope, _ = file.envelope(line, offset)
        if envelope is not None:
            return offset, envelope
    read_header(file)
    return 0, None
