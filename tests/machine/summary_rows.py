"""The rows of the table about summaries and navigations, each with exact steps, and facts that do not fit there."""

from __future__ import annotations

from msgspec.structs import replace

from agentlane.data.messages import AssistantMessage, ErrorInfo, ModelIdentity, user
from agentlane.data.operations import (
    Checkpoint,
    Navigating,
    OperationState,
    Summarizing,
    SummaryWait,
)
from agentlane.data.usage import Usage
from agentlane.machine.facts import (
    AbortRequested,
    Change,
    DropPreparation,
    End,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    ModelUnavailable,
    MoveLane,
    Navigated,
    PlaceSummary,
    QueuedPlaced,
    RequestIntended,
    RequestSummary,
    SpendSummary,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from tests.machine.build import GONE, LATER, LIMIT, OVERLOADED, REFUSED, Row, answer, cancelled

TASK = "0000aaaa-0000-7000-8000-000000030000"
ASKED = "0000aaaa-0000-7000-8000-000000040000"
MODEL = ModelIdentity(provider="p", name="m")
TOO_LONG = ErrorInfo(code="context_overflow", message="too long")
DECLINED = ErrorInfo(code="compaction_declined", message="not now")

DUE = Checkpoint(next="respond", trigger="in", turn=2, answer="a0", placed=True)
OVERFLOWED = Checkpoint(next="summarize", trigger="e0", turn=2, answer="a0", overflow=TOO_LONG)
TO_COMPACT = Checkpoint(next="summarize", trigger="tip")
COMPACTED = Checkpoint(next="end", trigger=TASK)
MOVING = Navigating(target="there", label="left")
RUNNING = Summarizing(
    task=TASK,
    reason="threshold",
    response_id=ASKED,
    attempt=3,
    trigger="in",
    retries=1,
    restarts=1,
    shorter=1,
    model_index=1,
    turn=2,
    answer="a0",
    placed=True,
)
"""Of a run whose next request would be too long."""
AGAIN = SummaryWait(
    task=TASK,
    reason="threshold",
    attempt=3,
    trigger="in",
    not_before=900,
    error=OVERLOADED,
    retries=1,
    restarts=1,
    shorter=1,
    model_index=1,
    turn=2,
    answer="a0",
    placed=True,
)
"""The same between two attempts."""
SHORTENING = replace(RUNNING, reason="overflow", trigger="e0", overflow=TOO_LONG, placed=False)
"""Of a run whose request was too long."""
MANUAL = Summarizing(task=TASK, reason="manual", response_id=ASKED, attempt=1, trigger="tip")
LEAVING = Summarizing(task=TASK, reason="navigation", response_id=ASKED, attempt=1, trigger="tip")
LEAVING_LATER = SummaryWait(
    task=TASK, reason="navigation", attempt=1, trigger="tip", not_before=900, error=OVERLOADED, retries=1
)

WRITTEN = replace(answer(text=" what was said\n"), model=MODEL)
FAILED = answer(stop_reason="error", error=REFUSED)
BUSY = answer(stop_reason="error", error=OVERLOADED)
LONG = answer(stop_reason="error", error=TOO_LONG)
STOPPED = answer(text="wh", stop_reason="aborted")
SHOWN = PlaceSummary(TASK, "what was said", MODEL)
GONE_ON = Checkpoint(next="respond", trigger="in", turn=2, answer="a0", placed=True, compacted=True)
LOST = ErrorInfo(
    code="interrupted",
    message="the process stopped while a summary was being written; what the provider charged is not known",
    retryable=True,
)
LOST_ANSWER = AssistantMessage(content=(), stop_reason="error", model=MODEL, usage=Usage(), error=LOST)
NO_SUMMARY = ErrorInfo(code="invalid_summary", message="the answer is no summary: it calls tools", retryable=True)


def ended(message: AssistantMessage, *, jitter: float = 0.0, fallback: int | None = None) -> Summarized:
    return Summarized(message, now=1_000, jitter=jitter, fallback=fallback)


def died(*, unavailable: ErrorInfo | None = None, model_index: int | None = None) -> SummaryInterrupted:
    return SummaryInterrupted(
        LATER, now=1_000, jitter=0.0, model=MODEL, unavailable=unavailable, model_index=model_index
    )


def spent(message: AssistantMessage, task: str | None = None) -> SpendSummary:
    return SpendSummary(ASKED, message, task)


def waits(state: Summarizing, not_before: int, error: ErrorInfo, **changed: int) -> SummaryWait:
    """The wait that follows, with everything that is known."""
    return SummaryWait(
        task=TASK,
        reason=state.reason,
        attempt=state.attempt,
        trigger=state.trigger,
        not_before=not_before,
        error=error,
        retries=changed.get("retries", state.retries),
        restarts=changed.get("restarts", state.restarts),
        shorter=changed.get("shorter", state.shorter),
        model_index=changed.get("model_index", state.model_index),
        turn=state.turn,
        answer=state.answer,
        overflow=state.overflow,
        unsummarized=state.unsummarized,
        placed=state.placed,
    )


def overflow_because(why: str) -> ErrorInfo:
    return replace(TOO_LONG, message=f"too long; what it showed could not be summarized: {why}")


def failed(state: OperationState | None, *changes: Change) -> Step:
    return Step(state, changes, boundary="summary_failed")


def recovered(state: OperationState | None, *changes: Change) -> Step:
    return Step(state, changes, boundary="recovered_summary")


WITHOUT = replace(GONE_ON, unsummarized=True)
DROPPED = DropPreparation(TASK)
EXHAUSTED = ErrorInfo(
    code="restarts_exhausted", message="the process stopped 4 times during one summary; it is not asked for again"
)

INTENDED_ROWS = [
    Row(
        "a summary before a request that would be too long keeps what is known of the run",
        replace(DUE, overflow=TOO_LONG),
        SummaryIntended(TASK, "threshold", ASKED, 1),
        Step(
            Summarizing(
                task=TASK,
                reason="threshold",
                response_id=ASKED,
                attempt=1,
                trigger="in",
                model_index=1,
                turn=2,
                answer="a0",
                overflow=TOO_LONG,
                placed=True,
            ),
            effects=(RequestSummary(TASK, ASKED, 1, 1),),
            boundary="summary_intent",
        ),
    ),
    Row(
        "a summary since a request was too long keeps that an earlier one failed",
        replace(OVERFLOWED, unsummarized=True),
        SummaryIntended(TASK, "overflow", ASKED),
        Step(
            Summarizing(
                task=TASK,
                reason="overflow",
                response_id=ASKED,
                attempt=1,
                trigger="e0",
                turn=2,
                answer="a0",
                overflow=TOO_LONG,
                unsummarized=True,
            ),
            effects=(RequestSummary(TASK, ASKED, 1, 0),),
            boundary="summary_intent",
        ),
    ),
    Row(
        "a compaction that somebody asked for",
        TO_COMPACT,
        SummaryIntended(TASK, "manual", ASKED),
        Step(MANUAL, effects=(RequestSummary(TASK, ASKED, 1, 0),), boundary="summary_intent"),
    ),
    Row(
        "the next attempt at a summary keeps its counters",
        AGAIN,
        SummaryIntended(TASK, "threshold", LATER),
        Step(
            replace(RUNNING, response_id=LATER, attempt=4),
            effects=(RequestSummary(TASK, LATER, 4, 1, 1),),
            boundary="summary_intent",
        ),
    ),
    Row(
        "the next attempt at a summary, by a model that is here",
        AGAIN,
        SummaryIntended(TASK, "threshold", LATER, 0),
        Step(
            replace(RUNNING, response_id=LATER, attempt=4, model_index=0),
            effects=(RequestSummary(TASK, LATER, 4, 0, 1),),
            boundary="summary_intent",
        ),
    ),
]

PLACED_ROWS = [
    Row(
        "a summary of the application's own, and the run goes on",
        replace(DUE, overflow=TOO_LONG),
        SummaryGiven(TASK, "threshold", "mine"),
        Step(replace(GONE_ON, overflow=TOO_LONG), (PlaceSummary(TASK, "mine"),), boundary="summary"),
    ),
    Row(
        "a compaction with a summary of the application's own",
        TO_COMPACT,
        SummaryGiven(TASK, "manual", "mine"),
        Step(COMPACTED, (PlaceSummary(TASK, "mine"),), boundary="summary"),
    ),
    Row(
        "a navigation with a summary of the application's own",
        TO_COMPACT,
        SummaryGiven(TASK, "navigation", "mine"),
        Step(None, (MoveLane(), PlaceSummary(TASK, "mine"), End("completed", 0, None)), boundary="summary"),
    ),
    Row(
        "the run goes on with the summary, without the spaces around it",
        RUNNING,
        ended(WRITTEN),
        Step(GONE_ON, (spent(WRITTEN, TASK), SHOWN), boundary="summary"),
    ),
    Row(
        "a summary that was cut at its length is taken",
        MANUAL,
        ended(replace(WRITTEN, stop_reason="length")),
        Step(COMPACTED, (spent(replace(WRITTEN, stop_reason="length"), TASK), SHOWN), boundary="summary"),
    ),
    Row(
        "the run asks once more since its request was too long, and knows that it was",
        SHORTENING,
        ended(WRITTEN),
        Step(
            Checkpoint(next="respond", trigger="e0", turn=2, answer="a0", overflow=TOO_LONG, compacted=True),
            (spent(WRITTEN, TASK), SHOWN),
            boundary="summary",
        ),
    ),
    Row(
        "a lane moves, and the summary of what it leaves stands where it goes",
        LEAVING,
        ended(WRITTEN),
        Step(None, (spent(WRITTEN, TASK), MoveLane(), SHOWN, End("completed", 0, None)), boundary="summary"),
    ),
    Row(
        "a lane moves without a summary",
        MOVING,
        Navigated(),
        Step(None, (MoveLane(), End("completed", 0, None)), boundary="navigation"),
    ),
]

REPEATED_ROWS = [
    Row(
        "a summary fails and may be tried again",
        RUNNING,
        ended(BUSY, jitter=0.5),
        failed(waits(RUNNING, 1_000 + 500 + 250, OVERLOADED, retries=2), spent(BUSY)),
    ),
    Row(
        "a summary fails and another model follows",
        SHORTENING,
        ended(BUSY, jitter=0.5, fallback=2),
        failed(waits(SHORTENING, 1_000, OVERLOADED, retries=2, model_index=2), spent(BUSY)),
    ),
    Row(
        "an answer that calls tools is no summary",
        MANUAL,
        ended(answer(1, text="said")),
        failed(waits(MANUAL, 1_000 + 250, NO_SUMMARY, retries=1), spent(answer(1, text="said"))),
    ),
    Row(
        "what is summarized is too long itself: half of it is shown at once, whatever was tried before",
        replace(SHORTENING, retries=2, shorter=5),
        ended(LONG),
        failed(waits(replace(SHORTENING, retries=2), 1_000, TOO_LONG, shorter=6), spent(LONG)),
    ),
    Row(
        "the first death during a summary: asked again at once",
        replace(RUNNING, restarts=0),
        died(model_index=0),
        Step(
            replace(RUNNING, response_id=LATER, attempt=4, restarts=1, model_index=0),
            (spent(LOST_ANSWER),),
            (RequestSummary(TASK, LATER, 4, 0, 1),),
            boundary="recovered_summary",
        ),
    ),
    Row(
        "the second death during a summary: not at once",
        RUNNING,
        died(),
        recovered(waits(RUNNING, 1_000 + 250, LOST, restarts=2), spent(LOST_ANSWER)),
    ),
    Row(
        "the last death during a summary after which it is asked for again",
        replace(RUNNING, restarts=2),
        died(),
        recovered(waits(RUNNING, 1_000 + 500, LOST, restarts=3), spent(LOST_ANSWER)),
    ),
]

ENDED_ROWS = [
    Row(
        "a declined summary, and the run goes on without having failed at one",
        DUE,
        SummaryRefused("threshold", DECLINED),
        Step(GONE_ON, boundary="summary_refused"),
    ),
    Row(
        "a compaction is declined",
        TO_COMPACT,
        SummaryRefused("manual", DECLINED),
        Step(None, (End("failed", 0, None, code=DECLINED.code, error=DECLINED),), boundary="summary_refused"),
    ),
    Row(
        "nothing helps a request that was too long",
        OVERFLOWED,
        SummaryRefused("overflow", DECLINED),
        Step(
            None,
            (End("failed", 3, "e0", code=TOO_LONG.code, error=overflow_because("not now")),),
            boundary="summary_refused",
        ),
    ),
    Row(
        "no model is here for the next attempt at a summary, and the run goes on",
        AGAIN,
        SummaryRefused("threshold", GONE),
        failed(WITHOUT, DROPPED),
    ),
    Row(
        "no model is here for the next attempt at a navigation's summary",
        LEAVING_LATER,
        SummaryRefused("navigation", GONE),
        failed(None, DROPPED, End("failed", 0, None, code=GONE.code, error=GONE)),
    ),
    Row(
        "a summary fails for good, and the run goes on",
        replace(RUNNING, overflow=TOO_LONG),
        ended(FAILED),
        failed(replace(WITHOUT, overflow=TOO_LONG), spent(FAILED), DROPPED),
    ),
    Row(
        "the last of three attempts at a summary, and the run fails as too long",
        replace(SHORTENING, retries=2),
        ended(BUSY),
        failed(
            None,
            spent(BUSY),
            DROPPED,
            End("failed", 3, "e0", code=TOO_LONG.code, error=overflow_because(OVERLOADED.message)),
        ),
    ),
    Row(
        "what is summarized is too long however short it is shown",
        replace(MANUAL, shorter=6),
        ended(LONG),
        failed(None, spent(LONG), DROPPED, End("failed", 0, None, code=TOO_LONG.code, error=TOO_LONG)),
    ),
    Row(
        "what is summarized is too long, and can be shown no shorter",
        replace(MANUAL, shorter=1),
        replace(ended(LONG), shortest=True),
        failed(None, spent(LONG), DROPPED, End("failed", 0, None, code=TOO_LONG.code, error=TOO_LONG)),
    ),
    Row(
        "a lane does not move without the summary that it should take along",
        LEAVING,
        ended(FAILED),
        failed(None, spent(FAILED), DROPPED, End("failed", 0, None, code="refused", error=REFUSED)),
    ),
    Row(
        "one death too many during a summary, and the run goes on",
        replace(RUNNING, restarts=3),
        died(unavailable=GONE),
        recovered(WITHOUT, spent(LOST_ANSWER), DROPPED),
    ),
    Row(
        "one death too many during a compaction",
        replace(MANUAL, restarts=3),
        died(),
        recovered(
            None, spent(LOST_ANSWER), DROPPED, End("failed", 0, None, code="restarts_exhausted", error=EXHAUSTED)
        ),
    ),
    Row(
        "a death during a summary, and the model is gone",
        replace(SHORTENING, restarts=0),
        died(unavailable=GONE),
        recovered(
            None,
            spent(LOST_ANSWER),
            DROPPED,
            End("failed", 3, "e0", code=TOO_LONG.code, error=overflow_because(GONE.message)),
        ),
    ),
    Row(
        "a limit before the next attempt at a summary",
        replace(AGAIN, overflow=TOO_LONG),
        Failed(LIMIT),
        Step(None, (DROPPED, End("failed", 3, "a0", code="limit_reached", error=LIMIT)), boundary="terminal"),
    ),
    Row(
        "a hook stands in the way of a navigation",
        MOVING,
        Failed(REFUSED),
        Step(None, (End("failed", 0, None, code="refused", error=REFUSED),), boundary="terminal"),
    ),
    Row("a compaction ends", COMPACTED, Finished(), Step(None, (End("completed", 0, None),), boundary="terminal")),
]

ABORTED_ROWS = [
    Row(f"an abort of a {type(state).__name__}", state, AbortRequested(77), Step(cancelled(state), boundary="abort"))
    for state in (RUNNING, AGAIN, MOVING)
] + [
    Row(
        "a summary in hand is not placed under an abort, and is paid for",
        cancelled(RUNNING),
        ended(WRITTEN),
        failed(None, spent(WRITTEN), DROPPED, End("aborted", 2, "a0")),
    ),
    Row(
        "a navigation under an abort stays where it is, its summary in hand",
        cancelled(LEAVING),
        ended(WRITTEN),
        failed(None, spent(WRITTEN), DROPPED, End("aborted", 0, None)),
    ),
    Row(
        "a summary that was stopped",
        cancelled(SHORTENING),
        ended(STOPPED),
        failed(None, spent(STOPPED), DROPPED, End("aborted", 3, "a0")),
    ),
    Row(
        "an error of a summary under abort is an aborted answer",
        cancelled(MANUAL),
        ended(BUSY),
        failed(None, spent(replace(BUSY, stop_reason="aborted")), DROPPED, End("aborted", 0, None)),
    ),
    Row(
        "a death during a summary under abort",
        cancelled(RUNNING),
        died(unavailable=GONE),
        recovered(None, spent(LOST_ANSWER), DROPPED, End("aborted", 2, "a0")),
    ),
    Row(
        "under abort a wait for a summary ends",
        cancelled(AGAIN),
        Finished(),
        Step(None, (DROPPED, End("aborted", 2, "a0")), boundary="terminal"),
    ),
    Row(
        "under abort a lane stays where it is",
        cancelled(MOVING),
        Finished(),
        Step(None, (End("aborted", 0, None),), boundary="terminal"),
    ),
    Row(
        "under abort a compaction that has its summary ends aborted",
        cancelled(COMPACTED),
        Finished(),
        Step(None, (End("aborted", 0, None),), boundary="terminal"),
    ),
]

SUMMARY_ROWS = [*INTENDED_ROWS, *PLACED_ROWS, *REPEATED_ROWS, *ENDED_ROWS, *ABORTED_ROWS]

SUMMARY_STATES: list[OperationState] = [RUNNING, AGAIN, MOVING]
SUMMARY_FACTS: list[Fact] = [
    SummaryIntended(TASK, "threshold", ASKED),
    SummaryGiven(TASK, "threshold", "mine"),
    SummaryRefused("threshold", DECLINED),
    ended(WRITTEN),
    died(),
    Navigated(),
]

INTENT, OWN, REFUSAL = SUMMARY_FACTS[:3]
SUMMARY_GUARDS: list[tuple[str, OperationState, Fact]] = [
    ("nothing is intended once an abort is asked for", cancelled(DUE), INTENT),
    ("nothing is intended once an abort is asked for", cancelled(AGAIN), INTENT),
    ("nothing is placed once an abort is asked for", cancelled(DUE), OWN),
    ("an abort is asked for: the run ends aborted", cancelled(DUE), REFUSAL),
    ("an abort is asked for: the run ends aborted", cancelled(AGAIN), REFUSAL),
    ("nothing is to be summarized here", replace(DUE, compacted=True), INTENT),
    ("nothing is to be summarized here", replace(DUE, compacted=True), OWN),
    ("nothing is to be summarized here", replace(DUE, compacted=True), REFUSAL),
    ("nothing is to be summarized here", replace(DUE, unsummarized=True), INTENT),
    ("nothing is to be summarized here", replace(DUE, overflow=TOO_LONG), SummaryIntended(TASK, "overflow", ASKED)),
    ("nothing is to be summarized here", DUE, SummaryGiven(TASK, "manual", "mine")),
    ("a summary for another reason is asked for", TO_COMPACT, INTENT),
    ("a summary for another reason is asked for", TO_COMPACT, SummaryRefused("overflow", DECLINED)),
    ("a summary for another reason is asked for", OVERFLOWED, SummaryGiven(TASK, "manual", "mine")),
    ("a summary for another reason is asked for", OVERFLOWED, SummaryIntended(TASK, "navigation", ASKED)),
    ("the operation is about to end", COMPACTED, SummaryIntended(TASK, "manual", ASKED)),
    ("the operation is about to end", Checkpoint(next="finish", trigger="a1"), INTENT),
    ("another summary is waited for", AGAIN, SummaryIntended("another", "threshold", LATER)),
    ("another summary is waited for", AGAIN, SummaryIntended(TASK, "overflow", LATER)),
    ("another summary is waited for", AGAIN, SummaryRefused("overflow", GONE)),
    ("the summary is empty", DUE, SummaryGiven(TASK, "threshold", "")),
    ("only an abort makes an answer aborted", RUNNING, ended(STOPPED)),
    ("an abort is asked for: the lane stays where it is", cancelled(MOVING), Navigated()),
    ("the operation is not about to end", AGAIN, Finished()),
    ("the operation is not about to end", MOVING, Finished()),
    ("an abort is asked for: it ends aborted", cancelled(AGAIN), Failed(LIMIT)),
    ("an abort is asked for: it ends aborted", cancelled(MOVING), Failed(LIMIT)),
    ("an abort is asked for already", cancelled(RUNNING), AbortRequested(78)),
    ("an abort is asked for already", cancelled(MOVING), AbortRequested(78)),
    ("what is said waits for the summary", OVERFLOWED, QueuedPlaced(("s",), "s")),
    ("what is said waits for the summary", TO_COMPACT, QueuedPlaced(("w",))),
    ("a compaction asks no model", COMPACTED, QueuedPlaced(("s",), "s")),
    ("the run is about to finish", TO_COMPACT, RequestIntended(LATER)),
    ("the run is about to finish", COMPACTED, RequestIntended(LATER)),
    ("the run is about to finish", OVERFLOWED, ModelUnavailable(GONE)),
    ("the run is not about to finish", COMPACTED, FollowedUp(((LATER, user("more")),))),
    ("the run is not about to finish", OVERFLOWED, Finished()),
]
