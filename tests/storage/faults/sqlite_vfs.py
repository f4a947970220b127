"""SQLite's own file layer with faults: a VFS around the default one, whose reads, writes and syncs fail as planned.

The errors come from where a disk's would, so that SQLite itself makes of them what it makes of real ones: a failed
COMMIT, a full database, a lock that is held. Made with ctypes on the library that the ``sqlite3`` module uses.
"""

from __future__ import annotations

import ctypes
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any

from tests.storage.faults.planned import Faults, Kind

IOERR = sqlite3.SQLITE_IOERR


def _io(number: int) -> int:
    return IOERR | number << 8


EVERY_CALL = (
    *("db.open", "db.read", "db.write", "db.sync", "db.truncate", "db.size", "db.delete", "db.access"),
    *("db.shm_map", "db.shm_lock", "db.lock"),
)
SQLITE_KINDS = (
    Kind("SQLITE_FULL", ("db.write",), sqlite3.SQLITE_FULL),
    Kind("half a page, then SQLITE_FULL", ("db.write",), sqlite3.SQLITE_FULL, part=True),
    Kind("SQLITE_IOERR_WRITE", ("db.write",), _io(3)),
    Kind("SQLITE_IOERR_FSYNC", ("db.sync",), _io(4)),
    Kind("SQLITE_IOERR_TRUNCATE", ("db.truncate",), _io(6)),
    Kind("SQLITE_IOERR_READ", ("db.read",), _io(1)),
    Kind("SQLITE_IOERR_FSTAT", ("db.size", "db.access"), _io(7)),
    Kind("SQLITE_IOERR_DELETE", ("db.delete",), _io(10)),
    Kind("SQLITE_CANTOPEN", ("db.open",), sqlite3.SQLITE_CANTOPEN),
    Kind("SQLITE_IOERR_SHMMAP", ("db.shm_map",), _io(21)),
    Kind("SQLITE_BUSY", ("db.lock", "db.shm_lock"), sqlite3.SQLITE_BUSY, times_max=8),
    Kind("SQLITE_PROTOCOL", ("db.shm_lock",), sqlite3.SQLITE_PROTOCOL),
    Kind("SQLITE_IOERR_LOCK", ("db.lock", "db.shm_lock"), _io(15)),
    Kind("SQLite has no disk at all", EVERY_CALL, IOERR),
)


class _Methods(Structure):
    pass


class _File(Structure):
    _fields_ = (("methods", POINTER(_Methods)),)


class _Vfs(Structure):
    pass


_FILE = POINTER(_File)
_CLOSE = CFUNCTYPE(c_int, _FILE)
_READ = CFUNCTYPE(c_int, _FILE, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, _FILE, c_int64)
_NUMBER = CFUNCTYPE(c_int, _FILE, c_int)
_SIZE = CFUNCTYPE(c_int, _FILE, POINTER(c_int64))
_SHM_MAP = CFUNCTYPE(c_int, _FILE, c_int, c_int, c_int, POINTER(c_void_p))
_SHM_LOCK = CFUNCTYPE(c_int, _FILE, c_int, c_int, c_int)
_Methods._fields_ = (
    ("version", c_int),
    ("close", _CLOSE),
    ("read", _READ),
    ("write", _READ),
    ("truncate", _TRUNCATE),
    ("sync", _NUMBER),
    ("size", _SIZE),
    ("lock", _NUMBER),
    ("unlock", c_void_p),
    ("check_reserved_lock", c_void_p),
    ("file_control", c_void_p),
    ("sector_size", c_void_p),
    ("device_characteristics", c_void_p),
    ("shm_map", _SHM_MAP),
    ("shm_lock", _SHM_LOCK),
    ("shm_barrier", c_void_p),
    ("shm_unmap", c_void_p),
    ("fetch", c_void_p),
    ("unfetch", c_void_p),
)
# Names as the pointers that they are: SQLite keeps them, and finds more behind their ends.
_OPEN = CFUNCTYPE(c_int, POINTER(_Vfs), c_void_p, _FILE, c_int, POINTER(c_int))
_DELETE = CFUNCTYPE(c_int, POINTER(_Vfs), c_void_p, c_int)
_ACCESS = CFUNCTYPE(c_int, POINTER(_Vfs), c_void_p, c_int, POINTER(c_int))
_Vfs._fields_ = (
    ("version", c_int),
    ("file_bytes", c_int),
    ("path_bytes_max", c_int),
    ("next", c_void_p),
    ("name", c_char_p),
    ("data", c_void_p),
    ("open", c_void_p),
    ("delete", _DELETE),
    ("access", _ACCESS),
    ("full_pathname", c_void_p),
    ("dl_open", c_void_p),
    ("dl_error", c_void_p),
    ("dl_sym", c_void_p),
    ("dl_close", c_void_p),
    ("randomness", c_void_p),
    ("sleep", c_void_p),
    ("current_time", c_void_p),
    ("last_error", c_void_p),
    ("current_time_int64", c_void_p),
    ("set_system_call", c_void_p),
    ("get_system_call", c_void_p),
    ("next_system_call", c_void_p),
)

_UNLOCKING = 1  # a flag of shm_lock: giving a lock up is not failed


class FaultyVfs:
    """The VFS. One for the process, made when it is first wanted, and never freed: connections may still use it."""

    def __init__(self, library: Any) -> None:
        self.faults = Faults()
        self.faults.lift()
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        library.sqlite3_vfs_find.argtypes = (c_char_p,)
        library.sqlite3_vfs_register.argtypes = (POINTER(_Vfs), c_int)
        self._library = library
        self._real = library.sqlite3_vfs_find(None)
        self._methods: dict[int, _Methods] = {}
        self._kept: list[Any] = []
        real = self._real.contents
        self._open_real = ctypes.cast(real.open, _OPEN)
        self._vfs = _Vfs()
        ctypes.memmove(ctypes.byref(self._vfs), self._real, ctypes.sizeof(_Vfs))
        self._vfs.name = b"agentlane-faulty"
        self._vfs.next = None
        self._vfs.open = ctypes.cast(self._keep(_OPEN(self._open)), c_void_p)
        self._vfs.delete = self._keep(_DELETE(self._delete))
        self._vfs.access = self._keep(_ACCESS(self._access))

    @contextmanager
    def used_with(self, faults: Faults) -> Iterator[None]:
        """Connections that are made inside go through this, and their calls meet ``faults``."""
        before, self.faults = self.faults, faults
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_register(self._real, 1)
            self.faults = before

    def _keep(self, function: Any) -> Any:
        self._kept.append(function)
        return function

    def _code(self, call: str) -> int:
        kind = self.faults.meet(call)
        return 0 if kind is None else kind.code

    def _open(self, vfs: Any, name: int | None, file: Any, flags: int, flags_out: Any) -> int:
        code = self._code("db.open")
        if code:
            file.contents.methods = None
            return code
        done = self._open_real(self._real, name, file, flags, flags_out)
        if done == 0 and file.contents.methods:
            address = ctypes.addressof(file.contents.methods.contents)
            if address not in self._methods:
                self._methods[address] = self._wrapped(file.contents.methods.contents)
            file.contents.methods = ctypes.pointer(self._methods[address])
        return int(done)

    def _delete(self, vfs: Any, name: int, sync_folder: int) -> int:
        return self._code("db.delete") or int(self._real.contents.delete(self._real, name, sync_folder))

    def _access(self, vfs: Any, name: int, flags: int, found: Any) -> int:
        return self._code("db.access") or int(self._real.contents.access(self._real, name, flags, found))

    def _wrapped(self, real: _Methods) -> _Methods:
        """The methods of a kind of file, with faults."""
        wrapped = _Methods()
        ctypes.memmove(ctypes.byref(wrapped), ctypes.byref(real), ctypes.sizeof(_Methods))
        if real.version < 3:  # older tables end sooner: what lies behind them is not ours to copy
            wrapped.fetch = wrapped.unfetch = None

        def before(call: str, kind: Any, function: Callable[..., int]) -> Any:
            def faulty(*args: Any) -> int:
                return self._code(call) or int(function(*args))

            return self._keep(kind(faulty))

        def write(file: Any, data: Any, size: int, offset: int) -> int:
            kind = self.faults.meet("db.write")
            if kind is None:
                return int(real.write(file, data, size, offset))
            if kind.part:
                real.write(file, data, size // 2, offset)
            return kind.code

        def shm_lock(file: Any, offset: int, count: int, flags: int) -> int:
            code = 0 if flags & _UNLOCKING else self._code("db.shm_lock")
            return code or int(real.shm_lock(file, offset, count, flags))

        wrapped.read = before("db.read", _READ, real.read)
        wrapped.write = self._keep(_READ(write))
        wrapped.truncate = before("db.truncate", _TRUNCATE, real.truncate)
        wrapped.sync = self._keep(_NUMBER(lambda file, flags: self._code("db.sync")))
        wrapped.size = before("db.size", _SIZE, real.size)
        wrapped.lock = before("db.lock", _NUMBER, real.lock)
        wrapped.shm_map = before("db.shm_map", _SHM_MAP, real.shm_map)
        wrapped.shm_lock = self._keep(_SHM_LOCK(shm_lock))
        return wrapped


def _library() -> Any | None:
    """The SQLite library that the ``sqlite3`` module runs on; None where it is built in and cannot be reached."""
    if not sys.platform.startswith("linux"):
        return None
    sqlite3.connect(":memory:").close()
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split()[-1] for line in maps if "libsqlite3" in line}
    except OSError:
        return None
    if len(paths) != 1:
        return None
    library = ctypes.CDLL(paths.pop())
    library.sqlite3_libversion.restype = c_char_p
    return library if library.sqlite3_libversion().decode() == sqlite3.sqlite_version else None


_found: list[FaultyVfs] = []


def faulty_vfs() -> FaultyVfs | None:
    """The one VFS with faults, or None where SQLite's library cannot be reached."""
    if not _found:
        library = _library()
        if library is None:
            return None
        _found.append(FaultyVfs(library))
    return _found[0]
