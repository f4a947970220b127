"""The memory store: the reference semantics of the contract, lost with the process.

The store object is the medium: a session that was closed or killed can be opened again for as long as the store
lives. Payloads are bytes and ledger rows are encoded, so nothing live is shared with whoever wrote or reads.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from agentlane.clock import Clock, SystemClock
from agentlane.data.border import clean_object
from agentlane.data.search import SearchHit, checked_search
from agentlane.data.usage import Stats
from agentlane.data.writes import DeleteList, DeleteValue, InsertUsage, Write
from agentlane.errors import InvalidWrite, OwnershipLost, SessionClosed, SessionOwned, UnknownSession
from agentlane.ids import IdSource, Uuid7Source
from agentlane.names import check_session_id
from agentlane.storage.contract import (
    Capabilities,
    Commit,
    Compacted,
    ElementRow,
    EntryRow,
    LedgerRow,
    OpenOperation,
    Pending,
    Probe,
    Row,
    SessionInfo,
    SessionStorage,
)
from agentlane.storage.exchange import Exchange
from agentlane.storage.forks import Forking
from agentlane.storage.index import OPERATIONS, SessionIndex, encode_usage, operation_meta, stats_after
from agentlane.storage.indexed import IndexedStorage
from agentlane.storage.intake import Intake
from agentlane.storage.repairing import Repairing
from agentlane.storage.searching import search_store
from agentlane.storage.segments import NO_ROW

_log = logging.getLogger("agentlane")


class MemoryStore(Exchange, Forking, Repairing):
    """Sessions in memory. They survive neither power loss nor the end of the process, nor the store object."""

    def __init__(self, *, clock: Clock | None = None, ids: IdSource | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ids = ids or Uuid7Source(self._clock)
        self._media: dict[str, _Medium] = {}
        self._opened: set[MemorySession] = set()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """Not persistent, one process."""
        return Capabilities(persistent=False, cross_process=False)

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """Make an empty session.

        ``InvalidWrite`` if the id exists, ``InvalidName`` if it may not be one, ``InvalidMessage`` for metadata that is
        not a JSON object.
        """
        self._check_usable()
        clean = clean_object({} if metadata is None else metadata, "metadata")
        session_id = self._ids.new() if session_id is None else check_session_id(session_id)
        self._check_new(session_id)
        medium = _Medium(session_id, self._clock.now_ms(), msgspec.json.encode(clean))
        self._media[session_id] = medium
        return medium.info()

    async def load(
        self,
        pages: AsyncIterable[Sequence[Row]],
        *,
        last_seq: int,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: int | None = None,
    ) -> SessionInfo:
        """Make a session of rows (S27); errors as ``create``, and ``InvalidWrite`` for rows that do not fit."""
        self._check_usable()
        clean = clean_object({} if metadata is None else metadata, "metadata")
        session_id = self._ids.new() if session_id is None else check_session_id(session_id)
        self._check_new(session_id)
        created_at = self._clock.now_ms() if created_at is None else created_at
        medium = _Medium(session_id, created_at, msgspec.json.encode(clean))
        await _fill(medium.index, pages, last_seq)
        self._check_usable()
        self._check_new(session_id)  # made by somebody else meanwhile
        self._media[session_id] = medium
        return medium.info()

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        """Open a session. ``UnknownSession``, ``InvalidName`` for what is no id; ``SessionOwned`` if it is open for
        writing already.

        A session that is opened read-only is a copy of what is there now; what its owner writes later is not.
        """
        self._check_usable()
        medium = self._medium(session_id)
        if not read_only:
            medium.check_free()
        session = MemorySession(medium, self._clock, read_only=read_only, probe=probe, forget=self._opened.discard)
        self._opened.add(session)
        return session

    async def list(self) -> builtins.list[SessionInfo]:
        """All sessions, oldest first."""
        self._check_usable()
        return [medium.info() for medium in sorted(self._media.values(), key=lambda each: (each.created_at, each.id))]

    async def delete(self, session_id: str) -> None:
        """Remove a session. ``UnknownSession``; ``SessionOwned`` if it is open for writing."""
        self._check_usable()
        self._medium(session_id).check_free()
        del self._media[session_id]

    async def open_operations(self) -> builtins.list[OpenOperation]:
        """Operations that are not settled, oldest first."""
        self._check_usable()
        found = []
        for medium in self._media.values():
            for operation_id, payload in medium.index.values.get(OPERATIONS, {}).items():
                meta = operation_meta(payload)
                found.append(OpenOperation(medium.id, operation_id, meta.lane, meta.started_at))
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
        """Close every session, then the store: what it holds is gone."""
        for session in list(self._opened):
            await session.close()
        self._closed = True

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosed("the store is closed, and what a MemoryStore held is gone")

    def _check_new(self, session_id: str) -> None:
        if session_id in self._media:
            raise InvalidWrite(f"session {session_id!r} exists already; open it, or take another id", id=session_id)

    def _medium(self, session_id: str) -> _Medium:
        session_id = check_session_id(session_id)
        medium = self._media.get(session_id)
        if medium is None:
            raise UnknownSession(
                f"no session {session_id!r} is in this store; `await store.create({session_id!r})` makes one",
                id=session_id,
            )
        return medium


class _Medium:
    """What stands for a session's file."""

    def __init__(self, session_id: str, created_at: int, metadata: bytes) -> None:
        self.id = session_id
        self.created_at = created_at
        self.metadata = metadata
        self.index = SessionIndex[bytes]([], [])
        self.epoch = 0
        self.owner: MemorySession | None = None

    def check_free(self) -> None:
        """``SessionOwned`` if there is an owner; one whose event loop is closed was forgotten, and is replaced."""
        if self.owner is not None and self.owner.forgotten:
            _log.warning("session %r was not closed before its event loop was; it is taken from that owner", self.id)
            self.owner.kill()
        if self.owner is not None:
            raise _owned(self.id)

    def info(self) -> SessionInfo:
        return SessionInfo(id=self.id, created_at=self.created_at, metadata=msgspec.json.decode(self.metadata))


class MemorySession(IndexedStorage[bytes]):
    """One open session of a ``MemoryStore``. Commits are reported inside ``submit``."""

    def __init__(
        self,
        medium: _Medium,
        clock: Clock,
        *,
        read_only: bool,
        probe: Probe | None,
        forget: Callable[[MemorySession], None],
    ) -> None:
        index = deepcopy(medium.index) if read_only else medium.index
        super().__init__(medium.info(), index, epoch=medium.epoch + 1, read_only=read_only, probe=probe)
        self._medium = medium
        self._clock = clock
        self._forget = forget
        if not read_only:
            medium.owner = self

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        """Take in a commit and report it at once."""
        self._check_writable()
        if self._probe is not None:
            self._reach(f"commit.{name}.before")
        index, medium = self._index, self._medium
        ids = index.check(writes, _NONE)
        payloads = _payloads(writes)
        stats = stats_after(index.stats, writes, ids)
        if self._probe is not None:
            self._reach(f"commit.{name}.inside")
        pending = Pending()
        self._pendings.append(pending)
        if medium.owner is not self or medium.epoch > self._epoch:
            self._end(self._lost())
            return pending
        medium.epoch = self._epoch
        first_seq, at = index.last_seq + 1, self._clock.now_ms()
        index.apply(writes, first_seq=first_seq, at=at, places=iter(payloads))
        index.stats = stats
        self._publish(Commit(first_seq, at, stats), publish, name)
        return pending

    async def compact(self) -> Compacted:
        """Rule S28: nothing superseded is held."""
        self._check_writable()
        return Compacted(0, 0)

    async def close(self) -> None:
        """Give the session up; nothing is ever under way. ``WrongLoop`` unless the loop it was opened on is closed."""
        if not self._closed and not self.forgotten:
            self._check_loop()
        self.kill()

    def kill(self) -> None:
        """As ``close``."""
        self._closed = True
        if self._medium.owner is self:
            self._medium.owner = None
        self._forget(self)

    def _fetch(self, places: Iterable[bytes]) -> list[bytes]:
        return list(places)

    def _snapshot_medium(self) -> _Held:
        return _Held()

    def _lost(self) -> OwnershipLost:
        return OwnershipLost(
            f"session {self._info.id!r}: an owner of epoch {self._medium.epoch} has written, this one is of epoch "
            f"{self._epoch}; open it again",
            id=self._info.id,
        )


class _Held:
    """Places that are the payloads themselves."""

    def fetch(self, places: Iterable[bytes]) -> builtins.list[bytes]:
        return [*places]

    def size(self, place: bytes) -> int:
        return len(place)

    def close(self) -> None:
        """Nothing is to be given up."""


_NONE: dict[str, bool] = {}


async def _fill(index: SessionIndex[bytes], pages: AsyncIterable[Sequence[Row]], last_seq: int) -> None:
    intake = Intake(last_seq)
    usage = index.stats.usage
    async for page in pages:
        for row in page:
            intake.check(row)
            if isinstance(row, EntryRow):
                index.begin(row.seq, row.at)
                parent = NO_ROW if row.parent_id is None else index.rows[row.parent_id]
                index.insert_entry(row.id, parent, row.kind, row.seq, row.payload)
            elif isinstance(row, LedgerRow):
                index.begin(row.seq, row.at)
                index.insert_usage(row.row.id, row.seq, encode_usage(row.row))
                usage = usage.plus(row.row)
            elif isinstance(row, ElementRow):
                index.append_element(*row.address, row.seq, row.payload)
            else:
                index.set_value(*row.address, row.payload)
    index.end_base(last_seq)
    index.stats = Stats(entries=len(index.segments), usage=usage)


def _payloads(writes: Sequence[Write]) -> list[bytes]:
    payloads: list[bytes] = []
    for write in writes:
        if isinstance(write, InsertUsage):
            payloads.append(encode_usage(write.row))
        elif not isinstance(write, (DeleteValue, DeleteList)):
            payloads.append(write.payload)
    return payloads


def _owned(session_id: str) -> SessionOwned:
    return SessionOwned(
        f"session {session_id!r} is open for writing already, in this process; close it there, or open it read-only",
        id=session_id,
    )
