"""Trace: what a session's lives did, in order: opens, commits with their writes, and starts and ends of effects.

    trace = Trace()
    store = trace.store(JsonlStore(folder))
    async with open_session(store, session_id="s", probe=trace.probe()) as session:
        lane = await session.lane("main", trace.agent(agent))
        await lane.run("go")
    assert check_trace(trace) == []

One trace goes on over crashes and reopens: wrap each new store object and each new agent with the same trace. What it
holds are facts about the history and about effects, which no look at the session alone can tell.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentlane.agent import Agent
from agentlane.agent_tool import AgentTool
from agentlane.data.messages import ModelIdentity
from agentlane.data.operations import ReplayPolicy
from agentlane.data.writes import Write
from agentlane.errors import AgentLaneError
from agentlane.model import Model, ModelLimits, ModelRequest, StreamItem
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage, Store
from agentlane.testing.wrapping import WrappedStorage, WrappedStore
from agentlane.tool import NotStarted, Tool
from agentlane.tool_context import ToolContext


class Opened(Struct, frozen=True, kw_only=True):
    """A session was opened: a new life begins, what the life before had not reported is not known."""

    session_id: str
    epoch: int
    read_only: bool


class Submitted(Struct, frozen=True, kw_only=True):
    """A commit was handed over. Until a ``Committed`` or ``Refused`` of its number comes, it may be durable or not."""

    number: int
    session_id: str
    name: str
    writes: tuple[Write, ...]


class Committed(Struct, frozen=True, kw_only=True):
    """The medium has reported the commit; it is published right after."""

    number: int
    first_seq: int
    at: int


class Refused(Struct, frozen=True, kw_only=True):
    """The commit was refused on the spot and changed nothing."""

    number: int


class Reached(Struct, frozen=True, kw_only=True):
    """A named boundary was reached."""

    boundary: str


class Began(Struct, frozen=True, kw_only=True):
    """An effect started. ``call_id`` and ``policy`` (as declared now) are those of a call, empty for a request."""

    kind: Literal["request", "call"]
    number: int
    operation_id: str
    attempt: int
    name: str
    call_id: str = ""
    policy: ReplayPolicy | None = None
    key: str = ""


class Ended(Struct, frozen=True, kw_only=True):
    """The effect of that number ended by itself: it returned or raised; not ``begun``, it said that it never began."""

    number: int
    begun: bool = True


Event: TypeAlias = Opened | Submitted | Committed | Refused | Reached | Began | Ended


class Trace:
    """A recorder. May be told of events from any thread; ``events`` is everything so far, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._facts: list[Event] = []
        self._submitted: dict[int, Submitted] = {}
        self._commits: list[tuple[int, Submitted, Committed]] = []
        """Reported commits, each with the place of its report."""
        self._numbers = 0

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything recorded so far, in order."""
        return tuple(self._events)

    @property
    def facts(self) -> tuple[Event, ...]:
        """The events of which something follows: all but those that only say that a boundary was reached."""
        return tuple(self._facts)

    def __len__(self) -> int:
        return len(self._events)

    def commits(self, *, since: int = 0) -> list[tuple[Submitted, Committed]]:
        """Reported commits whose report is the ``since``-th event or a later one, in order of their reports."""
        return [(commit, report) for place, commit, report in self._commits if place >= since]

    def effects(self, kind: Literal["request", "call"] | None = None) -> list[Began]:
        """Effects that started, in order."""
        return [event for event in self._facts if isinstance(event, Began) and kind in (None, event.kind)]

    def history(self, *, last: int = 200) -> str:
        """The trace for people: a line for each event, the last ones if there are more."""
        return "\n".join(_line(event) for event in self._events[-last:])

    # What it is put around.

    def store(self, inner: Store) -> Store:
        """``inner``, with opens and commits recorded."""
        return _TracedStore(inner, self)

    def probe(self, inner: Probe | None = None) -> Probe:
        """A probe that records each boundary and hands it on to ``inner`` (a ``FaultPlan``, say)."""
        return _TracedProbe(self, inner)

    def agent(self, agent: Agent[Any, Any]) -> Agent[Any, Any]:
        """A copy of ``agent`` whose requests and calls are recorded."""
        traced = copy.copy(agent)
        traced.models = {identity: self.model(model) for identity, model in agent.models.items()}
        traced.model = traced.models[agent.model.identity]
        traced.tools = {name: _TracedTool(tool, self) for name, tool in agent.tools.items()}
        for name, tool in agent.tools.items():
            if isinstance(tool, AgentTool):
                child = copy.copy(tool)
                child.agent = self.agent(tool.agent)
                traced.tools[name] = child
        return traced

    def model(self, model: Model) -> Model:
        """``model``, with each request recorded."""
        return _TracedModel(model, self)

    def add(self, make: Callable[[int], Event]) -> int:
        """Record what ``make`` makes of a fresh number; gives that number."""
        with self._lock:
            self._numbers += 1
            event = make(self._numbers)
            if not isinstance(event, Reached):
                self._facts.append(event)
            if isinstance(event, Submitted):
                self._submitted[event.number] = event
            elif isinstance(event, Committed):
                self._commits.append((len(self._events), self._submitted[event.number], event))
            self._events.append(event)
            return self._numbers


class _TracedStore(WrappedStore):
    def __init__(self, inner: Store, trace: Trace) -> None:
        super().__init__(inner)
        self._trace = trace

    def wrap(self, storage: SessionStorage) -> SessionStorage:
        self._trace.add(lambda _: Opened(session_id=storage.info.id, epoch=storage.epoch, read_only=storage.read_only))
        return _TracedStorage(storage, self._trace)


class _TracedStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, trace: Trace) -> None:
        super().__init__(inner)
        self._trace = trace

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        session_id, kept = self.info.id, tuple(writes)
        number = self._trace.add(lambda number: Submitted(number=number, session_id=session_id, name=name, writes=kept))

        def published(commit: Commit) -> None:
            self._trace.add(lambda _: Committed(number=number, first_seq=commit.first_seq, at=commit.at))
            if publish is not None:
                publish(commit)

        try:
            return self.inner.submit(writes, publish=published, name=name)
        except AgentLaneError:
            self._trace.add(lambda _: Refused(number=number))
            raise


class _TracedProbe:
    def __init__(self, trace: Trace, inner: Probe | None) -> None:
        self._trace = trace
        self._inner = inner

    def reached(self, boundary: str) -> None:
        self._trace.add(lambda _: Reached(boundary=boundary))
        if self._inner is not None:
            self._inner.reached(boundary)


class _TracedModel:
    def __init__(self, inner: Model, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace

    @property
    def identity(self) -> ModelIdentity:
        return self._inner.identity

    @property
    def limits(self) -> ModelLimits:
        return self._inner.limits

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        number = self._trace.add(
            lambda number: Began(
                kind="request",
                number=number,
                operation_id=request.operation_id,
                attempt=request.attempt,
                name=str(self.identity),
            )
        )
        stream = self._inner.stream(request)
        try:
            async for item in stream:
                yield item
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            self._trace.add(lambda _: Ended(number=number))


class _TracedTool(Tool[Any, Any]):
    def __init__(self, inner: Tool[Any, Any], trace: Trace) -> None:
        self.__dict__.update(inner.__dict__)
        self._trace = trace

    def call(self, checked: Any, context: ToolContext[Any]) -> Any:
        number = self._trace.add(
            lambda number: Began(
                kind="call",
                number=number,
                operation_id=context.operation_id,
                attempt=context.attempt,
                name=self.name,
                call_id=context.call_id,
                policy=self.options.replay,
                key=context.idempotency_key,
            )
        )
        try:
            value = super().call(checked, context)
        except BaseException as error:
            begun = not isinstance(error, NotStarted)
            self._trace.add(lambda _: Ended(number=number, begun=begun))
            raise
        if inspect.isawaitable(value):
            return self._awaited(value, number)
        self._trace.add(lambda _: Ended(number=number))
        return value

    async def _awaited(self, value: Any, number: int) -> Any:
        begun = True
        try:
            return await value
        except NotStarted:
            begun = False
            raise
        finally:
            self._trace.add(lambda _: Ended(number=number, begun=begun))


def _line(event: Event) -> str:
    match event:
        case Opened():
            return f"-- opened {event.session_id} (epoch {event.epoch}{', read-only' if event.read_only else ''})"
        case Submitted():
            what = ", ".join(_write(each) for each in event.writes)
            return f"submitted {event.number} {event.name}: {what}"
        case Committed():
            return f"committed {event.number} at seq {event.first_seq}"
        case Refused():
            return f"refused   {event.number}"
        case Reached():
            return f"          {event.boundary}"
        case Began():
            return f"began     {event.number} {event.kind} {event.name} {event.call_id} attempt {event.attempt}"
        case Ended():
            return f"ended     {event.number}"


def _write(write: Write) -> str:
    where = getattr(write, "address", None)
    place = "/".join(where) if where is not None else getattr(write, "id", "row")
    return f"{type(write).__name__}({place})"
