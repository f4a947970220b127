"""The SQLite store: one file, many sessions, one process that writes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from agentlane.clock import Clock, SystemClock
from agentlane.data.border import clean_object
from agentlane.data.search import SearchHit, checked_search
from agentlane.errors import (
    InvalidDefinition,
    InvalidWrite,
    SessionClosed,
    StoreOwned,
    UnknownSession,
    WrongLoop,
)
from agentlane.ids import IdSource, Uuid7Source
from agentlane.names import check_session_id
from agentlane.storage import schema, search_index
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import (
    Capabilities,
    Compacted,
    Durability,
    OpenOperation,
    Probe,
    Row,
    SessionInfo,
    check_durability,
)
from agentlane.storage.exchange import Exchange
from agentlane.storage.forks import Forking
from agentlane.storage.hop import on_new_thread
from agentlane.storage.paths import exists, usable
from agentlane.storage.repairing import Repairing
from agentlane.storage.salvage import Salvage
from agentlane.storage.salvage_sqlite import salvage_database
from agentlane.storage.sqlite_connect import check_place, make_database, translated
from agentlane.storage.sqlite_file import Options, Use, attach
from agentlane.storage.sqlite_load import Load, sweep
from agentlane.storage.sqlite_search import forget, search_file
from agentlane.storage.sqlite_session import SqliteSession
from agentlane.storage.sqlite_upkeep import optimize
from agentlane.storage.sqlite_view import View, ViewAtOpen, kept_values
from agentlane.storage.sqlite_writer import Writer

T = TypeVar("T")
Hits: TypeAlias = "list[SearchHit]"


class SqliteStore(Exchange, Forking, Repairing):
    """Sessions in one SQLite file. ``Store`` of the contract (S1-S27).

    A store object holds nothing by itself. The file has an owner, a lock and threads while a session of it is open, or
    a call runs; several stores of one process on the same file share them. With durability ``disk`` a commit survives
    power loss (the log is synced before it is reported); with ``process`` it survives the death of the process, and
    power loss may take the newest commits but never damages the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "disk",
        clock: Clock | None = None,
        ids: IdSource | None = None,
        busy_timeout_ms: int = 5000,
        insist: bool = False,
    ) -> None:
        """``busy_timeout_ms``: how long a commit waits for another program that writes before it is ``StoreBusy``.

        ``insist``: use the file where SQLite's log is not known to be safe (a network mount) or not possible.
        """
        check_durability(durability)
        if os.name != "posix":
            raise InvalidDefinition("SqliteStore needs POSIX file locks, which this platform does not have")
        self.path = os.path.realpath(path)
        self._options = Options(durability, busy_timeout_ms, insist)
        self._clock = clock or SystemClock()
        self._ids = ids or Uuid7Source(self._clock)
        self._sessions: list[SqliteSession] = []
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(persistent=True, cross_process=True)

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """Make an empty session, and the file if there is none; durable on return.

        ``InvalidName``, ``InvalidMessage`` for metadata that is not a JSON object, ``InvalidWrite`` for an id that
        exists, ``StoreOwned``, ``StoreBusy``. A call that is cancelled may have made the session.
        """
        return await self._create(session_id, metadata, schema.INSERT_SESSION)

    async def create_first(self, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """As ``create``, but only where no session is: else ``InvalidWrite``, whoever made it and however late."""
        return await self._create(None, metadata, schema.INSERT_FIRST_SESSION)

    async def _create(self, session_id: str | None, metadata: Mapping[str, Any] | None, statement: str) -> SessionInfo:
        self._check_open()
        session_id = self._ids.new() if session_id is None else check_session_id(session_id)
        info = SessionInfo(
            id=session_id,
            created_at=self._clock.now_ms(),
            metadata=clean_object({} if metadata is None else metadata, "metadata"),
        )
        await self._make_file()
        row = (info.id, info.created_at, msgspec.json.encode(info.metadata).decode())

        def insert(database: sqlite3.Connection) -> None:
            try:
                made = database.execute(statement, row).rowcount
            except sqlite3.IntegrityError as error:
                raise InvalidWrite(f"session {info.id} exists already in {self.path}", session_id=info.id) from error
            if not made:
                raise InvalidWrite(f"{self.path} holds a session already; open it", path=self.path)

        await self._write(None, insert)
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
        """Make a session of rows (S27), each page in a short transaction, so that other sessions are held up by none.

        Errors as ``create``, ``InvalidWrite`` for rows that do not fit; ``SessionOwned`` while another call of this
        process loads that session.
        """
        self._check_open()
        info = SessionInfo(
            id=self._ids.new() if session_id is None else check_session_id(session_id),
            created_at=self._clock.now_ms() if created_at is None else created_at,
            metadata=clean_object({} if metadata is None else metadata, "metadata"),
        )
        load = Load(info, last_seq)
        if await self._query(lambda database: reads.load_session(database, info.id), None) is not None:
            raise InvalidWrite(f"session {info.id!r} exists already; take another id", id=info.id)
        await self._make_file()
        with usable(self.path):
            use = await attach(self.path, self._options, write=True, session_id=info.id)
        async with use:
            await self._load_pages(use, load, pages)
        return info

    async def _load_pages(self, use: Use, load: Load, pages: AsyncIterable[Sequence[Row]]) -> None:
        loading = use.file.loading

        def begin(database: sqlite3.Connection) -> None:
            sweep(database, loading)
            loading.add(load.begin(database))

        try:
            await self._transact(use, begin)
            async for page in pages:
                await self._transact(use, partial(load.add, page=page))
            self._check_open()
            await self._transact(use, load.end)
        except BaseException:
            self._undo(use.writer, load, loading)
            raise
        loading.discard(load.key)

    def _undo(self, writer: Writer, load: Load, loading: set[int]) -> None:
        """Remove what there is of a load, behind whatever of it is on its way; who lets the file go waits for that."""

        def undo() -> None:
            if writer.thread.database is not None:
                with suppress(Exception):  # what cannot be removed now is by a later load
                    _transact(writer, writer.thread.database, load.undo)
            loading.discard(load.key)

        writer.thread.post(undo)

    async def _make_file(self) -> None:
        """Make the file if there is none."""
        if not self._exists():
            if not self._options.insist:
                check_place(self.path)
            durability, insist = self._options.durability, self._options.insist
            with usable(self.path, make=True):
                await on_new_thread(lambda: make_database(self.path, durability=durability, insist=insist))

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SqliteSession:
        """Open a session that exists; nothing is written but what brings a file of an older format to this version's,
        where it is opened for writing. ``UnknownSession``, ``SessionOwned``, ``StoreOwned``.

        A session that is opened read-only is seen as it is now: entries, usage, stats, branches, lanes, operations and
        list elements that its owner writes later are not. Labels and the application's values are as they are when
        they are read, and a list that its owner deletes is gone. No transaction is held, so no owner is held up. Where
        it is deleted, each read of it raises ``UnknownSession`` from then on.
        ``CorruptSession`` for a damaged or empty file, ``UnsupportedFormat`` for one that is not ours or is newer,
        ``OSError`` for one that may not be read, ``InvalidName`` for what is no session id, and for a path that cannot
        be a file's.
        """
        self._check_open()
        session_id = check_session_id(session_id)
        if not self._exists():
            raise self._unknown(session_id)
        with usable(self.path):
            owned_id = None if read_only else session_id
            use = await attach(self.path, self._options, write=not read_only, session_id=owned_id)
        try:
            loaded, view = await self._load(use, session_id, read_only=read_only)
            self._check_open()  # nobody would close what is handed out by a store that was closed meanwhile
            session = SqliteSession(use, loaded, view, clock=self._clock, read_only=read_only, probe=probe)
        except GeneratorExit:
            use.let_go()
            raise
        except BaseException:
            await use.release()
            raise
        if not read_only:
            use.file.sources[session_id] = session
            use.writer.used = True
        self._sessions = [*(each for each in self._sessions if not each.closed), session]
        return session

    async def salvage(self, session_id: str) -> Salvage:
        """What can be read of a session and what is wrong with it or the file; see ``Verifying.salvage``.

        By a connection of its own that only reads; an owner's log may grow while SQLite checks the file's pages.
        """
        self._check_open()
        session_id = check_session_id(session_id)
        if not self._exists():
            raise self._unknown(session_id)
        with usable(self.path):
            timeout_ms = self._options.busy_timeout_ms
            unknown = self._unknown(session_id)
            return await salvage_database(self.path, session_id, busy_timeout_ms=timeout_ms, unknown=unknown)

    async def delete(self, session_id: str) -> None:
        """Remove a session that nobody has open, in one transaction; durable on return."""
        self._check_open()
        session_id = check_session_id(session_id)
        if not self._exists():
            raise self._unknown(session_id)

        def delete(database: sqlite3.Connection) -> None:
            rows = database.execute(schema.SELECT_SESSION_KEY, (session_id,)).fetchall()
            if not rows:
                raise self._unknown(session_id)
            search_index.forget_session(database, rows[0][0])
            for statement in schema.DELETE_SESSION:
                database.execute(statement, rows[0])

        await self._write(session_id, delete, before=lambda use: forget(use.file, session_id))

    async def optimize(self) -> Compacted:
        """Upkeep for a file that is used for long, for now and then: pages that hold nothing are given back if they are
        a fifth of it or more, what a killed ``load`` left is removed, the log is copied into the file.

        Commits of all its sessions wait meanwhile. The bytes of the file before and after; ``StoreOwned``,
        ``StoreBusy``. Nothing changes to any reader.
        """
        self._check_open()
        if not self._exists():
            return Compacted(0, 0)
        with usable(self.path):
            use = await attach(self.path, self._options, write=True)
        async with use:
            await self._transact(use, lambda database: sweep(database, use.file.loading))
            with translated(self.path):
                return await use.writer.upkeep(optimize)

    async def open_operations(self) -> list[OpenOperation]:
        """Every operation that is not settled, in any session, oldest first; no session is opened for it (S20)."""
        return await self._query(reads.open_operations, [])

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
    ) -> Hits:
        """Search the sessions of the file, without opening them; see ``Store.search``.

        Where this process owns the file, or nobody does, the index is caught up first; else what is not in it is read.
        """
        self._check_open()
        search = checked_search(text, types=types, since=since, until=until, limit=limit, prefix=prefix)
        if session_id is not None:
            session_id = check_session_id(session_id)
        if session_id is not None and session_id not in [info.id for info in await self.list()]:
            raise self._unknown(session_id)
        if search.finds_nothing or not self._exists():
            return []
        with usable(self.path):
            try:
                use, write = await attach(self.path, self._options, write=True), True
            except (StoreOwned, PermissionError):
                use, write = await attach(self.path, self._options, write=False), False
        async with use:
            return await search_file(use.file, search, session_id=session_id, branch=branch, write=write, scan=scan)

    async def close(self) -> None:
        """Close every session that was opened through this store, then the store; twice does nothing."""
        self._closed = True
        sessions, self._sessions = self._sessions, []
        failed: asyncio.CancelledError | WrongLoop | None = None
        for session in sessions:
            try:
                await session.close()  # to the end, and only then says that we were cancelled
            except (asyncio.CancelledError, WrongLoop) as error:
                failed = error
        if failed is not None:
            raise failed

    async def _query(self, function: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        self._check_open()
        if not self._exists():
            return nothing
        with usable(self.path):
            use = await attach(self.path, self._options, write=False)
        async with use:
            return await use.file.read(function)

    async def _write(
        self,
        session_id: str | None,
        function: Callable[[sqlite3.Connection], None],
        *,
        before: Callable[[Use], Awaitable[None]] | None = None,
    ) -> None:
        """Run ``function`` as one transaction of the file's owner, after what ``before`` does as that."""
        with usable(self.path):
            use = await attach(self.path, self._options, write=True, session_id=session_id)
        async with use:
            if before is not None:
                with translated(self.path):  # first of all: who opens beside another that closes may find it locked
                    await use.writer.thread.call(_nothing)
                await before(use)
            await self._transact(use, function)

    async def _transact(self, use: Use, function: Callable[[sqlite3.Connection], None]) -> None:
        writer = use.writer
        with translated(self.path):
            await writer.thread.call(lambda database: _transact(writer, database, function))

    async def _load(self, use: Use, session_id: str, *, read_only: bool) -> tuple[reads.Loaded, View]:
        def load(database: sqlite3.Connection) -> tuple[reads.Loaded, View]:
            loaded = reads.load_session(database, session_id)
            if loaded is None:
                raise self._unknown(session_id)
            if not read_only:
                return loaded, View(loaded.key)
            return loaded, ViewAtOpen(loaded.key, loaded.seq, kept_values(database, loaded.key))

        def load_at_once(database: sqlite3.Connection) -> tuple[reads.Loaded, View]:
            database.execute("BEGIN")  # an owner may commit beside us: what is read here belongs together
            try:
                return load(database)
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

        if not read_only:
            with translated(self.path):
                await use.writer.thread.call(_nothing)
        # Through the reader, which is then there to go on reading when the writer fails.
        return await use.file.read(load_at_once if read_only else load)

    def _exists(self) -> bool:
        return exists(self.path)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the store on {self.path} is closed; make another one")

    def _unknown(self, session_id: str) -> UnknownSession:
        return UnknownSession(
            f"no session {session_id!r} is in {self.path}; `await store.create({session_id!r})` makes one",
            session_id=session_id,
        )

    # Last, for inside the class it hides the built-in.

    async def list(self) -> list[SessionInfo]:
        """All sessions, oldest first; none if there is no file yet."""
        return await self._query(reads.list_sessions, [])


def _transact(writer: Writer, database: sqlite3.Connection, function: Callable[[sqlite3.Connection], None]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        function(database)
        writer.check_owner(database)
        database.execute("COMMIT")
        writer.used = True
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _nothing(database: sqlite3.Connection) -> None:
    """Asked of a connection to learn whether there is one."""
