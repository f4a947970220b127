"""What is wrong among the records of a session, as findings of ``verify``."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data import addresses
from agentlane.data.findings import Finding
from agentlane.data.records.check import KINDS as NAMESPACES
from agentlane.data.records.check import RecordCheck
from agentlane.data.records.faults import KINDS, Fault
from agentlane.data.writes import Address
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row
from agentlane.storage.salvage import Findings


class SoundnessCheck:
    """Looks at what the library itself stores: ``RecordCheck`` over rows."""

    def __init__(self, found: Findings) -> None:
        self.check = RecordCheck()
        self._found = found

    def take(self, rows: Sequence[Row]) -> None:
        """The next rows."""
        for row in rows:
            take_row(self.check, row)

    def end(self) -> None:
        """Tell what is wrong. What the medium's own reader has told with line or row is not told again."""
        told = {(each.code, each.place.removeprefix("value ")) for each in self._found.all}
        parents_told = any(code == "missing_parent" for code, _ in told)
        faults = self.check.finish()
        for fault in faults:
            if (fault.code, fault.place) not in told and not (parents_told and fault.code == "missing_parent"):
                self._found.add(finding_of(fault))
        self._found.more += faults.more


def take_row(check: RecordCheck, row: Row) -> None:
    """Hand a row to a check."""
    if isinstance(row, EntryRow):
        check.entry(row.id, row.parent_id, row.seq, row.kind, row.payload)
    elif isinstance(row, LedgerRow):
        check.usage(row.row)
    elif isinstance(row, ElementRow):
        check.element(row.address, row.payload)
    else:
        check.value(row.address, row.payload)


def is_decoded(address: Address) -> bool:
    """Whether ``RecordCheck`` reads what is stored there."""
    return address.namespace in NAMESPACES or address.namespace == addresses.PENDING_FRAMES


def finding_of(fault: Fault) -> Finding:
    """A fault as people are told of it."""
    kind = KINDS[fault.code]
    return Finding(code=fault.code, place=fault.place, text=fault.text, advice=kind.advice, loses=kind.loses)
