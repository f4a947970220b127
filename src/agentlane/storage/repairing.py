"""``repair`` of a store: makes a session of everything that can be read of a damaged one, so that it holds together."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Protocol

from agentlane.clock import SystemClock
from agentlane.data.repairs import RepairReport
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.ids import Uuid7Source
from agentlane.names import check_session_id
from agentlane.storage.contract import Store
from agentlane.storage.holding import Hold
from agentlane.storage.mended import Mended
from agentlane.storage.salvage import Salvage
from agentlane.storage.verifying import Verifying

REPAIRED_FROM = "repaired_from"
"""The key of a copy's metadata that says what it was made of."""


class Repairing(Verifying):
    """What makes a store able to repair its sessions: inherit it beside ``Store``."""

    def whole_folder(self: Store) -> Store:
        """The store that a copy goes to that is made beside its session."""
        return self

    async def repair(
        self: _Repairing,
        source: str,
        target: str | os.PathLike[str] | Store | None = None,
        *,
        session_id: str | None = None,
    ) -> RepairReport:
        """Make a session, in ``target``, of everything that can be read of the damaged one ``source``, which is never
        touched.

        ``target`` None: in this store, under ``session_id`` or a fresh id. Else it is a path as ``open_session`` takes
        it, or another store, and if ``session_id`` is None the copy has the id of the damaged session there, for a
        ``.jsonl`` path its stem. It is whole and durable on return, can be opened and driven, and ``verify`` finds
        nothing more that is lost in it. What can be read is in it byte for byte; what is lost is stood in for where
        others name it; what cannot stay where it was is set aside on the branch ``recovered/records``, and the report
        says all of that.

        Operations of which every record is there stay open. All others that were open are ended as ``failed`` with the
        code ``uncertain``, and their calls get results that say that they may have run: no call runs again whose intent
        may be lost. A session that somebody owns is copied as it was at one moment; close it first, or its calls may
        run both there and in the copy.

        ``UnknownSession``; ``InvalidMessage``, ``InvalidDefinition`` for a target that is none; ``CorruptSession``
        where nothing can be read; ``UnsupportedFormat`` where a newer version wrote something: that one can read it.
        ``InvalidWrite`` if the id is taken; ``InvalidName``; ``OSError``: what cannot be read now is not left out.
        Refused, failed, cancelled or killed it leaves no session (cancelled at the very end, a whole one).
        """
        # By name: the stores inherit from here, and what opens a target knows the stores.
        targets = import_module("agentlane.storage.targets")
        target = targets.checked_place(target)
        wanted = None if session_id is None else check_session_id(session_id)
        me: object = self
        if target is me:
            target = None
        elif target is not None and wanted is None:
            wanted = import_module("agentlane.storage.open").session_of(target) or source
        clock = SystemClock()
        salvage = await self.salvage(source)
        async with Hold(salvage, salvage.close, salvage.release):
            async with targets.opened(target, self, clock, Uuid7Source(clock)) as place:
                report = await _repaired(source, salvage, place, wanted)
        return report


class _Repairing(Protocol):
    async def salvage(self, session_id: str) -> Salvage: ...

    def whole_folder(self) -> Store: ...


async def _repaired(session_id: str, salvage: Salvage, place: Store, wanted: str | None) -> RepairReport:
    mended = await Mended.read(session_id, salvage)
    source = mended.source
    # In a SQLite file, which has no checksums, what seems newer in a row may be damage as well.
    newer = next((each for each in source.findings if each.code == "newer_format" and "table" not in each.place), None)
    if newer is not None:
        raise UnsupportedFormat(f"session {session_id!r} is not repaired: {newer}", place=newer.place)
    if not source.entries + source.usage_rows + source.elements + source.values and source.losses:
        first = source.losses[0]
        raise CorruptSession(f"session {session_id!r}: nothing of it can be read; {first}", place=first.place)
    info = salvage.info
    made = await place.load(
        mended.rows(),
        last_seq=mended.last_seq,
        session_id=wanted,
        metadata={**info.metadata, REPAIRED_FROM: {"session": info.id, "seq": salvage.last_seq}},
        created_at=info.created_at,
    )
    return mended.report(made.id)
