"""Lines of a session file that are no records: what is wrong with them, and what is whole inside of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from agentlane.data.findings import Finding, FindingCode
from agentlane.storage.framing import LINE_START, Header, decode_format, decode_header, intact
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_reader import PAUSE_BYTES
from agentlane.storage.salvage import Findings

LOOK_BYTES_MAX = 1 << 26
"""How long a damaged line may be for records to be looked for inside of it."""
TRIED_SHARE = 8
"""How many times its length is read of a damaged line to find records inside of it."""
REPAIR = "repair it into a copy, or restore it from a backup"

_ADVICE: dict[FindingCode, str] = {
    "crlf": "convert the line ends back to LF; nothing else is wrong with these lines",
    "newer_format": "open it with the version of agentlane that wrote it, or a newer one",
    "repeated_record": "nothing is lost; remove the lines, or " + REPAIR,
}
_NO_TAIL: frozenset[FindingCode] = frozenset({"empty_line", "foreign_record", "newer_format", "repeated_record"})
"""What is no torn tail where it is the last in a file that is refused."""


class _Run(NamedTuple):
    """Bad lines one behind the other that are bad for one reason."""

    code: FindingCode
    reason: str
    line: int
    offset: int
    last: int


class LineFindings:
    """Findings of one file. Bad lines are held until the next record, which shows whether anything is lost by them."""

    def __init__(self, file: JsonlFile, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self._bad: list[_Run] = []
        self._converted: list[_Run] = []  # lines of which only the end is wrong
        self._told = False

    @property
    def any(self) -> bool:
        """Whether anything is wrong so far."""
        return self._told or bool(self._bad or self._converted)

    def add(
        self,
        code: FindingCode,
        number: int | None,
        offset: int,
        text: str,
        *,
        advice: str = REPAIR,
        loses: bool = False,
    ) -> None:
        """One finding, at a line or, with ``number`` None, at a byte."""
        self._told = True
        where = f"byte {offset}" if number is None else f"line {number} (byte {offset})"
        place = f"{self._file.path.name}: {where}"
        self._findings.add(Finding(code=code, place=place, text=text, advice=advice, loses=loses))

    def bad(self, code: FindingCode, reason: str, number: int, offset: int) -> None:
        """One more line that is bad."""
        runs = self._converted if code == "crlf" else self._bad
        if runs and runs[-1][:2] == (code, reason) and runs[-1].last >= number - 1:
            runs[-1] = runs[-1]._replace(last=number)
        else:
            runs.append(_Run(code, reason, number, offset, number))

    def good(self, missing: int, what: str, number: int, offset: int) -> None:
        """A record that fits, before which ``missing`` of something are not there, as ``what`` says."""
        bad, self._bad = self._bad, []
        for run in bad:
            self._tell(run, missing > 0, f", and {what}" if missing else "")
        if missing and not bad:
            self.add("missing_numbers", number, offset, f"{what} before it: records were removed", loses=True)

    def end(self, *, found: bool) -> None:
        """The file ends here; ``found``: something in it is of the session."""
        for run in self._converted:
            self._tell(run, False, "")
        if not found:
            text = "nothing in the file is a record of a session, or all of them are damaged"
            self.add("not_a_session", 1, 0, text, advice="restore it from a backup", loses=True)
            return
        for run in self._bad:
            if run.code not in _NO_TAIL:
                text = f"{self._file.size - run.offset} bytes from there on are no whole commit ({run.reason})"
                self.add("torn_tail", run.line, run.offset, text, advice="it is what a crash leaves; " + REPAIR)
                return
            self._tell(run, run.code == "newer_format", "")

    def _tell(self, run: _Run, loses: bool, more: str) -> None:
        where = f"lines {run.line} to {run.last}: " if run.last > run.line else ""
        text = f"{where}{run.reason}{more}"
        self.add(run.code, run.line, run.offset, text, advice=_ADVICE.get(run.code, REPAIR), loses=loses)


def reason_of(file: JsonlFile, line: bytes | None, offset: int, end: int) -> tuple[FindingCode, str]:
    """Why a line that is not intact is not; ``line`` is None where it is not held."""
    if line == b"":
        return "empty_line", "the line is empty"
    if line is not None and line.endswith(b"\r") and intact(line[:-1]):
        return "crlf", "the line ends were converted to CRLF, which a copy as text does"
    at = offset
    while at < end and at - offset < LOOK_BYTES_MAX:
        chunk = file.files.pread(file.descriptor, min(end - at, PAUSE_BYTES), at)
        if b"\0" in chunk:
            return "nul_bytes", "it holds NUL bytes"
        if not chunk:
            break
        at += len(chunk)
    if end >= file.size:
        return "bad_record", "the record is incomplete"
    if line is not None and line.startswith(LINE_START):
        return "bad_record", "the record's checksum does not match"
    return "bad_record", "it does not begin as a record does"


def regions(file: JsonlFile) -> Iterator[tuple[int, int, bytes | None]]:
    """Every line with where it begins and ends; None for one that is too long, begins badly, or has no newline."""
    held: int | None = None
    for offset, line in file.lines():
        if held is not None:
            yield held, offset - 1, None
        held = None
        if line is None:
            held = offset
        else:
            yield offset, offset + len(line), line
    if held is not None:
        yield held, file.size, None


def records_inside(file: JsonlFile, offset: int, end: int) -> list[tuple[int, bytes]]:
    """Whole records inside of a damaged line: behind bytes that do not belong there, or without a newline between."""
    if end - offset > LOOK_BYTES_MAX:
        return []
    data = file.read(end - offset, offset)
    found = []
    stop = len(data)
    left = TRIED_SHARE * stop
    start = data.rfind(LINE_START)
    while start >= 0 and left > 0:
        piece = data[start:stop].removesuffix(b"\r")
        left -= len(piece)
        if intact(piece):
            found.append((offset + start, piece))
            stop = start
        start = data.rfind(LINE_START, 0, start + len(LINE_START) - 1)
    return found[::-1]


def header_of(line: bytes) -> Header | None:
    """What an intact line says as a header; None for what is none."""
    try:
        return decode_header(line)
    except msgspec.DecodeError:
        return None


def format_of(line: bytes) -> int:
    """The format that a header of whatever version names; 0 for what is no header."""
    try:
        return decode_format(line).format
    except msgspec.DecodeError:
        return 0
