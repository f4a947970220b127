"""Forks: what another session keeps of one, at one moment, and how a store makes it.

A fork keeps the conversation and what people and the application put beside it. What belongs to work under way, and the
records and accounts of work that was done, stay with the session it was done in.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane.clock import SystemClock
from agentlane.data import addresses, codec
from agentlane.data.border import clean_object
from agentlane.data.operations import LaneState
from agentlane.data.reads import id_text
from agentlane.data.writes import Address
from agentlane.errors import InvalidMessage, UnknownBranch, UnknownEntry
from agentlane.ids import Uuid7Source
from agentlane.names import check_session_id
from agentlane.storage.contract import (
    ElementRow,
    EntryRow,
    Row,
    SessionInfo,
    SessionStorage,
    Snapshot,
    Store,
    ValueRow,
)
from agentlane.storage.holding import Hold

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


class Branch(NamedTuple):
    """A branch as it is at one moment, with the configuration of the lane on it as it is stored."""

    name: str
    tip: str | None
    config: bytes | None


class Part(NamedTuple):
    """The part of a session that is one branch, up to its tip or an earlier entry."""

    branch: Branch
    path: Collection[str]
    """The ids of its entries."""


class Wish(NamedTuple):
    """What is asked for: which part of a session, and how the fork is to be named."""

    scope: Scope
    branch: str | None
    at: str | None
    before: bool
    session_id: str | None
    metadata: dict[str, Any] | None


def checked_wish(
    *,
    scope: Scope | None,
    branch: str | None,
    at: str | None,
    before: bool,
    session_id: str | None,
    metadata: Mapping[str, Any] | None,
) -> Wish:
    """``InvalidMessage`` for what does not go together; ``InvalidName`` for an id that is none."""
    if session_id is not None:
        session_id = check_session_id(session_id)
    clean = None if metadata is None else clean_object(metadata, "metadata")
    return Wish(_checked_scope(scope, branch, at, before=before), branch, at, before, session_id, clean)


class Forking:
    """What makes a store able to fork its sessions: inherit it beside ``Store``."""

    async def fork(
        self: Store,
        source: str,
        target: str | os.PathLike[str] | Store | None = None,
        *,
        scope: Scope | None = None,
        branch: str | None = None,
        at: str | None = None,
        before: bool = False,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionInfo:
        """Make another session of the session ``source`` as it is now, which nobody need have open, and somebody may.

        The same fork as ``Session.fork`` makes, with the same options and errors: ``target`` None is this store, and
        ``session_id`` the id of the fork. It is whole and durable on return; cancelled or failed there is none
        (cancelled at the very end, a whole one). ``source`` is opened for reading meanwhile. ``UnknownSession`` if it
        is not there.
        """
        # By name: the stores inherit from here, and what opens a target knows the stores.
        targets = import_module("agentlane.storage.targets")
        target = targets.checked_place(target)
        wish = checked_wish(scope=scope, branch=branch, at=at, before=before, session_id=session_id, metadata=metadata)
        clock = SystemClock()
        storage = await self.open(source, read_only=True)
        async with Hold(storage, storage.close, storage.kill):
            chosen = None if wish.scope == "tree" else await _stored_branch(storage, wish.branch)
            async with targets.opened(target, self, clock, Uuid7Source(clock)) as place:
                info = await make_fork(storage, place, wish, chosen)
        return info


async def make_fork(storage: SessionStorage, place: Store, wish: Wish, branch: Branch | None) -> SessionInfo:
    """Load a fork of an open session into ``place``. ``branch``: the one that is wanted, None for the tree."""
    part = None if branch is None else await _part_of(storage, branch, wish.at, before=wish.before)
    snapshot = await storage.snapshot()
    try:
        given = storage.info.metadata if wish.metadata is None else wish.metadata
        origin = {} if wish.metadata is not None and FORKED_FROM in given else _origin(snapshot, part)
        return await place.load(
            _of_tree(snapshot) if part is None else _of_branch(snapshot, part),
            last_seq=snapshot.last_seq,
            session_id=wish.session_id,
            metadata={**given, **origin},
        )
    finally:
        await snapshot.close()


def pick_branch(session_id: str, wanted: str | None, known: Collection[str]) -> str:
    """The branch that is asked for, or the only one there is. ``UnknownBranch``."""
    names = sorted(known)
    if wanted is None and len(names) == 1:
        return names[0]
    text = None if wanted is None else id_text(wanted)
    if text is None or text not in known:
        what = "which branch? name one" if wanted is None else f"no branch {wanted!r} is there"
        raise UnknownBranch(f"session {session_id!r}: {what}; it has {', '.join(names) or 'none'}", name=wanted)
    return text


class Rows:
    """What is kept of pages, in their order, and ``last`` behind it. No asynchronous generator: one whose waiter is
    thrown away with its event loop stays running for ever (CPython before 3.13), and the loop complains of it."""

    def __init__(
        self,
        pages: AsyncIterator[Sequence[Row]],
        keep: Callable[[Row], Row | None] = lambda row: row,
        last: Sequence[Row] = (),
    ) -> None:
        self._pages = pages
        self._keep = keep
        self._last = last

    def __aiter__(self) -> Rows:
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


def _of_tree(snapshot: Snapshot) -> Rows:
    return Rows(snapshot.pages(), partial(_kept, part=None))


def _of_branch(snapshot: Snapshot, part: Part) -> Rows:
    return Rows(snapshot.branch_pages(part.branch.tip), partial(_kept, part=part), _own_values(part.branch))


def _kept(row: Row, part: Part | None) -> Row | None:
    """A row as a fork has it, None if it stays behind."""
    if isinstance(row, EntryRow):
        return row
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


def _own_values(branch: Branch) -> Sequence[Row]:
    """The values of the one branch that a fork of a branch has."""
    rows: list[Row] = [ValueRow(addresses.branch_tip(branch.name), codec.encode(branch.tip))]
    if branch.config is not None:
        rows.append(ValueRow(addresses.lane_config(branch.name), branch.config))
        rows.append(ValueRow(addresses.lane_state(branch.name), _IDLE))
    return rows


def _of_application(address: Address) -> bool:
    return address.namespace.startswith("app.")


async def _stored_branch(storage: SessionStorage, wanted: str | None) -> Branch:
    """A branch as it is stored."""
    tips = await storage.values(addresses.BRANCH_TIP)
    name = pick_branch(storage.info.id, wanted, tips)
    tip = codec.OPTIONAL_TEXT.decode(tips[name], f"tip of {name}")
    return Branch(name, tip, await storage.value(addresses.lane_config(name)))


async def _part_of(storage: SessionStorage, branch: Branch, at: str | None, *, before: bool) -> Part:
    """A branch up to its tip or to ``at``. Entries are immutable: the path stays what it is."""
    if at is not None:
        branch = branch._replace(tip=await _on_path(storage, branch, at, before=before))
    path: set[str] = set()
    last: str | None = None
    while branch.tip is not None:
        rows = await storage.path(branch.tip, limit=_PATH_ROWS, after=last, payloads=False)
        path.update(row.id for row in rows)
        if len(rows) < _PATH_ROWS:
            break
        last = rows[-1].id
    return Part(branch, path)


async def _on_path(storage: SessionStorage, branch: Branch, at: str, *, before: bool) -> str | None:
    """Where a branch that ends with ``at``, or before it, has its tip; ``UnknownEntry`` if it does not lead there."""
    text, tip = id_text(at), branch.tip
    row = None if text is None else (await storage.entries([text]))[0]
    if row is None:
        raise UnknownEntry(f"no entry {at!r} in session {storage.info.id!r}", entry_id=at)
    oldest = [] if tip is None else await storage.path(tip, newest_first=False, limit=1, stop_at=row.id, payloads=False)
    if not oldest or oldest[0].id != row.id:
        raise UnknownEntry(
            f"entry {at!r} is not on the path of branch {branch.name!r}; name a branch that leads to it, or make one "
            "there",
            entry_id=at,
        )
    return row.parent_id if before else row.id


def _origin(snapshot: Snapshot, part: Part | None) -> dict[str, Any]:
    """What a fork's metadata says of where it comes from."""
    said: dict[str, Any] = {"session": snapshot.info.id, "seq": snapshot.last_seq}
    if part is not None:
        said |= {"branch": part.branch.name, "entry": part.branch.tip}
    return {FORKED_FROM: said}


def _checked_scope(scope: Scope | None, branch: str | None, at: str | None, *, before: bool) -> Scope:
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
