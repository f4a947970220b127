"""Sessions as files to be taken along: written from a snapshot, and read back into any store, with nothing lost.

The file is a JSONL session file that begins with a base, so that it can also be opened where it is.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from agentlane.errors import InvalidMessage, InvalidName, InvalidWrite, SessionOwned, UnknownSession
from agentlane.names import check_session_id
from agentlane.storage.contract import SessionInfo, Snapshot, Store
from agentlane.storage.files import FileSystem, let_go
from agentlane.storage.framing import decode_header, intact
from agentlane.storage.holding import Hold
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.storage.jsonl_base import BaseFile, BaseLines
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_payloads import FilePayloads
from agentlane.storage.jsonl_reader import LoadedFile
from agentlane.storage.lock import OwnerLock
from agentlane.storage.paths import exists, usable
from agentlane.storage.places import FILE_BYTES_MAX

ExchangeFile: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""A path, or a binary file object that is open for it."""

COPY_BYTES = 1 << 18
"""How much of a file object is read at once."""


class Exchange:
    """What makes a store of whole sessions able to write and read them as files: inherit it beside ``Store``."""

    async def export(self: Store, session_id: str, file: ExchangeFile) -> None:
        """Write all of a session to ``file``, operations that are open included, beside whoever writes the session.

        ``file`` is a path, at which nothing may be (whole and synced on return, else not there), or a binary file
        object, which is written on from where it stands, and is neither closed nor synced; written in part it is
        refused by ``import_session``. Page by page: memory is bounded. The death of the process may leave a part beside
        the path, ``.{name}.new``, and a lock file, ``{name}.lock``: the next export to that path removes both.

        ``UnknownSession``; ``InvalidWrite`` for a path at which there is something, ``InvalidName`` for one where
        nothing can be, ``SessionOwned`` while another export is written there; ``OSError`` of the file;
        ``InvalidMessage`` for what is neither a path nor a binary file.
        """
        storage = await self.open(session_id, read_only=True)
        async with Hold(storage, storage.close, storage.kill):
            snapshot = await storage.snapshot()
            try:
                await write_export(snapshot, file)
            finally:
                await snapshot.close()

    async def import_session(self: Store, file: ExchangeFile, *, session_id: str | None = None) -> SessionInfo:
        """Make a session of an exported one, or of any JSONL session file that nobody writes; durable on return.

        Everything is as it was: ids, numbers, times, metadata, the ledger, and open operations, which go on here as
        after the death of a process. Calls of the first session may have run since. ``session_id`` None: the id it had.
        Idempotency keys begin with that id, so a replay under another one has another key.

        Every checksum is looked at first, and nothing is made of a file that is damaged, cut short or no such file:
        ``CorruptSession`` with line and reason, ``UnsupportedFormat`` for a newer one. A file object is read to its
        end from where it stands, by way of a temporary file. Memory is bounded but for ids. ``InvalidWrite`` if the id
        is taken. Failed or cancelled it leaves no session (cancelled at the very end, a whole one).
        """
        if session_id is not None:
            session_id = check_session_id(session_id)
        with ExitStack() as open_files:
            path, descriptor = await _opened(file, open_files)
            snapshot = await _read(path, descriptor)
            info = snapshot.info
            return await self.load(
                snapshot.pages(),
                last_seq=snapshot.last_seq,
                session_id=info.id if session_id is None else session_id,
                metadata=info.metadata,
                created_at=info.created_at,
            )


async def write_export(snapshot: Snapshot, file: ExchangeFile) -> None:
    """Write all of a snapshot to ``file``: see ``Exchange.export``."""
    if isinstance(file, str | os.PathLike):
        await _write_at(snapshot, _path(file))
        return
    _check_binary(file, "write")
    await _fill(_StreamBase(snapshot.info, file), snapshot)


async def _write_at(snapshot: Snapshot, path: Path) -> None:
    with usable(path, make=True):
        lock = OwnerLock.acquire(path.with_name(f"{path.name}.lock"), error=SessionOwned, what=f"the file {path}")
    try:
        if exists(path):
            raise InvalidWrite(f"{path} is there already; export to another place", path=str(path))
        files = FileSystem()
        base = BaseFile(files, path, snapshot.info)
        try:
            await _fill(base, snapshot)
            base.put()
        except BaseException:
            base.give_up()
            raise
        let_go(files, base.descriptor)
        try:
            files.sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                files.unlink(path)
            raise
    finally:
        lock.release(unlink=True)


async def _fill(base: BaseLines, snapshot: Snapshot) -> None:
    async for page in snapshot.pages():
        base.add(page)
        await asyncio.sleep(0)
    base.end(last_seq=snapshot.last_seq, epoch=0)


class _StreamBase(BaseLines):
    """A base that goes to a file object."""

    def __init__(self, info: SessionInfo, file: IO[bytes]) -> None:
        self._file = file
        super().__init__(info)

    def write(self, data: bytes) -> None:
        """Hand ``data`` over, in as many calls as the file needs."""
        left = memoryview(data)
        while left:
            taken = self._file.write(left)
            if not taken:
                raise OSError(f"{self._file!r} takes no more bytes and says no reason")
            left = left[taken:]
        self.size += len(data)


async def _read(path: Path, descriptor: int) -> IndexSnapshot[int]:
    """What a file holds, every line of it looked at."""
    files = FileSystem()
    _, line = next(JsonlFile(files, path, descriptor, "").lines(), (0, None))
    session_id = ""
    if line is not None and intact(line):
        with suppress(msgspec.DecodeError):
            session_id = decode_header(line).id
    file = JsonlFile(files, path, descriptor, session_id)
    loaded = LoadedFile(file)
    await loaded.load()
    if loaded.good_end != file.size:
        number = sum(1 for _ in file.lines(0, loaded.good_end)) + 1
        raise file.corrupt(number, loaded.good_end, loaded.tail_reason or "what follows is no record")
    return IndexSnapshot(loaded.info, loaded.index, FilePayloads(files, path, descriptor))


async def _opened(file: ExchangeFile, open_files: ExitStack) -> tuple[Path, int]:
    """A descriptor that can be read anywhere, of the file or of a copy of it, and the name to tell people; what is
    opened for it is closed with ``open_files``."""
    if isinstance(file, str | os.PathLike):
        path = _path(file)
        descriptor = _open(path)
        open_files.callback(let_go, FileSystem(), descriptor)
        return path, descriptor
    _check_binary(file, "read")
    import tempfile  # and with it much else, for what is rarely done

    copy = open_files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is closed with the stack
    while copy.tell() <= FILE_BYTES_MAX and (data := file.read(COPY_BYTES)):
        copy.write(data)
        await asyncio.sleep(0)
    copy.flush()
    return Path(str(getattr(file, "name", "<a file object>"))), copy.fileno()


def _open(path: Path) -> int:
    files = FileSystem()
    with usable(path):
        try:
            descriptor = files.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise UnknownSession(f"{path}: there is no file to be imported", path=str(path)) from error
        try:
            if not stat.S_ISREG(files.status(descriptor).st_mode):
                raise InvalidName(f"{path}: is no plain file; name the file of a session", value=str(path))
        except BaseException:
            let_go(files, descriptor)
            raise
        return descriptor


def _check_binary(file: object, method: str) -> None:
    if isinstance(file, io.TextIOBase) or not callable(getattr(file, method, None)):
        raise InvalidMessage(f"file: a path, or a file object that can {method} bytes, is needed here, not {file!r}")


def _path(file: str | os.PathLike[str]) -> Path:
    """A path as it is behind all links; ``InvalidName`` for one that no file can have."""
    text: object = os.fspath(file)
    try:
        if isinstance(text, str) and text and b"\0" not in os.fsencode(text):
            return Path(os.path.realpath(text))
    except UnicodeEncodeError:
        pass
    raise InvalidName(f"file {text!r}: no file can have this name", value=repr(text))
