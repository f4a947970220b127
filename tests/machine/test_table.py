"""Claim: each transition in the table does exactly what it says, and nothing outside the table moves a state."""

from __future__ import annotations

import copy
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo, user
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectGranted,
    EffectPending,
    EffectResumed,
    Generating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    RetryPolicy,
    RetryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.ids import call_id
from agentlane.machine.facts import (
    AbortRequested,
    Answered,
    ApprovalGiven,
    ApprovalsAsked,
    AskApproval,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    DriveChild,
    End,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    IllegalStep,
    Interrupted,
    ModelUnavailable,
    Outcome,
    OutcomesArrived,
    OutputRefused,
    PlaceAnswer,
    PlaceCorrection,
    PlaceInput,
    PlaceItems,
    PlaceResult,
    QuestionAnswered,
    QuestionsAsked,
    QueuedPlaced,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    RequestModel,
    RunCall,
    StageResult,
    StartChild,
    Step,
)
from agentlane.machine.rules import RETRY_AFTER_MAX_MS, backoff_ms
from agentlane.machine.table import TABLE, step
from tests.machine.build import (
    ANSWER,
    CORRECTION,
    GONE,
    INVALID,
    LATER,
    LIMIT,
    OVERLOADED,
    REFUSED,
    Row,
    answer,
    cancelled,
    outcome,
    result,
    rules,
    tools,
)
from tests.machine.overflow_rows import OVERFLOW_ROWS
from tests.machine.summary_rows import SUMMARY_FACTS, SUMMARY_GUARDS, SUMMARY_ROWS, SUMMARY_STATES

RULES = rules()

RESPOND = Checkpoint(next="respond", trigger="in", turn=2, answer="a0")
FINISH = Checkpoint(next="finish", trigger="a1", code="length", turn=2, answer="a1")
ASKING = Generating(response_id=ANSWER, attempt=2, retries=1, restarts=1, model_index=1, turn=4, answer="a0")
WAITING = RetryWait(
    attempt=2, not_before=900, error=OVERLOADED, retries=1, restarts=1, model_index=1, turn=4, answer="a0"
)
NEVER, SAFE, KEYED = EffectPending("never"), EffectPending("safe", 2, 1), EffectPending("idempotent")


def answered(message: Any, *, jitter: float = 0.0) -> Answered:
    return Answered(message, now=1_000, jitter=jitter)


def interrupted(**options: Any) -> Interrupted:
    message = answer(text="half", stop_reason="error", error=OVERLOADED)
    return Interrupted(message=message, response_id=LATER, now=1_000, jitter=0.0, **options)


FAILED = answer(stop_reason="error", error=REFUSED)
BUSY = answer(stop_reason="error", error=OVERLOADED)
SHOWN = interrupted().message
RETRY_AFTER = replace(OVERLOADED, retry_after_ms=60_000)

ROWS = [
    # Requests.
    Row(
        "a turn's first request",
        RESPOND,
        RequestIntended(LATER),
        Step(
            Generating(response_id=LATER, attempt=1, turn=3, answer="a0"),
            effects=(RequestModel(LATER, 1, 0),),
            boundary="intent",
        ),
    ),
    Row(
        "the next attempt of a turn keeps its counters",
        WAITING,
        RequestIntended(LATER),
        Step(
            Generating(response_id=LATER, attempt=3, retries=1, restarts=1, model_index=1, turn=4, answer="a0"),
            effects=(RequestModel(LATER, 3, 1),),
            boundary="intent",
        ),
    ),
    Row(
        "an answer without calls",
        ASKING,
        answered(answer(text="done")),
        Step(
            Checkpoint(next="finish", trigger=ANSWER, turn=4, answer=ANSWER),
            (PlaceAnswer(ANSWER, answer(text="done")),),
            boundary="settlement",
        ),
    ),
    Row(
        "an answer without calls, cut by its length limit",
        ASKING,
        answered(answer(text="do", stop_reason="length")),
        Step(
            Checkpoint(next="finish", trigger=ANSWER, code="length", turn=4, answer=ANSWER),
            (PlaceAnswer(ANSWER, answer(text="do", stop_reason="length")),),
            boundary="settlement",
        ),
    ),
    Row(
        "calls decide, not the stop word",
        ASKING,
        answered(answer(2, stop_reason="stop")),
        Step(
            Tools(calls=(Planned(), Planned()), answer=ANSWER, turn=4),
            (PlaceAnswer(ANSWER, answer(2, stop_reason="stop")),),
            boundary="settlement",
        ),
    ),
    Row(
        "a stop word that promises calls, without any",
        ASKING,
        answered(answer(text="done", stop_reason="tool_calls")),
        Step(
            Checkpoint(next="finish", trigger=ANSWER, turn=4, answer=ANSWER),
            (PlaceAnswer(ANSWER, answer(text="done", stop_reason="tool_calls")),),
            boundary="settlement",
        ),
    ),
    Row(
        "a cut answer with calls still plans them: each gets a result that explains",
        ASKING,
        answered(answer(1, stop_reason="length")),
        Step(
            Tools(calls=(Planned(),), answer=ANSWER, turn=4),
            (PlaceAnswer(ANSWER, answer(1, stop_reason="length")),),
            boundary="settlement",
        ),
    ),
    Row(
        "an error that may go away",
        ASKING,
        answered(BUSY, jitter=0.5),
        Step(
            RetryWait(
                attempt=2,
                not_before=1_000 + 500 + 250,
                error=OVERLOADED,
                retries=2,
                restarts=1,
                model_index=1,
                turn=4,
                answer="a0",
            ),
            (PlaceAnswer(ANSWER, BUSY),),
            boundary="settlement",
        ),
    ),
    Row(
        "an error that names when to come back",
        replace(ASKING, retries=0),
        answered(answer(stop_reason="error", error=RETRY_AFTER)),
        Step(
            RetryWait(
                attempt=2,
                not_before=61_000,
                error=RETRY_AFTER,
                retries=1,
                restarts=1,
                model_index=1,
                turn=4,
                answer="a0",
            ),
            (PlaceAnswer(ANSWER, answer(stop_reason="error", error=RETRY_AFTER)),),
            boundary="settlement",
        ),
    ),
    Row(
        "the last of three attempts fails",
        replace(ASKING, retries=2),
        answered(BUSY),
        Step(
            None,
            (PlaceAnswer(ANSWER, BUSY), End("failed", 4, ANSWER, code="overloaded", error=OVERLOADED)),
            boundary="settlement",
        ),
    ),
    Row(
        "an error for good",
        ASKING,
        answered(FAILED),
        Step(
            None,
            (PlaceAnswer(ANSWER, FAILED), End("failed", 4, ANSWER, code="refused", error=REFUSED)),
            boundary="settlement",
        ),
    ),
    Row(
        "an answer aborted on request",
        cancelled(ASKING),
        answered(answer(text="ha", stop_reason="aborted")),
        Step(
            None,
            (PlaceAnswer(ANSWER, answer(text="ha", stop_reason="aborted")), End("aborted", 4, "a0")),
            boundary="settlement",
        ),
    ),
    Row(
        "an error under abort is an aborted answer",
        cancelled(ASKING),
        answered(BUSY),
        Step(
            None,
            (PlaceAnswer(ANSWER, replace(BUSY, stop_reason="aborted")), End("aborted", 4, "a0")),
            boundary="settlement",
        ),
    ),
    Row(
        "a whole answer in hand keeps its calls under abort",
        cancelled(ASKING),
        answered(answer(1, stop_reason="tool_calls")),
        Step(
            Tools(calls=(Planned(),), answer=ANSWER, turn=4, cancel_requested_at=77),
            (PlaceAnswer(ANSWER, answer(1, stop_reason="tool_calls")),),
            boundary="settlement",
        ),
    ),
    Row(
        "a whole answer in hand keeps its stop reason under abort",
        cancelled(ASKING),
        answered(answer(text="done")),
        Step(
            Checkpoint(next="finish", trigger=ANSWER, turn=4, answer=ANSWER, cancel_requested_at=77),
            (PlaceAnswer(ANSWER, answer(text="done")),),
            boundary="settlement",
        ),
    ),
    # Requests that an earlier pass left.
    Row(
        "the first death of a turn: asked again at once, retries untouched",
        replace(ASKING, restarts=0),
        interrupted(),
        Step(
            replace(ASKING, response_id=LATER, attempt=3, restarts=1),
            (PlaceAnswer(ANSWER, SHOWN),),
            (RequestModel(LATER, 3, 1),),
            boundary="recovered_response",
        ),
    ),
    Row(
        "the second death of a turn: not at once",
        ASKING,
        interrupted(),
        Step(
            RetryWait(
                attempt=2,
                not_before=1_000 + 250,
                error=OVERLOADED,
                retries=1,
                restarts=2,
                model_index=1,
                turn=4,
                answer="a0",
            ),
            (PlaceAnswer(ANSWER, SHOWN),),
            boundary="recovered_response",
        ),
    ),
    Row(
        "one death too many",
        replace(ASKING, restarts=3),
        interrupted(),
        Step(
            None,
            (
                PlaceAnswer(ANSWER, SHOWN),
                End(
                    "failed",
                    4,
                    ANSWER,
                    code="restarts_exhausted",
                    error=replace(
                        REFUSED,
                        code="restarts_exhausted",
                        message="the process stopped 4 times during one turn; it is not asked again",
                    ),
                ),
            ),
            boundary="recovered_response",
        ),
    ),
    Row(
        "a death, and the model is gone",
        replace(ASKING, restarts=0),
        interrupted(unavailable=GONE),
        Step(
            None,
            (PlaceAnswer(ANSWER, SHOWN), End("failed", 4, ANSWER, code="model_unavailable", error=GONE)),
            boundary="recovered_response",
        ),
    ),
    Row(
        "a death under abort",
        cancelled(ASKING),
        interrupted(unavailable=GONE),
        Step(
            None,
            (PlaceAnswer(ANSWER, replace(SHOWN, stop_reason="aborted")), End("aborted", 4, "a0")),
            boundary="recovered_response",
        ),
    ),
    Row(
        "an error that may go away, and another model",
        ASKING,
        Answered(answer(stop_reason="error", error=OVERLOADED), now=1_000, jitter=0.5, fallback=2),
        Step(
            RetryWait(
                attempt=2,
                not_before=1_000,
                error=OVERLOADED,
                retries=2,
                restarts=1,
                model_index=2,
                turn=4,
                answer="a0",
            ),
            (PlaceAnswer(ANSWER, answer(stop_reason="error", error=OVERLOADED)),),
            boundary="settlement",
        ),
    ),
    Row(
        "the next attempt, of a model that is here",
        WAITING,
        RequestIntended(LATER, 0),
        Step(
            Generating(response_id=LATER, attempt=3, retries=1, restarts=1, model_index=0, turn=4, answer="a0"),
            effects=(RequestModel(LATER, 3, 0),),
            boundary="intent",
        ),
    ),
    Row(
        "no model for the next request",
        RESPOND,
        ModelUnavailable(GONE),
        Step(None, (End("failed", 2, "a0", code="model_unavailable", error=GONE),), boundary="terminal"),
    ),
    Row(
        "no model for the next attempt",
        WAITING,
        ModelUnavailable(GONE),
        Step(None, (End("failed", 4, "a0", code="model_unavailable", error=GONE),), boundary="terminal"),
    ),
    Row(
        "a limit before the next request",
        RESPOND,
        Failed(LIMIT),
        Step(None, (End("failed", 2, "a0", code="limit_reached", error=LIMIT),), boundary="terminal"),
    ),
    Row(
        "an answer that is not of its type, for good",
        FINISH,
        Failed(INVALID),
        Step(None, (End("failed", 2, "a1", code="invalid_output", error=INVALID),), boundary="terminal"),
    ),
    Row(
        "an answer that is not of its type",
        replace(FINISH, answer=ANSWER),
        OutputRefused(CORRECTION),
        Step(
            Checkpoint(next="respond", trigger=f"{ANSWER[:-4]}ffff", turn=2, answer=ANSWER),
            (PlaceCorrection(ANSWER, CORRECTION),),
            boundary="correction",
        ),
    ),
    Row(
        "a limit before the next attempt",
        WAITING,
        Failed(LIMIT),
        Step(None, (End("failed", 4, "a0", code="limit_reached", error=LIMIT),), boundary="terminal"),
    ),
    Row(
        "hooks have more to say where the run would finish",
        FINISH,
        FollowedUp(((LATER, user("and this?")), ("last", user("and that?")))),
        Step(
            Checkpoint(next="respond", trigger="last", turn=2, answer="a1"),
            (PlaceInput(LATER, user("and this?")), PlaceInput("last", user("and that?"))),
            boundary="follow_up",
        ),
    ),
    Row(
        "a hook stands in the way of the end",
        FINISH,
        Failed(REFUSED),
        Step(None, (End("failed", 2, "a1", code="refused", error=REFUSED),), boundary="terminal"),
    ),
    # Calls.
    Row(
        "runs of other agents are accepted as operations of their own, and driven",
        tools(Planned(), NEVER, Planned()),
        ChildrenStarted((0, 2)),
        Step(
            tools(WaitingChild(), NEVER, WaitingChild()),
            (StartChild(ANSWER, 0), StartChild(ANSWER, 2)),
            (DriveChild(0), DriveChild(2)),
            "child_started",
        ),
    ),
    Row(
        "calls start together",
        tools(Planned(), Placed(), Planned(), Planned()),
        CallsIntended(((0, "never"), (3, "safe"))),
        Step(
            tools(EffectPending("never"), Placed(), Planned(), EffectPending("safe")),
            effects=(RunCall(0, 1, 0), RunCall(3, 1, 0)),
            boundary="tool_intents",
        ),
    ),
    Row(
        "a replay counts the start and takes the policy of now",
        tools(Planned(), SAFE),
        ReplayIntended(1, "idempotent"),
        Step(
            tools(Planned(), EffectPending("idempotent", 3, 2)),
            effects=(RunCall(1, 3, 2),),
            boundary="replay_intent",
        ),
    ),
    Row(
        "an outcome that is next",
        tools(NEVER, Planned()),
        OutcomesArrived((outcome(0),)),
        Step(
            tools(Placed(), Planned()),
            (PlaceResult(ANSWER, 0, result(0)),),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "an outcome that is not next",
        tools(NEVER, SAFE, Planned()),
        OutcomesArrived((outcome(1, terminate=True),)),
        Step(
            tools(NEVER, OutcomeReady(True), Planned()),
            (StageResult(ANSWER, 1, result(1)),),
            boundary="outcome_staged",
        ),
    ),
    Row(
        "an outcome frees those staged behind it, and no more",
        tools(Placed(), NEVER, OutcomeReady(True), SAFE, OutcomeReady()),
        OutcomesArrived((outcome(1),)),
        Step(
            tools(Placed(), Placed(), Placed(True), SAFE, OutcomeReady()),
            (PlaceResult(ANSWER, 1, result(1)), PlaceResult(ANSWER, 2, None)),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "several arrive in one step, in any order: placed in call order, the rest staged in arrival order",
        tools(NEVER, NEVER, NEVER, NEVER, NEVER),
        OutcomesArrived((outcome(4), outcome(1), outcome(3), outcome(0))),
        Step(
            tools(Placed(), Placed(), NEVER, OutcomeReady(), OutcomeReady()),
            (
                PlaceResult(ANSWER, 0, result(0)),
                PlaceResult(ANSWER, 1, result(1)),
                StageResult(ANSWER, 4, result(4)),
                StageResult(ANSWER, 3, result(3)),
            ),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "the last outcome of a batch goes on to the model",
        tools(Placed(True), KEYED, turn=5),
        OutcomesArrived((outcome(1),)),
        Step(
            Checkpoint(next="respond", trigger=call_id(ANSWER, 1), turn=5, answer=ANSWER),
            (PlaceResult(ANSWER, 1, result(1)),),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "when every call of a batch says so the run ends",
        tools(Placed(True), NEVER, OutcomeReady(True), turn=5),
        OutcomesArrived((outcome(1, terminate=True),)),
        Step(
            Checkpoint(next="finish", trigger=call_id(ANSWER, 2), turn=5, answer=ANSWER),
            (PlaceResult(ANSWER, 1, result(1)), PlaceResult(ANSWER, 2, None)),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "a batch that ends under abort stays under abort",
        tools(NEVER, cancelled_at=77),
        OutcomesArrived((outcome(0),)),
        Step(
            Checkpoint(next="respond", trigger=call_id(ANSWER, 0), turn=1, answer=ANSWER, cancel_requested_at=77),
            (PlaceResult(ANSWER, 0, result(0)),),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "calls that never began are planned again; of a replay only the replay is undone",
        tools(EffectPending("safe"), EffectPending("idempotent", 3, 2), NEVER),
        CallsNotBegun((0, 1)),
        Step(tools(Planned(), EffectPending("idempotent", 2, 1), NEVER), boundary="close"),
    ),
    # People.
    Row(
        "people are asked about calls that did not start, and about replays",
        tools(Planned(), Approved("old"), EffectPending("ask", 2, 1), EffectGranted("safe", 1, 0, "older")),
        ApprovalsAsked(((0, "a"), (1, "b"), (2, "c"), (3, "d"))),
        Step(
            tools(
                WaitingApproval("a"),
                WaitingApproval("b"),
                WaitingApproval("c", "ask", 2, 1),
                WaitingApproval("d", "safe", 1, 0),
            ),
            (AskApproval(0, "a"), AskApproval(1, "b"), AskApproval(2, "c"), AskApproval(3, "d")),
            boundary="approval_asked",
        ),
    ),
    Row(
        "a yes before the start",
        tools(NEVER, WaitingApproval("a")),
        ApprovalGiven(1, "a"),
        Step(tools(NEVER, Approved("a")), boundary="decision"),
    ),
    Row(
        "a yes before a replay",
        tools(WaitingApproval("a", "ask", 2, 1)),
        ApprovalGiven(0, "a"),
        Step(tools(EffectGranted("ask", 2, 1, "a", permit=True)), boundary="decision"),
    ),
    Row(
        "an approved call starts, and keeps by which yes",
        tools(Approved("a"), Planned()),
        CallsIntended(((0, "never"), (1, "safe"))),
        Step(
            tools(EffectGranted("never", 1, 0, "a"), EffectPending("safe")),
            effects=(RunCall(0, 1, 0), RunCall(1, 1, 0)),
            boundary="tool_intents",
        ),
    ),
    Row(
        "a permit is used up by the intent of the replay",
        tools(EffectGranted("ask", 2, 1, "a", permit=True)),
        ReplayIntended(0, "ask"),
        Step(tools(EffectGranted("ask", 3, 2, "a")), effects=(RunCall(0, 3, 2),), boundary="replay_intent"),
    ),
    Row(
        "a replay that nobody had to allow is not by the yes of the first start",
        tools(EffectGranted("safe", 1, 0, "a")),
        ReplayIntended(0, "safe"),
        Step(tools(EffectPending("safe", 2, 1)), effects=(RunCall(0, 2, 1),), boundary="replay_intent"),
    ),
    Row(
        "a yes is not used up by what never began",
        tools(EffectGranted("never", 1, 0, "a"), EffectGranted("ask", 3, 2, "b")),
        CallsNotBegun((0, 1)),
        Step(tools(Approved("a"), EffectGranted("ask", 2, 1, "b", permit=True)), boundary="close"),
    ),
    Row(
        "a tool returns, and its result comes later",
        tools(EffectPending("safe", 2, 1), EffectGranted("never", 1, 0, "a"), NEVER),
        CallsDeferred((0, 1)),
        Step(tools(WaitingExternal("safe", 2, 1), WaitingExternal("never", 1, 0), NEVER), boundary="deferred"),
    ),
    Row(
        "what is delivered is the outcome of a call that waits for it",
        tools(WaitingExternal("never"), NEVER),
        OutcomesArrived((outcome(0, terminate=True),)),
        Step(tools(Placed(True), NEVER), (PlaceResult(ANSWER, 0, result(0)),), boundary="outcome_placed"),
    ),
    Row(
        "a no is the outcome of a call that waits",
        tools(WaitingApproval("a"), NEVER),
        OutcomesArrived((outcome(0),)),
        Step(tools(Placed(), NEVER), (PlaceResult(ANSWER, 0, result(0)),), boundary="outcome_placed"),
    ),
    # Tools that ask.
    Row(
        "tools ask, and what is known of their starts is kept",
        tools(EffectPending("safe", 2, 1), EffectGranted("idempotent", 1, 0, "a"), NEVER, EffectResumed("safe", 3, 1)),
        QuestionsAsked(((0, "p"), (1, "q"), (3, "r"))),
        Step(
            tools(
                WaitingQuestion("p", "safe", 2, 1),
                WaitingQuestion("q", "idempotent", 1, 0),
                NEVER,
                WaitingQuestion("r", "safe", 3, 1),
            ),
            (AskApproval(0, "p"), AskApproval(1, "q"), AskApproval(3, "r")),
            boundary="question_asked",
        ),
    ),
    Row(
        "a question is answered, and the others wait on",
        tools(WaitingQuestion("p", "safe", 2, 1), WaitingQuestion("q", "safe")),
        QuestionAnswered(0, "p"),
        Step(tools(AnsweredCall("safe", 2, 1), WaitingQuestion("q", "safe")), boundary="answer"),
    ),
    Row(
        "an answered call starts again beside others: that is a start, by the policy of now, and no replay",
        tools(AnsweredCall("safe", 2, 1), Planned(), AnsweredCall("idempotent")),
        CallsIntended(((0, "idempotent"), (1, "never"), (2, "safe"))),
        Step(
            tools(EffectResumed("idempotent", 3, 1), NEVER, EffectResumed("safe", 2, 0)),
            effects=(RunCall(0, 3, 1), RunCall(1, 1, 0), RunCall(2, 2, 0)),
            boundary="tool_intents",
        ),
    ),
    Row(
        "an answer is not used up by a start that never began",
        tools(EffectResumed("safe", 2, 0), EffectResumed("idempotent", 4, 2)),
        CallsNotBegun((0, 1)),
        Step(tools(AnsweredCall("safe", 1, 0), AnsweredCall("idempotent", 3, 2)), boundary="close"),
    ),
    Row(
        "a death in a start with an answer is followed by a replay",
        tools(EffectResumed("safe", 2, 0)),
        ReplayIntended(0, "safe"),
        Step(tools(EffectPending("safe", 3, 1)), effects=(RunCall(0, 3, 1),), boundary="replay_intent"),
    ),
    Row(
        "of a replay after a start with an answer only the replay is undone",
        tools(EffectPending("safe", 3, 1)),
        CallsNotBegun((0,)),
        Step(tools(EffectPending("safe", 2, 0)), boundary="close"),
    ),
    Row(
        "people are asked before a replay that follows a start with an answer",
        tools(EffectResumed("safe", 2, 0)),
        ApprovalsAsked(((0, "a"),)),
        Step(tools(WaitingApproval("a", "safe", 2, 0)), (AskApproval(0, "a"),), boundary="approval_asked"),
    ),
    Row(
        "a call that asked gets a result that its tool did not give",
        tools(WaitingQuestion("p", "safe"), AnsweredCall("safe"), NEVER),
        OutcomesArrived((outcome(0), outcome(1))),
        Step(
            tools(Placed(), Placed(), NEVER),
            (PlaceResult(ANSWER, 0, result(0)), PlaceResult(ANSWER, 1, result(1))),
            boundary="outcome_placed",
        ),
    ),
    # Aborts and ends.
    *(
        Row(
            f"an abort is asked for at {type(state).__name__}",
            state,
            AbortRequested(77),
            Step(cancelled(state), boundary="abort"),
        )
        for state in (RESPOND, ASKING, WAITING, tools(NEVER, Planned()))
    ),
    # Queued input.
    Row(
        "input that waits is placed before the model is asked",
        RESPOND,
        QueuedPlaced(("w", "s"), "s2"),
        Step(
            Checkpoint(next="respond", trigger="s2", turn=2, answer="a0", placed=True),
            (PlaceItems(("w", "s")),),
            boundary="placement",
        ),
    ),
    Row(
        "where the run would end, input makes it go on, and what the last answer ended with is past",
        FINISH,
        QueuedPlaced(("f",), "f"),
        Step(
            Checkpoint(next="respond", trigger="f", turn=2, answer="a1", placed=True),
            (PlaceItems(("f",)),),
            boundary="placement",
        ),
    ),
    Row(
        "of follow-ups that are too much for one commit the rest is still to come",
        FINISH,
        QueuedPlaced(("f", "g"), "g", more=True),
        Step(
            Checkpoint(next="respond", trigger="g", turn=2, answer="a1", placed=True, more=True),
            (PlaceItems(("f", "g")),),
            boundary="placement",
        ),
    ),
    Row(
        "a deferred write is placed and changes nothing else",
        FINISH,
        QueuedPlaced(("w",)),
        Step(FINISH, (PlaceItems(("w",)),), boundary="placement"),
    ),
    Row(
        "the run ends well",
        FINISH,
        Finished(),
        Step(None, (End("completed", 2, "a1", code="length"),), boundary="terminal"),
    ),
    Row(
        "under abort it ends aborted, however far it came",
        cancelled(FINISH),
        Finished(),
        Step(None, (End("aborted", 2, "a1"),), boundary="terminal"),
    ),
    Row(
        "an outcome that is next and held is staged",
        tools(NEVER, Planned(), turn=4),
        OutcomesArrived((outcome(0),), frozenset({0, 1})),
        Step(tools(OutcomeReady(), Planned(), turn=4), (StageResult(ANSWER, 0, result(0)),), boundary="outcome_staged"),
    ),
    Row(
        "staged outcomes are placed up to one that is held, those that were changed as they are now",
        tools(Placed(), OutcomeReady(), OutcomeReady(terminate=True), OutcomeReady(), turn=4),
        ReadyPlaced((outcome(1, "masked", terminate=True),), frozenset({3})),
        Step(
            tools(Placed(), Placed(terminate=True), Placed(terminate=True), OutcomeReady(), turn=4),
            (PlaceResult(ANSWER, 1, result(1, "masked")), PlaceResult(ANSWER, 2, None)),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "the last staged outcome ends the batch",
        tools(Placed(terminate=True), OutcomeReady(terminate=False), turn=4),
        ReadyPlaced((outcome(1, "masked", terminate=True),)),
        Step(
            Checkpoint(next="finish", trigger=call_id(ANSWER, 1), turn=4, answer=ANSWER),
            (PlaceResult(ANSWER, 1, result(1, "masked")),),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "under abort the model is not asked again",
        cancelled(RESPOND),
        Finished(),
        Step(None, (End("aborted", 2, "a0"),), boundary="terminal"),
    ),
    Row(
        "under abort a wait for a retry ends",
        cancelled(WAITING),
        Finished(),
        Step(None, (End("aborted", 4, "a0"),), boundary="terminal"),
    ),
    *SUMMARY_ROWS,
    *OVERFLOW_ROWS,
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_each_transition_gives_this_state_these_changes_and_these_effects(row: Row) -> None:
    before = copy.deepcopy(row.state)

    taken = step(row.state, row.fact, RULES)

    assert taken == row.expected
    assert row.state == before, "the state that went in is unmoved"


def test_every_row_of_the_table_is_shown() -> None:
    assert {(type(row.state), type(row.fact)) for row in ROWS} == set(TABLE)


# What is not in the table.

STATES: list[OperationState] = [RESPOND, FINISH, ASKING, WAITING, tools(NEVER, Planned(), OutcomeReady())]
STATES += SUMMARY_STATES
STATES += [cancelled(state) for state in STATES]
FACTS: list[Fact] = [
    RequestIntended(LATER),
    answered(answer(1)),
    interrupted(),
    CallsIntended(((0, "safe"),)),
    ChildrenStarted((0,)),
    ReplayIntended(0, "safe"),
    ApprovalsAsked(((0, "a"),)),
    ApprovalGiven(0, "a"),
    CallsDeferred((0,)),
    QuestionsAsked(((0, "q"),)),
    QuestionAnswered(0, "q"),
    OutcomesArrived((outcome(0),)),
    ReadyPlaced(),
    CallsNotBegun((0,)),
    QueuedPlaced(("s",), "s"),
    AbortRequested(78),
    Finished(),
    FollowedUp(((LATER, user("and this?")),)),
    Failed(LIMIT),
    OutputRefused(CORRECTION),
    ModelUnavailable(GONE),
    *SUMMARY_FACTS,
]


def test_the_samples_hold_every_kind_of_state_and_fact() -> None:
    assert {type(fact) for fact in FACTS} == set(Fact.__args__)
    assert {type(state) for state in STATES} == set(OperationState.__args__)


ILLEGAL = [(state, fact) for state in STATES for fact in FACTS if (type(state), type(fact)) not in TABLE]


@pytest.mark.parametrize(
    ("state", "fact"), ILLEGAL, ids=[f"{type(state).__name__}-{type(fact).__name__}" for state, fact in ILLEGAL]
)
def test_a_pair_that_is_not_in_the_table_raises_and_moves_nothing(state: OperationState, fact: Fact) -> None:
    before = copy.deepcopy(state)

    with pytest.raises(IllegalStep, match=f"{type(fact).__name__} has no transition from {type(state).__name__}"):
        step(state, fact, RULES)

    assert state == before


# Facts that do not fit the state's details.

GUARDS: list[tuple[str, OperationState, Fact]] = [
    ("no request is intended once an abort is asked for", cancelled(RESPOND), RequestIntended(LATER)),
    ("no request is intended once an abort is asked for", cancelled(WAITING), RequestIntended(LATER)),
    ("the run is about to finish", FINISH, RequestIntended(LATER)),
    ("only an abort makes an answer aborted", ASKING, answered(answer(stop_reason="aborted"))),
    ("no call starts once an abort is asked for", cancelled(tools(Planned())), CallsIntended(((0, "safe"),))),
    ("no call starts once an abort is asked for", cancelled(tools(Planned())), ChildrenStarted((0,))),
    ("nothing is started", tools(Planned()), ChildrenStarted(())),
    ("call 0 is not planned", tools(WaitingChild()), ChildrenStarted((0,))),
    ("call 0 is not planned", tools(WaitingChild()), CallsIntended(((0, "safe"),))),
    ("call 0 was not under way", tools(WaitingChild()), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(WaitingChild()), CallsNotBegun((0,))),
    ("nothing is intended", tools(Planned()), CallsIntended(())),
    ("call 0 is not planned", tools(NEVER), CallsIntended(((0, "safe"),))),
    ("call 0 is not planned", tools(OutcomeReady()), CallsIntended(((0, "safe"),))),
    ("call 0 is not planned", tools(Placed(), Planned()), CallsIntended(((0, "safe"),))),
    ("call 0 is not planned", tools(Planned(), Planned()), CallsIntended(((0, "safe"), (0, "safe")))),
    ("no call starts once an abort is asked for", cancelled(tools(SAFE)), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(Planned()), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(OutcomeReady(), SAFE), ReplayIntended(0, "safe")),
    ("call 0 must not run again", tools(NEVER), ReplayIntended(0, "safe")),
    ("call 0 must not run again", tools(SAFE), ReplayIntended(0, "never")),
    ("call 0 has used up its replays", tools(EffectPending("safe", 4, 3)), ReplayIntended(0, "safe")),
    ("no outcome arrived", tools(NEVER), OutcomesArrived(())),
    ("two outcomes for one call", tools(NEVER, SAFE), OutcomesArrived((outcome(0), outcome(0, "again")))),
    ("call 0 has one", tools(Placed(), SAFE), OutcomesArrived((outcome(0),))),
    ("call 1 has one", tools(NEVER, OutcomeReady()), OutcomesArrived((outcome(0), outcome(1)))),
    ("no staged outcome is next", tools(NEVER, OutcomeReady()), ReadyPlaced()),
    ("no staged outcome is next", tools(OutcomeReady(), OutcomeReady()), ReadyPlaced((), frozenset({0}))),
    ("call 0 is not staged", tools(NEVER), ReadyPlaced((outcome(0),))),
    ("call 0 is not staged", tools(Placed(), OutcomeReady()), ReadyPlaced((outcome(0),))),
    ("it is not next", tools(OutcomeReady(), NEVER, OutcomeReady()), ReadyPlaced((outcome(2),))),
    ("no call is named", tools(NEVER), CallsNotBegun(())),
    ("call 0 was not under way", tools(Planned()), CallsNotBegun((0,))),
    ("call 0 was not under way", tools(SAFE), CallsNotBegun((0, 0, 0))),
    ("call 0 was not under way", tools(EffectGranted("ask", 2, 1, "a", permit=True)), CallsNotBegun((0,))),
    ("nobody is asked once an abort is asked for", cancelled(tools(Planned())), ApprovalsAsked(((0, "a"),))),
    ("no call is named", tools(NEVER), CallsDeferred(())),
    ("call 0 was not under way", tools(WaitingExternal("safe")), CallsDeferred((0,))),
    ("call 0 was not under way", tools(WaitingExternal("safe")), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(EffectGranted("ask", 2, 1, "a", permit=True)), CallsDeferred((0,))),
    ("nothing is asked", tools(Planned()), ApprovalsAsked(())),
    ("there is nothing to ask about call 0", tools(WaitingApproval("a")), ApprovalsAsked(((0, "b"),))),
    ("there is nothing to ask about call 0", tools(Placed(), SAFE), ApprovalsAsked(((0, "b"),))),
    (
        "there is nothing to ask about call 0",
        tools(EffectGranted("ask", 2, 1, "a", permit=True)),
        ApprovalsAsked(((0, "b"),)),
    ),
    ("call 0 must not run again", tools(NEVER), ApprovalsAsked(((0, "a"),))),
    ("call 0 has used up its replays", tools(EffectPending("ask", 4, 3)), ApprovalsAsked(((0, "a"),))),
    ("an abort made every question void", cancelled(tools(WaitingApproval("a"))), ApprovalGiven(0, "a")),
    ("call 0 does not wait for approval b", tools(WaitingApproval("a")), ApprovalGiven(0, "b")),
    ("call 0 does not wait for approval a", tools(Approved("a")), ApprovalGiven(0, "a")),
    ("call 0 is not planned", tools(WaitingApproval("a")), CallsIntended(((0, "safe"),))),
    ("call 0 was not under way", tools(WaitingApproval("a", "ask", 1, 0)), ReplayIntended(0, "ask")),
    ("nobody allowed call 0 to run again", tools(EffectPending("ask")), ReplayIntended(0, "safe")),
    ("nobody allowed call 0 to run again", tools(SAFE), ReplayIntended(0, "ask")),
    ("nobody allowed call 0 to run again", tools(EffectGranted("ask", 1, 0, "a")), ReplayIntended(0, "ask")),
    ("call 0 must not run again", tools(EffectGranted("ask", 1, 0, "a", permit=True)), ReplayIntended(0, "never")),
    ("nobody is asked once an abort is asked for", cancelled(tools(SAFE)), QuestionsAsked(((0, "q"),))),
    ("nothing is asked", tools(SAFE), QuestionsAsked(())),
    ("call 0 was not under way", tools(Planned()), QuestionsAsked(((0, "q"),))),
    ("call 0 was not under way", tools(WaitingQuestion("q", "safe")), QuestionsAsked(((0, "r"),))),
    ("call 0 was not under way", tools(AnsweredCall("safe")), QuestionsAsked(((0, "q"),))),
    ("call 0 was not under way", tools(EffectGranted("safe", 1, 0, "a", permit=True)), QuestionsAsked(((0, "q"),))),
    ("call 0 must not run again", tools(NEVER), QuestionsAsked(((0, "q"),))),
    ("call 0 must not run again", tools(EffectGranted("ask", 2, 1, "a")), QuestionsAsked(((0, "q"),))),
    ("an abort made every question void", cancelled(tools(WaitingQuestion("q", "safe"))), QuestionAnswered(0, "q")),
    ("call 0 does not wait for an answer to r", tools(WaitingQuestion("q", "safe")), QuestionAnswered(0, "r")),
    ("call 0 does not wait for an answer to q", tools(AnsweredCall("safe")), QuestionAnswered(0, "q")),
    ("call 0 does not wait for an answer to a", tools(WaitingApproval("a")), QuestionAnswered(0, "a")),
    ("call 0 does not wait for approval q", tools(WaitingQuestion("q", "safe")), ApprovalGiven(0, "q")),
    ("call 0 is not planned", tools(WaitingQuestion("q", "safe")), CallsIntended(((0, "safe"),))),
    ("call 0 is not planned", tools(EffectResumed("safe", 2, 0)), CallsIntended(((0, "safe"),))),
    ("call 0 is not planned", tools(AnsweredCall("safe")), ChildrenStarted((0,))),
    ("call 0 must not run again", tools(AnsweredCall("safe")), CallsIntended(((0, "never"),))),
    ("call 0 must not run again", tools(AnsweredCall("safe")), CallsIntended(((0, "ask"),))),
    ("call 0 must not run again", tools(AnsweredCall("ask")), CallsIntended(((0, "safe"),))),
    ("call 0 was not under way", tools(WaitingQuestion("q", "safe")), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(AnsweredCall("safe")), ReplayIntended(0, "safe")),
    ("call 0 was not under way", tools(AnsweredCall("safe")), CallsNotBegun((0,))),
    ("call 0 was not under way", tools(WaitingQuestion("q", "safe")), CallsDeferred((0,))),
    ("there is nothing to ask about call 0", tools(AnsweredCall("safe")), ApprovalsAsked(((0, "a"),))),
    ("call 0 has used up its replays", tools(EffectResumed("safe", 5, 3)), ReplayIntended(0, "safe")),
    ("an abort is asked for already", cancelled(tools(WaitingQuestion("q", "safe"))), AbortRequested(78)),
    ("nothing is placed once an abort is asked for", cancelled(FINISH), QueuedPlaced(("w",))),
    ("nothing is placed", RESPOND, QueuedPlaced(())),
    ("an abort is asked for already", cancelled(RESPOND), AbortRequested(78)),
    ("an abort is asked for already", cancelled(ASKING), AbortRequested(78)),
    ("an abort is asked for already", cancelled(WAITING), AbortRequested(78)),
    ("an abort is asked for already", cancelled(tools(NEVER)), AbortRequested(78)),
    ("an abort is asked for: the run ends aborted", cancelled(RESPOND), ModelUnavailable(GONE)),
    ("an abort is asked for: the run ends aborted", cancelled(WAITING), ModelUnavailable(GONE)),
    ("the run is about to finish", FINISH, ModelUnavailable(GONE)),
    ("an abort is asked for: the run ends aborted", cancelled(FINISH), Failed(LIMIT)),
    ("the run is not about to finish", RESPOND, FollowedUp(((LATER, user("more")),))),
    ("an abort is asked for: the run ends aborted", cancelled(FINISH), FollowedUp(((LATER, user("more")),))),
    ("there is nothing to say", FINISH, FollowedUp(())),
    ("the run is not about to finish", RESPOND, Finished()),
    ("the run is not about to finish", WAITING, Finished()),
    *SUMMARY_GUARDS,
]


@pytest.mark.parametrize(
    ("why", "state", "fact"),
    GUARDS,
    ids=[f"{why} ({type(state).__name__}, {type(fact).__name__})" for why, state, fact in GUARDS],
)
def test_a_fact_that_does_not_fit_raises_and_moves_nothing(why: str, state: OperationState, fact: Fact) -> None:
    before = copy.deepcopy(state)

    with pytest.raises(IllegalStep) as caught:
        step(state, fact, RULES)

    assert str(caught.value) == f"{why}: {before!r}"
    assert state == before


# Properties.


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tools, list[Outcome]]:
    """A batch in which some calls are done, and outcomes of some of the others in the order they arrive."""
    placed = draw(st.integers(0, 2))
    calls: list[CallState] = [Placed(draw(st.booleans())) for _ in range(placed)]
    calls += [
        draw(st.sampled_from([Planned(), NEVER, SAFE, OutcomeReady(False), OutcomeReady(True)]))
        for _ in range(draw(st.integers(1, 5)))
    ]
    if isinstance(calls[placed], OutcomeReady):
        calls[placed] = NEVER  # placed calls form a prefix, and what is staged waits for one before it
    waiting = [index for index, each in enumerate(calls) if isinstance(each, Planned | EffectPending)]
    arriving = draw(st.permutations(waiting))[: draw(st.integers(1, len(waiting)))]
    outcomes = [outcome(index, f"result {index}", terminate=draw(st.booleans())) for index in arriving]
    return tools(*calls, cancelled_at=draw(st.sampled_from([None, 77]))), outcomes


class Told(NamedTuple):
    """What a series of steps came to: the state, the placed results in order, the staged ones."""

    state: OperationState | None
    conversation: tuple[tuple[int, str], ...]
    staged: dict[int, str]


def tell(state: OperationState, groups: list[list[Outcome]]) -> Told:
    conversation: list[tuple[int, str]] = []
    staged = {
        index: f"staged {index}"
        for index, each in enumerate(state.calls if isinstance(state, Tools) else ())
        if isinstance(each, OutcomeReady)
    }
    after: OperationState = state
    for group in groups:
        taken = step(after, OutcomesArrived(tuple(group)), RULES)
        for change in taken.changes:
            if isinstance(change, PlaceResult):
                text = staged.pop(change.index) if change.message is None else change.message.text
                conversation.append((change.index, text))
            elif isinstance(change, StageResult):
                assert change.index not in staged
                staged[change.index] = change.message.text
        assert taken.state is not None
        after = taken.state
    return Told(after, tuple(conversation), staged)


@given(batches(), st.data())
def test_outcomes_in_one_step_equal_the_same_ones_taken_one_by_one_or_in_any_groups(
    batch: tuple[Tools, list[Outcome]], data: st.DataObject
) -> None:
    state, outcomes = batch
    cuts = data.draw(st.sets(st.integers(1, len(outcomes)))) | {0, len(outcomes)}
    edges = sorted(cuts)

    one_by_one = tell(state, [[each] for each in outcomes])
    together = tell(state, [outcomes])
    grouped = tell(state, [outcomes[a:b] for a, b in pairwise(edges)])

    assert one_by_one == together == grouped
    indices = [index for index, _ in one_by_one.conversation]
    assert indices == sorted(indices), "results are placed in call order"


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_whatever_order_outcomes_arrive_in_the_conversation_has_them_in_call_order(order: tuple[int, ...]) -> None:
    told = tell(tools(NEVER, SAFE, Planned(), KEYED), [[outcome(index, str(index))] for index in order])

    assert told.conversation == ((0, "0"), (1, "1"), (2, "2"), (3, "3"))
    assert told.state == Checkpoint(next="respond", trigger=call_id(ANSWER, 3), turn=1, answer=ANSWER)
    assert told.staged == {}


RUNNING = [row for row in ROWS if row.state.cancel_requested_at is None and not isinstance(row.fact, AbortRequested)]


@pytest.mark.parametrize("row", RUNNING, ids=[row.name for row in RUNNING])
def test_a_step_under_abort_never_forgets_it_and_can_only_end_aborted(row: Row) -> None:
    try:
        taken = step(cancelled(row.state), row.fact, RULES)
    except IllegalStep:
        return

    if taken.state is None:
        assert isinstance(taken.changes[-1], End) and taken.changes[-1].status == "aborted"
    else:
        assert taken.state.cancel_requested_at == 77
        assert not taken.effects, "nothing starts"


@given(
    base_ms=st.integers(0, 100_000),
    cap_ms=st.integers(0, 10_000_000),
    failures=st.integers(0, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    retry_after_ms=st.none() | st.integers(-(2**70), 2**70),
)
def test_a_backoff_is_at_least_half_and_at_most_all_of_the_capped_delay_but_never_below_retry_after(
    base_ms: int, cap_ms: int, failures: int, jitter: float, retry_after_ms: int | None
) -> None:
    full = min(cap_ms, base_ms * 2 ** min(failures, 30))
    asked = min(max(retry_after_ms or 0, 0), RETRY_AFTER_MAX_MS)

    delay = backoff_ms(RetryPolicy(base_ms=base_ms, cap_ms=cap_ms), failures, jitter, retry_after_ms)

    assert max(full // 2, asked) <= delay <= max(full, asked)


def test_the_backoff_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(base_ms=500, cap_ms=30_000)

    assert [backoff_ms(policy, n, 0.0, None) for n in range(9)] == [
        250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000,
    ]  # fmt: skip


def test_a_backoff_is_whole_milliseconds_and_doubles_thirty_times_at_most() -> None:
    odd, endless = RetryPolicy(base_ms=5, cap_ms=5), RetryPolicy(base_ms=1, cap_ms=2**53)

    delays = [backoff_ms(odd, 0, jitter, None) for jitter in (0.0, 0.5, 0.7)]

    assert delays == [2, 3, 4] and all(type(delay) is int for delay in delays)
    assert backoff_ms(endless, 30, 0.0, None) == backoff_ms(endless, 31, 0.0, None) == 2**29


@pytest.mark.parametrize("retries", [0, 2])
def test_a_failed_answer_that_does_not_say_why_is_a_model_error_that_is_final(retries: int) -> None:
    state = replace(ASKING, retries=retries)

    taken = step(state, answered(answer(stop_reason="error")), RULES)

    unknown = ErrorInfo(code="model_error", message="the model's answer ended in an error")
    assert taken.state is None
    assert taken.changes[-1] == End("failed", 4, ANSWER, code="model_error", error=unknown)


def test_retry_after_of_a_provider_gone_mad_is_cut_to_a_day() -> None:
    assert backoff_ms(RetryPolicy(), 0, 0.0, 10**15) == 24 * 3600 * 1000
