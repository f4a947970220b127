"""A session as it was at one commit, read from the index of a memory or JSONL storage (S25).

Entries and ledger rows are only ever appended, so their number then is all that must be remembered of them; of values
and lists the places are copied. Whoever replaces the index of an open storage leaves the old one as it was.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Generic, Protocol, TypeVar

from agentlane.data.usage import Stats
from agentlane.data.writes import Address
from agentlane.errors import SessionClosed, UnknownEntry
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, SessionInfo, ValueRow
from agentlane.storage.index import P, SessionIndex, decode_usage

PAGE_ROWS = 256
PAGE_BYTES = 1 << 20
"""How large a page becomes before it is given out; a single payload may be larger."""

T = TypeVar("T")
Place = TypeVar("Place", contravariant=True)


class Medium(Protocol[Place]):
    """What payloads are read from for as long as the snapshot is open."""

    def fetch(self, places: Iterable[Place]) -> list[bytes]: ...

    def size(self, place: Place) -> int: ...

    def close(self) -> None: ...


class IndexSnapshot(Generic[P]):
    """``Snapshot`` of the contract. Reading it needs no session, and no loop of its own."""

    def __init__(self, info: SessionInfo, index: SessionIndex[P], medium: Medium[P]) -> None:
        """Take over ``medium``, which is closed with this."""
        self._info = info
        self._index = index
        self._medium = medium
        self._closed = False
        self._stats = index.stats
        self._last_seq = index.last_seq
        self._entries = len(index.segments)
        self._ledger = len(index.ledger_seqs)
        self._values = [
            (Address(namespace, key), place)
            for namespace, places in sorted(index.values.items())
            for key, place in sorted(places.items())
        ]
        self._elements = [
            (Address(namespace, key), seq, place)
            for namespace, lists in sorted(index.lists.items())
            for key, elements in sorted(lists.items(), key=_key)
            for seq, place in zip(elements.seqs, elements.places, strict=True)
        ]

    @property
    def info(self) -> SessionInfo:
        """What the store knows of the session."""
        return self._info

    @property
    def last_seq(self) -> int:
        """The highest sequence number that was given out."""
        return self._last_seq

    @property
    def stats(self) -> Stats:
        """The sums as they were."""
        return self._stats

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        """Every row (S25)."""
        return _Pages(chain(self._entry_pages(range(self._entries)), self._ledger_pages(), self._other_pages()))

    def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
        """The rows of one path (S25)."""
        return _Pages(chain(self._path_pages(tip), self._other_pages()))

    def _path_pages(self, tip: str | None) -> Iterator[Sequence[Row]]:
        if tip is None:
            return
        row = self._index.row_of(tip)
        if not 0 <= row < self._entries:
            raise UnknownEntry(f"no entry {tip!r} is in the snapshot of session {self._info.id!r}", entry_id=tip)
        rows = [each for each, _, _ in self._index.segments.path(row, newest_first=False)]
        yield from self._entry_pages(array("I", rows))

    def _entry_pages(self, wanted: Sequence[int]) -> Iterator[Sequence[Row]]:
        index = self._index
        for rows, payloads in self._paged(wanted, index.entry_places.__getitem__):
            entries = map(index.entry, rows)
            yield [EntryRow(*entry[:5], payload) for entry, payload in zip(entries, payloads, strict=True)]

    def _ledger_pages(self) -> Iterator[Sequence[Row]]:
        index, seqs = self._index, self._index.ledger_seqs
        for numbers, payloads in self._paged(range(self._ledger), index.ledger_places.__getitem__):
            yield [
                LedgerRow(seqs[number], index.time_of(seqs[number]), decode_usage(payload))
                for number, payload in zip(numbers, payloads, strict=True)
            ]

    def _other_pages(self) -> Iterator[Sequence[Row]]:
        for elements, payloads in self._paged(self._elements, lambda each: each[2]):
            yield [
                ElementRow(address, seq, payload) for (address, seq, _), payload in zip(elements, payloads, strict=True)
            ]
        for values, payloads in self._paged(self._values, lambda each: each[1]):
            yield [ValueRow(address, payload) for (address, _), payload in zip(values, payloads, strict=True)]

    async def close(self) -> None:
        """Give up what payloads are read from."""
        self.release()

    def release(self) -> None:
        """``close`` where nothing can be awaited."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):  # it was only read from
                self._medium.close()

    def _paged(self, things: Sequence[T], place_of: Callable[[T], P]) -> Iterator[tuple[Sequence[T], list[bytes]]]:
        """``things`` in pages, each with the payloads that lie at their places."""
        begin = 0
        while begin < len(things):
            if self._closed:
                raise SessionClosed(f"the snapshot of session {self._info.id!r} is closed", id=self._info.id)
            end, size = begin, 0
            while end < len(things) and end - begin < PAGE_ROWS and size < PAGE_BYTES:
                size += self._medium.size(place_of(things[end]))
                end += 1
            page = things[begin:end]
            yield page, self._medium.fetch(map(place_of, page))
            begin = end


class _Pages:
    """Pages that are there without waiting; no asynchronous generator, which its loop would have to be rid of."""

    def __init__(self, pages: Iterator[Sequence[Row]]) -> None:
        self._left = pages

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        for page in self._left:
            return page
        raise StopAsyncIteration


def _key(item: tuple[str, object]) -> str:
    return item[0]
