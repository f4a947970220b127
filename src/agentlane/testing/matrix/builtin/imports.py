"""A scenario of a history of another program that is imported, in more than one commit, beside a run."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import ToolResultMessage
from agentlane.data.requests import Prompt
from agentlane.driver.importing import COMMIT_BYTES_MAX
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call

NAME = "imported"
HALF = COMMIT_BYTES_MAX // 2


def _agent(life: Life[Hands]) -> Agent[Any, Any]:
    return Agent(model=ScriptedModel([[call("never", x=1)], "done"]), tools=mixed(life))


async def _act(life: Life[Hands]) -> None:
    session = life.session
    asked = {"id": "a", "function": {"name": "read", "arguments": "{}"}}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "x" * HALF},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "a", "content": "y" * HALF},
    ]
    if NAME not in session.branches():
        await session.import_messages(NAME, chat, format="openai")
    imported = await session.branch(NAME).messages()
    if len(imported) != len(chat) or not isinstance(imported[-1], ToolResultMessage):
        raise AssertionError(f"of {len(chat)} messages {len(imported)} were imported")
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    await life.drive(lane, "op-1")


IMPORTED = Scenario("an imported history", agent=_agent, act=_act, world=Hands, check=check_effects)

IMPORTS = (IMPORTED,)
