"""A session whose commits wait at a gate, with tools and a model that end when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentlane import Agent, AgentLane, Prompt, Session, Tool, ToolContext, open_session
from agentlane.data.operations import ReplayPolicy
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.gates import Gate, GatedStore, Hold
from agentlane.testing.invariants import check_invariants, check_trace, check_trace_against
from agentlane.testing.models import ScriptedModel
from agentlane.testing.trace import Trace
from tests.crash.world import finish, shape


class Stage:
    """One session on a gated store. ``names`` tells the commits in order; the gate is open until it is shut."""

    def __init__(self, session: Session, lane: AgentLane[Any, Any], store: GatedStore, trace: Trace) -> None:
        self.session = session
        self.lane = lane
        self.store = store
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

    async def sound(self) -> list[str]:
        """The conversation, once every invariant was looked at."""
        assert await check_invariants(self.session) == [], self.trace.history()
        assert check_trace(self.trace) == [], self.trace.history()
        assert await check_trace_against(self.trace, self.session) == []
        self.model.require_no_violations()
        return shape(await self.lane.messages())

    async def end(self) -> Any:
        """Drive what is open to its end."""
        return await finish(self, self.lane, "op")  # type: ignore[arg-type]


class Tools:
    """Tools that wait for ``release`` and say how often they started."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self._ends: dict[str, asyncio.Future[str]] = {}
        self._begun: dict[str, asyncio.Future[None]] = {}

    def tool(self, name: str, replay: ReplayPolicy = "never", **options: Any) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            label = f"{name}{arguments.get('x', '')}"
            self.starts.append(label)
            self._future(self._begun, label).set_result(None)
            if arguments.get("now"):
                return f"{label} done"
            return await self._future(self._ends, label)

        return Tool(name, run, replay=replay, **options)

    def release(self, label: str) -> None:
        """Let the call end with its result."""
        self._future(self._ends, label).set_result(f"{label} done")

    async def begun(self, label: str) -> None:
        """Return once the call has started."""
        await asyncio.shield(self._future(self._begun, label))

    def forget(self) -> None:
        """Calls that start from now on are waited for and released anew."""
        self._ends.clear()
        self._begun.clear()

    def _future(self, kept: dict[str, asyncio.Future[Any]], label: str) -> asyncio.Future[Any]:
        if label not in kept:
            kept[label] = asyncio.get_running_loop().create_future()
        return kept[label]


@asynccontextmanager
async def staged(
    script: Sequence[Any], *tools: tuple[str, dict[str, Any]] | str, hold: Hold = "before_write", **agent: Any
) -> AsyncIterator[Stage]:
    """A lane with an accepted prompt, operation ``op``, on a store whose gate is open."""
    clock, trace = ManualClock(), Trace()
    store = GatedStore(MemoryStore(clock=clock, ids=CountingIds(series=900)), hold=hold)
    store.gate.open()
    await store.create("s")
    session = await open_session(
        trace.store(store), session_id="s", clock=clock, ids=CountingIds(series=1), seed=1, probe=trace.probe()
    )
    made = Tools()
    built = [made.tool(each) if isinstance(each, str) else made.tool(each[0], **each[1]) for each in tools]
    model = ScriptedModel(script)
    lane = await session.lane("main", trace.agent(Agent(model=model, tools=built, **agent)))
    await lane.accept(Prompt("go"), operation_id="op")
    stage = Stage(session, lane, store, trace)
    stage.clock, stage.model, stage.tools = clock, model, made
    try:
        yield stage
    except BaseException as error:
        error.add_note(trace.history())
        raise
    finally:
        store.gate.open()
        await session.close()


async def turns(count: int = 10) -> None:
    """Let every task that can go on do so; what still waits then waits for the gate or for the test."""
    for _ in range(count):
        await asyncio.sleep(0)
