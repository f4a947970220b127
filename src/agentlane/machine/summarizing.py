"""Transitions of summaries: of compactions, those that somebody asked for and those of a run, and of navigations.

A summary is an effect like an answer: intended, tried again, recovered and aborted. What becomes of it:

- A compaction that somebody asked for ends with it, and fails without it.
- A run whose next request would be too long goes on with it, and goes on without it as well.
- A run whose request *was* too long asks once more with it, and without it fails with the provider's error.
- A navigation that takes a summary along moves in the same step, and does not move without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from agentlane.data.messages import AssistantMessage, ErrorInfo
from agentlane.data.operations import Checkpoint, Navigating, Summarizing, SummaryReason, SummaryWait
from agentlane.data.usage import Usage
from agentlane.machine.facts import (
    Change,
    DropPreparation,
    End,
    Fact,
    IllegalStep,
    MoveLane,
    Navigated,
    PlaceSummary,
    RequestSummary,
    SpendSummary,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.rules import Rules, backoff_ms, error_of, require, turns_of
from agentlane.machine.summaries import checked_summary

SHORTER_MAX = 6
"""How often what a summary is made of is halved where its own request is too long."""

CONTEXT_OVERFLOW = "context_overflow"

Before: TypeAlias = Checkpoint | Summarizing | SummaryWait


def intend_summary(state: Checkpoint | SummaryWait, fact: SummaryIntended, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "nothing is intended once an abort is asked for", state)
    if isinstance(state, Checkpoint):
        _check_reason(state, fact.reason)
        after = Summarizing(
            task=fact.task,
            reason=fact.reason,
            response_id=fact.response_id,
            attempt=1,
            trigger=state.trigger,
            model_index=fact.model_index or 0,
            turn=state.turn,
            answer=state.answer,
            overflow=state.overflow,
            unsummarized=state.unsummarized,
            placed=state.placed,
        )
    else:
        require((fact.task, fact.reason) == (state.task, state.reason), "another summary is waited for", state)
        after = Summarizing(
            task=state.task,
            reason=state.reason,
            response_id=fact.response_id,
            attempt=state.attempt + 1,
            trigger=state.trigger,
            retries=state.retries,
            restarts=state.restarts,
            shorter=state.shorter,
            model_index=state.model_index if fact.model_index is None else fact.model_index,
            turn=state.turn,
            answer=state.answer,
            overflow=state.overflow,
            unsummarized=state.unsummarized,
            placed=state.placed,
        )
    return Step(after, effects=(_request(after),), boundary="summary_intent")


def give_summary(state: Checkpoint, fact: SummaryGiven, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "nothing is placed once an abort is asked for", state)
    _check_reason(state, fact.reason)
    require(bool(fact.text), "the summary is empty", state)
    return _placed(state, fact.reason, fact.task, (), PlaceSummary(fact.task, fact.text))


def refuse_summary(state: Checkpoint | SummaryWait, fact: SummaryRefused, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the run ends aborted", state)  # I8
    if isinstance(state, SummaryWait):
        require(fact.reason == state.reason, "another summary is waited for", state)
        return _without(state, state.reason, fact.error, (DropPreparation(state.task),), "summary_failed")
    _check_reason(state, fact.reason)
    if fact.reason == "threshold":  # it may be asked about the next trigger
        return Step(replace(state, compacted=True), boundary="summary_refused")
    return _without(state, fact.reason, fact.error, (), "summary_refused")


def take_summary(state: Summarizing, fact: Summarized, rules: Rules) -> Step:
    message = fact.message
    cancelled = state.cancel_requested_at is not None
    if cancelled and message.stop_reason == "error":
        message = replace(message, stop_reason="aborted")
    # A request that this pass ended without being asked to has no answer: closing settles nothing.
    require(cancelled or message.stop_reason != "aborted", "only an abort makes an answer aborted", state)
    spent = SpendSummary(state.response_id, message)
    if cancelled:
        return _aborted(state, spent, "summary_failed")
    found = error_of(message) if message.stop_reason == "error" else checked_summary(message)
    if isinstance(found, str):
        spent = SpendSummary(state.response_id, message, state.task)
        placed = PlaceSummary(state.task, found, message.model)
        return _placed(state, state.reason, state.task, (spent,), placed)
    if found.code == CONTEXT_OVERFLOW and state.shorter < SHORTER_MAX and not fact.shortest:
        return _wait(state, fact.now, found, spent, shorter=state.shorter + 1)
    if found.retryable and state.retries + 1 < rules.retry.attempts:
        if fact.fallback is not None:  # what this model asked for does not bind another one
            return _wait(replace(state, model_index=fact.fallback), fact.now, found, spent, retries=state.retries + 1)
        delay_ms = backoff_ms(rules.retry, state.retries, fact.jitter, found.retry_after_ms)
        return _wait(state, fact.now + delay_ms, found, spent, retries=state.retries + 1)
    return _without(state, state.reason, found, (spent, DropPreparation(state.task)), "summary_failed")


def interrupt_summary(state: Summarizing, fact: SummaryInterrupted, rules: Rules) -> Step:
    error = ErrorInfo(code="interrupted", message=INTERRUPTED, retryable=True)
    message = AssistantMessage(content=(), stop_reason="error", model=fact.model, usage=Usage(), error=error)
    spent = SpendSummary(state.response_id, message)
    if state.cancel_requested_at is not None:
        return _aborted(state, spent, "recovered_summary")
    restarts = state.restarts + 1
    dropped = (spent, DropPreparation(state.task))
    if restarts > rules.limits.max_restarts:
        text = f"the process stopped {restarts} times during one summary; it is not asked for again"
        ended = ErrorInfo(code="restarts_exhausted", message=text)
        return _without(state, state.reason, ended, dropped, "recovered_summary")
    if fact.unavailable is not None:
        return _without(state, state.reason, fact.unavailable, dropped, "recovered_summary")
    if state.restarts > 0:
        delay_ms = backoff_ms(rules.retry, restarts - 2, fact.jitter, None)
        waiting = _wait(state, fact.now + delay_ms, error, spent, restarts=restarts)
        return Step(waiting.state, waiting.changes, boundary="recovered_summary")
    after = replace(
        state,
        response_id=fact.response_id,
        attempt=state.attempt + 1,
        restarts=restarts,
        model_index=state.model_index if fact.model_index is None else fact.model_index,
    )
    return Step(after, (spent,), (_request(after),), boundary="recovered_summary")


INTERRUPTED = "the process stopped while a summary was being written; what the provider charged is not known"


def move_lane(state: Navigating, fact: Navigated, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the lane stays where it is", state)  # I8
    return Step(None, (MoveLane(), End("completed", state.turn, state.answer)), boundary="navigation")


def finish_waiting(state: SummaryWait | Navigating, fact: Fact, rules: Rules) -> Step:
    require(state.cancel_requested_at is not None, "the operation is not about to end", state)
    return Step(None, (*_dropped(state), End("aborted", turns_of(state), state.answer)), boundary="terminal")


def fail_waiting(state: SummaryWait | Navigating, fact: Any, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: it ends aborted", state)  # I8
    ended = End("failed", turns_of(state), state.answer, code=fact.error.code, error=fact.error)
    return Step(None, (*_dropped(state), ended), boundary="terminal")


def _check_reason(state: Checkpoint, reason: SummaryReason) -> None:
    if state.next == "respond":
        looked = state.compacted or state.unsummarized
        require(reason == "threshold" and not looked, "nothing is to be summarized here", state)
    elif state.next == "summarize":
        asked = ("overflow",) if state.overflow is not None else ("manual", "navigation")
        require(reason in asked, "a summary for another reason is asked for", state)
    else:
        raise IllegalStep(f"the operation is about to end: {state!r}")


def _placed(state: Before, reason: SummaryReason, task: str, changes: tuple[Change, ...], placed: PlaceSummary) -> Step:
    """What comes after the summary, in the commit that places it."""
    if reason == "navigation":
        ended = End("completed", state.turn, state.answer)
        return Step(None, (*changes, MoveLane(), placed, ended), boundary="summary")
    after = Checkpoint(
        next="end" if reason == "manual" else "respond",
        trigger=task if reason == "manual" else state.trigger,
        turn=state.turn,
        answer=state.answer,
        cancel_requested_at=state.cancel_requested_at,
        overflow=state.overflow,
        compacted=reason != "manual",
        unsummarized=state.unsummarized,
        placed=state.placed,
    )
    return Step(after, (*changes, placed), boundary="summary")


def _without(
    state: Before, reason: SummaryReason, error: ErrorInfo, changes: tuple[Change, ...], boundary: str
) -> Step:
    """There is no summary. Only a run that would have asked anyway goes on."""
    if reason == "threshold":
        after = Checkpoint(
            next="respond",
            trigger=state.trigger,
            turn=state.turn,
            answer=state.answer,
            overflow=state.overflow,
            compacted=True,
            unsummarized=True,
            placed=state.placed,
        )
        return Step(after, changes, boundary=boundary)
    if reason == "overflow" and state.overflow is not None:
        told = f"{state.overflow.message}; what it showed could not be summarized: {error.message}"
        error = replace(state.overflow, message=told)
        ended = End("failed", turns_of(state), state.trigger, code=error.code, error=error)
    else:
        ended = End("failed", state.turn, state.answer, code=error.code, error=error)
    return Step(None, (*changes, ended), boundary=boundary)


def _aborted(state: Summarizing, spent: SpendSummary, boundary: str) -> Step:
    ended = End("aborted", turns_of(state), state.answer)
    return Step(None, (spent, DropPreparation(state.task), ended), boundary=boundary)


def _wait(state: Summarizing, not_before: int, error: ErrorInfo, spent: SpendSummary, **changed: int) -> Step:
    waiting = SummaryWait(
        task=state.task,
        reason=state.reason,
        attempt=state.attempt,
        trigger=state.trigger,
        not_before=not_before,
        error=error,
        retries=changed.get("retries", state.retries),
        restarts=changed.get("restarts", state.restarts),
        shorter=changed.get("shorter", state.shorter),
        model_index=state.model_index,
        turn=state.turn,
        answer=state.answer,
        overflow=state.overflow,
        unsummarized=state.unsummarized,
        placed=state.placed,
    )
    return Step(waiting, (spent,), boundary="summary_failed")


def _dropped(state: SummaryWait | Navigating) -> tuple[Change, ...]:
    return (DropPreparation(state.task),) if isinstance(state, SummaryWait) else ()


def _request(state: Summarizing) -> RequestSummary:
    return RequestSummary(state.task, state.response_id, state.attempt, state.model_index, state.shorter)


SUMMARY_TABLE: Mapping[tuple[type, type], Any] = {
    (Checkpoint, SummaryIntended): intend_summary,
    (SummaryWait, SummaryIntended): intend_summary,
    (Checkpoint, SummaryGiven): give_summary,
    (Checkpoint, SummaryRefused): refuse_summary,
    (SummaryWait, SummaryRefused): refuse_summary,
    (Summarizing, Summarized): take_summary,
    (Summarizing, SummaryInterrupted): interrupt_summary,
    (Navigating, Navigated): move_lane,
}
"""Those of their transitions that no other state has."""
