"""Session: the shared conversation tree with its lanes, values and ledger. It alone writes to its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from agentlane.agent import Agent
from agentlane.branch import Branch
from agentlane.data import addresses, codec
from agentlane.data.addresses import ListAddress, ValueAddress
from agentlane.data.border import clean_json, clean_text
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import LaneConfig, LaneState, Tools
from agentlane.data.reads import cursor, id_text, page_limit
from agentlane.data.usage import Stats, Usage, UsageRow
from agentlane.data.writes import AppendElement, DeleteList, DeleteValue, SetValue, Write
from agentlane.driver.effects import current_lane
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.ledger import record_adjustment
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.runtime import Runtime
from agentlane.errors import (
    CorruptSession,
    InvalidMessage,
    InvalidName,
    SessionClosed,
    UnknownBranch,
    UnknownEntry,
    WouldDeadlock,
)
from agentlane.inspection import Operation, operation_record
from agentlane.lane import AgentLane
from agentlane.names import check_name
from agentlane.storage.contract import Commit, LedgerRow, SessionStorage, Store
from agentlane.waiting import finish

T = TypeVar("T")
A = TypeVar("A", ValueAddress[Any], ListAddress[Any])
Deps = TypeVar("Deps")
Output = TypeVar("Output")


class Session:
    """One open session. Made by ``open_session``; belongs to the event loop and the process that opened it."""

    def __init__(self, runtime: Runtime, store: Store, *, owns_store: bool) -> None:
        self._runtime = runtime
        self._store = store
        self._owns_store = owns_store
        self._cores: dict[str, LaneCore] = {}
        self._name: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        runtime.on_fault.append(self._stop_all)

    # What it is.

    @property
    def id(self) -> str:
        """The session's id."""
        return self._runtime.session_id

    @property
    def metadata(self) -> dict[str, Any]:
        """What the session was created with (a copy)."""
        return dict(clean_json(self._runtime.storage.info.metadata))

    @property
    def findings(self) -> tuple[str, ...]:
        """What was noticed and has no other channel: a torn tail cut off, a task left behind, a late result refused."""
        own = self._runtime.findings
        return (*own, *(text for text in self._runtime.storage.findings if text not in own))

    @property
    def name(self) -> str | None:
        """The name that a person gave the session, if any."""
        return self._name

    async def set_name(self, name: str | None) -> None:
        """Name the session, or take its name away; durable on return."""
        text = None if name is None else clean_text(name, "name")
        address = addresses.SESSION_NAME_ADDRESS
        write = DeleteValue(address) if text is None else SetValue(address, codec.encode(text))

        def publish(_commit: Commit) -> None:
            self._name = text

        await self._commit([write], "name", publish)

    async def label(self, entry_id: str) -> str | None:
        """The label of an entry, if it has one."""
        self._runtime.check()
        text = id_text(entry_id)
        payload = None if text is None else await self._runtime.storage.value(addresses.label(text))
        return None if payload is None else codec.TEXT.decode(payload, f"label of {entry_id}")

    async def set_label(self, entry_id: str, label: str | None) -> None:
        """Label an entry, or take its label away; durable on return. ``UnknownEntry`` if it is not there."""
        address = addresses.label((await self.entry(entry_id)).id)
        text = None if label is None else codec.encode(clean_text(label, "label"))
        await self._commit([DeleteValue(address) if text is None else SetValue(address, text)], "label")

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

    async def lane(self, name: str, agent: Agent[Deps, Output], *, at: str | None = None) -> AgentLane[Deps, Output]:
        """The lane ``name``, run with ``agent`` in this process; made in one commit if there is none.

        A new lane's tip is ``at`` (None: empty). A branch without a lane becomes one and keeps its tip. An existing
        lane is opened and nothing is written. Durable on return.

        Raises ``InvalidName``, ``UnknownEntry``, ``ReadOnlySession`` (only if it must be made).
        """
        runtime = self._runtime
        runtime.check()
        if not isinstance(agent, Agent):
            raise InvalidMessage(f"lane {name!r}: an Agent is needed here, not {type(agent).__name__}")
        name = check_name(name, "lane")
        core = self._cores.get(name)
        if core is None or core.config is None:
            runtime.check_writable()
            at = await self._known_id(at)
            core = self._core(name)
            await core.line.run(self._making_lane(core, name, agent.name, at))
        core.agent = agent
        return AgentLane(core, agent)

    def open_operations(self) -> list[Operation]:
        """Operations that are not settled, oldest first. Committed state, no I/O."""
        self._runtime.check()
        found = [core.operation for core in self._cores.values() if core.operation is not None]
        return sorted(map(operation_record, found), key=lambda each: (each.started_at, each.operation_id))

    # Entries.

    async def entry(self, entry_id: str) -> Entry:
        """One entry; ``UnknownEntry`` if it is not there."""
        self._runtime.check()
        text = id_text(entry_id)
        row = None if text is None else (await self._runtime.storage.entries([text]))[0]
        if row is None:
            raise UnknownEntry(f"no entry {entry_id!r} in session {self.id!r}", entry_id=entry_id)
        return codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload)

    async def entries(self, *, after_seq: int = 0, limit: int | None = None) -> list[Entry]:
        """Entries of all branches in the order they were written, beyond ``after_seq``.

        ``InvalidMessage`` for an ``after_seq`` that is no whole number, and for a ``limit`` that is neither None nor a
        whole number of at least 0.
        """
        self._runtime.check()
        rows = await self._runtime.storage.scan(after_seq=cursor(after_seq, "after_seq"), limit=page_limit(limit))
        return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in rows]

    # Values and lists of the application.

    @overload
    async def value(self, address: ValueAddress[T]) -> T | None: ...
    @overload
    async def value(self, address: ValueAddress[T], default: T) -> T: ...
    async def value(self, address: ValueAddress[T], default: T | None = None) -> T | None:
        """The value at an application's address, or ``default``. ``CorruptSession`` if it is not of the type.

        ``InvalidMessage`` for what is no ``ValueAddress``, here and below.
        """
        self._runtime.check()
        payload = await self._runtime.storage.value(_checked_address(address, ValueAddress).address)
        return default if payload is None else _decoded(payload, address.type, str(address.address))

    async def set_value(self, address: ValueAddress[T], value: T) -> None:
        """Replace the value; durable on return. ``InvalidMessage`` for what is not JSON data, or not of the type."""
        where = _checked_address(address, ValueAddress)
        await self._commit([SetValue(where.address, _encoded(value, where.type))], "value")

    async def delete_value(self, address: ValueAddress[Any]) -> None:
        """Remove the value, if there is one; durable on return."""
        await self._commit([DeleteValue(_checked_address(address, ValueAddress).address)], "value")

    async def values(self, namespace: str, type: type[T], *, prefix: str = "") -> dict[str, T]:
        """The values of an application's namespace whose keys begin with ``prefix``, by key.

        ``InvalidName`` for what is no application's namespace, or no beginning of a key.
        """
        self._runtime.check()
        namespace = addresses.app_address(namespace, "any").namespace
        start = id_text(prefix)
        if start is None:
            raise InvalidName(f"prefix {prefix!r}: the beginning of a key is needed here", value=repr(prefix))
        found = await self._runtime.storage.values(namespace, start)
        return {key: _decoded(payload, type, f"{namespace}/{key}") for key, payload in found.items()}

    async def append(self, address: ListAddress[T], value: T) -> int:
        """Append to a list; durable on return. Gives the element's ``seq``. Errors are those of ``set_value``."""
        where = _checked_address(address, ListAddress)
        commit = await self._commit([AppendElement(where.address, _encoded(value, where.type))], "list")
        return commit.first_seq

    async def elements(
        self, address: ListAddress[T], *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[int, T]]:
        """Elements of a list with their ``seq``, in order or reversed, beyond ``after`` in that direction.

        ``InvalidMessage`` for what is no ``ListAddress``, and as for ``entries``.
        """
        self._runtime.check()
        where = _checked_address(address, ListAddress).address
        behind = None if after is None else cursor(after, "after")
        found = await self._runtime.storage.elements(where, after=behind, limit=page_limit(limit), reverse=reverse)
        return [(each.seq, _decoded(each.payload, address.type, str(address.address))) for each in found]

    async def delete_list(self, address: ListAddress[Any]) -> None:
        """Remove a list whole; durable on return."""
        await self._commit([DeleteList(_checked_address(address, ListAddress).address)], "list")

    # Usage.

    def stats(self) -> Stats:
        """Number of entries and the totals of the usage ledger, as committed. No I/O."""
        self._runtime.check()
        return self._runtime.storage.stats()

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        """Rows of the usage ledger in the order they were written, beyond ``after_seq``.

        Errors are those of ``entries``.
        """
        self._runtime.check()
        return await self._runtime.storage.usage(after_seq=cursor(after_seq, "after_seq"), limit=page_limit(limit))

    async def record_usage(
        self, usage: Usage, *, operation_id: str | None = None, entry_id: str | None = None, note: str | None = None
    ) -> UsageRow:
        """Add an adjustment to the ledger; durable on return. ``UnknownEntry``, ``InvalidMessage``."""
        return await record_adjustment(self._runtime, usage, operation_id=operation_id, entry_id=entry_id, note=note)

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
        if self._reopening is None:
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
        Raises ``WouldDeadlock`` from inside an effect of this session.
        """
        here = current_lane()
        if here is not None and any(here is core for core in self._cores.values()):
            raise WouldDeadlock(f"an effect of lane {here.name!r} must not close its own session")
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
            core = self._cores[name] = LaneCore(self._runtime, name, tip)
        operation = None
        if state is not None and state.current is not None:
            operation = operations.get(state.current)
            if operation is None or operation.meta.lane != name:
                raise CorruptSession(
                    f"session {self.id!r}: lane {name!r} names operation {state.current}, not open there"
                )
        core.exists = True
        core.reset(tip, config, state, operation)

    async def _open_operations(self, storage: SessionStorage) -> dict[str, OpenOperation]:
        metas = await storage.values(addresses.OP_META)
        configs = await storage.values(addresses.OP_CONFIG) if metas else {}
        states = await storage.values(addresses.OP_STATE) if metas else {}
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
        await self._name_calls(storage, operations)
        return operations

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
            core = self._cores[name] = LaneCore(self._runtime, name, None)
        return core

    def _making_lane(
        self, core: LaneCore, name: str, agent_name: str, at: str | None
    ) -> Callable[[], Decision[None] | Done[None]]:
        def decide() -> Decision[None] | Done[None]:
            if core.config is not None:
                return Done(None)
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

    async def _commit(
        self, writes: list[Write], name: str, publish: Callable[[Commit], None] = lambda _commit: None
    ) -> Commit:
        self._runtime.check_writable()
        return await self._runtime.submit(writes, publish, name)

    def _stop_all(self, _error: BaseException) -> None:
        """The session is faulted: fail what waits in the lines, stop every pass."""
        faulted = self._runtime.faulted()
        for core in self._cores.values():
            core.line.abandon(faulted)
            if core.running is not None:
                core.running.stop("fault")

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
        except BaseException as error:
            await storage.close()
            runtime.cause = error
            raise
        if runtime.phase == "faulted":
            runtime.resume()

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
        finally:
            try:
                await runtime.storage.close()
            finally:
                if self._owns_store:
                    await self._store.close()
                runtime.threads.close()
                runtime.phase = "closed"


def _checked_address(address: A, kind: type[A]) -> A:
    if not isinstance(address, kind):
        raise InvalidMessage(f"address: a {kind.__name__} is needed here, not {type(address).__name__}", path="address")
    return address


def _encoded(value: Any, type: Any) -> bytes:
    """A value as it is stored, after making sure that it can be read back as the type."""
    try:
        if isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value)
        payload = codec.encode(clean_json(value, "value"))
        msgspec.json.decode(payload, type=type)
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise InvalidMessage(f"value: {error}", path="value") from error
    return payload


def _decoded(payload: bytes, type: Any, place: str) -> Any:
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.DecodeError as error:
        raise CorruptSession(f"value at {place} is not of the type that was asked for: {error}", place=place) from error
