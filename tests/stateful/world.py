"""A real session on one backend, and the host that plays the steps of a program on it, with whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentlane import (
    AgentLane,
    AgentLaneError,
    AssistantMessage,
    ListAddress,
    OperationResult,
    Prompt,
    Queued,
    RetryReason,
    Session,
    Settled,
    TextPart,
    Usage,
    UserMessage,
    ValueAddress,
    open_session,
)
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore, Store
from agentlane.testing import CountingIds, FailingStore, FaultPlan, GatedStore, ManualClock, Trace
from agentlane.testing.gates import Hold
from tests.stateful import programs as p
from tests.stateful.again import Retry
from tests.stateful.delivery import Deliver, deliver
from tests.stateful.effects import Effects
from tests.stateful.kin import FROM_OLDEST
from tests.stateful.looks import Looker
from tests.stateful.moves import MOVES
from tests.stateful.moving import Hands
from tests.stateful.people import Decide, decide
from tests.stateful.plain_host import Action, Elapse, Open, Reopen, is_drive
from tests.stateful.questions import Answer, answer
from tests.stateful.shapes import Names
from tests.stateful.summarized import summarize
from tests.stateful.summing import Compact, Leave
from tests.stateful.talk import REQUEST_IDS, CancelQueued, Say, Submit, said
from tests.stateful.watched import Ears, Stir, WatchedStore

Backend: TypeAlias = Literal["memory", "jsonl", "sqlite"]
BACKENDS: tuple[Backend, ...] = ("memory", "jsonl", "sqlite")
SESSION = "s"


class World:
    """Everything that a process's death leaves as it is, and the process that lives now, if one does."""

    def __init__(self, backend: Backend, folder: Path, program: p.Program) -> None:
        self.backend = backend
        self.folder = folder
        self.clock = ManualClock()
        self.trace = Trace()
        self.effects = Effects(program.prompts, program.hooks, program.summing, program.summaries)
        self.names = Names()
        self.looker = Looker(self.names, self.effects)
        self.session: Session | None = None
        self.finished: list[tuple[str, Any]] = []
        self.lives = 0
        self.stir = Stir()
        self._memory: MemoryStore | None = None
        self._drives: list[tuple[str, int, asyncio.Task[Any]]] = []
        self._handles: dict[tuple[str, int], AgentLane[Any, Any]] = {}
        self._hands = Hands(self.names, self._handles)
        self._former: list[tuple[Session, AgentLane[Any, Any] | None]] = []
        """Sessions of lives before, each with a lane of it."""

    # A life.

    def new_store(self) -> Store:
        """A store object on the place; for memory, the object is the place."""
        ids = CountingIds(series=0xFFFF)
        if self.backend == "memory":
            self._memory = self._memory or MemoryStore(clock=self.clock, ids=ids)
            return self._memory
        if self.backend == "jsonl":
            return JsonlStore(self.folder / "jsonl", durability="process", clock=self.clock, ids=ids)
        return SqliteStore(self.folder / "a.db", durability="process", clock=self.clock, ids=ids)

    async def _open(self) -> str:
        self.lives += 1
        self.plan = FaultPlan()
        self.base = self.new_store()
        self.failing = FailingStore(self.base, nth=None)
        self.ears = Ears(self.plan)
        self.gated = GatedStore(WatchedStore(self.failing, self.stir, self.effects, self.ears), hold="before_report")
        self.gated.gate.open()
        if SESSION not in [info.id for info in await self.base.list()]:
            await self.base.create(SESSION)
        store = self.trace.store(self.gated)
        self.session = await open_session(
            store,
            session_id=SESSION,
            clock=self.clock,
            ids=CountingIds(series=self.lives),
            seed=self.lives,
            probe=self.trace.probe(self.ears),
        )
        self._death = asyncio.ensure_future(self.plan.died())
        self._death.add_done_callback(lambda _: self.stir.happened())
        self._handles.clear()
        await self._look_at_former()
        return "opened"

    async def _look_at_former(self) -> None:
        """What is left of lives before, closed or dead, takes no call any more."""
        for session, lane in self._former:
            calls: list[Awaitable[Any]] = [session.set_name("from a life before"), session.entries()]
            if lane is not None:
                calls += [lane.accept(Prompt("from a life before")), lane.drive(), lane.result("op-0")]
            for told in [await self._answer(call) for call in calls]:
                assert told in (("refused", "SessionFaulted"), ("refused", "SessionClosed")), (
                    f"a former session: {told}"
                )
        self._former.clear()

    async def _let_go(self) -> None:
        """The session is closed: so is its store, unless it is the place."""
        self._former.append((self._here(), next(iter(self._handles.values()), None)))
        self.session = None
        self._death.cancel()
        if self.backend != "memory":
            await self.base.close()

    async def _bury(self) -> None:
        """Nothing of a dead process goes on."""
        session, self.session = self._here(), None
        runtime = session._runtime
        runtime.storage.kill()
        runtime.fault(asyncio.CancelledError())
        tasks: set[asyncio.Future[Any]] = {task for _, _, task in self._drives}
        for task in tasks:
            task.cancel()
        while rest := {*tasks, *runtime.tasks}:
            await asyncio.wait(rest)
            for task in rest & tasks:
                if not task.cancelled():
                    task.exception()
            tasks.clear()
        runtime.threads.close()
        self._drives.clear()
        self.finished.clear()
        self._death.cancel()
        self._former.append((session, next(iter(self._handles.values()), None)))
        self.stir.busy = 0

    async def end(self) -> None:
        """Whatever still lives is closed."""
        if self.session is not None:
            self.ears.deaf = True
            await self.session.close()
            await self.quiet()
            await self._let_go()
        for _, _, task in self._drives:
            if not task.cancelled():
                task.exception()

    def _here(self) -> Session:
        assert self.session is not None, "no process lives"
        return self.session

    async def quiet(self) -> None:
        """Return once nothing more happens by itself, or the process is dead."""
        await self.stir.quiet(self.plan)

    # Steps.

    async def play(self, action: Action, label: str, *, several: bool) -> Any:
        """Do what the action says and tell how it was answered. ``several``: more than one pass runs."""
        self.finished.clear()
        if isinstance(action, p.Close | p.Kill) and self.session is None:
            return "nothing"
        if isinstance(action, Open):
            return await self._open()
        if isinstance(action, p.Close) and several:
            self.ears.deaf = True
        if isinstance(action, p.Held):
            return await self._held(action)
        task = asyncio.ensure_future(self._answer(self._play(action, label)))
        if is_drive(action):
            self._drives.append((label, getattr(action, "lane", 0), task))
        await self.quiet()
        if self.plan.died_at is not None or isinstance(action, p.Kill):
            task.cancel()
            await asyncio.wait([task])
            await self._bury()
            return "died"
        self._collect()
        if is_drive(action):
            return "started"
        assert task.done(), f"{action} does not return"
        if isinstance(action, p.Close):
            await self._let_go()
        return task.result()

    def _collect(self) -> None:
        for label, _, task in self._drives:
            if task.done():
                self.finished.append((label, ("cancelled",) if task.cancelled() else task.result()))
        self._drives = [each for each in self._drives if not each[2].done()]

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except AgentLaneError as error:
            return ("refused", type(error).__name__)

    async def _play(self, action: Action, label: str) -> Any:
        session = self._here()
        if isinstance(action, MOVES):
            return await self._hands.play(action, session, self._handle)
        match action:
            case Reopen():
                assert await self._answer(session.set_name("refused")) == ("refused", "SessionFaulted")
                await self.stir.during(session.reopen())
                self.ears.faulted = False
                return "reopened"
            case p.Close():
                await self.stir.during(session.close())
                return "closed"
            case p.Kill():
                return "died"
            case p.KillAt(nth):
                self.plan.kill_at(len(self.plan.trace) + nth)
            case p.FailWrite(nth, where):
                self.failing.where = where
                self.failing.fail_next(nth)
            case Elapse(ms):
                self.clock.advance(ms)
            case p.OpenAgain(read_only):
                return await self.stir.during(self._open_again(read_only))
            case p.SetValue() | p.Append() | p.SetName() | p.SetLabel() | p.Adjust():
                await self._direct(action)
            case p.CreateBranch(name, at):
                await session.create_branch(p.BRANCHES[name], self.names.entry(at))
            case p.MakeLane(name, at):
                await session.lane(p.BRANCHES[name], self.effects.agent(0), at=self.names.entry(at))
            case p.AppendEntry(branch, text, assistant):
                return await self._append(session, p.BRANCHES[branch], text, assistant)
            case _:
                return await self._on_lane(action)
        return "done"

    async def _append(self, session: Session, name: str, text: str | None, assistant: bool) -> Any:
        branch = session.branch(name)
        if text is None:
            made = await branch.append_custom("note", 1)
        elif assistant:
            made = await branch.append_message(AssistantMessage(content=(TextPart(text=text),), stop_reason="stop"))
        else:
            made = await branch.append_message(_user(text))
        return made if isinstance(made, Queued) else "done"

    async def _open_again(self, read_only: bool) -> Any:
        store = self.new_store()
        try:
            second = await open_session(store, session_id=SESSION, read_only=read_only, clock=self.clock)
            try:
                return await Looker(self.names, self.effects).view(second)
            finally:
                await second.close()
        finally:
            if self.backend != "memory":
                await store.close()

    async def _held(self, action: p.Held) -> Any:
        gate = self.gated.gate
        self._hold(action.hold)
        gate.shut()
        tasks = []
        for call in action.calls:
            if self.plan.died_at is None:
                tasks.append(asyncio.ensure_future(self._answer(self._direct(call))))
                await self.quiet()
        if not action.kill:
            self.ears.deaf = action.hold == "before_write"  # one transaction may take all of them
            gate.open()
            await self.quiet()
            self.ears.deaf = False
            self._hold("before_report")
        if action.kill or self.plan.died_at is not None:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._bury()
            return "died"
        self._collect()
        return [await task for task in tasks]

    def _hold(self, hold: Hold) -> None:
        for storage in self.gated._open:
            storage._hold = hold

    async def _direct(self, call: p.Direct) -> Any:
        session = self._here()
        match call:
            case p.SetValue(key, value):
                address = ValueAddress("app.values", f"v{key}", int)
                await (session.delete_value(address) if value is None else session.set_value(address, value))
            case p.Append(key, element):
                place = ListAddress("app.lists", f"l{key}", int)
                await (session.delete_list(place) if element is None else session.append(place, element))
            case p.SetName(text):
                await session.set_name(text)
            case p.SetLabel(entry, text):
                await session.set_label(self.names.entry(entry) or "", text)
            case p.Adjust(cost, op, number):
                usage = Usage(cost_nanos=cost)
                id = None if op is None else f"op-{op}"
                await session.record_usage(usage, operation_id=id, entry_id=self.names.entry(number))
        return "done"

    async def _handle(self, lane: int, handle: int = 0) -> AgentLane[Any, Any]:
        if lane >= FROM_OLDEST:
            name, handle = self.names.lane_of_call(lane - FROM_OLDEST)
        else:
            name = p.LANES[lane]
        if (name, handle) not in self._handles:
            agent = self.trace.agent(self.effects.agent(handle))
            self._handles[name, handle] = await self._here().lane(name, agent)
        return self._handles[name, handle]

    async def _on_lane(self, action: Any) -> Any:
        lane = await self._handle(action.lane, getattr(action, "handle", 0))
        match action:
            case p.Accept(_, prompt, op):
                admitted = await lane.accept(self._prompt(prompt), operation_id=None if op is None else f"op-{op}")
                self.names.take_entries([entry.id for entry in await self._here().entries()])
                return ("admitted", tuple(self.names.numbers[each] for each in admitted.inputs))
            case Retry(_, of, op, same_keys):
                settled = lane.inspect().last_operation_id or "op-none" if of is None else f"op-{of}"
                id = None if op is None else f"op-{op}"
                again = await lane.retry(settled, operation_id=id, same_keys=same_keys)
                return ("admitted", tuple(self.names.numbers[each] for each in again.inputs))
            case p.Run(_, prompt, op):
                return self._ended(
                    await lane.run(self._prompt(prompt), operation_id=None if op is None else f"op-{op}")
                )
            case p.Drive(_, op, wait, _, answers):
                id = None if op is None else f"op-{op}"
                return self._ended(await lane.drive(id, wait_for_retry=wait, wait_for_answers=answers))
            case p.Resume():
                return self._ended(await lane.resume())
            case Compact() | Leave():
                return self._ended(await summarize(lane, action, self.names))
            case p.LeaveDrive():
                for _, of, task in self._drives:
                    if of == action.lane and not task.done():
                        task.cancel()
                        return "left"
                return "nobody"
            case p.Abort(_, op):
                open_one = lane.inspect().operation
                current = "op-none" if open_one is None else open_one.operation_id
                return await lane.request_abort(current if op is None else f"op-{op}")
            case Say(_, kind, _, request):
                message = Prompt(messages=tuple(_user(text) for text in said(action)))
                id = None if request is None else REQUEST_IDS[request]
                match kind:
                    case "steer":
                        return await lane.steer(message, request_id=id)
                    case "follow_up":
                        return await lane.follow_up(message, request_id=id)
                    case _:
                        return await lane.next_run(message, request_id=id)
            case Submit(_, prompt, request):
                id = None if request is None else REQUEST_IDS[request]
                return await lane.submit(self._prompt(prompt), request_id=id)
            case Decide(_, number):
                return await decide(lane, self.names.asked_as(number), action)
            case Deliver():
                return await deliver(lane, self.names.call_id(action.call), action)
            case Answer(_, number):
                return await answer(lane, self.names.asked_as(number), action)
            case CancelQueued(_, item):
                return await lane.cancel_queued(self.names.item(item))
            case p.Result(_, op):
                return ("result", await lane.result(f"op-{op}"))
            case p.Configure(_, model, tools, settings):
                await lane.configure(
                    model=None if model is None else f"plain:m{model}",
                    tools=None if tools is None else p.TOOL_CHOICES[tools],
                    settings=None if settings is None else p.SETTINGS[settings],
                )
                return "done"
            case _:
                raise AssertionError(f"{action} is no step of a lane")

    def _prompt(self, prompt: int) -> Prompt:
        return Prompt(f"prompt {prompt % len(self.effects.prompts)}")

    def _ended(self, outcome: Any) -> Any:
        match outcome:
            case None:
                return ("nothing",)
            case Settled(record):
                return ("settled", record)
            case OperationResult():
                return ("settled", outcome)
            case tuple():
                return outcome
            case _:
                pass
        reason = outcome.reasons[0]
        if not isinstance(reason, RetryReason):
            return outcome
        assert outcome.wake_at == reason.not_before
        return ("waiting", reason.not_before, reason.attempt, reason.error.code)

    def requests(self) -> list[tuple[Any, ...]]:
        """What models were asked, with labels of operations."""
        return [(self.names.label(op), *rest) for op, *rest in self.effects.requests]


def _user(text: str) -> UserMessage:
    return UserMessage(content=(TextPart(text=text),))
