"""Forks and backups of an open session: a session of its own, made of what this one holds at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentlane.data import codec
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidMessage
from agentlane.names import check_session_id
from agentlane.storage.contract import SessionInfo, Store
from agentlane.storage.forks import Branch, Rows, Scope, checked_wish, make_fork, pick_branch
from agentlane.storage.open import Target, session_of
from agentlane.storage.targets import checked_place, opened


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
    target = checked_place(target)
    wish = checked_wish(scope=scope, branch=branch, at=at, before=before, session_id=session_id, metadata=metadata)
    chosen = None
    if wish.scope == "branch":
        known = {name for name, core in cores.items() if core.exists}
        core = cores[pick_branch(runtime.session_id, wish.branch, known)]
        chosen = Branch(core.name, core.tip, None if core.config is None else codec.encode(core.config))
    async with opened(target, store, runtime.clock, runtime.ids) as place:
        return await make_fork(runtime.storage, place, wish, chosen)


async def backup(runtime: Runtime, store: Store, target: Target, *, session_id: str | None) -> SessionInfo:
    """See ``Session.backup``."""
    runtime.check()
    checked = checked_place(target)
    if checked is None:
        raise InvalidMessage("target: a path or a store is needed here, where the backup is to be")
    wanted = runtime.session_id if session_id is None else check_session_id(session_id)
    if session_id is None:
        wanted = session_of(checked) or wanted
    snapshot = await runtime.storage.snapshot()
    try:
        info = snapshot.info
        async with opened(checked, store, runtime.clock, runtime.ids) as place:
            return await place.load(
                Rows(snapshot.pages()),
                last_seq=snapshot.last_seq,
                session_id=wanted,
                metadata=info.metadata,
                created_at=info.created_at,
            )
    finally:
        await snapshot.close()
