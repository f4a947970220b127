"""One history: everything that outlives the processes in it, and the processes, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic

from msgspec import UNSET
from typing_extensions import TypeVar

from agentlane.agent import Agent
from agentlane.data import addresses
from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.results import OperationResult, Settled, Waiting, is_for_retry
from agentlane.data.writes import AppendElement, SetValue, Write
from agentlane.hooks import HookPoint
from agentlane.ids import call_id
from agentlane.lane import AgentLane
from agentlane.opening import open_session
from agentlane.session import Session
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage, Store
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.decoded import state_of
from agentlane.testing.matrix.family import family_of
from agentlane.testing.matrix.found import Findings, FoundCall, FoundRequest, FoundSummary
from agentlane.testing.matrix.held import Held
from agentlane.testing.matrix.stops import Stops, stops_text
from agentlane.testing.matrix.stores import SESSION_ID, Place
from agentlane.testing.matrix.witness import Witness
from agentlane.testing.trace import Trace
from agentlane.testing.wrapping import WrappedStorage, WrappedStore

W = TypeVar("W", default=Any)


class History(Generic[W]):
    """Everything that a process's death leaves as it is, and what each process found and did.

    ``world`` is the scenario's own: what its tools do their effects to. ``clock`` stands still unless it is advanced.
    ``trace`` and ``witness`` have every commit, start and request of all processes. Once the history has come to its
    end, ``messages`` (of the lane ``main``), ``results``, ``done`` and ``interrupted`` say what became of it.
    """

    def __init__(self, place: Place, world: W, *, store: str = "", stops: Stops = ()) -> None:
        self.place = place
        self.world = world
        self.store_name = store
        self.stops = stops
        self.clock = ManualClock()
        self.trace = Trace()
        self.witness = Witness()
        self.lives: list[Life[W]] = []
        self.findings: list[Findings] = []
        self.messages: list[Any] = []
        self.results: list[OperationResult] = []
        self.done: Counter[str] = Counter()
        """How often the conversation claims each tool's success: results that are no errors, by tool."""
        self.interrupted: list[str] = []
        """The tools of calls whose result says that their outcome is not known, in the order of the conversation."""
        self.durable = Durable()
        self._spaces: tuple[set[str], set[str]] = (set(), set())
        """The namespaces of the values and of the lists that were written."""
        self._stores: list[Store] = []

    @property
    def started(self) -> Counter[str]:
        """How often each tool was started, by what was seen outside of the store."""
        return Counter(each.tool for each in self.witness.starts)

    def asks(self, point: HookPoint) -> bool:
        """Whether some process has hooks at this point."""
        agents = [life.own_agent for life in self.lives if hasattr(life, "own_agent")]
        return any(hook.point == point for agent in agents for each in family_of(agent) for hook in each.hooks)

    @property
    def whole(self) -> bool:
        """Whether every operation is completed and no outcome is unknown, as in a run without stops."""
        return not self.interrupted and all(each.status == "completed" for each in self.results)

    @property
    def found_calls(self) -> list[FoundCall]:
        """Calls that some process found under way, once for each process that did."""
        return [call for each in self.findings for call in each.calls.values()]

    @property
    def found_requests(self) -> list[FoundRequest]:
        """Requests that some process found under way."""
        return [request for each in self.findings for request in each.requests]

    @property
    def found_summaries(self) -> list[FoundSummary]:
        """Requests for summaries that some process found under way."""
        return [summary for each in self.findings for summary in each.summaries]

    async def open(
        self, make_agent: Callable[[Life[W]], Agent[Any, Any]] | None = None, probe: Probe | None = None
    ) -> Life[W]:
        """Begin a process: make its agent, open the session (made if there is none), take note of what is under way.

        Without an agent nothing can be driven; the process only looks.
        """
        life = Life(self, len(self.lives) + 1)
        self.lives.append(life)
        life.findings = Findings(life.number, self._agent_of(life, make_agent))
        self.findings.append(life.findings)
        store = self.trace.store(_WatchedStore(self._store(), self, life.findings))
        await self.place.make(store)
        life.session = await open_session(
            store,
            session_id=SESSION_ID,
            clock=self.clock,
            ids=CountingIds(series=life.number),
            seed=life.number,
            probe=self.trace.probe(probe),
        )
        life.held = Held(life.session._runtime.storage, at_once=self.place.persistent)
        await life.findings.read(life.held, await life.held.content(*self._spaces))
        for payload in (await life.held.values(addresses.OP_STATE)).values():
            self.durable.take_state(payload)
        return life

    def _agent_of(self, life: Life[W], make_agent: Callable[[Life[W]], Agent[Any, Any]] | None) -> Any:
        if make_agent is None:
            return None
        life.own_agent = make_agent(life)
        life.agent = self.witness.agent(self.trace.agent(life.own_agent), life=life.number)
        return life.agent

    def _store(self) -> Store:
        store = self.place.store()
        if store not in self._stores:
            self._stores.append(store)
        return store

    def written(self, writes: Sequence[Write]) -> None:
        """A commit is handed over."""
        values, lists = self._spaces
        for write in writes:
            if isinstance(write, SetValue):
                values.add(write.address.namespace)
            elif isinstance(write, AppendElement):
                lists.add(write.address.namespace)

    def wrote(self, namespace: str) -> bool:
        """Whether a value was ever written there."""
        return namespace in self._spaces[0]

    async def close(self) -> None:
        """Close every store that was made."""
        while self._stores:
            await self._stores.pop().close()

    def text(self) -> str:
        """What happened, for people."""
        starts = "\n".join(
            f"process {each.life}: {each.tool}({each.arguments}) attempt {each.attempt} of call {each.call_id}"
            + (", which ended" if each.ended else "")
            for each in self.witness.starts
        )
        return f"stops: {stops_text(self.stops) or 'none'}\n{self.trace.history()}\neffects:\n{starts}"


class Life(Generic[W]):
    """One process of a history, as its agent and its acts see it. ``number`` counts from 1."""

    session: Session
    """The open session."""
    agent: Agent[Any, Any]
    """The agent of this process, watched."""
    own_agent: Agent[Any, Any]
    """The agent as the scenario made it."""
    findings: Findings
    held: Held
    """What the session held when it was opened."""

    def __init__(self, history: History[W], number: int) -> None:
        self.history = history
        self.number = number

    @property
    def world(self) -> W:
        """What the scenario's tools do their effects to; the same object in every process of a history."""
        return self.history.world

    @property
    def clock(self) -> ManualClock:
        """The clock of the session; it stands still unless somebody advances it."""
        return self.history.clock

    async def lane(self, name: str = "main") -> AgentLane[Any, Any]:
        """A lane of the session, run with this process's agent. A wait for a retry passes at once when it is driven."""
        lane = await self.session.lane(name, self.agent)
        return _Lane(lane._core, lane.agent)

    async def drive(self, lane: AgentLane[Any, Any], operation_id: str) -> OperationResult:
        """Drive to the end; a wait for a retry passes at once. ``AssertionError`` where it waits for answers."""
        while True:
            outcome = await lane.drive(operation_id, wait_for_retry=False)
            if isinstance(outcome, Settled):
                return outcome.result
            if not _is_retry(outcome):
                raise AssertionError(
                    f"operation {operation_id} waits for answers, which only the act can give: {outcome}"
                )
            _pass_by(self.clock, outcome)

    async def settled(self, call_id: str) -> None:
        """Return once the outcome of that call is durable."""
        await self.history.durable.settled(call_id)

    async def published(self, namespace: str) -> None:
        """Return once a commit with a write in ``namespace`` (``pending.frames``, say) is published."""
        await self.history.durable.published(namespace)


class _Lane(AgentLane[Any, Any]):
    """A lane on a clock that stands still: who sits out a wait for a retry lets it pass at once."""

    async def drive(
        self,
        operation_id: str | None = None,
        *,
        wait_for_retry: bool = True,
        wait_for_answers: bool = False,
        deps: Any = UNSET,
    ) -> Settled | Waiting:
        while True:
            outcome = await super().drive(
                operation_id, wait_for_retry=False, wait_for_answers=wait_for_answers, deps=deps
            )
            if isinstance(outcome, Settled) or not wait_for_retry or not _is_retry(outcome):
                return outcome
            operation_id = outcome.operation_id
            clock = self._core.runtime.clock
            if isinstance(clock, ManualClock):
                _pass_by(clock, outcome)


def _is_retry(waiting: Waiting) -> bool:
    return all(map(is_for_retry, waiting.reasons))


def _pass_by(clock: ManualClock, waiting: Waiting) -> None:
    if waiting.wake_at is not None:
        clock.advance(max(0, waiting.wake_at - clock.now_ms()))


class Durable:
    """Tells tools and acts what has become durable, so that they need no time to wait for it."""

    def __init__(self) -> None:
        self._settled: set[str] = set()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._watching: list[tuple[str, asyncio.Future[None]]] = []

    async def settled(self, call_id: str) -> None:
        if call_id not in self._settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((call_id, future))
            await future

    async def published(self, namespace: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.append((namespace, future))
        await future

    def committed(self, writes: Sequence[Write]) -> None:
        """A commit is published."""
        if self._watching:
            spaces = {getattr(write, "address", ("",))[0] for write in writes}
            self._watching = _woken(self._watching, lambda namespace: namespace in spaces)
        for write in writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                self.take_state(write.payload)

    def take_state(self, payload: bytes) -> None:
        """An operation's state is durable."""
        state = state_of(payload)
        if isinstance(state, Tools):
            for index, call in enumerate(state.calls):
                if isinstance(call, OutcomeReady | Placed):
                    self._settled.add(call_id(state.answer, index))
            self._waiting = _woken(self._waiting, lambda id: id in self._settled)


def _woken(
    waiting: list[tuple[str, asyncio.Future[None]]], come: Callable[[str], bool]
) -> list[tuple[str, asyncio.Future[None]]]:
    for what, future in waiting:
        if come(what) and not future.done():
            future.set_result(None)
    return [each for each in waiting if not each[1].done()]


class _WatchedStore(WrappedStore):
    def __init__(self, inner: Store, history: History[Any], findings: Findings) -> None:
        super().__init__(inner)
        self._history = history
        self._findings = findings

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        inner = await self.inner.open(session_id, read_only=read_only, probe=probe)
        return _WatchedStorage(inner, self._history, self._findings)


class _WatchedStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, history: History[Any], findings: Findings) -> None:
        super().__init__(inner)
        self._history = history
        self._findings = findings

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        def published(commit: Commit) -> None:
            if publish is not None:
                publish(commit)
            self._history.durable.committed(writes)
            for write in writes:
                if isinstance(write, SetValue) and write.address.namespace == addresses.OP_CONFIG:
                    self._findings.configured(write.address.key, write.payload)
                elif name == "abort" and isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                    self._findings.aborted(write.address.key)

        self._history.written(writes)
        return self.inner.submit(writes, publish=published, name=name)
