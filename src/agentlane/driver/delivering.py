"""Delivering results of calls whose tools returned without one: each a step of the lane's line, used once."""

from __future__ import annotations

from typing import Any, NoReturn

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import Tools, WaitingExternal
from agentlane.data.reads import id_text
from agentlane.driver import line
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.questions import held_outcomes
from agentlane.driver.records import operation_record
from agentlane.driver.tool_results import Sealed, seal_given
from agentlane.errors import ApprovalNotPending
from agentlane.ids import call_index
from agentlane.machine.facts import Outcome, OutcomesArrived
from agentlane.machine.table import step
from agentlane.storage.contract import Commit


async def deliver(lane: LaneCore, agent: Agent[Any, Any], call_id: str, result: Any) -> None:
    """Commit the result of a call that waits for it. See ``AgentLane.deliver``."""
    lane.check_writable()
    id = id_text(call_id)
    await lane.load()
    found = None if id is None else _waiting(lane, id)
    if id is None or found is None:
        await _no_longer_waiting(lane, call_id)
    operation, index = found
    call = operation.calls[index]
    tool = agent.tools.get(call.name)
    own_limit = None if tool is None else tool.options.max_result_bytes
    sealed = seal_given(call, result, own_limit or operation.config.limits.max_result_bytes)
    await lane.line.run(lambda: _deliver(lane, agent, id, sealed))


def _waiting(lane: LaneCore, id: str) -> tuple[OpenOperation, int] | None:
    operation = lane.operation
    if operation is None or not isinstance(operation.state, Tools) or operation.cancelled:
        return None
    index = call_index(operation.state.answer, id)
    if index is None or index >= len(operation.state.calls):
        return None
    return (operation, index) if isinstance(operation.state.calls[index], WaitingExternal) else None


def _deliver(lane: LaneCore, agent: Agent[Any, Any], id: str, sealed: Sealed) -> line.Decision[None]:
    found = _waiting(lane, id)
    if found is None:
        _not_waiting(lane, id)
    operation, index = found
    now = lane.runtime.clock.now_ms()
    draft = OperationDraft(operation, lane.name, lane.tip, now=now, inbox=lane.inbox)
    draft.boundaries.append("delivery")
    outcome = Outcome(index, sealed.message, sealed.terminate)
    fact = OutcomesArrived((outcome,), held_outcomes(lane, operation, agent))
    draft.take(step(draft.state, fact, operation.rules), {index: sealed})

    def publish(commit: Commit) -> None:
        draft.hand_over()
        lane.take_path(draft.path)
        lane.poke()

    return line.Decision(draft.writes(), draft.boundary, publish)


async def _no_longer_waiting(lane: LaneCore, call_id: object) -> NoReturn:
    """Raise, with what became of a call of an operation that is over: its result is the entry of its id."""
    id = id_text(call_id)
    rows = () if id is None else await lane.runtime.storage.entries([id])
    bodies = [codec.BODY.decode(row.payload, f"entry {row.id}") for row in rows if row is not None]
    if any(isinstance(body, ToolResultMessage) for body in bodies):
        _not_waiting(lane, call_id, "placed")
    _not_waiting(lane, call_id)


def _not_waiting(lane: LaneCore, call_id: object, became: str = "unknown") -> NoReturn:
    operation = lane.operation
    for call in () if operation is None else operation_record(operation).calls:
        if call.call_id == call_id:
            became = "aborting" if call.status == "waiting_external" else call.status
    raise ApprovalNotPending(
        f"call {call_id} of lane {lane.name!r} does not wait for its result ({became}); a result is delivered once, "
        "when the tool has returned PendingResult()",
        call_id=call_id,
        became=became,
    )
