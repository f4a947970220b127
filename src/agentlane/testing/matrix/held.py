"""All that a session holds when a process opens it, each part read once however many checks look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Any, TypeVar

from agentlane.data.writes import Address
from agentlane.storage.contract import EntryRow, LedgerRow, SessionStorage
from agentlane.testing.wrapping import WrappedStorage

T = TypeVar("T")


class Held(WrappedStorage):
    """The reads of a session at rest: what was read once is not asked of the store again.

    For a look at what is there before anything is written. Whoever writes makes it wrong.
    """

    def __init__(self, inner: SessionStorage, *, at_once: bool = False) -> None:
        """``at_once``: ask for many parts without waiting for each, where a thread answers."""
        self.inner = inner  # a fault is told to whom it was told before
        self.on_fault = None
        self._at_once = at_once
        self._written: frozenset[str] | None = None
        """The namespaces of values that were ever written, once it is known: all others are empty."""
        self._read: dict[Hashable, Any] = {}

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        return await self._once(("scan", after_seq, limit), lambda: self.inner.scan(after_seq=after_seq, limit=limit))

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        return await self._once(("usage", after_seq, limit), lambda: self.inner.usage(after_seq=after_seq, limit=limit))

    async def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        if self._written is not None and namespace not in self._written:
            return {}
        key = ("values", namespace, prefix, after, limit)
        return await self._once(key, lambda: self.inner.values(namespace, prefix, after=after, limit=limit))

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        return await self._once(("lists", namespace, prefix), lambda: self.inner.lists(namespace, prefix))

    async def content(self, values: Collection[str], lists: Collection[str]) -> tuple[Hashable, ...]:
        """Everything, equal where two sessions hold the same: entries, usage, and these namespaces of values and lists.

        A namespace that nothing was written to need not be named: it is empty.
        """
        spaces, named = sorted(values), sorted(lists)
        self._written = frozenset(spaces)
        rows, ledger = await self.scan(), await self.usage()
        reads: list[Awaitable[Mapping[str, object]]] = [*map(self.values, spaces), *map(self._lists, named)]
        found = await asyncio.gather(*reads) if self._at_once else [await each for each in reads]
        held = [(space, tuple(sorted(each.items()))) for space, each in zip([*spaces, *named], found, strict=True)]
        return tuple(rows), tuple(ledger), tuple(each for each in held if each[1])

    async def _lists(self, namespace: str) -> Mapping[str, object]:
        keys = await self.lists(namespace)
        return {key: tuple(await self.inner.elements(Address(namespace, key))) for key in keys}

    async def _once(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        if key not in self._read:
            self._read[key] = await read()
        found: T = self._read[key]
        return found
