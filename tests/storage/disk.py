"""A file system for tests of the JSONL store: counts calls, fails the ones it is told to, can hold a sync back."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from pathlib import Path

from agentlane.storage.files import FileSystem


class TestDisk(FileSystem):
    """The real disk, watched. ``fail[call]`` is a list of what its next calls do: None, or an errno to fail with."""

    __test__ = False

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes_written = 0
        self.bytes_read = 0
        self.fail: dict[str, list[int | None]] = {}
        self.write_at_most: list[int | None] = []
        """How many bytes the next writes take at most; None: all."""
        self.sync_gate: threading.Event | None = None
        """A sync waits for it, when it is there."""
        self.syncing = threading.Event()
        """Set when a sync has begun."""

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        planned = self.fail.get(name)
        if planned and (code := planned.pop(0)) is not None:
            raise OSError(code, os.strerror(code))

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._call("write")
        limit = self.write_at_most.pop(0) if self.write_at_most else None
        taken = super().write(descriptor, data if limit is None else memoryview(data)[:limit])
        self.bytes_written += taken
        return taken

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._call("pread")
        found = super().pread(descriptor, size, offset)
        self.bytes_read += len(found)
        return found

    def sync(self, descriptor: int) -> None:
        self.syncing.set()
        if self.sync_gate is not None:
            self.sync_gate.wait()
        self._call("sync")
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder")
        super().sync_folder(path)

    def truncate(self, descriptor: int, size: int) -> None:
        self._call("truncate")
        super().truncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # as the system does: it is given up also when that says that it failed
        self._call("close")

    def full_after(self, size: int) -> None:
        """The next write takes ``size`` bytes, and the one after finds the disk full."""
        self.write_at_most = [size]
        self.fail["write"] = [None, errno.ENOSPC]
