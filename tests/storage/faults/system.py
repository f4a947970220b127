"""Calls of the operating system that fail as planned: the JSONL store's files, and the ``os`` of a module."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentlane.storage.files import FileSystem
from tests.storage.faults.planned import Faults, Kind

EVERY_CALL = (
    *("open", "close", "write", "pread", "sync", "sync_folder", "truncate", "status", "rename", "unlink", "names"),
    *("lock", "mkdir"),
)
SYSTEM_KINDS = (
    Kind("no space for a write", ("write",), errno.ENOSPC),
    Kind("half a write, then no space", ("write",), errno.ENOSPC, part=True),
    Kind("EIO on write", ("write",), errno.EIO),
    Kind("EINTR on write", ("write",), errno.EINTR),
    Kind("EIO on sync", ("sync",), errno.EIO),
    Kind("EIO on the sync of a folder", ("sync_folder",), errno.EIO),
    Kind("EIO on read", ("pread",), errno.EIO),
    Kind("half a read", ("pread",), 0, part=True),
    Kind("no descriptors left", ("open",), errno.EMFILE),
    Kind("no space for a new file", ("open",), errno.ENOSPC),
    Kind("EIO on rename and unlink", ("rename", "unlink"), errno.EIO),
    Kind("EIO on truncate", ("truncate",), errno.EIO),
    Kind("EIO on stat", ("status", "names"), errno.EIO),
    Kind("EIO on close", ("close",), errno.EIO),
    Kind("no locks left", ("lock",), errno.ENOLCK),
    Kind("no disk at all", EVERY_CALL, errno.EIO),
)


class FaultyFiles(FileSystem):
    """The real files, without the wait for the disk; what ``faults`` says fails."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        fail(self._faults, "open")
        return super().open(path, flags, mode)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)  # as the system does: it is given up also when that says that it failed
        fail(self._faults, "close")

    def duplicate(self, descriptor: int) -> int:
        fail(self._faults, "open")
        return super().duplicate(descriptor)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        kind = self._faults.meet("write")
        if kind is not None:
            if kind.part and len(data) > 1:
                super().write(descriptor, memoryview(data)[: len(data) // 2])
            raise failure(self._faults, kind, "write")
        return super().write(descriptor, data)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        kind = self._faults.meet("pread")
        if kind is not None and not kind.part:
            raise failure(self._faults, kind, "pread")
        return super().pread(descriptor, size if kind is None else (size + 1) // 2, offset)

    def sync(self, descriptor: int) -> None:
        fail(self._faults, "sync")

    def sync_folder(self, path: Path) -> None:
        fail(self._faults, "sync_folder")

    def truncate(self, descriptor: int, size: int) -> None:
        fail(self._faults, "truncate")
        super().truncate(descriptor, size)

    def status(self, descriptor: int) -> os.stat_result:
        fail(self._faults, "status")
        return super().status(descriptor)

    def status_at(self, path: str | Path) -> os.stat_result:
        fail(self._faults, "status")
        return super().status_at(path)

    def rename(self, path: Path, to: Path) -> None:
        fail(self._faults, "rename")
        super().rename(path, to)

    def unlink(self, path: Path) -> None:
        fail(self._faults, "unlink")
        super().unlink(path)

    def names(self, folder: Path) -> list[str]:
        fail(self._faults, "names")
        return super().names(folder)


class FaultyModule:
    """Stands for ``os`` or ``fcntl`` in a module under test: the calls that are named meet ``faults`` first."""

    def __init__(self, module: ModuleType, faults: Faults, calls: dict[str, str]) -> None:
        self._module = module
        self._faults = faults
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        call = self._calls.get(name)
        if call is None:
            return found

        def faulty(*args: Any, **options: Any) -> Any:
            if name == "close":
                found(*args, **options)
                fail(self._faults, call)
                return None
            fail(self._faults, call)
            return found(*args, **options)

        return faulty


OS_CALLS = {
    "open": "open",
    "close": "close",
    "pread": "pread",
    "pwrite": "write",
    "ftruncate": "truncate",
    "fsync": "sync_folder",
    "fstat": "status",
    "lstat": "status",
    "stat": "status",
    "listdir": "names",
    "rename": "rename",
    "unlink": "unlink",
}


def fail(faults: Faults, call: str) -> None:
    """Raise if this call is one that fails."""
    kind = faults.meet(call)
    if kind is not None:
        raise failure(faults, kind, call)


def failure(faults: Faults, kind: Kind, call: str) -> OSError:
    """The error of a call that fails, remembered."""
    error = OSError(kind.code, os.strerror(kind.code))
    faults.raised.append(error)
    faults.raised_by.append(call)
    return error


Patch = Callable[[object, str, object], None]
"""What pytest's ``monkeypatch.setattr`` does."""


def patch_system(patch: Patch, modules: tuple[ModuleType, ...], faults: Faults) -> None:
    """Have the calls of ``modules`` to the operating system meet ``faults``."""
    for module in modules:
        for name, calls in (("os", OS_CALLS), ("fcntl", {"flock": "lock"})):
            if hasattr(module, name):
                real = getattr(module, name)
                real = real._module if isinstance(real, FaultyModule) else real
                patch(module, name, FaultyModule(real, faults, calls))


def patch_files(patch: Patch, modules: tuple[ModuleType, ...], faults: Faults) -> None:
    """Have the files that ``modules`` make for themselves meet ``faults``."""
    for module in modules:
        patch(module, "FileSystem", lambda: FaultyFiles(faults))
