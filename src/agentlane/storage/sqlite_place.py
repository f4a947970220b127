"""Whether a database, its lock and what SQLite keeps beside it are still what they were when they were opened.

SQLite goes on with a log that was removed from its folder: its commits are then in a file that has no name, which is
gone with the process. So the names are looked at before each COMMIT, and what such a log holds is saved.
"""

from __future__ import annotations

import logging
import os
import sqlite3

from agentlane.errors import OwnershipLost
from agentlane.storage.lock import OwnerLock

COPIES_MAX = 1_000
"""How many saved copies are kept beside one file."""

_log = logging.getLogger("agentlane")


class LogLost(Exception):
    """The log or its index was removed or replaced, while the database and its lock are as they were."""


class Place:
    """The names that an owner of one database relies on. Used on the writer's thread."""

    def __init__(self, path: str, inode: tuple[int, int], lock: OwnerLock, *, insist: bool) -> None:
        self._path = path
        self._inode = inode
        self._lock = lock
        self._insist = insist
        self._log_path, self._index_path = path + "-wal", path + "-shm"
        self._log: tuple[int, int] | None = None
        self._index: tuple[int, int] | None = None

    def opened(self, database: sqlite3.Connection) -> None:
        """Remember what a new connection has opened. ``OwnershipLost`` if it lacks a name already."""
        if database.execute("PRAGMA journal_mode").fetchall() != [("wal",)]:
            return
        database.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # not before it reads are both there
        self._log, self._index = _inode_at(self._log_path), _inode_at(self._index_path)
        if self._log is None or self._index is None:
            raise OwnershipLost(
                f"{self._path}: the log beside it was removed while it was being opened; open it again", path=self._path
            )

    def check(self) -> None:
        """``OwnershipLost`` unless the path names the file that was opened, by its only name, and the lock's path what
        is locked: by another name it has another lock and another log. ``LogLost``, of which no owner may go on."""
        self._lock.check()
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._inode:
            raise OwnershipLost(
                f"{self._path}: the database file was removed or replaced while it was open; put it back, with the "
                "-wal that was beside it, before it is opened again",
                path=self._path,
            )
        if status.st_nlink > 1 and not self._insist:
            raise OwnershipLost(
                f"{self._path}: the database file was given a second name (a hard link) while it was open, by which "
                "another owner may be writing; remove that name before it is opened again",
                path=self._path,
            )
        if self._log is not None and (
            _inode_at(self._log_path) != self._log or _inode_at(self._index_path) != self._index
        ):
            raise LogLost

    def save(self, database: sqlite3.Connection) -> OwnershipLost:
        """Bring what was committed to where the next owner finds it, outside of a transaction; the error that tells."""
        at_path = _inode_at(self._log_path)
        if at_path == self._log:  # only the index is not: the log has everything, and its next owner makes another
            return self._lost(
                "the -shm file beside it was removed or replaced while it was open, so that this owner and others who "
                "read it no longer know of each other. Nothing that was committed is lost; open it again"
            )
        what = "the -wal file beside it was removed or replaced while it was open, by which commits would be lost"
        if at_path is None or os.path.getsize(self._log_path) == 0:  # else somebody has written to another one
            try:
                busy, pages, copied = database.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            except sqlite3.Error as error:
                _log.warning("%s: a log that was removed could not be copied: %s", self._path, error)
            else:
                if not busy and pages == copied:
                    return self._lost(
                        f"{what}. All that was committed has been copied into the database; open it again"
                    )
        try:
            copy = self._copy(database)
        except (sqlite3.Error, OSError) as error:
            return self._lost(
                f"{what}. Those since it was last copied into the database are in no file any more ({error})"
            )
        return self._lost(
            f"{what}. It could not be copied into the database, which may lack the newest of them: a whole copy, as "
            f"this owner saw it, is {copy}",
            saved=copy,
        )

    def _copy(self, database: sqlite3.Connection) -> str:
        for number in range(1, COPIES_MAX + 1):
            copy = f"{self._path}.saved-{number}"
            try:
                os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                continue
            try:
                database.execute("VACUUM INTO ?", (copy,))
            except BaseException:
                os.unlink(copy)
                raise
            return copy
        raise FileExistsError(f"{COPIES_MAX} copies lie beside {self._path} already; move them away")

    def _lost(self, text: str, **details: object) -> OwnershipLost:
        return OwnershipLost(f"{self._path}: {text}", path=self._path, **details)


def _inode_at(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
