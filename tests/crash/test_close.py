"""Claim: closing is a controlled crash. Whatever was under way goes on after a reopen, nothing is cancelled or settled
by it, what came back in time is kept, and calls whose effect never began are known as not started.

That this holds at every boundary is for the matrix to show; here are single histories and what is said in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentlane import Prompt, SessionClosed, ToolContext
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.model import ModelRequest, StreamItem
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.playback import PlayedModel
from agentlane.testing.script import Answer, call, hang, say
from tests.crash.world import World, finish, make_agent, shape

# Single histories.


async def open_lane(world: World, script: Sequence[Any], tools: Sequence[Any], **agent: Any) -> tuple[Any, Any]:
    session = await world.open()
    lane = await session.lane("main", make_agent(world, world.model(script), tools, **agent))
    return session, lane


async def go_on(world: World, script: Sequence[Any], tools: Sequence[Any], **agent: Any) -> list[str]:
    """Open again, drive to the end, and give the conversation."""
    session, lane = await open_lane(world, script, tools, **agent)
    await finish(world, lane, "op")
    assert await check_invariants(session) == []
    lines = shape(await lane.messages())
    await session.close()
    return lines


async def closed(driving: asyncio.Future[Any]) -> None:
    with pytest.raises(SessionClosed):
        await driving


async def test_a_value_returned_within_the_grace_is_kept_and_nothing_new_begins(world: World) -> None:
    # Given: two calls that answer the cancellation, one with a value, one with an exception, and one that waits.
    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        try:
            await world.hang()
        except asyncio.CancelledError:
            if arguments["x"] == 1:
                return "in time"
            raise ValueError("broken by the close") from None
        return "never"

    script = [[call("slow", x=1), call("slow", x=2), call("t", x=3)], "done"]
    tools = [world.tool("slow", "never", body=body), world.tool("t", "never")]
    session, lane = await open_lane(world, script, tools, max_parallel=2)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await world.stuck()

    # When.
    await session.close()

    # Then: the value is committed by its usual step; the exception is no outcome; the third never began.
    await closed(driving)
    assert [commit.name for commit, _ in world.trace.commits()][-1] == "outcome_placed"
    assert world.starts() == {"slow:1": 1, "slow:2": 1}
    assert await go_on(world, script, tools, max_parallel=2) == [
        "user go",
        "assistant[tool_calls]  (slow,slow,t)",
        "result in time",
        f"result! {INTERRUPTED}",
        "result t:3 done",
        "assistant[stop] done",
    ]


class FinishesItsWord(PlayedModel):
    """A model that is cancelled while it answers, and ends its answer all the same."""

    def __init__(self, inner: ScriptedModel) -> None:
        super().__init__(identity=inner.identity)
        self._inner = inner
        self.asked = asyncio.get_running_loop().create_future()

    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        return self._inner._find(request)

    async def _play(self, request: ModelRequest, number: int) -> AsyncIterator[StreamItem]:
        self.asked.set_result(None)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            async for item in super()._play(request, number):
                yield item


async def test_an_answer_completed_within_the_grace_is_kept_and_its_calls_are_not_begun(world: World) -> None:
    script = [[call("t", x=1)], "done"]
    tools = [world.tool("t", "never")]
    session = await world.open()
    model = FinishesItsWord(world.model(script))
    lane = await session.lane("main", make_agent(world, model, tools))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await model.asked

    await session.close()

    await closed(driving)
    assert [commit.name for commit, _ in world.trace.commits()][-1] == "settlement"
    assert world.starts() == {}
    assert await go_on(world, script, tools) == [
        "user go",
        "assistant[tool_calls]  (t)",
        "result t:1 done",
        "assistant[stop] done",
    ]
    assert world.starts() == {"t:1": 1}


async def test_frames_and_progress_are_flushed(world: World) -> None:
    """R47, R94: an orderly close keeps everything that was shown, though nothing was saved by time yet."""

    session, lane = await open_lane(world, [hang([say("all of this")])], [])
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await world.models[-1].hanging()
    await session.close()
    await closed(driving)

    assert await go_on(world, ["done"], []) == [
        "user go",
        "assistant[error/interrupted] all of this",
        "assistant[stop] done",
    ]


async def test_the_latest_progress_is_flushed(world: World) -> None:
    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> None:
        for number in range(5):
            await ctx.progress(f"{number} of 5;")
        await world.hang()

    script = [[call("t", x=1)], "done"]
    session, lane = await open_lane(world, script, [world.tool("t", "never", body=body)])
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await world.stuck()
    await session.close()
    await closed(driving)

    lines = await go_on(world, script, [world.tool("t", "never")])
    assert "4 of 5;" in lines[2]
    assert "0 of 5;" not in lines[2]


async def test_what_does_not_stop_is_left_behind_and_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """R43, R52: a tool that swallows the signal does not hold the close beyond the grace; its late word is refused."""
    release, begun = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        begun.set()
        while not release.done():
            try:
                await asyncio.shield(release)
            except asyncio.CancelledError:
                pass
        return "too late"

    script = [[call("t", x=1)], "done"]
    session, lane = await open_lane(world, script, [world.tool("t", "never", body=body)], cancel_grace_ms=500)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await begun.wait()
    with caplog.at_level(logging.WARNING, logger="agentlane"):
        closing = asyncio.ensure_future(session.close())
        await world.clock.sleeping()
        assert not closing.done()
        world.clock.advance(500)
        await closing
    await closed(driving)

    assert any("left behind" in text and "'t'" in text for text in session.findings), session.findings
    before = len(world.trace.commits())
    release.set_result(None)
    while session._runtime.tasks:
        await asyncio.sleep(0)
    assert any("late result" in text for text in session.findings)
    assert len(world.trace.commits()) == before
    assert f"result! {INTERRUPTED}" in await go_on(world, script, [world.tool("t", "never")])


@pytest.mark.parametrize("how", ["leaving async with", "an exception in async with"])
async def test_leaving_is_closing(world: World, how: str) -> None:
    driving: list[asyncio.Future[Any]] = []

    async def block() -> None:
        session, lane = await open_lane(world, [hang("Hel"), "unused"], [])
        async with session:
            await lane.accept(Prompt("go"), operation_id="op")
            driving.append(asyncio.ensure_future(lane.drive()))
            await world.models[-1].hanging()
            if how == "an exception in async with":
                raise ValueError("mine")

    if how == "leaving async with":
        await block()
    else:
        with pytest.raises(ValueError, match="mine"):
            await block()
    await closed(driving[0])
    assert (await go_on(world, ["done"], []))[-1] == "assistant[stop] done"


async def test_closing_twice_and_closing_from_another_task(world: World) -> None:
    session, lane = await open_lane(world, [hang("Hel")], [])
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await world.models[-1].hanging()

    await asyncio.gather(session.close(), session.close(), asyncio.create_task(session.close()))
    await session.close()

    await closed(driving)
    with pytest.raises(SessionClosed):
        await lane.accept(Prompt("more"))


async def test_a_cancelled_close_closes_all_the_same(world: World) -> None:
    """R123: cancelled at each of its first waits, it cleans up; the session can be opened again at once."""
    for turns in range(1, 5):
        session, lane = await open_lane(world, [hang("Hel")], [])
        if lane.inspect().operation is None:
            await lane.accept(Prompt("go"), operation_id=f"op-{turns}")
        driving = asyncio.ensure_future(lane.drive(wait_for_retry=False))
        hanging = asyncio.ensure_future(world.models[-1].hanging())
        await asyncio.wait({driving, hanging}, return_when=asyncio.FIRST_COMPLETED)
        hanging.cancel()
        closing = asyncio.ensure_future(session.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        came_in_time = closing.cancel()
        ended = (await asyncio.gather(closing, return_exceptions=True))[0]
        assert isinstance(ended, asyncio.CancelledError) == came_in_time
        await asyncio.gather(driving, return_exceptions=True)
        with pytest.raises(SessionClosed):
            session.lanes()
