"""Opening a session: from a target to a session that knows its lanes."""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from agentlane.clock import Clock, SystemClock
from agentlane.data.border import clean_object
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidDefinition, InvalidWrite, ReadOnlySession, UnknownSession
from agentlane.ids import IdSource, Uuid7Source
from agentlane.names import check_session_id
from agentlane.session import Session
from agentlane.storage.contract import Durability, Probe, SessionInfo, Store, check_durability
from agentlane.storage.open import Target, checked_target, open_store, session_of
from agentlane.turnstile import Turnstile

_choosing = Turnstile()
"""Who looks for a store's only session and makes it if there is none: two at a time would make two."""


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
    JSONL sessions; the case of a suffix does not count), ``":memory:"``, or a store. Without ``session_id``: the
    store's only session, made if there is none and ``create`` is true; a ``session_id`` is only looked for: ``await
    store.create(session_id)`` makes one. Opening an existing session starts nothing, and writes nothing but what brings
    a file of an older format to this version's, where it is opened for writing. Of two that open a new place at once,
    one makes its session. Cancelled, it leaves no owner; the session may have been made, or migrated.

    ``durability``: ``disk`` (a commit survives power loss) or ``process`` (it survives ``kill -9``); of a store that is
    handed in, the store's own counts.

    ``read_only``: needs no ownership, holds up no owner, and writes nothing. The session is seen as it was when it was
    opened: entries, usage, stats, branches, lanes, operations, results and list elements that an owner writes later
    are not there. In a SQLite file three things are as they are when they are read: labels, the application's values,
    and whether a list was deleted; a JSONL session and one in memory keep those of the open too. Open it again to see
    what is new.

    ``metadata`` is JSON data for a session that is made. ``clock``, ``ids``,
    ``seed`` (of retry jitter) and ``probe`` are for tests.

    Raises ``UnknownSession`` for an id that is not there, for none with ``create=False``, or, listing them, for several
    when none is named; ``SessionOwned``, ``StoreOwned``, ``CorruptSession``, ``UnsupportedFormat`` (also for a session
    that only a newer version may write: it can be opened read-only). An id, a
    path, metadata or an option that cannot be one: ``InvalidName``, ``InvalidMessage`` or ``InvalidDefinition``.
    """
    return SessionOpener(_Open(target, session_id, create, read_only, durability, metadata, clock, ids, seed, probe))


@runtime_checkable
class _Shared(Protocol):
    """A store that several processes may open at once, and that makes its first session for one of them alone."""

    async def create_first(self, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo: ...


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
        self._clock = SystemClock() if clock is None else clock
        self._ids = ids
        self._seed = seed
        self._probe = probe

    async def run(self) -> Session:
        self._check()
        ids = Uuid7Source(self._clock) if self._ids is None else self._ids
        store, owned = open_store(self._target, durability=self._durability, clock=self._clock, ids=ids)
        try:
            choosing = _choosing.holding(_place_of(self._target, store)) if self._session_id is None else nullcontext()
            async with choosing:
                return await self._open_in(store, owned, ids)
        except GeneratorExit:
            raise  # thrown away with its loop: nothing can be awaited, and ``_open_in`` has let go of what it had
        except BaseException:
            if owned:
                await store.close()
            raise

    def _check(self) -> None:
        """Refuse what cannot work, before anything is made."""
        if self._session_id is not None:
            self._session_id = check_session_id(self._session_id)
        if self._metadata is not None:
            self._metadata = clean_object(self._metadata, "metadata")
        check_durability(self._durability)
        self._target = checked_target(self._target)
        for name, given, methods in (
            ("clock", self._clock, ("now_ms", "sleep_until")),
            ("ids", self._ids, ("new",)),
            ("probe", self._probe, ("reached",)),
        ):
            if given is not None and not all(callable(getattr(given, method, None)) for method in methods):
                raise InvalidDefinition(f"{name}={given!r}: something with {' and '.join(methods)}() is needed here")
        for name, switch in (("create", self._create), ("read_only", self._read_only)):
            if type(switch) is not bool:
                raise InvalidDefinition(f"{name}={switch!r}: True or False is needed here")
        if self._seed is not None and not isinstance(self._seed, int):
            raise InvalidDefinition(f"seed={self._seed!r}: a whole number or None is needed here")

    async def _open_in(self, store: Store, owned: bool, ids: IdSource) -> Session:
        session_id = await self._choose(store)
        storage = await store.open(session_id, read_only=self._read_only, probe=self._probe)
        try:
            import random

            rng = random.Random(self._seed)
            runtime = Runtime(storage, clock=self._clock, ids=ids, probe=self._probe, rng=rng)
            session = Session(runtime, store, owns_store=owned)
            await session.load()
        except GeneratorExit:
            storage.kill()
            raise
        except BaseException:
            with suppress(Exception):  # what went wrong before is the one to tell
                await storage.close()
            raise
        return session

    async def _choose(self, store: Store) -> str:
        """The id to open: the one that was asked for, or the only one there is, made if it must be."""
        wanted = self._session_id
        if wanted is not None:
            return wanted
        only = session_of(self._target)
        found = await _only_one(store, only)
        if found is not None:
            return found
        if not self._create:
            raise UnknownSession("the store holds no session, and create=False")
        if self._read_only:
            raise ReadOnlySession("the store holds no session, and one cannot be made with read_only=True")
        try:
            if only is None and isinstance(store, _Shared):
                return (await store.create_first(metadata=self._metadata)).id
            return (await store.create(only, metadata=self._metadata)).id
        except InvalidWrite:  # another process has made it since we looked
            found = await _only_one(store, only)
            if found is None:
                raise
            return found


async def _only_one(store: Store, only: str | None) -> str | None:
    """The id of the store's only session (of that name), None if it has none."""
    known = [info.id for info in await store.list()]
    if only is not None:
        known = [id for id in known if id == only]
    if len(known) > 1:
        raise UnknownSession(f"the store holds several sessions; name one of {', '.join(known)}", known=known)
    return known[0] if known else None


def _place_of(target: Target, store: Store) -> Hashable:
    """The same for all targets that name the same place."""
    path = getattr(store, "path", None)  # a SQLite file's, links followed: a store that is handed in is known by it too
    if isinstance(path, str):
        return path
    return os.path.realpath(target) if isinstance(target, str | os.PathLike) and target != ":memory:" else id(store)
