"""A read-only record of what a lane is doing now."""

from __future__ import annotations

from msgspec import Struct

from agentlane.data.inspection import Operation
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.records import operation_record


class LaneInspection(Struct, frozen=True, kw_only=True):
    """A lane as it is committed now, and whether a pass is driving it in this process."""

    lane: str
    tip: str | None
    agent: str
    operation: Operation | None
    last_operation_id: str | None
    driving: bool


def inspect_lane(lane: LaneCore, agent: str) -> LaneInspection:
    """What ``AgentLane.inspect`` returns."""
    return LaneInspection(
        lane=lane.name,
        tip=lane.tip,
        agent=agent if lane.config is None else lane.config.agent,
        operation=None if lane.operation is None else operation_record(lane.operation),
        last_operation_id=None if lane.state is None else lane.state.last,
        driving=lane.running is not None,
    )
