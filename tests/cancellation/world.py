"""One session on one backend as a cancelled call finds it, and everything that can be known of it afterwards."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from msgspec.structs import replace

from agentlane import (
    Agent,
    AgentLane,
    ExternalReason,
    ListAddress,
    PendingResult,
    Prompt,
    Session,
    SessionFaulted,
    SessionOpener,
    Tool,
    ToolContext,
    Usage,
    ValueAddress,
    Waiting,
    open_session,
)
from agentlane.storage import Address, JsonlStore, MemoryStore, Probe, SessionStorage, SqliteStore, Store
from agentlane.testing import CountingIds, FailingStore, GatedStore, ManualClock
from agentlane.testing.invariants_session import KEPT_VALUES, OPERATION_VALUES, PENDING_VALUES
from tests.cancellation.talker import Talker
from tests.cancellation.watched import Watched

Backend: TypeAlias = Literal["memory", "gated", "jsonl", "sqlite"]
BACKENDS: list[Backend] = ["memory", "gated", "jsonl", "sqlite"]
"""``gated`` is the memory store behind a gate, so that a commit is reported after its waiter has left."""

VALUE = ValueAddress("app.test", "value", int)
LIST = ListAddress("app.test", "list", int)
LISTS = ("app.test", "pending.frames")
NAMESPACES = (*OPERATION_VALUES, *PENDING_VALUES, *KEPT_VALUES, *LISTS)
DRIVES_MAX = 10
HELD_TICKS = 8
"""For how many turns a gate stays shut once a call was cancelled."""


class World:
    """Session ``s``: lane ``main`` with one settled run, a branch ``side``, a value, a list, a name and a label."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.clock = ManualClock()
        self.talker = Talker()
        self.contexts: list[ToolContext[Any]] = []
        self.called = asyncio.Event()
        self.let_go = asyncio.Event()
        self.agent: Agent[Any, Any] = Agent(
            model=self.talker,
            tools=[
                *(Tool("wait", self._wait), Tool("save", self._save), Tool("tell", self._tell)),
                *(Tool("ask", self._tell, approval=True), Tool("later", self._later)),
                *(Tool("question", self._ask, replay="safe"), Tool("answered", self._answered, replay="safe")),
            ],
            cancel_grace_ms=0,
        )
        self.gated: GatedStore | None = None
        self.store: Store = self.new_store()
        self.probe: Probe | None = None
        self.opens = 0
        self.handle: Session | None = None
        self.also_open: list[Session | SessionStorage] = []
        self._beside: list[asyncio.Task[Any]] = []
        self._mover: asyncio.Task[None] | None = None

    # The place.

    def new_store(self) -> Store:
        ids = CountingIds(series=0xFFFF)
        if self.backend == "jsonl":
            return JsonlStore(self.folder / "sessions", clock=self.clock, ids=ids)
        if self.backend == "sqlite":
            return SqliteStore(self.folder / "sessions.db", durability="process", clock=self.clock, ids=ids)
        memory = MemoryStore(clock=self.clock, ids=ids)
        if self.backend == "gated":
            self.gated = GatedStore(memory)
            self.gated.gate.open()
            return self.gated
        return memory

    @property
    def session(self) -> Session:
        assert self.handle is not None, "no session is open here"
        return self.handle

    def opener(self, *, read_only: bool = False) -> SessionOpener:
        """What opens the session, with ids of its own."""
        self.opens += 1
        ids = CountingIds(series=self.opens)
        return open_session(
            self.store,
            session_id="s",
            clock=self.clock,
            ids=ids,
            seed=1,
            read_only=read_only,
            probe=None if read_only else self.probe,
        )

    async def open(self, *, read_only: bool = False) -> Session:
        """Open the session."""
        return await self.opener(read_only=read_only)

    async def fill(self) -> None:
        """Make the session on an empty place, and leave it open."""
        await self.store.create("s", metadata={"made": "for tests"})
        await self.store.create("t")
        session = self.handle = await self.open()
        lane = await self.lane()
        await lane.run("first", operation_id="op-first")
        side = await session.create_branch("side", at=lane.tip())
        await side.append_custom("note", {"n": 1})
        await session.set_value(VALUE, 1)
        await session.append(LIST, 1)
        await session.set_name("name")
        await session.set_label(lane.tip() or "", "label")
        await session.record_usage(Usage(input_tokens=1))

    async def lane(self, name: str = "main") -> AgentLane[Any, Any]:
        return await self.session.lane(name, self.agent)

    async def start(self, template: Path | None) -> None:
        """The session as ``fill`` leaves it, opened anew, so that nothing of it has been read yet."""
        if template is None:
            await self.fill()
            await self.session.close()
        else:
            shutil.copytree(template, self.folder, dirs_exist_ok=True)
        self.opens = 10
        self.handle = await self.open()

    # Work that is under way while a call is made.

    async def accept(self, words: str, operation_id: str = "op") -> AgentLane[Any, Any]:
        lane = await self.lane()
        await lane.accept(Prompt(words), operation_id=operation_id)
        return lane

    async def drive(self, words: str) -> AgentLane[Any, Any]:
        """Have another caller drive ``words``."""
        lane = await self.accept(words)
        self.beside(lane.drive())
        return lane

    async def in_a_call(self) -> ToolContext[Any]:
        """The context of a call that runs until ``settle``."""
        await self.drive("call wait")
        await self.called.wait()
        return self.contexts[-1]

    def beside(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run it in a task of its own; how it ends is nobody's business."""
        self._beside.append(asyncio.ensure_future(coroutine))

    def watching(self) -> list[asyncio.Task[Any]]:
        """The tasks that run beside."""
        return list(self._beside)

    def move_clock_on(self) -> None:
        """From now on whoever sleeps is woken."""

        async def move() -> None:
            while True:
                await self.clock.sleeping()
                self.clock.advance_to_next()

        self._mover = asyncio.ensure_future(move())

    def hold_commits(self) -> None:
        """At a gate: what is committed from now on waits until the watched call waits too."""
        if self.gated is not None:
            self.gated.gate.shut()

    def watch(self, watched: Watched) -> None:
        """Shut the gate, if there is one, while ``watched`` runs and for a while after it was struck."""
        if self.gated is None:
            return
        gate, loop = self.gated.gate, asyncio.get_running_loop()

        def later(ticks: int) -> None:
            if ticks:
                loop.call_soon(later, ticks - 1)
            else:
                gate.open()

        def suspended() -> None:
            loop.call_soon(later, HELD_TICKS if watched.struck else 0)

        watched.on_resume = gate.shut
        watched.on_suspend = suspended

    async def _wait(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        """Says in the end which memos it has: what memory knows of them."""
        self.contexts.append(ctx)
        self.called.set()
        await self.let_go.wait()
        return f"memo {await ctx.memo('given')} {await ctx.memo('new')}"

    async def _save(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.progress("under way")
        await ctx.set_memo("new", 1)
        return f"memo {await ctx.memo('new')}"

    async def _later(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
        await ctx.set_memo("new", 1)
        return PendingResult()

    async def _ask(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.set_memo("new", 1)
        return f"told {await ctx.ask('q', 'What?')}"

    async def _answered(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        """Asks, and once it is answered is called as ``wait`` is."""
        await ctx.ask("q", "What?")
        return await self._wait(arguments, ctx)

    async def _tell(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "told"

    # Afterwards.

    async def come_to_rest(self) -> str | None:
        """The session open and sound, whatever the call did to it, and every commit of before reported.

        Gives what it holds, unless an operation is under way.
        """
        if self.gated is not None:
            self.gated.gate.open()
        for each in self.also_open:
            await each.close()
        if self.session._runtime.phase == "faulted":
            await self.session.reopen()
        if self.session._runtime.phase != "open":
            await self.reopen()
        await self.session.append(LIST, 98)
        if (await self.lane()).inspect().driving:
            return None
        known = await self.agree()
        return None if self.session.open_operations() else known

    async def reopen(self) -> None:
        """The session is closed, to its end, and opened anew."""
        await self.session.close()
        self.opens += 20
        self.handle = await self.open()

    async def settle(self) -> None:
        """Bring what is under way to its end, whoever began it."""
        self.let_go.set()
        lane = await self.lane()
        for _ in range(DRIVES_MAX):
            if lane.inspect().operation is None:
                break
            if self.talker.hanging.is_set():
                await lane.abort()
            elif isinstance(waiting := await lane.drive(wait_for_retry=False), Waiting):
                for approval in self.session.approvals():
                    if approval.kind == "question":
                        await lane.answer(approval.approval_id, "so")
                    else:
                        await lane.decide(approval.approval_id, allow=True)
                for reason in waiting.reasons:
                    if isinstance(reason, ExternalReason):
                        await lane.deliver(reason.call_id, "delivered")
                if waiting.wake_at is not None:
                    self.clock.advance(waiting.wake_at - self.clock.now_ms())
        assert lane.inspect().operation is None, "an operation is open that no drive ends"
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def go_on(self) -> None:
        """The next calls: they work, and nothing of the one before is in their way."""
        lane = await self.lane()
        result = await lane.run("next", operation_id="op-next")
        assert (result.status, result.text) == ("completed", "said next")
        await self.session.append(LIST, 99)
        if isinstance(self.store, FailingStore):
            await self.fail()
            await self.session.reopen()
            await self.session.append(LIST, 100)

    async def fail(self) -> None:
        """Have a commit fail, on a store that does so when asked: the session is faulted."""
        assert isinstance(self.store, FailingStore)
        self.store.fail_next()
        with pytest.raises(SessionFaulted):
            await self.session.set_value(VALUE, 2)

    async def agree(self) -> str:
        """Memory and store say the same: the session, and one that reads the store anew beside it."""
        fresh = await self.open(read_only=True)
        try:
            here, there = await self.known(self.session), await self.known(fresh)
        finally:
            await fresh.close()
        assert here == there, f"memory:\n{here}\nstore:\n{there}"
        return here

    async def known(self, session: Session) -> str:
        """Everything that a session answers, from memory and by reading."""
        storage = session._runtime.storage
        tips = {name: session.branch(name).tip() for name in session.branches()}
        # Together, since each is a way to the thread of a database and back.
        paths, rows, usage, held, keys = await asyncio.gather(
            asyncio.gather(*(storage.path(tip) for tip in tips.values() if tip)),
            storage.scan(),
            storage.usage(),
            asyncio.gather(*(storage.values(namespace) for namespace in NAMESPACES)),
            asyncio.gather(*(storage.lists(namespace) for namespace in LISTS)),
        )
        addresses = [Address(space, key) for space, each in zip(LISTS, keys, strict=True) for key in each]
        elements = await asyncio.gather(*map(storage.elements, addresses))
        lines = [f"name {session.name!r}", f"stats {session.stats()}", f"open {session.open_operations()}"]
        walked = iter(paths)
        for name, tip in tips.items():
            lines += [f"branch {name}", *(map(str, next(walked)) if tip else ())]
        for name in session.lanes():
            lines += [f"lane {replace((await session.lane(name, self.agent)).inspect(), driving=False)}"]
        lines += map(str, [*rows, *usage])
        for namespace, values in zip(NAMESPACES, held, strict=True):
            lines += [f"{namespace} {each}" for each in values.items()]
        lines += [f"{at.namespace} {at.key} {each}" for at, each in zip(addresses, elements, strict=True)]
        return "\n".join(lines)

    async def end(self) -> None:
        """Close everything, and leave no task of our own behind."""
        for task in [*self._beside, *([self._mover] if self._mover else [])]:
            task.cancel()
        await asyncio.gather(*self._beside, *([self._mover] if self._mover else []), return_exceptions=True)
        for each in self.also_open:
            await each.close()
        if self.handle is not None:
            await self.handle.close()
        await self.store.close()
        assert self.talker.begun == self.talker.closed, "a model's stream was left open"


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


_PLACED = re.compile(r"\b(seq|at|first_seq|last_seq)=\d+")


def shape(known: str) -> str:
    """What a session answers, but for times and sequence numbers; ids are numbered in order of appearance."""
    numbers: dict[str, str] = {}
    return _ID.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), _PLACED.sub("", known))
