"""Where a payload lies in a file: one 64-bit integer for offset and length, so that an index of places stays small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LENGTH_BITS = 28
LENGTH_MASK = (1 << LENGTH_BITS) - 1
LINE_BYTES_MAX = 1 << LENGTH_BITS
"""The longest line (256 MiB): a commit that would make a longer one is refused, and no longer one is held in memory."""
FILE_BYTES_MAX = 1 << (64 - LENGTH_BITS)
"""The largest file (64 GiB)."""


def range_of(place: int) -> tuple[int, int]:
    """Offset and length of a place."""
    return place >> LENGTH_BITS, place & LENGTH_MASK


def places_from(offset: int, lengths: Sequence[int]) -> Iterator[int]:
    """Places of payloads that stand one after the other, one byte between, the first at ``offset``."""
    for length in lengths:
        yield offset << LENGTH_BITS | length
        offset += length + 1
