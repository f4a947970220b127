"""The bytes of a JSONL session file: its lines, their checksum, and what each part is called.

A line is a JSON object that begins with ``{"k":"`` and eight hexadecimal digits: the CRC-32 (zlib's) of all bytes after
the comma that follows them, up to the newline. The rest is described in docs/reference/jsonl-format.md. Payloads stand
verbatim at the end of the line, with their lengths in the writes, so that they come back byte for byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Struct

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import AppendElement, DeleteValue, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import InvalidWrite, PayloadTooLarge
from agentlane.storage.index import OPERATIONS, encode_usage, operation_meta
from agentlane.storage.places import LENGTH_MASK, LINE_BYTES_MAX, places_from

FORMAT = 2
"""The newest format that this version reads, and that of a file which begins with a base."""
PLAIN_FORMAT = 1
"""The format of a file in which every line is a commit's."""
TAIL_BYTES_MAX = LINE_BYTES_MAX // 2
"""What the writes of one commit may take of a line; the rest is more than the open operations can fill."""
UNKNOWN = -1
"""Where open operations are said to be by a line of a base that is not its last."""
LINE_START = b'{"k":"'
_PREFIX = LINE_START + b'%08x",'
_PREFIX_BYTES = len(LINE_START) + 10
_BEFORE_PAYLOADS = b'],"p":['
_BEFORE_WRITES = b',"w":['  # in a text, the quotes of this and of the one above would be escaped
_BASE = b'"b":['

Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LENGTH_MASK)]
Operations: TypeAlias = list[tuple[str, str, int]]
"""Open operations as a line holds them: id, lane, started at; oldest first."""


class Header(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: what the file is."""

    format: int = msgspec.field(name="agentlane")
    id: str = msgspec.field(name="s")
    created_at: int = msgspec.field(name="t")
    metadata: dict[str, Any] = msgspec.field(name="m", default_factory=dict)
    base: bool | msgspec.UnsetType = msgspec.field(name="b", default=msgspec.UNSET)
    """Whether a base follows: all that the session held when the file was written."""


class FormatOnly(Struct, frozen=True):
    """As much of a first line as every format has."""

    format: int = msgspec.field(name="agentlane")


class Envelope(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What a line says of its commit."""

    first_seq: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    at: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    """Milliseconds since 1970; a clock may be wrong enough to be before that, and loses no commit by it."""
    session_id: str
    epoch: int
    operations: Operations | int
    """The open operations if the commit changed them; else the offset of the last line that did, or 0."""
    synced: int | None = None
    """With durability ``disk``: the offset up to which the file was known to be synced when this was written."""


class EntryFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="e"):
    """An entry. ``id`` is a number where only the last four hexadecimal digits differ from those of the entry before;
    ``parent`` is 1 where it is the entry before, both in this line."""

    id: str | Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    kind: str
    length: Length
    parent: str | int | None = 1


class UsageFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="u"):
    """A ledger row; its payload is the row."""

    length: Length


class SetFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="s"):
    """A value that is set."""

    namespace: str
    key: str
    length: Length


class DeleteFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="d"):
    """A value that is deleted."""

    namespace: str
    key: str


class AppendFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="a"):
    """An element that is appended to a list."""

    namespace: str
    key: str
    length: Length


class DropFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="x"):
    """A list that is deleted."""

    namespace: str
    key: str


class MoveFrame(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag="g"):
    """In a base: the sequence number of what follows, which counts on from there, and its time where that has one."""

    seq: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    at: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] | None = None


Frame: TypeAlias = EntryFrame | UsageFrame | SetFrame | DeleteFrame | AppendFrame | DropFrame


BaseFrame: TypeAlias = EntryFrame | UsageFrame | SetFrame | AppendFrame | MoveFrame


class BaseEnvelope(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What a line of a base says of itself; ``end`` is there in the last one."""

    number: Annotated[int, msgspec.Meta(ge=0)]
    session_id: str
    end: BaseEnd | None = None


class BaseEnd(Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What the last line of a base says of the session."""

    last_seq: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    epoch: int
    operations: Operations


class Head(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A commit's line up to its payloads."""

    envelope: Envelope = msgspec.field(name="c")
    frames: list[Frame] = msgspec.field(name="w")


class BaseHead(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A line of a base up to its payloads."""

    envelope: BaseEnvelope = msgspec.field(name="b")
    frames: list[BaseFrame] = msgspec.field(name="w")


class _EnvelopeOnly(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A commit's line, its writes not looked at."""

    envelope: Envelope = msgspec.field(name="c")
    frames: msgspec.Raw = msgspec.field(name="w")


RECORDS = (
    *(Header, Envelope, BaseEnvelope, BaseEnd, Head, BaseHead, UsageRow, Usage),
    *(EntryFrame, UsageFrame, SetFrame, DeleteFrame, AppendFrame, DropFrame, MoveFrame),
)
"""All that is decoded of a file."""

_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(Header).decode
decode_format = msgspec.json.Decoder(FormatOnly).decode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_envelope = msgspec.json.Decoder(_EnvelopeOnly).decode
_decode_base_head = msgspec.json.Decoder(BaseHead).decode


def seal(rest: bytes) -> bytes:
    """A whole line, newline included, of what follows the checksum."""
    return b'%b%08x",%b\n' % (LINE_START, zlib.crc32(rest), rest)


def intact(line: bytes) -> bool:
    """Whether a line, given without its newline, is as it was sealed."""
    return (
        line.startswith(LINE_START)
        and line[14:16] == b'",'
        and line[6:14] == b"%08x" % zlib.crc32(memoryview(line)[_PREFIX_BYTES:])
    )


def all_intact(lines: Sequence[bytes]) -> bool:
    """``intact`` of every one of them, in a third of the time."""
    checksums = tuple([zlib.crc32(memoryview(line)[_PREFIX_BYTES:]) for line in lines])
    return b"".join([line[:_PREFIX_BYTES] for line in lines]) == _PREFIX * len(lines) % checksums


def decode_header(line: bytes) -> Header:
    """What an intact first line says; errors as ``decode_head``."""
    return _decode_header(b"{" + line[_PREFIX_BYTES:])


def decode_head(line: bytes) -> tuple[Head, int]:
    """What an intact line says before its payloads, and where in it they begin; they are not looked at.

    ``msgspec.DecodeError`` if it is no line of a commit, ``msgspec.ValidationError`` if it holds unknown things.
    """
    end = line.find(_BEFORE_PAYLOADS)  # in a text, the quotes of this would be escaped
    if end < 0:
        raise msgspec.ValidationError("no payloads")
    return _decode_head(b"{%b}" % line[_PREFIX_BYTES : end + 1]), end + len(_BEFORE_PAYLOADS)


def is_base(line: bytes) -> bool:
    """Whether an intact line says that it is one of a base."""
    return line.startswith(_BASE, _PREFIX_BYTES)


def decode_base_head(line: bytes) -> tuple[BaseHead, int]:
    """As ``decode_head``, of a line of a base."""
    end = line.find(_BEFORE_PAYLOADS)
    if end < 0:
        raise msgspec.ValidationError("no payloads")
    return _decode_base_head(b"{%b}" % line[_PREFIX_BYTES : end + 1]), end + len(_BEFORE_PAYLOADS)


def decode_envelope(line: bytes) -> Envelope:
    """What an intact line says of its commit; errors as ``decode_head``.

    Of a line of a base what it says as one: that it was not acknowledged by itself, and, the last one of it, which
    operations are open. Before that, they are ``UNKNOWN``.
    """
    if is_base(line):
        base = decode_base_head(line)[0].envelope
        if base.end is None:
            return Envelope(1, 0, base.session_id, 0, UNKNOWN)
        return Envelope(base.end.last_seq, 0, base.session_id, base.end.epoch, base.end.operations)
    end = line.find(_BEFORE_PAYLOADS)
    if end < 0:
        raise msgspec.ValidationError("no payloads")
    return _decode_envelope(b"{%b}" % line[_PREFIX_BYTES : end + 1]).envelope


def header_line(header: Header) -> bytes:
    """The first line of a file."""
    return seal(_encode(header)[1:])


class Draft:
    """A commit encoded but for what only its place in the file decides."""

    __slots__ = ("_tail", "at", "epoch", "first_seq", "lengths", "operations", "session_id", "size")

    def __init__(
        self,
        *,
        writes: Sequence[Write],
        first_seq: int,
        at: int,
        session_id: bytes,
        epoch: int,
        operations: dict[str, tuple[str, int]],
    ) -> None:
        """Encode ``writes``. ``operations`` are those open before, and are not changed.

        ``InvalidWrite`` if a text cannot be encoded, ``PayloadTooLarge`` if the line would be too long.
        """
        frames, payloads, changed = _frames(writes, operations)
        self.first_seq = first_seq
        self.at = at
        self.session_id = session_id
        self.epoch = epoch
        self.operations = changed
        """The operations open after it, or None where it leaves them as they are."""
        self.lengths = [len(payload) for payload in payloads]
        joined = b",".join(payloads)
        try:
            self._tail = b',"w":%b,"p":[%b]}' % (_encode(frames), joined)
        except UnicodeEncodeError as error:
            raise InvalidWrite(f"an id, kind or address holds text that is not valid Unicode: {error}") from error
        self.size = len(joined)
        if len(self._tail) > TAIL_BYTES_MAX:
            raise PayloadTooLarge(
                f"a commit of {len(self._tail)} bytes, and one may have {TAIL_BYTES_MAX}; "
                "store large content elsewhere and keep a reference to it",
                size_bytes=len(self._tail),
            )

    def line(self, *, operations_at: int, synced: int | None) -> bytes:
        """The commit's line. ``operations_at`` is where the operations were last written."""
        operations = operations_at if self.operations is None else operation_list(self.operations)
        return _commit_line(self.first_seq, self.at, self.session_id, self.epoch, operations, synced, self._tail)

    def places(self, line_offset: int, line_length: int) -> Iterator[int]:
        """Where the payloads lie once the line is in the file."""
        return places_from(line_offset + line_length - 3 - self.size, self.lengths)


def moved(line: bytes, envelope: Envelope, *, operations_at: int, synced: int | None) -> bytes:
    """A commit's intact line as it is in another file, where the operations were last written at ``operations_at``."""
    operations = operations_at if isinstance(envelope.operations, int) else envelope.operations
    session_id = _encode(envelope.session_id)
    tail = line[line.index(_BEFORE_WRITES) :]
    return _commit_line(envelope.first_seq, envelope.at, session_id, envelope.epoch, operations, synced, tail)


def _commit_line(
    first_seq: int,
    at: int,
    session_id: bytes,
    epoch: int,
    operations: Operations | int,
    synced: int | None,
    tail: bytes,
) -> bytes:
    where = b"%d" % operations if isinstance(operations, int) else _encode(operations)
    known = b"" if synced is None else b",%d" % synced
    return seal(b'"c":[%d,%d,%b,%d,%b%b]%b' % (first_seq, at, session_id, epoch, where, known, tail))


def encode_text(text: str) -> bytes:
    """A text as JSON."""
    return _encode(text)


def operation_list(operations: dict[str, tuple[str, int]]) -> Operations:
    """Open operations as a line holds them."""
    found = [(operation_id, lane, started_at) for operation_id, (lane, started_at) in operations.items()]
    return sorted(found, key=lambda each: (each[2], each[0]))


def derived_number(new_id: str, previous: str) -> int | None:
    """The number that stands for ``new_id`` behind ``previous`` (see ``agentlane.ids.derive``), if one does."""
    if new_id[:-4] == previous[:-4] and len(new_id) == len(previous) > 4:
        try:
            number = int(new_id[-4:], 16)
        except ValueError:
            return None
        if new_id[-4:] == f"{number:04x}":
            return number
    return None


def entry_frame(new_id: str, parent_id: str | None, kind: str, length: int, previous: str) -> tuple[Any, ...]:
    """An entry as a line holds it, ``previous`` being the entry before it there, if any."""
    number = derived_number(new_id, previous) if previous else None
    short = new_id if number is None else number
    if previous and parent_id == previous:
        return ("e", short, kind, length)
    return ("e", short, kind, length, parent_id)


def _frames(
    writes: Sequence[Write], operations: dict[str, tuple[str, int]]
) -> tuple[list[tuple[Any, ...]], list[bytes], dict[str, tuple[str, int]] | None]:
    """The writes as a line holds them, their payloads, and the open operations if they are other ones then."""
    frames: list[tuple[Any, ...]] = []
    payloads: list[bytes] = []
    after = operations
    previous = ""
    for write in writes:
        if isinstance(write, SetValue):
            (namespace, key), payload = write
            frames.append(("s", namespace, key, len(payload)))
            payloads.append(payload)
            if namespace == OPERATIONS:
                meta = operation_meta(payload)
                after = after | {key: (meta.lane, meta.started_at)}
        elif isinstance(write, InsertEntry):
            new_id, parent_id, kind, payload = write
            frames.append(entry_frame(new_id, parent_id, kind, len(payload), previous))
            payloads.append(payload)
            previous = new_id
        elif isinstance(write, DeleteValue):
            namespace, key = write.address
            frames.append(("d", namespace, key))
            if namespace == OPERATIONS and key in after:
                after = {each: meta for each, meta in after.items() if each != key}
        elif isinstance(write, InsertUsage):
            payload = encode_usage(write.row)
            frames.append(("u", len(payload)))
            payloads.append(payload)
        elif isinstance(write, AppendElement):
            (namespace, key), payload = write
            frames.append(("a", namespace, key, len(payload)))
            payloads.append(payload)
        else:
            frames.append(("x", *write.address))
    return frames, payloads, None if after is operations or after == operations else after
