"""Scenarios of long conversations: summaries that somebody asks for, that a run needs, that fail, and of paths left.

The words of each part of a conversation are its own, so that what a summary was made of can be told from its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data.messages import ModelIdentity, TextPart, ToolResultMessage
from agentlane.data.operations import CompactionPolicy
from agentlane.data.requests import Compact, Navigate, Prompt, Request
from agentlane.errors import NothingToCompact, SessionClosed
from agentlane.hooks import BeforeCompaction, BeforeNavigation, Decline, Hook, SummaryText, hook
from agentlane.model import ModelLimits, ModelRequest, StreamItem
from agentlane.testing.decoded import entry_of
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.builtin.inbox import Lane, Said, check_said, drive_all
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang, say
from agentlane.testing.summaries import Summaries

WINDOW = 1_400
"""Tokens of a model in which two long answers and the tools find room, and no third one."""

POLICY = CompactionPolicy(keep_tokens=60)
APART = ModelIdentity(provider="scripted", name="summarizer")


def long(word: str) -> str:
    """Some 250 tokens of one word."""
    return f"{word} " * (750 // (len(word) + 1))


def in_short(request: ModelRequest) -> str:
    """A summary that names the long words that were shown: the same whatever became of calls."""
    text = "".join(part.text for part in request.messages[0].content if isinstance(part, TextPart))
    return " and ".join(word for word in ("alpha", "beta", "gamma") if f"{word} {word}" in text) + " in short"


def _agent(
    turns: Sequence[Sequence[Any]],
    *,
    summaries: Summaries = in_short,
    window: int | None = None,
    overflow_chars: int | None = None,
    hooks: Sequence[Hook] = (),
    apart: bool = False,
    **options: Any,
) -> Callable[[Life[Any]], Agent[Any, Any]]:
    """``apart``: a model of its own writes the summaries; the other one, asked for one, says ``not mine``."""
    limits = None if window is None else ModelLimits(context_tokens=window)
    policy = replace(POLICY, model=APART) if apart else POLICY

    def make(life: Life[Any]) -> Agent[Any, Any]:
        own = "not mine" if apart else summaries
        model = ScriptedModel(turns=turns, summaries=own, limits=limits, overflow_chars=overflow_chars)
        models = [ScriptedModel(summaries=summaries, identity=APART)] if apart else []
        tools = mixed(life)[1:3]
        return Agent(model=model, models=models, tools=tools, compaction=policy, hooks=hooks, **options)

    return make


def shown_to(history: History[Any], operation_id: str) -> list[str]:
    """What the requests for summaries of an operation showed, as text."""
    asked = [each for each in history.witness.asked if each.purpose == "summary" and each.operation_id == operation_id]
    return ["".join(part.text for part in each.messages[0].content if isinstance(part, TextPart)) for each in asked]


def _words(history: History[Any], operation_id: str, *, has: Sequence[str], lacks: Sequence[str]) -> None:
    """Each request for a summary of an operation shows what it is about, and nothing else; unless something of that was
    aborted before."""
    if any(each.status == "aborted" for each in history.results):
        return
    for text in shown_to(history, operation_id):
        missing, more = [each for each in has if each not in text], [each for each in lacks if each in text]
        if missing or more:
            raise AssertionError(f"a summary of {operation_id} was asked for without {missing} and with {more}")


# Asked for.


class _Saying(ScriptedModel):
    """A model during whose summaries something is said."""

    def __init__(self, say: Callable[[], Awaitable[None]], *script: Any, **options: Any) -> None:
        super().__init__(*script, **options)
        self._say = say

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        if request.purpose == "summary":
            await self._say()
        async for item in super().stream(request):
            yield item


def _spoken_to(life: Life[Any]) -> Agent[Any, Any]:
    async def said() -> None:
        try:
            lane = await life.lane()
            await lane.submit("meanwhile", request_id=life.world.id_of("meanwhile"))
            if not any(item.kind == "write" for item in lane.queued()):
                await lane.append_custom("note", {"by": "the host"})
        except SessionClosed:
            await asyncio.get_running_loop().create_future()

    turns: list[list[Any]] = [[[say(long("alpha")), call("never", x=1)], "one"], [long("beta")], ["three"]]
    return Agent(model=_Saying(said, turns=turns, summaries=in_short), tools=mixed(life)[1:3], compaction=POLICY)


async def _compact_between(life: Life[Said]) -> None:
    """A run; a compaction, and another one behind the run that was asked for during the first; a run."""
    lane = await life.lane()
    await lane.accept(Prompt("first"), operation_id="op-1")
    await life.drive(lane, "op-1")
    try:
        await lane.accept(Compact(keep_tokens=20), operation_id="op-2")
        await life.drive(lane, "op-2")
    except NothingToCompact:  # what came before was aborted; without an abort, a summary would be missed
        pass
    receipt = await lane.submit("meanwhile", request_id=life.world.id_of("meanwhile"))
    if receipt.state == "returned":  # by an abort
        del life.world.texts[life.world.id_of("meanwhile")]
        await lane.submit("meanwhile", request_id="r-again")
    await drive_all(life, lane)
    await life.world.look(lane)


def _check_between(history: History[Any]) -> None:
    check_said(history)
    _words(history, "op-2", has=["first", "alpha"], lacks=["meanwhile", "beta"])


MANUAL = Scenario(
    "a compaction between two runs, with what is said meanwhile",
    agent=_spoken_to,
    act=_compact_between,
    world=Said,
    check=_check_between,
)


async def _compact_twice(life: Life[Hands]) -> None:
    lane = await life.lane()
    requests: tuple[Request, ...] = (Prompt("a"), Compact(), Prompt("b"), Compact("Look."), Prompt("c"))
    for number, request in enumerate(requests):
        try:
            await lane.accept(request, operation_id=f"op-{number}")
        except NothingToCompact:  # what came before was aborted; without an abort, a summary would be missed
            continue
        await life.drive(lane, f"op-{number}")


def _check_twice(history: History[Any]) -> None:
    _words(history, "op-1", has=["alpha"], lacks=["beta", "Summary of"])
    _words(history, "op-3", has=["beta"], lacks=["alpha"])


TWICE = Scenario(
    "a compaction that carries an earlier one forward, and attempts that fail",
    agent=_agent(
        [[long("alpha")], [long("beta")], ["three"]],
        summaries=[fail("overloaded", retryable=True), "the short of it"],
    ),
    act=_compact_twice,
    world=Hands,
    check=_check_twice,
)


# Needed by a run.


def _check_apart(history: History[Any]) -> None:
    check_effects(history)
    shown = (message for request in history.witness.asked for message in request.messages)
    if any("not mine" in part.text for each in shown for part in each.content if isinstance(part, TextPart)):
        raise AssertionError("a summary is written by the model that answers, and the policy names another one")


THRESHOLD = Scenario(
    "a run that is summarized on its way, by a model of its own",
    agent=_agent(
        [[[say(long("alpha")), call("never", x=1)], [say(long("beta")), call("key", x=2)], "done"], ["again"]],
        window=WINDOW,
        apart=True,
    ),
    prompt=["first", "second"],
    world=Hands,
    check=_check_apart,
)

UNSUMMARIZED = Scenario(
    "a run whose summary fails for good, and which goes on",
    agent=_agent(
        [[[say(long("alpha")), call("never", x=1)], [say(long("beta")), call("key", x=2)], "done"]],
        summaries=[fail("refused")],
        window=WINDOW,
    ),
    world=Hands,
    check=check_effects,
)

INTERRUPTED = Scenario(
    "a run whose summary may be interrupted once",
    agent=_agent(
        [[[say(long("alpha")), call("never", x=1)], [say(long("beta")), call("key", x=2)], "done"]],
        window=WINDOW,
        max_restarts=1,
    ),
    world=Hands,
    check=check_effects,
)

OVERFLOW = Scenario(
    "a request that is too long, and one that is not any more",
    agent=_agent(
        [[[say(long("alpha")), call("never", x=1)], "one"], ["two"]], overflow_chars=700, summaries="in short"
    ),
    prompt=["first", "second"],
    world=Hands,
    check=check_effects,
)

SECOND = "second " * 20

TOO_LONG = Scenario(
    "a request that is too long however short it is made",
    agent=_agent([[long("alpha")], ["never"]], overflow_chars=100),
    prompt=["first", SECOND],
    world=Hands,
)


# Told by hooks.


async def _moments() -> None:
    """Not at once: an abort may come meanwhile."""
    for _ in range(5):
        await asyncio.sleep(0)


async def _own(info: BeforeCompaction[Any]) -> SummaryText | Decline:
    await _moments()
    return Decline("not now") if info.reason == "manual" else SummaryText(f"{len(info.messages)} messages")


async def _compact_in_vain(life: Life[Hands]) -> None:
    lane = await life.lane()
    await lane.accept(Prompt("first"), operation_id="op-1")
    if (await life.drive(lane, "op-1")).status != "completed":
        return
    await lane.accept(Compact(keep_tokens=0), operation_id="op-2")
    result = await life.drive(lane, "op-2")
    if result.status != "aborted" and result.code != "compaction_declined":
        raise AssertionError(f"a compaction that was declined is {result.status}: {result.error}")


HOOKED = Scenario(
    "a hook with a summary of its own, and one that declines",
    agent=_agent(
        [[[say(long("alpha")), call("never", x=1)], [say(long("beta")), call("key", x=2)], "done"]],
        window=WINDOW,
        hooks=[hook("before_compaction", _own)],
    ),
    act=_compact_in_vain,
    world=Hands,
    check=check_effects,
)


# Of paths that are left.


async def _leave(life: Life[Hands]) -> None:
    """Go to inside a batch and take along what comes behind it; and back, as an operation, to what was left."""
    lane, session = await life.lane(), life.session
    await lane.accept(Prompt("first"), operation_id="op-1")
    await life.drive(lane, "op-1")
    await lane.accept(Prompt("second"), operation_id="op-2")
    left = (await life.drive(lane, "op-2")).to_tip or ""
    path = await session._runtime.storage.path(left, newest_first=False)
    results = [row.id for row in path if isinstance(entry_of(row).body, ToolResultMessage)]
    inside = results[0] if results else path[0].id  # the stop aborted the run before
    await lane.accept(Navigate(inside, "left", summarize=True), operation_id="op-3")
    moved = await life.drive(lane, "op-3")
    await lane.accept(Prompt("third"), operation_id="op-4")
    await life.drive(lane, "op-4")
    await lane.accept(Navigate(left, "tried"), operation_id="op-5")
    if await lane.result("op-5") is None:
        await life.drive(lane, "op-5")
    if moved.status == "completed" and await session.label(left) != "left":
        raise AssertionError("what was left has no label")


async def _look_first(info: BeforeNavigation[Any]) -> None:
    await _moments()


def _check_left(history: History[Any]) -> None:
    check_effects(history)
    # A result that is left comes with the answer that asked for it, and nothing else of what both paths have.
    _words(history, "op-3", has=["beta", "second"], lacks=["first", "gamma", "third"])


LEFT = Scenario(
    "a lane that leaves a path, with a summary of it",
    agent=_agent(
        [[[say("alpha"), call("never", x=1), call("key", x=2)], "one"], ["beta"], ["gamma"]],
        hooks=[hook("before_navigation", _look_first)],
    ),
    act=_leave,
    world=Hands,
    check=_check_left,
)


# Aborted.


async def _abort_the_summary(life: Life[Hands]) -> None:
    lane = await life.lane()
    await lane.accept(Prompt("first"), operation_id="op-1")
    await life.drive(lane, "op-1")
    try:
        await lane.accept(Compact(), operation_id="op-2")
        if await lane.result("op-2") is None:
            await _aborted(life, lane)
    except NothingToCompact:  # the stop aborted the run before
        pass
    await lane.accept(Prompt("second"), operation_id="op-3")
    await life.drive(lane, "op-3")


async def _aborted(life: Life[Hands], lane: Lane) -> None:
    model = life.own_agent.model
    assert isinstance(model, ScriptedModel)
    driving = asyncio.ensure_future(life.drive(lane, "op-2"))
    hanging = asyncio.ensure_future(model.hanging())
    try:
        await asyncio.wait({hanging, driving}, return_when=asyncio.FIRST_COMPLETED)
        await lane.request_abort("op-2")
        await driving
    finally:
        hanging.cancel()
        driving.cancel()


ABORTED = Scenario(
    "an abort while a summary is made",
    agent=_agent([[long("alpha")], ["two"]], summaries=hang([say("Sum")])),
    act=_abort_the_summary,
    world=Hands,
)

COMPACTING = (MANUAL, TWICE, THRESHOLD, UNSUMMARIZED, INTERRUPTED, OVERFLOW, TOO_LONG, HOOKED, LEFT, ABORTED)
