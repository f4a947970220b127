"""What an open operation and its calls are doing now, told from the state in memory."""

from __future__ import annotations

from agentlane.data.inspection import CallRecord, CallStatus, Operation, Phase
from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Tools,
)
from agentlane.driver.open_operation import OpenOperation
from agentlane.ids import call_id


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
