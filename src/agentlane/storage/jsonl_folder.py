"""The folder of a JSONL store: which session lies in which file there, and how such a file comes to be."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentlane.errors import CorruptSession, InvalidName, InvalidWrite, SessionOwned, UnknownSession
from agentlane.names import check_session_id
from agentlane.storage.contract import SessionInfo
from agentlane.storage.files import FileSystem, let_go, write_all
from agentlane.storage.framing import PLAIN_FORMAT, Header, header_line
from agentlane.storage.jsonl_base import fresh_path
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.lock import OwnerLock, is_held, make_private_folder
from agentlane.storage.paths import SUFFIX, exists, usable


class JsonlFolder:
    """The files of the sessions in ``place``: of all of them, or of the one that ``only`` names."""

    def __init__(self, files: FileSystem, place: Path, *, only: str | None, durable: bool) -> None:
        self.place = place
        self.only = only
        self._files = files
        self._durable = durable

    def check(self) -> None:
        """``InvalidName`` where no folder is, and none can be made."""
        with usable(self.place):
            try:
                if stat.S_ISDIR(self.place.stat().st_mode):
                    return
            except FileNotFoundError:
                return
            except NotADirectoryError:
                pass
        raise InvalidName(
            f"{self.place}: is a file or lies below one, and JSONL sessions live in a folder; name a folder, a file "
            f"of one session ({{session id}}{SUFFIX}), or a SQLite file (.db)",
            value=str(self.place),
        )

    def own(self, session_id: str) -> OwnerLock:
        """Become the owner of a session. ``SessionOwned``."""
        return OwnerLock.acquire(_lock_path(self.path(session_id)), error=SessionOwned, what=f"session {session_id!r}")

    def is_owned(self, session_id: str) -> bool:
        """Whether somebody, here or elsewhere, may be writing a session."""
        return is_held(_lock_path(self.path(session_id)))

    def disown(self, session_id: str, lock: OwnerLock) -> None:
        """No more; the lock file goes with the session's."""
        lock.release(unlink=not os.path.lexists(self.path(session_id)))

    @contextmanager
    def making(self, session_id: str) -> Iterator[None]:
        """Own a session that is to be made; its lock file goes again if it is not."""
        lock = self.own(session_id)
        try:
            self.check_fresh(session_id)  # others may have had the lock before
            yield
        finally:
            self.disown(session_id, lock)

    def sweep(self) -> None:
        """Remove what those left who died, or could not clear up, while they made or removed a session: nobody has the
        lock of it. What cannot be removed now is by a later sweep."""
        for session_id in self._left():
            try:
                lock = self.own(session_id)
            except (SessionOwned, InvalidName, OSError):
                continue
            try:
                with suppress(OSError):
                    self._files.unlink(fresh_path(self.path(session_id)))
            finally:
                self.disown(session_id, lock)

    def _left(self) -> Iterator[str]:
        """Ids of sessions that were on their way, and those of which there is a lock file alone."""
        names = set(self._files.names(self.place))
        for name in sorted(names):
            session_id = name.removeprefix(".").removesuffix(f"{SUFFIX}.new").removesuffix(f"{SUFFIX}.lock")
            if not _may_be_ours(session_id):
                continue
            path = self.path(session_id)
            alone = name == _lock_path(path).name and path.name not in names and self._was_locked(name)
            if alone or name == fresh_path(path).name:
                yield session_id

    def _was_locked(self, name: str) -> bool:
        """Whether a lock file says who had it; one that does not may be about to be locked by who makes a session."""
        try:
            return self._files.status_at(self.place / name).st_size > 0
        except OSError:
            return False

    def check_id(self, session_id: str) -> str:
        """The id of a session that may lie here. ``InvalidName``."""
        session_id = check_session_id(session_id)
        if self.only is not None and session_id != self.only:
            raise InvalidName(
                f"session id {session_id!r}: this store is the one file {self.path(self.only)}", value=session_id
            )
        return session_id

    def check_fresh(self, session_id: str) -> None:
        """``InvalidWrite`` if the session is there."""
        if exists(self.path(session_id)):
            raise InvalidWrite(f"session {session_id!r} exists already; open it, or take another id", id=session_id)

    def path(self, session_id: str) -> Path:
        """Where a session's file is."""
        return self.place / f"{session_id}{SUFFIX}"

    def known_path(self, session_id: str) -> Path:
        """Where the file of a session is that is there. ``UnknownSession``, ``InvalidName``."""
        check_session_id(session_id)
        path = self.path(session_id)
        if (self.only is not None and session_id != self.only) or not exists(path):
            raise UnknownSession(
                f"no session {session_id!r} is in {self.place}; `await store.create({session_id!r})` makes one",
                id=session_id,
            )
        return path

    def session_ids(self) -> Iterator[str]:
        """The sessions that are there, in order."""
        try:
            names = self._files.names(self.place)
        except FileNotFoundError:
            return
        for name in sorted(names):
            session_id = name.removesuffix(SUFFIX)
            if name != session_id and self.only in (None, session_id) and _may_be_ours(session_id):
                yield session_id

    @contextmanager
    def reading(self, session_id: str) -> Iterator[JsonlFile | None]:
        """A session's file for a look without opening the session; None if it was deleted meanwhile."""
        try:
            descriptor = self.open_file(session_id, os.O_RDONLY)
        except UnknownSession:
            yield None
            return
        try:
            yield JsonlFile(self._files, self.path(session_id), descriptor, session_id)
        finally:
            let_go(self._files, descriptor)

    def open_file(self, session_id: str, flags: int) -> int:
        """A descriptor of a session's file. ``UnknownSession``, ``CorruptSession`` for what is no plain file."""
        path = self.path(session_id)
        try:
            descriptor = self._files.open(path, flags)
        except FileNotFoundError:
            raise UnknownSession(f"no session {session_id!r} is in {self.place}", id=session_id) from None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise _no_file(path) from error
        try:
            if not stat.S_ISREG(self._files.status(descriptor).st_mode):
                raise _no_file(path)
        except BaseException:
            let_go(self._files, descriptor)
            raise
        return descriptor

    def make(self) -> None:
        """Make the folder if it is not there."""
        made = make_private_folder(self.place)
        if self._durable:
            for each in made:
                self._files.sync_folder(each.parent)

    def write_header(self, path: Path, info: SessionInfo) -> None:
        """Put a file with a header in place at once, so that nobody ever finds half of one."""
        line = header_line(Header(format=PLAIN_FORMAT, id=info.id, created_at=info.created_at, metadata=info.metadata))
        fresh = fresh_path(path)
        descriptor = self._files.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            try:
                write_all(self._files, descriptor, line)
                if self._durable:
                    self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.rename(fresh, path)
        except BaseException:
            with suppress(OSError):  # the next create writes over it
                self._files.unlink(fresh)
            raise


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _may_be_ours(session_id: str) -> bool:
    try:
        check_session_id(session_id)
    except InvalidName:
        return False
    return True


def _no_file(path: Path) -> CorruptSession:
    return CorruptSession(
        f"{path}: is a folder, a link, a pipe or a device, and a session is a plain file; name the file itself",
        path=str(path),
    )
