"""Claim: folding gives what there is at every moment of random runs in which lanes are moved, renamed and deleted."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentlane import (
    Agent,
    AgentLane,
    AgentLaneError,
    LaneSnapshot,
    Prompt,
    Resnapshot,
    Session,
    SessionSnapshot,
    Tool,
    ToolContext,
    open_session,
)
from agentlane.testing import ManualClock, ScriptedModel, call, check_invariants
from tests.watch.law import Followed, followed

NAMES = ("main", "side", "third")
TARGETS = (":memory:", "s.jsonl", "s.db")
PROGRAMS_MAX = 60
TURNS_MAX = 2_000
HISTORY = 3
PROMPTS_MAX = 30

WORDS = ("run", "accept", "drive", "steer", "navigate", "rewind", "branch", "rename", "delete", "turns", "reopen")
Step = tuple[str, int, int]
STEPS = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 8), st.integers(0, 8)), min_size=8, max_size=25)
BEGIN: tuple[Step, ...] = (("run", 0, 0), ("run", 1, 0))


class Played:
    """One session and what was done on it. Numbers stand for things, modulo what there is."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.clock = ManualClock()
        self.done: Counter[str] = Counter()
        self.session: Session
        self.driving: list[asyncio.Future[Any]] = []
        self.folded: SessionSnapshot | None = None
        self.reading: asyncio.Future[None]

    async def open(self) -> None:
        self.session = await open_session(self.target, durability="process", clock=self.clock)
        self.folded = None
        self.reading = asyncio.ensure_future(self.read())

    async def close(self) -> None:
        """Compare, and close; the reader ends by that."""
        await asyncio.gather(*self.driving, return_exceptions=True)
        await self.compare()
        await self.session.close()
        await self.reading

    async def read(self) -> None:
        async for item in self.session.watch(history=HISTORY, buffer=10_000):
            assert not isinstance(item, Resnapshot)
            self.folded = item if isinstance(item, SessionSnapshot) else self.need().apply(item)

    def need(self) -> SessionSnapshot:
        assert self.folded is not None
        return self.folded

    async def compare(self) -> None:
        """Once it has read everything, what was folded is what somebody is shown who begins to watch: lanes and all."""
        for _ in range(TURNS_MAX):
            async with self.session.watch(history=HISTORY) as watch:
                fresh = await anext(watch)
            assert isinstance(fresh, SessionSnapshot)
            if self.folded is not None and self.folded.cursor == fresh.cursor:
                assert _of_no_moment(self.folded) == _of_no_moment(fresh)
                assert sorted(fresh.lanes) == self.session.lanes()
                self.done["compared"] += 1
                return
            await asyncio.sleep(0)
        raise AssertionError("the reader never comes to the end")

    async def lane(self, number: int) -> AgentLane[Any, Any]:
        async def look(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            await ctx.progress("half")
            return "seen"

        model = ScriptedModel(turns=[[[call("look")], "done"]] * PROMPTS_MAX)
        return await self.session.lane(NAMES[number % len(NAMES)], Agent(model=model, tools=[Tool("look", look)]))

    async def play(self, word: str, one: int, two: int) -> None:
        """One step; what cannot be done now is refused, and changes nothing."""
        try:
            await self.step(word, one, two)
        except AgentLaneError:
            self.done["refused"] += 1
        else:
            self.done[word] += 1

    async def step(self, word: str, one: int, two: int) -> None:
        name, other = NAMES[one % len(NAMES)], NAMES[two % len(NAMES)]
        branches = self.session.branches()
        if word == "turns":
            for _ in range(one * two):
                await asyncio.sleep(0)
            await self.compare()
        elif word == "reopen" and self.target != ":memory:":
            await self.close()
            await self.open()
        elif word == "rename":
            await self.session.rename_branch(name, other)
        elif word == "delete":
            await self.session.delete_branch(name)
        elif word == "branch":
            entries = await self.session.entries()
            await self.session.create_branch(name, at=entries[two % len(entries)].id if entries else None)
        elif name in branches or word in ("run", "accept"):
            await self.on_lane(await self.lane(one), word, two)

    async def on_lane(self, lane: AgentLane[Any, Any], word: str, two: int) -> None:
        entries = await lane.entries()
        if word == "run":
            await lane.run("go")
        elif word == "accept":
            await lane.accept(Prompt("go"))
        elif word == "drive":
            self.driving.append(asyncio.ensure_future(lane.drive()))
        elif word == "steer":
            await lane.steer("mind")
        elif word == "navigate":
            every = await self.session.entries()
            await lane.navigate(
                every[two % len(every)].id if every and two else None, label="left" if two % 2 else None
            )
        elif word == "rewind" and entries:
            await lane.rewind(entries[two % len(entries)].id)


def _of_no_moment(snapshot: SessionSnapshot) -> dict[str, LaneSnapshot]:
    """A lane's cursor is of the last event that it had, or of the moment when it was shown."""
    return {name: replace(lane, cursor="") for name, lane in snapshot.lanes.items()}


async def play(target: str, steps: Sequence[Step]) -> Counter[str]:
    with followed() as law:
        played = Played(target)
        await played.open()
        for word, one, two in steps:
            await played.play(word, one, two)
        await asyncio.gather(*played.driving, return_exceptions=True)
        assert await check_invariants(played.session) == []
        await played.close()
        await asyncio.gather(*(task for each in law.followed for task in _ended(each)), return_exceptions=True)
    return played.done + law.seen


def _ended(followed: Followed) -> list[asyncio.Task[None]]:
    """Its readers; those that hang are told to end."""
    for task in followed.tasks:
        task.cancel()
    return followed.tasks


async def test_the_programs_do_what_they_are_for() -> None:
    """A fixed one that has each kind of step once shows each kind of event."""
    steps = [*BEGIN, ("branch", 2, 1), ("accept", 0, 0), ("steer", 0, 0), ("drive", 0, 0)]
    steps += [
        ("turns", 8, 8),
        ("navigate", 1, 0),
        ("rewind", 0, 1),
        ("rename", 0, 3),
        ("delete", 2, 0),
        ("rename", 0, 2),
    ]
    steps += [("turns", 8, 8), ("delete", 1, 0), ("turns", 8, 8)]

    seen = await play(":memory:", steps)

    assert seen["compared"] == 4
    assert seen["refused"] == 1, "only the name that is there already"
    wanted = ("LaneOpened", "LaneRenamed", "LaneRemoved", "PathMoved", "QueueChanged", "OperationSettled", "held")
    assert [name for name in wanted if not seen[name]] == []


@settings(
    max_examples=min(settings().max_examples // 3, PROGRAMS_MAX),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.sampled_from(TARGETS), STEPS)
def test_folding_gives_what_there_is_while_lanes_come_go_and_move(target: str, steps: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(target if target == ":memory:" else str(Path(folder) / target), [*BEGIN, *steps]))
