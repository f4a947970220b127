"""The host of a playback: accepts, drives, aborts and appends as the plan says, over as many processes as it takes."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from agentlane import Agent, AgentLane, Prompt, Session, Settled, open_session
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import CompactionPolicy, ReplayPolicy
from agentlane.data.usage import UsageTotals
from agentlane.model import ModelLimits
from agentlane.storage.contract import Store
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.summaries import Summaries
from tests.recorded.deaths import CommitPlace, CommitProbe, Deaths
from tests.recorded.desk import Desk
from tests.recorded.plan import Append, Ending, Plan, Run
from tests.recorded.witness import WatchedModel, Witness, operation_of

Backend: TypeAlias = Literal["memory", "jsonl", "sqlite"]
BACKENDS: tuple[Backend, ...] = ("memory", "jsonl", "sqlite")
LANE = "main"
DELTAS, DELTA_MS = 1_000, 25
"""How finely and fast answers are streamed: what was shown is saved every 4,000 characters or so."""
NEAR_MS, NEVER_MS = 60_000, 3_600_000
ROUNDS = 4
"""Of the event loop, in which whoever was woken runs and goes to sleep again."""
DEATHS_MAX = 100
"""A process that dies at each commit dies oftener in one turn, and in one call, than the defaults put up with."""

STATUSES: Mapping[Ending, str] = {
    "completed": "completed",
    "aborted": "aborted",
    "failed": "failed",
    "terminated": "completed",
}


class SwiftClock(ManualClock):
    """Moves on by itself to whoever is due next, when all who were woken have had their turn and no commit is made.

    Far times never come: a grace must not be over only because nobody else sleeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._commits = 0
        self._armed = False

    async def sleep_until(self, at_ms: int) -> None:
        if at_ms > self.now_ms():
            self._arm()
        await super().sleep_until(at_ms)

    def hold(self) -> None:
        """A commit is under way: however long its thread takes, no time passes."""
        self._commits += 1

    def go_on(self) -> None:
        self._commits -= 1
        self._arm()

    def forget_commits(self) -> None:
        """The process is dead, and so is whoever slept in it."""
        self._commits = 0

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._count_down, ROUNDS)

    def _count_down(self, rounds: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(self._count_down, rounds - 1)
            return
        self._armed = False
        due = self.next_due
        if not self._commits and due is not None and due - self.now_ms() <= NEAR_MS:
            self.advance_to_next()
            self._arm()


class Life:
    """One process: everything in it is made anew, as in a new process."""

    def __init__(
        self, session: Session, probe: CommitProbe, model: WatchedModel, desk: Desk, compaction: CompactionPolicy | None
    ) -> None:
        self.session = session
        self.probe = probe
        self.model = model
        self.desk = desk
        self.agent = Agent(
            model=model,
            tools=desk.tools(),
            max_restarts=DEATHS_MAX,
            max_replays=DEATHS_MAX,
            cancel_grace_ms=NEVER_MS,
            compaction=compaction,
        )

    async def bury(self, *tasks: asyncio.Future[Any]) -> None:
        """Nothing of a dead process goes on."""
        await bury(self.session, *tasks)


async def bury(session: Session, *tasks: asyncio.Future[Any]) -> None:
    """The process that had the session is dead: nothing of it goes on, ``tasks`` neither."""
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


class Playback:
    """One playback on one store. It outlives the processes, as a host's own knowledge of where it stands does."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        folder: Path,
        policies: Mapping[str, ReplayPolicy],
        *,
        deaths: Deaths | None = None,
        seed: int = 0,
        compaction: CompactionPolicy | None = None,
        limits: ModelLimits | None = None,
        summaries: Summaries | None = None,
    ) -> None:
        self.plan = plan
        self.witness = Witness()
        self.deaths = deaths
        self.lives = 0
        self.commits = 0
        self.live = b""
        """The messages as the last process had them before it closed, and those that a model would be shown."""
        self.live_view = b""
        self.policies = policies
        self.charged: list[UsageTotals] = []
        """By process, what all was charged for before it."""
        self._compaction = compaction
        self._limits = limits
        self._summaries = summaries
        self._seed = seed
        self._session_id: str | None = None
        self._step = -1
        self._clock = SwiftClock()
        self._lane: AgentLane[Any, Any] | None = None
        targets: dict[Backend, Path | Store] = {
            "memory": MemoryStore(clock=self._clock, ids=CountingIds(series=1_000_000)),
            "jsonl": folder / "recorded.jsonl",
            "sqlite": folder / "recorded.db",
        }
        self.target = targets[backend]

    async def play(self) -> None:
        """To the end of the plan; the last process closes its session. Nothing may fail unheard meanwhile."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self.witness.problems.append(f"unheard: {context}"))
        while not await self._live():
            pass
        gc.collect()  # a task whose error nobody took says so when it goes
        loop.set_exception_handler(None)

    async def open(self, probe: CommitProbe | None = None) -> Session:
        """The only session of the target, made by the first process; the others ask for it by its id."""
        self.lives += 1
        session = await open_session(
            self.target,
            session_id=self._session_id,
            durability="process",
            clock=self._clock,
            ids=CountingIds(series=self.lives),
            seed=self.lives,
            probe=probe,
        )
        self._session_id = session.id
        return session

    def __str__(self) -> str:
        died = "" if self.deaths is None else f"; {self.deaths.history()}"
        return f"life {self.lives}, step {self._step}, commit {self.commits}{died}"

    # One process.

    async def _live(self) -> bool:
        """One life; False if it was ended before the plan was."""
        self._lane = None
        probe = CommitProbe(place=self._place, deaths=self.deaths, before=self._before, after=self._after)
        model = WatchedModel(
            self.plan.conversation,
            self.witness,
            deltas=DELTAS,
            delta_ms=DELTA_MS,
            clock=self._clock,
            limits=self._limits,
            summaries=self._summaries,
        )
        desk = Desk(self.plan, self.witness, self.policies, seed=self._seed)
        self._desk = desk
        life = Life(await self.open(probe), probe, model, desk, self._compaction)
        self.charged.append(life.session.stats().usage)
        for operation in life.session.open_operations():
            self.witness.looks_at(operation)
        acting = asyncio.ensure_future(self._act(life))
        dying = asyncio.ensure_future(probe.died())
        await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED)
        if probe.died_at is None:
            dying.cancel()
            try:
                await acting
            finally:
                await life.session.close()
        else:
            await life.bury(acting)
            self._clock.forget_commits()
            self.witness.buries()
            if self.deaths is not None and probe.death is not None:
                self.deaths.add(probe.death)
        model.require_no_violations()
        return probe.died_at is None

    async def _act(self, life: Life) -> None:
        lane = await life.session.lane(LANE, life.agent)
        self._lane = lane
        life.desk.serve(lane)
        self._step = max(self._step, 0)
        while self._step < len(self.plan.steps):
            step = self.plan.steps[self._step]
            if isinstance(step, Run):
                await self._run(lane, life.model, step)
            else:
                await self._append(lane, step)
            self._step += 1
        await lane._core.load()  # for a process that came to the end and found nothing to do
        self.live = msgspec.json.encode(await lane.messages())
        self.live_view = msgspec.json.encode(tuple(lane._core.context.view()))

    async def _run(self, lane: AgentLane[Any, Any], model: WatchedModel, run: Run) -> None:
        id = operation_of(run.turn)
        await lane.accept(Prompt(messages=(run.prompt,)), operation_id=id)
        if run.ending == "terminated" and self._lost_its_end(lane, run):
            await lane.request_abort(id)
        driving = asyncio.ensure_future(lane.drive(id))
        hanging = asyncio.ensure_future(model.hanging(lane=LANE))
        try:
            await asyncio.wait({driving, hanging}, return_when=asyncio.FIRST_COMPLETED)
            if not driving.done():
                if random.Random(f"{self._seed}/abort/{run.turn}").random() < 0.5:
                    await self.witness.all_saved()
                await lane.request_abort(id)
            outcome = await driving
        finally:
            driving.cancel()
            hanging.cancel()
        stopped = any(place.turn == run.turn for place in self.witness.lost & self.plan.terminating)
        status = "aborted" if stopped else STATUSES[run.ending]
        if not isinstance(outcome, Settled) or outcome.result.status != status:
            raise AssertionError(f"turn {run.turn} was to end as {status}; {self}\n{outcome}")

    def _lost_its_end(self, lane: AgentLane[Any, Any], run: Run) -> bool:
        """Whether a call that was to end the run is lost: its result cannot, so whoever drives stops the run there."""
        operation = lane.inspect().operation
        return (
            operation is not None
            and operation.turn == len(run.answers)
            and any(call.status == "effect_pending" and call.policy == "never" for call in operation.calls)
        )

    async def _append(self, lane: AgentLane[Any, Any], step: Append) -> None:
        """An append has no id by which it could be asked for again, so a new process looks whether it is there."""
        [tip] = await lane.entries(limit=1)
        if not isinstance(tip.body, AssistantMessage) or tip.body.content != step.message.content:
            await lane.append_message(step.message)

    # What the probe asks and tells.

    def _place(self, name: str) -> CommitPlace:
        operation = None if self._lane is None else self._lane.inspect().operation
        if operation is None:
            return CommitPlace(self._step, 0, name, (), 0)
        calls = tuple(call.status for call in operation.calls)
        saves = self.witness.saves if operation.at == "generating" else 0
        return CommitPlace(self._step, operation.turn, name, calls, saves)

    def _before(self, name: str) -> None:
        self._clock.hold()
        self.witness.saved()  # a lane makes one commit at a time, so the one before it is made
        if name == "frames":
            self.witness.saving()

    def _after(self, name: str) -> None:
        self.commits += 1
        self._clock.go_on()
        if name == "frames":
            self.witness.saved()
        self._desk.committed()
