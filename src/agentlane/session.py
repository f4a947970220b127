"""Session: the shared conversation tree with its lanes, values and ledger. It alone writes to its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET

from agentlane.agent import Agent
from agentlane.branch import Branch, EntryKind
from agentlane.data import addresses, codec
from agentlane.data.addresses import ListAddress, ValueAddress
from agentlane.data.approvals import Approval
from agentlane.data.events import SessionSnapshot
from agentlane.data.inspection import Operation
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import LaneConfig, LaneState, Tools, WaitingApproval, WaitingQuestion
from agentlane.data.reads import id_text, page_limit
from agentlane.data.search import SearchHit, checked_search
from agentlane.data.writes import SetValue, Write
from agentlane.driver import branches
from agentlane.driver.effects import current_lane
from agentlane.driver.importing import import_history
from agentlane.driver.inbox import Inbox, restored_inboxes
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.past import STATUSES, OperationStatus, operations
from agentlane.driver.records import open_approvals, operation_record
from agentlane.driver.reserved import check_free_name
from agentlane.driver.retention import drop_results
from agentlane.driver.runtime import Runtime
from agentlane.errors import (
    CorruptSession,
    InvalidMessage,
    InvalidName,
    SessionClosed,
    UnknownBranch,
    WouldDeadlock,
)
from agentlane.forking import Scope, backup, fork
from agentlane.histories.findings import HistoryFormat, ImportReport
from agentlane.histories.read import read_history
from agentlane.ids import call_index
from agentlane.lane import AgentLane
from agentlane.names import check_name
from agentlane.session_data import SessionData
from agentlane.storage.contract import Commit, Compacted, SessionInfo, SessionStorage, Store
from agentlane.storage.exchange import ExchangeFile, write_export
from agentlane.storage.open import Target
from agentlane.storage.searching import hits_of
from agentlane.waiting import finish
from agentlane.watch import SessionSource, Watch, checked_options

T = TypeVar("T")
A = TypeVar("A", ValueAddress[Any], ListAddress[Any])
Deps = TypeVar("Deps")
Output = TypeVar("Output")


class Session(SessionData):
    """One open session. Made by ``open_session``; belongs to the event loop and the process that opened it.

    A call that writes and is cancelled is made whole or not at all: once it waits, its commit is on its way and stands.
    What became of it shows in the next read.
    """

    def __init__(self, runtime: Runtime, store: Store, *, owns_store: bool) -> None:
        super().__init__(runtime)
        self._store = store
        self._owns_store = owns_store
        self._cores: dict[str, LaneCore] = {}
        runtime.hub.lanes = self._cores
        self._closing: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        runtime.on_fault.append(self._stop_all)

    # Branches and lanes.

    def branches(self) -> list[str]:
        """The names of all branches, lanes included, in order."""
        self._runtime.check()
        return sorted(name for name, core in self._cores.items() if core.exists)

    def lanes(self) -> list[str]:
        """The names of all lanes, in order."""
        self._runtime.check()
        return sorted(name for name, core in self._cores.items() if core.config is not None)

    def branch(self, name: str) -> Branch:
        """A handle on a branch; ``UnknownBranch`` if there is none of that name."""
        self._runtime.check()
        text = id_text(name)
        core = None if text is None else self._cores.get(text)
        if core is None or not core.exists:
            known = ", ".join(self.branches()) or "none"
            raise UnknownBranch(f"session {self.id!r} has no branch {name!r}; it has {known}", name=name)
        return Branch(core)

    async def create_branch(self, name: str, at: str | None = None) -> Branch:
        """Make a branch whose tip is ``at`` (None: empty); durable on return. Copies nothing.

        Raises ``InvalidName`` if the name is taken or malformed, ``UnknownEntry``.
        """
        self._runtime.check_writable()
        name = check_name(name, "branch")
        check_free_name(name, "branch")
        at = await self._known_id(at)
        core = self._core(name)

        def decide() -> Decision[None]:
            if core.exists:
                raise InvalidName(f"branch {name!r} exists already; choose another name", value=name)
            return Decision([SetValue(addresses.branch_tip(name), codec.encode(at))], "branch", publish)

        def publish(_commit: Commit) -> None:
            core.exists = True
            core.reset(at, None, None, None)

        await core.line.run(decide)
        return Branch(core)

    async def delete_branch(self, name: str) -> None:
        """Take a branch away, and the lane on it with all that waits in its inbox; durable on return. One commit.

        Entries and the records of operations stay. The name is free again; handles raise ``UnknownBranch`` from now on.
        Cancelled, it is deleted or not. Raises ``UnknownBranch``, ``LaneBusy`` while an operation is open.
        """
        self._runtime.check_writable()
        await branches.delete_branch(self.branch(name)._core, self._cores)

    async def rename_branch(self, old: str, new: str) -> None:
        """Give a branch, and the lane on it, another name; durable on return. One commit. Handles follow.

        What is kept under the lane's name goes along: configuration, inbox, receipts. Records of operations keep the
        name that the lane had then, so an operation id that was used before is a ``RequestConflict`` afterwards.
        Cancelled, it is renamed or not. Raises ``UnknownBranch``, ``InvalidName`` for a name that is taken or
        malformed, ``LaneBusy`` while an operation is open.
        """
        self._runtime.check_writable()
        core, new = self.branch(old)._core, check_name(new, "branch")
        check_free_name(new, "branch")
        await branches.rename_branch(core, self._core(new), self._cores)

    async def import_messages(self, branch: str, messages: Iterable[object], *, format: HistoryFormat) -> ImportReport:
        """Append the messages of another program to a branch, made if there is none; durable on return.

        They are read as ``read_history`` reads them: every call has its result, nothing is lost, and the report names
        what was repaired. When they were said is kept in ``sent_at``, and usage in the answers; the ledger is of what
        this session was charged and takes no rows. What is long is written in several commits, and the branch moves in
        the last: killed before that, it is as it was, or not there, and entries that nothing leads to may stay in the
        store. Cancelled, it is made whole or not at all.

        Raises ``InvalidMessage`` with the path of what is no message of the form, before anything is written;
        ``InvalidName`` for a name that is malformed, ``LaneBusy`` while an operation is open on the lane.
        """
        self._runtime.check_writable()
        name = check_name(branch, "branch")
        check_free_name(name, "branch")
        history = read_history(messages, format=format)
        return await import_history(self._core(name), history)

    async def lane(self, name: str, agent: Agent[Deps, Output], *, at: str | None = None) -> AgentLane[Deps, Output]:
        """The lane ``name``, run with ``agent`` in this process; made in one commit if there is none.

        A new lane's tip is ``at`` (None: empty). A branch without a lane becomes one and keeps its tip. An existing
        lane is opened and nothing is written. Durable on return.

        Raises ``InvalidName`` (a name with ``child:`` is that of a call's run, and there once that has started),
        ``UnknownEntry``, ``ReadOnlySession`` (only if it must be made).
        """
        runtime = self._runtime
        runtime.check()
        if not isinstance(agent, Agent):
            raise InvalidMessage(f"lane {name!r}: an Agent is needed here, not {type(agent).__name__}")
        name = check_name(name, "lane")
        core = self._cores.get(name)
        if core is None or core.config is None:
            runtime.check_writable()
            check_free_name(name, "lane")
            at = await self._known_id(at)
            core = self._core(name)
            await core.line.run(self._making_lane(core, agent.name, at))
        core.agent = agent
        return AgentLane(core, agent)

    def open_operations(self) -> list[Operation]:
        """Operations that are not settled, oldest first. Committed state, no I/O."""
        self._runtime.check()
        found = [core.operation for core in self._cores.values() if core.operation is not None]
        return sorted(map(operation_record, found), key=lambda each: (each.started_at, each.operation_id))

    async def operations(
        self,
        *,
        status: OperationStatus | None = None,
        lane: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Operation]:
        """Operations of all times, open and settled ones, in the order of their ids, a page at a time.

        Ids that the library makes grow with time, so these come oldest first. ``after`` is the id of the last one of
        the page before. ``status`` is ``open`` or what a record says, ``lane`` the name that the lane had then. Only
        what a page needs is read. Raises ``InvalidMessage`` for another ``status`` or a bad ``limit``.
        """
        self._runtime.check()
        if status is not None and status not in STATUSES:
            raise InvalidMessage(f"status={status!r}: one of {', '.join(STATUSES)} is needed here", path="status")
        if after is not None and id_text(after) is None:
            raise InvalidMessage(f"after={after!r}: the id of an operation is needed here", path="after")
        bound = page_limit(limit)
        now_open = self.open_operations()
        return await operations(self._runtime, now_open, status=status, lane=lane, after=after, limit=bound)

    def watch(
        self, *, cursor: str | None = None, history: int = 50, coalesce: bool = False, buffer: int = 1_000
    ) -> Watch[SessionSnapshot]:
        """Watch all lanes of the session, those made while watching included. Options are those of ``lane.watch``."""
        checked_options(cursor, history, coalesce, buffer)
        source = SessionSource(self._runtime, self._cores)
        return Watch(source, cursor=cursor, history=history, coalesce=coalesce, buffer=buffer)

    def approvals(self) -> list[Approval]:
        """What waits for a person on any lane, oldest first. Committed state, no I/O.

        ``lane.decide`` answers what may run; ``lane.answer`` what a tool asks (``kind`` is ``question``).
        """
        self._runtime.check()
        operations = [core.operation for core in self._cores.values() if core.operation is not None]
        found = [approval for operation in operations for approval in open_approvals(operation)]
        return sorted(found, key=lambda each: (each.asked_at, each.approval_id))

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
        one. Looked at are the texts of messages (not thinking or calls) and of custom entries' data: those on
        ``branch`` (None: in the session), of ``types``, written from ``since`` on and before ``until`` (milliseconds
        since 1970), and of these the best ``limit``, at most 1,000.

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
        return await hits_of(storage, search, await storage.search(search, start=start, scan=scan), session_id=self.id)

    # Life.

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

    async def reopen(self) -> None:
        """After a fault: wait until every pass has stopped, read what the store holds, and go on. Handles stay valid.

        Does nothing on a session that is not faulted. Raises what opening raises; the session stays faulted then.
        """
        if self._runtime.phase in ("closing", "closed"):
            raise SessionClosed(f"session {self.id!r} is closed; open it again")
        if self._runtime.phase != "faulted":
            self._runtime.check()
            return
        if self._reopening is None or self._reopening.done():  # done: whoever waited for it was thrown away
            self._reopening = self._runtime.loop.create_task(self._reopen(), name="agentlane reopen")
        reopening = self._reopening
        try:
            await finish(reopening)
        finally:
            if self._reopening is reopening and reopening.done():
                self._reopening = None

    async def close(self) -> None:
        """End every pass as a controlled crash, finish admitted commits, and give up the store. Twice does nothing.

        Open operations stay open. Cancelling it does not skip the clean-up: the cancellation is raised afterwards.
        From another event loop it works only once the session's own is closed, and then only lets go.
        Raises ``WouldDeadlock`` from inside an effect of this session.
        """
        here = current_lane()
        if here is not None and any(here is core for core in self._cores.values()):
            raise WouldDeadlock(f"an effect of lane {here.name!r} must not close its own session")
        if self._runtime.outside.asked_here():
            raise WouldDeadlock("a hook must not close the session that it is asked in")
        if self._runtime.loop.is_closed():
            self._runtime.check_process()
            if self._runtime.phase != "closed":
                await self._let_go()
            return
        self._runtime.check_place()
        if self._runtime.phase == "closed":
            return
        if self._closing is None or self._closing.done():  # done and not closed: it was cancelled from outside
            self._closing = self._runtime.loop.create_task(self._close(), name="agentlane close")
        await finish(self._closing)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self._runtime.phase})"

    async def load(self) -> None:
        """Read the session's lanes and open operations. ``open_session`` calls it."""
        storage = self._runtime.storage
        tips = await storage.values(addresses.BRANCH_TIP)
        configs = await storage.values(addresses.LANE_CONFIG)
        states = await storage.values(addresses.LANE_STATE)
        for name in (*configs, *states):
            if name not in tips or name not in configs or name not in states:
                raise CorruptSession(
                    f"session {self.id!r}: lane {name!r} is not whole; branch, config or state is missing"
                )
        inboxes = await self._inboxes(storage, configs)
        operations = await self._open_operations(storage)
        payload = await storage.value(addresses.SESSION_NAME_ADDRESS)
        self._name = None if payload is None else codec.TEXT.decode(payload, "session name")
        self._runtime.open_operations = {id: operation.meta.lane for id, operation in operations.items()}
        for name in set(self._cores) - set(tips):
            self._cores[name].exists = False
            self._cores[name].reset(None, None, None, None)
        for name, tip in tips.items():
            config = codec.LANE_CONFIG.decode(configs[name], f"lane {name}") if name in configs else None
            state = codec.LANE_STATE.decode(states[name], f"lane {name}") if name in states else None
            self._load_lane(name, codec.OPTIONAL_TEXT.decode(tip, f"tip of {name}"), config, state, operations)
            if name in inboxes:
                self._cores[name].inbox = inboxes[name]
        for id, operation in operations.items():
            core = self._cores.get(operation.meta.lane)
            if core is None or core.operation is not operation:  # I3
                raise CorruptSession(
                    f"session {self.id!r}: operation {id} is open, but lane {operation.meta.lane!r} does not name it"
                )

    # Inside.

    def _load_lane(
        self,
        name: str,
        tip: str | None,
        config: LaneConfig | None,
        state: LaneState | None,
        operations: Mapping[str, OpenOperation],
    ) -> None:
        core = self._cores.get(name)
        if core is None:
            core = self._cores[name] = LaneCore(self._runtime, name, tip, self._cores)
        operation = None
        if state is not None and state.current is not None:
            operation = operations.get(state.current)
            if operation is None or operation.meta.lane != name:
                raise CorruptSession(
                    f"session {self.id!r}: lane {name!r} names operation {state.current}, not open there"
                )
        if operation is not None and core.operation is not None and core.operation.id == operation.id:
            operation.take_deps(core.operation.deps)  # the same process goes on after a fault
        core.exists = True
        core.reset(tip, config, state, operation)

    async def _open_operations(self, storage: SessionStorage) -> dict[str, OpenOperation]:
        metas = await storage.values(addresses.OP_META)
        configs = await storage.values(addresses.OP_CONFIG) if metas else {}
        states = await storage.values(addresses.OP_STATE) if metas else {}
        returned = await storage.values(addresses.OP_RETURNED) if metas else {}
        operations: dict[str, OpenOperation] = {}
        for id, meta in metas.items():
            if id not in configs or id not in states:
                raise CorruptSession(f"session {self.id!r}: operation {id} is not whole; config or state is missing")
            place = f"operation {id}"
            operations[id] = OpenOperation(
                id,
                codec.META.decode(meta, place),
                codec.CONFIG.decode(configs[id], place),
                codec.STATE.decode(states[id], place),
            )
            operations[id].restored = True
            if id in returned:
                operations[id].returned = codec.RETURNED.decode(returned[id], place)
        await self._name_calls(storage, operations)
        await self._find_approvals(storage, operations)
        return operations

    async def _find_approvals(self, storage: SessionStorage, operations: Mapping[str, OpenOperation]) -> None:
        """Read what waits for a person, so that it is listed, and answered, before anything drives."""
        states = [each.state for each in operations.values()]
        calls = [call for each in states if isinstance(each, Tools) for call in each.calls]
        if not any(isinstance(call, WaitingApproval | WaitingQuestion) for call in calls):
            return
        for id, payload in (await storage.values(addresses.PENDING_APPROVAL)).items():
            approval = codec.APPROVAL.decode(payload, f"approval {id}")
            operation = operations.get(approval.operation_id)
            index = None if operation is None else call_index(str(operation.state.answer), approval.call_id)
            if operation is None or index is None:
                raise CorruptSession(f"session {self.id!r}: approval {id} belongs to no call that is open")
            operation.pending[index] = approval

    async def _inboxes(self, storage: SessionStorage, lanes: Collection[str]) -> dict[str, Inbox]:
        items = await storage.values(addresses.INBOX)
        if not items:
            return {}
        inboxes = restored_inboxes(items, await storage.values(addresses.PENDING_ENTRY))
        for name in inboxes:
            if name not in lanes:
                raise CorruptSession(
                    f"session {self.id!r}: something waits on lane {name!r}, and there is no such lane"
                )
        return inboxes

    async def _name_calls(self, storage: SessionStorage, operations: Mapping[str, OpenOperation]) -> None:
        """Read the answers whose calls are under way, so that an inspection can name them before anything drives."""
        answers = {each.state.answer: each for each in operations.values() if isinstance(each.state, Tools)}
        for row in await storage.entries(list(answers)) if answers else ():
            if row is not None:
                body = codec.BODY.decode(row.payload, f"entry {row.id}")
                if isinstance(body, AssistantMessage):
                    answers[row.id].take_answer(body)

    async def _known_id(self, entry_id: str | None) -> str | None:
        return None if entry_id is None else (await self.entry(entry_id)).id

    def _core(self, name: str) -> LaneCore:
        core = self._cores.get(name)
        if core is None:
            core = self._cores[name] = LaneCore(self._runtime, name, None, self._cores)
        return core

    def _making_lane(
        self, core: LaneCore, agent_name: str, at: str | None
    ) -> Callable[[], Decision[None] | Done[None]]:
        def decide() -> Decision[None] | Done[None]:
            if core.config is not None:
                return Done(None)
            name = core.name  # it may have been renamed since
            config, state = LaneConfig(agent=agent_name), LaneState()
            tip = core.tip if core.exists else at
            writes: list[Write] = [] if core.exists else [SetValue(addresses.branch_tip(name), codec.encode(tip))]
            writes.append(SetValue(addresses.lane_config(name), codec.encode(config)))
            writes.append(SetValue(addresses.lane_state(name), codec.encode(state)))

            def publish(_commit: Commit) -> None:
                core.exists = True
                core.reset(tip, config, state, None)

            return Decision(writes, "lane", publish)

        return decide

    def _stop_all(self, _error: BaseException) -> None:
        """The session is faulted: fail what waits in the lines, stop every pass."""
        faulted = self._runtime.faulted()
        for core in self._cores.values():
            core.line.abandon(faulted)
            core.idle.fail(faulted)
            if core.running is not None:
                core.running.stop("fault")
        self._runtime.outside.interrupt()
        self._runtime.hub.end(faulted)

    async def _passes_ended(self) -> None:
        for core in tuple(self._cores.values()):
            if core.running is not None:
                await core.running.ended()

    async def _reopen(self) -> None:
        await self._passes_ended()
        runtime = self._runtime
        await runtime.storage.close()
        storage = await self._store.open(runtime.session_id, probe=runtime.probe)
        runtime.replace_storage(storage)
        try:
            await self.load()  # still faulted for everybody else: nothing is written beside what is being read
        except GeneratorExit:
            storage.kill()
            raise
        except BaseException as error:
            await storage.close()
            runtime.cause = error
            raise
        if runtime.phase == "faulted":
            runtime.resume()

    async def _let_go(self) -> None:
        """Give up the store: whatever ran here ended with its event loop, as it does when a process dies."""
        self._runtime.phase = "closed"
        try:
            await self._runtime.storage.close()
        finally:
            if self._owns_store:
                await self._store.close()

    async def _close(self) -> None:
        runtime = self._runtime
        was_open, runtime.phase = runtime.phase == "open", "closing"
        try:
            if self._reopening is not None:
                await asyncio.wait({self._reopening})  # what it opens is closed below
            for core in self._cores.values():
                if core.running is not None and was_open:
                    core.running.stop("close")
            await self._passes_ended()
            await runtime.outside.end(runtime)
            closed = SessionClosed(f"session {self.id!r} closed while a caller waited for a lane to be idle")
            for core in self._cores.values():
                core.idle.fail(closed)
                if core.operation is not None:
                    core.operation.deps = UNSET
            await runtime.end_clean_ups()
        finally:
            runtime.hub.end(None)
            try:
                await runtime.storage.close()
            finally:
                if self._owns_store:
                    await self._store.close()
                runtime.threads.close()
                runtime.phase = "closed"
