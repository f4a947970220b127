"""Every transition of an operation in one table; rows about a batch and about summaries come from modules beside.

Rules of this file
- ``TABLE`` is the whole machine: a pair of state and fact that is not a key of it is illegal and moves nothing.
- A transition is a pure function ``(state, fact, rules) -> Step``. No clock, chance, I/O, registry or await.
- A transition that would change nothing is a bug and raises; so does one whose fact does not fit the state's details.
- The state that comes out never depends on states before the one that went in.
- ``cancel_requested_at`` is never cleared: once set, every path from there ends in ``aborted``.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import (
    CallState,
    Checkpoint,
    Generating,
    Navigating,
    OperationState,
    Planned,
    RetryWait,
    Summarizing,
    SummaryWait,
    Tools,
)
from agentlane.ids import correction_id
from agentlane.machine.batches import BATCH_TABLE, Transition
from agentlane.machine.facts import (
    AbortRequested,
    Answered,
    End,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    IllegalStep,
    Interrupted,
    ModelUnavailable,
    OutputRefused,
    PlaceAnswer,
    PlaceCorrection,
    PlaceInput,
    PlaceItems,
    QueuedPlaced,
    RequestIntended,
    RequestModel,
    Step,
)
from agentlane.machine.rules import Rules, backoff_ms, error_of, require, turns_of
from agentlane.machine.summarizing import CONTEXT_OVERFLOW, SUMMARY_TABLE, fail_waiting, finish_waiting


def step(state: OperationState, fact: Fact, rules: Rules) -> Step:
    """The transition that ``fact`` takes ``state`` through; without one ``IllegalStep`` is raised and nothing moves."""
    transition = TABLE.get((type(state), type(fact)))
    if transition is None:
        raise IllegalStep(f"{type(fact).__name__} has no transition from {state!r}")
    return transition(state, fact, rules)


# Model requests.


def _intend_request(state: Checkpoint | RetryWait, fact: RequestIntended, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "no request is intended once an abort is asked for", state)
    if isinstance(state, Checkpoint):
        require(state.next == "respond", "the run is about to finish", state)
        after = Generating(
            response_id=fact.response_id,
            attempt=1,
            model_index=fact.model_index or 0,
            turn=state.turn + 1,
            answer=state.answer,
            overflow=state.overflow,
            compacted=state.compacted,
            unsummarized=state.unsummarized,
        )
    else:
        after = Generating(
            response_id=fact.response_id,
            attempt=state.attempt + 1,
            retries=state.retries,
            restarts=state.restarts,
            model_index=state.model_index if fact.model_index is None else fact.model_index,
            turn=state.turn,
            answer=state.answer,
            overflow=state.overflow,
            compacted=state.compacted,
            unsummarized=state.unsummarized,
        )
    return Step(after, effects=(_request(after),), boundary="intent")


def _answer(state: Generating, fact: Answered, rules: Rules) -> Step:
    message = fact.message
    cancelled = state.cancel_requested_at is not None
    if cancelled and message.stop_reason == "error":
        message = replace(message, stop_reason="aborted")
    # An answer that this pass aborted without being asked to is not an answer: closing settles nothing.
    require(cancelled or message.stop_reason != "aborted", "only an abort makes an answer aborted", state)
    placed = PlaceAnswer(state.response_id, message)
    if message.stop_reason == "aborted":
        return Step(None, (placed, _end(state, "aborted", state.answer)), boundary="settlement")
    if message.stop_reason == "error":
        return _fail_or_retry(state, fact, placed, rules)
    asked = message.calls
    if asked:
        calls: tuple[CallState, ...] = (Planned(),) * len(asked)
        after: OperationState = Tools(
            calls=calls,
            answer=state.response_id,
            turn=state.turn,
            cancel_requested_at=state.cancel_requested_at,
            unsummarized=state.unsummarized,
        )
    else:
        after = Checkpoint(
            next="finish",
            trigger=state.response_id,
            code="length" if message.stop_reason == "length" else None,
            turn=state.turn,
            answer=state.response_id,
            cancel_requested_at=state.cancel_requested_at,
            unsummarized=state.unsummarized,
        )
    return Step(after, (placed,), boundary="settlement")


def _fail_or_retry(state: Generating, fact: Answered, placed: PlaceAnswer, rules: Rules) -> Step:
    error = error_of(fact.message)
    if error.code == CONTEXT_OVERFLOW and fact.summarize and state.overflow is None:
        after = Checkpoint(
            next="summarize",
            trigger=state.response_id,
            turn=state.turn - 1,  # the next request is about the same
            answer=state.answer,
            overflow=error,
            unsummarized=state.unsummarized,
        )
        return Step(after, (placed,), boundary="settlement")
    if error.retryable and state.retries + 1 < rules.retry.attempts:
        if fact.fallback is not None:  # what this model asked for does not bind another one
            delay_ms = 0
            state = replace(state, model_index=fact.fallback)
        else:
            delay_ms = backoff_ms(rules.retry, state.retries, fact.jitter, error.retry_after_ms)
        waiting = _retry_wait(state, fact.now + delay_ms, error, retries=state.retries + 1, restarts=state.restarts)
        return Step(waiting, (placed,), boundary="settlement")
    ended = _end(state, "failed", state.response_id, code=error.code, error=error)
    return Step(None, (placed, ended), boundary="settlement")


def _interrupt(state: Generating, fact: Interrupted, rules: Rules) -> Step:
    message = fact.message
    if state.cancel_requested_at is not None:
        aborted = PlaceAnswer(state.response_id, replace(message, stop_reason="aborted"))
        return Step(None, (aborted, _end(state, "aborted", state.answer)), boundary="recovered_response")
    placed = PlaceAnswer(state.response_id, message)
    restarts = state.restarts + 1
    if restarts > rules.limits.max_restarts:
        error = ErrorInfo(
            code="restarts_exhausted",
            message=f"the process stopped {restarts} times during one turn; it is not asked again",
        )
        ended = _end(state, "failed", state.response_id, code=error.code, error=error)
        return Step(None, (placed, ended), boundary="recovered_response")
    if fact.unavailable is not None:
        ended = _end(state, "failed", state.response_id, code=fact.unavailable.code, error=fact.unavailable)
        return Step(None, (placed, ended), boundary="recovered_response")
    if not asks_at_once(state, rules):
        delay_ms = backoff_ms(rules.retry, restarts - 2, fact.jitter, None)
        waiting = _retry_wait(state, fact.now + delay_ms, error_of(message), retries=state.retries, restarts=restarts)
        return Step(waiting, (placed,), boundary="recovered_response")
    after = replace(
        state,
        response_id=fact.response_id,
        attempt=state.attempt + 1,
        restarts=restarts,
        model_index=state.model_index if fact.model_index is None else fact.model_index,
    )
    return Step(after, (placed,), (_request(after),), boundary="recovered_response")


def asks_at_once(state: Generating, rules: Rules) -> bool:
    """Whether an interrupted request is followed by the next one in the same step; later restarts wait first."""
    return state.restarts == 0 and rules.limits.max_restarts > 0 and state.cancel_requested_at is None


def _unavailable(state: Checkpoint | RetryWait, fact: ModelUnavailable, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the run ends aborted", state)  # I8
    require(isinstance(state, RetryWait) or state.next == "respond", "the run is about to finish", state)
    ended = _end(state, "failed", state.answer, code=fact.error.code, error=fact.error)
    return Step(None, (ended,), boundary="terminal")


# Queued input.


def _place_queued(state: Checkpoint, fact: QueuedPlaced, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "nothing is placed once an abort is asked for", state)
    require(bool(fact.items), "nothing is placed", state)
    require(state.next != "summarize", "what is said waits for the summary", state)
    require(state.next != "end" or fact.trigger is None, "a compaction asks no model", state)
    after = state
    if fact.trigger is not None:
        after = Checkpoint(
            next="respond",
            trigger=fact.trigger,
            turn=state.turn,
            answer=state.answer,
            placed=True,
            more=fact.more,
            overflow=state.overflow,
            unsummarized=state.unsummarized,
        )
    return Step(after, (PlaceItems(fact.items),), boundary="placement")


# Ends.


def _request_abort(state: OperationState, fact: AbortRequested, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for already", state)
    return Step(replace(state, cancel_requested_at=fact.at), boundary="abort")


def _follow_up(state: Checkpoint, fact: FollowedUp, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the run ends aborted", state)  # I8
    require(state.next == "finish", "the run is not about to finish", state)
    require(bool(fact.messages), "there is nothing to say", state)
    after = replace(_going_on(state), trigger=fact.messages[-1][0])
    return Step(after, tuple(PlaceInput(id, message) for id, message in fact.messages), boundary="follow_up")


def _finish(state: Checkpoint | RetryWait, fact: Finished, rules: Rules) -> Step:
    if state.cancel_requested_at is not None:  # I8
        return Step(None, (_end(state, "aborted", state.answer),), boundary="terminal")
    if not isinstance(state, Checkpoint) or state.next not in ("finish", "end"):
        raise IllegalStep(f"the run is not about to finish: {state!r}")
    return Step(None, (_end(state, "completed", state.answer, code=state.code),), boundary="terminal")


def _fail(state: Checkpoint | RetryWait, fact: Failed, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the run ends aborted", state)  # I8
    ended = _end(state, "failed", state.answer, code=fact.error.code, error=fact.error)
    return Step(None, (ended,), boundary="terminal")


def _refuse_output(state: Checkpoint, fact: OutputRefused, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort is asked for: the run ends aborted", state)  # I8
    if state.next != "finish" or state.answer is None:
        raise IllegalStep(f"no answer is about to end the run: {state!r}")
    after = replace(_going_on(state), trigger=correction_id(state.answer))
    return Step(after, (PlaceCorrection(state.answer, fact.message),), boundary="correction")


TABLE: dict[tuple[type, type], Transition] = {
    (Checkpoint, RequestIntended): _intend_request,
    (RetryWait, RequestIntended): _intend_request,
    (Generating, Answered): _answer,
    (Generating, Interrupted): _interrupt,
    (Checkpoint, ModelUnavailable): _unavailable,
    (RetryWait, ModelUnavailable): _unavailable,
    (Checkpoint, QueuedPlaced): _place_queued,
    (Checkpoint, AbortRequested): _request_abort,
    (Generating, AbortRequested): _request_abort,
    (RetryWait, AbortRequested): _request_abort,
    (Tools, AbortRequested): _request_abort,
    (Checkpoint, FollowedUp): _follow_up,
    (Checkpoint, Finished): _finish,
    (RetryWait, Finished): _finish,
    (Checkpoint, Failed): _fail,
    (RetryWait, Failed): _fail,
    (Checkpoint, OutputRefused): _refuse_output,
    (Summarizing, AbortRequested): _request_abort,
    (SummaryWait, AbortRequested): _request_abort,
    (Navigating, AbortRequested): _request_abort,
    (SummaryWait, Finished): finish_waiting,
    (Navigating, Finished): finish_waiting,
    (SummaryWait, Failed): fail_waiting,
    (Navigating, Failed): fail_waiting,
    **BATCH_TABLE,
    **SUMMARY_TABLE,
}


def _retry_wait(state: Generating, not_before: int, error: ErrorInfo, *, retries: int, restarts: int) -> RetryWait:
    return RetryWait(
        attempt=state.attempt,
        not_before=not_before,
        error=error,
        retries=retries,
        restarts=restarts,
        model_index=state.model_index,
        turn=state.turn,
        answer=state.answer,
        overflow=state.overflow,
        compacted=state.compacted,
        unsummarized=state.unsummarized,
    )


def _going_on(state: Checkpoint) -> Checkpoint:
    """Where the run would have finished, the model is asked once more."""
    return Checkpoint(
        next="respond",
        trigger=state.trigger,
        turn=state.turn,
        answer=state.answer,
        overflow=state.overflow,
        unsummarized=state.unsummarized,
    )


def _request(state: Generating) -> RequestModel:
    return RequestModel(state.response_id, state.attempt, state.model_index)


def _end(
    state: OperationState, status: Any, answer: str | None, *, code: str | None = None, error: ErrorInfo | None = None
) -> End:
    return End(status, turns_of(state), answer, code=code, error=error)
