"""The owner's lock: a file beside the data, locked for as long as its owner lives and not a moment longer.

The operating system's lock is the only fence: it ends with its process, so a killed owner is replaced at once and a
live one refuses a second at once, in the same process too. What the file holds is for the error message alone.

An owner that was forgotten, not closed, is no live one: its lock ends with its object, or where its event loop is
closed by now, when the next owner in this process wants it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakMethod, WeakSet, finalize

from agentlane.errors import (
    AgentLaneError,
    InvalidDefinition,
    InvalidName,
    OwnershipLost,
    SessionClosed,
    WrongProcess,
)

try:
    import fcntl
except ImportError:  # not POSIX: importing works, opening a disk store says so
    fcntl = None  # type: ignore[assignment]

ATTEMPTS_MAX = 16
"""How often a lock file that is replaced between opening and locking is tried again."""
OWNER_BYTES_MAX = 1024
"""How much of a lock file is read to say who the owner is."""
_LOCKS = "/proc/locks"


_log = logging.getLogger("agentlane")


class OwnerLock:
    """A held lock. Only ``acquire`` makes one; ``release`` ends it, as does the end of the process."""

    def __init__(self, path: Path, descriptor: int, inode: tuple[int, int], what: str) -> None:
        self.path = path
        self.owner_pid = os.getpid()
        self._descriptor = descriptor
        self._inode = inode
        self._place = str(path)  # looked at before each append
        self._what = what
        self._forked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._let_go: WeakMethod[Callable[[], None]] | None = None
        # Collected without release, it must not leave a descriptor behind that nobody closes in a forked child.
        self._forgotten = finalize(self, _unlock, descriptor)
        self._forgotten.atexit = False
        _held.add(self)

    @classmethod
    def acquire(cls, lock_path: Path, *, error: type[AgentLaneError], what: str) -> OwnerLock:
        """Lock ``lock_path``, making it (0600) and its folders (0700) where missing; never waits.

        ``error`` is raised, saying who owns ``what`` and since when, if another descriptor holds the lock, of this
        process or of another; not if it is of this process and its owner's event loop is closed: then that owner was
        forgotten, and lets go (see ``belongs_to``). ``InvalidName`` if something else than a file is where the lock
        file belongs. ``OwnershipLost`` if the file keeps being replaced. ``OSError`` if it cannot be opened.
        """
        if fcntl is None:
            raise InvalidDefinition(
                f"{what}: stores on disk need POSIX file locks, which this platform does not have; use MemoryStore"
            )
        make_private_folder(lock_path.parent)
        for _ in range(ATTEMPTS_MAX):
            descriptor, inode = _open(lock_path, what), (-1, -1)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise _no_lock_file(lock_path, what)
                inode = _inode(status)
                take_lock(descriptor, lock_path)
                if inode == _inode_at(lock_path):
                    _write_owner(descriptor)
                    return cls(lock_path, descriptor, inode, what)
            except BlockingIOError:
                if _forgotten_lets_go(inode, what):
                    _close(descriptor)
                    continue
                owner = _read_owner(descriptor)
                _close(descriptor)
                raise error(
                    f"{what} is open for writing {_describe(owner)} (lock file {lock_path}): "
                    "close it there, end that process, or open read-only",
                    path=str(lock_path),
                    owner=owner,
                ) from None
            except BaseException:
                _close(descriptor)
                raise
            # Removed or replaced between opening and locking: what we locked is not what others will find.
            _close(descriptor)
        raise OwnershipLost(
            f"{what}: the lock file {lock_path} was replaced {ATTEMPTS_MAX} times while it was being locked; "
            "find the program that removes it",
            path=str(lock_path),
        )

    def belongs_to(self, loop: asyncio.AbstractEventLoop, let_go: Callable[[], None]) -> None:
        """Have ``let_go``, a method, called by the next who wants this lock once ``loop`` is closed.

        It must release the lock, from whichever thread and loop it is called. Its object is not kept alive.
        """
        self._loop = loop
        self._let_go = WeakMethod(let_go)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock through this object."""
        return self._descriptor >= 0

    def check(self) -> None:
        """``OwnershipLost`` unless the path still names the locked file; ``WrongProcess``, ``SessionClosed``."""
        self.check_process()
        if self._descriptor < 0:
            raise SessionClosed(f"{self._what} is closed; open it again", path=str(self.path))
        if _inode_at(self._place) != self._inode:
            raise OwnershipLost(
                f"{self._what}: the lock file {self.path} was removed or replaced, so another owner may be writing; "
                "leave lock files alone, and open again",
                path=str(self.path),
            )

    def check_process(self) -> None:
        """``WrongProcess`` in a forked child of the owner."""
        if self._forked:
            raise WrongProcess(
                f"{self._what} was opened by process {self.owner_pid}, and this is a forked child of it; "
                "open it after forking, in the process that uses it",
                owner_pid=self.owner_pid,
            )

    def release(self, *, unlink: bool = False) -> None:
        """Give the lock up; a second call does nothing. ``unlink`` removes the file first, for ``delete`` alone.

        In a forked child nothing is unlocked or removed: the lock is the parent's. Never raises: a lock file that
        cannot be removed is in nobody's way.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        _held.discard(self)
        self._forgotten.detach()
        try:
            if unlink and _inode_at(self._place) == self._inode:
                os.unlink(self._place)
            else:
                # Whoever is refused while the next owner has not written its name yet must not read of this one.
                os.ftruncate(descriptor, 0)
        except OSError as error:
            _log.warning("%s: the lock file could not be removed or emptied: %s", self.path, error)
        finally:
            _unlock(descriptor)

    def _after_fork(self) -> None:
        # Closing leaves the lock to the parent; LOCK_UN here would release it there too.
        descriptor, self._descriptor = self._descriptor, -1
        self._forked = True
        self._forgotten.detach()
        if descriptor >= 0:
            os.close(descriptor)


def is_held(lock_path: Path) -> bool:
    """Whether somebody holds the lock at ``lock_path``, as far as can be known without taking it, even for a moment:
    this process, or, where the system lists its locks (Linux), another one."""
    inode = _inode_at(lock_path)
    if inode is None:
        return False
    if any(lock.held and lock._inode == inode for lock in list(_held)):
        return True
    try:
        with open(_LOCKS, encoding="ascii", errors="replace") as listed:
            return any("FLOCK" in line and line.split()[-3].endswith(f":{inode[1]}") for line in listed)
    except (OSError, IndexError):
        return False


def _open(lock_path: Path, what: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(lock_path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise
        raise _no_lock_file(lock_path, what) from error


def _no_lock_file(lock_path: Path, what: str) -> InvalidName:
    return InvalidName(
        f"{what}: its lock file belongs at {lock_path}, where a folder, a link, a pipe or a device is; remove that, or "
        "choose another place",
        value=str(lock_path),
    )


def make_private_folder(folder: Path) -> list[Path]:
    """Make ``folder`` and those above it where missing, each for the owner alone (0700); those that were made."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    made = []
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
            made.append(each)
        except FileExistsError:
            if not each.is_dir():
                raise
    return made


def hold_folder(folder: Path) -> int | None:
    """Lock a folder itself, which leaves no file there; None if somebody has it locked.

    For a moment only, without anything that waits in between: it says who may decide what the folder begins with.
    """
    return _lock_folder(folder, wait=False)


def leave_folder(descriptor: int) -> None:
    """Let go of a folder that ``hold_folder`` locked."""
    _unlock(descriptor)  # not left to close: a child that was forked meanwhile has the descriptor too


def wait_for_folder(folder: Path) -> None:
    """Wait, on a thread, until nobody has ``folder`` locked; somebody else may by the time it returns."""
    descriptor = _lock_folder(folder, wait=True)
    if descriptor is not None:
        leave_folder(descriptor)


def take_lock(descriptor: int, path: Path, *, wait: bool = False) -> None:
    """Lock a file or folder. ``BlockingIOError`` where another has the lock, ``OSError`` where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        why = f"{error.strerror}: the file system locks no files, so it cannot be made sure of that one process writes"
        raise OSError(error.errno, f"{why}; use a local disk", str(path)) from error


def _lock_folder(folder: Path, *, wait: bool) -> int | None:
    if fcntl is None:
        raise InvalidDefinition(f"{folder}: stores on disk need POSIX file locks; use MemoryStore")
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        take_lock(descriptor, folder, wait=wait)
    except BlockingIOError:
        _close(descriptor)
        return None
    except BaseException:
        _close(descriptor)
        raise
    return descriptor


_held: WeakSet[OwnerLock] = WeakSet()


def _forgotten_lets_go(inode: tuple[int, int], what: str) -> bool:
    """Have the owner in this process let go if its event loop is closed; whether it did."""
    for lock in list(_held):
        if lock._inode == inode and lock._loop is not None and lock._loop.is_closed():
            let_go = lock._let_go() if lock._let_go is not None else None
            if let_go is not None:
                let_go()
            if not lock.held:
                _log.warning("%s was not closed before its event loop was; it is taken from that owner", what)
                return True
    return False


def _unlock(descriptor: int) -> None:
    # Errors are nobody's: the lock ends with the descriptor, which is given up also where that says that it failed.
    with suppress(OSError):
        # Not left to close: a process that is just being started from here shares the descriptor until it execs.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _close(descriptor)


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def _close_in_child() -> None:
    for lock in list(_held):
        lock._after_fork()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _inode_at(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return _inode(status) if stat.S_ISREG(status.st_mode) else None


def _write_owner(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode() + b"\n", 0)
    except OSError:
        # A full disk must not keep an owner out: the lock is what counts, the text is a courtesy.
        pass


def _read_owner(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, OWNER_BYTES_MAX, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _describe(owner: dict[str, Any]) -> str:
    if not {"pid", "host", "since"} <= owner.keys():
        return "by another owner that left no name"
    if owner["pid"] == os.getpid() and owner["host"] == socket.gethostname():
        return f"in this same process since {owner['since']}"
    return f"by process {owner['pid']} on {owner['host']} since {owner['since']}"
