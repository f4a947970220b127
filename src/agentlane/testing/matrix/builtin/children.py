"""Scenarios in which an agent is another one's tool: its run is found again wherever both were stopped."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.agent_tool import agent_tool
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, hand, mixed
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call


def _family(life: Life[Hands]) -> Agent[Any, Any]:
    """An agent with two runs of another one and a call beside them; the other one sees the path, and has tools."""
    scout = Agent(
        name="scout",
        model=ScriptedModel(turns=[[], [[call("look", x=1), call("touch", x=2)], "seen"]]),
        tools=[hand(life, "look", "safe"), hand(life, "touch", "idempotent")],
    )
    calls = [call("scout", prompt="there"), call("never", x=3), call("scout", prompt="here")]
    tools = [*mixed(life), agent_tool(scout, description="Look at a place.", history="path")]
    return Agent(name="chief", model=ScriptedModel(turns=[[calls, "done"]]), tools=tools)


def _nested(life: Life[Hands]) -> Agent[Any, Any]:
    """Two floors of agents, each a barrier."""
    low = Agent(
        name="low", model=ScriptedModel(turns=[[[call("dig", x=1)], "dug"]]), tools=[hand(life, "dig", "never")]
    )
    middle = Agent(
        name="middle",
        model=ScriptedModel(turns=[[[call("low", prompt="down")], "low dug"]]),
        tools=[agent_tool(low, description="Dig.", parallel=False)],
    )
    model = ScriptedModel(turns=[[[call("middle", prompt="dig"), call("never", x=2)], "done"]])
    return Agent(model=model, tools=[*mixed(life), agent_tool(middle, description="Dig deep.", parallel=False)])


FAMILY = Scenario("agents as tools, beside a call", agent=_family, world=Hands, check=check_effects)
NESTED = Scenario("agents as tools of agents that are tools", agent=_nested, world=Hands, check=check_effects)

CHILDREN = (FAMILY, NESTED)
