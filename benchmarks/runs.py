"""The unit of work of the cost budget (one prompt, eight parallel calls, a final answer), and how it is measured.

Model and tools take no time, retry and compaction play no part. What is measured is therefore the library alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median

from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartEnd,
    PartStart,
    Prompt,
    Session,
    StreamItem,
    TextPart,
    ToolCallPart,
    Usage,
    UserMessage,
    open_session,
    tool,
)
from agentlane.storage.contract import Durability
from agentlane.testing.faults import FaultPlan

CALLS = 8
WARM_UP = 40
EVENTS = 16
"""What a watcher of one unit of work is told, at least: eleven entries, four states of the operation, and its end."""


class InstantModel:
    """Answers at once: eight calls to a prompt, then a text."""

    identity = ModelIdentity(provider="benchmark", name="instant")
    limits = ModelLimits()

    def __init__(self, *, deltas: int = 0) -> None:
        self._deltas = deltas

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """The settled message, after as many deltas as were asked for."""
        usage = Usage(input_tokens=1_000, output_tokens=100)
        last = request.messages[len(request.messages) - 1]
        if isinstance(last, UserMessage) and not self._deltas:
            calls = tuple(
                ToolCallPart(id=f"call_{index}", name="read_file", arguments={"path": f"src/module_{index}.py"})
                for index in range(CALLS)
            )
            content = (TextPart(text="I will read the eight modules."), *calls)
            yield AssistantMessage(content=content, stop_reason="tool_calls", usage=usage)
            return
        text = TextPart(text="All eight modules are read, and nothing is wrong with them.")
        if self._deltas:
            yield PartStart(index=0, kind="text")
            for _ in range(self._deltas):
                yield PartDelta(index=0, text="word ")
            text = TextPart(text="word " * self._deltas)
            yield PartEnd(index=0, part=text)
        yield AssistantMessage(content=(text,), stop_reason="stop", usage=usage)


@tool(replay="safe")
async def read_file(path: str) -> str:
    """Read a file."""
    return f"the content of {path}"


def plain_agent() -> Agent:
    """The agent of the unit of work."""
    return Agent(model=InstantModel(), tools=[read_file])


async def one_run(lane: AgentLane) -> None:
    """One unit of work."""
    admitted = await lane.accept(Prompt("read the modules"))
    await lane.drive(admitted.operation_id)


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    """How long ``work`` takes."""
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


async def run_times(target: str, durability: Durability, runs: int) -> list[float]:
    """Seconds of each of ``runs`` runs in one session, after some that nobody counts: code that runs once in a run is
    specialised by the interpreter only after some tens of them.
    """
    async with open_session(target, durability=durability) as session:
        lane = await session.lane("main", plain_agent())
        for _ in range(WARM_UP if runs > WARM_UP else 5):
            await one_run(lane)
        return [await seconds(lambda: one_run(lane)) for _ in range(runs)]


async def growth(target: str, runs: int) -> float:
    """Run ``runs`` against run 1, paired: the medians of the last and the first twentieth, in a session that grows.

    A second, young session is run beside it at both times, so that a machine that changes its pace does not count.
    """
    old = await open_session(target, durability="process")
    lane = await old.lane("main", plain_agent())
    part = max(runs // 20, 5)

    async def pair(name: str) -> float:
        async with open_session(":memory:") as young_session:
            young = await young_session.lane(name, plain_agent())
            for _ in range(5):
                await one_run(young)
            olds, youngs = [], []
            for _ in range(part):
                olds.append(await seconds(lambda: one_run(lane)))
                youngs.append(await seconds(lambda: one_run(young)))
            return median(olds) / median(youngs)

    for _ in range(5):
        await one_run(lane)
    first = await pair("first")
    for _ in range(max(runs - 2 * part, 0)):
        await one_run(lane)
    last = await pair("last")
    await old.close()
    return last / first


async def watched_ratio(target: str, runs: int) -> float:
    """A watched run against an unwatched one of the same session, in turn; what the watcher does is counted in."""
    async with open_session(target, durability="process") as session:
        alone = await session.lane("alone", plain_agent())
        watched = await session.lane("watched", plain_agent())
        count = 0

        async def read() -> None:
            nonlocal count
            async for _ in watched.watch():
                count += 1

        async def one_watched_run() -> None:
            before = count
            await one_run(watched)
            while count - before < EVENTS:
                await asyncio.sleep(0)

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        ratios: list[float] = []
        for number in range(runs + WARM_UP):
            took = await seconds(lambda: one_run(alone))
            took_watched = await seconds(one_watched_run)
            if number >= WARM_UP:
                ratios.append(took_watched / took)
        reading.cancel()
        return median(ratios)


async def queued_ratio(target: str, many: int = 1_000, few: int = 10) -> float:
    """What each of ``many`` messages costs that wait and are placed by one run, against each of ``few``."""
    agent = Agent(model=InstantModel(deltas=1))

    async def cost(lane: AgentLane, count: int) -> float:
        async def said_and_placed() -> None:
            for _ in range(count):
                await lane.steer("and this")
            await one_run(lane)

        return (await seconds(said_and_placed) - await seconds(lambda: one_run(lane))) / count

    async with open_session(target, durability="process") as session:
        ratios = []
        for number in range(-1, 5):
            lane = await session.lane(f"few-{number}", agent)
            rounds = many // few  # as many messages, and as long a time, on both sides
            cheap = sum([await cost(lane, few) for _ in range(rounds)]) / rounds
            dear = await cost(await session.lane(f"many-{number}", agent), many)
            if number >= 0:  # the first round warms up
                ratios.append(dear / cheap)
        return median(ratios)


async def reopen_seconds(target: str, runs: int) -> float:
    """Median time to open a session that holds ``runs`` runs."""
    async with open_session(target, durability="process") as session:
        lane = await session.lane("main", plain_agent())
        for _ in range(runs):
            await one_run(lane)

    async def reopen() -> None:
        opened: Session = await open_session(target, durability="process")
        taken.append(time.perf_counter() - begin)
        await opened.close()

    taken: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        await reopen()
    return median(taken)


async def hundred_lanes_seconds(target: str, lanes: int = 100) -> float:
    """Time for one run on each of ``lanes`` lanes of one session, all at once; the median of three rounds."""
    async with open_session(target, durability="process") as session:
        agent = plain_agent()
        opened = [await session.lane(f"lane-{index}", agent) for index in range(lanes)]

        async def all_at_once() -> None:
            await asyncio.gather(*(one_run(lane) for lane in opened))

        await all_at_once()
        return median([await seconds(all_at_once) for _ in range(3)])


async def commits_of_a_run(*, together: bool) -> int:
    """Commits of one run on a memory store."""
    plan = FaultPlan()
    gates = [asyncio.Event() for _ in range(CALLS)]

    @tool(name="read_file", replay="safe")
    async def gated(path: str) -> str:
        """Read a file when its gate is open."""
        await gates[int(path.removesuffix(".py").rsplit("_", 1)[1])].wait()
        return f"the content of {path}"

    def count() -> int:
        return sum(each.startswith("commit.") and each.endswith(".after") for each in plan.trace)

    async with open_session(":memory:", probe=plan) as session:
        lane = await session.lane("main", Agent(model=InstantModel(), tools=[gated]))
        before = count()
        if together:
            for gate in gates:
                gate.set()
        run = asyncio.ensure_future(one_run(lane))
        for gate in gates:
            for _ in range(50):  # more turns of the loop than one outcome needs
                await asyncio.sleep(0)
            gate.set()
        await run
        return count() - before


async def commits_of_a_stream(deltas: int = 100) -> int:
    """Commits that a streamed answer adds to those of a run without tools."""
    counts = []
    for each in (0, deltas):
        plan = FaultPlan()
        async with open_session(":memory:", probe=plan) as session:
            model = InstantModel(deltas=each or 1)
            lane = await session.lane("main", Agent(model=model))
            await one_run(lane)
        counts.append(sum(name.startswith("commit.") and name.endswith(".after") for name in plan.trace))
    return counts[1] - counts[0]


async def jsonl_bytes_of_a_run(folder: Path, *, together: bool) -> int:
    """Bytes that one run adds to a JSONL session."""
    path = folder / f"bytes-{together}.jsonl"

    @tool(name="read_file", replay="safe")
    async def later(path: str) -> str:
        """Read a file, one after the other unless together."""
        if not together:
            for _ in range(20 * int(path.removesuffix(".py").rsplit("_", 1)[1])):
                await asyncio.sleep(0)
        return f"the content of {path}"

    async with open_session(path, durability="process") as session:
        lane = await session.lane("main", Agent(model=InstantModel(), tools=[later]))
        await one_run(lane)
        before = os.stat(path).st_size
        await one_run(lane)
        return os.stat(path).st_size - before
