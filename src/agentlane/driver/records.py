"""What an open operation and its calls are doing now, told from the state in memory."""

from __future__ import annotations

from copy import deepcopy

from agentlane.data.approvals import Approval
from agentlane.data.inspection import CallRecord, CallStatus, Operation, Phase
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectGranted,
    EffectPending,
    EffectResumed,
    Generating,
    Navigating,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Summarizing,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.driver.open_operation import OpenOperation
from agentlane.ids import call_id


def open_approvals(operation: OpenOperation) -> tuple[Approval, ...]:
    """What waits for a person, in the order of the calls. Copies: their arguments are those that a yes runs."""
    return tuple(deepcopy(operation.pending[index]) for index in sorted(operation.pending))


def operation_record(operation: OpenOperation) -> Operation:
    """The record of an open operation."""
    state, parent = operation.state, operation.meta.parent_call
    return Operation(
        operation_id=operation.id,
        lane=operation.meta.lane,
        agent=operation.config.agent,
        inputs=operation.meta.inputs,
        started_at=operation.meta.started_at,
        status="open" if operation.result is None else operation.result.status,
        at=_PHASES[type(state)] if operation.result is None else None,
        turn=state.turn,
        attempt=state.attempt if isinstance(state, _REQUESTING) else 0,
        restarts=state.restarts if isinstance(state, _REQUESTING) else 0,
        cancel_requested_at=state.cancel_requested_at,
        not_before=state.not_before if isinstance(state, RetryWait | SummaryWait) else None,
        last_error=state.error if isinstance(state, RetryWait | SummaryWait) else None,
        calls=_calls(operation, state) if isinstance(state, Tools) else (),
        approvals=open_approvals(operation),
        parent_operation_id=None if parent is None else parent.operation_id,
        summarizing=state.reason if isinstance(state, Summarizing | SummaryWait) else None,
    )


def _calls(operation: OpenOperation, state: Tools) -> tuple[CallRecord, ...]:
    records: list[CallRecord] = []
    for index, call in enumerate(state.calls):
        begun = call if isinstance(call, _BEGUN) and call.attempt else None
        asked = call.approval if isinstance(call, Approved | WaitingApproval | EffectGranted) else None
        records.append(
            CallRecord(
                call_id=call_id(state.answer, index),
                tool=operation.calls[index].name if index < len(operation.calls) else "",
                status=_status(call),
                policy=None if begun is None else begun.policy,
                attempt=0 if begun is None else begun.attempt,
                replays=0 if begun is None else begun.replays,
                approval_id=call.question if isinstance(call, WaitingQuestion) else asked,
            )
        )
    return tuple(records)


def _status(call: CallState) -> CallStatus:
    """A yes for a replay that has not started is a yes, as one for a start."""
    return "approved" if isinstance(call, EffectGranted) and call.permit else _STATUSES[type(call)]


_REQUESTING = (Generating, RetryWait, Summarizing, SummaryWait)
_BEGUN = (EffectPending, WaitingApproval, WaitingExternal, WaitingQuestion, AnsweredCall)
_STATUSES: dict[type, CallStatus] = {
    Planned: "planned",
    Approved: "approved",
    WaitingApproval: "waiting_approval",
    WaitingExternal: "waiting_external",
    WaitingQuestion: "waiting_question",
    AnsweredCall: "answered",
    EffectResumed: "effect_pending",
    EffectGranted: "effect_pending",
    EffectPending: "effect_pending",
    WaitingChild: "waiting_child",
    OutcomeReady: "outcome_ready",
    Placed: "placed",
}
_PHASES: dict[type, Phase] = {
    Checkpoint: "checkpoint",
    Generating: "generating",
    RetryWait: "retry_wait",
    Tools: "tools",
    Summarizing: "summarizing",
    SummaryWait: "summary_wait",
    Navigating: "navigating",
}
