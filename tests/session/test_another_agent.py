"""Claim: an operation whose agent, tool or model is gone or renamed shows what it misses, and does not crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, Missing, ModelIdentity, Prompt, Tool, ToolContext, ToolResultMessage, tool
from agentlane.testing import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place, echo


def script() -> ScriptedModel:
    return ScriptedModel([[call("echo", text="a"), call("wait"), call("echo", text="b")], "done"])


class Waits:
    """A tool that runs until its process ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.tool = Tool("wait", self._run)

    async def _run(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("it is not let go")


async def in_a_call(place: Place) -> None:
    """Leave an operation ``op`` of agent ``old`` in its second call; the third waits for a place."""
    waits = Waits()
    session = await place.open()
    lane = await session.lane("main", Agent("old", model=script(), tools=[echo, waits.tool], max_parallel=1))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await waits.begun.wait()
    await session.close()
    with pytest.raises(Exception, match="closed"):
        await driving


@tool(name="wait")
async def other_wait() -> str:
    return "not again"


@pytest.mark.parametrize("tools", [[], [echo], [other_wait], [echo, other_wait]])
@pytest.mark.parametrize("name", ["old", "new"])
async def test_tools_that_are_gone_are_named_and_their_calls_get_errors(place: Place, name: str, tools: Any) -> None:
    await in_a_call(place)
    session = await place.open()
    lane = await session.lane("main", Agent(name, model=script(), tools=tools))

    seen = lane.inspect()
    gone = tuple(each for each in ("echo", "wait") if each not in [one.name for one in tools])
    wanted = Missing(agent=None if name == "old" else "old", tools=gone)
    assert seen.missing == (None if wanted == Missing() else wanted)
    assert (seen.agent, seen.operation.agent if seen.operation else None) == ("old", "old")
    result = await lane.resume()

    assert result is not None
    assert (result.status, result.text, result.agent) == ("completed", "done", "old")
    results = [each.text for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    assert results[0] == "a"
    assert "no outcome was saved" in results[1]
    if echo in tools:
        assert results[2] == "b"
    else:
        assert "'echo' is not available here" in results[2]
    assert lane.inspect().missing is None
    assert await check_invariants(session) == []


async def test_a_model_that_is_gone_ends_it_and_says_so(place: Place) -> None:
    await in_a_call(place)
    session = await place.open()
    other = ScriptedModel(["x"], identity=ModelIdentity(provider="acme", name="large"))
    lane = await session.lane("main", Agent("old", model=other, tools=[echo, other_wait]))

    assert lane.inspect().missing == Missing(models=("scripted:scripted",))
    result = await lane.resume()

    assert result is not None
    assert (result.status, result.code) == ("failed", "model_unavailable")
    assert await check_invariants(session) == []


async def test_another_agent_may_be_refused_before_anything_is_driven(place: Place) -> None:
    """What a policy does: look, and abort instead. The next accept belongs to the new agent."""
    await in_a_call(place)
    session = await place.open()
    new = Agent("new", model=ScriptedModel(turns=[["x"], ["hello"]]), tools=[echo])
    lane = await session.lane("main", new)

    missing = lane.inspect().missing
    assert missing is not None and missing.agent == "old"
    assert new.model.requests == []  # type: ignore[attr-defined]
    assert (await lane.abort()).status == "aborted"
    assert (await lane.run("hi")).agent == "new"
    assert lane.inspect().agent == "new"
