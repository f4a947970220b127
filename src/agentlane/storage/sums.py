"""A checksum of much of a file, taken as it is read or written: of all its bytes, however many, at once.

Two sums of 32 bits, CRC-32 and Adler-32, both zlib's: they work in different ways, so that damage which one of them
misses by chance is seen by the other. Each is as fast as memory on any machine; a stronger hash is twice or eight times
as slow, by machine, and would have OpenSSL loaded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

SUM_BYTES = 1 << 20
"""How much is read at once to sum it up."""


class Sums:
    """The sums of the ``size`` bytes that were added."""

    __slots__ = ("adler", "crc", "size")

    def __init__(self, data: bytes = b"") -> None:
        self.crc = zlib.crc32(data)
        self.adler = zlib.adler32(data)
        self.size = len(data)

    def add(self, data: bytes | memoryview) -> None:
        """The bytes that come next."""
        self.crc = zlib.crc32(data, self.crc)
        self.adler = zlib.adler32(data, self.adler)
        self.size += len(data)

    def add_all(self, parts: Iterable[bytes | memoryview]) -> None:
        """The same, of several."""
        for part in parts:
            self.add(part)

    def copy(self) -> Sums:
        """What they are now."""
        other = Sums()
        other.crc, other.adler, other.size = self.crc, self.adler, self.size
        return other

    @property
    def digest(self) -> bytes:
        """Eight bytes, which differ where the bytes that were added do."""
        return self.crc.to_bytes(4, "big") + self.adler.to_bytes(4, "big")
