"""What waits for people: approvals made from calls, what their answers write, and what a wait for them is."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.data import addresses
from agentlane.data.approvals import Approval, Decision, arguments_digest
from agentlane.data.messages import ToolCallPart, UserPart
from agentlane.data.operations import (
    EffectPending,
    OperationState,
    OutcomeReady,
    Placed,
    RetryWait,
    SummaryWait,
    Tools,
    WaitingExternal,
)
from agentlane.data.results import ApprovalReason, ExternalReason, QuestionReason, RetryReason, WaitReason
from agentlane.data.writes import DeleteValue, Write
from agentlane.driver.amounts import is_much
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.tool_questions import Question
from agentlane.ids import call_id


def approval_of(
    operation: OpenOperation,
    state: Tools,
    index: int,
    approval_id: str,
    call: ToolCallPart,
    agent: Agent[Any, Any],
    *,
    now: int,
) -> Approval:
    """The question whether a call may start, or run again; ``call`` has the arguments that it would run with."""
    again = isinstance(state.calls[index], EffectPending)
    tool = agent.tools.get(call.name)
    expires_ms = agent.approval_expires_ms
    if tool is not None and tool.options.approval_expires_ms is not None:
        expires_ms = tool.options.approval_expires_ms
    question = f"May the tool {call.name!r} run?"
    if again:
        question = (
            f"The tool {call.name!r} was about to run when the process stopped, and no outcome was saved. It may not "
            "have started, may have run in part, or may have finished. May it run again?"
        )
    return Approval(
        approval_id=approval_id,
        lane=operation.meta.lane,
        operation_id=operation.id,
        call_id=call_id(state.answer, index),
        tool=call.name,
        kind="replay" if again else "call",
        question=question,
        arguments=call.arguments,
        digest=arguments_digest(call.arguments),
        progress=operation.progress.get(index, ()) if again else (),
        asked_at=now,
        expires_at=None if expires_ms is None else now + expires_ms,
    )


def question_of(
    operation: OpenOperation,
    answer: str,
    index: int,
    question_id: str,
    call: ToolCallPart,
    asked: Question,
    progress: tuple[UserPart, ...],
    *,
    now: int,
) -> Approval:
    """What a tool has asked, as it is kept until somebody answers; ``call`` has the arguments that it ran with."""
    return Approval(
        approval_id=question_id,
        lane=operation.meta.lane,
        operation_id=operation.id,
        call_id=call_id(answer, index),
        tool=call.name,
        kind="question",
        name=asked.name,
        question=asked.text,
        arguments=call.arguments,
        digest=arguments_digest(call.arguments),
        progress=progress,
        asked_at=now,
    )


def is_expired(approval: Approval, now: int) -> bool:
    """Whether the time for an answer is over."""
    return approval.expires_at is not None and now >= approval.expires_at


def expired_no(approval: Approval, now: int) -> Decision:
    """The no that comes of nobody's answer."""
    return Decision(
        approval_id=approval.approval_id,
        call_id=approval.call_id,
        tool=approval.tool,
        kind=approval.kind,
        allow=False,
        digest=approval.digest,
        at=now,
        expired=True,
    )


def voiding(operation: OpenOperation) -> list[Write]:
    """What an abort writes of the questions that are open: they are void."""
    return [DeleteValue(addresses.pending_approval(each.approval_id)) for each in operation.pending.values()]


def held_outcomes(lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> frozenset[int]:
    """Calls whose outcome a step from outside must not place: hooks have to speak first, and the pass asks them; or
    what is staged already fills a commit or more, and the pass places it in as many as it takes."""
    state = operation.state
    if not isinstance(state, Tools):
        return frozenset()
    first = next((call for call in state.calls if not isinstance(call, Placed)), None)
    driving = None if lane.running is None else lane.running.agent
    agents = [each for each in (agent, lane.agent, driving) if each is not None]
    hooked = any(hook.point == "after_tool" for each in agents for hook in each.hooks)
    held = hooked or isinstance(first, OutcomeReady) or is_much(operation.staged)
    return frozenset(range(len(state.calls))) if held else frozenset()


def next_expiry(operation: OpenOperation) -> int | None:
    """When the first of the open questions expires."""
    times = [each.expires_at for each in operation.pending.values() if each.expires_at is not None]
    return min(times, default=None)


def wait_reasons(operation: OpenOperation, state: OperationState) -> tuple[WaitReason, ...]:
    """What an operation waits for, in the order of its calls."""
    if isinstance(state, RetryWait | SummaryWait):
        return (RetryReason(not_before=state.not_before, attempt=state.attempt + 1, error=state.error),)
    reasons: list[WaitReason] = []
    for index, call in enumerate(state.calls if isinstance(state, Tools) else ()):
        id = call_id(str(state.answer), index)
        if isinstance(call, WaitingExternal):
            reasons.append(ExternalReason(call_id=id, tool=operation.calls[index].name))
        elif index in operation.pending:
            asked = operation.pending[index]
            if asked.kind == "question":
                reasons.append(
                    QuestionReason(question_id=asked.approval_id, call_id=id, tool=asked.tool, name=asked.name)
                )
                continue
            reasons.append(
                ApprovalReason(approval_id=asked.approval_id, call_id=id, tool=asked.tool, expires_at=asked.expires_at)
            )
    return tuple(reasons)
