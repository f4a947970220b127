"""Scenarios of the inbox: things said while a run is under way, before it, at its end, under its abort, and taken back.

Whatever stops them, each message that was queued is in the conversation once, or its receipt says why it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlane.agent import Agent
from agentlane.data.inbox import Receipt
from agentlane.data.messages import TextPart, UserMessage
from agentlane.data.requests import Prompt
from agentlane.lane import AgentLane
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, hand
from agentlane.testing.matrix.builtin.parrot import FAILS, Parrot
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.tool import Tool
from agentlane.tool_context import ToolContext

Lane = AgentLane[Any, Any]


class Said(Hands):
    """What was queued, by request id, and what the process that came to its end knew of it then."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.receipts: dict[str, Receipt | None] = {}
        self.waiting: list[str] = []

    def id_of(self, text: str) -> str:
        """The request id under which this text is queued, in whatever process."""
        id = "r-" + text.replace(" ", "-")
        self.texts[id] = text
        return id

    async def look(self, lane: Lane) -> None:
        """Take note of what became of everything."""
        self.receipts = {id: await lane.receipt(id) for id in self.texts}
        self.waiting = [item.text for item in lane.queued()]


async def drive_all(life: Life[Said], lane: Lane) -> None:
    """Drive whatever is open, and what its end opens."""
    while (operation := lane.inspect().operation) is not None:
        await life.drive(lane, operation.operation_id)


def check_said(history: History[Any]) -> None:
    """Each text is where its receipt says, and only there."""
    check_effects(history)
    bodies = [each for each in history.messages if isinstance(each, UserMessage)]
    texts = Counter(part.text for each in bodies for part in each.content if isinstance(part, TextPart))
    returned = Counter(item.text for result in history.results for item in result.returned)
    world = history.world
    for id, text in world.texts.items():
        receipt = world.receipts.get(id)
        state = "never queued" if receipt is None else receipt.state
        found = (texts[text], returned[text], world.waiting.count(text))
        wanted = (int(state in ("placed", "taken")), int(state == "returned"), int(state == "queued"))
        if found != wanted:
            raise AssertionError(f"{text!r} is {state}, and is placed, returned and waiting {found} times")


def _talker(life: Life[Any], say: Callable[[Lane, ToolContext[Any]], Any]) -> Tool[Any, Any]:
    """A tool, safe to repeat, from inside of which things are said to its own lane."""

    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        await say(await life.lane(), ctx)
        return f"talk:{arguments['x']} done"

    return hand(life, "talk", "safe", body=body)


def _agent(
    calls: dict[str, Sequence[str]], say: Callable[[Life[Said], Lane], Any] | None = None, **options: Any
) -> Callable[[Life[Said]], Agent[Any, Any]]:
    def make(life: Life[Any]) -> Agent[Any, Any]:
        async def said(lane: Lane, ctx: ToolContext[Any]) -> None:
            if say is not None:
                await say(life, lane)

        return Agent(model=Parrot(calls), tools=[_talker(life, said), hand(life, "never", "never")], **options)

    return make


async def _say_everything(life: Life[Said], lane: Lane) -> None:
    """One of each kind, several messages as one item among them, and one that is taken back."""
    id_of = life.world.id_of
    for text in ("to the left", "to the right"):
        await lane.steer(text, request_id=id_of(text))
    pair = Prompt(messages=tuple(UserMessage(content=(TextPart(text=text),)) for text in ("both", "of them")))
    await lane.follow_up(pair, request_id="r-pair")
    await lane.follow_up("and then", request_id=id_of("and then"))
    await lane.next_run("next time", request_id=id_of("next time"))
    queued = await lane.steer("taken back", request_id=id_of("taken back"))
    await lane.cancel_queued(queued.id)
    if not any(item.kind == "write" for item in lane.queued()):
        await lane.append_custom("note", {"by": "talk"})


async def _say_and_go_on(life: Life[Said]) -> None:
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    await life.drive(lane, "op-1")
    await lane.accept(Prompt("again"), operation_id="op-2")
    await life.drive(lane, "op-2")
    await life.world.look(lane)


EVERYTHING = Scenario(
    "everything said from inside a call, then a second prompt",
    world=Said,
    agent=_agent({"go": ["talk", "never"]}, _say_everything),
    act=_say_and_go_on,
    check=check_said,
    steady=False,
)

ONE_AT_A_TIME = Scenario(
    "steering one at a time, follow-ups all at once",
    world=Said,
    agent=_agent({"go": ["talk"], "to the right": ["never"]}, _say_everything, steering="one", follow_ups="all"),
    act=_say_and_go_on,
    check=check_said,
    steady=False,
)


async def _say_to_an_idle_lane(life: Life[Said]) -> None:
    """Things said before anything is accepted, before it is driven, and between two prompts."""
    lane, id_of = await life.lane(), life.world.id_of
    await lane.next_run("at first", request_id=id_of("at first"))
    await lane.steer("early", request_id=id_of("early"))
    await lane.accept(Prompt("go"), operation_id="op-1")
    await lane.steer("late", request_id=id_of("late"))
    doubtful = await lane.follow_up("perhaps", request_id=id_of("perhaps"))
    await lane.cancel_queued(doubtful.id)
    await life.drive(lane, "op-1")
    await lane.follow_up("between", request_id=id_of("between"))
    await lane.submit("submitted", request_id=id_of("submitted"))
    await drive_all(life, lane)
    await life.world.look(lane)


IDLE = Scenario(
    "things said to an idle lane, and a submitted prompt",
    world=Said,
    agent=_agent({"go": ["never"], "submitted": ["never"]}),
    act=_say_to_an_idle_lane,
    check=check_said,
    steady=False,
)


async def _submit_twice(life: Life[Said], lane: Lane) -> None:
    for text in ("one more", FAILS, "and another"):
        await lane.submit(text, request_id=life.world.id_of(text))
    await lane.follow_up("in the end", request_id=life.world.id_of("in the end"))


async def _submit_to_a_run(life: Life[Said]) -> None:
    """A run that fails on what is submitted to it from inside; what comes after is the next operation's prompt."""
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    await life.drive(lane, "op-1")
    await drive_all(life, lane)
    await lane.accept(Prompt("again"), operation_id="op-2")
    await drive_all(life, lane)
    await life.world.look(lane)


SUBMITTED = Scenario(
    "messages submitted to a run that fails on one of them",
    world=Said,
    agent=_agent({"go": ["talk"]}, _submit_twice, steering="one"),
    act=_submit_to_a_run,
    check=check_said,
    steady=False,
)


async def _abort_with_waiting(life: Life[Said]) -> None:
    """An abort with everything waiting, and a message submitted behind it: the next operation."""
    lane, id_of = await life.lane(), life.world.id_of
    await lane.accept(Prompt("go"), operation_id="op-1")
    if await lane.result("op-1") is None:
        operation = lane.inspect().operation
        if operation is not None and operation.cancel_requested_at is None:
            await lane.steer("unheard", request_id=id_of("unheard"))
            await lane.follow_up("unheard too", request_id=id_of("unheard too"))
            await lane.submit("given back", request_id=id_of("given back"))
            await lane.next_run("kept", request_id=id_of("kept"))
            if not any(item.kind == "write" for item in lane.queued()):
                await lane.append_custom("note", {"by": "hand"})
        await lane.request_abort("op-1")
    await lane.submit("after all", request_id=id_of("after all"))
    await drive_all(life, lane)
    await life.world.look(lane)


ABORTED = Scenario(
    "an abort with everything waiting, and a message submitted behind it",
    world=Said,
    agent=_agent({"go": ["talk"], "after all": ["never"]}),
    act=_abort_with_waiting,
    check=check_said,
    steady=False,
)

INBOX = (EVERYTHING, ONE_AT_A_TIME, IDLE, SUBMITTED, ABORTED)
