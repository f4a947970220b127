"""A read-only record of what a lane is doing now."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agentlane.agent import Agent
from agentlane.data.approvals import Approval
from agentlane.data.inbox import QueuedInput
from agentlane.data.inspection import Operation
from agentlane.data.operations import OperationConfig
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.records import open_approvals, operation_record


class Missing(Struct, frozen=True, kw_only=True):
    """What an open operation was accepted with and the lane's agent in this process does not have.

    ``agent`` is the name of the agent that it was accepted with, if this one has another. Driving it is allowed, and no
    crash: a request to a model that is missing ends it with the code ``model_unavailable``, a call of a tool that is
    missing gets an error result. So look here first where another agent must not go on with it.
    """

    agent: str | None = None
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class LaneInspection(Struct, frozen=True, kw_only=True):
    """A lane as it is committed now, what waits there and for a person, and whether a pass is driving it here.

    ``missing`` is None when the open operation, if there is one, finds all that it was accepted with.
    """

    lane: str
    tip: str | None
    agent: str
    operation: Operation | None
    last_operation_id: str | None
    driving: bool
    missing: Missing | None = None
    approvals: tuple[Approval, ...] = ()
    queued: tuple[QueuedInput, ...] = ()


def inspect_lane(lane: LaneCore, agent: Agent[Any, Any]) -> LaneInspection:
    """What ``AgentLane.inspect`` returns."""
    return LaneInspection(
        lane=lane.name,
        tip=lane.tip,
        agent=agent.name if lane.config is None else lane.config.agent,
        operation=None if lane.operation is None else operation_record(lane.operation),
        last_operation_id=None if lane.state is None else lane.state.last,
        driving=lane.running is not None,
        missing=None if lane.operation is None else _missing(lane.operation.config, agent),
        approvals=() if lane.operation is None else open_approvals(lane.operation),
        queued=tuple(item.shown() for item in lane.inbox),
    )


def _missing(config: OperationConfig, agent: Agent[Any, Any]) -> Missing | None:
    all_models = dict.fromkeys((*config.models, *config.summary_models))
    found = Missing(
        agent=None if config.agent == agent.name else config.agent,
        models=tuple(str(identity) for identity in all_models if identity not in agent.models),
        tools=tuple(name for name in config.tools if name not in agent.tools),
    )
    return None if found == Missing() else found
