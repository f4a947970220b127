"""What can be read of a JSONL session file, and what is wrong with it: the file alone, beside whoever writes it.

A file that opens is read as it is opened. One that is refused is read line by line: whatever record is whole, of this
session and not there yet is taken, also one that a foreign byte stands before, or that has lost its newline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from agentlane.data.findings import Finding
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage.contract import EntryRow, Row, SessionInfo
from agentlane.storage.damaged_lines import reason_of
from agentlane.storage.files import FileSystem, let_go
from agentlane.storage.framing import intact
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.storage.jsonl_base import fresh_path, is_torn_tail
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_payloads import FilePayloads
from agentlane.storage.jsonl_reader import LoadedFile
from agentlane.storage.salvage import Findings, NothingSalvaged, Salvage
from agentlane.storage.salvage_lines import LineReader

_BESIDE = {"leftover", "set_aside"}
"""Codes of what lies beside the file."""
ATTEMPTS_MAX = 4
"""How often a file is looked at again that an owner has written meanwhile and that did not seem whole."""


class JsonlSalvage:
    """What was read of a session file; its payloads are read from there."""

    def __init__(
        self, snapshot: IndexSnapshot[int], findings: Findings, orphans: dict[str, str], *, trusted_from: int = 0
    ) -> None:
        """``orphans``: entries whose parents are not among those that can be read, with their parents."""
        self.trusted_from = trusted_from
        self._snapshot = snapshot
        self._orphans = orphans
        self.findings = findings

    @property
    def info(self) -> SessionInfo:
        return self._snapshot.info

    @property
    def last_seq(self) -> int:
        return self._snapshot.last_seq

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        return _Pages(self._snapshot.pages(), self._orphans) if self._orphans else self._snapshot.pages()

    async def close(self) -> None:
        self.release()

    def release(self) -> None:
        self._snapshot.release()


class _Pages:
    """Pages in which each entry has the parent that it was written with."""

    def __init__(self, pages: AsyncIterator[Sequence[Row]], orphans: dict[str, str]) -> None:
        self._pages = pages
        self._orphans = orphans

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        page = await self._pages.__anext__()
        orphans = self._orphans
        return [
            row._replace(parent_id=orphans[row.id]) if isinstance(row, EntryRow) and row.id in orphans else row
            for row in page
        ]


async def salvage_file(
    files: FileSystem, path: Path, descriptor: int, session_id: str, *, owned: Callable[[], bool]
) -> Salvage:
    """Read the file that ``descriptor`` is of, which is taken over. ``owned`` says whether somebody may be writing."""
    try:
        return await _salvage(files, path, descriptor, session_id, owned)
    except BaseException:
        let_go(files, descriptor)  # what went wrong is what is told
        raise


async def _salvage(
    files: FileSystem, path: Path, descriptor: int, session_id: str, owned: Callable[[], bool]
) -> Salvage:
    attempt = 0
    while True:
        attempt += 1
        file = JsonlFile(files, path, descriptor, session_id)
        loaded, refused = await _loaded(file)
        whole = loaded is not None and loaded.good_end == file.size
        if whole or attempt == ATTEMPTS_MAX or files.status(descriptor).st_size == file.size:
            break  # else what is wrong with it may be what an owner did meanwhile
    findings = Findings()
    _look_beside(files, path, findings, owned)
    if loaded is not None:
        if not whole:
            findings.add(_tail(file, loaded, owned=owned()))
        snapshot = IndexSnapshot(loaded.info, loaded.index, FilePayloads(files, path, descriptor))
        return JsonlSalvage(snapshot, findings, {})
    reader = LineReader(file, findings)
    await reader.read()
    if refused is not None and not any(each.code not in _BESIDE for each in findings.all):
        findings.add(_refused(path, refused))
    if not reader.found:
        let_go(files, descriptor)
        return NothingSalvaged(session_id, findings)
    snapshot = IndexSnapshot(reader.info, reader.index, FilePayloads(files, path, descriptor))
    return JsonlSalvage(snapshot, findings, reader.orphans, trusted_from=reader.trusted_from)


async def _loaded(file: JsonlFile) -> tuple[LoadedFile | None, CorruptSession | UnsupportedFormat | None]:
    """A file as it is opened, or why it is refused."""
    try:
        loaded = LoadedFile(file)
        await loaded.load()
    except (CorruptSession, UnsupportedFormat) as error:
        return None, error
    return loaded, None


def _tail(file: JsonlFile, loaded: LoadedFile, *, owned: bool) -> Finding:
    """What lies behind the last whole commit of a file that opens."""
    end = loaded.good_end
    number = sum(1 for _ in file.lines(0, end)) + 1
    place = f"{file.path.name}: line {number} (byte {end})"
    reason = loaded.tail_reason
    for at, line in file.lines(end):
        if line is None or not intact(line):
            reason = reason_of(file, line, at, file.size if line is None else at + len(line))[1]
        break
    what = f"{file.size - end} bytes from there on are no whole commit ({reason})"
    if owned:
        return Finding(
            code="being_written",
            place=place,
            text=f"{what}, and an owner has the session open",
            advice="look again when it has written or is closed: it is writing this, or its next commit cuts it off",
        )
    return Finding(
        code="torn_tail",
        place=place,
        text=f"{what}, as a crash leaves it: none of it was reported as done",
        advice=f"nothing has to be done: the next commit cuts it off and keeps it as {file.path.name}.torn-1 or higher",
    )


def _refused(path: Path, error: CorruptSession | UnsupportedFormat) -> Finding:
    newer = isinstance(error, UnsupportedFormat)
    return Finding(
        code="newer_format" if newer else "bad_record",
        place=path.name,
        text=str(error),
        advice="open it with a newer version of agentlane" if newer else "repair it into a copy",
    )


def _look_beside(files: FileSystem, path: Path, findings: Findings, owned: Callable[[], bool]) -> None:
    """Files that a crash or a cut left beside this one."""
    names = sorted(files.names(path.parent))
    for name in names:
        if is_torn_tail(path, name):
            findings.add(
                Finding(
                    code="set_aside",
                    place=name,
                    text="a torn tail that was cut off and kept: what was being written when a process died",
                    advice="it is not needed; look at it, and delete it when you like",
                )
            )
    fresh = fresh_path(path).name
    if fresh in names and not owned():
        findings.add(
            Finding(
                code="leftover",
                place=fresh,
                text="what a cleanup, a fork or an import was writing when its process died",
                advice="it is not needed and goes with the next one; delete it when you like",
            )
        )
