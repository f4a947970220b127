"""Scenarios in which a lane goes back and takes another way: what it leaves behind is history and stays whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import TextPart, UserMessage
from agentlane.data.requests import Prompt
from agentlane.hooks import hook
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call

LEFT = "the first try"


def _agent(life: Life[Hands]) -> Agent[Any, Any]:
    turns: list[list[Any]] = [[[call("never", x=1)], "one"], [[call("safe", x=2)], "two"], ["three"]]
    hooks = [hook("before_navigation", lambda info: None)]
    return Agent(model=ScriptedModel(turns=turns), tools=mixed(life), hooks=hooks)


async def _act(life: Life[Hands]) -> None:
    lane = await life.lane()
    await lane.accept(Prompt("first"), operation_id="op-1")
    await life.drive(lane, "op-1")
    await lane.accept(Prompt("second"), operation_id="op-2")
    second = await life.drive(lane, "op-2")
    there = second.to_tip or ""
    if await life.session.label(there) is None:
        back = await lane.rewind(before=second.inputs[0], label=LEFT)
        if _texts(back.messages) != ["second"]:
            raise AssertionError(f"what was given back is {back.messages}")
    await lane.accept(Prompt("instead"), operation_id="op-3")
    await life.drive(lane, "op-3")
    if lane.inspect().last_operation_id == "op-3" and lane.inspect().operation is None:
        await lane.navigate(there)
    await lane.accept(Prompt("after all"), operation_id="op-4")
    await life.drive(lane, "op-4")


def _check(history: History[Hands]) -> None:
    check_effects(history)
    texts = _texts(history.messages)
    if texts != ["first", "second", "after all"]:
        raise AssertionError(f"the user's messages are {texts}")


def _texts(messages: Sequence[Any]) -> list[str]:
    parts = [part for each in messages if isinstance(each, UserMessage) for part in each.content]
    return [part.text for part in parts if isinstance(part, TextPart)]


REWOUND = Scenario("a lane that goes back, and to what it left", agent=_agent, act=_act, world=Hands, check=_check)


def _renaming_agent(life: Life[Hands]) -> Agent[Any, Any]:
    turns: list[list[Any]] = [[[call("never", x=1)], "one"], ["two"], [[call("never", x=3)], "three"]]
    return Agent(model=ScriptedModel(turns=turns), tools=mixed(life))


async def _rename(life: Life[Hands]) -> None:
    session = life.session
    if "main" not in session.branches():
        lane = await life.lane("side")
        await lane.accept(Prompt("first"), operation_id="op-1")
        await life.drive(lane, "op-1")
        await session.rename_branch("side", "main")
    lane = await life.lane()
    await lane.accept(Prompt("second"), operation_id="op-2")
    await life.drive(lane, "op-2")
    if lane.inspect().last_operation_id == "op-2" and lane.inspect().operation is None:
        if "side" not in session.branches():
            await session.create_branch("side", at=lane.tip())
        await session.delete_branch("side")
    await lane.accept(Prompt("third"), operation_id="op-3")
    await life.drive(lane, "op-3")


RENAMED = Scenario(
    "a lane that is renamed, and a branch that is deleted",
    agent=_renaming_agent,
    act=_rename,
    world=Hands,
    check=check_effects,
)

HISTORY = (REWOUND, RENAMED)
