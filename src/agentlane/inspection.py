"""Read-only records of what a lane and its operation are doing now."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    OutcomeReady,
    Placed,
    Planned,
    ReplayPolicy,
    RetryWait,
    Tools,
)
from agentlane.data.results import Status
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.ids import call_id

Phase: TypeAlias = Literal["checkpoint", "generating", "retry_wait", "tools"]
CallStatus: TypeAlias = Literal["planned", "effect_pending", "outcome_ready", "placed"]


class CallRecord(Struct, frozen=True, kw_only=True):
    """One call of the current batch. ``policy``, ``attempt`` and ``replays`` are those of its last intent."""

    call_id: str
    tool: str
    status: CallStatus
    policy: ReplayPolicy | None = None
    attempt: int = 0
    replays: int = 0


class Operation(Struct, frozen=True, kw_only=True):
    """An operation as it is committed now. ``at`` is None once it has settled; ``status`` is ``open`` until then."""

    operation_id: str
    lane: str
    agent: str
    inputs: tuple[str, ...]
    started_at: int
    status: Literal["open"] | Status
    at: Phase | None = None
    turn: int = 0
    attempt: int = 0
    restarts: int = 0
    cancel_requested_at: int | None = None
    not_before: int | None = None
    last_error: ErrorInfo | None = None
    calls: tuple[CallRecord, ...] = ()


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


def operation_record(operation: OpenOperation) -> Operation:
    """The record of an open operation."""
    state = operation.state
    return Operation(
        operation_id=operation.id,
        lane=operation.meta.lane,
        agent=operation.config.agent,
        inputs=operation.meta.inputs,
        started_at=operation.meta.started_at,
        status="open" if operation.result is None else operation.result.status,
        at=_PHASES[type(state)] if operation.result is None else None,
        turn=state.turn,
        attempt=state.attempt if isinstance(state, Generating | RetryWait) else 0,
        restarts=state.restarts if isinstance(state, Generating | RetryWait) else 0,
        cancel_requested_at=state.cancel_requested_at,
        not_before=state.not_before if isinstance(state, RetryWait) else None,
        last_error=state.error if isinstance(state, RetryWait) else None,
        calls=_calls(operation, state) if isinstance(state, Tools) else (),
    )


def _calls(operation: OpenOperation, state: Tools) -> tuple[CallRecord, ...]:
    records: list[CallRecord] = []
    for index, call in enumerate(state.calls):
        begun = call if isinstance(call, EffectPending) else None
        records.append(
            CallRecord(
                call_id=call_id(state.answer, index),
                tool=operation.calls[index].name if index < len(operation.calls) else "",
                status=_STATUSES[type(call)],
                policy=None if begun is None else begun.policy,
                attempt=0 if begun is None else begun.attempt,
                replays=0 if begun is None else begun.replays,
            )
        )
    return tuple(records)


_STATUSES: dict[type, CallStatus] = {
    Planned: "planned",
    EffectPending: "effect_pending",
    OutcomeReady: "outcome_ready",
    Placed: "placed",
}
_PHASES: dict[type, Phase] = {
    Checkpoint: "checkpoint",
    Generating: "generating",
    RetryWait: "retry_wait",
    Tools: "tools",
}
