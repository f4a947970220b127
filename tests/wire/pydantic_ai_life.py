"""A process that runs an agent with a model of pydantic-ai's, to be killed; see ``anthropic_life``."""

from __future__ import annotations

from collections.abc import Callable

from anthropic import AsyncAnthropic

from agentlane import Agent
from tests.wire import anthropic_life
from tests.wire.pydantic_ai_places import anthropic_model

THINKING = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}


def agent(client: AsyncAnthropic, begun: Callable[[str], bool]) -> Agent:
    """The agent of every life."""
    return anthropic_life.agent(client, begun, anthropic_model, THINKING)


if __name__ == "__main__":
    anthropic_life.main(agent)
