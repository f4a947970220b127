"""An open session file, for reading: its lines, and what they say of themselves.

A record that is incomplete, fails its checksum or belongs to another session is *bad*. One whose checksum is good and
whose shape is unknown is a newer version's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage import jsonl_formats
from agentlane.storage.contract import SessionInfo
from agentlane.storage.files import FileSystem, read_all
from agentlane.storage.framing import (
    LINE_START,
    Envelope,
    Header,
    decode_envelope,
    decode_format,
    decode_header,
    intact,
)
from agentlane.storage.places import LINE_BYTES_MAX

CHUNK_BYTES = 1 << 18
"""How much of a file is read at once."""
TAIL_BYTES = 1 << 16
"""How much of a file's end is read at once."""
_CRLF = "the line ends were converted to CRLF, which a copy as text does; convert them back to LF, or copy as binary"


class JsonlFile:
    """An open session file, for reading. ``size`` is what is looked at; what is appended later is not."""

    def __init__(self, files: FileSystem, path: Path, descriptor: int, session_id: str) -> None:
        self.files = files
        self.path = path
        self.descriptor = descriptor
        self.session_id = session_id
        self.size = files.status(descriptor).st_size

    def read(self, size: int, offset: int) -> bytes:
        """``size`` bytes at ``offset``; fewer only where the file ends."""
        return read_all(self.files, self.descriptor, size, offset)

    def lines(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes | None]]:
        """Lines from ``start`` on with their offsets; None for one that is bad whatever it holds (see ``blocks``)."""
        for offset, lines in self.blocks(start, end):
            if lines is None:
                yield offset, None
                continue
            for line in lines:
                yield offset, line
                offset += len(line) + 1

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, list[bytes] | None]]:
        """Lines from ``start`` on, those together that are read at once, with the offset of the first of them; None in
        place of one that is bad whatever it holds: without a newline, or too long. Buffers are bounded by one good
        line."""
        end = self.size if end is None else end
        offset = at = start
        parts: list[bytes] = []
        held = 0
        while at < end:
            chunk = self.files.pread(self.descriptor, min(CHUNK_BYTES, end - at), at)
            if not chunk:
                break
            at += len(chunk)
            lines = chunk.split(b"\n")
            rest = lines.pop()
            if lines:
                if held and not parts:
                    yield offset, None
                    offset += held + len(lines.pop(0)) + 1
                elif held:
                    lines[0] = b"".join([*parts, lines[0]])
                parts, held = [], 0
                if lines:
                    yield offset, lines
                    offset = at - len(rest)
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
            good = size <= LINE_BYTES_MAX and self.read(len(LINE_START), start) == LINE_START
            yield start, self.read(size, start) if good else None
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
            found = self.read(end - start, start).rfind(b"\n")
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


def _refuse_newer(file: JsonlFile, line: bytes) -> None:
    try:
        found = decode_format(line).format
    except msgspec.DecodeError:
        return
    newest = jsonl_formats.CHAIN.newest
    if found > newest:
        raise UnsupportedFormat(
            f"{file.path}: format {found}, and this version reads up to {newest}; update agentlane to open it",
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
