"""Searching by reading: what every backend can do and an index must agree with, and the best of several sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from agentlane.data import addresses, codec
from agentlane.data.reads import SEQ_MAX, id_text
from agentlane.data.search import Search, SearchHit, hit_of, score_of, total_of
from agentlane.data.writes import Address
from agentlane.errors import UnknownEntry, UnknownSession
from agentlane.storage.contract import EntryRow, Found, Store

PAGE_ROWS_MAX = 64
"""Entries that are read at once, fewer where they are large."""
PAGE_BYTES = 1 << 20
"""About as many bytes of payload are read at once, but for the first large one."""
HITS_AT_ONCE = 16
"""Entries whose payloads are in memory while snippets are made."""


class Readable(Protocol):
    """What of a session a search needs: every ``SessionStorage`` has it."""

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]: ...

    async def path(
        self, start: str, *, limit: int | None = None, after: str | None = None, kinds: Collection[str] | None = None
    ) -> list[EntryRow]: ...

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]: ...

    async def value(self, address: Address) -> bytes | None: ...


class Searchable(Readable, Protocol):
    """What can be searched."""

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]: ...


class Sieve:
    """Keeps the best of what it is given, as many as the search asks for (S26)."""

    def __init__(self, search: Search, *, upto_seq: int | None = None) -> None:
        """What was written beyond ``upto_seq`` is not wanted."""
        self.search = search
        self.upto_seq = SEQ_MAX if upto_seq is None else upto_seq
        self._found: list[Found] = []

    def wants(self, row: EntryRow) -> bool:
        """Whether it is worth looking into the entry."""
        return row.seq <= self.upto_seq and self.search.lets_through(row.kind, row.at)

    def take(self, row: EntryRow, payload: bytes) -> None:
        """Look into an entry that is wanted."""
        total = total_of(self.search, payload)
        if total:
            self.add(Found(row._replace(payload=b""), total))

    def add(self, found: Found) -> None:
        """One that matches."""
        self._found.append(found)
        if len(self._found) > 2 * self.search.limit + PAGE_ROWS_MAX:
            self._found = self.best()

    def best(self) -> list[Found]:
        """The best, best first; of those that are equally good the newest first."""
        return sorted(self._found, key=_order)[: self.search.limit]


def _order(found: Found) -> tuple[int, int, int]:
    return -found.total, -found.row.at, -found.row.seq


async def search_by_reading(
    storage: Readable,
    search: Search,
    *,
    start: str | None = None,
    after_seq: int = 0,
    sieve: Sieve | None = None,
) -> list[Found]:
    """``SessionStorage.search`` in terms of its other reads: linear time, a page of memory (S26).

    For a backend that has nothing better, and for the part that an index does not have: entries beyond ``after_seq``
    are looked at, and the best of them, and of what ``sieve`` has, are returned.
    """
    sieve = sieve or Sieve(search)
    if search.finds_nothing:
        return sieve.best()
    if start is not None and (await storage.entries([start]))[0] is None:
        raise UnknownEntry(f"no entry {start!r} is in this session", id=start)
    size, after = PAGE_ROWS_MAX, None
    while True:
        if start is None:
            rows = await storage.scan(after_seq=after_seq, limit=size)
        else:
            rows = await storage.path(start, limit=size, after=after, kinds=search.kinds)
        for row in rows:
            if row.seq > after_seq and sieve.wants(row):
                sieve.take(row, row.payload)
        if len(rows) < size:
            return sieve.best()
        last = rows[-1]
        # Seqs fall along a path: what is behind the first that is not looked at is not either.
        if last.seq >= sieve.upto_seq if start is None else last.seq <= after_seq:
            return sieve.best()
        after_seq, after = (last.seq, None) if start is None else (after_seq, last.id)
        size = next_size(rows)
        await asyncio.sleep(0)


def next_size(rows: Sequence[EntryRow]) -> int:
    """How many to read next, so that a page of entries like these has about ``PAGE_BYTES``."""
    average = sum(len(row.payload) for row in rows) // len(rows)
    return max(1, min(PAGE_ROWS_MAX, PAGE_BYTES // (average + 1)))


async def tip_of(storage: Readable, branch: str) -> str | None:
    """The tip of a branch; None where it is empty, or there is no such branch."""
    name = id_text(branch)
    payload = None if name is None else await storage.value(addresses.branch_tip(name))
    return None if payload is None else codec.OPTIONAL_TEXT.decode(payload, f"tip of {branch}")


async def hits_of(storage: Readable, search: Search, found: Sequence[Found], *, session_id: str) -> list[SearchHit]:
    """What was found as it is given out, payloads read a few at a time."""
    hits: list[SearchHit] = []
    for first in range(0, len(found), HITS_AT_ONCE):
        some = found[first : first + HITS_AT_ONCE]
        rows = await storage.entries([each.row.id for each in some])
        hits += [_hit(search, session_id, row, total) for row, (_, total) in zip(rows, some, strict=True) if row]
    return hits


def _hit(search: Search, session_id: str, row: EntryRow, total: int) -> SearchHit:
    return hit_of(
        search,
        session_id=session_id,
        entry_id=row.id,
        kind=row.kind,
        at=row.at,
        payload=row.payload,
        total=total,
    )


class Best:
    """The best hits of several sessions, each searched in turn (S26)."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._hits: list[SearchHit] = []

    async def look_into(self, storage: Searchable, *, session_id: str, branch: str | None, scan: bool) -> None:
        """Search one more session; one without such a branch has nothing."""
        start = None if branch is None else await tip_of(storage, branch)
        if branch is not None and start is None:
            return
        found = await storage.search(self._search, start=start, scan=scan)
        if len(self._hits) == self._search.limit and found:
            # Snippets are made of those alone that have a chance.
            worst = _rank(self._hits[-1])
            found = [each for each in found if (-score_of(self._search, each.total), -each.row.at) <= worst[:2]]
        fresh = await hits_of(storage, self._search, found, session_id=session_id)
        self._hits = sorted([*self._hits, *fresh], key=_rank)[: self._search.limit]

    def hits(self) -> list[SearchHit]:
        """Best first, then newest, then by session, and within one as found there."""
        return self._hits


def _rank(hit: SearchHit) -> tuple[float, int, str]:
    return -hit.score, -hit.at, hit.session_id


async def search_store(
    store: Store, search: Search, *, session_id: str | None, branch: str | None, scan: bool
) -> list[SearchHit]:
    """``Store.search`` of a store whose sessions are opened for it, one at a time, for reading."""
    best = Best(search)
    for id in [session_id] if session_id is not None else [info.id for info in await store.list()]:
        try:
            storage = await store.open(id, read_only=True)
        except UnknownSession:
            if session_id is not None:
                raise
            continue  # deleted meanwhile
        try:
            await best.look_into(storage, session_id=id, branch=branch, scan=scan)
        finally:
            await storage.close()
    return best.hits()
