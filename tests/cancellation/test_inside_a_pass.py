"""Claim: what a pass cancels is ended and put away: a tool amid its durable steps, a model's open stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, ModelIdentity, ModelLimits, ModelRequest, PartStart, Prompt, StreamItem, Tool, ToolContext
from tests.cancellation.kinds import KINDS, Kind, cancelled, trials
from tests.cancellation.leaks import run_clean
from tests.cancellation.world import BACKENDS, Backend, World

EARLY = [kind for kind in KINDS if kind.name != "as it arrives"]
Step = Callable[[ToolContext[Any]], Coroutine[Any, Any, Any]]
STEPS: dict[str, Step] = {
    "progress": lambda ctx: ctx.progress("half way"),
    "set_memo": lambda ctx: ctx.set_memo("kept", 1),
}


@pytest.mark.parametrize("first", ["the step", "the abort"])
@pytest.mark.parametrize("step", STEPS)
def test_a_durable_step_is_cancelled_by_an_abort(step: str, first: str, tmp_path: Path) -> None:
    """The step waits for its commit when the abort comes, or comes behind the abort: the tool hears of it once."""
    heard: list[str] = []

    async def main() -> None:
        world = World("gated", tmp_path)
        await world.fill()
        assert world.gated is not None
        gate, begun, go = world.gated.gate, asyncio.Event(), asyncio.Event()

        async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            begun.set()
            await go.wait()
            try:
                await STEPS[step](ctx)
            except asyncio.CancelledError:
                heard.append("cancelled")
                raise
            return "done"

        lane = await world.session.lane("main", Agent(model=world.talker, tools=[Tool("t", body)], cancel_grace_ms=0))
        await lane.accept(Prompt("call t"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive())
        await begun.wait()
        gate.shut()
        if first == "the step":
            go.set()
            await gate.arrived()
            aborting = asyncio.ensure_future(lane.request_abort("op"))
            await asyncio.sleep(0)
        else:
            aborting = asyncio.ensure_future(lane.request_abort("op"))
            await gate.arrived()
            go.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        gate.open()
        assert (await aborting).newly_requested
        outcome = await driving

        assert outcome.result.status == "aborted"  # type: ignore[union-attr]  # it does not wait
        assert heard == ["cancelled"]
        await world.agree()
        await world.go_on()
        await world.end()

    run_clean(main, tmp_path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tool_gives_up_a_step_of_its_own(backend: Backend, tmp_path: Path, whole: bool) -> None:
    """A memo that the tool stops waiting for is kept all the same, and the call goes on as if nothing were."""

    async def main(kind: Kind, folder: Path) -> None:
        world = World(backend, folder)
        await world.fill()

        async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            world.hold_commits()
            gone = await cancelled(ctx.set_memo("kept", 1), kind)
            if world.gated is not None:
                assert gone, "the commit is held, so that only the cancellation can end it"
                world.gated.gate.open()
            await ctx.set_memo("after", 2)  # committed behind the other
            return f"memo {await ctx.memo('kept')}"

        lane = await world.session.lane("main", Agent(model=world.talker, tools=[Tool("t", body)]))
        result = await lane.run("call t", operation_id="op")

        assert result.status == "completed"
        assert [getattr(each, "text", "") for each in await lane.messages()][-2:] == ["memo 1", "said done"]
        await world.agree()
        await world.end()

    for kind, folder in trials(EARLY, tmp_path, part=BACKENDS.index(backend), of=4, whole=whole):
        run_clean(partial(main, kind, folder), folder)


# Streams.


class Stream:
    """A stream that is no generator, waits after its first item, and knows how often it was closed."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self._begun = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> StreamItem:
        if not self._begun:
            self._begun = True
            return PartStart(index=0, kind="text")
        self._log.append("waits")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._log.append("cancelled")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._log.append("closing")
        await asyncio.sleep(0)
        self._log.append("closed")


class StreamModel:
    """Gives such streams."""

    def __init__(self) -> None:
        self.identity = ModelIdentity(provider="test", name="stream")
        self.limits = ModelLimits()
        self.log: list[str] = []

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return Stream(self.log)


@pytest.mark.parametrize("end", ["abort", "close", "every task cancelled"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_is_closed_before_its_pass_has_ended(backend: Backend, end: str, tmp_path: Path) -> None:
    async def main() -> None:
        world, model = World(backend, tmp_path), StreamModel()
        await world.fill()
        lane = await world.session.lane("main", Agent(model=model, cancel_grace_ms=1_000))
        await lane.accept(Prompt("go"), operation_id="op")
        us, driving = asyncio.current_task(), asyncio.ensure_future(lane.drive())
        while model.log != ["waits"]:
            await asyncio.sleep(0)

        if end == "abort":
            await lane.abort()
        elif end == "close":
            await world.session.close()
        else:
            for task in asyncio.all_tasks() - {us}:
                task.cancel()
        await asyncio.wait({driving})
        if not driving.cancelled():
            driving.exception()

        if end == "every task cancelled":
            # The task of the request was cancelled by us and by the pass: amid its clean-up, perhaps.
            await world.session.close()
            assert model.log[:3] == ["waits", "cancelled", "closing"]
        else:
            assert model.log == ["waits", "cancelled", "closing", "closed"]
        await world.end()

    run_clean(main, tmp_path)
