"""Storages and stores that break a rule of whole sessions (S25, S27, S28)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Any

from agentlane.data.usage import Stats
from agentlane.data.writes import Address, AppendElement, DeleteList
from agentlane.errors import InvalidWrite
from agentlane.storage.contract import (
    Compacted,
    ElementRow,
    EntryRow,
    LedgerRow,
    Row,
    SessionInfo,
    Snapshot,
    ValueRow,
)
from agentlane.storage.memory import MemoryStore
from tests.storage.broken.base import Broken, BrokenStore

Pages = AsyncIterable[Sequence[Row]]


class _Changed:
    """A snapshot with something of it changed."""

    def __init__(self, inner: Snapshot) -> None:
        self.inner = inner

    @property
    def info(self) -> SessionInfo:
        return self.inner.info

    @property
    def last_seq(self) -> int:
        return self.inner.last_seq

    @property
    def stats(self) -> Stats:
        return self.inner.stats

    async def pages(self) -> AsyncIterator[Sequence[Row]]:
        async for page in self.inner.pages():
            yield page

    def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
        return self.inner.branch_pages(tip)

    async def close(self) -> None:
        await self.inner.close()


class SnapshotMissesTheLedger(Broken):
    """S25: ledger rows are left out."""

    async def snapshot(self) -> Snapshot:
        class Changed(_Changed):
            async def pages(self) -> AsyncIterator[Sequence[Row]]:
                async for page in self.inner.pages():
                    if not isinstance(page[0], LedgerRow):
                        yield page

        return Changed(await super().snapshot())


class SnapshotOfTheNewest(Broken):
    """S25: each reading is of the session as it is then."""

    async def snapshot(self) -> Snapshot:
        storage = self.inner

        class Changed(_Changed):
            async def pages(self) -> AsyncIterator[Sequence[Row]]:
                fresh = await storage.snapshot()
                async for page in fresh.pages():
                    yield page

        return Changed(await super().snapshot())


class PathOfEverything(Broken):
    """S25: with a path comes what lies beside it."""

    async def snapshot(self) -> Snapshot:
        class Changed(_Changed):
            async def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
                async for page in self.inner.pages():
                    if not isinstance(page[0], LedgerRow):
                        yield page

        return Changed(await super().snapshot())


class PathBeyondTheSnapshot(Broken):
    """S25: the path of an entry that was written later is read too."""

    async def snapshot(self) -> Snapshot:
        storage = self.inner

        class Changed(_Changed):
            async def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
                fresh = await storage.snapshot()
                async for page in fresh.branch_pages(tip):
                    if isinstance(page[0], EntryRow):
                        yield page
                async for page in self.inner.branch_pages(None):
                    yield page

        return Changed(await super().snapshot())


class SnapshotInOnePage(Broken):
    """S25: everything in one page."""

    async def snapshot(self) -> Snapshot:
        class Changed(_Changed):
            async def pages(self) -> AsyncIterator[Sequence[Row]]:
                if rows := [row async for page in self.inner.pages() for row in page]:
                    yield rows

        return Changed(await super().snapshot())


class SnapshotForgetsGaps(Broken):
    """S25: the highest number is that of the last entry."""

    async def snapshot(self) -> Snapshot:
        storage = self.inner

        class Changed(_Changed):
            highest = 0

            @property
            def last_seq(self) -> int:
                return self.highest

        changed = Changed(await super().snapshot())
        changed.highest = max((row.seq for row in await storage.scan()), default=0)
        return changed


class SnapshotStaysOpen(Broken):
    """S25: a closed snapshot is read all the same."""

    async def snapshot(self) -> Snapshot:
        class Changed(_Changed):
            async def close(self) -> None:
                pass

        return Changed(await super().snapshot())


class LoadsFromOne(BrokenStore):
    """S27: numbers are given anew."""

    async def load(self, pages: Pages, *, last_seq: int, **options: Any) -> SessionInfo:
        async def renumbered() -> AsyncIterator[Sequence[Row]]:
            seq = 0
            async for page in pages:
                rows: list[Row] = []
                for row in page:
                    seq += 1
                    rows.append(row if isinstance(row, ValueRow) else row._replace(seq=seq))
                yield rows

        return await super().load(renumbered(), last_seq=last_seq, **options)


class LoadsAtOneTime(BrokenStore):
    """S27: every entry is as old as the load."""

    async def load(self, pages: Pages, *, last_seq: int, **options: Any) -> SessionInfo:
        async def now() -> AsyncIterator[Sequence[Row]]:
            async for page in pages:
                yield [row._replace(at=7) if isinstance(row, EntryRow) else row for row in page]

        return await super().load(now(), last_seq=last_seq, **options)


class LoadReusesNumbers(BrokenStore):
    """S27: what is written next is numbered from the highest row on."""

    async def load(self, pages: Pages, *, last_seq: int, **options: Any) -> SessionInfo:
        info = await super().load(pages, last_seq=last_seq, **options)
        if isinstance(store := getattr(self.inner, "inner", None), MemoryStore):
            index = store._media[info.id].index
            index.last_seq = max([*index._entry_seqs, *index.ledger_seqs], default=0)
        return info


class LoadLosesLists(BrokenStore):
    """S27: the first element of each list is not there."""

    async def load(self, pages: Pages, *, last_seq: int, **options: Any) -> SessionInfo:
        async def fewer() -> AsyncIterator[Sequence[Row]]:
            known: set[object] = set()
            async for page in pages:
                kept: list[Row] = []
                for row in page:
                    if isinstance(row, ElementRow) and row.address not in known:
                        known.add(row.address)
                        continue
                    kept.append(row)
                yield kept

        return await super().load(fewer(), last_seq=last_seq, **options)


class LoadShowsItsBeginning(BrokenStore):
    """S27: the session is there before its rows are."""

    async def load(
        self,
        pages: Pages,
        *,
        last_seq: int,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: int | None = None,
    ) -> SessionInfo:
        rows = [row async for page in pages for row in page] if session_id is None else None
        if rows is not None:
            return await super().load(_one(rows), last_seq=last_seq, metadata=metadata, created_at=created_at)
        await self.create(session_id)
        async for _ in pages:
            pass
        raise InvalidWrite("never comes so far where it matters")


class LoadsOverWhatIsThere(BrokenStore):
    """S27: a session with the id is replaced."""

    async def load(self, pages: Pages, *, last_seq: int, session_id: str | None = None, **options: Any) -> SessionInfo:
        if session_id is not None and session_id in [each.id for each in await self.inner.list()]:
            await self.delete(session_id)
        return await super().load(pages, last_seq=last_seq, session_id=session_id, **options)


async def _one(rows: Sequence[Row]) -> AsyncIterator[Sequence[Row]]:
    if rows:
        yield rows


class CleanupLosesElements(Broken):
    """S28: a list is renumbered by a cleanup, so that cursors into it mean something else."""

    async def compact(self) -> Compacted:
        done = await super().compact()
        address = Address("app.check", "l0")
        found = await self.inner.elements(address)
        await self.inner.submit([DeleteList(address), *(AppendElement(address, each.payload) for each in found)])
        return done


class CleanupEndsSnapshots(Broken):
    """S28: a snapshot that was taken before cannot be read behind it."""

    async def snapshot(self) -> Snapshot:
        taken = await super().snapshot()
        self.memory.setdefault("taken", []).append(taken)
        return taken

    async def compact(self) -> Compacted:
        for each in self.memory.get("taken", []):
            await each.close()
        return await super().compact()


class CleanupOfAReader(Broken):
    """S28: a session that is open for reading is cleaned up."""

    async def compact(self) -> Compacted:
        return Compacted(0, 0) if self.read_only else await super().compact()
