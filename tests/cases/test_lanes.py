"""Claim: lanes and sessions that work side by side never take each other's ids, entries, threads or time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

from agentlane import Agent, LaneBusy, ListAddress, Prompt, Tool, ToolContext
from agentlane.data.messages import UserMessage
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.races.stage import settled, shape
from tests.session.places import Place

LOG = ListAddress("app.cases", "log", str)
GUARD_S = 60.0


async def test_equal_work_on_two_lanes_is_two_pieces_of_work(place: Place) -> None:
    """The same prompt, the same call, the same provider id, at once: each runs, under ids and keys of its own."""
    seen: list[tuple[str, str]] = []

    async def pay(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        seen.append((ctx.call_id, ctx.idempotency_key))
        return "paid"

    session = await place.open()
    model = ScriptedModel([[call("pay", x=1)], "done"])
    agent = Agent(model=model, tools=[Tool("pay", pay)])
    lanes = [await session.lane(name, agent) for name in ("a", "b")]
    results = await asyncio.gather(*(lane.run("go") for lane in lanes))
    again = await lanes[0].accept(Prompt("go"))

    assert [result.status for result in results] == ["completed"] * 2
    assert len({each[0] for each in seen}) == len({each[1] for each in seen}) == 2
    assert len({result.operation_id for result in results} | {again.operation_id}) == 3
    entries = [entry.id for entry in await session.entries()]
    assert len(entries) == len(set(entries)) == 9
    assert await check_invariants(session) == []


async def test_two_sessions_of_one_process_never_mix(place: Place) -> None:
    """A hundred writes of each in turn, then both read anew: each has its own, all of it, in order."""
    sessions = [await place.open(name) for name in ("a", "b")]
    model = ScriptedModel([f"answer {number}" for number in range(10)])
    lanes = [await session.lane("main", Agent(model=model)) for session in sessions]
    for number in range(100):
        for name, session in zip("ab", sessions, strict=True):
            await session.append(LOG, f"{name}{number}")
        if number % 10 == 0:
            await asyncio.gather(*(lane.run(f"{name} says {number}") for name, lane in zip("ab", lanes, strict=True)))
    for session in sessions:
        await session.close()

    for name in "ab":
        session = await place.open(name)
        assert [text for _, text in await session.elements(LOG)] == [f"{name}{number}" for number in range(100)]
        prompts = [line for line in shape(await session.branch("main").messages()) if line.startswith("user")]
        assert prompts == [f"user {name} says {number}" for number in range(0, 100, 10)]
        assert await check_invariants(session) == []


async def test_thirty_tasks_on_ten_lanes_have_one_order(place: Place) -> None:
    """Each lane takes one of three; what is stored is counted once and its numbers only grow."""
    session = await place.open()
    model = ScriptedModel(["done"])
    lanes = [await session.lane(f"lane-{number}", Agent(model=model)) for number in range(10)]

    async def ask(number: int) -> bool:
        try:
            await lanes[number % 10].accept(Prompt(f"prompt {number}"), operation_id=f"op-{number}")
        except LaneBusy:
            return False
        return True

    taken = await asyncio.gather(*(ask(number) for number in range(30)))

    assert Counter(number % 10 for number, each in enumerate(taken) if each) == dict.fromkeys(range(10), 1)
    entries = await session.entries()
    bodies = [entry.body for entry in entries if isinstance(entry.body, UserMessage)]
    assert sorted(shape(bodies)) == sorted(f"user prompt {number}" for number, each in enumerate(taken) if each)
    seqs = [entry.seq for entry in entries]
    assert seqs == sorted(set(seqs))
    assert len(session.open_operations()) == 10
    assert await check_invariants(session) == []


async def test_a_timeout_is_not_inherited_by_what_the_tool_calls(place: Place) -> None:
    """A tool with a timeout drives another lane, whose plain tool has none: it is stopped, the plain one is not."""
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop, release, starts = asyncio.get_running_loop(), threading.Event(), list[str]()

    def plain(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        starts.append("plain")
        loop.call_soon_threadsafe(begun.set_result, None)
        release.wait(GUARD_S)
        return "stopped" if ctx.cancelled else "done in its own time"

    session = await place.open()
    inner = await session.lane(
        "inner", Agent(model=ScriptedModel([[call("plain")], "inner done"]), tools=[Tool("plain", plain)])
    )

    async def outer(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        starts.append("outer")
        return (await inner.run("go", operation_id="inner-op")).text

    model = ScriptedModel([[call("outer")], "done"])
    lane = await session.lane("main", Agent(model=model, tools=[Tool("outer", outer, timeout_ms=100)]))
    running = asyncio.ensure_future(lane.run("go"))
    await begun
    place.clock.advance(100)

    assert (await running).status == "completed"
    assert inner.inspect().driving
    release.set()
    assert settled(await inner.drive("inner-op")).text == "inner done"
    assert shape(await inner.messages())[2] == "result done in its own time"
    told = shape(await lane.messages())[2]
    assert told.startswith(
        "result! The tool 'outer' did not end within 100 ms and was stopped. It may have run in part."
    )
    assert starts == ["outer", "plain"]


async def test_a_plain_tool_that_ends_late_is_not_run_again(place: Place) -> None:
    """Its thread cannot be stopped: the result says so, what it returns too late is refused, and it ran once."""
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop, release, starts = asyncio.get_running_loop(), threading.Event(), list[int]()

    def late(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        starts.append(1)
        loop.call_soon_threadsafe(begun.set_result, None)
        release.wait(GUARD_S)
        return "too late"

    model = ScriptedModel([[call("late")], "done"])
    session = await place.open()
    lane = await session.lane(
        "main", Agent(model=model, tools=[Tool("late", late, replay="safe", timeout_ms=100)], cancel_grace_ms=50)
    )
    running = asyncio.ensure_future(lane.run("go"))
    await begun
    place.clock.advance(100)
    await place.clock.sleeping()
    place.clock.advance(50)

    assert (await running).status == "completed"
    release.set()
    while session._runtime.tasks:
        await asyncio.wait(set(session._runtime.tasks))
    assert starts == [1]
    assert "It may have run in part" in shape(await lane.messages())[2]
    assert [word for word in ("left behind", "late result") if not any(word in text for text in session.findings)] == []
    assert "too late" not in "".join(shape(await lane.messages()))
