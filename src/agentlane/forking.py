"""Forks and backups: a session of its own, made of what another one holds at one moment.

A fork keeps the conversation and what people and the application put beside it. What belongs to work under way, and the
records and accounts of work that was done, stay with the session it was done in. A backup keeps everything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane.data import addresses, codec
from agentlane.data.border import clean_object
from agentlane.data.operations import LaneConfig, LaneState
from agentlane.data.reads import id_text
from agentlane.data.writes import Address
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidDefinition, InvalidMessage, UnknownBranch, UnknownEntry
from agentlane.names import check_session_id
from agentlane.storage.contract import ElementRow, EntryRow, Row, SessionInfo, Snapshot, Store, ValueRow
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.open import Target, checked_target, open_store, session_of

Scope: TypeAlias = Literal["branch", "tree"]
"""What a fork has of the conversation: the path of one branch, or everything."""

FORKED_FROM = "forked_from"
"""The key of a fork's metadata that says what it was made of."""

KEPT = (
    *(addresses.BRANCH_TIP, addresses.LANE_CONFIG, addresses.LANE_STATE, addresses.LABEL),
    *(addresses.SESSION_NAME, addresses.SESSION_FEATURE),
)
"""Namespaces that go along, beside those of applications."""

_PATH_ROWS = 4_096
_IDLE = codec.encode(LaneState())


class Part(NamedTuple):
    """The part of a session that is one branch: where it ends, and the lane on it, as of one moment."""

    branch: str
    tip: str | None
    config: LaneConfig | None
    path: Collection[str]
    """The ids of the entries up to ``tip``."""


async def fork(
    runtime: Runtime,
    store: Store,
    cores: Mapping[str, LaneCore],
    target: Target | None,
    *,
    scope: Scope | None,
    branch: str | None,
    at: str | None,
    before: bool,
    session_id: str | None,
    metadata: Mapping[str, Any] | None,
) -> SessionInfo:
    """See ``Session.fork``."""
    runtime.check()
    target = _checked_target(target)
    if session_id is not None:
        session_id = check_session_id(session_id)
    given = runtime.storage.info.metadata if metadata is None else clean_object(metadata, "metadata")
    part = None
    if _checked_scope(scope, branch, at, before=before) == "branch":
        part = await _part_of(runtime, _chosen(runtime, cores, branch), at, before=before)
    snapshot = await runtime.storage.snapshot()
    try:
        origin = _origin(snapshot, part)
        if metadata is not None and FORKED_FROM in given:
            origin = {}  # the caller's own word for it
        last = () if part is None else _own_values(part)
        kept = _Rows(snapshot, partial(_kept, part=part), last)
        async with _opened(target, store, runtime) as place:
            return await place.load(
                kept, last_seq=snapshot.last_seq, session_id=session_id, metadata={**given, **origin}
            )
    finally:
        await snapshot.close()


async def backup(runtime: Runtime, store: Store, target: Target, *, session_id: str | None) -> SessionInfo:
    """See ``Session.backup``."""
    runtime.check()
    checked = _checked_target(target)
    if checked is None:
        raise InvalidMessage("target: a path or a store is needed here, where the backup is to be")
    wanted = runtime.session_id if session_id is None else check_session_id(session_id)
    if session_id is None:
        wanted = session_of(checked) or wanted
    snapshot = await runtime.storage.snapshot()
    try:
        info = snapshot.info
        async with _opened(checked, store, runtime) as place:
            return await place.load(
                _Rows(snapshot),
                last_seq=snapshot.last_seq,
                session_id=wanted,
                metadata=info.metadata,
                created_at=info.created_at,
            )
    finally:
        await snapshot.close()


class _Rows:
    """What is kept of a snapshot, in its order, and ``last`` behind it. No asynchronous generator: one whose waiter is
    thrown away with its event loop stays running for ever (CPython before 3.13), and the loop complains of it."""

    def __init__(
        self, snapshot: Snapshot, keep: Callable[[Row], Row | None] = lambda row: row, last: Sequence[Row] = ()
    ) -> None:
        self._pages = snapshot.pages()
        self._keep = keep
        self._last = last

    def __aiter__(self) -> _Rows:
        return self

    async def __anext__(self) -> Sequence[Row]:
        try:
            while True:
                page = await anext(self._pages)
                await asyncio.sleep(0)  # a source in memory never waits, and others have work to do
                if kept := [row for each in page if (row := self._keep(each)) is not None]:
                    return kept
        except StopAsyncIteration:
            if not self._last:
                raise
            last, self._last = self._last, ()
            return last


def _kept(row: Row, part: Part | None) -> Row | None:
    """A row as a fork has it, None if it stays behind."""
    if isinstance(row, EntryRow):
        return row if part is None or row.id in part.path else None
    if isinstance(row, ElementRow):
        return row if _of_application(row.address) else None
    if not isinstance(row, ValueRow):
        return None
    namespace, key = row.address
    if _of_application(row.address):
        return row
    if namespace not in KEPT:
        return None
    if part is not None and namespace == addresses.LABEL:
        return row if key in part.path else None
    if part is not None and namespace not in (addresses.SESSION_NAME, addresses.SESSION_FEATURE):
        return None  # the branch's own come from ``_own_values``
    return ValueRow(row.address, _IDLE) if namespace == addresses.LANE_STATE else row


def _own_values(part: Part) -> Sequence[Row]:
    """The values of the one branch that a fork of a branch has."""
    rows: list[Row] = [ValueRow(addresses.branch_tip(part.branch), codec.encode(part.tip))]
    if part.config is not None:
        rows.append(ValueRow(addresses.lane_config(part.branch), codec.encode(part.config)))
        rows.append(ValueRow(addresses.lane_state(part.branch), _IDLE))
    return rows


def _of_application(address: Address) -> bool:
    return address.namespace.startswith("app.")


def _chosen(runtime: Runtime, cores: Mapping[str, LaneCore], branch: str | None) -> LaneCore:
    """The branch that is asked for, or the only one there is."""
    known = sorted(name for name, core in cores.items() if core.exists)
    if branch is None and len(known) == 1:
        return cores[known[0]]
    text = None if branch is None else id_text(branch)
    if text is None or text not in known:
        listed = ", ".join(known) or "none"
        what = "which branch? name one" if branch is None else f"no branch {branch!r} is there"
        raise UnknownBranch(f"session {runtime.session_id!r}: {what}; it has {listed}", name=branch)
    return cores[text]


async def _part_of(runtime: Runtime, core: LaneCore, at: str | None, *, before: bool) -> Part:
    """The branch as it is now, up to its tip or to ``at``. Entries are immutable: the path stays what it is."""
    name, end, config = core.name, core.tip, core.config
    if at is not None:
        end = await _on_path(runtime, name, end, at, before=before)
    path: set[str] = set()
    last: str | None = None
    while end is not None:
        rows = await runtime.storage.path(end, limit=_PATH_ROWS, after=last, payloads=False)
        path.update(row.id for row in rows)
        if len(rows) < _PATH_ROWS:
            break
        last = rows[-1].id
    return Part(name, end, config, path)


async def _on_path(runtime: Runtime, branch: str, tip: str | None, at: str, *, before: bool) -> str | None:
    """Where a branch that ends with ``at``, or before it, has its tip; ``UnknownEntry`` if it does not lead there."""
    text, storage = id_text(at), runtime.storage
    row = None if text is None else (await storage.entries([text]))[0]
    if row is None:
        raise UnknownEntry(f"no entry {at!r} in session {runtime.session_id!r}", entry_id=at)
    oldest = [] if tip is None else await storage.path(tip, newest_first=False, limit=1, stop_at=row.id, payloads=False)
    if not oldest or oldest[0].id != row.id:
        raise UnknownEntry(
            f"entry {at!r} is not on the path of branch {branch!r}; name a branch that leads to it, or make one there",
            entry_id=at,
        )
    return row.parent_id if before else row.id


def _checked_target(target: Target | None) -> Target | None:
    if target is None:
        return None
    target = checked_target(target)
    if target == ":memory:":
        raise InvalidDefinition(
            "target ':memory:': what is made in it is gone when this call returns; hand in a MemoryStore that you keep"
        )
    if not isinstance(target, str | os.PathLike) and not all(hasattr(target, each) for each in ("create", "load")):
        raise InvalidMessage(f"target: a path, ':memory:' or a store is needed here, not {type(target).__name__}")
    return target


def _checked_scope(scope: Scope | None, branch: str | None, at: str | None, *, before: bool) -> Scope:
    """What is asked for; ``InvalidMessage`` for what does not go together."""
    if scope not in (None, "branch", "tree"):
        raise InvalidMessage(f"scope={scope!r}: 'branch' or 'tree' is needed here", path="scope")
    if type(before) is not bool:
        raise InvalidMessage(f"before={before!r}: True or False is needed here", path="before")
    if before and at is None:
        raise InvalidMessage("before=True: before which entry? give its id as at=", path="before")
    named = branch is not None or at is not None
    if scope == "tree" and named:
        raise InvalidMessage("scope='tree' copies every branch; leave branch= and at= out, or the scope", path="scope")
    return "branch" if named else scope or "tree"


def _origin(snapshot: Snapshot, part: Part | None) -> dict[str, Any]:
    """What a fork's metadata says of where it comes from."""
    said: dict[str, Any] = {"session": snapshot.info.id, "seq": snapshot.last_seq}
    if part is not None:
        said |= {"branch": part.branch, "entry": part.tip}
    return {FORKED_FROM: said}


@asynccontextmanager
async def _opened(target: Target | None, store: Store, runtime: Runtime) -> AsyncIterator[Store]:
    """The store that a fork goes to. One that is made for it is closed with it."""
    if target is None:
        yield store.whole_folder() if isinstance(store, JsonlStore) else store
        return
    place, made = open_store(target, durability="disk", clock=runtime.clock, ids=runtime.ids)
    try:
        yield place
    finally:
        if made:
            await place.close()
