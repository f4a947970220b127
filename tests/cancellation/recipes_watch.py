"""Recipes of watching a lane or a session, and of streaming an operation: they write nothing, and lose nothing."""

from __future__ import annotations

from agentlane import OperationSettled, Settled
from tests.cancellation.recipes import Call, recipe
from tests.cancellation.world import World


@recipe("AgentLane.watch", "Watch.__aenter__", "Watch.__aexit__")
async def watch_a_lane(world: World) -> Call:
    lane = await world.lane()

    async def call() -> None:
        async with lane.watch() as watch:
            await anext(watch)

    return call


@recipe("Watch.__anext__", "Watch.__aiter__", case="while a call goes on")
async def watch_a_run(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()

    async def call() -> None:
        async for item in lane.watch():
            world.let_go.set()
            if isinstance(item, OperationSettled):
                break

    return call


@recipe("Session.watch", "Watch.aclose")
async def watch_a_session(world: World) -> Call:
    watch = world.session.watch()

    async def call() -> None:
        await anext(watch)
        await watch.aclose()

    return call


@recipe("AgentLane.stream", "OperationStream.__aenter__", "OperationStream.__aexit__", "OperationStream.aclose")
async def stream_an_operation_that_has_settled(world: World) -> Call:
    lane = await world.lane()

    async def call() -> None:
        async with lane.stream("op-first") as stream:
            assert isinstance(await anext(stream), Settled)
        await stream.aclose()

    return call


@recipe("OperationStream.__anext__", "OperationStream.__aiter__", case="while a call goes on")
async def stream_a_run(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()

    async def call() -> None:
        async for _ in lane.stream("op"):
            world.let_go.set()

    return call
