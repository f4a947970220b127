"""Claim: an operation ends at each of its limits and not before: failed, with every call answered, on every backend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import (
    Agent,
    InvalidDefinition,
    OperationResult,
    Prompt,
    Settled,
    ToolResultMessage,
    Usage,
    Waiting,
    open_session,
    tool,
)
from agentlane.data import addresses
from agentlane.data.operations import RunLimits
from agentlane.machine.limits import Spent, limit_reached
from agentlane.testing.clock import ManualClock
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, call, fail, hang, hold, say

TARGETS = (":memory:", "session.jsonl", "session.db")
BOUNDS = ("max_turns", "max_requests", "max_tokens", "max_cost_nanos", "max_time_ms", "max_identical_calls")


def target_in(folder: Path, name: str) -> str:
    return name if name == ":memory:" else str(folder / name)


class Reads:
    """A tool whose starts are counted, and that takes time on the clock."""

    def __init__(self, clock: ManualClock | None = None, took_ms: int = 0) -> None:
        self.paths: list[str] = []

        @tool(replay="safe")
        async def read(path: str) -> str:
            self.paths.append(path)
            if clock is not None:
                clock.advance(took_ms)
            return f"content of {path}"

        self.tool = read


def reading(times: int) -> list[Any]:
    return [*([call("read", path=f"{number}.txt")] for number in range(times)), "done"]


LIMITED: list[tuple[dict[str, int], int, str]] = [
    ({"max_turns": 3}, 3, "max_turns: 3 turns were taken; the limit is 3"),
    ({"max_requests": 2}, 2, "max_requests: 2 requests were made; the limit is 2"),
    ({"max_tokens": 330}, 3, "max_tokens: 330 tokens are known to be used; the limit is 330"),
    ({"max_tokens": 331}, 4, "max_tokens: 440 tokens are known to be used; the limit is 331"),
    ({"max_cost_nanos": 2_500}, 3, "max_cost_nanos: 3000 billionths are known to be charged; the limit is 2500"),
    ({"max_time_ms": 200}, 2, "max_time_ms: 200 ms were spent in passes; the limit is 200"),
    ({"max_turns": 9, "max_requests": 1}, 1, "max_requests: 1 requests were made; the limit is 1"),
]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("limits", "reads", "told"), LIMITED, ids=[str(each[0]) for each in LIMITED])
async def test_an_operation_ends_at_its_limit_with_every_call_answered(
    tmp_path: Path, name: str, limits: dict[str, int], reads: int, told: str
) -> None:
    clock = ManualClock()
    read = Reads(clock, took_ms=100)
    model = ScriptedModel(reading(6))
    async with open_session(target_in(tmp_path, name), durability="process", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model, tools=[read.tool], **limits))  # type: ignore[arg-type]
        result = await lane.run("go")
        messages = await lane.messages()

        assert (result.status, result.code, result.turns) == ("failed", "limit_reached", reads)
        assert result.error is not None and result.error.message == told
        assert len(model.requests) == reads and len(read.paths) == reads
        assert isinstance(messages[-1], ToolResultMessage) and len(messages) == 1 + 2 * reads
        # The lane goes on with what it has.
        assert lane.inspect().operation is None
        assert (await session.lane("main", Agent(model=model, tools=[read.tool]))).tip() == result.to_tip


async def run(agent: Agent[Any, Any], clock: ManualClock | None = None) -> OperationResult:
    async with open_session(":memory:", clock=clock or ManualClock()) as session:
        return await (await session.lane("main", agent)).run("go")


@pytest.mark.parametrize("limits", [{"max_turns": 2}, {"max_requests": 2}, {"max_tokens": 111}, {"max_time_ms": 100}])
async def test_an_answer_that_ends_the_run_ends_it_well_at_the_limit(limits: dict[str, int]) -> None:
    """What is in hand is not thrown away: a limit is about what would be asked next."""
    clock = ManualClock()
    result = await run(Agent(model=ScriptedModel(reading(1)), tools=[Reads(clock, 99).tool], **limits), clock)  # type: ignore[arg-type]

    assert (result.status, result.code, result.text) == ("completed", None, "done")


async def test_what_is_not_known_counts_as_nothing() -> None:
    script = [
        answer([call("read", path="a")], usage=None),
        answer([call("read", path="b")], usage=Usage(input_tokens=7)),
    ]
    model = ScriptedModel([*script, *reading(2)])
    result = await run(Agent(model=model, tools=[Reads().tool], max_tokens=8))

    assert len(model.requests) == 3
    assert result.error is not None and "117 tokens" in result.error.message


async def test_repeated_attempts_are_requests_and_no_turns() -> None:
    script = [fail("overloaded", retryable=True), fail("overloaded", retryable=True), "done"]
    one = ScriptedModel(script)
    assert (await run(Agent(model=one, max_turns=1), quick())).status == "completed"

    two = ScriptedModel(script)
    result = await run(Agent(model=two, max_requests=2), quick())
    assert (result.code, len(two.requests), result.turns) == ("limit_reached", 2, 1)


def quick() -> ManualClock:
    """A clock that is moved on whenever somebody sleeps."""
    clock = ManualClock()

    async def move() -> None:
        while True:
            await clock.sleeping()
            clock.advance(60_000)

    clock.mover = asyncio.ensure_future(move())  # type: ignore[attr-defined]
    return clock


# The same call over and over.


async def test_a_call_beyond_the_limit_is_not_run_and_the_run_ends_behind_its_batch() -> None:
    read = Reads()
    same, other = call("read", path="a"), call("read", path="b")
    model = ScriptedModel([[same, other], [other, same, same], "not asked for"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[read.tool], max_identical_calls=2))
        result = await lane.run("go")
        messages = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]

    assert read.paths == ["a", "b", "b", "a"]
    assert [each.is_error for each in messages] == [False, False, False, False, True]
    assert "was not run" in messages[-1].text
    assert result.error is not None
    assert result.error.message == "max_identical_calls: 3 calls of 'read' had the same arguments; the limit is 2"


async def test_as_many_calls_as_the_limit_are_run() -> None:
    read = Reads()
    model = ScriptedModel([*[[call("read", path="a")]] * 3, "done"])
    result = await run(Agent(model=model, tools=[read.tool], max_identical_calls=3))

    assert (result.status, len(read.paths)) == ("completed", 3)


@pytest.mark.parametrize("name", TARGETS)
async def test_repeated_calls_are_counted_over_a_restart_and_per_operation(tmp_path: Path, name: str) -> None:
    if name == ":memory:":
        pytest.skip("a memory store ends with its process")
    read = Reads()
    script = [[[call("read", path="a")]] * 2 + [hang(), [call("read", path="a")]], [[call("read", path="a")], "done"]]
    agent = lambda: Agent(model=ScriptedModel(turns=script), tools=[read.tool], max_identical_calls=2)  # noqa: E731
    target = target_in(tmp_path, name)
    async with open_session(target) as session:
        lane = await session.lane("main", agent())
        await lane.accept(Prompt("go"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive())
        await lane.agent.model.hanging()  # type: ignore[attr-defined]
    await asyncio.gather(driving, return_exceptions=True)
    async with open_session(target) as session:
        lane = await session.lane("main", agent())
        result = await lane.resume()
        assert result is not None and result.code == "limit_reached"
        assert len(read.paths) == 2
        assert (await lane.run("again")).status == "completed"
        assert len(read.paths) == 3


# Time.


async def test_time_counts_while_a_pass_runs_and_lasts_over_a_restart(tmp_path: Path) -> None:
    """A day between two passes costs nothing; what each has committed adds up."""
    clock = ManualClock()
    target = str(tmp_path / "s.jsonl")
    agent = lambda: Agent(model=ScriptedModel(reading(9)), tools=[Reads(clock, 100).tool], max_time_ms=500)  # noqa: E731

    for _ in range(2):
        plan = FaultPlan()
        async with open_session(target, clock=clock, probe=plan) as session:
            lane = await session.lane("main", agent())
            if lane.inspect().operation is None:
                await lane.accept(Prompt("go"), operation_id="op")
            driving = asyncio.ensure_future(lane.drive())
            await asyncio.sleep(0)
            while sum(each.endswith("outcome_placed+intent.after") for each in plan.trace) < 2:
                await asyncio.sleep(0)
        await asyncio.gather(driving, return_exceptions=True)
        clock.advance(24 * 3600 * 1000)
    async with open_session(target, clock=clock) as session:
        lane = await session.lane("main", agent())
        assert (await session._runtime.storage.value(addresses.op_state("op"))) is not None
        operation = lane._core.operation
        assert operation is not None and 300 <= operation.state.time_ms <= 500
        result = await lane.resume()

    assert result is not None and result.error is not None
    assert result.error.message == "max_time_ms: 500 ms were spent in passes; the limit is 500"


async def test_a_wait_for_a_retry_ends_with_the_time() -> None:
    """A provider that asks for an hour does not hold an operation that has a second left."""
    clock = ManualClock()
    model = ScriptedModel([fail("overloaded", retryable=True, retry_after_ms=3_600_000), "done"])
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model, max_time_ms=1_000))
        await lane.accept(Prompt("go"), operation_id="op")
        waiting = await lane.drive(wait_for_retry=False)
        assert isinstance(waiting, Waiting) and waiting.wake_at == clock.now_ms() + 3_600_000
        driving = asyncio.ensure_future(lane.drive())
        await clock.sleeping()
        clock.advance(1_000)
        result = (await driving).result  # type: ignore[union-attr]

    assert (result.code, len(model.requests)) == ("limit_reached", 1)


async def test_no_limit_cuts_an_answer_or_a_running_tool() -> None:
    clock = ManualClock()
    model = ScriptedModel([hold([say("slow"), call("read", path="a")]), "done"])
    read = Reads(clock, 10_000)
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model, tools=[read.tool], max_time_ms=1_000))
        driving = asyncio.ensure_future(lane.run("go"))
        await model.hanging()
        clock.advance(5_000)
        model.release()
        result = await driving

    assert read.paths == ["a"]
    assert result.error is not None and "15000 ms" in result.error.message


# Beside what else there is.


async def test_an_abort_wins() -> None:
    async with open_session(":memory:") as session:

        @tool
        async def stop() -> str:
            await lane.request_abort("op")
            return "stopped"

        lane = await session.lane("main", Agent(model=ScriptedModel([[call("stop")], "no"]), tools=[stop], max_turns=1))
        result = await lane.run("go", operation_id="op")

    assert (result.status, result.code) == ("aborted", None)


@pytest.mark.parametrize("limits", [{"max_requests": 1}, {"max_requests": 2}])
async def test_an_interrupted_request_is_one(tmp_path: Path, limits: dict[str, int]) -> None:
    target = str(tmp_path / "s.db")
    models = [ScriptedModel([hang(), "done"]) for _ in range(2)]
    async with open_session(target) as session:
        lane = await session.lane("main", Agent(model=models[0], **limits))  # type: ignore[arg-type]
        await lane.accept(Prompt("go"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive())
        await models[0].hanging()
    await asyncio.gather(driving, return_exceptions=True)
    async with open_session(target) as session:
        result = await (await session.lane("main", Agent(model=models[1], **limits))).resume()  # type: ignore[arg-type]

    assert result is not None
    assert (result.status, result.usage.rows) == (("failed", 1) if limits["max_requests"] == 1 else ("completed", 2))
    assert len(models[1].requests) == limits["max_requests"] - 1


async def test_limits_are_those_of_the_accept(tmp_path: Path) -> None:
    target = str(tmp_path / "s.db")
    async with open_session(target) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(reading(3)), tools=[Reads().tool], max_turns=1))
        await lane.accept(Prompt("go"))
    async with open_session(target) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(reading(3)), tools=[Reads().tool], max_turns=2))
        await lane.configure(settings={"warm": 1})
        result = await lane.resume()
        assert result is not None and result.turns == 1


async def test_without_limits_nothing_is_stored_of_them() -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["done"])))
        await lane.accept(Prompt("go"), operation_id="op")
        storage = session._runtime.storage
        config, state = await storage.value(addresses.op_config("op")), await storage.value(addresses.op_state("op"))

    assert config is not None and b"run_limits" not in config
    assert state is not None and b"time_ms" not in state


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3", 2**53])
def test_a_limit_is_a_positive_whole_number(name: str, value: object) -> None:
    with pytest.raises(InvalidDefinition, match=name):
        Agent(model=ScriptedModel([]), **{name: value})  # type: ignore[arg-type]


def test_each_limit_is_looked_at() -> None:
    """Each field of the record ends an operation at its bound and not below it."""
    none = Spent(turns=0, requests=0, tokens=0, cost_nanos=0, time_ms=0)
    fields = ("turns", "requests", "tokens", "cost_nanos", "time_ms", "calls")
    assert RunLimits.__struct_fields__ == BOUNDS
    for bound, field in zip(BOUNDS, fields, strict=True):
        limits = RunLimits(**{bound: 5})
        at = 6 if field == "calls" else 5
        found = limit_reached(limits, replace(none, **{field: at}))
        assert found is not None and found.code == "limit_reached" and found.message.startswith(f"{bound}: {at} ")
        assert limit_reached(limits, replace(none, **{field: at - 1})) is None


async def test_nobody_is_asked_about_a_call_beyond_the_limit() -> None:
    """A person who said yes once is not asked again for what will not run."""
    sent: list[str] = []

    @tool(approval=True)
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    model = ScriptedModel([[call("send", to="Ada")], [call("send", to="Ada"), call("send", to="Ada")], "not asked for"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[send], max_identical_calls=1))
        await lane.accept(Prompt("go"), operation_id="op")
        assert isinstance(await lane.drive(), Waiting)
        [asked] = session.approvals()
        await lane.decide(asked.approval_id, allow=True)
        outcome = await lane.drive("op")

        assert isinstance(outcome, Settled)
        assert (outcome.result.code, sent, session.approvals()) == ("limit_reached", ["Ada"], [])
