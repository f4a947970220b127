"""The operation that the end of another opens: with the submitted messages that nothing had taken as its prompt."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.messages import UserMessage
from agentlane.data.operations import Checkpoint, LaneConfig, OperationConfig, OperationMeta
from agentlane.data.requests import RequestInfo, request_digest
from agentlane.driver.amounts import all_fit, fitting_items, size_of, written
from agentlane.driver.appending import repair
from agentlane.driver.draft import OperationDraft
from agentlane.driver.inbox import WaitingItem
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation


def open_next(lane: LaneCore, agent: Agent[Any, Any], draft: OperationDraft) -> None:
    """Where a draft ends its operation and submitted messages wait: let it open the next one.

    What else waits is placed before its prompt, as with any prompt that is accepted. What this commit does not hold
    waits on, and goes to the next operation as what is said to it while it runs.
    """
    left = [item for item in lane.inbox if item.id not in draft.consumed]
    submitted = [item for item in left if item.item.submitted]
    if not submitted:
        return
    start_tip = draft.path.tip
    _repair(lane, draft)
    left, submitted = _fitting(draft, [item for item in left if not item.item.submitted], submitted)
    id = lane.runtime.ids.new()
    for item in left:
        draft.path.place_item(item)
        draft.consume(item, "placed", id)
    for item in submitted:
        draft.path.place_item(item)
        draft.consume(item, "taken", id)
    messages = tuple(body for item in submitted for body in item.bodies if isinstance(body, UserMessage))
    inputs = tuple(entry for item in submitted for entry in item.item.entries)
    meta = OperationMeta(
        lane=lane.name,
        request=RequestInfo(kind="prompt", digest=request_digest(lane.name, messages)),
        inputs=inputs,
        start_tip=start_tip,
        started_at=draft.now,
        key_operation=id,
    )
    config = _config(lane, agent)
    draft.succeed(OpenOperation(id, meta, config, Checkpoint(next="respond", trigger=inputs[-1])))


def _repair(lane: LaneCore, draft: OperationDraft) -> None:
    """Behind a navigation the lane may be in the middle of a batch: where it went, or where it stayed. # I10

    One that places a summary has answered the calls there already, and every other operation does at its accept."""
    if draft.operation.meta.navigate is None or draft.path.placed:
        return
    if not draft.path.moved:
        repair(lane, draft.path)
        return
    for id, body, payload in draft.before_summary:
        draft.path.place(id, body, payload)


def _fitting(
    draft: OperationDraft, before: list[WaitingItem], submitted: list[WaitingItem]
) -> tuple[list[WaitingItem], list[WaitingItem]]:
    """What the draft has room for, of what comes before the prompt and of the prompt, of which one item is needed."""
    total = written(draft.path) + len(codec.encode(draft.result))
    if all_fit([*before, *submitted], total):
        return before, submitted
    first, *others = submitted
    total += size_of(first)
    fit = fitting_items(before, total)
    if len(fit) < len(before):
        return fit, [first]
    return fit, [first, *fitting_items(others, total + sum(map(size_of, fit)))]


def _config(lane: LaneCore, agent: Agent[Any, Any]) -> OperationConfig:
    """What the next operation runs with. An agent without models stands in for one that this process lacks: it can
    say nothing about that one, so what the ended operation ran with is kept.
    """
    if not agent.models and lane.operation is not None:
        return replace(lane.operation.config, asked=UNSET)
    named = lane.config is not None and lane.config.agent == agent.name
    return agent.resolve(lane.config if named and lane.config is not None else LaneConfig(agent=agent.name))
