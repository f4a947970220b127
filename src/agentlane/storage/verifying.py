"""``verify`` of a store: what is wrong with a session, found without opening it and without changing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from agentlane.data.findings import Finding, VerifyReport
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, Store
from agentlane.storage.holding import Hold
from agentlane.storage.record_findings import SoundnessCheck
from agentlane.storage.salvage import Findings, NothingSalvaged, Salvage, SnapshotSalvage

_decode = msgspec.json.Decoder().decode


class RecordCheck(Protocol):
    """Looks at all rows of a session, page by page, for what cannot be true of one."""

    def take(self, rows: Sequence[Row]) -> None:
        """The next rows, in the order of ``Snapshot.pages``."""
        ...

    def end(self) -> None:
        """All rows were taken."""
        ...


class PayloadCheck:
    """Payloads that are no JSON."""

    def __init__(self, found: Findings) -> None:
        self._found = found

    def take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if not isinstance(row, LedgerRow):
                try:
                    _decode(row.payload)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    self._found.add(_undecodable(row, error))

    def end(self) -> None:
        """Every row is looked at by itself."""


RECORD_CHECKS: tuple[Callable[[Findings], RecordCheck], ...] = (PayloadCheck, SoundnessCheck)
"""What is looked for in the rows of each session, beside what its backend finds in the medium: each is made with the
findings that it adds to."""


class Verifying:
    """What makes a store able to verify its sessions: inherit it beside ``Store``.

    A backend whose medium can be damaged has a ``salvage`` of its own.
    """

    async def salvage(self: Store, session_id: str) -> Salvage:
        """What can be read of a session and what is wrong with it (see ``Salvage``); to be closed.

        ``UnknownSession``, ``OSError``. Beside whoever owns the session; nothing is written and no lock is taken.
        """
        try:
            storage = await self.open(session_id, read_only=True)
        except (CorruptSession, UnsupportedFormat) as error:
            findings = Findings()
            findings.add(refusal(session_id, error))
            return NothingSalvaged(session_id, findings)
        hold = Hold(storage, storage.close, storage.kill)
        async with hold:
            snapshot = await storage.snapshot()
            return SnapshotSalvage(hold.hand_over(), snapshot)

    async def verify(self: _Salvaging, session_id: str) -> VerifyReport:
        """Look at every byte of a session, also one that does not open: what is wrong, where, and what to do about it.

        Nothing is changed and no lock is taken; whoever owns the session can go on meanwhile, and it is looked at as it
        was at one moment. Memory is bounded but for ids. A session with nothing wrong has no findings.

        ``UnknownSession`` if there is nothing of that id, ``InvalidName``. ``OSError`` where it may not, or cannot now,
        be read: a read that fails is never told as damage. Cancelled, nothing is left behind.
        """
        salvage = await self.salvage(session_id)
        async with Hold(salvage, salvage.close, salvage.release):
            report = await examined(session_id, salvage)
        return report


class _Salvaging(Protocol):
    async def salvage(self, session_id: str) -> Salvage: ...


async def examined(session_id: str, salvage: Salvage, checks: Sequence[RecordCheck] | None = None) -> VerifyReport:
    """The report on a session of which ``salvage`` gives the rows; ``checks`` None: those of ``RECORD_CHECKS``."""
    found = salvage.findings
    if checks is None:
        checks = [make(found) for make in RECORD_CHECKS]
    entries = usage_rows = elements = values = 0
    async for page in salvage.pages():
        for row in page:
            if isinstance(row, EntryRow):
                entries += 1
            elif isinstance(row, LedgerRow):
                usage_rows += 1
            elif isinstance(row, ElementRow):
                elements += 1
            else:
                values += 1
        for check in checks:
            check.take(page)
        await asyncio.sleep(0)
    for check in checks:
        check.end()
    return VerifyReport(
        session_id=session_id,
        findings=found.all,
        more=found.more,
        entries=entries,
        usage_rows=usage_rows,
        elements=elements,
        values=values,
        last_seq=salvage.last_seq,
    )


def refusal(place: str, error: CorruptSession | UnsupportedFormat) -> Finding:
    """Why nothing of a session can be read, as a finding."""
    if isinstance(error, UnsupportedFormat):
        advice = "open it with the version of agentlane that wrote it, or a newer one"
        return Finding(code="newer_format", place=place, text=str(error), advice=advice)
    advice = "restore it from a backup"
    return Finding(code="unreadable", place=place, text=str(error), advice=advice, loses=True)


def _undecodable(row: Row, error: Exception) -> Finding:
    if isinstance(row, EntryRow):
        place = f"entry {row.id}"
    elif isinstance(row, LedgerRow):
        place = f"usage row {row.row.id}"
    elif isinstance(row, ElementRow):
        place = f"element {row.seq} of the list {row.address.namespace}/{row.address.key}"
    else:
        place = f"value {row.address.namespace}/{row.address.key}"
    return Finding(
        code="undecodable",
        place=place,
        text=f"what is stored there is no JSON ({error})",
        advice="restore the session from a backup, or repair it into a copy without this",
        loses=True,
    )
