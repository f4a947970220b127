"""From a path to a connection: what kind of file it is, whether its place will do, and how connections are set up."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from agentlane.errors import CorruptSession, OwnershipLost, SessionClosed, StoreBusy, UnsupportedFormat
from agentlane.storage import schema, sqlite_migrate
from agentlane.storage.contract import Durability
from agentlane.storage.lock import make_private_folder, take_lock
from agentlane.storage.sqlite_errors import BUSY
from agentlane.storage.sqlite_log import LOG_PAGES_MAX

SQLITE_OLDEST = (3, 37, 0)  # the first with STRICT tables
LOG_BYTES_MAX = 4 << 20
"""What is left of the log file after it was copied into the database."""
STATEMENTS_MAX = 64
"""How many prepared statements a connection keeps: more than there are texts in the schema."""
SYNCHRONOUS = {"disk": "FULL", "process": "NORMAL"}

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_NO_DAMAGE = {
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}
_MOUNTS = "/proc/self/mountinfo"
_NETWORK_KINDS = {
    *("9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone"),
    *("fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb", "smb2", "smb3"),
    *("smbfs", "vboxsf", "virtiofs"),
}


def check_kind(path: str) -> None:
    """Raise what is wrong with the file at ``path`` as far as its first bytes tell; not a byte is changed.

    Opens and closes the file: never while this process has a connection to it, for that would drop SQLite's locks.
    ``OSError`` if it cannot be read.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise UnsupportedFormat(f"{path} is a folder, not a SQLite file; name a file in it", path=path)
    if not stat.S_ISREG(status.st_mode):
        raise UnsupportedFormat(f"{path} is not a regular file, so it cannot be a SQLite file", path=path)
    with open(path, "rb", buffering=0) as file:
        header = file.read(_HEADER_BYTES)
    if not header:
        raise CorruptSession(
            f"{path} is empty: no sessions were ever in it, or it was cut; remove it or restore it", path=path
        )
    if not header.startswith(_MAGIC):
        raise UnsupportedFormat(f"{path} is not a SQLite file: it begins with {header[:16]!r}", path=path)
    if len(header) < _HEADER_BYTES:
        raise CorruptSession(f"{path} was cut after {len(header)} bytes, within its header; restore it", path=path)
    check_format(path, int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"))


def check_format(path: str, application_id: int, version: int) -> None:
    """``UnsupportedFormat`` unless these marks of the file are ones that this version knows."""
    if application_id != schema.APPLICATION_ID:
        raise UnsupportedFormat(
            f"{path} is a SQLite file of another application (application_id {application_id:#x}); choose another path",
            path=path,
        )
    chain = sqlite_migrate.CHAIN
    if version > chain.newest:
        raise UnsupportedFormat(
            f"{path} has format {version}; this version of agentlane knows up to {chain.newest}: update it",
            path=path,
            format=version,
        )
    if version < chain.oldest:
        raise CorruptSession(f"{path} has format {version}, which there never was", path=path)


def check_place(path: str) -> None:
    """``UnsupportedFormat`` if the folder of ``path`` is on a network mount, where SQLite's log is not safe."""
    if sqlite3.sqlite_version_info < SQLITE_OLDEST:
        raise UnsupportedFormat(
            f"SQLite {sqlite3.sqlite_version} is too old: {'.'.join(map(str, SQLITE_OLDEST))} or newer is needed"
        )
    kind = mount_kind(os.path.dirname(path))
    if kind in _NETWORK_KINDS:
        raise UnsupportedFormat(
            f"{path} is on a network mount ({kind}), where a SQLite log can lose commits; use a local disk, a "
            "JSONL store, or insist=True if only this machine ever uses it",
            path=path,
            mount=kind,
        )


def check_links(path: str, status: os.stat_result) -> None:
    """``UnsupportedFormat`` for a file that has a second name: its lock and its log are found by name, so each name
    would have an owner and a log of its own, and one would take the other's commits."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise UnsupportedFormat(
            f"{path} is a hard link: the file has {status.st_nlink} names, and its lock and its log belong to one name "
            "only; remove the others (a symbolic link will do), or insist=True if nothing ever opens it by them",
            path=path,
            links=status.st_nlink,
        )


def mount_kind(folder: str, mounts: str = _MOUNTS) -> str | None:
    """The type of the file system that ``folder`` is on; None where that is not known."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                if left.split(" ", 3)[2] == wanted:
                    return right.split(" ", 1)[0]
    except (OSError, IndexError):
        pass
    return None


def make_database(path: str, *, durability: Durability, insist: bool) -> None:
    """Make an empty database at ``path`` (0600, folders 0700), or leave what another made there meanwhile.

    It is built under another name and then renamed: a file at ``path`` is whole, and has one name, from its first
    moment. One at a time makes files in a folder, so that what is found of others is what a killed one left behind.
    """
    folder = os.path.dirname(path)
    new_folders = [folder]
    while not os.path.exists(new_folders[-1]):
        new_folders.append(os.path.dirname(new_folders[-1]))
    make_private_folder(Path(folder))
    with _alone_in(folder):
        _remove_leftovers(path)
        if not os.path.lexists(path):
            _make_database(path, durability=durability, insist=insist)
        if durability == "disk":
            for each in new_folders:
                _sync_folder(each)


def _make_database(path: str, *, durability: Durability, insist: bool) -> None:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.new")
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with translated(path):
            _fill_database(temporary, path, durability=durability, insist=insist)
        if not os.path.lexists(path):
            os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):  # what went wrong is what is told; the next one clears up
            _remove_leftovers(path)
        raise
    _remove_leftovers(path)


def _fill_database(temporary: str, path: str, *, durability: Durability, insist: bool) -> None:
    database = sqlite3.connect(temporary, isolation_level=None)
    try:
        database.execute(f"PRAGMA synchronous = {'FULL' if durability == 'disk' else 'OFF'}")
        database.execute(f"PRAGMA page_size = {schema.PAGE_BYTES}")
        database.execute("BEGIN IMMEDIATE")
        for statement in schema.CREATE:
            database.execute(statement)
        database.execute("COMMIT")
        _use_log(database, path, insist=insist)
    finally:
        database.close()


def leftovers(path: str) -> list[str]:
    """Names of what making the file left behind, files of SQLite's included; or of what somebody makes it with now."""
    folder, name = os.path.split(path)
    leftover = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.new(-journal|-wal|-shm)?")
    return sorted(each for each in os.listdir(folder) if leftover.fullmatch(each))


def _remove_leftovers(path: str) -> None:
    for each in leftovers(path):
        os.unlink(os.path.join(os.path.dirname(path), each))


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Wait until nobody else makes a file in ``folder``; the hold ends with the process, however that ends."""
    import fcntl  # not where there is no POSIX, where SqliteStore refuses and this module must still import

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        take_lock(descriptor, Path(folder), wait=True)
        try:
            yield
        finally:
            with suppress(OSError):  # the lock goes with the descriptor
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        with suppress(OSError):  # it is gone also where closing it is said to have failed
            os.close(descriptor)


def connect_writer(
    path: str,
    inode: tuple[int, int],
    *,
    durability: Durability,
    busy_timeout_ms: int,
    insist: bool,
    found: Callable[[str], None],
) -> sqlite3.Connection:
    """The connection that writes; on the thread that will use it. Writes nothing to the database but what brings one of
    an older format to this version's; ``found`` is told of that.

    The last connection that can write copies a log that it finds into the file when it is closed. So one that cannot
    looks first: a file that is refused is left as it was (S24). After a journal that only a writer can roll back there
    is nothing to look at before.
    """
    if not os.path.lexists(path + "-journal"):
        _connect_reader(path, inode, "mode=ro", busy_timeout_ms).close()
    database = sqlite3.connect(
        uri_of(path, "mode=rw"),
        uri=True,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,
        cached_statements=STATEMENTS_MAX,
    )
    try:
        with translated(path):
            _check_opened(database, path, inode)
            _use_log(database, path, insist=insist)
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}").fetchall()
            database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}").fetchall()
            database.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            sqlite_migrate.migrate(database, path, found)
    except BaseException:
        database.close()
        raise
    return database


def connect_reader(path: str, inode: tuple[int, int], *, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection that only reads; on the thread that will use it."""
    try:
        return _connect_reader(path, inode, "mode=ro", busy_timeout_ms)
    except OSError as error:
        # In a folder that cannot be written SQLite cannot make its index of the log; without a log it needs none.
        unwritable = not os.access(os.path.dirname(path), os.W_OK)
        if isinstance(error.__cause__, sqlite3.OperationalError) and unwritable and not has_log(path):
            return _connect_reader(path, inode, "mode=ro&immutable=1", busy_timeout_ms)
        raise


class translated:
    """Turns SQLite's errors about a file into ours; for opening and reading, never for commits."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UnicodeDecodeError):  # raised for damaged text, that of the schema included
            raise CorruptSession(f"{self._path}: the file holds bytes that are no text: {error}") from error
        if not isinstance(error, sqlite3.Error):
            return
        path, code = self._path, getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in BUSY:
            raise StoreBusy(
                f"{path}: another program has locked the database for too long; try again when it is done", path=path
            ) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise SessionClosed(f"{path} was closed while it was read", path=path) from error
        if code in _NO_DAMAGE:
            raise OSError(_NO_DAMAGE[code], f"SQLite: {error}", path) from error
        raise CorruptSession(f"{path}: SQLite cannot read the file: {error}", path=path) from error


def _connect_reader(path: str, inode: tuple[int, int], mode: str, busy_timeout_ms: int) -> sqlite3.Connection:
    with translated(path):
        database = sqlite3.connect(
            uri_of(path, mode),
            uri=True,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            cached_statements=STATEMENTS_MAX,
        )
    try:
        with translated(path):
            _check_opened(database, path, inode)
    except BaseException:
        database.close()
        raise
    return database


def _check_opened(database: sqlite3.Connection, path: str, inode: tuple[int, int]) -> None:
    application_id = database.execute("PRAGMA application_id").fetchall()[0][0]
    check_format(path, application_id, database.execute("PRAGMA user_version").fetchall()[0][0])
    database.execute(schema.SELECT_SESSIONS).fetchmany(0)
    status = os.stat(path)
    if (status.st_dev, status.st_ino) != inode:
        raise OwnershipLost(f"{path}: the file was replaced while it was being opened; open it again", path=path)


def _use_log(database: sqlite3.Connection, path: str, *, insist: bool) -> None:
    mode = database.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
    if mode != "wal" and not insist:
        raise UnsupportedFormat(
            f"{path}: the file system cannot hold SQLite's write-ahead log (it answers {mode!r}); use a local disk, a "
            "JSONL store, or insist=True to go on with slower commits that readers and writers wait for",
            path=path,
            mode=mode,
        )


def has_log(path: str) -> bool:
    """Whether there is something in the log of the file at ``path``. ``OSError`` where that cannot be known: without
    its log a file is an older one."""
    try:
        return os.stat(path + "-wal").st_size > 0
    except FileNotFoundError:
        return False


def uri_of(path: str, mode: str) -> str:
    """A path with options, as SQLite takes it."""
    return f"file:{quote(path)}?{mode}"


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):
            os.close(descriptor)
