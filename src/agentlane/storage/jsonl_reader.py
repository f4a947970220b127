"""Reads a JSONL session file: whole, into an index of places, or from its end, to say which operations are open.

A record that is incomplete, fails its checksum or belongs to another session is *bad*. With nothing good after it, it
is a torn tail: what a crash leaves. With good lines after it, it is corruption, unless each of them was written with
durability ``disk`` and none names a synced offset beyond it: then none of them was acknowledged, and they are the tail.
A record whose checksum is good and whose shape is unknown is a newer version's, and never part of a tail.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentlane.data.usage import Stats
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage.contract import SessionInfo
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import (
    FORMAT,
    LINE_START,
    UNKNOWN,
    AppendFrame,
    BaseHead,
    DeleteFrame,
    EntryFrame,
    Envelope,
    Head,
    Header,
    MoveFrame,
    Operations,
    SetFrame,
    UsageFrame,
    decode_base_head,
    decode_envelope,
    decode_format,
    decode_head,
    decode_header,
    intact,
    is_base,
)
from agentlane.storage.index import SessionIndex, decode_usage
from agentlane.storage.places import FILE_BYTES_MAX, LENGTH_BITS, LINE_BYTES_MAX
from agentlane.storage.segments import NO_ROW

CHUNK_BYTES = 1 << 18
"""How much of a file is read at once."""
TAIL_BYTES = 1 << 16
"""How much of a file's end is read at once."""
_CRLF = "the line ends were converted to CRLF, which a copy as text does; convert them back to LF, or copy as binary"
PAUSE_BYTES = 1 << 22
"""How much is loaded before the event loop gets a turn."""


class JsonlFile:
    """An open session file, for reading. ``size`` is what is looked at; what is appended later is not."""

    def __init__(self, files: FileSystem, path: Path, descriptor: int, session_id: str) -> None:
        self.files = files
        self.path = path
        self.descriptor = descriptor
        self.session_id = session_id
        self.size = files.status(descriptor).st_size

    def lines(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes | None]]:
        """Lines from ``start`` on with their offsets; None for one that is bad whatever it holds: without a newline,
        or too long. Buffers are bounded by one good line."""
        end = self.size if end is None else end
        offset = at = start
        parts: list[bytes] = []
        held = 0
        while at < end:
            chunk = self.files.pread(self.descriptor, min(CHUNK_BYTES, end - at), at)
            if not chunk:
                break
            at += len(chunk)
            pieces = chunk.split(b"\n")
            if len(pieces) > 1:
                length = held + len(pieces[0])
                hopeless = held and not parts
                yield offset, None if hopeless else b"".join([*parts, pieces[0]])
                offset += length + 1
                for piece in pieces[1:-1]:
                    yield offset, piece
                    offset += len(piece) + 1
                parts, held = [], 0
            rest = pieces[-1]
            if rest and (parts or not held):
                parts.append(rest)
            held += len(rest)
            if held > LINE_BYTES_MAX or (held >= len(LINE_START) and parts and not _begins_well(parts)):
                parts = []  # bad already: only its end is looked for
        if held:
            yield offset, None

    def lines_backwards(self, end: int) -> Iterator[tuple[int, bytes | None]]:
        """Lines before ``end``, the last first, as ``lines`` gives them."""
        if end > 0 and self.files.pread(self.descriptor, 1, end - 1) != b"\n":
            start = self._newline_before(end) + 1
            yield start, None
            end = start
        while end > 0:
            start = self._newline_before(end - 1) + 1
            size = end - 1 - start
            good = size <= LINE_BYTES_MAX and self.files.pread(self.descriptor, len(LINE_START), start) == LINE_START
            yield start, self.files.pread(self.descriptor, size, start) if good else None
            end = start

    def corrupt(self, line: int | None, offset: int, reason: str) -> CorruptSession:
        """The error that names this file and a place in it."""
        where = f"line {line} (byte {offset})" if line is not None else f"byte {offset}"
        return CorruptSession(
            f"{self.path}: {where}: {reason}; nothing was changed",
            path=str(self.path),
            line=line,
            offset=offset,
            reason=reason,
        )

    def unsupported(self, line: int | None, offset: int, found: object) -> UnsupportedFormat:
        """The error for what is whole, and not known to this version."""
        where = f"line {line} (byte {offset})" if line is not None else f"byte {offset}"
        return UnsupportedFormat(
            f"{self.path}: {where} holds what this version does not know ({found}); "
            "open it with the version that wrote it, or a newer one",
            path=str(self.path),
            line=line,
            offset=offset,
        )

    def envelope(self, line: bytes | None, offset: int, number: int | None = None) -> tuple[Envelope | None, str]:
        """What a line says of its commit, or None and why the line is bad.

        ``UnsupportedFormat`` for one that is whole, not foreign, and no commit that this version knows.
        """
        if line is None:
            return None, "the record is incomplete"
        if not intact(line):
            return None, _CRLF if _converted(line) else "the record's checksum does not match"
        try:
            envelope = decode_envelope(line)
        except msgspec.DecodeError as error:
            other = _header_id(line)
            if other is not None and other != self.session_id:
                return None, f"the record belongs to session {other!r}"
            raise self.unsupported(number, offset, error) from error
        if envelope.session_id != self.session_id:
            return None, f"the record belongs to session {envelope.session_id!r}"
        return envelope, ""

    def _newline_before(self, end: int) -> int:
        """Offset of the last newline before ``end``, or -1."""
        while end > 0:
            start = max(0, end - TAIL_BYTES)
            found = self.files.pread(self.descriptor, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found
            end = start
        return -1


def info_of(header: Header) -> SessionInfo:
    """What a store knows of the session of a file that begins so."""
    return SessionInfo(id=header.id, created_at=header.created_at, metadata=header.metadata)


def read_header(file: JsonlFile) -> tuple[Header, int]:
    """What the first line says, and where the second begins. ``CorruptSession``, ``UnsupportedFormat``."""
    offset, line = next(file.lines(), (0, b""))
    if line == b"" and file.size == 0:
        raise file.corrupt(1, 0, "the file is empty: it never held a session, or lost all of it")
    if line is None or not intact(line):
        _refuse_newer(file, line or b"")
        unknown = "the header is damaged, or this is no agentlane session file"
        raise file.corrupt(1, 0, _CRLF if line is not None and _converted(line) else unknown)
    _refuse_newer(file, line)
    try:
        header = decode_header(line)
    except msgspec.ValidationError as error:
        raise file.unsupported(1, 0, error) from error
    except msgspec.DecodeError as error:
        raise file.corrupt(1, 0, f"the first line is no header: {error}") from error
    if header.id != file.session_id:
        raise file.corrupt(
            1, 0, f"the file holds session {header.id!r}; a file is named after its session: {header.id}.jsonl"
        )
    return header, offset + len(line) + 1


class LoadedFile:
    """What a whole file holds."""

    def __init__(self, file: JsonlFile) -> None:
        if file.size > FILE_BYTES_MAX:
            raise file.corrupt(None, file.size, f"a session file may have {FILE_BYTES_MAX} bytes, this one has more")
        self.file = file
        header, self.good_end = read_header(file)
        self.info = info_of(header)
        self.index = SessionIndex[int](array("Q"), array("Q"))
        self.epoch = 0
        self.operations: dict[str, tuple[str, int]] = {}
        self.operations_at = 0
        self.tail_reason = ""
        """Why what lies behind ``good_end`` is a torn tail, if anything does."""
        self._totals = self.index.stats.usage
        self._base_open = header.base is True
        self._base_lines = 0

    async def load(self) -> None:
        """Read every line; the event loop gets a turn now and then. ``CorruptSession``, ``UnsupportedFormat``."""
        file = self.file
        paused = 0
        number, bad_number, bad_offset = 1, 0, -1
        for offset, line in file.lines(self.good_end):
            number += 1
            if bad_offset < 0 and line is not None and intact(line):
                if self.take(line, offset, number):
                    self.good_end = offset + len(line) + 1
                else:
                    bad_number, bad_offset = number, offset
                    self.tail_reason = file.envelope(line, offset, number)[1]
            elif bad_offset < 0:
                bad_number, bad_offset = number, offset
                self.tail_reason = file.envelope(line, offset, number)[1]
            else:
                envelope, _ = file.envelope(line, offset, number)
                if envelope is not None and (envelope.synced is None or envelope.synced > bad_offset):
                    raise file.corrupt(
                        bad_number, bad_offset, f"{self.tail_reason}, and line {number} after it is whole"
                    )
            if offset - paused > PAUSE_BYTES:
                paused = offset
                await asyncio.sleep(0)
        if self._base_open:  # it is put in place whole: what is missing of it was lost, and is no torn tail
            raise file.corrupt(
                bad_number or None,
                self.good_end,
                f"the base that the file begins with is not whole ({self.tail_reason or 'its end is missing'})",
            )
        self.sum_up()

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
        self._check_order(envelope, offset, number)
        self.index.begin(envelope.first_seq, envelope.at)
        self._apply(head, text, payloads_at, offset, number)
        self.epoch = envelope.epoch
        if not isinstance(envelope.operations, int):
            self.operations = {each[0]: (each[1], each[2]) for each in envelope.operations}
            self.operations_at = offset
        return True

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

    def _check_order(self, envelope: Envelope, offset: int, number: int) -> None:
        file = self.file
        if self._base_open:
            raise file.corrupt(number, offset, "a commit before the end of the base that the file begins with")
        expected = self.index.last_seq + 1
        if envelope.first_seq < expected:
            raise file.corrupt(number, offset, f"sequence number {envelope.first_seq} comes again")
        if envelope.first_seq > expected:  # a writer leaves no gap, so somebody removed lines
            raise file.corrupt(number, offset, f"sequence numbers {expected} to {envelope.first_seq - 1} are missing")
        if envelope.epoch < self.epoch:
            raise file.corrupt(number, offset, f"epoch {envelope.epoch} after epoch {self.epoch}: two owners wrote")
        if isinstance(envelope.operations, int) and envelope.operations != self.operations_at:
            raise file.corrupt(
                number,
                offset,
                f"open operations are said to be at byte {envelope.operations}, they are at {self.operations_at}",
            )

    def _apply(self, head: Head | BaseHead, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        """Take in the writes; everything they name must be there."""
        index = self.index
        rows, values = index.rows, index.values
        seq = head.envelope.first_seq if isinstance(head, Head) else 0
        first = at = offset + payloads_at
        previous, previous_row = "", NO_ROW
        for frame in head.frames:
            if isinstance(frame, SetFrame):
                length = frame.length
                keys = values.get(frame.namespace)
                if keys is None:
                    keys = values[frame.namespace] = {}
                keys[frame.key] = at << LENGTH_BITS | length
                at += length + 1
            elif isinstance(frame, EntryFrame):
                entry_id, parent, length = frame.id, frame.parent, frame.length
                if isinstance(entry_id, int):
                    entry_id = f"{previous[:-4]}{entry_id:04x}"
                if parent == 1:
                    parent_row = previous_row
                else:
                    parent_row = NO_ROW if parent is None else rows.get(str(parent), NO_ROW)
                if entry_id in rows:
                    raise self.file.corrupt(number, offset, f"entry id {entry_id!r} comes again")
                if parent_row < 0 and parent is not None:
                    raise self.file.corrupt(
                        number, offset, f"entry {entry_id!r}: its parent {parent!r} is not before it"
                    )
                previous = entry_id
                previous_row = index.insert_entry(entry_id, parent_row, frame.kind, seq, at << LENGTH_BITS | length)
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
            else:
                index.delete_list(frame.namespace, frame.key)
            seq += 1
        rest = text[at - offset - 1 if at > first else payloads_at :]
        if rest.startswith(b'],"'):
            raise self.file.unsupported(number, offset, "a field behind the payloads")
        if rest != b"]}":
            raise self.file.corrupt(number, offset, "the lengths of the payloads do not add up")
        index.last_seq = seq - 1

    def _usage(self, payload: bytes, seq: int, at: int, offset: int, number: int) -> None:
        """Take in a ledger row."""
        try:
            row = decode_usage(payload)
        except msgspec.ValidationError as error:
            raise self.file.unsupported(number, offset, error) from error
        except msgspec.DecodeError as error:
            raise self.file.corrupt(number, offset, f"a usage row cannot be read: {error}") from error
        if row.id in self.index.rows:
            raise self.file.corrupt(number, offset, f"usage id {row.id!r} comes again")
        self.index.insert_usage(row.id, seq, at << LENGTH_BITS | len(payload))
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


def _refuse_newer(file: JsonlFile, line: bytes) -> None:
    try:
        found = decode_format(line).format
    except msgspec.DecodeError:
        return
    if found > FORMAT:
        raise UnsupportedFormat(
            f"{file.path}: format {found}, and this version reads up to {FORMAT}; update agentlane to open it",
            path=str(file.path),
            format=found,
        )


def _converted(line: bytes) -> bool:
    """Whether all that is wrong with a line is that a program for texts has made its end CRLF."""
    return line.endswith(b"\r") and intact(line[:-1])


def _header_id(line: bytes) -> str | None:
    try:
        return decode_header(line).id
    except msgspec.DecodeError:
        return None


def _begins_well(parts: list[bytes]) -> bool:
    start = parts[0]
    return (start if len(start) >= len(LINE_START) else b"".join(parts[: len(LINE_START)])).startswith(LINE_START)
