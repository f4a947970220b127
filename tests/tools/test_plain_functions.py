"""Claim: a plain function sees the context of who opened the session, keeps its own to itself, and is told to stop."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from agentlane import Agent, Prompt, ToolContext, ToolResultMessage, open_session, tool
from agentlane.testing import ScriptedModel, call

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_context_variables_are_those_of_the_opening(kind: str) -> None:
    """Of neither the caller of a drive nor a call before: a recovered call has none of these."""

    def look() -> str:
        seen = WHO.get()
        WHO.set("the last call")
        return f"{seen} {threading.current_thread() is threading.main_thread()}"

    async def look_async() -> str:
        return look()

    built = tool(name="look", replay="safe")(look if kind == "plain" else look_async)
    model = ScriptedModel([[call("look"), call("look")], [call("look")], "done"])
    WHO.set("who opened it")
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[built]))
        WHO.set("who drives it")
        await lane.run(Prompt("look"))

    seen = [each.text for each in model.requests[-1].messages if isinstance(each, ToolResultMessage)]
    assert seen == [f"who opened it {kind == 'async'}"] * 3
    assert WHO.get() == "who drives it"


async def test_a_plain_function_that_looks_ends_when_it_is_told_to() -> None:
    started, ended = threading.Event(), threading.Event()

    @tool
    def wait(ctx: ToolContext) -> str:
        started.set()
        while not ctx.cancelled:
            ended.wait(0.001)
        return "stopped in order"

    model = ScriptedModel([[call("wait")], "never asked"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[wait]))
        admitted = await lane.accept(Prompt("wait"))
        drive = asyncio.ensure_future(lane.drive(admitted.operation_id))
        await asyncio.to_thread(started.wait)
        result = await lane.abort()
        await drive
        last = (await lane.entries(limit=1))[0].body

    assert result.status == "aborted"
    assert isinstance(last, ToolResultMessage) and last.text == "stopped in order" and not last.is_error
