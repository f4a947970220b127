"""What a session is loaded from, row by row: refuses what no backend could have given (S27)."""

from __future__ import annotations

from agentlane.data.writes import Address
from agentlane.errors import InvalidWrite
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, ValueRow
from agentlane.storage.index import OPERATIONS, check_operation, check_payload, check_texts, check_usage_row

TIME_MAX = 1 << 62
"""Beyond which, in milliseconds, nothing can have been written."""
_ORDER: tuple[type[Row], ...] = (EntryRow, LedgerRow, ElementRow, ValueRow)


class Intake:
    """Checks the rows of one load as they come. Holds the ids, and the addresses of values and lists."""

    def __init__(self, last_seq: int) -> None:
        if type(last_seq) is not int or not 0 <= last_seq < 1 << 62:
            raise InvalidWrite(f"last_seq {last_seq!r}: a whole number from 0 to below 2**62 is needed")
        self._last_seq = last_seq
        self._stage = 0
        self._seq = 0
        self._entries: set[str] = set()
        self._usage: set[str] = set()
        self._addresses: set[Address] = set()
        self._list: Address | None = None

    def check(self, row: Row) -> None:
        """``InvalidWrite`` for a row that does not belong here; nothing is loaded then."""
        kind = type(row)
        if kind is not _ORDER[self._stage]:
            if kind not in _ORDER[self._stage :]:
                raise InvalidWrite(
                    f"{_named(row)}: rows come as entries, ledger rows, elements, values, and nothing else"
                )
            self._stage, self._seq = _ORDER.index(kind), 0
            self._addresses.clear()
        if isinstance(row, EntryRow):
            self._check_entry(row)
        elif isinstance(row, LedgerRow):
            check_usage_row(row.row)
            self._check_fresh(row.row.id)
            self._usage.add(row.row.id)
            self._check_number(row, row.seq)
            _check_time(row, row.at)
        elif isinstance(row, ElementRow):
            self._check_element(row)
        else:
            self._check_value(row)

    def _check_entry(self, row: EntryRow) -> None:
        check_texts(row.id, row.kind)
        check_payload(row.payload)
        self._check_fresh(row.id)
        if row.parent_id is not None and row.parent_id not in self._entries:
            raise InvalidWrite(f"entry {row.id!r}: its parent {row.parent_id!r} is not before it", id=row.id)
        self._entries.add(row.id)
        self._check_number(row, row.seq)
        _check_time(row, row.at)

    def _check_fresh(self, new_id: str) -> None:
        if new_id in self._entries or new_id in self._usage:
            raise InvalidWrite(f"id {new_id!r} comes twice; entries and usage rows share one id space", id=new_id)

    def _check_element(self, row: ElementRow) -> None:
        check_texts(*row.address)
        check_payload(row.payload)
        if row.address != self._list:
            self._check_address(row.address)
            self._list, self._seq = row.address, 0
        self._check_number(row, row.seq)

    def _check_value(self, row: ValueRow) -> None:
        check_texts(*row.address)
        check_payload(row.payload)
        if row.address.namespace == OPERATIONS:
            check_operation(row.address.key, row.payload)
        self._check_address(row.address)

    def _check_address(self, address: Address) -> None:
        if address in self._addresses:
            raise InvalidWrite(f"{address.namespace}/{address.key} comes twice")
        self._addresses.add(address)

    def _check_number(self, row: Row, seq: int) -> None:
        if type(seq) is not int or not self._seq < seq <= self._last_seq:
            raise InvalidWrite(
                f"{_named(row)}: seq {seq!r} does not lie behind {self._seq} and up to last_seq {self._last_seq}"
            )
        self._seq = seq


def _check_time(row: Row, at: int) -> None:
    if type(at) is not int or abs(at) > TIME_MAX:
        raise InvalidWrite(f"{_named(row)}: time {at!r} is no whole number of milliseconds")


def _named(row: object) -> str:
    if isinstance(row, EntryRow):
        return f"entry {row.id!r}"
    if isinstance(row, LedgerRow):
        return f"ledger row {row.row.id!r}"
    if isinstance(row, ElementRow | ValueRow):
        return f"{type(row).__name__} {row.address.namespace}/{row.address.key}"
    return f"a {type(row).__name__}"
