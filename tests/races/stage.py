"""A session whose commits wait at a gate, with tools and a model that end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from agentlane import (
    Agent,
    AgentLane,
    OperationResult,
    Prompt,
    Session,
    Settled,
    Tool,
    ToolContext,
    Waiting,
    open_session,
)
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.operations import ReplayPolicy
from agentlane.storage.contract import Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FailingStore
from agentlane.testing.gates import Gate, GatedStore, Hold
from agentlane.testing.invariants import check_invariants, check_trace, check_trace_against
from agentlane.testing.models import ScriptedModel
from agentlane.testing.trace import Trace

Backend: TypeAlias = Literal["memory", "jsonl", "sqlite"]
BACKENDS: tuple[Backend, ...] = ("memory", "jsonl", "sqlite")
ToolSpec: TypeAlias = Tool[Any, Any] | tuple[str, dict[str, Any]] | str
"""A tool, or the name (and options) of one of ``Tools``."""
HOLDS: tuple[Hold, ...] = ("before_write", "before_report")

WAITS_MAX = 20
"""Retry waits that ``Stage.end`` passes; more of them than any script here has."""


class Stage:
    """One session on a gated store. ``names`` tells the commits in order; the gate is open until it is shut."""

    def __init__(
        self, session: Session, lane: AgentLane[Any, Any], store: GatedStore, failing: FailingStore, trace: Trace
    ) -> None:
        self.session = session
        self.lane = lane
        self.store = store
        self.failing = failing
        self.trace = trace
        self.clock = ManualClock()
        self.model: ScriptedModel
        self.tools: Tools

    @property
    def gate(self) -> Gate:
        return self.store.gate

    def names(self, *, since: int = 0) -> list[str]:
        """The names of reported commits."""
        return [commit.name for commit, _ in self.trace.commits(since=since)]

    async def stored(self, namespace: str) -> dict[str, bytes]:
        """The values of a namespace as the store has them."""
        return await self.session._runtime.storage.values(namespace)

    async def lists(self, namespace: str) -> list[str]:
        """The keys of a namespace's lists as the store has them."""
        return await self.session._runtime.storage.lists(namespace)

    async def sound(self) -> list[str]:
        """The conversation, once every invariant was looked at."""
        assert await check_invariants(self.session) == [], self.trace.history()
        assert check_trace(self.trace) == [], self.trace.history()
        assert await check_trace_against(self.trace, self.session) == []
        self.model.require_no_violations()
        return shape(await self.lane.messages())

    async def open_again(self) -> None:
        """Open the closed session anew; ``session`` and ``lane`` are of that life."""
        self.session = await open_session(
            self.trace.store(self.store),
            session_id="s",
            clock=self.clock,
            ids=CountingIds(series=2),
            seed=2,
            probe=self.trace.probe(),
        )
        self.lane = await self.session.lane("main", self.lane.agent)

    async def end(self) -> OperationResult:
        """Drive ``op`` to its end; waits for a retry pass on the clock at once."""
        for _ in range(WAITS_MAX):
            outcome = await self.lane.drive("op", wait_for_retry=False)
            if isinstance(outcome, Settled):
                return outcome.result
            self.clock.advance(max(0, (outcome.wake_at or 0) - self.clock.now_ms()))
        raise AssertionError(f"no end after {WAITS_MAX} waits\n{self.trace.history()}")


class Tools:
    """Tools that wait for ``release`` and say how often they started."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self._ends: dict[str, asyncio.Future[str]] = {}
        self._begun: dict[str, asyncio.Future[ToolContext[Any]]] = {}

    def tool(self, name: str, replay: ReplayPolicy = "never", **options: Any) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            label = f"{name}{arguments.get('x', '')}"
            self.starts.append(label)
            self._future(self._begun, label).set_result(ctx)
            if arguments.get("now"):
                return f"{label} done"
            ended: str = await self._future(self._ends, label)
            return ended

        return Tool(name, run, replay=replay, **options)

    def build(self, spec: ToolSpec) -> Tool[Any, Any]:
        """What ``spec`` stands for."""
        if isinstance(spec, Tool):
            return spec
        return self.tool(spec) if isinstance(spec, str) else self.tool(spec[0], **spec[1])

    def release(self, label: str) -> None:
        """Let the call end with its result."""
        self._future(self._ends, label).set_result(f"{label} done")

    async def begun(self, label: str) -> ToolContext[Any]:
        """Return once the call has started: its context."""
        return await asyncio.shield(self._future(self._begun, label))

    def forget(self) -> None:
        """Calls that start from now on are waited for and released anew."""
        self._ends.clear()
        self._begun.clear()

    def _future(self, kept: dict[str, asyncio.Future[Any]], label: str) -> asyncio.Future[Any]:
        if label not in kept:
            kept[label] = asyncio.get_running_loop().create_future()
        return kept[label]


class Staged(Protocol):
    """Sets a stage on one backend: see ``make_stage``."""

    backend: Backend
    folder: Path

    def __call__(
        self, script: Sequence[Any], *tools: ToolSpec, hold: Hold = ..., summaries: Any = ..., **agent: Any
    ) -> AbstractAsyncContextManager[Stage]: ...


class StageMaker:
    """A ``Staged`` for a backend and a folder."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder

    def __call__(
        self,
        script: Sequence[Any],
        *tools: ToolSpec,
        hold: Hold = "before_write",
        summaries: Any = None,
        **agent: Any,
    ) -> AbstractAsyncContextManager[Stage]:
        return make_stage(self.backend, self.folder, script, *tools, hold=hold, summaries=summaries, **agent)


def make_store(backend: Backend, folder: Path, clock: ManualClock) -> Store:
    """A store of that kind; what a power loss would take is not waited for."""
    ids = CountingIds(series=900)
    if backend == "memory":
        return MemoryStore(clock=clock, ids=ids)
    if backend == "jsonl":
        return JsonlStore(folder / "sessions", durability="process", clock=clock, ids=ids)
    return SqliteStore(folder / "sessions.db", durability="process", clock=clock, ids=ids)


@asynccontextmanager
async def make_stage(
    backend: Backend,
    folder: Path,
    script: Sequence[Any],
    *tools: ToolSpec,
    hold: Hold = "before_write",
    summaries: Any = None,
    **agent: Any,
) -> AsyncIterator[Stage]:
    """A lane with an accepted prompt, operation ``op``, on a store whose gate is open; ``summaries`` as of a model."""
    clock, trace = ManualClock(), Trace()
    failing = FailingStore(make_store(backend, folder, clock), nth=None)
    store = GatedStore(failing, hold=hold)
    store.gate.open()
    await store.create("s")
    session = await open_session(
        trace.store(store), session_id="s", clock=clock, ids=CountingIds(series=1), seed=1, probe=trace.probe()
    )
    made = Tools()
    built = [made.build(each) for each in tools]
    model = ScriptedModel(script, summaries=summaries)
    lane = await session.lane("main", trace.agent(Agent(model=model, tools=built, **agent)))
    await lane.accept(Prompt("go"), operation_id="op")
    stage = Stage(session, lane, store, failing, trace)
    stage.clock, stage.model, stage.tools = clock, model, made
    try:
        yield stage
    except BaseException as error:
        error.add_note(trace.history())
        raise
    finally:
        store.gate.open()
        await stage.session.close()
        await store.close()


def settled(outcome: Settled | Waiting) -> OperationResult:
    """The record of a drive that is to have ended."""
    assert isinstance(outcome, Settled), outcome
    return outcome.result


async def turns(count: int = 10) -> None:
    """Let every task that can go on do so; what still waits then waits for the gate or for the test."""
    for _ in range(count):
        await asyncio.sleep(0)


def shape(messages: Sequence[Any]) -> list[str]:
    """A conversation in short lines, to be compared with what was expected."""
    lines: list[str] = []
    for each in messages:
        if isinstance(each, AssistantMessage):
            calls = ",".join(call.name for call in each.calls)
            end = each.stop_reason if each.error is None else f"{each.stop_reason}/{each.error.code}"
            lines.append(f"assistant[{end}] {each.text}" + (f" ({calls})" if calls else ""))
        elif isinstance(each, ToolResultMessage):
            lines.append(f"result{'!' if each.is_error else ''} {each.text}")
        else:
            lines.append(f"user {each.content[0].text}")
    return lines
