"""Claim: what a death leaves is settled by stored and current policy, within bounds, and only once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentlane import AgentLane, Prompt, RetryPolicy, Session, ToolContext
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.usage import Usage
from agentlane.machine.outcomes import INTERRUPTED, NOT_STARTED, PROGRESS
from agentlane.testing.faults import FaultPlan
from agentlane.testing.invariants import check_invariants, check_nothing_written, check_trace, check_trace_against
from agentlane.testing.script import call, fail, hang, hold, say, think
from tests.crash.world import World, finish, live, make_agent, shape

Run = Callable[[AgentLane[Any, Any]], Any]


async def one_life(
    world: World,
    script: list[Any],
    tools: list[Any],
    run: Run,
    *,
    kill: tuple[str, int] | None = None,
    model: dict[str, Any] | None = None,
    **agent: Any,
) -> Any:
    """A process that opens the session and runs ``run`` on its lane, killed at ``kill``; gives what ``run`` gave."""
    plan = FaultPlan() if kill is None else FaultPlan().kill_at(kill[0], nth=kill[1])
    got: list[Any] = []

    async def act(session: Session) -> None:
        made = make_agent(world, world.model(script, **(model or {})), tools, **agent)
        got.append(await run(await session.lane("main", made)))
        got.append(await messages(session))

    survived = await live(world, act, plan)
    assert survived == (kill is None), f"killed at {kill}: {not survived}"
    return got[0] if survived else None


async def messages(session: Session) -> list[Any]:
    return await session.branch("main").messages()


async def conversation(world: World) -> list[str]:
    """The conversation as stored, in short lines, after every invariant was looked at."""
    session = await world.open()
    found = await messages(session)
    assert await check_invariants(session) == []
    assert check_trace(world.trace) == []
    assert await check_trace_against(world.trace, session) == []
    await session.close()
    for model in world.models:
        model.require_no_violations()
    return shape(found)


def drive(world: World, text: str = "go", operation_id: str = "op") -> Run:
    async def run(lane: AgentLane[Any, Any]) -> Any:
        await lane.accept(Prompt(text), operation_id=operation_id)
        return await finish(world, lane, operation_id)

    return run


# Policies: R24, R25.

INSIDE = ("effect.tool.end", 1)
CALLED = [[call("t", x=1)], "done"]


@pytest.mark.parametrize("stored", ["never", "safe", "idempotent"])
@pytest.mark.parametrize("current", ["never", "safe", "idempotent", "missing", "not active", "arguments refused"])
async def test_a_call_runs_again_only_if_it_was_and_is_declared_repeatable(
    world: World, stored: Any, current: Any
) -> None:
    # Given: a process that died inside the tool.
    await one_life(world, CALLED, [world.tool("t", stored)], drive(world), kill=INSIDE)

    # When: it is driven by one in which the tool is declared otherwise, or is not there.
    def refuse(arguments: dict[str, Any]) -> Any:
        raise ValueError("not any more")

    policy = current if current in ("never", "safe", "idempotent") else "safe"
    tools = (
        []
        if current == "missing"
        else [world.tool("t", policy, validate=refuse if current == "arguments refused" else None)]
    )

    async def run(lane: AgentLane[Any, Any]) -> Any:
        if current == "not active":
            await lane.configure(tools=[])
        return await drive(world)(lane)

    result = await one_life(world, CALLED, tools, run)

    # Then: it ran again only if both declarations allow it; else it is interrupted, visibly.
    again = stored != "never" and current in ("safe", "idempotent")
    assert result.status == "completed"
    assert world.starts()["t:1"] == (2 if again else 1)
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (t)",
        "result t:1 done" if again else f"result! {INTERRUPTED}",
        "assistant[stop] done",
    ]


async def test_a_tool_that_is_gone_before_its_call_began_gets_a_plain_error(world: World) -> None:
    # Given: two calls of which one may run at a time, and a death inside the first.
    script = [[call("a", x=1), call("b", x=2), call("a", x=3)], "done"]
    tools = [world.tool("a", "safe"), world.tool("b", "safe")]
    await one_life(world, script, tools, drive(world), kill=INSIDE, max_parallel=1)

    # When: the second tool is gone.
    await one_life(world, script, [world.tool("a", "safe")], drive(world), max_parallel=1)

    # Then: its call was never begun and says so; the others ran.
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (a,b,a)",
        "result a:1 done",
        "result! The tool 'b' is not available here. Available: a.",
        "result a:3 done",
        "assistant[stop] done",
    ]
    assert world.starts() == {"a:1": 2, "a:3": 1}


async def test_a_staged_outcome_is_placed_without_its_tool(world: World) -> None:
    """R29: a stalled sibling does not lose the finished one."""
    # Given: the second call's outcome is durable, the first still runs, and the process dies.
    script = [[call("a", x=1, hang=True), call("b", x=2)], "done"]
    tools = [world.tool("a", "never"), world.tool("b", "never")]
    await one_life(world, script, tools, drive(world), kill=("commit.outcome_staged.after", 1))

    # When: neither tool is there any more.
    await one_life(world, script, [], drive(world))

    # Then: the finished one's result is real, the other is interrupted.
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (a,b)",
        f"result! {INTERRUPTED}",
        "result b:2 done",
        "assistant[stop] done",
    ]
    assert world.starts() == {"a:1": 1, "b:2": 1}


async def test_committed_results_survive_the_last_ones_death(world: World) -> None:
    """R16: two of three are done and committed, the third is inside."""
    script = [[call("t", x=1), call("t", x=2), call("t", x=3, after=[1], hang=True)], "done", "and on"]

    async def until_stuck(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        asyncio.ensure_future(lane.drive())  # noqa: RUF006 - its process dies
        await world.stuck()
        lane._core.runtime.reached("effect.tool.end")

    ends = ("effect.tool.end", 3)
    await one_life(world, script, [world.tool("t", "never")], until_stuck, kill=ends)

    async def go_on(lane: AgentLane[Any, Any]) -> None:
        await finish(world, lane, "op")
        await drive(world, "go on", "op-2")(lane)

    await one_life(world, script, [world.tool("t", "never")], go_on)

    assert world.starts() == {"t:1": 1, "t:2": 1, "t:3": 1}
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (t,t,t)",
        "result t:1 done",
        "result t:2 done",
        f"result! {INTERRUPTED}",
        "assistant[stop] done",
        "user go on",
        "assistant[stop] and on",
    ]


# Bounds.


async def test_replays_are_bounded_and_a_killer_uses_up_only_its_own(world: World) -> None:
    """Four starts at most; the sibling, which was under way as well, is replayed after it, once."""
    script = [[call("killer", x=1), call("sibling", x=2, hang=True)], "done"]

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        if not ctx.recovered:
            await world.stuck()  # the sibling is under way as well
        return "killer done"

    tools = [world.tool("killer", "safe", body=body), world.tool("sibling", "idempotent")]

    # Given: a call whose process dies each time it runs.
    for _ in range(4):
        await one_life(world, script, tools, drive(world), kill=INSIDE)
    # When: a fifth process drives.
    result = await one_life(world, script, tools, drive(world))

    # Then.
    assert result.status == "completed"
    assert world.starts() == {"killer:1": 4, "sibling:2": 2}
    assert [effect.attempt for effect in world.effects if effect.label == "killer:1"] == [1, 2, 3, 4]
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (killer,sibling)",
        f"result! {INTERRUPTED}",
        "result sibling:2 done",
        "assistant[stop] done",
    ]


async def test_replays_of_one_recovery_come_one_after_the_other_and_planned_calls_after_them(world: World) -> None:
    script = [[call("t", x=1, hang=True), call("t", x=2, hang=True), call("t", x=3)], "done"]

    async def until_stuck(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        asyncio.ensure_future(lane.drive())  # noqa: RUF006 - its process dies
        await world.stuck()
        lane._core.runtime.reached("stuck")

    await one_life(world, script, [world.tool("t", "safe")], until_stuck, kill=("stuck", 1), max_parallel=2)
    before = len(world.trace)
    await one_life(world, script, [world.tool("t", "safe")], drive(world), max_parallel=2)

    names = [commit.name for commit, _ in world.trace.commits(since=before)]
    assert names == [
        "replay_intent",
        "outcome_placed+replay_intent",
        "outcome_placed+tool_intents",
        "outcome_placed+intent",
        "settlement+terminal",
    ]
    assert [effect.label for effect in world.effects] == ["t:1", "t:2", "t:1", "t:2", "t:3"]


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_bound_of_the_agents_own(world: World, limit: int) -> None:
    tools = [world.tool("t", "safe")]
    for _ in range(limit + 1):
        await one_life(world, CALLED, tools, drive(world), kill=INSIDE, max_replays=limit)
    await one_life(world, CALLED, tools, drive(world), max_replays=limit)

    assert world.starts()["t:1"] == limit + 1
    assert f"result! {INTERRUPTED}" in await conversation(world)


async def test_restarts_have_their_own_bound_and_wait_from_the_second_on(world: World) -> None:
    """Retries are off, and a request that the process died in is asked again all the same, three times."""
    off = RetryPolicy(attempts=1, base_ms=1_000)
    waits: list[int] = []

    async def run(lane: AgentLane[Any, Any]) -> Any:
        await lane.accept(Prompt("go"), operation_id="op")
        outcome = await lane.drive("op", wait_for_retry=False)
        while not hasattr(outcome, "result"):
            assert outcome.reasons[0].error.code == "interrupted"
            waits.append(outcome.wake_at - world.clock.now_ms())
            world.clock.advance(waits[-1])
            outcome = await lane.drive("op", wait_for_retry=False)
        return outcome.result

    for _ in range(4):
        await one_life(world, ["done"], [], run, kill=("effect.model.start", 1), retry=off)
    result = await one_life(world, ["done"], [], run, retry=off)

    assert (result.status, result.code) == ("failed", "restarts_exhausted")
    assert result.usage.unknown_rows == 4
    assert len(waits) == 2
    assert 500 <= waits[0] < 1_000 <= waits[1] < 2_000
    assert sum(len(model.requests) for model in world.models) == 0
    assert await conversation(world) == ["user go", *["assistant[error/interrupted] "] * 4]


async def test_a_restart_uses_up_no_retry(world: World) -> None:
    """R19: two provider errors with a death between them, three attempts allowed; the paid tool ran once."""
    script = [
        [call("pay", x=1)],
        fail("overloaded", retryable=True),
        fail("lost in the death", retryable=True),
        fail("overloaded", retryable=True),
        "done",
    ]
    tools = [world.tool("pay", "never")]
    await one_life(world, script, tools, drive(world), kill=("effect.model.start", 3))
    result = await one_life(world, script, tools, drive(world))

    assert result.status == "completed"
    assert world.starts() == {"pay:1": 1}
    assert await conversation(world) == [
        "user go",
        "assistant[tool_calls]  (pay)",
        "result pay:1 done",
        "assistant[error/overloaded] ",
        "assistant[error/interrupted] ",
        "assistant[error/overloaded] ",
        "assistant[stop] done",
    ]


async def test_a_retry_wait_goes_on_where_it_was(world: World) -> None:
    """The wait's end is durable: the next process neither asks early nor waits anew."""
    script = [fail("overloaded", retryable=True, retry_after_ms=5_000), "done"]

    async def until_waiting(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        waiting = await lane.drive(wait_for_retry=False)
        lane._core.runtime.reached("waiting")
        raise AssertionError(waiting)

    start = world.clock.now_ms()
    await one_life(world, script, [], until_waiting, kill=("waiting", 1))
    world.clock.advance(4_000)

    async def run(lane: AgentLane[Any, Any]) -> Any:
        before = len(world.trace)
        waiting = await lane.drive("op", wait_for_retry=False)
        assert waiting.wake_at == start + 5_000
        assert [reason.error.code for reason in waiting.reasons] == ["overloaded"]
        assert check_nothing_written(world.trace, since=before) == []
        world.clock.advance(999)
        assert (await lane.drive("op", wait_for_retry=False)).wake_at == start + 5_000
        world.clock.advance(1)
        return await lane.drive("op", wait_for_retry=False)

    assert (await one_life(world, script, [], run)).result.text == "done"
    assert [request.attempt for request in world.models[-1].requests] == [2]


# What a death keeps of what was shown.


async def test_a_committed_prefix_becomes_an_error_answer(world: World) -> None:
    """R94, R117: what was committed is kept; its calls never run and are never sent; its charge is not known."""
    # Given: an answer of text and a call, held after all was shown, and frames committed at 100 ms.
    script = [
        hold([think("hmm", signature="sig"), say("abcdef"), call("t", x=1)]),
        [call("t", x=2)],
        "done",
    ]

    async def until_saved(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        asyncio.ensure_future(lane.drive())  # noqa: RUF006 - its process dies
        await world.models[-1].hanging()
        saved = asyncio.ensure_future(world.published("pending.frames"))
        await world.clock.sleeping()
        world.clock.advance(100)
        await saved
        lane._core.runtime.reached("saved")

    tools = [world.tool("t", "never")]
    await one_life(world, script, tools, until_saved, kill=("saved", 1), model={"deltas": 2})

    # When: the next process asks again.
    await one_life(world, [[call("t", x=2)], "done"], tools, drive(world), model={"deltas": 2})

    # Then.
    assert await conversation(world) == [
        "user go",
        "assistant[error/interrupted] abcdef (t)",
        "assistant[tool_calls]  (t)",
        "result t:2 done",
        "assistant[stop] done",
    ]
    assert world.starts() == {"t:2": 1}
    session = await world.open()
    answer = (await messages(session))[1]
    assert answer.content[0].text == "hmm"
    ledger = await session.usage()
    assert [row.row.usage.unknown for row in ledger] == [True, False, False]
    assert not any(isinstance(each, AssistantMessage) for each in world.models[-1].requests[0].messages)
    await session.close()


async def test_usage_that_was_seen_before_a_death_is_kept(world: World) -> None:
    """R117: known parts are kept, unknown is null and not zero."""
    script = [hang("Hel", usage=Usage(input_tokens=7))]

    async def until_saved(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        asyncio.ensure_future(lane.drive())  # noqa: RUF006 - its process dies
        await world.models[-1].hanging()
        saved = asyncio.ensure_future(world.published("pending.frames"))
        await world.clock.sleeping()
        world.clock.advance(100)
        await saved
        lane._core.runtime.reached("saved")

    await one_life(world, script, [], until_saved, kill=("saved", 1))
    result = await one_life(world, ["done"], [], drive(world))

    session = await world.open()
    row = (await session.usage())[0].row
    assert row.usage == Usage(input_tokens=7)
    assert row.usage.unknown
    assert result.usage.unknown_rows == 1
    assert result.usage.input_tokens == 107
    await session.close()


async def test_a_replay_sees_its_memo_and_the_same_key(world: World) -> None:
    seen: list[Any] = []

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        seen.append((ctx.attempt, ctx.recovered, ctx.idempotency_key, await ctx.memo("step"), ctx.call_id))
        if not ctx.recovered:
            await ctx.set_memo("step", {"upload": 17})
            await ctx.progress("17 of 30")
            await asyncio.get_running_loop().create_future()
        return "done"

    tools = [world.tool("t", "idempotent", body=body)]
    await one_life(world, CALLED, tools, drive(world), kill=("commit.progress.after", 1))
    await one_life(world, CALLED, tools, drive(world))

    (first, second) = seen
    assert first == (1, False, first[2], None, first[4])
    assert second == (2, True, first[2], {"upload": 17}, first[4])
    assert first[2].startswith("s/op/t#")
    assert "result done" in await conversation(world)


async def test_an_interruption_tells_the_last_saved_progress(world: World) -> None:
    """R15: the call stays visible, and what it last said is marked as such."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.progress("1 of 3")
        world.clock.advance(100)
        await ctx.progress("2 of 3")
        await ctx.progress("3 of 3, which is not saved yet")
        return await asyncio.get_running_loop().create_future()

    tools = [world.tool("t", "never", body=body)]
    await one_life(world, CALLED, tools, drive(world), kill=("commit.progress.after", 2))
    await one_life(world, CALLED, tools, drive(world))

    await conversation(world)
    session = await world.open()
    result = (await messages(session))[2]
    assert result.is_error
    assert [part.text for part in result.content] == [PROGRESS, "2 of 3", INTERRUPTED]
    await session.close()


# Doing it again changes nothing.


async def test_repair_is_made_once(world: World) -> None:
    """R01, R03: opened three times without a drive nothing is written; the driven repair stays as it is."""
    await one_life(world, CALLED, [world.tool("t", "never")], drive(world), kill=INSIDE)
    for _ in range(3):
        before = len(world.trace)
        session = await world.open()
        assert [operation.operation_id for operation in session.open_operations()] == ["op"]
        await session.close()
        assert check_nothing_written(world.trace, since=before) == []

    await one_life(world, CALLED, [world.tool("t", "never")], drive(world))
    lines = await conversation(world)
    for _ in range(3):
        before = len(world.trace)
        await one_life(world, CALLED, [world.tool("t", "never")], drive(world))
        assert check_nothing_written(world.trace, since=before) == []
    assert await conversation(world) == lines


async def test_history_is_written_once(world: World) -> None:
    """R06, R10: two entries a turn, one result a call, however often the session is opened."""
    script: list[Any] = [[call("t", x=1), call("t", x=2)], *[f"answer {number}" for number in range(5)]]
    for number in range(5):
        await one_life(world, script, [world.tool("t", "never")], drive(world, f"say {number}", f"op-{number}"))

    lines = await conversation(world)
    assert len(lines) == 2 * 5 + 1 + 2
    request = world.models[-1].requests[-1]
    results = [each.call_id for each in request.messages if isinstance(each, ToolResultMessage)]
    assert results == ["call_1_1", "call_1_2"]


async def test_the_reply_of_accept_may_be_lost(world: World) -> None:
    """R26, R27: after a death right behind accept's commit, the same request is the same operation."""
    await one_life(world, ["done"], [], drive(world), kill=("commit.accept.after", 1))

    async def again(lane: AgentLane[Any, Any]) -> Any:
        admitted = [await lane.accept(Prompt("go"), operation_id="op") for _ in range(3)]
        many = await asyncio.gather(*(lane.accept(Prompt("go"), operation_id="op") for _ in range(10)))
        assert len({each.inputs for each in (*admitted, *many)}) == 1
        return await finish(world, lane, "op")

    before = len(world.trace)
    await one_life(world, ["done"], [], again)
    assert [commit.name for commit, _ in world.trace.commits(since=before)] == ["intent", "settlement+terminal"]
    assert await conversation(world) == ["user go", "assistant[stop] done"]


@pytest.mark.parametrize("where", ["before", "inside"])
async def test_inside_accept_it_is_there_whole_or_not_at_all(world: World, where: str) -> None:
    await one_life(world, ["done"], [], drive(world), kill=(f"commit.accept.{where}", 1))

    session = await world.open()
    operations, entries = session.open_operations(), await session.entries()
    await session.close()
    assert len(operations) == len(entries)


async def test_equal_operations_are_two_operations(world: World) -> None:
    """R22: ids and keys never come from content alone."""
    script = [[call("t", x=1), call("t", x=1)], "done", [call("t", x=1)], "done"]

    async def both(lane: AgentLane[Any, Any]) -> None:
        await drive(world, "go", "a")(lane)
        await drive(world, "go", "b")(lane)

    await one_life(world, script, [world.tool("t", "safe")], both)

    keys = [effect.key for effect in world.effects]
    assert len(set(keys)) == 3
    assert [key.split("/")[1] for key in keys] == ["a", "a", "b"]
    assert [key.split("/")[3] for key in keys] == ["0", "1", "0"]


# Aborts: R45.


@pytest.mark.parametrize("at", ["checkpoint", "generating", "retry_wait", "tools"])
async def test_a_committed_abort_is_carried_out_by_the_next_process(world: World, at: str) -> None:
    script: list[Any] = {
        "checkpoint": ["never asked"],
        "generating": [hang("Hel")],
        "retry_wait": [fail("overloaded", retryable=True, retry_after_ms=9_000), "never asked"],
        "tools": [
            [
                call("t", x=1, after=[1], hang=True),
                call("t", x=2),
                call("safe", x=3, hang=True),
                call("alone", x=4),
            ],
            "never asked",
        ],
    }[at]
    tools = [world.tool("t", "never"), world.tool("safe", "safe"), world.tool("alone", "never", parallel=False)]

    async def abort(lane: AgentLane[Any, Any]) -> None:
        await lane.accept(Prompt("go"), operation_id="op")
        if at == "retry_wait":
            await lane.drive(wait_for_retry=False)
        elif at != "checkpoint":
            asyncio.ensure_future(lane.drive())  # noqa: RUF006 - its process dies
            if at == "generating":
                await world.models[-1].hanging()
            else:
                batch = lane.inspect
                while [each.status for each in batch().operation.calls][1:2] != ["outcome_ready"]:
                    await asyncio.sleep(0)
        await lane.request_abort("op")

    # Given: the abort is committed and nobody carries it out.
    await one_life(world, script, tools, abort, kill=("commit.abort.after", 1))
    started, asked = world.starts(), sum(len(model.requests) for model in world.models)

    # When: the next process only drives.
    result = await one_life(world, script, tools, lambda lane: lane.drive("op"))

    # Then: nothing started, and it ended aborted.
    assert result.result.status == "aborted"
    assert world.starts() == started
    assert sum(len(model.requests) for model in world.models) == asked
    assert (
        await conversation(world)
        == {
            "checkpoint": ["user go"],
            "generating": ["user go", "assistant[aborted/interrupted] "],
            "retry_wait": ["user go", "assistant[error/overloaded] "],
            "tools": [
                "user go",
                "assistant[tool_calls]  (t,t,safe,alone)",
                f"result! {INTERRUPTED}",
                "result t:2 done",
                f"result! {INTERRUPTED}",
                f"result! {NOT_STARTED}",
            ],
        }[at]
    )


async def test_abort_of_an_orphan_is_idempotent(world: World) -> None:
    """R46: aborted without a driver, twice, then driven, then aborted again."""
    await one_life(world, CALLED, [world.tool("t", "safe")], drive(world), kill=INSIDE)

    async def abort(lane: AgentLane[Any, Any]) -> None:
        first = await lane.request_abort("op")
        second = await lane.request_abort("op")
        assert (first.newly_requested, second.newly_requested) == (True, False)
        assert (await lane.drive("op")).result.status == "aborted"
        third = await lane.request_abort("op")
        assert (third.newly_requested, third.status) == (False, "aborted")
        assert lane.inspect().operation is None

    await one_life(world, CALLED, [world.tool("t", "safe")], abort)
    assert world.starts()["t:1"] == 1
