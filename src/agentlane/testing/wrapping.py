"""Stores around stores: everything is handed on, so that a wrapper overrides only what it changes."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from agentlane.data.findings import VerifyReport
from agentlane.data.search import Search, SearchHit
from agentlane.data.usage import Stats
from agentlane.data.writes import Address, Write
from agentlane.errors import SessionFaulted
from agentlane.storage.contract import (
    Capabilities,
    Commit,
    Compacted,
    Element,
    EntryRow,
    Found,
    LedgerRow,
    OpenOperation,
    Pending,
    Probe,
    Row,
    SessionInfo,
    SessionStorage,
    Snapshot,
    Store,
)
from agentlane.storage.exchange import Exchange
from agentlane.storage.forks import Forking
from agentlane.storage.repairing import Repairing


class WrappedStorage:
    """A ``SessionStorage`` that hands everything on to ``inner``. A fault of ``inner`` reaches ``inner_faulted``."""

    def __init__(self, inner: SessionStorage) -> None:
        self.inner = inner
        self.on_fault: Callable[[BaseException], None] | None = None
        inner.on_fault = self.inner_faulted

    def inner_faulted(self, error: BaseException) -> None:
        """The medium failed; a wrapper that holds commits of its own fails them here first."""
        if self.on_fault is not None:
            self.on_fault(error)

    @property
    def info(self) -> SessionInfo:
        return self.inner.info

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def read_only(self) -> bool:
        return self.inner.read_only

    @property
    def findings(self) -> Sequence[str]:
        return self.inner.findings

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        return self.inner.submit(writes, publish=publish, name=name)

    def stats(self) -> Stats:
        return self.inner.stats()

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        return await self.inner.entries(ids)

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
        return await self.inner.path(
            start,
            newest_first=newest_first,
            limit=limit,
            after=after,
            kinds=kinds,
            stop_at=stop_at,
            stop_kind=stop_kind,
            payloads=payloads,
        )

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return await self.inner.scan(after_seq=after_seq, limit=limit)

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        return await self.inner.usage(after_seq=after_seq, limit=limit)

    async def value(self, address: Address) -> bytes | None:
        return await self.inner.value(address)

    async def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        return await self.inner.values(namespace, prefix, after=after, limit=limit)

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        return await self.inner.elements(address, after=after, limit=limit, reverse=reverse)

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        return await self.inner.lists(namespace, prefix)

    async def snapshot(self) -> Snapshot:
        return await self.inner.snapshot()

    async def compact(self) -> Compacted:
        return await self.inner.compact()

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        return await self.inner.search(search, start=start, scan=scan)

    async def close(self) -> None:
        await self.inner.close()

    def kill(self) -> None:
        self.inner.kill()


class WrappedStore(Exchange, Forking, Repairing):
    """A ``Store`` that hands everything on to ``inner``; ``wrap`` is put around each session that is opened."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def wrap(self, storage: SessionStorage) -> SessionStorage:
        """What ``open`` returns in place of ``storage``."""
        return WrappedStorage(storage)

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        return await self.inner.create(session_id, metadata=metadata)

    async def load(self, pages: AsyncIterable[Sequence[Row]], *, last_seq: int, **options: Any) -> SessionInfo:
        return await self.inner.load(pages, last_seq=last_seq, **options)

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        return self.wrap(await self.inner.open(session_id, read_only=read_only, probe=probe))

    async def list(self) -> Sequence[SessionInfo]:
        return await self.inner.list()

    async def delete(self, session_id: str) -> None:
        await self.inner.delete(session_id)

    async def open_operations(self) -> Sequence[OpenOperation]:
        return await self.inner.open_operations()

    async def search(
        self,
        text: str,
        *,
        session_id: str | None = None,
        branch: str | None = None,
        types: Iterable[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 20,
        prefix: bool = False,
        scan: bool = False,
    ) -> Sequence[SearchHit]:
        return await self.inner.search(
            text,
            session_id=session_id,
            branch=branch,
            types=types,
            since=since,
            until=until,
            limit=limit,
            prefix=prefix,
            scan=scan,
        )

    async def verify(self, session_id: str) -> VerifyReport:
        return await self.inner.verify(session_id)

    async def close(self) -> None:
        await self.inner.close()


def faulted_by(cause: BaseException) -> SessionFaulted:
    """The error that each commit of a faulted storage fails with."""
    error = SessionFaulted(f"a write failed ({cause}); what is in memory may not be stored: reopen the session")
    error.__cause__ = cause
    return error
