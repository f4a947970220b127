"""What is done with a session as a whole: it is copied, exported, searched, looked at for damage and kept small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agentlane.branch import Branch, EntryKind
from agentlane.data.findings import VerifyReport
from agentlane.data.reads import id_text
from agentlane.data.search import SearchHit, checked_search
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.retention import drop_results
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidMessage, UnknownBranch
from agentlane.session_data import SessionData
from agentlane.storage.contract import Compacted, SessionInfo, Store

if TYPE_CHECKING:  # most programs do none of this to most sessions: what it takes is imported when it is asked for
    from agentlane.storage.exchange import ExchangeFile
    from agentlane.storage.forks import Scope
    from agentlane.storage.open import Target


class WholeSession(SessionData):
    """The part of a session that takes all of it at once. Not made by itself: see ``Session``."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        super().__init__(runtime)
        self._store = store
        self._cores: dict[str, LaneCore] = {}

    def branches(self) -> list[str]:
        """The names of all branches, lanes included, in order."""
        self._runtime.check()
        return sorted(name for name, core in self._cores.items() if core.exists)

    def branch(self, name: str) -> Branch:
        """A handle on a branch; ``UnknownBranch`` if there is none of that name."""
        self._runtime.check()
        text = id_text(name)
        core = None if text is None else self._cores.get(text)
        if core is None or not core.exists:
            known = ", ".join(self.branches()) or "none"
            raise UnknownBranch(f"session {self.id!r} has no branch {name!r}; it has {known}", name=name)
        return Branch(core)

    # Copies.

    async def fork(
        self,
        target: Target | None = None,
        *,
        scope: Scope | None = None,
        branch: str | None = None,
        at: str | None = None,
        before: bool = False,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionInfo:
        """Make another session of this one as it is now; it is whole and durable on return, and nobody has it open.

        ``scope="tree"`` (the default) copies all entries and branches. ``scope="branch"``, which need not be said where
        ``branch`` or ``at`` is given, copies one branch: ``branch`` (which may be left out where there is only one) up
        to its tip, or to its entry ``at``, or with ``before=True`` to the one before that. Entries keep ids, times and
        sequence numbers, and what is written to the fork comes behind those of this session. Lanes come with their
        configuration and idle; the session's name, labels of the entries, and the application's values and lists come
        too. Operations, what they hold and what waits for them, their records, receipts and the usage ledger stay here:
        a call under way has no result there, and the next accept gives it one.

        ``target``: where the fork is to be; None: in the store of this session (for a session that is one ``.jsonl``
        file: in a file beside it), else a path as ``open_session`` takes it, or a store. ``session_id`` is given to
        the fork (None: a new id, and for a ``.jsonl`` path its stem). ``metadata`` becomes the fork's; None: this
        session's. Its key ``forked_from`` says ``session``, ``seq`` (the newest number there was), and for a branch
        ``branch`` and ``entry``, unless ``metadata`` has that key itself.

        Runs beside everything else, on a session that is open for reading too. Memory is bounded but for ids. Cancelled
        or failed it leaves no session (cancelled at the very end, a whole one).

        Raises ``UnknownBranch``, also where one must be named; ``UnknownEntry`` for an ``at`` that is not on the
        branch; ``InvalidMessage`` for arguments that do not go together or a target that is none; ``InvalidWrite`` for
        an id that is taken; and what the target raises when a session is made there.
        """
        from agentlane.forking import fork

        return await fork(
            self._runtime,
            self._store,
            self._cores,
            target,
            scope=scope,
            branch=branch,
            at=at,
            before=before,
            session_id=session_id,
            metadata=metadata,
        )

    async def backup(self, target: Target, *, session_id: str | None = None) -> SessionInfo:
        """Make a whole copy of the session as it is now, operations that are open included; durable on return.

        ``target`` is a path as ``open_session`` takes it, or a store of any kind. The copy has this session's id, for a
        ``.jsonl`` path its stem, or ``session_id``; everything else is as it is here: open operations go on there as
        after the death of a process, so a call that is under way here may run again there if it may be replayed.
        Idempotency keys begin with the session's id, so they are the same only under the same one.

        Runs beside everything else, on a session that is open for reading too. Memory is bounded but for ids. Cancelled
        or failed it leaves nothing (cancelled at the very end, a whole copy). A next backup needs another id or place.

        Raises ``InvalidWrite`` for an id that is taken at the target, ``InvalidMessage`` or ``InvalidDefinition`` for a
        target that is none, and what the target raises when a session is made there.
        """
        from agentlane.forking import backup

        return await backup(self._runtime, self._store, target, session_id=session_id)

    async def export(self, file: ExchangeFile) -> None:
        """Write all of the session as it is now to ``file``, operations that are open included.

        ``file`` is a path, at which nothing may be (whole and synced on return, else not there), or a binary file
        object. ``store.import_session`` makes a session of it, in any store; named ``{session id}.jsonl`` it can be
        opened where it is, too. Runs beside everything else, on a session that is open for reading too; memory is
        bounded. Failed or cancelled it leaves no file, and in a file object a part that is refused.

        Raises ``InvalidWrite`` for a path at which there is something, ``InvalidName`` for one where nothing can be,
        ``SessionOwned`` while another export is written there, ``InvalidMessage`` for what is neither a path nor a
        binary file, and ``OSError`` of the file.
        """
        from agentlane.storage.exchange import write_export

        self._runtime.check()
        snapshot = await self._runtime.storage.snapshot()
        try:
            await write_export(snapshot, file)
        finally:
            await snapshot.close()

    async def search(
        self,
        text: str,
        *,
        branch: str | None = None,
        types: Iterable[EntryKind] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 20,
        prefix: bool = False,
        scan: bool = False,
    ) -> list[SearchHit]:
        """Entries that hold every word of ``text``, best first, then newest. A read, whatever state lanes are in.

        ``text`` is what a person typed: letters and digits make words, case and accents do not count, all else parts
        words and means nothing; without a word nothing is found. With ``prefix`` the last word may be the beginning of
        one. Looked at are the texts of messages (not thinking or calls), of summaries, and of custom entries' data:
        those on ``branch`` (None: in the session), of ``types``, written from ``since`` on and before ``until``
        (milliseconds since 1970), and of these the best ``limit``, at most 1,000.

        On SQLite the first search makes an index in the file, and each one brings it up to date; cancelled, it is left
        as far as it got. Elsewhere, and with ``scan``, the entries are read. Raises ``UnknownBranch``,
        ``InvalidMessage`` for what is none of these; ``SearchUnavailable`` where SQLite has no FTS5, without ``scan``.
        """
        self._runtime.check()
        search = checked_search(text, types=types, since=since, until=until, limit=limit, prefix=prefix)
        start = None
        if branch is not None:
            start = self.branch(branch).tip()
            if start is None:
                return []
        storage = self._runtime.storage
        from agentlane.storage.searching import hits_of

        return await hits_of(storage, search, await storage.search(search, start=start, scan=scan), session_id=self.id)

    # Upkeep.

    async def verify(self) -> VerifyReport:
        """Look for damage in all that is stored of the session: what is wrong, where, and what to do about it.

        Beside its own work, also on a session that is open for reading, or faulted: it is looked at as it is stored
        at one moment, by reads of its own. Nothing is changed, no lane waits, memory is bounded but for ids. A session
        with nothing wrong has no findings. One that does not open is looked at by ``store.verify(session_id)``.

        Cancelled, nothing is left behind. Raises ``SessionClosed``, ``StoreBusy``, ``OSError`` where it may not be
        read, ``UnknownSession`` where it was removed, or is kept in a store that is gone.
        """
        self._runtime.check_place()
        if self._runtime.phase != "faulted":
            self._runtime.check()
        return await self._store.verify(self.id)

    async def drop_results(self, *, before: int) -> int:
        """Forget operations that ended before a time (milliseconds since 1970): their records, and the receipts of
        messages that they took. How many records were dropped; durable on return.

        The conversation, its usage and all else stay. A dropped operation is unknown to ``result``, ``operations``,
        ``drive`` and ``retry``, and its id and the request ids of those messages mean nothing any more: what is sent
        with them again is new. What an operation that is open may still read is kept. Many are dropped in several
        commits; cancelled or killed, some of them. ``compact_storage`` gives their room back.

        Raises ``InvalidMessage`` for a time that is none, ``ReadOnlySession``, ``SessionFaulted``.
        """
        self._runtime.check_writable()
        if type(before) is not int:
            raise InvalidMessage(f"before={before!r}: milliseconds since 1970 are needed here", path="before")
        return await drop_results(self._runtime, self._cores, before)

    async def compact_storage(self) -> Compacted:
        """Give back what holds only superseded state, and say how many bytes there were and are.

        Nothing changes to any reader, and lanes go on meanwhile. A JSONL session is written anew beside its file, which
        it then replaces (that also happens by itself, see ``JsonlStore``). A SQLite file is written anew as a whole:
        commits of all its sessions wait for that long. In memory nothing superseded is held.

        Raises ``OSError`` (nothing has changed), ``StoreBusy``, ``ReadOnlySession``, ``SessionFaulted``,
        ``SessionClosed`` also when the session is closed meanwhile. Cancelled, it may be done all the same.
        """
        self._runtime.check_writable()
        return await self._runtime.storage.compact()
