"""Reads the lines of a session file that is refused, and takes in every record that is whole and fits."""

from __future__ import annotations

import asyncio
import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

import msgspec

from agentlane.storage import jsonl_formats
from agentlane.storage.contract import SessionInfo
from agentlane.storage.damaged_lines import (
    REPAIR,
    LineFindings,
    format_of,
    header_of,
    reason_of,
    records_inside,
    regions,
)
from agentlane.storage.framing import (
    AppendFrame,
    BaseHead,
    DeleteFrame,
    EntryFrame,
    Envelope,
    Head,
    Header,
    MoveFrame,
    SetFrame,
    UsageFrame,
    decode_base_head,
    decode_envelope,
    decode_head,
    intact,
    is_base,
)
from agentlane.storage.index import SessionIndex, decode_usage
from agentlane.storage.jsonl_file import JsonlFile, info_of
from agentlane.storage.jsonl_reader import PAUSE_BYTES
from agentlane.storage.line_order import Misplaced, misplaced
from agentlane.storage.places import FILE_BYTES_MAX, LENGTH_BITS
from agentlane.storage.salvage import Findings
from agentlane.storage.segments import NO_ROW


class LineReader:
    """What the lines of a session file hold. ``read`` it, then look at the rest."""

    def __init__(self, file: JsonlFile, findings: Findings) -> None:
        self.index = SessionIndex[int](array("Q"), array("Q"))
        self.info = SessionInfo(id=file.session_id, created_at=0)
        self.orphans: dict[str, str] = {}
        """Parents that are not there, by the entries that were written under them."""
        self.trusted_from = 0
        """Nothing that was written under this number or a higher one is lost; 0 if nothing is lost."""
        self.found = False
        """Whether anything of a session was in the file."""
        self._file = file
        self._told = LineFindings(file, findings)
        self._first_seqs = array("q")
        self._checksums = array("Q")
        self._base_lines = 0
        self._base_damaged = False
        self._base_open = False
        self._ended = False  # the base is over, or there is none
        self._commits = 0
        self._epoch = 0
        self._operations_at = 0
        self._misplaced: deque[Misplaced] = deque()
        self._elsewhere: set[int] = set()  # where those of them stand

    async def read(self) -> None:
        """Read the file to its end; the event loop gets a turn now and then."""
        file = self._file
        if file.size == 0:
            self._told.add(
                "not_a_session", 1, 0, "the file is empty", advice="restore it from a backup, or remove it", loses=True
            )
            return
        if file.size > FILE_BYTES_MAX:
            self._told.add("not_a_session", 1, 0, f"a session file may have {FILE_BYTES_MAX} bytes", loses=True)
            return
        paused = 0
        for number, (offset, end, line) in enumerate(regions(file), 1):
            if number == 1:
                if not self._first(offset, end, line):
                    return
                self._misplaced = await misplaced(file)
                self._elsewhere = {each.offset for each in self._misplaced}
            else:
                self._line(number, offset, end, line)
            if offset - paused > PAUSE_BYTES:
                paused = offset
                await asyncio.sleep(0)
        self._end()

    # Lines.

    def _first(self, offset: int, end: int, line: bytes | None) -> bool:
        """Take in the first line; False if the rest is not to be read."""
        pieces = [(offset, line)] if line is not None and intact(line) else records_inside(self._file, offset, end)
        newer = [found for _, piece in pieces if (found := format_of(piece)) > jsonl_formats.CHAIN.newest]
        if newer:
            text = f"the file has format {newer[0]}, and this version reads up to {jsonl_formats.CHAIN.newest}"
            self._told.add("newer_format", 1, offset, text, advice="open it with a newer version of agentlane")
            return False
        headers = [header for _, piece in pieces if (header := header_of(piece)) is not None]
        if not headers:
            self._without_header(offset, end, line, pieces)
            return True
        self._header(headers[0])
        if len(pieces) > 1 or line is None or not intact(line):
            code, reason = reason_of(self._file, line, offset, end)
            if code == "crlf":
                self._told.bad(code, reason, 1, offset)
            else:
                self._told.add("bad_header", 1, offset, f"the header is whole, but its line is not ({reason})")
        for at, piece in pieces:
            if header_of(piece) is None:
                self._record(piece, at, 1)
        return True

    def _header(self, header: Header) -> None:
        file = self._file
        self.found = True
        self._base_open = header.base is True
        self._ended = not self._base_open
        if header.id != file.session_id:
            if self._next_id() not in (None, header.id):
                text = f"the header is that of session {header.id!r}: the creation time and the metadata are lost"
                self._told.add("bad_header", 1, 0, text, loses=True)
                return
            self._told.add(
                "renamed",
                1,
                0,
                f"the file holds session {header.id!r}, and a file is named after its session",
                advice=f"rename it to {header.id}.jsonl",
            )
            file.session_id = header.id
        self.info = info_of(header)

    def _next_id(self) -> str | None:
        """Which session the first record that can be read is of."""
        for _, _, line in list(_some(regions(self._file), 32))[1:]:
            if line is not None and intact(line):
                try:
                    return decode_envelope(line).session_id
                except msgspec.DecodeError:
                    continue
        return None

    def _without_header(self, offset: int, end: int, line: bytes | None, pieces: list[tuple[int, bytes]]) -> None:
        reason = "there is none" if pieces else reason_of(self._file, line, offset, end)[1]
        if pieces and format_of(pieces[0][1]):
            reason = "it has fields that this version does not know"
        text = f"the header cannot be read ({reason}): the creation time and the metadata are lost"
        self._told.add("bad_header", 1, 0, text, loses=True)
        for at, piece in pieces:
            self._record(piece, at, 1)

    def _line(self, number: int, offset: int, end: int, line: bytes | None) -> None:
        if line is not None and intact(line):
            self._record(line, offset, number)
            return
        code, reason = reason_of(self._file, line, offset, end)
        self._told.bad(code, reason, number, offset)
        if code == "crlf" and line is not None:
            self._record(line[:-1], offset, number)
        elif end < self._file.size:
            for at, piece in records_inside(self._file, offset, end):
                self._record(piece, at, number)

    # Records.

    def _record(self, text: bytes, offset: int, number: int) -> None:
        """Take in an intact record, or say why not."""
        head: Head | BaseHead
        try:
            head, payloads_at = decode_base_head(text) if is_base(text) else decode_head(text)
        except msgspec.ValidationError as error:
            self._unknown(text, error, offset, number)
            return
        except msgspec.DecodeError as error:
            self._told.bad("bad_record", f"it is no JSON, though its checksum matches: {error}", number, offset)
            return
        if head.envelope.session_id != self._file.session_id:
            self._told.bad("foreign_record", _belongs_to(head.envelope.session_id), number, offset)
            return
        rest = _behind_payloads(head, text, payloads_at)
        if rest.startswith(b'],"'):
            self._told.bad("newer_format", "it has a field behind the payloads", number, offset)
        elif rest != b"]}":
            self._told.bad("bad_record", "the lengths of its payloads do not add up", number, offset)
        elif isinstance(head, BaseHead):
            self._base(head, text, payloads_at, offset, number)
        else:
            self._commit(head, text, payloads_at, offset, number)

    def _unknown(self, text: bytes, error: Exception, offset: int, number: int) -> None:
        header = header_of(text)
        if header is not None:
            if header.id == self._file.session_id:
                self._told.bad("repeated_record", "the header comes again", number, offset)
            else:
                self._told.bad("foreign_record", _belongs_to(header.id), number, offset)
            return
        try:
            other = decode_envelope(text).session_id
        except msgspec.DecodeError:
            other = self._file.session_id
        if other != self._file.session_id:
            self._told.bad("foreign_record", _belongs_to(other), number, offset)
        else:
            self._told.bad("newer_format", f"this version does not know what it holds ({error})", number, offset)

    def _base(self, head: BaseHead, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        envelope = head.envelope
        if envelope.number < self._base_lines:
            self._told.bad("repeated_record", "a line of the base comes again", number, offset)
            return
        if self._commits or (self._ended and self._base_lines):
            self._told.bad("bad_base", f"line {envelope.number} of a base, where none belongs", number, offset)
            return
        missing = envelope.number - self._base_lines
        self._told.good(missing, f"{missing} lines of the base that the file begins with are missing", number, offset)
        self._base_damaged = self._base_damaged or missing > 0
        self._base_open, self._ended = True, False
        self._base_lines = envelope.number + 1
        self._apply(head, text, payloads_at, offset, number)
        if envelope.end is not None:
            self._base_open, self._ended = False, True
            self.index.end_base(envelope.end.last_seq)
            if self._base_damaged:
                self.trusted_from = self.index.last_seq + 1
            self._epoch = envelope.end.epoch
            self._operations_at = offset

    def _commit(self, head: Head, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        envelope = head.envelope
        if offset in self._elsewhere:
            return  # it is read where it belongs
        self._take_due(envelope.first_seq)
        if envelope.first_seq <= self.index.last_seq:
            self._again(envelope, text, offset, number)
            return
        behind_base = self._base_open
        if behind_base:
            self._base_is_cut(number, offset)
        missing = 0 if behind_base else envelope.first_seq - self.index.last_seq - 1
        if missing:
            self.trusted_from = envelope.first_seq
        self._told.good(
            missing,
            f"sequence numbers {self.index.last_seq + 1} to {envelope.first_seq - 1} are missing",
            number,
            offset,
        )
        if envelope.epoch < self._epoch:
            self._told.add(
                "epoch_order",
                number,
                offset,
                f"epoch {envelope.epoch} after epoch {self._epoch}: two owners wrote",
                advice="find the program that goes around the lock; then " + REPAIR,
            )
        self._epoch = max(self._epoch, envelope.epoch)
        if not isinstance(envelope.operations, int):
            self._operations_at = offset
        elif envelope.operations != self._operations_at and not (
            self._told.any or self._elsewhere
        ):  # else it has moved
            said = f"open operations are said to be at byte {envelope.operations}, they are at {self._operations_at}"
            self._told.add("open_operations", number, offset, said)
        if not self.found:
            self.info = SessionInfo(id=self._file.session_id, created_at=envelope.at)
        self._first_seqs.append(envelope.first_seq)
        self._checksums.append(zlib.crc32(text))
        self._commits += 1
        self.index.begin(envelope.first_seq, envelope.at)
        self._apply(head, text, payloads_at, offset, number)

    def _take_due(self, seq: int | None) -> None:
        """Take in commits that stand elsewhere and belong before a number; None: all that are left."""
        while self._misplaced and (seq is None or self._misplaced[0].first_seq < seq):
            each = self._misplaced.popleft()
            self._elsewhere.discard(each.offset)
            if not each.again:
                self._told.add(
                    "out_of_order",
                    each.number,
                    each.offset,
                    f"the record with sequence number {each.first_seq} stands out of its place",
                    advice="nothing is lost, it is read where it belongs; " + REPAIR,
                )
            text = self._file.read(each.end - each.offset, each.offset)
            self._record(text, each.offset, each.number)
            self._elsewhere.add(each.offset)

    def _again(self, envelope: Envelope, text: bytes, offset: int, number: int) -> None:
        at = bisect_left(self._first_seqs, envelope.first_seq)
        known = at < len(self._first_seqs) and self._first_seqs[at] == envelope.first_seq
        if known and self._checksums[at] == zlib.crc32(text):
            self._told.bad("repeated_record", "the record is there already", number, offset)
            return
        self._told.add(
            "number_again",
            number,
            offset,
            f"sequence number {envelope.first_seq} comes again, with another content",
            advice="find out which program wrote the file beside its owner; then " + REPAIR,
            loses=True,
        )
        self._lost()

    def _base_is_cut(self, number: int | None, offset: int) -> None:
        """The end of the base is missing."""
        self._base_open, self._ended = False, True
        self._told.add(
            "bad_base",
            number,
            offset,
            "the base that the file begins with is not whole: its end is missing",
            loses=True,
        )
        self.index.end_base(self.index.last_seq)
        self._lost()

    def _apply(self, head: Head | BaseHead, text: bytes, payloads_at: int, offset: int, number: int) -> None:
        """Take in the writes of a record that fits."""
        self.found = True
        index = self.index
        seq = head.envelope.first_seq if isinstance(head, Head) else 0
        at = offset + payloads_at
        highest = index.last_seq
        previous = ""
        for frame in head.frames:
            length = getattr(frame, "length", None)
            if isinstance(frame, EntryFrame):
                entry_id = f"{previous[:-4]}{frame.id:04x}" if isinstance(frame.id, int) else frame.id
                parent = previous if frame.parent == 1 else frame.parent
                self._entry(entry_id, parent, frame, seq, at, number, offset)
                previous = entry_id
            elif isinstance(frame, UsageFrame):
                self._usage(text[at - offset : at - offset + frame.length], seq, at, number, offset)
            elif isinstance(frame, SetFrame):
                index.set_value(frame.namespace, frame.key, at << LENGTH_BITS | frame.length)
            elif isinstance(frame, AppendFrame):
                index.append_element(frame.namespace, frame.key, seq, at << LENGTH_BITS | frame.length)
            elif isinstance(frame, MoveFrame):
                seq = frame.seq
                if frame.at is not None:
                    index.begin(seq, frame.at)
                continue
            elif isinstance(frame, DeleteFrame):
                index.delete_value(frame.namespace, frame.key)
            else:
                index.delete_list(frame.namespace, frame.key)
            at += 0 if length is None else length + 1
            if isinstance(head, Head) or not isinstance(frame, SetFrame):  # values have no number in a base
                highest = max(highest, seq)
            seq += 1
        index.last_seq = highest

    def _entry(
        self, entry_id: str, parent: str | int | None, frame: EntryFrame, seq: int, at: int, number: int, offset: int
    ) -> None:
        index = self.index
        if entry_id in index.rows:
            self._duplicate("entry", entry_id, number, offset)
            return
        row = NO_ROW if parent is None else index.rows.get(str(parent), NO_ROW)
        if parent is not None and row < 0:
            row = NO_ROW
            self.orphans[entry_id] = str(parent)
            self._told.add(
                "missing_parent",
                number,
                offset,
                f"the parent {parent!r} of entry {entry_id!r} is not before it",
                loses=True,
            )
        index.insert_entry(entry_id, row, frame.kind, seq, at << LENGTH_BITS | frame.length)

    def _usage(self, payload: bytes, seq: int, at: int, number: int, offset: int) -> None:
        try:
            row = decode_usage(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._told.add("undecodable", number, offset, f"a usage row cannot be read: {error}", loses=True)
            self._lost()
            return
        if row.id in self.index.rows:
            self._duplicate("usage row", row.id, number, offset)
            return
        self.index.insert_usage(row.id, seq, at << LENGTH_BITS | len(payload))

    # Findings.

    def _lost(self) -> None:
        """Something of what was written up to here, or of the record that is being read, is lost."""
        self.trusted_from = max(self.trusted_from, self.index.last_seq + 1)

    def _duplicate(self, what: str, id: str, number: int, offset: int) -> None:
        self._told.add("duplicate_id", number, offset, f"{what} {id!r} comes again; the first one counts", loses=True)
        self._lost()

    def _end(self) -> None:
        """The file ends here."""
        file = self._file
        self._take_due(None)
        if self._base_open:
            self._base_is_cut(None, file.size)
        self._told.end(found=self.found)


def _behind_payloads(head: Head | BaseHead, text: bytes, payloads_at: int) -> bytes:
    lengths = [frame.length for frame in head.frames if hasattr(frame, "length")]
    at = payloads_at + sum(lengths) + len(lengths)
    return text[at - 1 if lengths else payloads_at :]


def _some(found: Iterator[tuple[int, int, bytes | None]], count: int) -> Iterator[tuple[int, int, bytes | None]]:
    for _, each in zip(range(count), found, strict=False):
        yield each


def _belongs_to(session_id: str) -> str:
    return f"the record belongs to session {session_id!r}"
