"""What a session sees of its SQLite file: what is there now, or, opened for reading, what was there at the open."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from agentlane.data.addresses import CURRENT, RESULT
from agentlane.data.writes import Address
from agentlane.errors import UnknownEntry
from agentlane.storage import schema
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import Element, EntryRow, LedgerRow


class View:
    """Everything that is committed. Each method is one read, on the reader's thread."""

    def __init__(self, key: int) -> None:
        self.key = key

    def entries(self, database: sqlite3.Connection, ids: Sequence[str]) -> list[EntryRow | None]:
        return reads.entries(database, self.key, ids)

    def check_start(self, database: sqlite3.Connection, start: str) -> None:
        """``UnknownEntry`` where a path from ``start`` is not seen; whether it is there is for the walk to say."""

    def highest_seq(self, database: sqlite3.Connection) -> int:
        """The highest ``seq`` of what is seen now, or a higher one."""
        return reads.highest_seq(database, self.key)

    def scan(self, database: sqlite3.Connection, after_seq: int, limit: int | None) -> list[EntryRow]:
        return reads.scan(database, self.key, after_seq, limit)

    def usage(self, database: sqlite3.Connection, after_seq: int, limit: int | None) -> list[LedgerRow]:
        return reads.usage(database, self.key, after_seq, limit)

    def value(self, database: sqlite3.Connection, address: Address) -> bytes | None:
        return reads.value(database, self.key, address)

    def values(
        self, database: sqlite3.Connection, namespace: str, prefix: str, after: str | None, limit: int | None
    ) -> dict[str, bytes]:
        return reads.values(database, self.key, namespace, prefix, after, limit)

    def elements(
        self, database: sqlite3.Connection, address: Address, after: int | None, limit: int | None, reverse: bool
    ) -> list[Element]:
        return reads.elements(database, self.key, address, after, limit, reverse)

    def lists(self, database: sqlite3.Connection, namespace: str, prefix: str) -> list[str]:
        return reads.lists(database, self.key, namespace, prefix)


class ViewAtOpen(View):
    """What was committed when the session was opened; what its owner writes beside it is not seen.

    Rows that are written once are known by their ``seq``, and what says where the session stands is kept. Other values
    (labels, those of the application) are not kept, for there may be any number: they are read as they are now, and so
    is whether a list was deleted.
    """

    def __init__(self, key: int, last_seq: int, kept: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(key)
        self._last_seq = last_seq
        self._kept = kept

    def entries(self, database: sqlite3.Connection, ids: Sequence[str]) -> list[EntryRow | None]:
        found = super().entries(database, ids)
        return [row if row is None or row.seq <= self._last_seq else None for row in found]

    def check_start(self, database: sqlite3.Connection, start: str) -> None:
        if self.entries(database, [start]) == [None]:  # all that is on a path is older than its start
            raise UnknownEntry(f"entry {start!r} is not in this session", entry_id=start)

    def highest_seq(self, database: sqlite3.Connection) -> int:
        return self._last_seq

    def scan(self, database: sqlite3.Connection, after_seq: int, limit: int | None) -> list[EntryRow]:
        return [row for row in super().scan(database, after_seq, limit) if row.seq <= self._last_seq]

    def usage(self, database: sqlite3.Connection, after_seq: int, limit: int | None) -> list[LedgerRow]:
        return [row for row in super().usage(database, after_seq, limit) if row.seq <= self._last_seq]

    def value(self, database: sqlite3.Connection, address: Address) -> bytes | None:
        kept = self._kept.get(address.namespace)
        if kept is not None:
            return kept.get(address.key)
        if address.namespace == RESULT and address.key in self._newer(database, RESULT):
            return None
        return super().value(database, address)

    def values(
        self, database: sqlite3.Connection, namespace: str, prefix: str, after: str | None, limit: int | None
    ) -> dict[str, bytes]:
        kept = self._kept.get(namespace)
        if kept is not None:
            keys = (key for key in kept if key.startswith(prefix) and (after is None or key > after))
            return {key: kept[key] for key in list(keys)[:limit]}
        if namespace != RESULT:
            return super().values(database, namespace, prefix, after, limit)
        newer = self._newer(database, namespace)
        found: dict[str, bytes] = {}
        while limit is None or len(found) < limit:  # each page may hold some that are not to be seen
            missing = None if limit is None else limit - len(found)
            page = super().values(database, namespace, prefix, after, missing)
            found.update((key, payload) for key, payload in page.items() if key not in newer)
            if missing is None or len(page) < missing:
                break
            after = next(reversed(page))
        return found

    def _newer(self, database: sqlite3.Connection, namespace: str) -> set[str]:
        """Keys of values that were written since the open; where each is written once, they were not there then."""
        found = database.execute(schema.SELECT_NEWER_KEYS, (self.key, namespace, self._last_seq)).fetchall()
        return {key for (key,) in found}

    def elements(
        self, database: sqlite3.Connection, address: Address, after: int | None, limit: int | None, reverse: bool
    ) -> list[Element]:
        if reverse:
            after = self._last_seq + 1 if after is None else min(after, self._last_seq + 1)
        found = super().elements(database, address, after, limit, reverse)
        return [element for element in found if element.seq <= self._last_seq]

    def lists(self, database: sqlite3.Connection, namespace: str, prefix: str) -> list[str]:
        found = super().lists(database, namespace, prefix)
        return [key for key in found if self.elements(database, Address(namespace, key), None, 1, False)]


def kept_values(database: sqlite3.Connection, key: int) -> dict[str, dict[str, bytes]]:
    """What ``ViewAtOpen`` keeps: values that say where the session stands, as many as there are lanes and open work."""
    return {namespace: reads.values(database, key, namespace, "", None, None) for namespace in CURRENT}
