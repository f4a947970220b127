"""Writes a session file that begins with a base: all that a session held at one moment, in lines of their own (S27).

A base holds no superseded value. Its lines are numbered, and the last one says where the session stood; whoever writes
one syncs the file and only then gives it its name, so that nobody ever finds half of a base.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentlane.errors import PayloadTooLarge
from agentlane.storage import jsonl_formats
from agentlane.storage.contract import EntryRow, LedgerRow, Row, SessionInfo, ValueRow
from agentlane.storage.files import FileSystem, let_go
from agentlane.storage.framing import (
    TAIL_BYTES_MAX,
    Header,
    encode_text,
    entry_frame,
    header_line,
    operation_list,
    seal,
)
from agentlane.storage.index import OPERATIONS, encode_usage, operation_meta

LINE_BYTES = 1 << 18
LINE_FRAMES = 1024
"""How long a line of a base becomes before the next one is begun; a single payload may be longer."""

_encode = msgspec.json.Encoder().encode


class BaseLines(ABC):
    """The lines of a file that begins with a base, as they come; ``write`` takes them."""

    def __init__(self, info: SessionInfo) -> None:
        """Write the header."""
        self._session_id = encode_text(info.id)
        self._number = 0
        self._frames: list[tuple[Any, ...]] = []
        self._payloads: list[bytes] = []
        self._held = 0
        self._previous = ""
        self._seq = 0
        self._at: int | None = None
        self.operations: dict[str, tuple[str, int]] = {}
        """Open operations, as far as they are written."""
        self.size = 0
        newest = jsonl_formats.CHAIN.newest
        header = Header(format=newest, id=info.id, created_at=info.created_at, metadata=info.metadata, base=True)
        self.write(header_line(header))

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append bytes, and count them in ``size``."""

    def add(self, rows: Sequence[Row]) -> None:
        """Take in rows in the order of ``Snapshot.pages``. ``PayloadTooLarge``, ``OSError``."""
        for row in rows:
            if isinstance(row, EntryRow):
                self._move(row.seq, row.at)
                frame = entry_frame(row.id, row.parent_id, row.kind, len(row.payload), self._previous)
                self._previous = row.id
                self._take(frame, row.payload)
            elif isinstance(row, LedgerRow):
                self._move(row.seq, row.at)
                payload = encode_usage(row.row)
                self._take(("u", len(payload)), payload)
            elif isinstance(row, ValueRow):
                (namespace, key), payload = row
                if namespace == OPERATIONS:
                    meta = operation_meta(payload)
                    self.operations[key] = (meta.lane, meta.started_at)
                self._take(("s", namespace, key, len(payload)), payload)
            else:
                (namespace, key), seq, payload = row
                self._move(seq, None)
                self._take(("a", namespace, key, len(payload)), payload)

    def end(self, *, last_seq: int, epoch: int) -> int:
        """The base is whole; where its last line is."""
        self._flush(_encode((last_seq, epoch, operation_list(self.operations))))
        return self._last_line

    def _move(self, seq: int, at: int | None) -> None:
        if seq != self._seq or at != self._at:
            self._frames.append(("g", seq) if at is None else ("g", seq, at))
        self._seq, self._at = seq, at

    def _take(self, frame: tuple[Any, ...], payload: bytes) -> None:
        self._frames.append(frame)
        self._payloads.append(payload)
        self._held += len(payload)
        self._seq += 1
        if self._held >= LINE_BYTES or len(self._frames) >= LINE_FRAMES:
            self._flush(None)

    def _flush(self, end: bytes | None) -> None:
        """Write what is held as one line, ``end`` being what the last one says."""
        tail = b'"w":%b,"p":[%b]}' % (_encode(self._frames), b",".join(self._payloads))
        if len(tail) > TAIL_BYTES_MAX:
            raise PayloadTooLarge(
                f"a payload of {self._held} bytes, and a line of a session file may have {TAIL_BYTES_MAX}",
                size_bytes=self._held,
            )
        ended = b"" if end is None else b"," + end
        self._last_line = self.size
        self.write(seal(b'"b":[%d,%b%b],%b' % (self._number, self._session_id, ended, tail)))
        self._number += 1
        self._frames.clear()
        self._payloads.clear()
        self._held, self._previous, self._seq, self._at = 0, "", 0, None


class BaseFile(BaseLines):
    """A file on its way: ``path`` gets it with ``put``. Every call works on the disk, and none waits for another."""

    def __init__(self, files: FileSystem, path: Path, info: SessionInfo) -> None:
        """Begin the file beside ``path``, under a name that a next one replaces."""
        self._files = files
        self._path = path
        self._fresh = fresh_path(path)
        self.descriptor = files.open(self._fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
        try:
            super().__init__(info)
        except BaseException:
            self.give_up()
            raise

    def write(self, data: bytes) -> None:
        """Append bytes, in as many calls as the system needs."""
        left = memoryview(data)
        while left:
            taken = self._files.write(self.descriptor, left)
            if taken <= 0:
                raise OSError(errno.EIO, "the file takes no more bytes and says no reason", str(self._fresh))
            left = left[taken:]
        self.size += len(data)

    def put(self) -> None:
        """Sync the file and give it its name; the folder is for the caller to sync, and the descriptor to close."""
        self._files.sync(self.descriptor)
        self._files.rename(self._fresh, self._path)

    def give_up(self) -> None:
        """Close and remove what is not put in place. Never raises: what went wrong before is the one to tell, and what
        cannot be removed is replaced by the next file on its way to that place."""
        let_go(self._files, self.descriptor)
        with suppress(OSError):
            self._files.unlink(self._fresh)


def fresh_path(path: Path) -> Path:
    """Where a session file is written before it gets its name."""
    return path.with_name(f".{path.name}.new")


def is_torn_tail(path: Path, name: str) -> bool:
    """Whether a file of this name is a tail that was cut off a session file. What only begins so is another session's:
    ids have dots too."""
    return re.fullmatch(rf"{re.escape(path.name)}\.torn-[0-9]+", name) is not None
