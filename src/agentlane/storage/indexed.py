"""What session storages over an index in memory have in common: every read, and the ways a storage ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic

from agentlane.data.search import Search
from agentlane.data.usage import Stats
from agentlane.data.writes import Address
from agentlane.errors import AgentLaneError, OwnershipLost, ReadOnlySession, SessionClosed, SessionFaulted, WrongLoop
from agentlane.storage.contract import Commit, Element, EntryRow, Found, LedgerRow, Pending, Probe, SessionInfo
from agentlane.storage.index import P, SessionIndex, decode_usage
from agentlane.storage.index_snapshot import IndexSnapshot, Medium
from agentlane.storage.searching import PAGE_ROWS_MAX, Sieve

PAUSE_BYTES = 1 << 18
"""After reading so much a search gives others a turn."""


class IndexedStorage(ABC, Generic[P]):
    """Base of the memory and JSONL session storages: reads answer from the index, without waiting."""

    def __init__(
        self, info: SessionInfo, index: SessionIndex[P], *, epoch: int, read_only: bool, probe: Probe | None
    ) -> None:
        self.on_fault: Callable[[BaseException], None] | None = None
        self._info = info
        self._index = index
        self._epoch = epoch
        self._read_only = read_only
        self._probe = probe
        self._findings: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._fault: BaseException | None = None
        self._pendings: deque[Pending] = deque()

    @property
    def info(self) -> SessionInfo:
        """What the store knows of the session."""
        return self._info

    @property
    def epoch(self) -> int:
        """The epoch that this owner's commits carry."""
        return self._epoch

    @property
    def read_only(self) -> bool:
        """Whether ``submit`` is refused."""
        return self._read_only

    @property
    def findings(self) -> Sequence[str]:
        """What opening and writing noticed."""
        return tuple(self._findings)

    @property
    def forgotten(self) -> bool:
        """Whether the event loop that this belongs to is closed, so that nobody can ever close it there."""
        return self._loop.is_closed()

    @abstractmethod
    def kill(self) -> None:
        """Die as a killed process would."""

    @abstractmethod
    def _fetch(self, places: Iterable[P]) -> list[bytes]:
        """The payloads at ``places``."""

    @abstractmethod
    def _snapshot_medium(self) -> Medium[P]:
        """What a snapshot reads payloads from, its own and independent of this storage."""

    # Reads.

    def stats(self) -> Stats:
        """Sums over what is published."""
        self._check_usable()
        return self._index.stats

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        """Rule S15."""
        self._check_usable()
        rows = [self._index.row_of(each) for each in ids]
        known = [row for row in rows if row >= 0]
        found = iter(self._with_payloads([self._index.entry(row) for row in known], known))
        return [next(found) if row >= 0 else None for row in rows]

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
        """Rule S16."""
        self._check_usable()
        entries, rows = self._index.path(
            start,
            newest_first=newest_first,
            limit=limit,
            after=after,
            kinds=kinds,
            stop_at=stop_at,
            stop_kind=stop_kind,
        )
        return self._with_payloads(entries, rows) if payloads else entries

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        """Rule S17."""
        self._check_usable()
        rows = self._index.rows_after(after_seq, limit)
        return self._with_payloads([self._index.entry(row) for row in rows], rows)

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        """Rule S17."""
        self._check_usable()
        index = self._index
        numbers = index.ledger_after(after_seq, limit)
        payloads = self._fetch(index.ledger_places[number] for number in numbers)
        seqs = [index.ledger_seqs[number] for number in numbers]
        return [
            LedgerRow(seq, index.time_of(seq), decode_usage(payload))
            for seq, payload in zip(seqs, payloads, strict=True)
        ]

    async def value(self, address: Address) -> bytes | None:
        """The value at ``address``, or None."""
        self._check_usable()
        place = self._index.values.get(address.namespace, {}).get(address.key)
        return None if place is None else self._fetch([place])[0]

    async def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        """Values of a namespace by key, keys in order, beyond ``after``."""
        self._check_usable()
        places = self._index.values.get(namespace, {})
        keys = self._index.keys_after(namespace, prefix, after, limit)
        return dict(zip(keys, self._fetch(places[key] for key in keys), strict=True))

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        """Elements of a list beyond ``after``."""
        self._check_usable()
        elements = self._index.lists.get(address.namespace, {}).get(address.key)
        if elements is None:
            return []
        numbers = elements.numbers(after, limit, reverse=reverse)
        payloads = self._fetch(elements.places[number] for number in numbers)
        return [Element(elements.seqs[number], payload) for number, payload in zip(numbers, payloads, strict=True)]

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        """Keys of the lists of a namespace, in order."""
        self._check_usable()
        return sorted(key for key in self._index.lists.get(namespace, {}) if key.startswith(prefix))

    async def snapshot(self) -> IndexSnapshot[P]:
        """Rule S25: as of the newest published commit. It outlives the storage."""
        self._check_usable()
        return IndexSnapshot(self._info, self._index, self._snapshot_medium())

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        """Rule S26. There is no index: ``scan`` changes nothing."""
        self._check_usable()
        upto_seq = self._index.last_seq
        sieve = Sieve(search, upto_seq=upto_seq)
        if search.finds_nothing:
            return []
        after_seq, after = 0, None
        size_bytes = 0
        while True:
            index = self._index  # may be another one after each pause, the payloads lying elsewhere
            if start is None:
                entries = [index.entry(row) for row in index.rows_after(after_seq, PAGE_ROWS_MAX)]
            else:
                entries, _ = index.path(
                    start,
                    newest_first=True,
                    limit=PAGE_ROWS_MAX,
                    after=after,
                    kinds=search.kinds,
                    stop_at=None,
                    stop_kind=None,
                )
            for entry in entries:
                if sieve.wants(entry):
                    payload = self._fetch([self._index.entry_places[self._index.row_of(entry.id)]])[0]
                    sieve.take(entry, payload)
                    size_bytes += len(payload)
                    if size_bytes > PAUSE_BYTES:
                        size_bytes = 0
                        await self._pause()
            if len(entries) < PAGE_ROWS_MAX or (start is None and entries[-1].seq >= upto_seq):
                return sieve.best()
            after_seq, after = entries[-1].seq, entries[-1].id
            await self._pause()

    async def _pause(self) -> None:
        """A turn for others in the middle of a long read; ``SessionClosed`` if one of them closed the session."""
        await asyncio.sleep(0)
        self._check_usable()

    def _with_payloads(self, entries: Sequence[EntryRow], rows: Sequence[int]) -> list[EntryRow]:
        places = self._index.entry_places
        payloads = self._fetch(places[row] for row in rows)
        return [EntryRow(*entry[:5], payload) for entry, payload in zip(entries, payloads, strict=True)]

    # Writing: what every backend's ``submit`` begins and ends with.

    def _check_usable(self) -> None:
        if self._closed:
            raise self._closed_error()
        self._check_loop()

    def _check_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise WrongLoop(
                f"session {self._info.id!r} was opened on another event loop; use it there, or open it on this one",
                id=self._info.id,
            )

    def _check_writable(self) -> None:
        self._check_usable()
        if self._read_only:
            raise ReadOnlySession(
                f"session {self._info.id!r} was opened for reading; open it without read_only to write",
                id=self._info.id,
            )
        if self._fault is not None:
            raise self._faulted() from self._fault

    def _closed_error(self) -> SessionClosed:
        return SessionClosed(f"session {self._info.id!r} is closed; open it again", id=self._info.id)

    def _faulted(self) -> SessionFaulted:
        error = SessionFaulted(
            f"session {self._info.id!r}: a write failed ({self._fault!r}), so nothing more is written; "
            "mend the cause, then reopen the session",
            id=self._info.id,
        )
        error.__cause__ = self._fault
        return error

    def _reach(self, boundary: str) -> None:
        """Tell the probe; what it raises ends this storage as the death of the process would."""
        if self._probe is not None:
            try:
                self._probe.reached(boundary)
            except BaseException:
                self.kill()
                raise

    def _publish(self, commit: Commit, publish: Callable[[Commit], None] | None, name: str) -> None:
        """Report the oldest pending commit, which the index has taken in (S5)."""
        if publish is not None:
            try:
                publish(commit)
            except Exception as error:
                # The medium has the commit and whoever publishes does not: only a reopen makes them agree again.
                self._end(error)
                return
            except BaseException:
                self.kill()
                raise
        if self._probe is not None:
            self._reach(f"commit.{name}.after")
        self._pendings.popleft().succeed(commit)

    def _end(self, cause: BaseException) -> None:
        """Fault the storage: all pending commits fail, in order, then ``on_fault`` is told (S9)."""
        if self._fault is not None:
            return
        self._fault = cause
        while self._pendings:
            self._pendings.popleft().fail(self._failure(cause))
        if self.on_fault is not None:
            self.on_fault(cause)

    def _failure(self, cause: BaseException) -> AgentLaneError:
        if isinstance(cause, OwnershipLost):  # S22: said as it is to those whose commits they were
            return OwnershipLost(str(cause), **cause.details)
        return self._faulted()
