"""The index of a session file, kept beside it: what opening finds out of a file's lines, so that they need not be read.

It is derived. It says which first part of the file it is of, by length and checksum, and is taken only where the file
begins with exactly those bytes, all of which are read for it; whatever else is the case, the lines are read instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import zlib
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from agentlane.data.usage import Stats
from agentlane.storage.columns import get_index, put_index
from agentlane.storage.files import FileSystem, let_go, write_all
from agentlane.storage.framing import RECORDS, Operations
from agentlane.storage.index import SessionIndex
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.sums import SUM_BYTES, Sums

MIN_BYTES = 4 << 20
"""A smaller file is read sooner than anybody could notice."""
PAUSE_BYTES = 1 << 24
"""How much is summed up before the event loop gets a turn."""
PARTS_PAUSE_BYTES = 1 << 21
"""And of an index, how much is decoded."""
VERSION = 1
_MAGIC = b"agentlane index\n"
_ENDING_BYTES = 64
_LENGTH_BYTES = 8
_DIGEST_BYTES = 8

_log = logging.getLogger("agentlane")


class IndexHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index says before its columns: of which part of which file it is, and where the session stood."""

    version: int = VERSION
    layout: str
    """How numbers lie in memory where it was written."""
    vocabulary: int
    """What its writer could read: lines that hold more are refused, so nobody may pass over what he does not know."""
    session_id: str
    size: int
    """Of how many first bytes of the file it is."""
    digest: bytes
    """Their checksum."""
    ending: bytes
    """The last of them."""
    last_seq: int
    epoch: int
    operations: Operations
    operations_at: int
    stats: Stats


class Kept(msgspec.Struct):
    """What an index holds, and what reading the part of the file that it is of has shown."""

    head: IndexHead
    index: SessionIndex[int]
    sums: Sums
    lines: int


_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(IndexHead).decode


def layout() -> str:
    """How numbers lie in memory here."""
    return f"{sys.byteorder} {array('I').itemsize} {array('q').itemsize}"


def vocabulary() -> int:
    """A number that stands for all that this version finds in lines: each kind of record, and its fields."""
    known = [(each.__name__, each.__struct_config__.tag, each.__struct_fields__) for each in RECORDS]
    return zlib.crc32(repr(known).encode())


def index_path(path: Path) -> Path:
    """Where the index of a session file is."""
    return path.with_name(f"{path.name}.index")


def fresh_index_path(path: Path) -> Path:
    """Where it is written before it gets its name."""
    return path.with_name(f".{path.name}.index.new")


def remove_index(files: FileSystem, path: Path) -> None:
    """Remove the index of a session file, and what is left of one that was being written; nothing depends on it."""
    for each in (index_path(path), fresh_index_path(path)):
        with suppress(OSError):
            files.unlink(each)


def index_head(
    descriptor: int,
    files: FileSystem,
    *,
    session_id: str,
    sums: Sums,
    index: SessionIndex[int],
    epoch: int,
    operations: Operations,
    operations_at: int,
) -> IndexHead:
    """The head for an index of the first ``sums.size`` bytes of an open file. ``OSError``."""
    return IndexHead(
        layout=layout(),
        vocabulary=vocabulary(),
        session_id=session_id,
        size=sums.size,
        digest=sums.digest,
        ending=_ending(files, descriptor, sums.size),
        last_seq=index.last_seq,
        epoch=epoch,
        operations=operations,
        operations_at=operations_at,
        stats=index.stats,
    )


# Writing.


class _Writing:
    """Parts on their way to a file, each behind its length, and a checksum of all of them at the end."""

    def __init__(self, files: FileSystem, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._held = bytearray(_MAGIC)
        self._sums = Sums()

    def put(self, part: bytes | memoryview) -> None:
        self._held += len(part).to_bytes(_LENGTH_BYTES, "little")
        self._held += part
        if len(self._held) >= SUM_BYTES:
            self._flush()

    def end(self) -> None:
        self._flush()
        self._held += self._sums.digest
        self._flush()

    def _flush(self) -> None:
        data = bytes(self._held)
        self._held.clear()
        self._sums.add(data)
        write_all(self._files, self._descriptor, data)


def write_index(files: FileSystem, path: Path, head: IndexHead, index: SessionIndex[int]) -> bool:
    """Put an index beside the session file at ``path``, whole; False where that cannot be done, and none is there then,
    or the one that was. Nothing is synced: what a power loss leaves of it fails its checksum."""
    fresh = fresh_index_path(path)
    try:
        descriptor = files.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            try:
                writing = _Writing(files, descriptor)
                writing.put(_encode_head(head))
                put_index(index, writing)
                writing.end()
            finally:
                let_go(files, descriptor)
            files.rename(fresh, index_path(path))
        except BaseException:
            with suppress(OSError):
                files.unlink(fresh)
            raise
    except Exception as error:  # whatever it was, the session does not depend on it
        _log.debug("%s: its index was not written: %r", path, error)
        return False
    return True


# Reading.


class _Reading:
    """The parts of an open index file that lie between two of its bytes."""

    def __init__(self, files: FileSystem, descriptor: int, start: int, end: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._at = self._paused = start
        self._end = end

    async def get(self) -> bytes:
        if self._at - self._paused >= PARTS_PAUSE_BYTES:
            self._paused = self._at
            await asyncio.sleep(0)
        length = int.from_bytes(self._take(_LENGTH_BYTES), "little")
        return self._take(length)

    def _take(self, size: int) -> bytes:
        if size > self._end - self._at:
            raise ValueError("an index that ends too early")
        found = self._files.pread(self._descriptor, size, self._at) if size else b""
        if len(found) < size:
            raise ValueError("an index that was cut")
        self._at += size
        return found


async def read_index(file: JsonlFile, going: Callable[[], None]) -> Kept | None:
    """The index of the first part of a session file, if one is there that can be used, and is of what is there now.

    ``going`` raises when it is in vain. What cannot be read of the session file itself is ``OSError``.
    """
    try:
        descriptor = file.files.open(index_path(file.path), os.O_RDONLY)
    except OSError:
        return None
    try:
        head = await _read_head(file, descriptor)
        if head is None or not await _is_sound(file.files, descriptor):
            return None
        going()
        if _ending(file.files, file.descriptor, head.size) != head.ending:
            return None
        sums, lines = await _sum_up(file, head.size, going)
        if sums.size != head.size or sums.digest != head.digest:
            return None
        index = await _read_columns(file, descriptor)
        return None if index is None else Kept(head, index, sums, lines)
    finally:
        let_go(file.files, descriptor)


async def _read_head(file: JsonlFile, descriptor: int) -> IndexHead | None:
    """What the index says of itself, if it is one that this version reads, and may be of this file."""
    try:
        reading = _columns_of(file.files, descriptor)
        head = None if reading is None else _decode_head(await reading.get())
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    if head is None or (head.version, head.layout, head.vocabulary) != (VERSION, layout(), vocabulary()):
        return None
    return head if head.session_id == file.session_id and 0 < head.size <= file.size else None


def _columns_of(files: FileSystem, descriptor: int) -> _Reading | None:
    """The parts of an index file, its head the first of them."""
    size = files.status(descriptor).st_size
    if files.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
        return None
    return _Reading(files, descriptor, len(_MAGIC), size - _DIGEST_BYTES)


async def _is_sound(files: FileSystem, descriptor: int) -> bool:
    """Whether an index file is as it was written."""
    sums = Sums()
    try:
        end = files.status(descriptor).st_size - _DIGEST_BYTES
        while sums.size < end:
            data = files.pread(descriptor, min(SUM_BYTES, end - sums.size), sums.size)
            if not data:
                return False
            sums.add(data)
            if sums.size % PAUSE_BYTES == 0:
                await asyncio.sleep(0)
        return files.pread(descriptor, _DIGEST_BYTES, end) == sums.digest
    except OSError:
        return False


async def _read_columns(file: JsonlFile, descriptor: int) -> SessionIndex[int] | None:
    try:
        reading = _columns_of(file.files, descriptor)
        if reading is None:
            return None
        head = _decode_head(await reading.get())
        index = await get_index(reading)
    except Exception as error:  # its checksum is good, so nothing of this is expected; the file itself says it all
        _log.debug("%s: its index cannot be read: %r", file.path, error)
        return None
    index.last_seq = head.last_seq
    return index


async def _sum_up(file: JsonlFile, size: int, going: Callable[[], None]) -> tuple[Sums, int]:
    """The sums of the first bytes of a session file, and how many lines there are in them."""
    sums, lines, paused = Sums(), 0, 0
    while sums.size < size:
        data = file.files.pread(file.descriptor, min(SUM_BYTES, size - sums.size), sums.size)
        if not data:
            break
        sums.add(data)
        lines += data.count(b"\n")
        if sums.size - paused >= PAUSE_BYTES:
            paused = sums.size
            await asyncio.sleep(0)
            going()
    return sums, lines


def _ending(files: FileSystem, descriptor: int, size: int) -> bytes:
    start = max(0, size - _ENDING_BYTES)
    return files.pread(descriptor, size - start, start)
