"""Reading everything page by page, from a backend that may be wrong: one that gives a row twice is stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from agentlane.storage.contract import EntryRow, LedgerRow, SessionStorage


async def path_pages(
    storage: SessionStorage, start: str, *, limit: int, **options: Any
) -> AsyncIterator[list[EntryRow]]:
    """The pages of a path, at most ``limit`` rows each; ``options`` are those of ``path``."""
    seen: set[int] = set()
    after = None
    while page := await storage.path(start, limit=limit, after=after, **options):
        _check(page, seen, f"path after {after}")
        after = page[-1].id
        yield page


async def scan_pages(storage: SessionStorage, *, limit: int) -> AsyncIterator[list[EntryRow]]:
    """The pages of a scan, at most ``limit`` rows each."""
    seen: set[int] = set()
    after_seq = 0
    while page := await storage.scan(after_seq=after_seq, limit=limit):
        _check(page, seen, f"scan after seq {after_seq}")
        after_seq = page[-1].seq
        yield page


async def usage_pages(storage: SessionStorage, *, limit: int) -> AsyncIterator[list[LedgerRow]]:
    """The pages of the ledger, at most ``limit`` rows each."""
    seen: set[int] = set()
    after_seq = 0
    while page := await storage.usage(after_seq=after_seq, limit=limit):
        _check(page, seen, f"usage after seq {after_seq}")
        after_seq = page[-1].seq
        yield page


def _check(page: Sequence[EntryRow | LedgerRow], seen: set[int], what: str) -> None:
    for row in page:
        if row.seq in seen:
            raise AssertionError(f"{what}: gives the row with seq {row.seq} again; paging would never end")
        seen.add(row.seq)
