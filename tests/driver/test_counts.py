"""Counts that do not vary: commits, frame commits and bytes of a run, whatever the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentlane import Agent, Prompt, open_session, tool
from agentlane.testing.clock import ManualClock
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, hang, say

TARGETS = (":memory:", "session.jsonl", "session.db")
CALLS = 8


def commits(plan: FaultPlan) -> list[str]:
    """The names of the commits a plan has seen, in order."""
    return [each.removeprefix("commit.").removesuffix(".after") for each in plan.trace if each.endswith(".after")]


def target_in(folder: Path, name: str) -> str:
    return name if name == ":memory:" else str(folder / name)


@tool(replay="safe")
async def read_file(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


def eight_reads() -> ScriptedModel:
    return ScriptedModel([[say("looking"), *(call("read_file", path=f"{i}.txt") for i in range(CALLS))], "done"])


@pytest.mark.parametrize("name", TARGETS)
async def test_a_run_whose_tools_end_together_takes_five_commits(tmp_path: Path, name: str) -> None:
    plan = FaultPlan()
    async with open_session(target_in(tmp_path, name), durability="process", probe=plan) as session:
        lane = await session.lane("main", Agent(model=eight_reads(), tools=[read_file]))
        before = len(commits(plan))
        result = await lane.run("read them")
    assert result.status == "completed"
    assert commits(plan)[before:] == [
        "accept",
        "intent",
        "settlement+tool_intents",
        "outcome_placed+intent",
        "settlement+terminal",
    ]


@pytest.mark.parametrize("name", TARGETS)
async def test_a_run_whose_tools_end_one_by_one_takes_twelve_commits(tmp_path: Path, name: str) -> None:
    """Out of order even: each outcome is durable before the next one is let go."""
    gates: dict[str, asyncio.Event] = {f"{i}.txt": asyncio.Event() for i in range(CALLS)}

    @tool(replay="safe")
    async def read_file(path: str) -> str:
        """Read a file."""
        await gates[path].wait()
        return f"content of {path}"

    plan = FaultPlan()
    async with open_session(target_in(tmp_path, name), durability="process", probe=plan) as session:
        lane = await session.lane("main", Agent(model=eight_reads(), tools=[read_file]))
        before = len(commits(plan))
        admitted = await lane.accept(Prompt("read them"))
        drive = asyncio.ensure_future(lane.drive(admitted.operation_id))
        await until(lambda: len(commits(plan)) - before == 3)
        for done, path in enumerate(sorted(gates, reverse=True)):
            gates[path].set()
            await until(lambda done=done: len(commits(plan)) - before >= 4 + done)  # type: ignore[misc]
        await drive
        texts = [m.text for m in await lane.messages() if m.__class__.__name__ == "ToolResultMessage"]
    assert texts == [f"content of {i}.txt" for i in range(CALLS)]
    seen = commits(plan)[before:]
    assert len(seen) == 12
    assert seen[3:10] == ["outcome_staged"] * 7
    assert seen[10:] == ["outcome_placed+intent", "settlement+terminal"]


async def test_an_answer_that_takes_no_time_is_never_saved_twice() -> None:
    """A hundred deltas cost no commit of their own when the stream takes no time."""
    plan = FaultPlan()
    model = ScriptedModel(["x" * 100], deltas=1)
    async with open_session(":memory:", probe=plan) as session:
        lane = await session.lane("main", Agent(model=model))
        before = len(commits(plan))
        await lane.run("hello")
    assert commits(plan)[before:] == ["accept", "intent", "settlement+terminal"]


async def test_frames_are_saved_once_per_hundred_milliseconds() -> None:
    plan, clock = FaultPlan(), ManualClock()
    model = ScriptedModel([hang([say("a" * 50)])], deltas=1)
    async with open_session(":memory:", probe=plan, clock=clock) as session:
        lane = await session.lane("main", Agent(model=model))
        admitted = await lane.accept(Prompt("read them"))
        drive = asyncio.ensure_future(lane.drive(admitted.operation_id))
        await model.hanging()
        assert "frames" not in commits(plan)
        clock.advance(100)
        await until(lambda: "frames" in commits(plan))
        clock.advance(1_000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert commits(plan).count("frames") == 1
        await lane.request_abort(admitted.operation_id)
        await drive


async def test_bytes_of_a_run_stay_within_the_budget_and_do_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    sizes = []
    model = ScriptedModel(turns=[eight_reads_turn() for _ in range(30)])
    async with open_session(path, durability="process") as session:
        lane = await session.lane("main", Agent(model=model, tools=[read_file]))
        for _ in range(30):
            before = path.stat().st_size
            await lane.run("read them")
            sizes.append(path.stat().st_size - before)
    assert max(sizes) <= 7_500, sizes
    assert max(sizes[1:]) - min(sizes[1:]) <= 64, sizes  # numbers get longer, nothing else


def eight_reads_turn() -> list[object]:
    return [[say("looking"), *(call("read_file", path=f"{i}.txt") for i in range(CALLS))], "done"]


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until something holds; a bound, far beyond any slow disk, turns a hang into a failure."""
    for _ in range(5_000_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")
