"""The operation that the end of another opens: with the submitted messages that nothing had taken as its prompt."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import UserMessage
from agentlane.data.operations import Checkpoint, LaneConfig, OperationMeta
from agentlane.data.requests import RequestInfo, request_digest
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation


def open_next(lane: LaneCore, agent: Agent[Any, Any], draft: OperationDraft) -> None:
    """Where a draft ends its operation and submitted messages wait: let it open the next one.

    What else waits is placed before its prompt, as with any prompt that is accepted.
    """
    left = [item for item in lane.inbox if item.id not in draft.consumed]
    submitted = [item for item in left if item.item.submitted]
    if not submitted:
        return
    id = lane.runtime.ids.new()
    start_tip = draft.path.tip
    for item in left:
        if not item.item.submitted:
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
    config = (
        lane.config if lane.config is not None and lane.config.agent == agent.name else LaneConfig(agent=agent.name)
    )
    draft.succeed(OpenOperation(id, meta, agent.resolve(config), Checkpoint(next="respond", trigger=inputs[-1])))
