"""Scenarios in which people are asked: before calls start, and before interrupted ones run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentlane.agent import Agent
from agentlane.approval import ApprovalInfo
from agentlane.data.approvals import Approval
from agentlane.data.messages import ToolResultMessage
from agentlane.data.requests import Prompt
from agentlane.data.results import ExternalReason, Settled, Waiting
from agentlane.errors import ApprovalNotPending
from agentlane.lane import AgentLane
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, hand, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Act, Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from agentlane.tool import PendingResult, Tool
from agentlane.tool_context import ToolContext

Choose = Callable[[Approval], dict[str, Any] | None]
"""What to answer: the options of ``decide``; None leaves it to expire."""


async def answer_all(life: Life[Hands], lane: AgentLane[Any, Any], choose: Choose) -> bool:
    """Answer everything that waits on the lane; whether there was anything."""
    found = [each for each in life.session.approvals() if each.lane == lane.name]
    answered = False
    for approval in found:
        options = choose(approval)
        if options is not None:
            answered = True
            try:
                await lane.decide(approval.approval_id, **options)
            except ApprovalNotPending:
                pass  # an abort was first
    return answered


async def drive_answering(life: Life[Hands], lane: AgentLane[Any, Any], choose: Choose) -> None:
    """Drive to the end, and answer whatever is waited for; what is left unanswered expires."""
    while True:
        outcome = await lane.drive("op-1")
        if isinstance(outcome, Settled):
            return
        if not await answer_all(life, lane, choose) and outcome.wake_at is not None:
            life.clock.advance(max(0, outcome.wake_at - life.clock.now_ms()))


def answering(choose: Choose) -> Act[Hands]:
    """An act that accepts, drives and answers."""

    async def act(life: Life[Hands]) -> None:
        lane = await life.lane()
        await lane.accept(Prompt("go"), operation_id="op-1")
        await drive_answering(life, lane, choose)

    return act


def asking(life: Life[Hands], name: str, **options: Any) -> Tool[Any, Any]:
    """A tool of the hands that a person is asked about."""
    tool = hand(life, name, options.pop("replay", "never"))
    return Tool(name, tool.function, replay=tool.options.replay, **options)


async def _only_odd(arguments: dict[str, Any], info: ApprovalInfo[Any]) -> bool:
    await asyncio.sleep(0)
    return bool(arguments["x"] % 2)


def _by_number(approval: Approval) -> dict[str, Any] | None:
    """Yes to 1 and 7, other arguments instead of 2, no to 3."""
    x = approval.arguments["x"]
    if x == 2:
        return {"allow": True, "args": {"x": 20}, "by": "somebody"}
    return {"allow": x != 3, "reason": None if x != 3 else "not three"}


def _check_asked(history: History[Hands]) -> None:
    check_effects(history)
    labels = [label for label, _ in history.world.effects]
    if {"ask:2", "ask:3"} & set(labels):
        raise AssertionError(f"what nobody allowed took effect: {labels}")
    for message in history.messages:
        if isinstance(message, ToolResultMessage) and "not three" in message.text and not message.is_error:
            raise AssertionError(f"a no is no error: {message}")


ASKED = Scenario(
    "calls that people are asked about: yes, other arguments, no",
    world=Hands,
    check=_check_asked,
    act=answering(_by_number),
    agent=lambda life: Agent(
        model=ScriptedModel(
            [
                [call("ask", x=1), call("ask", x=2), call("safe", x=4), call("ask", x=3), call("maybe", x=6)],
                [call("maybe", x=7), call("alone", x=8)],
                "done",
            ]
        ),
        tools=[asking(life, "ask", approval=True), asking(life, "maybe", approval=_only_odd), *mixed(life)],
    ),
)


def _first_only(approval: Approval) -> dict[str, Any] | None:
    return {"allow": True} if approval.arguments["x"] == 1 else None


EXPIRED = Scenario(
    "an approval that expires beside one that is given, and a barrier behind them",
    world=Hands,
    check=check_effects,
    act=answering(_first_only),
    agent=lambda life: Agent(
        model=ScriptedModel([[call("ask", x=1), call("ask", x=2), call("alone", x=3)], "done"]),
        tools=[asking(life, "ask", approval=True, approval_expires_ms=5_000), *mixed(life)],
    ),
)


REPLAYED = Scenario(
    "calls that run again only if a person says so",
    world=Hands,
    check=check_effects,
    act=answering(lambda approval: {"allow": approval.arguments["x"] != 3}),
    agent=lambda life: Agent(
        model=ScriptedModel([[call("check", x=1), call("safe", x=2), call("check", x=3)], "done"]),
        tools=[hand(life, "check", "ask"), hand(life, "safe", "safe")],
        max_replays=2,
    ),
)


async def _order(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
    return PendingResult()


async def _deliver(life: Life[Hands]) -> None:
    """Drive, and deliver whatever is waited for: by its own words, which name the call."""
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    while isinstance(outcome := await lane.drive("op-1"), Waiting):
        for reason in outcome.reasons:
            if isinstance(reason, ExternalReason):
                try:
                    await lane.deliver(reason.call_id, f"delivered {reason.call_id[-1]}")
                except ApprovalNotPending:
                    pass  # an abort was first


def _check_delivered(history: History[Hands]) -> None:
    check_effects(history)
    for message in history.messages:
        ordered = isinstance(message, ToolResultMessage) and message.name == "order" and not message.is_error
        if ordered and not message.text.startswith("delivered"):
            raise AssertionError(f"{message} was not delivered")


DELIVERED = Scenario(
    "results that are delivered later, and a barrier behind them",
    world=Hands,
    check=_check_delivered,
    act=_deliver,
    agent=lambda life: Agent(
        model=ScriptedModel([[call("order", x=1), call("safe", x=2), call("order", x=3), call("alone", x=4)], "done"]),
        tools=[hand(life, "order", "safe", body=_order), *mixed(life)],
    ),
)


async def _fill_in(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    """Asks one thing, and for an odd number another one behind it."""
    await ctx.progress(f"began {arguments['x']}")
    said = [await ctx.ask("first", f"What of {arguments['x']}?")]
    if await ctx.memo("said") is None:
        await ctx.set_memo("said", said)
    if arguments["x"] % 2:
        said.append(await ctx.ask("second", "And then?"))
    return f"{arguments['x']} is {said}"


async def _answer(life: Life[Hands]) -> None:
    """Drive, and answer what tools ask: each question by its id, with what names it."""
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    while not isinstance(await lane.drive("op-1"), Settled):
        for asked in life.session.approvals()[::-1]:
            try:
                await lane.answer(asked.approval_id, [asked.arguments["x"], asked.name])
            except ApprovalNotPending:
                pass  # an abort was first


def _check_answered(history: History[Hands]) -> None:
    check_effects(history)
    told = ("1 is [[1, 'first'], [1, 'second']]", "2 is [[2, 'first']]", "3 is [[3, 'first'], [3, 'second']]")
    for message in history.messages:
        asked = isinstance(message, ToolResultMessage) and message.name == "form" and not message.is_error
        if asked and message.text not in told:
            raise AssertionError(f"{message.text!r} is not what was answered")


QUESTIONS = Scenario(
    "tools that ask people while they run, one and two questions each, and a barrier behind them",
    world=Hands,
    check=_check_answered,
    act=_answer,
    agent=lambda life: Agent(
        model=ScriptedModel([[call("form", x=1), call("safe", x=2), call("form", x=2), call("alone", x=3)], "done"]),
        tools=[hand(life, "form", "idempotent", body=_fill_in), *mixed(life)],
    ),
)


STRANDED = Scenario(
    "tools that ask people and must not run again afterwards",
    world=Hands,
    check=_check_answered,
    act=_answer,
    agent=lambda life: Agent(
        model=ScriptedModel([[call("form", x=2), call("form", x=3)], "done"]),
        tools=[hand(life, "form", "safe" if life.number == 1 else "never", body=_fill_in)],
    ),
)

ASKS = (ASKED, EXPIRED, REPLAYED, DELIVERED, QUESTIONS, STRANDED)
