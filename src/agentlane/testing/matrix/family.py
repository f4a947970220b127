"""An agent and the agents that are its tools: found by name, and its lanes by what they are for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentlane.agent import Agent
from agentlane.agent_tool import AgentTool
from agentlane.tool import Tool

CHILD = "child:"
"""What the names of lanes begin with on which other agents' runs go."""


def family_of(agent: Agent[Any, Any]) -> Iterator[Agent[Any, Any]]:
    """The agent, and those that are tools of it, and of them."""
    yield agent
    for tool in agent.tools.values():
        if isinstance(tool, AgentTool):
            yield from family_of(tool.agent)


def named(agent: Agent[Any, Any], name: str) -> Agent[Any, Any]:
    """The agent of that name in a family; its head if there is none."""
    return next((each for each in family_of(agent) if each.name == name), agent)


def tool_of(agent: Agent[Any, Any], name: str) -> Tool[Any, Any]:
    """The tool of that name in a family."""
    return next(each.tools[name] for each in family_of(agent) if name in each.tools)


def with_tools(agent: Agent[Any, Any], change: Callable[[Agent[Any, Any]], Agent[Any, Any]]) -> dict[str, AgentTool]:
    """Those tools of an agent that are agents, each with its agent changed."""
    changed: dict[str, AgentTool] = {}
    for name, tool in agent.tools.items():
        if isinstance(tool, AgentTool):
            changed[name] = copy.copy(tool)
            changed[name].agent = change(tool.agent)
    return changed


def plain_names(lanes: Mapping[str, str]) -> dict[str, str]:
    """Lanes (with their first operation's id) by names that are the same in each history: children by their order."""
    children = sorted((operation, lane) for lane, operation in lanes.items() if lane.startswith(CHILD))
    names = {lane: f"{CHILD}{number}" for number, (_, lane) in enumerate(children, start=1)}
    return {lane: names.get(lane, lane) for lane in lanes}
