"""Facts that a driver gone wrong might bring, and whether a state may take them: the table said once more, in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import assert_never, get_args

from agentlane.data.messages import user
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    Checkpoint,
    EffectGranted,
    EffectPending,
    Generating,
    Navigating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    ReplayPolicy,
    RetryWait,
    Summarizing,
    SummaryReason,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingQuestion,
)
from agentlane.machine.facts import (
    AbortRequested,
    Answered,
    ApprovalGiven,
    ApprovalsAsked,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    Interrupted,
    ModelUnavailable,
    Navigated,
    OutcomesArrived,
    OutputRefused,
    QuestionAnswered,
    QuestionsAsked,
    QueuedPlaced,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.rules import Rules
from tests.machine.build import CORRECTION, LIMIT, outcome
from tests.machine.world import ABORTED, FAILURES, SAVED_PREFIX, UNAVAILABLE, asked_id, question_id, request_id

POLICIES: tuple[ReplayPolicy, ...] = ("never", "safe", "idempotent", "ask")
REASONS: tuple[SummaryReason, ...] = get_args(SummaryReason)


def every_fact(state: OperationState) -> tuple[Fact, ...]:
    """One of each kind of fact, and those about calls in every way that may fit a state or not."""
    return (*_facts_about(len(state.calls) if isinstance(state, Tools) else 1), *_about_summaries(state))


@cache
def _facts_about(count: int) -> tuple[Fact, ...]:
    return tuple(_every_fact(count))


def _every_fact(count: int) -> Iterator[Fact]:
    yield RequestIntended(request_id(9, 9))
    yield Answered(FAILURES[0], now=0, jitter=0.0)
    yield Answered(ABORTED, now=0, jitter=0.0)
    yield Interrupted(SAVED_PREFIX, request_id(9, 9), now=0, jitter=0.0)
    yield AbortRequested(1)
    yield Finished()
    yield FollowedUp((("f-0001", user("more")),))
    yield FollowedUp(())
    yield ModelUnavailable(UNAVAILABLE)
    yield Failed(LIMIT)
    yield OutputRefused(CORRECTION)
    yield QueuedPlaced(())
    yield QueuedPlaced(("w0",))
    yield QueuedPlaced(("w0", "s0"), "s0")
    yield CallsIntended(())
    yield OutcomesArrived(())
    yield CallsNotBegun(())
    yield ApprovalsAsked(())
    yield ChildrenStarted(())
    yield CallsDeferred(())
    yield QuestionsAsked(())
    yield ReadyPlaced()
    yield ReadyPlaced((), frozenset(range(count)))
    for index in range(count):
        for policy in POLICIES:
            yield ReplayIntended(index, policy)
            yield CallsIntended(((index, policy),))
        yield ApprovalsAsked(((index, question_id(index)),))
        yield ApprovalGiven(index, question_id(index))
        yield ApprovalGiven(index, "another")
        yield QuestionsAsked(((index, asked_id(index, 1)),))
        for id in (asked_id(index, 1), asked_id(index, 2), asked_id(1 - index, 1), question_id(index), ""):
            yield QuestionAnswered(index, id)
        yield ReadyPlaced((outcome(index),))
        yield ReadyPlaced((outcome(index),), frozenset((index,)))
        yield OutcomesArrived((outcome(index), outcome(index)))
    for size in range(1, count + 1):
        for indices in combinations(range(count), size):
            yield CallsIntended(tuple((index, "safe") for index in indices))
            yield CallsNotBegun(indices)
            yield ChildrenStarted(indices)
            yield CallsDeferred(indices)
            yield OutcomesArrived(tuple(outcome(index) for index in indices))


def _about_summaries(state: OperationState) -> Iterator[Fact]:
    """Facts about summaries, for every reason where a summary may come next or is under way."""
    yield Summarized(FAILURES[0], now=0, jitter=0.0)
    yield Summarized(ABORTED, now=0, jitter=0.0)
    yield SummaryInterrupted("r9", now=0, jitter=0.0)
    yield Navigated()
    summarizes = isinstance(state, Checkpoint | SummaryWait)
    for reason in REASONS if summarizes else REASONS[:1]:
        for task in (state.task, "another") if isinstance(state, SummaryWait) else ("task",):
            yield SummaryIntended(task, reason, "r9")
        yield SummaryRefused(reason, LIMIT)
        yield SummaryGiven("task", reason, "mine")
        yield SummaryGiven("task", reason, "")


def fits(state: OperationState, fact: Fact, rules: Rules) -> bool:
    """Whether a state may take a fact."""
    cancelled = state.cancel_requested_at is not None
    asks = isinstance(state, RetryWait) or (isinstance(state, Checkpoint) and state.next == "respond")
    calls = state.calls if isinstance(state, Tools) else ()
    match fact:
        case RequestIntended() | ModelUnavailable():
            return asks and not cancelled
        case FollowedUp(messages):
            return isinstance(state, Checkpoint) and state.next == "finish" and not cancelled and bool(messages)
        case Failed():
            return isinstance(state, Checkpoint | RetryWait | SummaryWait | Navigating) and not cancelled
        case OutputRefused():
            finishes = isinstance(state, Checkpoint) and state.next == "finish" and state.answer is not None
            return finishes and not cancelled
        case Answered(message):
            return isinstance(state, Generating) and (cancelled or message.stop_reason != "aborted")
        case Interrupted():
            return isinstance(state, Generating)
        case AbortRequested():
            return not cancelled
        case QueuedPlaced(items):
            if not isinstance(state, Checkpoint) or state.next == "summarize":
                return False
            return bool(items) and not cancelled and (state.next != "end" or fact.trigger is None)
        case Finished():
            ends = isinstance(state, Checkpoint) and state.next in ("finish", "end")
            return ends or (cancelled and isinstance(state, Checkpoint | RetryWait | SummaryWait | Navigating))
        case SummaryIntended(task, reason):
            if isinstance(state, SummaryWait):
                return (task, reason) == (state.task, state.reason) and not cancelled
            return _may_summarize(state, reason)
        case SummaryGiven(_, reason, text):
            return isinstance(state, Checkpoint) and _may_summarize(state, reason) and bool(text)
        case SummaryRefused(reason):
            if isinstance(state, SummaryWait):
                return reason == state.reason and not cancelled
            return _may_summarize(state, reason)
        case Summarized(message):
            return isinstance(state, Summarizing) and (cancelled or message.stop_reason != "aborted")
        case SummaryInterrupted():
            return isinstance(state, Summarizing)
        case Navigated():
            return isinstance(state, Navigating) and not cancelled
        case CallsIntended(intended):
            may_start = bool(calls) and all(_may_start(calls[index], policy) for index, policy in intended)
            return may_start and bool(intended) and not cancelled
        case ChildrenStarted(started):
            planned = bool(calls) and all(isinstance(calls[index], Planned | Approved) for index in started)
            return planned and bool(started) and not cancelled
        case ReplayIntended(index, policy):
            call = calls[index] if calls else None
            if not isinstance(call, EffectPending) or cancelled:
                return False
            if "ask" in (policy, call.policy) and not _permitted(call):
                return False
            return "never" not in (policy, call.policy) and call.replays < rules.limits.max_replays
        case ApprovalsAsked(asked):
            return bool(asked and calls) and not cancelled and all(_may_be_asked(calls[i], rules) for i, _ in asked)
        case ApprovalGiven(index, approval):
            call = calls[index] if calls else None
            return isinstance(call, WaitingApproval) and call.approval == approval and not cancelled
        case QuestionsAsked(asked):
            return bool(asked and calls) and not cancelled and all(_may_ask(calls[index]) for index, _ in asked)
        case QuestionAnswered(index, question):
            call = calls[index] if calls else None
            return isinstance(call, WaitingQuestion) and call.question == question and not cancelled
        case OutcomesArrived(outcomes):
            named = [each.index for each in outcomes]
            open_ = calls and not any(isinstance(calls[index], OutcomeReady | Placed) for index in named)
            return bool(open_) and bool(named) and len(named) == len(set(named))
        case ReadyPlaced(changed, held):
            first = next((i for i, call in enumerate(calls) if not isinstance(call, Placed)), len(calls))
            end = first
            while end < len(calls) and isinstance(calls[end], OutcomeReady) and end not in held:
                end += 1
            return first < end and all(first <= each.index < end for each in changed)
        case CallsNotBegun(indices) | CallsDeferred(indices):
            begun = [calls[index] for index in indices] if calls else []
            return bool(begun) and all(isinstance(call, EffectPending) and not _permitted(call) for call in begun)
        case _:
            assert_never(fact)


def _may_summarize(state: OperationState, reason: SummaryReason) -> bool:
    if not isinstance(state, Checkpoint) or state.cancel_requested_at is not None:
        return False
    if state.next == "respond":
        return reason == "threshold" and not (state.compacted or state.unsummarized)
    wanted = {"overflow"} if state.overflow is not None else {"manual", "navigation"}
    return state.next == "summarize" and reason in wanted


def _permitted(call: object) -> bool:
    return isinstance(call, EffectGranted) and call.permit


def _may_ask(call: object) -> bool:
    return isinstance(call, EffectPending) and call.policy not in ("never", "ask") and not _permitted(call)


def _may_start(call: object, policy: ReplayPolicy) -> bool:
    if isinstance(call, AnsweredCall):
        return {policy, call.policy} <= {"safe", "idempotent"}
    return isinstance(call, Planned | Approved)


def _may_be_asked(call: object, rules: Rules) -> bool:
    if not isinstance(call, EffectPending):
        return isinstance(call, Planned | Approved)
    return call.policy != "never" and call.replays < rules.limits.max_replays and not _permitted(call)
