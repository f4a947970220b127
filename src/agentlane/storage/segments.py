"""Ancestry in memory by segments: an entry is a place in a run of entries, and a branch is a chain of such runs.

Appending at the end of a segment extends it; appending anywhere else opens a new segment that names its base. So a
branch copies nothing, an append touches one segment, and a page of a path is a range of one or two of them. Entries
are known here by *row*: the number of entries inserted before. A parent has a lower row than its child, which is why
no walk can go in circles.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from typing import NamedTuple

NO_ROW = -1
"""The row above a root."""
_OTHER = 255
"""The code shared by all kinds after the first 255."""


class _Segment:
    """Rows of entries, each the parent of the next; the first one's parent is ``base``."""

    __slots__ = ("base", "kinds", "rows")

    def __init__(self, base: int) -> None:
        self.base = base
        self.rows = array("I")
        self.kinds = bytearray()  # a code per row, so that the newest of a kind is found at the speed of memrchr


class _Span(NamedTuple):
    """The part of a path that lies in one segment: its positions ``low`` to ``high``, both included."""

    segment: _Segment
    low: int
    high: int


class Segments:
    """The tree of a session's entries. About 10 bytes an entry, and some 300 for each place where paths part."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._segment_of = array("I")
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self._others: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._segment_of)

    def append(self, parent: int, kind: str) -> int:
        """Insert an entry under row ``parent`` (``NO_ROW``: a root) and return its row."""
        segment_of = self._segment_of
        row = len(segment_of)
        number = segment_of[parent] if parent != NO_ROW else -1
        if number < 0 or self._segments[number].rows[-1] != parent:
            number = len(self._segments)
            self._segments.append(_Segment(parent))
        segment = self._segments[number]
        code = self._codes.get(kind)
        if code is None:
            code = self._code(kind)
            if code == _OTHER:
                self._others[row] = kind
        segment.rows.append(row)
        segment.kinds.append(code)
        segment_of.append(number)
        return row

    def parent(self, row: int) -> int:
        """The row of the parent, or ``NO_ROW``."""
        segment, position = self._place(row)
        return segment.rows[position - 1] if position else segment.base

    def kind(self, row: int) -> str:
        """The kind that the entry was inserted with."""
        segment, position = self._place(row)
        return self._kind(segment.kinds[position], row)

    def on_path(self, row: int, start: int) -> bool:
        """Whether ``row`` is ``start`` or an ancestor of it."""
        segment, position = self._place(row)
        return any(span.segment is segment and position <= span.high for span in self._spans(start))

    def path(
        self,
        start: int,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        after: int | None = None,
        kinds: Collection[str] | None = None,
        stop_at: int | None = None,
        stop_kind: str | None = None,
    ) -> list[tuple[int, int, str]]:
        """Rows on the path from ``start`` to the root as (row, row of the parent, kind); rule S16.

        ``after`` is a row on that path (see ``on_path``); one that lies beyond the stop has nothing further newest
        first, and everything further oldest first.
        """
        found: list[tuple[int, int, str]] = []
        if limit is not None and limit <= 0:
            return found
        spans: Iterator[_Span] = self._spans(start, stop_at=stop_at, stop_kind=stop_kind)
        if not newest_first:
            spans = reversed(list(spans))
        for segment, low, high in spans:
            rows, codes = segment.rows, segment.kinds
            if after is not None and newest_first:  # rows grow along a path, so `after` is a bound for them
                high = bisect_left(rows, after, low, high + 1) - 1
            elif after is not None:
                low = bisect_right(rows, after, low, high + 1)
            places = range(low, high + 1)
            for position in reversed(places) if newest_first else places:
                row = rows[position]
                kind = self._kind(codes[position], row)
                if kinds is not None and kind not in kinds:
                    continue
                found.append((row, rows[position - 1] if position else segment.base, kind))
                if len(found) == limit:
                    return found
        return found

    def columns(self) -> tuple[array[int], array[int], array[int], bytes, list[str], dict[int, str]]:
        """All there is: of each segment its base and length, of all of them the rows and their kinds' codes, one
        segment behind the other, then the kinds by code, and those of rows that have none. See ``of_columns``."""
        segments = self._segments
        rows = array("I")
        for each in segments:
            rows += each.rows
        bases = array("q", [each.base for each in segments])
        lengths = array("I", [len(each.rows) for each in segments])
        return bases, lengths, rows, b"".join([each.kinds for each in segments]), self._names, self._others

    @classmethod
    def of_columns(
        cls,
        bases: array[int],
        lengths: array[int],
        rows: array[int],
        kinds: bytes,
        names: list[str],
        others: dict[int, str],
    ) -> Segments:
        """The tree of which these are the columns. ``ValueError`` where they are of none."""
        found = cls()
        if len(bases) != len(lengths) or len(rows) != len(kinds) or sum(lengths) != len(rows):
            raise ValueError("columns of segments that do not fit")
        segment_of = found._segment_of = array("I", bytes(rows.itemsize * len(rows)))
        start = 0
        for number, length in enumerate(lengths):
            segment = _Segment(bases[number])
            segment.rows = rows[start : start + length]
            segment.kinds = bytearray(kinds[start : start + length])
            found._segments.append(segment)
            if number:
                for row in segment.rows:
                    segment_of[row] = number
            start += length
        found._names, found._others = names, others
        found._codes = {name: code for code, name in enumerate(names)}
        return found

    def _code(self, kind: str) -> int:
        if len(self._names) == _OTHER:
            return _OTHER
        code = self._codes[kind] = len(self._names)
        self._names.append(kind)
        return code

    def _kind(self, code: int, row: int) -> str:
        return self._names[code] if code != _OTHER else self._others[row]

    def _place(self, row: int) -> tuple[_Segment, int]:
        segment = self._segments[self._segment_of[row]]
        return segment, bisect_left(segment.rows, row)

    def _spans(self, start: int, *, stop_at: int | None = None, stop_kind: str | None = None) -> Iterator[_Span]:
        """The path's spans from ``start`` towards the root, the last one cut where the walk stops."""
        stop_segment, stop_position = self._place(stop_at) if stop_at is not None else (None, 0)
        row = start
        while row != NO_ROW:
            segment, high = self._place(row)
            low = NO_ROW if stop_kind is None else self._newest_of_kind(segment, stop_kind, high)
            if segment is stop_segment and stop_position <= high:
                low = max(low, stop_position)
            if low != NO_ROW:
                yield _Span(segment, low, high)
                return
            yield _Span(segment, 0, high)
            row = segment.base

    def _newest_of_kind(self, segment: _Segment, kind: str, high: int) -> int:
        code = self._codes.get(kind, _OTHER)
        position = segment.kinds.rfind(code, 0, high + 1)
        while code == _OTHER and position >= 0 and self._others[segment.rows[position]] != kind:
            position = segment.kinds.rfind(code, 0, position)
        return position
