"""Every real file call of the JSONL store, in one small object that tests replace to make calls fail or to count."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform == "darwin":
    import fcntl


class FileSystem:
    """The operating system's files. Each method is one call and raises ``OSError`` as that call does."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """A descriptor that no child inherits; a symbolic link at the end of the path is refused, and a pipe there is
        not waited for."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)

    def close(self, descriptor: int) -> None:
        """Give a descriptor up."""
        os.close(descriptor)

    def duplicate(self, descriptor: int) -> int:
        """One more descriptor of an open file."""
        return os.dup(descriptor)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Append bytes; how many were taken, which may be fewer than given."""
        return os.write(descriptor, data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer at the end of the file, or where the system gives no more now."""
        return os.pread(descriptor, size, offset)

    def sync(self, descriptor: int) -> None:
        """Make the data of a file durable, with as much of its description as is needed to read it."""
        if sys.platform == "darwin":  # there fsync leaves the data in the drive's own memory
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make the entries of a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file to ``size`` bytes."""
        os.ftruncate(descriptor, size)

    def status(self, descriptor: int) -> os.stat_result:
        """What an open file is."""
        return os.fstat(descriptor)

    def status_at(self, path: str | Path) -> os.stat_result:
        """What is at a path, links not followed."""
        return os.lstat(path)

    def rename(self, path: Path, to: Path) -> None:
        """Move a file within its folder."""
        os.rename(path, to)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def names(self, folder: Path) -> list[str]:
        """Names of what is in a folder."""
        return os.listdir(folder)


def let_go(files: FileSystem, descriptor: int) -> None:
    """Close a file of which nothing more is wanted: only read, synced already, or given up. The descriptor is gone also
    where the system says that closing failed, and nothing depends on it, so nobody is told."""
    with suppress(OSError):
        files.close(descriptor)


def write_all(files: FileSystem, descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, in as many calls as the system needs. ``OSError`` too where it takes none and says no
    reason."""
    taken = files.write(descriptor, data)
    while taken < len(data):
        more = files.write(descriptor, memoryview(data)[taken:])
        if more <= 0:
            raise OSError(errno.EIO, "the file takes no more bytes and says no reason")
        taken += more


def read_all(files: FileSystem, descriptor: int, size: int, offset: int) -> bytes:
    """``size`` bytes at ``offset``, in as many calls as the system needs; fewer only at the end of the file."""
    data = files.pread(descriptor, size, offset)
    while data and len(data) < size:
        more = files.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
