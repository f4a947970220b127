"""Storages and stores whose search is wrong (S26)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentlane.data.search import HITS_MAX, Search, SearchHit
from agentlane.errors import UnknownEntry, UnknownSession
from agentlane.storage.contract import Found
from tests.storage.broken.base import Broken, BrokenStore


class SearchLimitsBeforeItFilters(Broken):
    """S26: the best of the session are taken first, and then those on the path are left."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(search)
        if start is None:
            return found
        on_path = {row.id for row in await self.inner.path(start)}
        return [each for each in found if each.row.id in on_path]


class SearchLimitsBeforeKinds(Broken):
    """S26: kinds are looked at after the limit."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(msgspec.structs.replace(search, kinds=None), start=start)
        return [each for each in found if search.kinds is None or each.row.kind in search.kinds]


class SearchLimitsBeforeTimes(Broken):
    """S26: times are looked at after the limit."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(msgspec.structs.replace(search, since=None, until=None), start=start)
        return [each for each in found if search.lets_through(each.row.kind, each.row.at)]


class SearchTakesUntilIn(Broken):
    """S26: an entry of the very time that is the end is found."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        until = None if search.until is None else search.until + 1
        return await self.inner.search(msgspec.structs.replace(search, until=until), start=start)


class SearchLeavesSinceOut(Broken):
    """S26: an entry of the very time that is the beginning is not found."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        since = None if search.since is None else search.since + 1
        return await self.inner.search(msgspec.structs.replace(search, since=since), start=start)


class SearchForgetsTheBranch(Broken):
    """S26: every branch is searched."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        if start is not None and await self.inner.entries([start]) == [None]:
            raise UnknownEntry(start)
        return await self.inner.search(search)


class SearchIsNewestFirst(Broken):
    """S26: how well an entry matches does not count."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        whole = msgspec.structs.replace(search, limit=HITS_MAX)
        found = await self.inner.search(whole, start=start)
        return sorted(found, key=lambda each: -each.row.seq)[: search.limit]


class SearchIsOldestFirstAmongEquals(Broken):
    """S26: of equally good ones the oldest come first."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        whole = msgspec.structs.replace(search, limit=HITS_MAX)
        found = await self.inner.search(whole, start=start)
        return sorted(found, key=lambda each: (-each.total, each.row.seq))[: search.limit]


class SearchTakesAnyWord(Broken):
    """S26: one of the words is enough."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found: dict[str, Found] = {}
        for word in search.words:
            one = msgspec.structs.replace(search, words=(word,))
            found |= {each.row.id: each for each in await self.inner.search(one, start=start)}
        return sorted(found.values(), key=lambda each: (-each.total, -each.row.seq))[: search.limit]


class SearchIsBehind(Broken):
    """S26: what was committed since the first search is not found."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        rows = await self.inner.scan()
        seen = self.memory.setdefault("seen", rows[-1].seq if rows else 0)
        return [each for each in await self.inner.search(search, start=start) if each.row.seq <= seen]


class SearchIndexIsLostByAScan(Broken):
    """S26: reading the entries finds something else than the index."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(search, start=start)
        return found[1:] if scan else found


class SearchGivesPayloads(Broken):
    """S26: rows come with their payloads, however large."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(search, start=start)
        rows = await self.inner.entries([each.row.id for each in found])
        return [Found(row, each.total) for row, each in zip(rows, found, strict=True) if row is not None]


class SearchFindsTwice(Broken):
    """S26: after reopening, what was in the index is in it twice."""

    def __init__(self, inner: Any, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        memory["opened"] = memory.get("opened", 0) + 1

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        found = await self.inner.search(search, start=start)
        if self.memory["opened"] > 1 and not self.read_only:
            found = [each for each in found for _ in range(2)]
        return found[: search.limit]


class SearchReadsOn(Broken):
    """S26: a read-only open finds what its owner wrote later."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        if not self.read_only:
            self.memory["newest"] = self.inner
            return await self.inner.search(search, start=start)
        return await self.memory.get("newest", self.inner).search(search, start=start)  # type: ignore[no-any-return]


class SearchKnowsNoUnknownStart(Broken):
    """S26: from an unknown entry nothing is found, and nothing is said."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        try:
            return await self.inner.search(search, start=start)
        except UnknownEntry:
            return []


class SearchRaisesForOperators(Broken):
    """S26: words that mean something to a database are not looked for."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        words = tuple(each for each in search.words if each.word not in ("and", "or", "not", "near"))
        return await self.inner.search(msgspec.structs.replace(search, words=words), start=start)


class StoreSearchesItsFirstSession(BrokenStore):
    """S26: of many sessions one is searched."""

    async def search(self, text: str, *, session_id: str | None = None, **options: Any) -> Sequence[SearchHit]:
        first = next((info.id for info in await self.inner.list()), None)
        return await self.inner.search(text, session_id=session_id or first, **options)


class StoreSearchForgetsTheOrder(BrokenStore):
    """S26: hits come session by session."""

    async def search(self, text: str, **options: Any) -> Sequence[SearchHit]:
        return sorted(await self.inner.search(text, **options), key=lambda hit: hit.session_id)


class StoreSearchFindsDeletedSessions(BrokenStore):
    """S26: what was found once is found for ever."""

    async def search(self, text: str, **options: Any) -> Sequence[SearchHit]:
        kept: dict[Any, Sequence[SearchHit]] = self.__dict__.setdefault("kept", {})
        key = (text, *sorted((name, value) for name, value in options.items() if name != "scan"))
        if str(key) not in kept:
            kept[str(key)] = await self.inner.search(text, **options)
        return kept[str(key)]


class StoreSearchesSessionsWithoutTheBranch(BrokenStore):
    """S26: a session that has no such branch is searched whole."""

    async def search(self, text: str, *, branch: str | None = None, **options: Any) -> Sequence[SearchHit]:
        found = await self.inner.search(text, branch=branch, **options)
        return found or await self.inner.search(text, **options)


class StoreSearchKnowsNoUnknownSession(BrokenStore):
    """S26: in a session that is not there nothing is found, and nothing is said."""

    async def search(self, text: str, **options: Any) -> Sequence[SearchHit]:
        try:
            return await self.inner.search(text, **options)
        except UnknownSession:
            return []
