"""A world that outlives its processes: a store, a clock, effects counted outside, and what each death left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane import Agent, AgentLane, Session, Tool, ToolContext, open_session
from agentlane.data import addresses, codec
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.operations import EffectPending, Generating, OutcomeReady, Placed, ReplayPolicy, Tools
from agentlane.data.writes import SetValue, Write
from agentlane.ids import call_id
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage, Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.trace import Trace
from agentlane.testing.wrapping import WrappedStorage, WrappedStore

Backend: TypeAlias = Literal["memory", "jsonl", "sqlite"]
BACKENDS: tuple[Backend, ...] = ("memory", "jsonl", "sqlite")
SESSION = "s"


class Effect(NamedTuple):
    """One start of a tool's effect, counted outside of the store."""

    label: str
    policy: ReplayPolicy
    attempt: int
    recovered: bool
    key: str
    call_id: str


class Pended(NamedTuple):
    """A call that a death found under way."""

    call_id: str
    policy: ReplayPolicy
    attempt: int
    cancelled: bool


class World:
    """Everything that a process's death leaves as it is. One for each history."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.clock = ManualClock()
        self.trace = Trace()
        self.effects: list[Effect] = []
        self.found_pending: list[Pended] = []
        self.found_generating: set[str] = set()
        self.models: list[ScriptedModel] = []
        self.lives = 0
        self._memory: MemoryStore | None = None
        self._settled: set[str] = set()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._watching: list[tuple[str, asyncio.Future[None]]] = []
        self._hanging = 0
        self._stuck: asyncio.Future[None] | None = None

    # Stores and sessions.

    def store(self) -> Store:
        """A new store object on the same place (memory: the same object, for it is the place)."""
        if self.backend == "memory":
            self._memory = self._memory or MemoryStore(clock=self.clock, ids=CountingIds(series=1_000))
            inner: Store = self._memory
        elif self.backend == "jsonl":
            inner = JsonlStore(self.folder / "jsonl", durability="process", clock=self.clock)
        else:
            inner = SqliteStore(self.folder / "a.db", durability="process", clock=self.clock)
        return self.trace.store(_WatchedStore(inner, self))

    async def open(self, probe: Probe | None = None) -> Session:
        """Begin a life: open the session, made if there is none, and take note of what the life before left."""
        store = self.store()
        if SESSION not in [info.id for info in await store.list()]:
            await store.create(SESSION)
        self.lives += 1
        session = await open_session(
            store,
            session_id=SESSION,
            clock=self.clock,
            ids=CountingIds(series=self.lives),
            seed=self.lives,
            probe=self.trace.probe(probe),
        )
        await self._look(session._runtime.storage)
        return session

    async def _look(self, storage: SessionStorage) -> None:
        for payload in (await storage.values(addresses.OP_STATE)).values():
            state = codec.STATE.decode(payload, "op.state")
            if isinstance(state, Generating):
                self.found_generating.add(state.response_id)
            elif isinstance(state, Tools):
                for index, call in enumerate(state.calls):
                    if isinstance(call, EffectPending):
                        cancelled = state.cancel_requested_at is not None
                        id = call_id(state.answer, index)
                        self.found_pending.append(Pended(id, call.policy, call.attempt, cancelled))

    # Tools.

    def tool(
        self,
        name: str,
        replay: ReplayPolicy,
        *,
        body: Callable[[dict[str, Any], ToolContext[Any]], Awaitable[Any]] | None = None,
        parallel: bool = True,
        validate: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Tool[Any, Any]:
        """A tool whose starts are counted. With ``after=[1]`` among its arguments, its first start of all ends once
        the outcome of the batch's call 1 is durable; with ``hang=True`` that start never ends by itself."""

        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
            label = f"{name}:{arguments.get('x', '')}"
            self.effects.append(Effect(label, replay, ctx.attempt, ctx.recovered, ctx.idempotency_key, ctx.call_id))
            if body is not None:
                return await body(arguments, ctx)
            if not ctx.recovered:
                for index in arguments.get("after", ()):
                    await self.settled(call_id(ctx.turn_id, index))
                if arguments.get("hang"):
                    await self._hang()
            return f"{label} done"

        return Tool(name, run, replay=replay, parallel=parallel, validate=validate)

    async def settled(self, id: str) -> None:
        """Return once the call's outcome is durable."""
        if id not in self._settled:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((id, future))
            await future

    async def stuck(self) -> None:
        """Return once a tool hangs that was told to."""
        while not self._hanging:
            self._stuck = self._stuck or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._stuck])

    async def _hang(self) -> None:
        self._hanging += 1
        if self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(None)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._hanging -= 1
            self._stuck = None

    async def published(self, namespace: str) -> None:
        """Return once a commit with a write in ``namespace`` is published."""
        future = asyncio.get_running_loop().create_future()
        self._watching.append((namespace, future))
        await future

    def committed(self, writes: Sequence[Write]) -> None:
        """A commit is published."""
        spaces = {write.address.namespace for write in writes if hasattr(write, "address")}
        for namespace, future in self._watching:
            if namespace in spaces and not future.done():
                future.set_result(None)
        self._watching = [each for each in self._watching if not each[1].done()]
        for write in writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                self.take_state(write.payload)

    def take_state(self, payload: bytes) -> None:
        state = codec.STATE.decode(payload, "op.state")
        if isinstance(state, Tools):
            for index, call in enumerate(state.calls):
                if isinstance(call, OutcomeReady | Placed):
                    self._settled.add(call_id(state.answer, index))
        for id, future in self._waiting:
            if id in self._settled and not future.done():
                future.set_result(None)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def starts(self) -> Counter[str]:
        """How often each effect started, by label."""
        return Counter(effect.label for effect in self.effects)

    def model(self, script: Sequence[Any], **options: Any) -> ScriptedModel:
        """A model of this life."""
        model = ScriptedModel(script, **options)
        self.models.append(model)
        return model

    def history(self) -> str:
        """What happened, for people."""
        effects = "\n".join(map(str, self.effects))
        return f"\n{self.trace.history()}\n\neffects:\n{effects}"


class _WatchedStore(WrappedStore):
    def __init__(self, inner: Store, world: World) -> None:
        super().__init__(inner)
        self._world = world

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        inner = await self.inner.open(session_id, read_only=read_only, probe=probe)
        for payload in (await inner.values(addresses.OP_STATE)).values():
            self._world.take_state(payload)
        return _WatchedStorage(inner, self._world)


class _WatchedStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, world: World) -> None:
        super().__init__(inner)
        self._world = world

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        def published(commit: Commit) -> None:
            if publish is not None:
                publish(commit)
            self._world.committed(writes)

        return self.inner.submit(writes, publish=published, name=name)


async def finish(world: World, lane: AgentLane[Any, Any], operation_id: str) -> Any:
    """Drive to the end; waits for a retry pass on the world's clock at once."""
    while True:
        outcome = await lane.drive(operation_id, wait_for_retry=False)
        if (result := getattr(outcome, "result", None)) is not None:
            return result
        world.clock.advance(max(0, outcome.wake_at - world.clock.now_ms()))


async def live(world: World, act: Callable[[Session], Awaitable[Any]], plan: FaultPlan | None = None) -> bool:
    """One life of a process: open, ``act``, close. False if ``plan`` ended it before, as a kill does."""
    plan = plan or FaultPlan()
    session = await world.open(plan)
    acting = asyncio.ensure_future(act(session))
    dying = asyncio.ensure_future(plan.died())
    await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED)
    if plan.died_at is None:
        try:
            await acting
        finally:
            dying.cancel()
            if plan.died_at is None:
                await session.close()
        if plan.died_at is None:
            return True
    await bury(session, acting)
    return False


async def bury(session: Session, *tasks: asyncio.Future[Any]) -> None:
    """Nothing of a dead process goes on."""
    runtime = session._runtime
    runtime.storage.kill()
    runtime.fault(asyncio.CancelledError())
    for task in tasks:
        task.cancel()
    rest = {*tasks, *runtime.tasks}
    while rest:
        await asyncio.wait(rest)
        rest = set(runtime.tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
    runtime.threads.close()


def kept(messages: Sequence[Any]) -> list[Any]:
    """Messages without failed and aborted answers."""
    return [
        each
        for each in messages
        if not (isinstance(each, AssistantMessage) and each.stop_reason in ("error", "aborted"))
    ]


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


def make_agent(world: World, model: Any, tools: Sequence[Tool[Any, Any]], **options: Any) -> Agent[Any, Any]:
    """An agent whose effects the world's trace records."""
    return world.trace.agent(Agent(model=model, tools=tools, **options))
