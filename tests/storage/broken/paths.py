"""Storages whose paths are wrong (S16)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentlane.errors import UnknownEntry
from agentlane.storage.contract import (
    EntryRow,
    SessionStorage,
)
from tests.storage.broken.base import Broken


class BrokenPath(Broken):
    """Makes every path from a whole walk, by ``walk`` and ``page``, which may be wrong."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        return await self.inner.path(start, stop_at=stop_at, stop_kind=stop_kind)

    def page(self, rows: list[EntryRow], after: str | None, kinds: Collection[str] | None, limit: int | None) -> Any:
        if after is not None:
            ids = [row.id for row in rows]
            if after not in ids:
                raise UnknownEntry(after)
            rows = rows[ids.index(after) + 1 :]
        return [row for row in rows if kinds is None or row.kind in kinds][:limit]

    async def path(
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
        rows = await self.walk(start, stop_at, stop_kind)
        if not newest_first:
            rows.reverse()
        found: list[EntryRow] = self.page(rows, after, kinds, limit)
        return found if payloads else [row._replace(payload=b"") for row in found]


class PathTakesSiblings(BrokenPath):
    """S16: a path is everything before its start by seq."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        (first,) = await self.inner.entries([start])
        if first is None:
            raise UnknownEntry(start)
        rows = [row for row in await self.inner.scan() if row.seq <= first.seq][::-1]
        stops = [i for i, row in enumerate(rows) if row.id == stop_at or row.kind == stop_kind]
        return rows[: stops[0] + 1] if stops else rows


class PathStopsBeforeTheStop(BrokenPath):
    """S16: the entry to stop at is left out."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        rows = await super().walk(start, stop_at, stop_kind)
        return rows[:-1] if rows[-1].id == stop_at else rows


class PathStopsOldestFirst(BrokenPath):
    """S16: oldest first, the stop ends the answer, not the walk towards the root."""

    async def path(self, start: str, *, newest_first: bool = True, **options: Any) -> list[EntryRow]:
        stop_at, stop_kind = options.pop("stop_at", None), options.pop("stop_kind", None)
        if newest_first:
            return await super().path(start, stop_at=stop_at, stop_kind=stop_kind, **options)
        rows = await super().path(start, newest_first=False, **options)
        stops = [i for i, row in enumerate(rows) if row.id == stop_at or row.kind == stop_kind]
        return rows[: stops[0] + 1] if stops else rows


class PathPassesItsStart(BrokenPath):
    """S16: a start of the kind to stop at is passed."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        rows = await self.inner.path(start)
        for number, row in enumerate(rows):
            if row.id == stop_at or (number and row.kind == stop_kind):
                return rows[: number + 1]
        return rows


class PathStopsForOtherBranches(BrokenPath):
    """S16: the walk stops where it comes behind the newest of a kind, on whatever branch that is."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        rows = await super().walk(start, stop_at, stop_kind)
        since = max((row.seq for row in await self.inner.scan() if row.kind == stop_kind), default=0)
        return rows[: next((n for n, row in enumerate(rows, start=1) if row.seq <= since), len(rows))]


class PathStopsInItsOwnSegment(BrokenPath):
    """S16: a stop is looked for up to where the path branched off, and not beyond."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        whole, rows = await super().walk(start, stop_at, None), await super().walk(start, stop_at, stop_kind)
        first: dict[str | None, str] = {}
        for row in await self.inner.scan():
            first.setdefault(row.parent_id, row.id)
        own = next((n for n, row in enumerate(whole) if first[row.parent_id] != row.id), len(whole))
        return rows if len(rows) <= own + 1 else whole


class PathStopsByFilteredKinds(BrokenPath):
    """S16: a stop that the filter hides is not seen."""

    async def path(self, start: str, *, kinds: Collection[str] | None = None, **options: Any) -> list[EntryRow]:
        stop_kind = options.pop("stop_kind", None)
        hidden = kinds is not None and stop_kind not in kinds
        return await super().path(start, kinds=kinds, stop_kind=None if hidden else stop_kind, **options)


class PathLimitsBeforeItFilters(BrokenPath):
    """S16: ``limit`` counts what is walked."""

    def page(self, rows: list[EntryRow], after: str | None, kinds: Collection[str] | None, limit: int | None) -> Any:
        return super().page(super().page(rows, after, None, limit), None, kinds, None)


class PathRepeatsTheCursor(BrokenPath):
    """S16: a page begins where the page before ended."""

    def page(self, rows: list[EntryRow], after: str | None, kinds: Collection[str] | None, limit: int | None) -> Any:
        found = super().page(rows, after, kinds, limit)
        return found if after is None or limit is None or limit < 2 else [r for r in rows if r.id == after] + found[1:]


class PathFiltersNothingOut(BrokenPath):
    """S16: no kinds are all kinds."""

    def page(self, rows: list[EntryRow], after: str | None, kinds: Collection[str] | None, limit: int | None) -> Any:
        return super().page(rows, after, kinds or None, limit)


class PathRecurses(BrokenPath):
    """S16: a walk by recursion, which ends at Python's limit."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        rows = {row.id: row for row in await self.inner.path(start, stop_at=stop_at, stop_kind=stop_kind)}

        def up(entry_id: str | None) -> list[EntryRow]:
            return [rows[entry_id], *up(rows[entry_id].parent_id)] if entry_id in rows else []

        return up(start)


class PathFromNowhere(BrokenPath):
    """S16: an unknown start is an empty path."""

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        try:
            return await super().walk(start, stop_at, stop_kind)
        except UnknownEntry:
            return []


class PathGoesOnFromNowhere(BrokenPath):
    """S16: behind an entry that is not on the path there is nothing."""

    def page(self, rows: list[EntryRow], after: str | None, kinds: Collection[str] | None, limit: int | None) -> Any:
        try:
            return super().page(rows, after, kinds, limit)
        except UnknownEntry:
            return []

    async def path(self, start: str, *, after: str | None = None, **options: Any) -> list[EntryRow]:
        if after is not None and (await self.inner.entries([after]))[0] is None:
            raise UnknownEntry(after)
        return await super().path(start, after=after, **options)


class PathLosesTheForkOnReopen(BrokenPath):
    """S16: after reopening, a branch that begins in the middle of another begins at that one's end."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        memory["opened"] = memory.get("opened", 0) + 1

    async def walk(self, start: str, stop_at: str | None, stop_kind: str | None) -> list[EntryRow]:
        rows = await super().walk(start, stop_at, stop_kind)
        if self.memory["opened"] > 1 and len(rows) > 3 and rows[-4].payload == b'"m1"':
            del rows[-3]
        return rows
