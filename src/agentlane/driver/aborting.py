"""Aborting an operation: its cancellation, and that of all that runs for it, in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data import addresses, codec
from agentlane.data.results import AbortReceipt, OperationResult
from agentlane.data.writes import SetValue, Write
from agentlane.driver import queueing
from agentlane.driver.children import family_of
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done, Line
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.questions import voiding
from agentlane.driver.together import together
from agentlane.driver.verbs import operation_id_of, settled_or_raise
from agentlane.machine.facts import AbortRequested
from agentlane.machine.table import step
from agentlane.storage.contract import Commit


async def request_abort(lane: LaneCore, operation_id: str) -> AbortReceipt:
    """Commit the cancellation of one operation. See ``AgentLane.request_abort``."""
    runtime = lane.runtime
    lane.check_writable()
    operation_id = operation_id_of(lane, operation_id)
    while lane.operation is None or lane.operation.id != operation_id:
        record = await settled_or_raise(lane, operation_id)
        if record is not None:
            return _receipt_of(record)
    operation = lane.operation
    operation.abort_waiting = True
    return await together(
        runtime, lambda kept: _next_of_family(lane, kept), lambda: _decide_with_children(lane, operation)
    )


def _next_of_family(lane: LaneCore, kept: Sequence[Line]) -> Line | None:
    """Whose line is taken next. Once a lane's is kept, its children stay what they are."""
    return next((each.line for each in family_of(lane) if each.line not in kept), None)


def _decide_with_children(lane: LaneCore, operation: OpenOperation) -> Decision[AbortReceipt] | Done[AbortReceipt]:
    """The abort of the operation and of all that runs for it, with the heads of all their lines kept."""
    own = _decide(lane, operation)
    if isinstance(own, Done) or lane.operation is not operation:
        return own
    decisions = [own]
    for child in family_of(lane):
        if child is not lane and child.operation is not None:
            decided = _decide(child, child.operation)
            if isinstance(decided, Decision):  # it may have been aborted by itself before
                decisions.append(decided)
    writes: list[Write] = [write for each in decisions for write in each.writes]

    def publish(commit: Commit) -> AbortReceipt:
        receipt, *_ = [each.publish(commit) for each in decisions]
        return receipt

    return Decision(writes, "abort", publish, own.refused)


def _decide(lane: LaneCore, operation: OpenOperation) -> Decision[AbortReceipt] | Done[AbortReceipt]:
    """The abort of one operation, at the head of its lane's line."""
    id = operation.id
    operation.abort_waiting = False
    if operation.result is not None:
        return Done(_receipt_of(operation.result))
    if operation.cancelled:
        return Done(_receipt(operation, newly_requested=False))
    after = step(operation.state, AbortRequested(lane.runtime.clock.now_ms()), operation.rules).state
    if after is None:
        raise RuntimeError("an abort request does not end an operation by itself")

    def publish(commit: Commit) -> AbortReceipt:
        operation.take_state(after, operation.usage, operation.staged)
        operation.pending = {}
        lane.inbox.remove(waited)
        operation.returned = returned
        if lane.running is not None:
            lane.running.abort_committed()
        lane.poke()  # whoever waits for this operation, a child, looks again too
        return _receipt(operation, newly_requested=True)

    def poke() -> None:
        if lane.running is not None:
            lane.running.poke()

    waited = queueing.returned_by_abort(lane)
    returned = tuple(item.shown() for item in waited)
    writes: list[Write] = [SetValue(addresses.op_state(id), codec.encode(after)), *voiding(operation)]
    writes += queueing.abort_writes(lane, id, waited)
    return Decision(writes, "abort", publish, poke)


def _receipt(operation: OpenOperation, *, newly_requested: bool) -> AbortReceipt:
    return AbortReceipt(
        operation_id=operation.id,
        newly_requested=newly_requested,
        status="cancel_requested",
        returned=operation.returned,
    )


def _receipt_of(record: OperationResult) -> AbortReceipt:
    return AbortReceipt(
        operation_id=record.operation_id, newly_requested=False, status=record.status, returned=record.returned
    )
