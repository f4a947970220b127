"""Opening a session: from a target to a session that knows its lanes."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from agentlane.clock import Clock, SystemClock
from agentlane.driver.runtime import Runtime
from agentlane.errors import ReadOnlySession, UnknownSession
from agentlane.ids import IdSource, Uuid7Source
from agentlane.session import Session
from agentlane.storage.contract import Durability, Probe, Store
from agentlane.storage.open import Target, open_store, session_of


class SessionOpener:
    """What ``open_session`` returns: await it, or use it with ``async with``."""

    def __init__(self, open: _Open) -> None:
        self._open = open
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open.run().__await__()

    async def __aenter__(self) -> Session:
        self._session = await self._open.run()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()


def open_session(
    target: Target,
    *,
    session_id: str | None = None,
    create: bool = True,
    read_only: bool = False,
    durability: Durability = "disk",
    metadata: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    seed: int | None = None,
    probe: Probe | None = None,
) -> SessionOpener:
    """Open a session: ``session = await open_session(...)`` or ``async with open_session(...) as session:``.

    ``target``: a path (``.db``, ``.sqlite``, ``.sqlite3``: SQLite; ``.jsonl``: one session's file; else a folder of
    JSONL sessions), ``":memory:"``, or a store. Without ``session_id``: the store's only session, made if there is none
    and ``create`` is true. Opening an existing session writes nothing and starts nothing.

    ``durability``: ``disk`` (a commit survives power loss) or ``process`` (it survives ``kill -9``); of a store that is
    handed in, the store's own counts. ``metadata`` is JSON data for a session that is made. ``clock``, ``ids``,
    ``seed`` (of retry jitter) and ``probe`` are for tests.

    Raises ``UnknownSession`` for an id that is not there, for none with ``create=False``, or, listing them, for several
    when none is named; ``SessionOwned``, ``StoreOwned``, ``CorruptSession``, ``UnsupportedFormat``.
    """
    return SessionOpener(_Open(target, session_id, create, read_only, durability, metadata, clock, ids, seed, probe))


class _Open:
    """The arguments of one ``open_session``."""

    def __init__(
        self,
        target: Target,
        session_id: str | None,
        create: bool,
        read_only: bool,
        durability: Durability,
        metadata: Mapping[str, Any] | None,
        clock: Clock | None,
        ids: IdSource | None,
        seed: int | None,
        probe: Probe | None,
    ) -> None:
        self._target = target
        self._session_id = session_id
        self._create = create
        self._read_only = read_only
        self._durability = durability
        self._metadata = metadata
        self._clock = clock or SystemClock()
        self._ids = ids or Uuid7Source(self._clock)
        self._rng = random.Random(seed)
        self._probe = probe

    async def run(self) -> Session:
        store, owned = open_store(self._target, durability=self._durability, clock=self._clock, ids=self._ids)
        try:
            return await self._open_in(store, owned)
        except BaseException:
            if owned:
                await store.close()
            raise

    async def _open_in(self, store: Store, owned: bool) -> Session:
        session_id = await self._choose(store)
        storage = await store.open(session_id, read_only=self._read_only, probe=self._probe)
        try:
            runtime = Runtime(storage, clock=self._clock, ids=self._ids, probe=self._probe, rng=self._rng)
            session = Session(runtime, store, owns_store=owned)
            await session.load()
        except BaseException:
            await storage.close()
            raise
        return session

    async def _choose(self, store: Store) -> str:
        """The id to open: the one that was asked for, or the only one there is, made if it must be."""
        wanted = self._session_id
        if wanted is not None:
            return wanted
        only = session_of(self._target)
        known = [info.id for info in await store.list()]
        if only is not None:
            known = [id for id in known if id == only]
        if len(known) == 1:
            return known[0]
        if known:
            raise UnknownSession(f"the store holds several sessions; name one of {', '.join(known)}", known=known)
        if not self._create:
            raise UnknownSession("the store holds no session, and create=False")
        if self._read_only:
            raise ReadOnlySession("the store holds no session, and one cannot be made with read_only=True")
        return (await store.create(only, metadata=self._metadata)).id
