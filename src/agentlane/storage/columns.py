"""A session's index as plain columns, and back: arrays as they lie in memory, texts many at a time.

The order of the columns is the format: whoever writes and whoever reads go through the index in the same way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec

from agentlane.storage.id_rows import IdRows
from agentlane.storage.index import Elements, SessionIndex
from agentlane.storage.segments import Segments

TEXTS = 4_096
"""How many texts are encoded together."""
KEYS = 1_024
"""How many keys are."""

_encode = msgspec.msgpack.Encoder().encode
_decode_texts = msgspec.msgpack.Decoder(list[str]).decode
_decode_places = msgspec.msgpack.Decoder(dict[str, int]).decode
_decode_others = msgspec.msgpack.Decoder(dict[int, str]).decode
_decode_number = msgspec.msgpack.Decoder(int).decode


class Sink(Protocol):
    """What takes columns, part by part."""

    def put(self, part: bytes | memoryview, /) -> None:
        """One more part; nothing of it is kept but its bytes."""


class Source(Protocol):
    """What gives the parts that a sink was given, in their order."""

    async def get(self) -> bytes:
        """The next part; the event loop gets a turn now and then. ``ValueError`` where there is none."""


def put_index(index: SessionIndex[int], sink: Sink) -> None:
    """All columns of an index whose columns of places are arrays."""
    for column in _arrays(index):
        _put_array(column, sink)
    _put_segments(index.segments, sink)
    _put_ids(index.rows, sink)
    _put_number(len(index.values), sink)
    for namespace, places in index.values.items():
        _put_texts([namespace], sink)
        keys = list(places.items())
        _put_number(len(keys), sink)
        for start in range(0, len(keys), KEYS):
            sink.put(_encode(dict(keys[start : start + KEYS])))
    _put_number(len(index.lists), sink)
    for namespace, lists in index.lists.items():
        _put_texts([namespace], sink)
        _put_texts(list(lists), sink)
        for elements in lists.values():
            _put_array(elements.seqs, sink)
            _put_array(array("Q", elements.places), sink)


async def get_index(source: Source) -> SessionIndex[int]:
    """The index of which these are the columns. ``ValueError``, ``msgspec.DecodeError`` where they are none."""
    index = SessionIndex[int](array("Q"), array("Q"))
    for column in _arrays(index):
        await _get_array(column, source)
    index.segments = await _segments(source)
    await _get_ids(index.rows, source)
    for _ in range(await _number(source)):
        (namespace,) = await _texts(source)
        keys = index.values[namespace] = {}
        for _ in range(0, await _number(source), KEYS):
            keys.update(_decode_places(await source.get()))
    for _ in range(await _number(source)):
        (namespace,) = await _texts(source)
        lists: dict[str, Elements[int]] = {}
        index.lists[namespace] = lists
        for key in await _texts(source):
            elements = lists[key] = Elements()
            await _get_array(elements.seqs, source)
            places = array("Q")
            await _get_array(places, source)
            elements.places = places.tolist()
    _check(index)
    return index


def _arrays(index: SessionIndex[int]) -> Sequence[array[int]]:
    columns: tuple[object, ...] = (index.entry_places, index.ledger_places, *index.columns)
    found = [column for column in columns if isinstance(column, array)]
    if len(found) < len(columns):
        raise TypeError("the columns of places are no arrays")
    return found


def _check(index: SessionIndex[int]) -> None:
    """Each entry, ledger row and commit must be in every column of its own."""
    entry_places, ledger_places, ledger_seqs, entry_seqs, commit_seqs, commit_times = map(len, _arrays(index))
    if (
        not entry_places == entry_seqs == len(index.rows.ids) == len(index.segments)
        or ledger_places != ledger_seqs
        or commit_seqs != commit_times
    ):
        raise ValueError("columns that do not fit")


def _put_segments(segments: Segments, sink: Sink) -> None:
    bases, lengths, rows, kinds, names, others = segments.columns()
    for column in (bases, lengths, rows):
        _put_array(column, sink)
    sink.put(kinds)
    _put_texts(names, sink)
    sink.put(_encode(others))


async def _segments(source: Source) -> Segments:
    bases, lengths, rows = array("q"), array("I"), array("I")
    for column in (bases, lengths, rows):
        await _get_array(column, source)
    kinds, names = await source.get(), await _texts(source)
    return Segments.of_columns(bases, lengths, rows, kinds, names, _decode_others(await source.get()))


def _put_ids(rows: IdRows, sink: Sink) -> None:
    """Ids of entries by row; which rows are in order, where not all are; ids of usage rows; the others."""
    in_order, usage, others = rows.columns()
    _put_texts(rows.ids, sink)
    _put_array(in_order, sink)
    _put_texts(usage, sink)
    sink.put(_encode(others))


async def _get_ids(rows: IdRows, source: Source) -> None:
    ids, in_order = await _texts(source), array("I")
    await _get_array(in_order, source)
    rows.fill(ids, in_order, await _texts(source), _decode_places(await source.get()))


def _put_array(column: array[int], sink: Sink) -> None:
    sink.put(memoryview(column).cast("B") if column else b"")


async def _get_array(column: array[int], source: Source) -> None:
    column.frombytes(await source.get())


def _put_texts(texts: list[str], sink: Sink) -> None:
    _put_number(len(texts), sink)
    for start in range(0, len(texts), TEXTS):
        sink.put(_encode(texts[start : start + TEXTS]))


async def _texts(source: Source) -> list[str]:
    count = await _number(source)
    texts: list[str] = []
    for _ in range(0, count, TEXTS):
        texts += _decode_texts(await source.get())
    if len(texts) != count:
        raise ValueError(f"{len(texts)} texts, and {count} belong here")
    return texts


def _put_number(number: int, sink: Sink) -> None:
    sink.put(_encode(number))


async def _number(source: Source) -> int:
    return _decode_number(await source.get())
