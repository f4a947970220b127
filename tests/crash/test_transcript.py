"""Claim: whatever goes wrong, the stored conversation is whole, in call order, can be sent, and reads back the same."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import pytest

from agentlane import Agent, Prompt, RetryPolicy, SessionFaulted, Tool, ToolContext, open_session
from agentlane.data.messages import ToolResultMessage
from agentlane.data.usage import NOTHING_SENT, Usage
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FailingStore
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, call, cut, fail, half, hang, say, think
from tests.crash.world import World, finish, make_agent, shape

QUICK = RetryPolicy(base_ms=0)


async def run(world: World, script: list[Any], tools: list[Any], *prompts: str, **agent: Any) -> list[str]:
    """Run the prompts in one life, look at the invariants, and at the same messages after a reopen."""
    session = await world.open()
    lane = await session.lane("main", make_agent(world, world.model(script), tools, **agent))
    for number, prompt in enumerate(prompts or ("go",)):
        await lane.accept(Prompt(prompt), operation_id=f"op-{number}")
        await finish(world, lane, f"op-{number}")
    live = await lane.messages()
    assert await check_invariants(session) == []
    await session.close()
    world.models[-1].require_no_violations()

    session = await world.open()
    assert await session.branch("main").messages() == live
    await session.close()
    return shape(live)


# Calls that run together.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 2, 0)])
async def test_results_are_in_call_order_whatever_ends_first(world: World, order: tuple[int, ...]) -> None:
    """R30, R33: and no slower sibling is given up for it."""
    after: dict[int, list[int]] = {later: [first] for first, later in pairwise(order)}
    script = [[call("t", x=i, after=after.get(i, [])) for i in range(3)], "done"]

    assert await run(world, script, [world.tool("t", "never")]) == [
        "user go",
        "assistant[tool_calls]  (t,t,t)",
        *[f"result t:{i} done" for i in range(3)],
        "assistant[stop] done",
    ]


async def test_a_call_refused_at_once_waits_for_its_place(world: World) -> None:
    """R28: the second fails before it begins, while the first runs."""
    script = [[call("t", x=1, after=[1]), call("missing", x=2)], "done"]

    lines = await run(world, script, [world.tool("t", "never")])

    assert lines[2:4] == [
        "result t:1 done",
        "result! The tool 'missing' is not available here. Available: t.",
    ]


@pytest.mark.parametrize("plain", [False, True], ids=["tasks", "threads"])
async def test_fifty_at_once(world: World, plain: bool) -> None:
    """R31: fifty results of a kilobyte that come together are fifty results, in order."""

    async def task(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return f"{arguments['x']:03}" * 340

    def thread(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return f"{arguments['x']:03}" * 340

    made = Tool("t", thread if plain else task, replay="safe")
    script = [[call("t", x=i) for i in range(50)], "done"]

    lines = await run(world, script, [made], max_parallel=50)

    assert lines[2:-1] == [f"result {f'{i:03}' * 340}" for i in range(50)]


async def test_each_failure_is_its_own_result(world: World) -> None:
    """R34: whatever one call raises, its siblings' results stand."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        match arguments["x"]:
            case 1:
                raise ValueError("plain")
            case 2:
                raise SystemExit(3)
            case 3:
                raise asyncio.CancelledError
            case 4:
                return object()
            case 5:
                return {"x": float("nan")}
            case 6:
                raise BaseException("base")
        return "good"

    script = [[call("t", x=i) for i in range(8)], "done"]

    lines = await run(world, script, [world.tool("t", "never", body=body)])

    assert lines[2] == "result good"
    assert lines[9] == "result good"
    assert lines[10] == "assistant[stop] done"
    assert lines[3] == "result! The tool 't' failed: ValueError: plain"
    assert lines[4] == "result! The tool 't' failed: SystemExit: 3"
    assert lines[5] == "result! The tool 't' cancelled itself."
    assert all(line.startswith("result! The tool 't' returned something that cannot be kept: ") for line in lines[6:8])
    assert lines[8] == "result! The tool 't' failed: BaseException: base"


async def test_a_barrier_runs_alone(world: World) -> None:
    """R36: what the model wants in order is run in order."""
    running: set[int] = set()
    seen: list[tuple[int, tuple[int, ...]]] = []

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        running.add(arguments["x"])
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append((arguments["x"], tuple(sorted(running))))
        running.discard(arguments["x"])
        return "fine"

    tools = [world.tool("t", "never", body=body), world.tool("alone", "never", body=body, parallel=False)]
    script = [[call("t", x=1), call("t", x=2), call("alone", x=3), call("t", x=4), call("t", x=5)], "done"]

    await run(world, script, tools)

    assert {together for x, together in seen if x == 3} == {(3,)}
    assert {together for x, together in seen if x in (1, 2)} <= {(1, 2), (1,), (2,)}
    assert any(together == (4, 5) for _, together in seen)


# Answers that go wrong.


async def test_a_retry_starts_from_nothing(world: World) -> None:
    """R21: nothing of the first attempt is in the second; the tool runs once, with good arguments."""
    script = [
        fail("model_error", retryable=True, parts=[say("Hel"), half(call("t", x=1))]),
        [say("Hello"), call("t", x=2)],
        "done",
    ]

    lines = await run(world, script, [world.tool("t", "never")], retry=QUICK)

    assert lines == [
        "user go",
        "assistant[error/model_error] Hel (t)",
        "assistant[tool_calls] Hello (t)",
        "result t:2 done",
        "assistant[stop] done",
    ]
    assert world.starts() == {"t:2": 1}


@pytest.mark.parametrize(
    "parts", [[], [say("Hel")], [think("hm")], [say("so"), call("t", x=1)], [half(call("t", x=1))]]
)
async def test_a_stream_that_just_ends_is_an_error(world: World, parts: list[Any]) -> None:
    """R92: its calls are not run, and the next request is sound."""
    lines = await run(world, [cut(parts), "whole"], [world.tool("t", "never")], retry=QUICK)

    assert lines[1].startswith("assistant[error/stream_cut]")
    assert lines[2:] == ["assistant[stop] whole"]
    assert world.starts() == {}


async def test_only_the_turn_that_failed_is_asked_again(world: World) -> None:
    """R95: thirteen good turns stay as they are."""
    turns: list[Any] = [[call("t", x=i)] for i in range(13)]
    script = [*turns, fail("model_error", retryable=True, parts=[say("al")]), "all done"]

    lines = await run(world, script, [world.tool("t", "never")], retry=QUICK)

    assert len(world.models[-1].requests) == 15
    assert set(world.starts().values()) == {1}
    assert lines[-2:] == ["assistant[error/model_error] al", "assistant[stop] all done"]


async def test_failures_do_not_poison_what_comes_after(world: World) -> None:
    """R13: five failures with nothing or only reasoning in them, and an empty tool result, then a normal turn."""

    async def empty(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return ""

    script = [
        fail("refused"),
        fail("refused", parts=[think("hm")]),
        fail("refused"),
        fail("refused"),
        fail("refused", parts=[think("hm")]),
        [call("t", x=1)],
        "fine",
    ]

    lines = await run(
        world, script, [world.tool("t", "safe", body=empty)], *[f"try {i}" for i in range(6)], retry=QUICK
    )

    assert lines[-4:] == ["user try 5", "assistant[tool_calls]  (t)", "result ", "assistant[stop] fine"]
    sent = world.models[-1].requests[-1].messages
    assert [part.text for part in sent[-1].content] == ["(no output)"]
    assert len([each for each in sent if each.content]) == len(sent) == 8


async def test_every_attempt_is_in_the_ledger(world: World) -> None:
    """R117: what is known is kept, what is not is null, and only what was surely not sent is zero."""
    script = [
        fail("a", retryable=True, usage=Usage(input_tokens=5)),
        fail("b", retryable=True),
        fail("c", retryable=True, sent=False),
        answer("done", usage=None),
    ]
    await run(world, script, [], retry=RetryPolicy(attempts=9, base_ms=0))

    session = await world.open()
    rows = [row.row.usage for row in await session.usage()]
    assert rows == [Usage(input_tokens=5), Usage(), NOTHING_SENT, Usage()]
    assert [usage.unknown for usage in rows] == [True, True, False, True]
    assert session.stats().usage.unknown_rows == 3
    assert session.stats().usage.input_tokens == 5
    await session.close()


# A commit that fails: R08.


@pytest.mark.parametrize("where", ["before", "half", "after"])
@pytest.mark.parametrize("nth", range(1, 9))
async def test_nothing_goes_on_past_a_commit_that_failed(where: Any, nth: int) -> None:
    """The session faults, reopens and goes on; an effect whose outcome was lost is not repeated."""
    clock, ids, effects = ManualClock(), CountingIds(series=1), list[int]()

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.append(arguments["x"])
        return "paid"

    model = ScriptedModel([[call("pay", x=1)], "and then", [call("pay", x=2)], "done"])
    agent = Agent(model=model, tools=[Tool("pay", body)], retry=QUICK)
    store = FailingStore(MemoryStore(clock=clock, ids=CountingIds(series=99)), nth=nth, where=where)
    await store.create("s")
    session = await open_session(store, session_id="s", clock=clock, ids=ids)
    faults = 0
    for number in range(2):
        while True:
            try:
                lane = await session.lane("main", agent)
                await lane.accept(Prompt(f"go {number}"), operation_id=f"op-{number}")
                result = (await lane.drive(f"op-{number}")).result
                break
            except SessionFaulted:
                faults += 1
                await session.reopen()
        assert result.status == "completed"

    assert faults == 1
    # The fourth commit is the first call's intent: written and not reported, it is an effect that may have begun.
    assert effects == ([2] if (where, nth) == ("after", 4) else [1, 2])
    assert await check_invariants(session) == []
    model.require_no_violations()
    results = [each for each in await session.branch("main").messages() if isinstance(each, ToolResultMessage)]
    assert len(results) == 2
    assert all(each.text == "paid" or INTERRUPTED in each.text for each in results)
    await session.close()


# A plain function that does not listen: R43.


async def test_an_abort_does_not_wait_for_a_thread_that_does_not_listen(world: World) -> None:
    # The thread is a real one, so it is let go by a real event.

    release, begun = threading.Event(), asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def stubborn(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        loop.call_soon_threadsafe(begun.set_result, None)
        release.wait(30)
        return "too late"

    session = await world.open()
    model = world.model([[call("t", x=1)], "not asked"])
    lane = await session.lane("main", make_agent(world, model, [Tool("t", stubborn)], cancel_grace_ms=500))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await begun

    receipt = await lane.request_abort("op")
    operation = lane.inspect().operation
    assert receipt.newly_requested
    assert operation is not None
    assert operation.cancel_requested_at is not None
    await world.clock.sleeping()
    world.clock.advance(500)

    assert (await driving).result.status == "aborted"
    assert any("left behind" in text for text in session.findings)
    release.set()
    while session._runtime.tasks:
        await asyncio.sleep(0)
    lines = shape(await lane.messages())
    assert lines[2].startswith("result! The run was aborted while this call was running.")
    assert len(lines) == 3
    await session.close()


async def test_an_abort_shows_in_the_record_while_a_model_hangs(world: World) -> None:
    session = await world.open()
    lane = await session.lane("main", make_agent(world, world.model([hang([think("hm")]), "fine"]), []))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await world.models[-1].hanging()
    await lane.request_abort("op")
    assert (await driving).result.status == "aborted"
    await lane.accept(Prompt("again"), operation_id="op-2")
    await finish(world, lane, "op-2")

    world.models[-1].require_no_violations()
    assert shape(await lane.messages())[-1] == "assistant[stop] fine"
    await session.close()
