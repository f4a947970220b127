"""Claim: an effect reaches its own call only, ends by its own doing or by ours, and holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    LaneBusy,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    NoActiveOperation,
    Prompt,
    StreamItem,
    TextPart,
    ToolContext,
    ToolResultMessage,
    WrongLoop,
    open_session,
    tool,
)
from agentlane.testing import ManualClock, ScriptedModel, call


async def results(lane: Any) -> list[str]:
    return [each.text for each in await lane.messages() if isinstance(each, ToolResultMessage)]


async def until(clock: ManualClock, holds: Any) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


async def test_a_context_that_outlives_its_call_reaches_no_other_call() -> None:
    """Call 0 of the first batch is left behind after its timeout; call 0 of the next batch keeps its own notes."""
    clock = ManualClock()
    kept: list[ToolContext[Any]] = []
    late: list[str] = []
    second = asyncio.Event()

    @tool(timeout_ms=50)
    async def stubborn(ctx: ToolContext) -> str:
        kept.append(ctx)
        while not second.is_set():
            try:
                await second.wait()
            except asyncio.CancelledError:
                pass
        for use in (ctx.set_memo("charged", "by the first"), ctx.progress("of the first"), ctx.memo("charged")):
            try:
                await use
            except NoActiveOperation as error:
                late.append(error.code)
        return "late"

    @tool
    async def next_call(ctx: ToolContext) -> str:
        await ctx.set_memo("own", 1)
        second.set()
        await asyncio.wait({task for task in asyncio.all_tasks() if "stubborn" in task.get_name()})
        return f"charged: {await ctx.memo('charged', 'by nobody')}, own: {await ctx.memo('own')}"

    model = ScriptedModel([[call("stubborn")], [call("next_call")], "done"])
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model, tools=[stubborn, next_call], cancel_grace_ms=10))
        driving = asyncio.ensure_future(lane.run("go"))
        await until(clock, lambda: kept and clock.sleepers)
        clock.advance(50)
        await until(clock, lambda: len(clock.sleepers) >= 1 and clock.next_due == clock.now_ms() + 10)
        clock.advance(10)
        await driving

        assert (await results(lane))[1] == "charged: by nobody, own: 1"
        assert late == ["no_active_operation"] * 3
        assert any("late result" in finding for finding in session.findings)


@pytest.mark.parametrize("how", ["cancels its task", "swallows, then raises", "raises from its result"])
async def test_a_tool_that_cancels_itself_gets_an_error_result_and_its_siblings_stand(how: str) -> None:
    release = asyncio.Event()

    class Evil(dict[str, Any]):
        def items(self) -> Any:
            raise asyncio.CancelledError

    @tool
    async def selfish() -> Any:
        release.set()
        task = asyncio.current_task()
        assert task is not None
        if how == "raises from its result":
            return Evil(a=1)
        task.cancel()
        if how == "cancels its task":
            await asyncio.sleep(0)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        raise asyncio.CancelledError

    @tool
    async def pay() -> str:
        await release.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return "receipt"

    model = ScriptedModel([[call("selfish"), call("pay")], "done"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[selfish, pay]))

        done = await lane.run("go")

        assert done.status == "completed"
        told, receipt = await results(lane)
        assert "selfish" in told and receipt == "receipt"


class OneText:
    """A model whose stream ends in a settled text, and then does as it is told."""

    identity = ModelIdentity(provider="test", name="one")
    limits = ModelLimits()

    def __init__(self, afterwards: Any) -> None:
        self.afterwards = afterwards
        self.requests = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.requests += 1
        try:
            yield AssistantMessage(content=(TextPart(text="whole"),), stop_reason="stop")
        finally:
            await self.afterwards()


async def _raise(error: BaseException) -> None:
    raise error


async def test_a_whole_answer_waits_for_no_clean_up() -> None:
    never = asyncio.Event()
    model = OneText(never.wait)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))

        done = await lane.run("go")

        assert (done.text, model.requests) == ("whole", 1)
        never.set()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), RuntimeError("no"), GeneratorExit()])
async def test_a_clean_up_that_fails_costs_nothing(error: BaseException) -> None:
    model = OneText(lambda: _raise(error))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))

        done = await lane.run("go")

        assert (done.text, model.requests) == ("whole", 1)


async def test_a_stream_that_cancels_its_task_is_an_error_answer() -> None:
    class Cancels(OneText):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            self.requests += 1
            if self.requests == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            yield AssistantMessage(content=(TextPart(text="whole"),), stop_reason="stop")

    clock = ManualClock()
    model = Cancels(lambda: asyncio.sleep(0))
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=model))
        admitted = await lane.accept(Prompt("go"))

        waiting = await lane.drive(admitted.operation_id, wait_for_retry=False)

        assert waiting.reasons[0].error.message == "the model's stream cancelled itself"


async def test_progress_from_another_loop_is_refused_at_once() -> None:
    @tool
    def plain(ctx: ToolContext) -> str:
        told = []
        for use in (ctx.progress("half"), ctx.set_memo("a", 1)):
            try:
                asyncio.run(use)
            except WrongLoop as error:
                told.append(error.code)
        return ",".join(told)

    model = ScriptedModel([[call("plain")], "done"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[plain]))

        await lane.run("go")

        assert await results(lane) == ["wrong_loop,wrong_loop"]


async def test_an_adapter_may_change_what_it_was_handed() -> None:
    """Settings and tools are the request's own; keys of calls come from what was asked, not from live data."""
    keys: list[str] = []

    @tool(replay="idempotent")
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    class Meddles(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            seen.append((dict(request.settings), dict(request.tools[0].parameters)))
            request.settings.pop("temperature")  # type: ignore[attr-defined]
            request.settings["nested"].clear()
            request.tools[0].parameters.clear()
            for message in request.messages:
                for each in getattr(message, "calls", ()):
                    each.arguments["amount"] = 0
            async for item in super().stream(request):
                yield item

    seen: list[Any] = []
    model = Meddles([[call("pay", amount=5)], [call("pay", amount=5)], "done"], check_pairs=False)
    agent = Agent(model=model, tools=[pay], settings={"temperature": 0.5, "nested": {"a": 1}})
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)

        await lane.run("go")

        assert seen[0] == seen[1] == seen[2]
        assert [key.rsplit("/", 1)[1] for key in keys] == ["0", "1"]
        assert len({key.rsplit("/", 1)[0] for key in keys}) == 1


async def test_another_agent_does_not_configure_a_running_operation() -> None:
    release = asyncio.Event()

    @tool
    async def work() -> str:
        await release.wait()
        return "worked"

    first = Agent("first", model=ScriptedModel([[call("work")], "done"]), tools=[work])
    second = Agent("second", model=ScriptedModel(["other"], identity=ModelIdentity(provider="x", name="y")))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", first)
        driving = asyncio.ensure_future(lane.run("go"))
        for _ in range(20):
            await asyncio.sleep(0)
        other = await session.lane("main", second)

        with pytest.raises(LaneBusy, match="first"):
            await other.configure(settings={"temperature": 1})

        release.set()
        done = await driving
        assert (done.status, done.agent) == ("completed", "first")


async def test_a_running_barrier_stays_one_when_its_tool_is_configured_away() -> None:
    started: list[str] = []
    end = asyncio.Event()

    @tool(parallel=False)
    async def alone() -> str:
        started.append("alone")
        await end.wait()
        return "alone is done"

    @tool
    async def beside() -> str:
        started.append("beside")
        return "beside is done"

    agent = Agent(model=ScriptedModel([[call("alone"), call("beside")], "done"]), tools=[alone, beside])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        running = asyncio.ensure_future(lane.run("go"))
        await until(ManualClock(), lambda: started)

        await lane.configure(tools=["beside"])
        for _ in range(50):
            await asyncio.sleep(0)

        assert started == ["alone"]
        end.set()
        await running
        assert await results(lane) == ["alone is done", "beside is done"]
