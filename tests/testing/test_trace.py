"""Claim: a trace holds opens, commits and effects in the order in which they happened, over several lives, and changes
nothing of what it is put around.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, InvalidWrite, Prompt, Tool, ToolContext, open_session
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail
from agentlane.testing.trace import Began, Committed, Ended, Opened, Reached, Refused, Submitted, Trace


async def slow(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    await asyncio.sleep(0)
    return "slow"


def plain(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    raise ValueError("plain")


def make_agent() -> Agent[Any, Any]:
    return Agent(
        model=ScriptedModel([[call("slow")], [call("plain")], fail("refused")]),
        tools=[Tool("slow", slow, replay="safe"), Tool("plain", plain)],
    )


async def test_it_records_a_run_in_order() -> None:
    clock, trace, plan, agent = ManualClock(), Trace(), FaultPlan(), make_agent()
    store = trace.store(MemoryStore(clock=clock, ids=CountingIds(series=9)))
    await store.create("s")
    for life in (1, 2):
        session = await open_session(
            store, session_id="s", clock=clock, ids=CountingIds(series=life), probe=trace.probe(plan)
        )
        lane = await session.lane("main", trace.agent(agent))
        await lane.accept(Prompt("go"), operation_id="op")
        result = (await lane.drive("op")).result
        await session.close()

    # The run, and a second life in which there was nothing to do.
    assert result.code == "refused"
    step, effect = [Submitted, Committed], [Began, Ended]
    assert [type(event) for event in trace.events if not isinstance(event, Reached)] == [
        Opened,
        *[*step, *step],  # lane, accept
        *[*step, *effect] * 5,  # an intent, or an outcome with the next one, and its effect
        *step,
        Opened,
    ]
    assert [commit.name for commit, _ in trace.commits()] == [
        "lane",
        "accept",
        "intent",
        *["settlement+tool_intents", "outcome_placed+intent"] * 2,
        "settlement+terminal",
    ]
    assert tuple(event.boundary for event in trace.events if isinstance(event, Reached)) == plan.trace
    assert [(each.kind, each.name, each.policy, each.attempt) for each in trace.effects()] == [
        ("request", "scripted:scripted", None, 1),
        ("call", "slow", "safe", 1),
        ("request", "scripted:scripted", None, 1),
        ("call", "plain", "never", 1),
        ("request", "scripted:scripted", None, 1),
    ]
    assert len({each.number for each in trace.effects()}) == 5
    assert [each.name for each in trace.effects("call")] == ["slow", "plain"]
    assert trace.effects("call")[0].key.startswith("s/op/slow#")
    # What it was put around is as it was.
    assert agent.model is not trace.agent(agent).model
    assert type(agent.tools["slow"]) is Tool


async def test_a_refused_commit_is_known_as_refused() -> None:
    trace = Trace()
    store = trace.store(MemoryStore(clock=ManualClock()))
    await store.create("s")
    storage = await store.open("s")

    with pytest.raises(InvalidWrite):
        storage.submit([])

    assert [type(event) for event in trace.events] == [Opened, Submitted, Refused]
    assert trace.commits() == []
    assert trace.history().splitlines()[-1] == "refused   2"
