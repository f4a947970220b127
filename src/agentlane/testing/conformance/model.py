"""The reference: what a session must answer, in the plainest code there is; a dump of all that one answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from agentlane.data.usage import Stats
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.storage.contract import Commit, Element, EntryRow, LedgerRow, SessionStorage
from agentlane.testing.conformance.pages import path_pages, scan_pages, usage_pages

PAGE_ROWS = 7
"""Rows that ``dump`` asks for at a time: few, so that paging is part of every comparison."""


class ReferenceSession:
    """A session as plain dictionaries and loops. Its reads have the names and parameters of ``SessionStorage``."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.rows: dict[str, EntryRow] = {}
        self.ledger: list[LedgerRow] = []
        self.values_at: dict[Address, bytes] = {}
        self.lists_at: dict[Address, list[Element]] = {}

    def refuses(self, writes: Sequence[Write]) -> bool:
        """Whether a commit of ``writes`` is one of those that S2 refuses."""
        if not writes:
            return True
        entries = set(self.rows)
        used = entries | {each.row.id for each in self.ledger}
        for write in writes:
            match write:
                case InsertEntry(id=new, parent_id=parent):
                    if new in used or (parent is not None and parent not in entries):
                        return True
                    entries.add(new)
                    used.add(new)
                case InsertUsage(row=row):
                    if row.id in used:
                        return True
                    used.add(row.id)
                case _:
                    pass
        return False

    def apply(self, writes: Sequence[Write], *, first_seq: int, at: int) -> None:
        """Take in what a backend reported as committed."""
        for seq, write in enumerate(writes, start=first_seq):
            match write:
                case InsertEntry(id=new, parent_id=parent, kind=kind, payload=payload):
                    self.rows[new] = EntryRow(new, parent, seq, at, kind, payload)
                case InsertUsage(row=row):
                    self.ledger.append(LedgerRow(seq, at, row))
                case SetValue(address=address, payload=payload):
                    self.values_at[address] = payload
                case DeleteValue(address=address):
                    self.values_at.pop(address, None)
                case AppendElement(address=address, payload=payload):
                    self.lists_at.setdefault(address, []).append(Element(seq, payload))
                case DeleteList(address=address):
                    self.lists_at.pop(address, None)
        self.next_seq = first_seq + len(writes)

    def commit(self, writes: Sequence[Write], commit: Commit) -> None:
        """``apply`` with the commit that the backend gave."""
        self.apply(writes, first_seq=commit.first_seq, at=commit.at)

    def stats(self) -> Stats:
        stats = Stats(entries=len(self.rows))
        for each in self.ledger:
            stats = Stats(entries=stats.entries, usage=stats.usage.plus(each.row))
        return stats

    def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return [self.rows.get(each) for each in ids]

    def walk(self, start: str, *, stop_at: str | None = None, stop_kind: str | None = None) -> list[EntryRow]:
        """From ``start`` towards the root, as far as it goes."""
        walked = []
        here: str | None = start
        while here is not None:
            row = self.rows[here]
            walked.append(row)
            if row.id == stop_at or row.kind == stop_kind:
                break
            here = row.parent_id
        return walked

    def path(
        self,
        start: str,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        after: str | None = None,
        kinds: Collection[str] | None = None,
        stop_at: str | None = None,
        stop_kind: str | None = None,
        payloads: bool = True,
    ) -> list[EntryRow]:
        rows = self.walk(start, stop_at=stop_at, stop_kind=stop_kind)
        if not newest_first:
            rows.reverse()
        if after is not None:
            rows = rows[[row.id for row in rows].index(after) + 1 :]
        rows = [row for row in rows if kinds is None or row.kind in kinds][:limit]
        return rows if payloads else [row._replace(payload=b"") for row in rows]

    def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return [row for row in sorted(self.rows.values(), key=lambda row: row.seq) if row.seq > after_seq][:limit]

    def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        return [each for each in self.ledger if each.seq > after_seq][:limit]

    def value(self, address: Address) -> bytes | None:
        return self.values_at.get(address)

    def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        found = [
            (address.key, self.values_at[address])
            for address in sorted(self.values_at)
            if address.namespace == namespace and address.key.startswith(prefix)
        ]
        return dict([each for each in found if after is None or each[0] > after][:limit])

    def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        found = self.lists_at.get(address, [])
        if reverse:
            return [each for each in reversed(found) if after is None or each.seq < after][:limit]
        return [each for each in found if after is None or each.seq > after][:limit]

    def lists(self, namespace: str, prefix: str = "") -> list[str]:
        return [
            address.key
            for address in sorted(self.lists_at)
            if address.namespace == namespace and address.key.startswith(prefix)
        ]

    def dump(self, namespaces: Iterable[str]) -> dict[str, Any]:
        """What ``dump`` of a session with the same history gives."""
        named = sorted(set(namespaces))
        return {
            "stats": self.stats(),
            "entries": self.scan(),
            "usage": self.usage(),
            "paths": {tip: [row.id for row in self.walk(tip)] for tip in _tips(self.scan())},
            "values": {each: self.values(each) for each in named},
            "lists": {each: {key: self.elements(Address(each, key)) for key in self.lists(each)} for each in named},
        }


async def dump(storage: SessionStorage, namespaces: Iterable[str]) -> dict[str, Any]:
    """Everything that ``storage`` answers about entries, the ledger, and the values and lists of ``namespaces``.

    Two dumps are equal exactly when the sessions are the same to any reader; payloads and order included.
    """
    named = sorted(set(namespaces))
    rows = [row async for page in scan_pages(storage, limit=PAGE_ROWS) for row in page]
    return {
        "stats": storage.stats(),
        "entries": rows,
        "usage": [row async for page in usage_pages(storage, limit=PAGE_ROWS) for row in page],
        "paths": {
            tip: [row.id async for page in path_pages(storage, tip, limit=PAGE_ROWS) for row in page]
            for tip in _tips(rows)
        },
        "values": {each: await storage.values(each) for each in named},
        "lists": {
            each: {key: await storage.elements(Address(each, key)) for key in await storage.lists(each)}
            for each in named
        },
    }


def difference(got: Any, want: Any, where: str = "") -> str | None:
    """In words, the first place where two values differ, or None; the keys of dictionaries have an order here."""
    if got == want and type(got) is type(want) and not isinstance(got, dict):
        return None
    if isinstance(got, dict) and isinstance(want, dict):
        if list(got) != list(want):
            return f"{where or 'it'} has keys {_short(list(got))} instead of {_short(list(want))}"
        return next((found for key in want if (found := difference(got[key], want[key], f"{where}[{key!r}]"))), None)
    if isinstance(got, list) and isinstance(want, list):
        if len(got) != len(want):
            return f"{where or 'it'} has {len(got)} rows {_short(got)} instead of {len(want)} {_short(want)}"
        pairs = enumerate(zip(got, want, strict=True))
        return next((found for i, (a, b) in pairs if (found := difference(a, b, f"{where}[{i}]"))), None)
    return f"{where or 'it'} is {_short(got)} instead of {_short(want)}"


def _tips(rows: Sequence[EntryRow]) -> list[str]:
    parents = {row.parent_id for row in rows}
    return [row.id for row in rows if row.id not in parents]


def _short(value: Any, length_max: int = 300) -> str:
    """``value`` on one line, cut where it is long."""
    if isinstance(value, bytes) and len(value) > length_max:
        return f"<{len(value)} bytes that begin with {value[:60]!r}>"
    text = repr(value)
    return text if len(text) <= length_max else f"{text[:length_max]}..."
