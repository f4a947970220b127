"""Storages that break a rule of data or of reads by id and seq (S11-S15, S17)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from agentlane.data.usage import Stats, UsageTotals
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertUsage,
    Write,
)
from agentlane.storage.contract import (
    Element,
    EntryRow,
    LedgerRow,
    Pending,
    SessionStorage,
)
from tests.storage.broken.base import Broken, Publish


class StatsMissUnknown(Broken):
    """S14: rows whose charge is not known are not counted as such."""

    def stats(self) -> Stats:
        stats = super().stats()
        totals = {each: getattr(stats.usage, each) for each in stats.usage.__struct_fields__}
        return Stats(entries=stats.entries, usage=UsageTotals(**{**totals, "unknown_rows": 0}))


class StatsTakeSummariesAsKnown(Broken):
    """S14: of rows whose charge is not known only attempts at answers are counted as such."""

    def stats(self) -> Stats:
        stats = super().stats()
        known = stats.usage.unknown_rows - self.memory.get("summaries", 0)
        totals = {each: getattr(stats.usage, each) for each in stats.usage.__struct_fields__}
        return Stats(entries=stats.entries, usage=UsageTotals(**{**totals, "unknown_rows": known}))

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, publish=publish, name=name)
        rows = [each.row for each in writes if isinstance(each, InsertUsage)]
        unknown = sum(row.kind == "summary" and row.usage.unknown for row in rows)
        self.memory["summaries"] = self.memory.get("summaries", 0) + unknown
        return pending


class StatsMissAdjustments(Broken):
    """S14: rows made by the caller are left out of the sums."""

    def stats(self) -> Stats:
        stats = super().stats()
        skipped = self.memory.get("skipped", 0)
        totals = {each: getattr(stats.usage, each) for each in stats.usage.__struct_fields__}
        return Stats(entries=stats.entries, usage=UsageTotals(**{**totals, "rows": totals["rows"] - skipped}))

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, publish=publish, name=name)
        skipped = sum(isinstance(each, InsertUsage) and each.row.kind == "adjustment" for each in writes)
        self.memory["skipped"] = self.memory.get("skipped", 0) + skipped
        return pending


class LosesAnElementOnReopen(Broken):
    """S13: the newest element of each list is gone after reopening."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        self._lost = memory.get("lengths", {}).copy()

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        lost = self._lost.get(address)
        found = await super().elements(address, after=after, reverse=reverse)
        return [each for each in found if each.seq != lost][:limit]

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, publish=publish, name=name)
        for seq, each in enumerate(writes, start=pending.result().first_seq):
            if isinstance(each, AppendElement):
                self.memory.setdefault("lengths", {})[each.address] = seq
        return pending


class KeepsElementsOfDeletedLists(Broken):
    """S13: deleting a list does nothing."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        nothing = DeleteValue(Address("no", "where"))
        taken = [nothing if isinstance(each, DeleteList) else each for each in writes]
        return self.inner.submit(taken, publish=publish, name=name)


class DeletesBeforeItSets(Broken):
    """S13: writes of a commit are applied kind by kind."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        deletes = [each for each in writes if isinstance(each, DeleteValue | DeleteList)]
        others = [each for each in writes if not isinstance(each, DeleteValue | DeleteList)]
        return self.inner.submit([*deletes, *others], publish=publish, name=name)


class ValuesAndListsShareAddresses(Broken):
    """S13: deleting a value deletes the list of that address too."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        taken: list[Write] = []
        for each in writes:
            taken.append(each)
            if isinstance(each, DeleteValue):
                taken.append(DeleteList(each.address))
        return self.inner.submit(taken, publish=publish, name=name)


class PrefixByLike(Broken):
    """S13: ``%`` and ``_`` of a prefix match anything, and letters match in either case, as LIKE has it."""

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, **page)
        pattern = prefix.lower().replace("%", "*").replace("_", "?").replace("[", "[[]") + "*"
        return {key: value for key, value in found.items() if fnmatch.fnmatchcase(key.lower(), pattern)}


class PrefixByParts(Broken):
    """S13: a prefix ends where a part of the key ends."""

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        found = await super().lists(namespace, prefix)
        return [key for key in found if key == prefix or key[len(prefix) :].startswith("|") or not prefix]


class PrefixByUpperBound(Broken):
    """S13: keys up to the prefix and U+FFFF, in the order of UTF-16."""

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, **page)
        return {key: value for key, value in found.items() if prefix <= key <= prefix + "\uffff"}


class KeysInOrderOfInsertion(Broken):
    """S13: keys come as they were first set."""

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, prefix, **page)
        return {key: found[key] for key in sorted(found, key=lambda key: (len(key), key))}


class PagesBeginWhereTheLastOneEnded(Broken):
    """S17: a page of values begins with the key that the page before ended with."""

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, prefix)
        after, limit = page.get("after"), page.get("limit")
        return dict([each for each in found.items() if after is None or each[0] >= after][:limit])


class PagesAreCutBeforeThePrefix(Broken):
    """S17: a page has so many keys of the namespace, of which those with the prefix are given."""

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, **page)
        return {key: value for key, value in found.items() if key.startswith(prefix)}


class ReversedElementsFromTheOtherEnd(Broken):
    """S13: ``after`` is always the lower bound."""

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        found = await super().elements(address, after=after)
        return (found[::-1] if reverse else found)[:limit]


class LimitsBeforeItReverses(Broken):
    """S13: the last page is taken from the front."""

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        found = await super().elements(address, after=after, limit=limit if after is None else None, reverse=False)
        if not reverse:
            return found[:limit]
        return [each for each in reversed(await super().elements(address)) if after is None or each.seq < after][
            : limit or 1_000_000
        ]


class NormalizesJson(Broken):
    """S11: payloads are decoded and encoded on the way."""

    async def value(self, address: Address) -> bytes | None:
        found = await super().value(address)
        return None if found is None else found.replace(b'{ "b" : 1', b'{"b":1')


class SplitsLines(Broken):
    """S11: a medium of lines that are split as ``str.splitlines`` splits."""

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        found = await super().scan(after_seq=after_seq, limit=limit)
        return [row._replace(payload=row.payload.decode().splitlines()[0].encode()) for row in found]


class CutsLongPayloads(Broken):
    """S11: beyond 65,535 bytes nothing comes back."""

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        found = await super().elements(address, after=after, limit=limit, reverse=reverse)
        return [each._replace(payload=each.payload[:65_535]) for each in found]


class LosesTheTime(Broken):
    """S12: an entry has the time of when it is read."""

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return [row._replace(at=row.at + 1) for row in await super().scan(after_seq=after_seq, limit=limit)]


class LosesTheNote(Broken):
    """S12: a ledger row comes back without its note."""

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        found = await super().usage(after_seq=after_seq, limit=limit)
        bare = []
        for each in found:
            fields = {name: getattr(each.row, name) for name in each.row.__struct_fields__}
            bare.append(each._replace(row=type(each.row)(**{**fields, "note": None})))
        return bare


class SortsEntries(Broken):
    """S15: rows come in the order of the medium, each once."""

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return await super().entries(sorted(set(ids)))


class LeavesUnknownOut(Broken):
    """S15: an id that is not there has no place in the answer."""

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return [row for row in await super().entries(ids) if row is not None]


class TooManyParameters(Broken):
    """S15: as a statement with a parameter for each id would."""

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        if len(ids) > 32_766:
            raise OSError("too many SQL variables")
        return await super().entries(ids)


class ScanFromTheCursor(Broken):
    """S17: the cursor's own row comes again."""

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return await super().scan(after_seq=max(0, after_seq - 1), limit=limit)


class NoLimitOfZero(Broken):
    """S17: a limit of nothing is none."""

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        return await super().usage(after_seq=after_seq, limit=limit or None)
