"""A storm: many tasks that use one session at once, in a schedule that a seed chooses, over one or more lives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from agentlane import (
    AgentLane,
    LaneBusy,
    ListAddress,
    NoActiveOperation,
    Prompt,
    Session,
    SessionClosed,
    SessionFaulted,
    Settled,
    Usage,
    ValueAddress,
    open_session,
)
from agentlane.storage.contract import Store
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FailingStore
from agentlane.testing.gates import GatedStore
from agentlane.testing.invariants import check_invariants
from agentlane.testing.trace import Trace
from tests.races.stage import HOLDS
from tests.races.storm_agent import IDENTITIES, TOOLS, Effects, StormModel, drift, storm_agent
from tests.races.storm_claims import Claims

T = TypeVar("T")
End: TypeAlias = Literal["calm", "close", "fault"]
"""How a life ends: when all is done, by a close in the middle, by a write that fails."""

LOG = ListAddress("app.storm", "log", str)
OPEN_BESIDE_A_WRITER_IS_TORN = True
"""A reader that opens a SQLite session in the middle of its writes may see half an operation; remove this when not."""
TRIES_MAX = 4
DRIVES_MAX = 50
READS_MAX = 6


class Storm:
    """One session in a storm, and what its callers were told."""

    def __init__(self, seed: int, session_id: str, store: Store, clock: ManualClock, *, shares: bool) -> None:
        self.shares = shares
        self.dice = random.Random(f"{seed}/{session_id}")
        self.session_id = session_id
        self.clock = clock
        self.trace = Trace()
        self.failing = FailingStore(store, nth=None)
        self.gated = GatedStore(self.failing, hold=self.dice.choice(HOLDS))
        self.effects = Effects()
        self.claims = Claims()
        self.models: list[StormModel] = []
        self.lanes = [f"lane-{number}" for number in range(self.dice.randint(1, 3))]
        self.ends: list[End] = [*self.dice.choices(("close", "fault", "calm"), k=self.dice.randrange(3)), "calm"]
        self.readings: list[str] = []
        self._lives = 0
        self._meant: tuple[type[BaseException], ...] = ()

    @property
    def undisturbed(self) -> bool:
        """Whether no life ended before its time."""
        return set(self.ends) == {"calm"}

    async def open(self, *, read_only: bool = False) -> Session:
        """Open the session; each life has ids of its own."""
        self._lives += 1
        ids = CountingIds(series=self._lives)
        store = self.failing if read_only else self.trace.store(self.gated)
        probe = None if read_only else self.trace.probe()
        return await open_session(
            store, session_id=self.session_id, clock=self.clock, ids=ids, seed=1, probe=probe, read_only=read_only
        )

    async def play(self) -> Session:
        """All lives; the last one's session, open, with nothing left to drive."""
        await self.failing.create(self.session_id)
        medium = asyncio.ensure_future(self._medium(self._die()))
        try:
            return await self._lives_and_end()
        finally:
            self.gated.gate.open()
            medium.cancel()

    async def _lives_and_end(self) -> Session:
        session = await self.open()
        for life, end in enumerate(self.ends):
            await self._live(session, life, end)
            if end == "close" or (end == "calm" and life < len(self.ends) - 1):
                await session.close()
                session = await self.open()
            elif end == "fault":
                await session.reopen()
        agent, models = storm_agent(self.effects, random.Random(self.dice.random()))
        self.models += models
        traced = self.trace.agent(agent)
        for name in session.lanes():
            await self._finish(await session.lane(name, traced))
        return session

    async def _live(self, session: Session, life: int, end: End) -> None:
        """One life: every actor at once, until all have done their part or the end came before."""
        agent, models = storm_agent(self.effects, random.Random(self.dice.random()), calm=False)
        self.models += models
        traced = self.trace.agent(agent)
        lanes = [await session.lane(name, traced) for name in self.lanes]
        self._meant = {"calm": (), "close": (SessionClosed,), "fault": (SessionFaulted,)}[end]
        actors: list[Awaitable[None]] = []
        for lane in lanes:
            actors += [self._prompter(f"{life}-{lane.name}-{n}", lane, self._die()) for n in range(2)]
            actors.append(self._aborter(lane, self._die()))
            actors.append(self._appender(f"{life}-{lane.name}", lane, self._die()))
        actors += [self._scribe(f"{life}-{number}", session, self._die()) for number in range(2)]
        actors.append(self._reader(session, lanes, self._die()))
        if self.dice.random() < 0.3:
            actors.append(self._witness(self._die()))
        if end == "close":
            actors.append(self._closer(session, self._die()))
        if end == "fault":
            self.failing.fail_next(self.dice.randint(1, 30))
            # Half a commit is left by a death, which takes along whoever shares the file.
            self.failing.where = self.dice.choice(("before", "after") if self.shares else ("before", "half", "after"))
        self.dice.shuffle(actors)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._until_its_end(actor)) for actor in actors]
            moving = group.create_task(self._time(self._die()))
            await asyncio.wait(tasks)
            if end == "fault" and not self.failing.failed:
                await self._fail(session)
            moving.cancel()

    def _die(self) -> random.Random:
        return random.Random(self.dice.random())

    async def _until_its_end(self, actor: Awaitable[None]) -> None:
        try:
            await actor
        except self._meant:
            pass

    async def _fail(self, session: Session) -> None:
        """The commit that was to fail never came: let the next one do it."""
        self.failing.fail_next()
        try:
            await session.set_name("lost")
        except SessionFaulted:
            self.claims.names_tried.add("lost")

    async def _finish(self, lane: AgentLane[Any, Any]) -> None:
        moving = asyncio.ensure_future(self._time(self._die()))
        for _ in range(DRIVES_MAX):
            try:
                outcome = await lane.drive()
            except NoActiveOperation:
                break
            self.claims.told(outcome)
        else:
            raise AssertionError(f"{lane.name} has no end")
        moving.cancel()

    # Actors.

    async def _time(self, dice: random.Random) -> None:
        """Whoever sleeps is woken soon."""
        while True:
            await self.clock.sleeping()
            await drift(dice, 8)
            if self.clock.sleepers:
                self.clock.advance_to_next()

    async def _medium(self, dice: random.Random) -> None:
        """The medium takes its time: it writes, or reports, some of what it was handed, in order."""
        gate = self.gated.gate
        while True:
            await gate.arrived()
            await drift(dice, 6)
            gate.release(dice.randint(1, len(gate.held)) if gate.held else 0)

    async def _prompter(self, name: str, lane: AgentLane[Any, Any], dice: random.Random) -> None:
        for number in range(dice.randint(1, 2)):
            id = f"{name}-{number}"
            await drift(dice)
            if not await self._accept(lane, id, dice):
                continue
            for _ in range(TRIES_MAX):
                outcome = await self._drive(lane, id, dice)
                if isinstance(outcome, Settled):
                    break

    async def _accept(self, lane: AgentLane[Any, Any], id: str, dice: random.Random) -> bool:
        """Accept ``id``, some of the times twice at once; on a busy lane drive first what is open."""
        self.claims.operations_tried[id] = lane.name
        for _ in range(TRIES_MAX):
            try:
                both = [lane.accept(Prompt(id), operation_id=id) for _ in range(dice.randint(1, 2))]
                admitted = await asyncio.gather(*both)
            except LaneBusy:
                try:
                    self.claims.told(await lane.drive(wait_for_retry=dice.random() < 0.5))
                except NoActiveOperation:
                    pass
                continue
            assert all(each == admitted[0] for each in admitted)
            self.claims.operations[id] = admitted[0]
            return True
        return False

    async def _drive(self, lane: AgentLane[Any, Any], id: str, dice: random.Random) -> object:
        task = asyncio.ensure_future(lane.drive(id, wait_for_retry=dice.random() < 0.5))
        if dice.random() < 0.3:
            await drift(dice, 12)
            task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return None
        outcome = task.result()
        self.claims.told(outcome)
        return outcome

    async def _aborter(self, lane: AgentLane[Any, Any], dice: random.Random) -> None:
        for _ in range(dice.randrange(3)):
            await drift(dice, 30)
            operation = lane.inspect().operation
            if operation is not None:
                self.claims.aborts_tried.add(operation.operation_id)
                receipt = await lane.request_abort(operation.operation_id)
                if receipt.newly_requested:
                    self.claims.aborts[receipt.operation_id] += 1

    async def _appender(self, name: str, lane: AgentLane[Any, Any], dice: random.Random) -> None:
        """Entries of the application, at once or as deferred writes; and configurations."""
        for number in range(3):
            await drift(dice, 20)
            if dice.random() < 0.3:
                tools = dice.sample(TOOLS, dice.randint(1, len(TOOLS)))
                await lane.configure(model=dice.choice(IDENTITIES), tools=tools)
            text = f"{name}-{number}"
            self.claims.entries_tried.add(text)
            entry = await lane.append_custom("note", text)
            self.claims.entries[text] = (lane.name, entry.id)

    async def _scribe(self, name: str, session: Session, dice: random.Random) -> None:
        """Values, list elements, names and ledger rows, each told when it is durable."""
        address = ValueAddress("app.storm", name, int)
        for number in range(3):
            await drift(dice, 8)
            text = f"{name}-{number}"
            self.claims.elements_tried.add(text)
            self.claims.elements[text] = await session.append(LOG, text)
            self.claims.values_tried[name] = number
            await session.set_value(address, number)
            self.claims.values[name] = number
            if number == 1:
                self.claims.names_tried.add(name)
                await session.set_name(name)
                if session.name not in self.claims.names_tried:
                    self.readings.append(f"the session is called {session.name} after it was called {name}")
                self.claims.rows_tried += 1
                await session.record_usage(Usage(input_tokens=1, output_tokens=1), note=name)
                self.claims.rows += 1

    async def _reader(self, session: Session, lanes: list[AgentLane[Any, Any]], dice: random.Random) -> None:
        """What is read in the middle is whole: paths hang together, and what was there stays there."""
        seen: dict[str, list[str]] = {}
        for _ in range(READS_MAX):
            await drift(dice, 12)
            lane = dice.choice(lanes)
            path = await lane.entries(newest_first=False)
            if [entry.parent_id for entry in path[1:]] != [entry.id for entry in path[:-1]]:
                self.readings.append(f"{lane.name}: a path that does not hang together")
            ids = [entry.id for entry in path]
            before = seen.get(lane.name, [])
            if ids[: len(before)] != before:
                self.readings.append(f"{lane.name}: entries that were there are gone")
            seen[lane.name] = ids
            seqs = [seq for seq, _ in await session.elements(LOG)]
            if seqs != sorted(set(seqs)):
                self.readings.append("elements out of order")

    async def _witness(self, dice: random.Random) -> None:
        """A reader of its own on the same store, while all is written."""
        await drift(dice, 20)
        session = await self.open(read_only=True)
        try:
            self.readings += await check_invariants(session)
        except LaneBusy:  # written at each look at it
            pass
        finally:
            await session.close()

    async def _closer(self, session: Session, dice: random.Random) -> None:
        await drift(dice, 150)
        await session.close()


async def play(
    seed: int,
    make: Callable[[Path, ManualClock], Store],
    folder: Path,
    check: Callable[[Storm, Session], Awaitable[None]],
) -> None:
    """A round: one or two sessions of one store in a storm at once, each then looked at by ``check`` and closed."""
    clock = ManualClock()
    store = make(folder, clock)
    ids = ("s", "t") if seed % 3 == 0 else ("s",)
    storms = [Storm(seed, id, store, clock, shares=len(ids) > 1) for id in ids]
    try:
        sessions = await asyncio.gather(*(storm.play() for storm in storms), return_exceptions=True)
        for storm, session in zip(storms, sessions, strict=True):
            if isinstance(session, BaseException):
                raise session
            await check(storm, session)
            await session.close()
        await store.close()
    except BaseException as error:
        ends = {storm.session_id: storm.ends for storm in storms}
        error.add_note(f"seed {seed}, lives {ends}, {'; '.join(map(repr, _leaves(error)))}")  # before what may be cut
        for storm in storms:
            error.add_note(storm.trace.history(last=60))
        raise


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors that a group is of, however deep."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
