"""Answering what waits for people: each answer one step of the lane's line, used once."""

from __future__ import annotations

from typing import Any, NoReturn

from agentlane.agent import Agent
from agentlane.data.approvals import Approval, Decision, arguments_digest
from agentlane.data.border import clean_object, clean_text
from agentlane.data.reads import id_text
from agentlane.driver import line
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.questions import expired_no, held_outcomes, is_expired
from agentlane.driver.tool_results import Sealed, seal_message
from agentlane.driver.verbs import stored_result
from agentlane.errors import ApprovalNotPending, InvalidMessage
from agentlane.machine.facts import ApprovalGiven, Outcome, OutcomesArrived
from agentlane.machine.outcomes import EXPIRED, INTERRUPTED, denied, error_result, interrupted
from agentlane.machine.table import step
from agentlane.storage.contract import Commit
from agentlane.tool import ArgumentsError

REASON_CHARACTERS_MAX = 10_000


async def decide(
    lane: LaneCore,
    agent: Agent[Any, Any],
    approval_id: str,
    *,
    allow: bool,
    reason: str | None,
    by: str | None,
    args: dict[str, Any] | None,
) -> Decision:
    """Commit the answer to an approval. See ``AgentLane.decide``."""
    lane.check_writable()
    if type(allow) is not bool:
        raise InvalidMessage(f"allow={allow!r}: True or False is needed here")
    reason, by = text_or_none(reason, "reason"), text_or_none(by, "by")
    id = id_text(approval_id)
    await lane.load()
    found = None if id is None else open_question(lane, id)
    if id is None or found is None:
        await no_longer_pending(lane, approval_id)
    if found[2].kind == "question":
        raise InvalidMessage(
            f"{id} is a question of the tool {found[2].tool!r}, which is for lane.answer(), with a value",
            path="approval_id",
        )
    given = None if args is None else _checked(agent, found[2], args, allow=allow)
    try:
        decision: Decision = await lane.line.run(
            lambda: _decide(lane, agent, id, allow=allow, reason=reason, by=by, args=given)
        )
    except Gone:
        await no_longer_pending(lane, id)
    if decision.expired:
        await no_longer_pending(lane, id)
    return decision


class Gone(Exception):
    """It was answered, or became void, before the step came to the head of the line."""


def open_question(lane: LaneCore, id: str) -> tuple[OpenOperation, int, Approval] | None:
    """What waits for a person under this id: whose it is, the call, and the question."""
    operation = lane.operation
    if operation is not None:
        for index, approval in operation.pending.items():
            if approval.approval_id == id:
                return operation, index, approval
    return None


def _decide(
    lane: LaneCore,
    agent: Agent[Any, Any],
    id: str,
    *,
    allow: bool,
    reason: str | None,
    by: str | None,
    args: dict[str, Any] | None,
) -> line.Decision[Decision]:
    found = open_question(lane, id)
    if found is None:
        raise Gone
    operation, index, approval = found
    now = lane.runtime.clock.now_ms()
    if is_expired(approval, now):
        decision = expired_no(approval, now)
    else:
        decision = Decision(
            approval_id=id,
            call_id=approval.call_id,
            tool=approval.tool,
            kind=approval.kind,
            allow=allow,
            digest=approval.digest if args is None else arguments_digest(args),
            at=now,
            by=by,
            reason=reason,
            changed=args is not None,
        )
    draft = OperationDraft(operation, lane.name, lane.tip, now=now, inbox=lane.inbox)
    draft.decide(index, decision, args)
    if decision.allow:
        draft.take(step(draft.state, ApprovalGiven(index, id), operation.rules))
    else:
        sealed = _refusal(operation, index, approval, decision)
        outcome = Outcome(index, sealed.message)
        fact = OutcomesArrived((outcome,), held_outcomes(lane, operation, agent))
        draft.take(step(draft.state, fact, operation.rules), {index: sealed})

    def publish(commit: Commit) -> Decision:
        draft.hand_over()
        lane.take_path(draft.path)
        lane.poke()
        return decision

    return line.Decision(draft.writes(), draft.boundary, publish)


def _refusal(operation: OpenOperation, index: int, approval: Approval, decision: Decision) -> Sealed:
    """The result of a call that a person, or nobody, did not allow."""
    call = operation.calls[index]
    if approval.kind == "replay":
        return seal_message(interrupted(call, INTERRUPTED, operation.progress.get(index, ())))
    return seal_message(error_result(call, EXPIRED) if decision.expired else denied(call, decision.reason))


def _checked(agent: Agent[Any, Any], approval: Approval, args: object, *, allow: bool) -> dict[str, Any]:
    """Arguments given with a yes, checked by the tool if it is here."""
    if not allow:
        raise InvalidMessage("args: arguments go with a yes; a no runs nothing")
    if approval.kind == "replay":
        raise InvalidMessage("args: a call that began runs again with the arguments that it began with")
    clean = clean_object(args, "args")
    tool = agent.tools.get(approval.tool)
    if tool is not None:
        try:
            tool.check(clean, None)
        except ArgumentsError as error:
            raise InvalidMessage(f"args: {error}", path="args") from error
    return clean


def text_or_none(value: object, path: str) -> str | None:
    """Clean text of bounded length, or nothing; ``InvalidMessage`` for anything else."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidMessage(f"{path}: text is needed here, not {type(value).__name__}", path=path)
    if len(value) > REASON_CHARACTERS_MAX:
        raise InvalidMessage(f"{path}: {len(value)} characters; at most {REASON_CHARACTERS_MAX} are taken", path=path)
    return clean_text(value, path)


async def no_longer_pending(lane: LaneCore, approval_id: object) -> NoReturn:
    """Raise, with what became of the approval as far as this lane knows."""
    operation, last = lane.operation, None if lane.state is None else lane.state.last
    decisions = () if operation is None else operation.decisions
    record = None if last is None else await stored_result(lane, last)
    for decision in (*decisions, *(() if record is None else record.decisions)):
        if decision.approval_id == approval_id:
            became = "expired" if decision.expired else "allowed" if decision.allow else "denied"
            became = "answered" if decision.kind == "question" else became
            kind = "question" if decision.kind == "question" else "approval"
            by = "" if decision.by is None else f" by {decision.by}"
            raise ApprovalNotPending(
                f"{kind} {approval_id} of lane {lane.name!r} is {became} already{by}, at {decision.at}; an answer is "
                "used once",
                approval_id=approval_id,
                became=became,
                at=decision.at,
                by=decision.by,
            )
    raise ApprovalNotPending(
        f"lane {lane.name!r} has no open approval or question {approval_id}: it is unknown, or void since its "
        "operation was aborted or has ended; session.approvals() lists those that are open",
        approval_id=approval_id,
        became="unknown",
    )
