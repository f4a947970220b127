"""Session: the shared conversation tree with its lanes, values and ledger. It alone writes to its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET

from agentlane.agent import Agent
from agentlane.branch import Branch
from agentlane.data import addresses, codec
from agentlane.data.addresses import ListAddress, ValueAddress
from agentlane.data.approvals import Approval
from agentlane.data.events import SessionSnapshot
from agentlane.data.inspection import Operation
from agentlane.data.operations import LaneConfig, LaneState
from agentlane.data.reads import id_text, page_limit
from agentlane.data.writes import SetValue, Write
from agentlane.driver import branches
from agentlane.driver.effects import current_lane
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.past import STATUSES, OperationStatus, operations
from agentlane.driver.records import open_approvals, operation_record
from agentlane.driver.reserved import check_free_name
from agentlane.driver.restoring import read_inboxes, read_open_operations
from agentlane.driver.runtime import Runtime
from agentlane.errors import (
    CorruptSession,
    InvalidMessage,
    InvalidName,
    SessionClosed,
    WouldDeadlock,
)
from agentlane.histories.findings import HistoryFormat, ImportReport
from agentlane.lane import AgentLane
from agentlane.names import check_name
from agentlane.session_whole import WholeSession
from agentlane.storage.contract import Commit, Store
from agentlane.waiting import finish
from agentlane.watch import SessionSource, Watch, checked_options

T = TypeVar("T")
A = TypeVar("A", ValueAddress[Any], ListAddress[Any])
Deps = TypeVar("Deps")
Output = TypeVar("Output")


class Session(WholeSession):
    """One open session. Made by ``open_session``; belongs to the event loop and the process that opened it.

    A call that writes and is cancelled is made whole or not at all: once it waits, its commit is on its way and stands.
    What became of it shows in the next read.
    """

    def __init__(self, runtime: Runtime, store: Store, *, owns_store: bool) -> None:
        super().__init__(runtime, store)
        self._owns_store = owns_store
        runtime.hub.lanes = self._cores
        self._closing: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        runtime.on_fault.append(self._stop_all)

    # Branches and lanes.

    def lanes(self) -> list[str]:
        """The names of all lanes, in order."""
        self._runtime.check()
        return sorted(name for name, core in self._cores.items() if core.config is not None)

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
        from agentlane.driver.importing import import_history
        from agentlane.histories.read import read_history

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
        core.show_as(agent)
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

    # Life.

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
        self._runtime.marks.read(await storage.values(addresses.SESSION_FEATURE))
        if not storage.read_only:
            self._runtime.marks.check_writable(self.id)
        tips = await storage.values(addresses.BRANCH_TIP)
        configs = await storage.values(addresses.LANE_CONFIG)
        states = await storage.values(addresses.LANE_STATE)
        for name in (*configs, *states):
            if name not in tips or name not in configs or name not in states:
                raise CorruptSession(
                    f"session {self.id!r}: lane {name!r} is not whole; branch, config or state is missing"
                )
        inboxes = await read_inboxes(storage, configs, self.id)
        operations = await read_open_operations(storage, self.id)
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

    async def _known_id(self, entry_id: str | None) -> str | None:
        return None if entry_id is None else await self._known_entry(entry_id)

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
        with suppress(OSError):  # of what is faulted nothing is wanted any more
            await runtime.storage.close()
        storage = await self._store.open(runtime.session_id, probe=runtime.probe)
        runtime.replace_storage(storage)
        try:
            await self.load()  # still faulted for everybody else: nothing is written beside what is being read
        except GeneratorExit:
            storage.kill()
            raise
        except BaseException as error:
            runtime.cause = error
            with suppress(Exception):  # what went wrong before is the one to tell
                await storage.close()
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
