"""Moving the tip of an idle lane: to any entry of the session, or back to before a message that is to be edited.

Nothing outside takes part in it, so there is nothing to recover and nothing to drive: it is one commit of the lane's
line and no operation. (A navigation that has its path summarized first is one, for a request is made.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.border import clean_text
from agentlane.data.entries import Entry
from agentlane.data.messages import UserMessage
from agentlane.data.navigation import NavigateResult, RewindResult
from agentlane.data.reads import id_text
from agentlane.data.writes import SetValue, Write
from agentlane.driver.bounded_path import read_path
from agentlane.driver.hook_answers import refusal
from agentlane.driver.hook_calls import HookCaller, HookFailed
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.outside import Interruption
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidNavigation, LaneBusy
from agentlane.hooks import BeforeNavigation
from agentlane.storage.contract import Commit

ASKED_MAX = 10
"""How often hooks are asked about one move of a lane that moves meanwhile."""


class _Again(NamedTuple):
    """The lane is not what it was when its path was read: read again."""


async def navigate(lane: LaneCore, agent: Agent[Any, Any], to: str | None, label: str | None) -> NavigateResult:
    """Move the tip. See ``AgentLane.navigate``."""
    lane.check_writable()
    target = None if to is None else await known_entry(lane.runtime, to)
    mark, times = _label(label), 0
    while True:
        tip, asked = lane.tip, await _ask(lane, agent, target, label, ())
        times = _counted(lane, times, tip, asked=asked)
        path = await read_path(lane.runtime.storage, target) if lane.loaded else None

        def decide(
            tip: str | None = tip, asked: bool = asked, path: Sequence[Entry] | None = path
        ) -> Decision[NavigateResult | _Again] | Done[NavigateResult | _Again]:
            _check_idle(lane)
            return Done(_Again()) if asked and lane.tip != tip else _decide(lane, target, path, mark)

        moved = await lane.line.run(decide)
        if isinstance(moved, NavigateResult):
            return moved


async def rewind(lane: LaneCore, agent: Agent[Any, Any], before: str, label: str | None) -> RewindResult:
    """Go back to before a user entry. See ``AgentLane.rewind``."""
    lane.check_writable()
    mark, times = _label(label), 0
    while True:
        tip = lane.tip
        parent, messages = await _standing(lane, tip, before)
        if lane.tip == tip:
            times = _counted(lane, times, tip, asked=await _ask(lane, agent, parent, label, messages))
        path = await read_path(lane.runtime.storage, parent) if lane.loaded else None

        def decide(
            tip: str | None = tip, parent: str | None = parent, path: Sequence[Entry] | None = path
        ) -> Decision[NavigateResult | _Again] | Done[NavigateResult | _Again]:
            _check_idle(lane)
            return Done(_Again()) if lane.tip != tip else _decide(lane, parent, path, mark)

        moved = await lane.line.run(decide)
        if isinstance(moved, NavigateResult):
            return RewindResult(from_tip=moved.from_tip, tip=moved.tip, messages=messages)


def _decide(
    lane: LaneCore, target: str | None, path: Sequence[Entry] | None, mark: bytes | None
) -> Decision[NavigateResult | _Again] | Done[NavigateResult | _Again]:
    if path is None and lane.loaded:
        return Done(_Again())
    before = lane.tip
    result = NavigateResult(from_tip=before, tip=target)
    writes: list[Write] = []
    if target != before:
        writes.append(SetValue(addresses.branch_tip(lane.name), codec.encode(target)))
    if mark is not None:
        if before is None:
            raise InvalidNavigation(f"lane {lane.name!r} is empty: it leaves no entry behind that could have a label")
        writes.append(SetValue(addresses.label(before), mark))
    if not writes:
        return Done(result)

    def publish(_commit: Commit) -> NavigateResult:
        lane.move(target, path or ())
        return result

    return Decision(writes, "navigate", publish)


async def _ask(
    lane: LaneCore, agent: Agent[Any, Any], to: str | None, label: str | None, messages: tuple[UserMessage, ...]
) -> bool:
    """Ask the agent's hooks whether the lane may move; whether any was asked."""
    hooks = [hook for hook in agent.hooks if hook.point == "before_navigation"]
    if not hooks or lane.tip == to:
        return False
    _check_idle(lane)
    runtime, info = (
        lane.runtime,
        BeforeNavigation(
            session_id=lane.runtime.session_id,
            lane=lane.name,
            deps=agent.deps,
            from_tip=lane.tip,
            to=to,
            label=label,
            messages=messages,
        ),
    )
    caller = HookCaller(runtime, f"navigation of lane {lane.name!r}", _being_cancelled)
    for hook in hooks:
        runtime.reached("effect.hook.start")
        try:
            with runtime.outside.asking(f"hook {hook.name!r} at {hook.point}", agent.limits.cancel_grace_ms):
                said = await caller.ask(hook, info, refusal)
        except Interruption:
            lane.check()
            raise
        except HookFailed as failed:
            raise InvalidNavigation(failed.error.message, entry_id=to) from failed
        runtime.reached("effect.hook.end")
        if said is not None:
            raise InvalidNavigation(f"lane {lane.name!r} does not move: {said.reason}", entry_id=to)
    return True


def _counted(lane: LaneCore, times: int, tip: str | None, *, asked: bool) -> int:
    """How often the lane has moved while hooks were asked about its move from ``tip``; they may be what moves it."""
    if not asked or lane.tip == tip:
        return times
    if times + 1 == ASKED_MAX:
        raise InvalidNavigation(
            f"lane {lane.name!r} moved each of the {ASKED_MAX} times that its before_navigation hooks were asked, last "
            f"from {tip} to {lane.tip}; let no hook append to the lane that it is asked about, or try again later",
            entry_id=lane.tip,
        )
    return times + 1


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _check_idle(lane: LaneCore) -> None:
    if lane.operation is not None:
        raise LaneBusy(
            f"lane {lane.name!r} has the open operation {lane.operation.id}; drive or abort it before the lane moves",
            operation_id=lane.operation.id,
        )


async def _standing(lane: LaneCore, tip: str | None, before: str) -> tuple[str | None, tuple[UserMessage, ...]]:
    """The parent of ``before``, and the user messages that stand there on the path to ``tip``."""
    runtime, text = lane.runtime, id_text(before)
    rows = [] if tip is None or text is None else await runtime.storage.path(tip, stop_at=text)
    if not rows or rows[-1].id != text:
        raise InvalidNavigation(f"no entry {before!r} is on the path of lane {lane.name!r}", entry_id=repr(before))
    messages: list[UserMessage] = []
    for row in reversed(rows):
        body = codec.BODY.decode(row.payload, f"entry {row.id}")
        if not isinstance(body, UserMessage):
            break
        messages.append(body)
    if not messages:
        raise InvalidNavigation(
            f"entry {text} of lane {lane.name!r} is no message of a user; rewind to before one of those, or navigate",
            entry_id=text,
        )
    return rows[-1].parent_id, tuple(messages)


async def known_entry(runtime: Runtime, entry_id: str) -> str:
    """The id of an entry that a lane can go to; ``InvalidNavigation`` for any other."""
    text = id_text(entry_id)
    if text is None or (await runtime.storage.entries([text]))[0] is None:
        raise InvalidNavigation(
            f"no entry {entry_id!r} is in session {runtime.session_id!r}; a lane can go to entries of its own session",
            entry_id=repr(entry_id),
        )
    return text


def _label(label: str | None) -> bytes | None:
    return None if label is None else codec.encode(clean_text(label, "label"))
