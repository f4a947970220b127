"""The JSONL store: a folder with one file a session, ``{session_id}.jsonl``, and its owner's lock beside it.

``durability="disk"`` syncs each commit before it is reported, ``"process"`` writes it: what is reported survives power
loss, or the death of the process. Opening writes nothing; files are for their owner alone (0600, new folders 0700).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentlane.clock import Clock, SystemClock
from agentlane.data.border import clean_object
from agentlane.data.search import SearchHit, checked_search
from agentlane.errors import CorruptSession, InvalidDefinition, InvalidName, InvalidWrite, SessionClosed
from agentlane.ids import IdSource, Uuid7Source
from agentlane.names import check_session_id
from agentlane.storage.contract import (
    Capabilities,
    Durability,
    OpenOperation,
    Probe,
    Row,
    SessionInfo,
    SessionStorage,
    check_durability,
)
from agentlane.storage.exchange import Exchange
from agentlane.storage.files import FileSystem, let_go
from agentlane.storage.forks import Forking
from agentlane.storage.hop import on_new_thread
from agentlane.storage.intake import Intake
from agentlane.storage.jsonl_base import BaseFile, fresh_path, is_torn_tail
from agentlane.storage.jsonl_cleanup import MIN_BYTES, SHARE, Policy
from agentlane.storage.jsonl_file import JsonlFile, info_of, read_header
from agentlane.storage.jsonl_folder import JsonlFolder
from agentlane.storage.jsonl_formats import due
from agentlane.storage.jsonl_index import MIN_BYTES as INDEX_MIN_BYTES
from agentlane.storage.jsonl_index import read_index, remove_index
from agentlane.storage.jsonl_migrate import migrate
from agentlane.storage.jsonl_reader import LoadedFile, read_open_operations
from agentlane.storage.jsonl_session import JsonlSession
from agentlane.storage.jsonl_thread import SyncThread
from agentlane.storage.jsonl_writer import check_links
from agentlane.storage.lock import hold_folder, leave_folder, wait_for_folder
from agentlane.storage.paths import SUFFIX, exists, usable
from agentlane.storage.repairing import Repairing
from agentlane.storage.salvage import Findings, NothingSalvaged, Salvage
from agentlane.storage.salvage_jsonl import salvage_file
from agentlane.storage.searching import search_store
from agentlane.storage.verifying import refusal


class JsonlStore(Exchange, Forking, Repairing):
    """Sessions in files of one folder, which is made with the first session."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "disk",
        clock: Clock | None = None,
        ids: IdSource | None = None,
        files: FileSystem | None = None,
        compact_share: float | None = SHARE,
        compact_min_bytes: int = MIN_BYTES,
        index_min_bytes: int | None = INDEX_MIN_BYTES,
    ) -> None:
        """Name the folder; nothing is read or written yet. ``files`` is for tests.

        A session's file is cleaned up beside its work once it has ``compact_min_bytes`` and ``compact_share`` of it
        (0 to 1; None: never by itself) holds state that was superseded. Beside one of at least ``index_min_bytes`` its
        owner keeps an index, with which it opens sooner (None: never, and none is read).

        ``InvalidDefinition`` for another durability than the two, a share outside of 0 to 1, a size below 0.
        """
        self._durable = check_durability(durability) == "disk"
        if compact_share is not None and not 0 <= compact_share <= 1:
            raise InvalidDefinition(f"compact_share={compact_share!r}: a share from 0 to 1, or None, is needed here")
        if compact_min_bytes < 0:
            raise InvalidDefinition(f"compact_min_bytes={compact_min_bytes!r}: a number of bytes is needed here")
        if index_min_bytes is not None and index_min_bytes < 0:
            raise InvalidDefinition(f"index_min_bytes={index_min_bytes!r}: a number of bytes, or None, is needed here")
        self._cleanup = Policy(compact_share, compact_min_bytes)
        self._index_min_bytes = index_min_bytes
        self._clock = clock or SystemClock()
        self._ids = ids or Uuid7Source(self._clock)
        self._files = files or FileSystem()
        place = Path(os.path.realpath(folder))
        self._folder = JsonlFolder(self._files, place, only=None, durable=self._durable)
        self._thread = SyncThread(f"agentlane-sync-{place.name}")
        self._opened: set[JsonlSession] = set()
        self._closed = False

    @classmethod
    def for_file(
        cls,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "disk",
        clock: Clock | None = None,
        ids: IdSource | None = None,
        files: FileSystem | None = None,
    ) -> JsonlStore:
        """The one session in ``path``, its id the file's name without ``.jsonl``; other files beside it are not seen.

        ``InvalidName`` if the name does not end so, or is no session id without it.
        """
        resolved = Path(os.path.realpath(path))
        if resolved.suffix != SUFFIX:
            raise InvalidName(
                f"{resolved}: the file of one session is named {{session id}}{SUFFIX}, in small letters",
                value=str(path),
            )
        store = cls(resolved.parent, durability=durability, clock=clock, ids=ids, files=files)
        store._folder.only = check_session_id(resolved.stem)
        return store

    def whole_folder(self) -> JsonlStore:
        """This store, or for one of a single file a store of all the files in its folder, with the same options."""
        if self._folder.only is None:
            return self
        durability: Durability = "disk" if self._durable else "process"
        return JsonlStore(
            self._folder.place, durability=durability, clock=self._clock, ids=self._ids, files=self._files
        )

    @property
    def capabilities(self) -> Capabilities:
        """Persistent, and owned across processes."""
        return Capabilities(persistent=True, cross_process=True)

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """Make an empty session; a crash leaves it there whole or not at all.

        ``InvalidWrite`` if the id exists, ``InvalidName`` if it may not be one, ``InvalidMessage`` for metadata that is
        not a JSON object.
        """
        self._check_usable()
        clean = clean_object({} if metadata is None else metadata, "metadata")
        if session_id is None:
            session_id = self._folder.only or self._ids.new()
        return self._create(self._folder.check_id(session_id), clean)

    async def create_first(self, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """As ``create``, but only where no session is: else ``InvalidWrite``, whoever made it and however late.

        Waits for others, of this process or another, that make the first session there; cancelled meanwhile, it has
        made none.
        """
        self._check_usable()
        clean = clean_object({} if metadata is None else metadata, "metadata")
        session_id = self._folder.only or self._ids.new()
        with usable(self._folder.place, make=True):
            self._folder.make()
        while (turn := hold_folder(self._folder.place)) is None:
            await on_new_thread(lambda: wait_for_folder(self._folder.place))
            self._check_usable()
        try:
            for found in self._folder.session_ids():
                raise InvalidWrite(f"{self._folder.place} holds session {found!r} already; open it", id=found)
            return self._create(session_id, clean)
        finally:
            leave_folder(turn)

    def _create(self, session_id: str, clean: dict[str, Any]) -> SessionInfo:
        path = self._folder.path(session_id)
        self._folder.check_fresh(session_id)
        with usable(path, make=True):
            return self._create_at(path, session_id, clean)

    def _create_at(self, path: Path, session_id: str, clean: dict[str, Any]) -> SessionInfo:
        self._folder.make()
        info = SessionInfo(id=session_id, created_at=self._clock.now_ms(), metadata=clean)
        with self._folder.making(session_id):
            self._folder.write_header(path, info)
            if self._durable:
                self._files.sync_folder(self._folder.place)
        return info

    async def load(
        self,
        pages: AsyncIterable[Sequence[Row]],
        *,
        last_seq: int,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: int | None = None,
    ) -> SessionInfo:
        """Make a session of rows (S27): its file is written beside its place, synced, and then put there.

        Errors as ``create``, ``InvalidWrite`` for rows that do not fit, ``PayloadTooLarge``; ``SessionOwned`` while
        another one makes that session.
        """
        self._check_usable()
        clean = clean_object({} if metadata is None else metadata, "metadata")
        session_id = self._folder.check_id((self._folder.only or self._ids.new()) if session_id is None else session_id)
        path = self._folder.path(session_id)
        self._folder.check_fresh(session_id)
        with usable(path, make=True):
            self._folder.make()
        self._folder.sweep()
        created_at = self._clock.now_ms() if created_at is None else created_at
        info = SessionInfo(id=session_id, created_at=created_at, metadata=clean)
        intake = Intake(last_seq)
        with self._folder.making(session_id):
            base = BaseFile(self._files, path, info)
            try:
                async for page in pages:
                    for row in page:
                        intake.check(row)
                    base.add(page)
                base.end(last_seq=last_seq, epoch=0)
                self._check_usable()
                base.put()
            except BaseException:
                base.give_up()
                raise
            let_go(self._files, base.descriptor)
            try:
                self._files.sync_folder(self._folder.place)
            except BaseException:
                with suppress(OSError):
                    self._files.unlink(path)
                raise
        return info

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        """Open a session; for writing, a file of an older format is brought to this version's first.

        ``UnknownSession``; ``SessionOwned`` if it is open for writing already, here or elsewhere; ``CorruptSession`` or
        ``UnsupportedFormat`` with the place, the file untouched; the latter also for writing a file that has a second
        name (a hard link).

        A session that is opened read-only is seen as it is now; what its owner writes later is not.
        """
        self._check_usable()
        path = self._folder.known_path(session_id)
        lock = None
        if not read_only:
            lock = self._folder.own(session_id)
        try:
            descriptor = self._folder.open_file(session_id, os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND)
            try:
                if lock is not None:
                    check_links(path, self._files.status(descriptor))
                loaded = await self._load(JsonlFile(self._files, path, descriptor, session_id), lock is not None)
                self._check_usable()
                told: builtins.list[str] = []
                if lock is not None and due(loaded.format):
                    loaded = await migrate(
                        loaded, lock, durable=self._durable, going=self._check_usable, found=told.append
                    )
                    descriptor = loaded.file.descriptor
                session = JsonlSession(
                    loaded,
                    clock=self._clock,
                    lock=lock,
                    thread=self._thread if self._durable and not read_only else None,
                    probe=probe,
                    forget=self._opened.discard,
                    cleanup=self._cleanup,
                    index_min_bytes=self._index_min_bytes,
                )
            except BaseException:
                let_go(self._files, descriptor)
                raise
        except BaseException:
            if lock is not None:
                self._folder.disown(session_id, lock)
            raise
        self._opened.add(session)
        for text in told:
            session.finding(text)
        return session

    async def _load(self, file: JsonlFile, writing: bool) -> LoadedFile:
        """What a file holds, with its index where it has one, else of every line."""
        loaded = LoadedFile(file, sums=writing and self._index_min_bytes is not None)
        if self._index_min_bytes is not None and file.size >= self._index_min_bytes:
            kept = await read_index(file, self._check_usable)
            if kept is not None:
                loaded.begin_with(kept)
        await loaded.load()
        return loaded

    async def salvage(self, session_id: str) -> Salvage:
        """What can be read of a session's file and what is wrong with it; see ``Verifying.salvage``."""
        self._check_usable()
        path = self._folder.known_path(session_id)
        try:
            descriptor = self._folder.open_file(session_id, os.O_RDONLY)
        except CorruptSession as error:
            findings = Findings()
            findings.add(refusal(path.name, error))
            return NothingSalvaged(session_id, findings)
        return await salvage_file(
            self._files, path, descriptor, session_id, owned=lambda: self._folder.is_owned(session_id)
        )

    async def list(self) -> builtins.list[SessionInfo]:
        """All sessions, oldest first. ``CorruptSession``, ``UnsupportedFormat`` for a file whose header is not read."""
        self._check_usable()
        found = []
        for session_id in self._folder.session_ids():
            with self._folder.reading(session_id) as file:
                if file is not None:
                    found.append(info_of(read_header(file)[0]))
        return sorted(found, key=lambda each: (each.created_at, each.id))

    async def delete(self, session_id: str) -> None:
        """Remove a session's file, its index and the torn tails kept beside it; its lock file goes last."""
        self._check_usable()
        path = self._folder.known_path(session_id)
        lock = self._folder.own(session_id)
        try:
            for name in self._files.names(self._folder.place):
                if name == fresh_path(path).name or is_torn_tail(path, name):
                    self._files.unlink(self._folder.place / name)
            remove_index(self._files, path)
            if exists(path):
                self._files.unlink(path)
            if self._durable:
                self._files.sync_folder(self._folder.place)
        finally:
            self._folder.disown(session_id, lock)

    async def open_operations(self) -> builtins.list[OpenOperation]:
        """Operations that are not settled, oldest first, read from the end of each file."""
        self._check_usable()
        found = []
        for session_id in self._folder.session_ids():
            with self._folder.reading(session_id) as file:
                if file is not None:
                    found += [OpenOperation(session_id, *each) for each in read_open_operations(file)]
        return sorted(found, key=lambda each: (each.started_at, each.session_id, each.operation_id))

    async def search(
        self,
        text: str,
        *,
        session_id: str | None = None,
        branch: str | None = None,
        types: Iterable[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 20,
        prefix: bool = False,
        scan: bool = False,
    ) -> builtins.list[SearchHit]:
        """Search the sessions of the store, opening each for reading, one at a time; see ``Store.search``."""
        self._check_usable()
        search = checked_search(text, types=types, since=since, until=until, limit=limit, prefix=prefix)
        return await search_store(self, search, session_id=session_id, branch=branch, scan=scan)

    async def close(self) -> None:
        """Close every session that was opened here, then the store; the rest of them also where one cannot be closed,
        or the caller is cancelled, and then that is raised."""
        self._closed = True
        failure: BaseException | None = None
        for session in builtins.list(self._opened):
            try:
                await session.close()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosed(f"the store {self._folder.place} is closed; make another", path=str(self._folder.place))
        self._folder.check()
