"""A scenario of everything else that a session commits: the application's own writes, each safe to do again."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.data.addresses import ListAddress, ValueAddress
from agentlane.data.messages import TextPart, UserMessage
from agentlane.data.requests import Prompt
from agentlane.data.usage import Usage
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call

PLAN = ValueAddress("app.plan", "now", str)
NOTES = ListAddress("app.notes", "all", str)


def _agent(life: Life[Hands]) -> Agent[Any, Any]:
    return Agent(model=ScriptedModel([[call("never", x=1)], "done"]), tools=mixed(life))


async def _act(life: Life[Hands]) -> None:
    session = life.session
    lane = await life.lane()
    if session.name is None:
        await session.set_name("the plan")
    if await session.value(PLAN, "") != "made":
        await session.set_value(PLAN, "made")
    if not await session.elements(NOTES):
        await session.append(NOTES, "begun")
    if lane.tip() is None:
        await lane.append_message(UserMessage(content=(TextPart(text="before"),)))
    if "aside" not in session.branches():
        await session.create_branch("aside", at=lane.tip())
    if not await session.usage():
        await session.record_usage(Usage(input_tokens=5), note="by hand")
    if lane.inspect().last_operation_id is None and lane.inspect().operation is None:
        await lane.configure(settings={"heat": 1})
    admitted = await lane.accept(Prompt("go"), operation_id="op-1")
    await life.drive(lane, "op-1")
    if await session.label(admitted.inputs[0]) is None:
        await session.set_label(admitted.inputs[0], "where it began")


def _check(history: History[Hands]) -> None:
    check_effects(history)
    said = [part for each in history.messages if isinstance(each, UserMessage) for part in each.content]
    texts = [part.text for part in said if isinstance(part, TextPart)]
    if texts != ["before", "go"]:
        raise AssertionError(f"the user's messages are {texts}")


APPLICATION = Scenario("the application's own writes", agent=_agent, act=_act, world=Hands, check=_check)

WRITES = (APPLICATION,)
