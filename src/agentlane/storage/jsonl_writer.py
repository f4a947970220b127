"""Appends lines to a session file: checks that it is still ours, cuts a torn tail off first, mends what it can.

Where it runs does not matter to it: inline for durability ``process``, on the store's thread for ``disk``.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from agentlane.errors import OwnershipLost, UnsupportedFormat
from agentlane.storage.files import FileSystem, write_all
from agentlane.storage.framing import Draft
from agentlane.storage.jsonl_reader import LoadedFile
from agentlane.storage.lock import OwnerLock
from agentlane.storage.places import FILE_BYTES_MAX
from agentlane.storage.sums import Sums

COPY_BYTES = 1 << 20
TORN_FILES_MAX = 10_000
"""How many torn tails are kept beside one file."""

_log = logging.getLogger("agentlane")


class Placed(NamedTuple):
    """Where a line went."""

    offset: int
    length: int


class Tail(NamedTuple):
    """What lies behind the last good line of a file, and why it is none."""

    offset: int
    reason: str


class NotSynced(Exception):
    """A file has another's place, and it is not known whether it keeps it when the power is lost; says why."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Replacement(Protocol):
    """A file that is to take the place of the one that is written."""

    loaded: LoadedFile

    @property
    def descriptor(self) -> int: ...

    @property
    def size(self) -> int: ...

    def catch_up(self, descriptor: int, size: int) -> None:
        """Take in what the old file got meanwhile."""

    def put(self) -> None:
        """Take the place."""


def check_links(path: Path, status: os.stat_result) -> None:
    """``UnsupportedFormat`` for a file with a second name: its lock is found by name, so it could have two owners."""
    if status.st_nlink > 1:
        raise UnsupportedFormat(
            f"{path} is a hard link: the file has {status.st_nlink} names, and its lock belongs to one name only; "
            "remove the others, or open it read-only",
            path=str(path),
            links=status.st_nlink,
        )


class JsonlWriter:
    """The one writer of a session file, used by one thread at a time."""

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        descriptor: int,
        lock: OwnerLock,
        *,
        size: int,
        tail: Tail | None,
        durable: bool,
        history: bool,
        operations_at: int,
        found: Callable[[str], None],
        sums: Sums | None = None,
    ) -> None:
        """``sums`` are those of what lies before a tail, and are kept up."""
        status = files.status(descriptor)
        self._files = files
        self._path = path
        self._place = str(path)
        self._descriptor = descriptor
        self._lock = lock
        self._inode = (status.st_dev, status.st_ino)
        self._size = size
        self._tail = tail
        self._durable = durable
        # What the owners before left is synced before it is built upon: only then may a line say that it is, and a bad
        # record among it is told from a torn tail.
        self._synced = None if history else 0
        self._folder_synced = False
        self._operations_at = operations_at
        self._found = found
        self.sums = sums
        """The checksum of all that was written before, where one is kept."""

    @property
    def descriptor(self) -> int:
        """The file that is written."""
        return self._descriptor

    @property
    def operations_at(self) -> int:
        """Where the operations were last written."""
        return self._operations_at

    def append(self, drafts: Sequence[Draft], half_written: Sequence[Callable[[], None]] = ()) -> list[Placed]:
        """Write the drafts' lines with one write, and with durability ``disk`` sync them; where each one went.

        With ``disk`` the history of other owners is synced before the first of them.
        ``half_written`` are called when half of the line with the same number is written; with them each line is
        written by itself, in two halves. ``OwnershipLost`` before anything is written if the file or its lock is not
        as it was left. ``OSError`` after an attempt to cut the file back to what it was.
        """
        self.check_owner()
        try:
            if self._tail is not None:
                self._cut(self._tail)
                self._tail = None
            if self._durable and self._synced is None:
                self._sync()
                self._synced = self._size
            offset = self._size
            operations_at = self._operations_at
            lines: list[bytes] = []
            placed: list[Placed] = []
            for draft in drafts:
                line = draft.line(operations_at=operations_at, synced=self._synced if self._durable else None)
                if draft.operations is not None:
                    operations_at = offset
                lines.append(line)
                placed.append(Placed(offset, len(line)))
                offset += len(line)
            if offset > FILE_BYTES_MAX:
                raise OSError(errno.EFBIG, f"a session file may have {FILE_BYTES_MAX} bytes", str(self._path))
            if half_written:
                for line, reached in zip(lines, half_written, strict=True):
                    write_all(self._files, self._descriptor, line[: len(line) // 2])
                    reached()
                    write_all(self._files, self._descriptor, line[len(line) // 2 :])
            else:
                write_all(self._files, self._descriptor, lines[0] if len(lines) == 1 else b"".join(lines))
            if self._durable:
                self._sync()
        except OSError:
            self._cut_back()
            raise
        self._operations_at = operations_at
        self._size = offset
        if self.sums is not None:
            self.sums.add_all(lines)
        if self._durable:
            self._synced = offset
        return placed

    def replace(self, new: Replacement) -> None:
        """Put a file with the same content in the place of this one, and write that from here on.

        ``OwnershipLost`` or ``OSError`` before it has taken the place: nothing has changed. ``NotSynced`` behind that.
        """
        self.check_owner()
        if self._tail is not None:
            self._cut(self._tail)
            self._tail = None
        new.catch_up(self._descriptor, self._size)
        status = self._files.status(new.descriptor)  # before it is put in place: behind that nothing may fail
        new.put()
        self._descriptor, self._size = new.descriptor, new.size
        self._inode = (status.st_dev, status.st_ino)
        self._operations_at = new.loaded.operations_at
        self._synced = new.size
        self.sums = None if new.loaded.sums is None else new.loaded.sums.copy()
        try:
            self._files.sync_folder(self._path.parent)
        except OSError as error:
            raise NotSynced(error) from error
        self._folder_synced = True

    def check_owner(self) -> None:
        """``OwnershipLost`` if the file or its lock is not as it was left; ``OSError``."""
        self._lock.check()
        try:
            status = self._files.status_at(self._place)
        except FileNotFoundError:
            raise self._lost("is gone") from None
        if (status.st_dev, status.st_ino) != self._inode:
            raise self._lost("is another file now")
        if status.st_nlink > 1:  # an owner by the other name has another lock, and would write beside us
            raise self._lost("was given a second name (a hard link), which must be removed")
        if status.st_size != self._size:
            raise self._lost(f"has {status.st_size} bytes, and this owner left {self._size}")

    def _lost(self, what: str) -> OwnershipLost:
        return OwnershipLost(
            f"{self._path} {what}: somebody else replaced or wrote it; nothing was written, open it again",
            path=str(self._path),
        )

    def _sync(self) -> None:
        self._files.sync(self._descriptor)
        if not self._folder_synced:
            # Whoever made the file may have done so without syncing: its entry must be there before this is reported.
            self._files.sync_folder(self._path.parent)
            self._folder_synced = True

    def _cut_back(self) -> None:
        """After a failed write: what it left must not be found by the next owner."""
        try:
            if self._tail is None and self._files.status(self._descriptor).st_size > self._size:
                self._files.truncate(self._descriptor, self._size)
        except OSError as error:
            # Then an incomplete line is a torn tail to the next owner, and a complete one a commit (S10).
            _log.warning("%s: a failed write could not be cut off again: %s", self._path, error)

    def _cut(self, tail: Tail) -> None:
        """Keep a torn tail aside, then cut it off, so that nothing is ever glued to it."""
        aside, copy = self._open_aside()
        try:
            self._copy(tail.offset, copy)
        except BaseException:
            with suppress(OSError):  # half a copy is of no use, and each attempt would leave one more
                self._files.unlink(aside)
            raise
        size = self._size - tail.offset
        try:
            self._files.truncate(self._descriptor, tail.offset)
        except BaseException:
            with suppress(OSError):  # nor is a copy of what is still there
                if self._files.status(self._descriptor).st_size == self._size:
                    self._files.unlink(aside)
            raise
        self._size = tail.offset
        text = f"{self._path}: {size} bytes behind byte {tail.offset} were cut off ({tail.reason}) and are in {aside}"
        self._found(text)
        _log.warning("%s", text)

    def _copy(self, start: int, copy: int) -> None:
        """Copy what lies behind ``start`` into the descriptor ``copy``, durably where that is asked, and close it."""
        try:
            at = start
            while at < self._size:
                piece = self._files.pread(self._descriptor, min(COPY_BYTES, self._size - at), at)
                if not piece:
                    break
                at += len(piece)
                write_all(self._files, copy, piece)
            if self._durable:
                self._files.sync(copy)
                self._files.sync_folder(self._path.parent)
                self._folder_synced = True
        finally:
            self._files.close(copy)

    def _open_aside(self) -> tuple[Path, int]:
        for number in range(1, TORN_FILES_MAX + 1):
            aside = self._path.with_name(f"{self._path.name}.torn-{number}")
            try:
                return aside, self._files.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
        raise OSError(errno.EEXIST, f"{TORN_FILES_MAX} torn tails lie beside it; move them away", str(self._path))
