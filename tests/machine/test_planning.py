"""Claim: the verdict is the one thing that may happen next: barriers, bounds, replay rules and aborts are honoured."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import replace

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
    OperationState,
    OutcomeReady,
    Placed,
    PlaceMode,
    Planned,
    ReplayPolicy,
    RetryWait,
    Summarizing,
    SummaryWait,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.machine.planning import CallView, SummaryView, View, Waiting, plan
from agentlane.machine.verdicts import (
    AskAgain,
    AskApprovals,
    AskModel,
    AskPredicates,
    AskSummary,
    AwaitAnswers,
    DriveChildren,
    DropRequest,
    DropSummary,
    Fail,
    Finish,
    FollowUp,
    GiveUp,
    Idle,
    Navigate,
    PlaceQueued,
    PlaceReady,
    RecoverRequest,
    RecoverSummary,
    RefuseSummary,
    ReplayCall,
    SettleCalls,
    SleepUntil,
    StartCalls,
    TakeSummary,
    Verdict,
)
from tests.machine.build import ANSWER, CORRECTION, GONE, INVALID, LIMIT, OVERLOADED, REFUSED, rules, tools

POLICIES: tuple[ReplayPolicy, ...] = get_args(ReplayPolicy)
RULES = rules()
P, N, R, D = Planned(), EffectPending("never"), OutcomeReady(), Placed()


def view(
    *calls: CallView,
    live: set[int] | None = None,
    not_begun: set[int] | None = None,
    cut: bool = False,
    held: set[int] | None = None,
) -> View:
    return View(
        now=1_000,
        calls=calls,
        live=frozenset(live or ()),
        not_begun=frozenset(not_begun or ()),
        cut=cut,
        held=frozenset(held or ()),
    )


def ok(policy: ReplayPolicy = "safe") -> CallView:
    return CallView(policy)


def alone(policy: ReplayPolicy = "safe") -> CallView:
    return CallView(policy, parallel=False)


BAD = CallView("safe", problem="bad arguments")
MISSING = CallView(None, problem="no such tool")


def starting(verdict: Verdict) -> list[int]:
    """The calls that a verdict starts; none when it starts nothing."""
    return [index for index, _ in verdict.calls] if isinstance(verdict, StartCalls) else []


# What waits in the inbox.

ALL_WAIT = Waiting(writes=2, steers=2, follow_ups=2)


def at(
    next: Literal["respond", "finish"], *, placed: bool = False, more: bool = False, cancelled: bool = False
) -> Checkpoint:
    cancelled_at = 1 if cancelled else None
    return Checkpoint(next=next, trigger="in", placed=placed, more=more, cancel_requested_at=cancelled_at)


@pytest.mark.parametrize(
    ("state", "waiting", "steering", "follow_ups", "expected"),
    [
        (at("respond"), ALL_WAIT, "all", "one", PlaceQueued(2, 2, 0)),
        (at("respond"), ALL_WAIT, "one", "all", PlaceQueued(2, 1, 0)),
        (at("finish"), ALL_WAIT, "all", "all", PlaceQueued(2, 2, 0)),
        (at("finish"), Waiting(follow_ups=2), "all", "one", PlaceQueued(0, 0, 1)),
        (at("finish"), Waiting(follow_ups=2), "one", "all", PlaceQueued(0, 0, 2)),
        (at("finish"), Waiting(writes=1, follow_ups=1), "all", "one", PlaceQueued(1, 0, 1)),
        (at("finish"), Waiting(writes=1), "all", "one", PlaceQueued(1, 0, 0)),
        (at("respond"), Waiting(follow_ups=2), "all", "all", AskModel()),
        (at("respond", placed=True), Waiting(steers=1), "one", "one", AskModel()),
        (at("respond", placed=True), Waiting(steers=1), "all", "one", PlaceQueued(0, 1, 0)),
        (at("respond", placed=True), Waiting(writes=1, steers=1), "one", "one", PlaceQueued(1, 0, 0)),
        (at("respond", placed=True, more=True), Waiting(follow_ups=2), "all", "all", PlaceQueued(0, 0, 2)),
        (at("respond", placed=True, more=True), ALL_WAIT, "one", "all", PlaceQueued(2, 0, 2)),
        (at("respond", placed=True, more=True), Waiting(), "all", "all", AskModel()),
        (at("respond", placed=True, more=True, cancelled=True), ALL_WAIT, "all", "all", Finish()),
        (at("finish", cancelled=True), ALL_WAIT, "all", "all", Finish()),
        (at("respond", cancelled=True), ALL_WAIT, "all", "all", Finish()),
        (at("finish"), Waiting(), "all", "all", Finish()),
    ],
)
def test_what_waits_is_placed_where_and_as_much_as_it_may(
    state: Checkpoint, waiting: Waiting, steering: PlaceMode, follow_ups: PlaceMode, expected: Verdict
) -> None:
    assert (
        plan(state, View(now=1, waiting=waiting), replace(RULES, steering=steering, follow_ups=follow_ups)) == expected
    )


def test_input_waits_on_where_no_model_can_answer_it_and_deferred_writes_do_not() -> None:
    seen = View(now=1, model_problem=GONE, waiting=ALL_WAIT)

    assert plan(at("finish"), seen, RULES) == PlaceQueued(2, 0, 0)
    assert plan(at("finish"), replace(seen, model_problem=None, limit=GONE), RULES) == PlaceQueued(2, 0, 0)
    assert plan(at("finish"), replace(seen, waiting=Waiting(steers=1, follow_ups=1)), RULES) == Finish()
    assert plan(at("respond"), replace(seen, waiting=Waiting(steers=1)), RULES) == GiveUp(GONE)


def test_what_is_wrong_with_an_answer_is_said_right_behind_it_and_what_waits_comes_then() -> None:
    assert plan(at("finish"), View(now=1, output=CORRECTION, waiting=ALL_WAIT), RULES) == AskAgain(CORRECTION)
    assert plan(at("finish"), View(now=1, output=GONE, waiting=ALL_WAIT), RULES) == Fail(GONE)
    assert plan(at("respond"), View(now=1, waiting=ALL_WAIT), RULES) == PlaceQueued(2, 2, 0)


def test_nothing_is_placed_before_the_next_attempt_of_a_turn_nor_in_a_batch() -> None:
    retrying = RetryWait(attempt=1, not_before=5, error=OVERLOADED)

    assert plan(retrying, View(now=4, waiting=ALL_WAIT), RULES) == SleepUntil(5)
    assert plan(retrying, View(now=5, waiting=ALL_WAIT), RULES) == AskModel()
    assert plan(tools(P, N), replace(view(ok(), ok(), live={1}), waiting=ALL_WAIT), RULES) == StartCalls(((0, "safe"),))


# Between effects.


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        (Checkpoint(next="respond", trigger="in"), View(now=1), AskModel()),
        (Checkpoint(next="respond", trigger="in"), View(now=1, model_problem=GONE), GiveUp(GONE)),
        (Checkpoint(next="finish", trigger="a"), View(now=1, model_problem=GONE), Finish()),
        (Checkpoint(next="respond", trigger="in", cancel_requested_at=1), View(now=1, model_problem=GONE), Finish()),
        (Checkpoint(next="respond", trigger="in"), View(now=1, limit=LIMIT, model_problem=GONE), Fail(LIMIT)),
        (Checkpoint(next="finish", trigger="a"), View(now=1, limit=LIMIT), Finish()),
        (Checkpoint(next="finish", trigger="a"), View(now=1, output=CORRECTION), AskAgain(CORRECTION)),
        (Checkpoint(next="finish", trigger="a"), View(now=1, limit=LIMIT, output=INVALID), Fail(INVALID)),
        (Checkpoint(next="finish", trigger="a", cancel_requested_at=1), View(now=1, output=CORRECTION), Finish()),
        (Checkpoint(next="respond", trigger="in", cancel_requested_at=1), View(now=1, limit=LIMIT), Finish()),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=4, limit=LIMIT), Fail(LIMIT)),
        (
            RetryWait(attempt=1, not_before=5, error=OVERLOADED, cancel_requested_at=1),
            View(now=4, limit=LIMIT),
            Finish(),
        ),
        (Generating(response_id=ANSWER, attempt=1), View(now=1, request_live=True, limit=LIMIT), Idle()),
        (Checkpoint(next="finish", trigger="a"), View(now=1, failure=REFUSED), Fail(REFUSED)),
        (Checkpoint(next="finish", trigger="a"), View(now=1, follow_up=True), FollowUp()),
        (Checkpoint(next="finish", trigger="a"), View(now=1, follow_up=True, failure=REFUSED), Fail(REFUSED)),
        (Checkpoint(next="respond", trigger="in"), View(now=1, follow_up=True), AskModel()),
        (Checkpoint(next="finish", trigger="a", cancel_requested_at=1), View(now=1, follow_up=True), Finish()),
        (Checkpoint(next="respond", trigger="in"), View(now=1, failure=REFUSED, limit=GONE), Fail(REFUSED)),
        (Checkpoint(next="finish", trigger="a", cancel_requested_at=1), View(now=1, failure=REFUSED), Finish()),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=5, failure=REFUSED), Fail(REFUSED)),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=4), SleepUntil(5)),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=4, model_problem=GONE), SleepUntil(5)),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=5), AskModel()),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED), View(now=6, model_problem=GONE), GiveUp(GONE)),
        (RetryWait(attempt=1, not_before=5, error=OVERLOADED, cancel_requested_at=1), View(now=1), Finish()),
        (Generating(response_id=ANSWER, attempt=1), View(now=1, request_live=True), Idle()),
        (Generating(response_id=ANSWER, attempt=1), View(now=1), RecoverRequest()),
        (Generating(response_id=ANSWER, attempt=1), View(now=1, request_not_begun=True), RecoverRequest()),
        (
            Generating(response_id=ANSWER, attempt=1, cancel_requested_at=1),
            View(now=1, request_not_begun=True),
            DropRequest(),
        ),
        (Generating(response_id=ANSWER, attempt=1, cancel_requested_at=1), View(now=1), RecoverRequest()),
        (Generating(response_id=ANSWER, attempt=1, cancel_requested_at=1), View(now=1, request_live=True), Idle()),
    ],
)
def test_between_effects_there_is_one_way_on(
    state: Checkpoint | RetryWait | Generating, seen: View, expected: Verdict
) -> None:
    assert plan(state, seen, RULES) == expected


# Summaries and navigations.

DUE = View(now=5, summary=SummaryView("threshold"))
DECLINED = View(now=5, summary=SummaryView("threshold", refused=REFUSED))
GIVEN = View(now=5, summary=SummaryView("threshold", given="mine"))
WANTED = View(now=5, summary=SummaryView("manual"))
RESPOND, TO_SUMMARIZE = Checkpoint(next="respond", trigger="in"), Checkpoint(next="summarize", trigger="tip")
SUMMARIZED = Checkpoint(next="end", trigger="s")
SUMMARIZING = Summarizing(task="s", reason="threshold", response_id="r", attempt=1, trigger="in")
SUMMARY_LATER = SummaryWait(
    task="s", reason="threshold", attempt=1, trigger="in", not_before=5, error=OVERLOADED, retries=1
)
MOVING = Navigating(target="there")


def stopped(state: Any) -> Any:
    return replace(state, cancel_requested_at=1)


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        # Before a request that would be too long.
        (RESPOND, DUE, AskSummary("threshold")),
        (RESPOND, DECLINED, RefuseSummary("threshold", REFUSED)),
        (RESPOND, GIVEN, TakeSummary("threshold", "mine")),
        (replace(RESPOND, compacted=True), DUE, AskModel()),
        (replace(RESPOND, unsummarized=True), DUE, AskModel()),
        (replace(RESPOND, compacted=True), GIVEN, AskModel()),
        (RESPOND, replace(DUE, model_problem=GONE), GiveUp(GONE)),
        (RESPOND, replace(GIVEN, limit=LIMIT), Fail(LIMIT)),
        (RESPOND, replace(DUE, failure=REFUSED, limit=LIMIT), Fail(REFUSED)),
        (RESPOND, replace(DUE, waiting=ALL_WAIT), PlaceQueued(2, 2, 0)),
        (stopped(RESPOND), DUE, Finish()),
        (Checkpoint(next="finish", trigger="a"), DUE, Finish()),
        # Where one is asked for: nothing is placed before it.
        (TO_SUMMARIZE, WANTED, AskSummary("manual")),
        (TO_SUMMARIZE, replace(WANTED, waiting=ALL_WAIT), AskSummary("manual")),
        (TO_SUMMARIZE, replace(WANTED, follow_up=True, output=CORRECTION), AskSummary("manual")),
        (TO_SUMMARIZE, replace(WANTED, model_problem=GONE), RefuseSummary("manual", GONE)),
        (TO_SUMMARIZE, replace(GIVEN, model_problem=GONE), TakeSummary("threshold", "mine")),
        (TO_SUMMARIZE, replace(DECLINED, model_problem=GONE), RefuseSummary("threshold", REFUSED)),
        (TO_SUMMARIZE, replace(WANTED, limit=LIMIT, model_problem=GONE), Fail(LIMIT)),
        (TO_SUMMARIZE, replace(WANTED, failure=REFUSED, limit=LIMIT), Fail(REFUSED)),
        (stopped(TO_SUMMARIZE), WANTED, Finish()),
        # At a compaction's end: deferred writes, and nobody is asked.
        (SUMMARIZED, View(now=5), Finish()),
        (SUMMARIZED, View(now=5, waiting=ALL_WAIT), PlaceQueued(2, 0, 0)),
        (SUMMARIZED, View(now=5, waiting=ALL_WAIT, model_problem=GONE, limit=LIMIT), PlaceQueued(2, 0, 0)),
        (SUMMARIZED, View(now=5, waiting=Waiting(steers=1, follow_ups=1)), Finish()),
        (SUMMARIZED, View(now=5, model_problem=GONE, limit=LIMIT, follow_up=True, output=CORRECTION), Finish()),
        (SUMMARIZED, View(now=5, failure=REFUSED, waiting=ALL_WAIT), Fail(REFUSED)),
        (stopped(SUMMARIZED), View(now=5, waiting=ALL_WAIT), Finish()),
        # While one is written.
        (SUMMARIZING, View(now=5, request_live=True, limit=LIMIT, failure=REFUSED), Idle()),
        (stopped(SUMMARIZING), View(now=5, request_live=True), Idle()),
        (SUMMARIZING, View(now=5, limit=LIMIT, model_problem=GONE), RecoverSummary()),
        (SUMMARIZING, View(now=5, request_not_begun=True), RecoverSummary()),
        (stopped(SUMMARIZING), View(now=5), RecoverSummary()),
        (stopped(SUMMARIZING), View(now=5, request_not_begun=True), DropSummary()),
        # Between two attempts.
        (SUMMARY_LATER, View(now=4), SleepUntil(5)),
        (SUMMARY_LATER, View(now=4, model_problem=GONE, waiting=ALL_WAIT), SleepUntil(5)),
        (SUMMARY_LATER, View(now=5, waiting=ALL_WAIT), AskSummary("threshold")),
        (SUMMARY_LATER, View(now=5, model_problem=GONE), RefuseSummary("threshold", GONE)),
        (SUMMARY_LATER, View(now=4, limit=LIMIT), Fail(LIMIT)),
        (SUMMARY_LATER, View(now=4, failure=REFUSED, limit=LIMIT), Fail(REFUSED)),
        (stopped(SUMMARY_LATER), View(now=4, limit=LIMIT), Finish()),
        # A navigation without one.
        (MOVING, View(now=5), Navigate()),
        (MOVING, View(now=5, model_problem=GONE, limit=LIMIT, waiting=ALL_WAIT), Navigate()),
        (MOVING, View(now=5, failure=REFUSED), Fail(REFUSED)),
        (stopped(MOVING), View(now=5, failure=REFUSED), Finish()),
    ],
)
def test_a_summary_is_asked_for_taken_or_given_up_in_one_way(
    state: OperationState, seen: View, expected: Verdict
) -> None:
    assert plan(state, seen, RULES) == expected


def test_what_to_summarize_is_told_wherever_a_summary_is_asked_for() -> None:
    with pytest.raises(RuntimeError, match="it is not known what to summarize"):
        plan(TO_SUMMARIZE, View(now=5), RULES)


# Starting calls.


def test_parallel_calls_start_together_with_their_declared_policies() -> None:
    verdict = plan(tools(P, P, P), view(ok("safe"), ok("never"), ok("idempotent")), RULES)

    assert verdict == StartCalls(((0, "safe"), (1, "never"), (2, "idempotent")))


@pytest.mark.parametrize("max_parallel", [1, 2, 3, 8])
def test_no_more_calls_start_than_may_run_at_once(max_parallel: int) -> None:
    state, seen = tools(P, P, P, P), [ok()] * 4

    assert starting(plan(state, view(*seen), rules(max_parallel=max_parallel))) == [*range(min(4, max_parallel))]


def test_calls_that_run_take_their_places() -> None:
    state = tools(N, N, P, P)

    assert starting(plan(state, view(*[ok()] * 4, live={0, 1}), rules(max_parallel=3))) == [2]
    assert plan(state, view(*[ok()] * 4, live={0, 1}), rules(max_parallel=2)) == Idle()


def test_calls_that_are_done_take_none() -> None:
    assert starting(plan(tools(D, R, P, P), view(*[ok()] * 4, held={1}), rules(max_parallel=2))) == [2, 3]


def expected_starts(manners: tuple[bool, ...], done: int) -> list[int]:
    """By the sentence in DESIGN: earlier calls end, a barrier runs alone, then later ones."""
    starts: list[int] = []
    for index in range(done, len(manners)):
        if manners[index]:
            starts.append(index)
            continue
        return starts if index > done else [index]
    return starts


@pytest.mark.parametrize("manners", list(product([True, False], repeat=4)), ids=str)
@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_barrier_waits_for_those_before_it_and_is_waited_for_in_every_arrangement(
    manners: tuple[bool, ...], done: int
) -> None:
    calls: list[CallState] = [D] * done + [P] * (4 - done)
    seen = [CallView("safe", parallel=parallel) for parallel in manners]

    starts = starting(plan(tools(*calls), view(*seen), RULES))

    assert starts == expected_starts(manners, done)
    # And while those run, nothing more than what may run beside them starts.
    for index in starts:
        calls[index] = N
    again = plan(tools(*calls), view(*seen, live=set(starts)), RULES)
    assert again == Idle()


def test_a_staged_call_before_a_barrier_has_ended() -> None:
    assert starting(plan(tools(R, P), view(ok(), alone(), held={0}), RULES)) == [1]


def test_a_call_whose_outcome_has_not_been_taken_yet_still_holds_a_barrier() -> None:
    assert plan(tools(N, P), view(ok(), alone(), live={0}), RULES) == Idle()


# Outcomes that were held.


def test_a_staged_outcome_that_is_next_is_placed_once_nothing_holds_it() -> None:
    state = tools(D, R, P)

    assert plan(state, view(ok(), ok(), ok()), RULES) == PlaceReady()
    assert starting(plan(state, view(ok(), ok(), ok(), held={1}), RULES)) == [2]
    assert plan(tools(D, R), view(ok(), ok(), held={1}), RULES) == Idle()


def test_a_staged_outcome_behind_another_call_is_not_next() -> None:
    assert plan(tools(N, R), view(ok(), ok(), live={0}), RULES) == Idle()


@pytest.mark.parametrize("cut", [False, True])
def test_what_is_next_is_placed_before_anything_else(cut: bool) -> None:
    state = tools(R, EffectPending("safe"), P)

    assert plan(state, view(ok(), ok(), ok(), cut=cut), RULES) == PlaceReady()
    assert plan(tools(R, N, P, cancelled_at=1), view(ok(), ok(), ok()), RULES) == PlaceReady()


# Calls that cannot run.


@pytest.mark.parametrize("bad", [BAD, MISSING, CallView(None)], ids=["arguments", "tool", "implementation"])
def test_a_call_that_cannot_run_gets_its_result_before_anything_starts(bad: CallView) -> None:
    assert plan(tools(P, P, P), view(ok(), bad, bad), RULES) == SettleCalls(((1, "refused"), (2, "refused")))


def test_a_refused_call_before_a_barrier_does_not_hold_it() -> None:
    state, seen = tools(P, P), (BAD, alone())

    assert plan(state, view(*seen), RULES) == SettleCalls(((0, "refused"),))
    assert starting(plan(tools(D, P), view(*seen), RULES)) == [1]


def test_a_refused_call_behind_a_barrier_waits_for_it() -> None:
    assert starting(plan(tools(P, P), view(alone(), BAD), RULES)) == [0]
    assert plan(tools(N, P), view(alone(), BAD, live={0}), RULES) == Idle()
    assert plan(tools(D, P), view(alone(), BAD), RULES) == SettleCalls(((1, "refused"),))


def test_a_refused_call_that_would_be_a_barrier_is_none() -> None:
    refused = CallView("safe", parallel=False, problem="bad arguments")

    assert plan(tools(P, P), view(refused, ok()), RULES) == SettleCalls(((0, "refused"),))
    assert starting(plan(tools(D, P), view(refused, ok()), RULES)) == [1]


# Calls that an earlier pass began.


@pytest.mark.parametrize(("stored", "now"), list(product(POLICIES, [*POLICIES, None])))
@pytest.mark.parametrize("replays", [0, 2, 3])
@pytest.mark.parametrize("problem", [None, "no longer valid"])
def test_a_begun_call_runs_again_only_if_both_policies_allow_it(
    stored: ReplayPolicy, now: ReplayPolicy | None, replays: int, problem: str | None
) -> None:
    state = tools(EffectPending(stored, replays + 1, replays))
    seen = view(CallView(now, problem=problem))
    again = stored in ("safe", "idempotent") and now in ("safe", "idempotent") and replays < 3 and problem is None

    by_yes = "never" not in (stored, now) and now is not None and replays < 3 and problem is None
    granted = tools(EffectGranted(stored, replays + 1, replays, "a", permit=True))

    verdict, permitted = plan(state, seen, RULES), plan(granted, seen, RULES)

    interrupted = SettleCalls(((0, "interrupted"),))
    assert verdict == (ReplayCall(0, now) if again and now else AskApprovals((0,)) if by_yes else interrupted)
    assert permitted == (ReplayCall(0, now) if by_yes and now else interrupted)


def test_four_starts_are_the_most() -> None:
    assert plan(tools(EffectPending("safe", 3, 2)), view(ok()), RULES) == ReplayCall(0, "safe")
    assert plan(tools(EffectPending("safe", 4, 3)), view(ok()), RULES) == SettleCalls(((0, "interrupted"),))
    assert plan(tools(EffectPending("safe")), view(ok()), rules(max_replays=0)) == SettleCalls(((0, "interrupted"),))


def test_calls_that_must_not_run_again_get_their_results_first_and_together() -> None:
    state = tools(EffectPending("safe"), N, P, N)

    assert plan(state, view(ok(), ok(), ok(), ok()), RULES) == SettleCalls(((1, "interrupted"), (3, "interrupted")))


def test_replays_go_one_at_a_time_in_call_order_and_planned_calls_wait_for_them() -> None:
    begun = EffectPending("safe")
    seen = [ok(), ok(), ok(), ok()]

    assert plan(tools(P, begun, begun, P), view(*seen), RULES) == ReplayCall(1, "safe")

    running = EffectPending("safe", 2, 1)
    assert plan(tools(P, running, begun, P), view(*seen, live={1}), RULES) == Idle()
    assert plan(tools(P, R, begun, P), view(*seen), RULES) == ReplayCall(2, "safe")
    assert plan(tools(P, R, running, P), view(*seen, live={2}), RULES) == Idle()
    assert starting(plan(tools(P, R, R, P), view(*seen), RULES)) == [0, 3]


def test_a_replay_does_not_wait_for_a_barrier_before_it() -> None:
    """A barrier before it was passed when it first began: it had ended, or is itself what is run again first."""
    begun = EffectPending("safe")

    assert plan(tools(begun, begun), view(alone(), ok()), RULES) == ReplayCall(0, "safe")
    assert plan(tools(R, begun), view(alone(), ok(), held={0}), RULES) == ReplayCall(1, "safe")


def test_live_calls_of_this_pass_are_not_taken_for_lost_ones() -> None:
    assert plan(tools(N, N), view(ok(), ok(), live={0, 1}), RULES) == Idle()


# Calls that people are asked about.

W = WaitingApproval("w")
ASKED, OPEN, ASKING = (CallView("never", approval=each) for each in ("yes", "open", "asking"))


def test_the_whole_group_is_asked_about_together_and_the_others_start() -> None:
    seen = view(ASKED, ok(), ASKED, alone(), ASKED)

    assert plan(tools(P, P, P, P, P), seen, RULES) == AskApprovals((0, 2))
    assert starting(plan(tools(W, P, W, P, P), seen, RULES)) == [1]
    assert plan(tools(W, N, W, P, P), view(ASKED, ok(), ASKED, alone(), ASKED, live={1}), RULES) == Idle()
    assert plan(tools(W, D, W, P, P), seen, RULES) == AwaitAnswers()


def test_who_waits_holds_no_slot_and_no_room_is_needed_to_be_asked() -> None:
    one = rules(max_parallel=1)

    assert starting(plan(tools(W, W, P), view(ASKED, ASKED, ok()), one)) == [2]
    assert plan(tools(N, P, P), view(ok(), ok(), ASKED, live={0}), one) == AskApprovals((2,))
    assert plan(tools(N, P, P), view(ok(), ok(), BAD, live={0}), one) == Idle()
    asked_and_bad = CallView("never", problem="bad arguments", approval="yes")
    assert plan(tools(N, P, P), view(ok(), ok(), asked_and_bad, live={0}), one) == Idle()


def test_a_predicate_is_asked_first_and_the_questions_wait_until_all_have_answered() -> None:
    assert plan(tools(P, P, P), view(OPEN, ASKED, ok()), RULES) == AskPredicates((0,))
    assert starting(plan(tools(P, P, P), view(ASKING, ASKED, ok()), RULES)) == [2]
    assert plan(tools(P, P), view(ASKING, ASKED), RULES) == Idle()
    assert plan(tools(P, P), view(ASKED, ASKED), RULES) == AskApprovals((0, 1))


def test_a_barrier_waits_behind_one_that_waits_and_is_asked_about_when_its_turn_has_come() -> None:
    barrier = CallView("never", parallel=False, approval="yes")

    assert plan(tools(N, P), view(ok(), barrier, live={0}), RULES) == Idle()
    assert plan(tools(D, P, P), view(ok(), barrier, ASKED), RULES) == AskApprovals((1,))
    assert plan(tools(D, W, P), view(ok(), barrier, ok()), RULES) == AwaitAnswers()
    assert plan(tools(W, P), view(ASKED, alone()), RULES) == AwaitAnswers()


def test_an_approved_call_starts_unless_its_arguments_are_others_now() -> None:
    yes, other = Approved("a"), CallView("never", approval="yes", unbound=True)

    assert plan(tools(yes, yes), view(ASKED, ASKED), RULES) == StartCalls(((0, "never"), (1, "never")))
    assert plan(tools(yes, yes), view(other, ASKED), RULES) == AskApprovals((0,))
    assert plan(tools(yes), view(MISSING), RULES) == SettleCalls(((0, "refused"),))


def test_replays_pass_over_those_that_wait_and_a_late_yes_waits_for_what_runs() -> None:
    waits, permitted = WaitingApproval("w", "ask", 1, 0), EffectGranted("ask", 1, 0, "w", permit=True)
    begun = EffectPending("safe")

    assert plan(tools(waits, begun, P), view(ok("ask"), ok(), ok()), RULES) == ReplayCall(1, "safe")
    assert starting(plan(tools(waits, R, P), view(ok("ask"), ok(), ok()), RULES)) == [2]
    assert plan(tools(permitted, R, N), view(ok("ask"), ok(), ok(), live={2}), RULES) == Idle()
    assert plan(tools(permitted, R, R, P), view(ok("ask"), *[ok()] * 3), RULES) == ReplayCall(0, "ask")


def test_what_has_expired_is_settled_before_anything_starts() -> None:
    seen = View(now=9, calls=(ASKED, ok()), expired=frozenset({0}))

    assert plan(tools(W, P), seen, RULES) == SettleCalls(((0, "expired"),))


def test_under_abort_what_waits_is_settled_by_whether_it_ever_began() -> None:
    state = tools(W, WaitingApproval("w", "ask", 1, 0), Approved("a"), cancelled_at=1)

    assert plan(state, view(ASKED, ok("ask"), ASKED), RULES) == SettleCalls(
        ((0, "not_started"), (1, "interrupted"), (2, "not_started"))
    )


# Calls whose result is delivered.


def test_a_call_whose_result_is_delivered_waits_and_never_runs_again() -> None:
    later = WaitingExternal("safe")

    assert starting(plan(tools(later, P), view(ok(), ok()), rules(max_parallel=1))) == [1]
    assert plan(tools(later, D), view(ok(), ok()), RULES) == AwaitAnswers()
    assert plan(tools(later, P), view(ok(), alone()), RULES) == AwaitAnswers()
    assert plan(tools(later, P), view(alone(), ok()), RULES) == AwaitAnswers()
    assert plan(tools(later, N), view(ok(), ok(), live={1}), RULES) == Idle()
    assert plan(tools(later, cancelled_at=1), view(ok()), RULES) == SettleCalls(((0, "aborted"),))


# Calls that ask people.


def test_a_call_that_asks_waits_in_its_place_and_holds_no_slot() -> None:
    asks = WaitingQuestion("q", "safe")

    assert starting(plan(tools(asks, P), view(ok(), ok()), rules(max_parallel=1))) == [1]
    assert plan(tools(asks, D), view(ok(), ok()), RULES) == AwaitAnswers()
    assert plan(tools(asks, P), view(ok(), alone()), RULES) == AwaitAnswers()
    assert plan(tools(asks, P), view(alone(), ok()), RULES) == AwaitAnswers()
    assert plan(tools(asks, N), view(MISSING, ok(), live={1}), RULES) == Idle()


def test_an_answered_call_starts_again_with_those_whose_turn_has_come_and_takes_a_slot() -> None:
    state = tools(AnsweredCall("safe"), P, AnsweredCall("idempotent", 2, 1))

    verdict = plan(state, view(ok("idempotent"), ok("never"), ok()), RULES)

    assert verdict == StartCalls(((0, "idempotent"), (1, "never"), (2, "safe")))
    assert starting(plan(state, view(ok(), ok(), ok()), rules(max_parallel=2))) == [0, 1]
    assert starting(plan(state, view(ok(), alone(), ok()), RULES)) == [0]
    assert starting(plan(state, view(alone(), ok(), ok()), RULES)) == [0]
    assert plan(tools(N, AnsweredCall("safe")), view(ok(), alone(), live={0}), RULES) == Idle()
    assert plan(tools(W, AnsweredCall("safe")), view(ASKED, alone()), RULES) == AwaitAnswers()


def test_nobody_is_asked_before_a_call_starts_again_and_used_up_replays_do_not_stop_it() -> None:
    for approval in ("yes", "open", "asking"):
        seen = view(CallView("safe", approval=approval))  # type: ignore[arg-type]
        assert plan(tools(AnsweredCall("safe", 4, 3)), seen, RULES) == StartCalls(((0, "safe"),))


@pytest.mark.parametrize(("stored", "now"), list(product(POLICIES, [*POLICIES, None])))
@pytest.mark.parametrize("problem", [None, "no longer valid"])
def test_an_answered_call_that_may_not_run_again_gets_its_result(
    stored: ReplayPolicy, now: ReplayPolicy | None, problem: str | None
) -> None:
    again = stored in ("safe", "idempotent") and now in ("safe", "idempotent") and problem is None

    verdict = plan(tools(AnsweredCall(stored), P), view(CallView(now, problem=problem), ok()), rules(max_parallel=1))

    assert verdict == (StartCalls(((0, now),)) if again and now else SettleCalls(((0, "stranded"),)))


def test_what_cannot_start_again_gets_its_result_though_there_is_no_room() -> None:
    state, one = tools(N, AnsweredCall("safe"), P), rules(max_parallel=1)

    assert plan(state, view(ok(), ok("never"), ok(), live={0}), one) == SettleCalls(((1, "stranded"),))
    assert plan(state, view(ok(), ok(), BAD, live={0}), one) == Idle()


def test_a_call_that_runs_again_with_an_answer_is_no_replay_and_holds_up_nobody() -> None:
    resumed = EffectResumed("safe", 3, 1)

    assert starting(plan(tools(resumed, P, AnsweredCall("safe")), view(ok(), ok(), ok(), live={0}), RULES)) == [1, 2]
    assert plan(tools(EffectPending("safe", 3, 1), P), view(ok(), ok(), live={0}), RULES) == Idle()


def test_a_call_that_died_after_its_answer_is_replayed_before_others_start_within_the_bound() -> None:
    state = tools(P, EffectResumed("safe", 2, 0), AnsweredCall("safe"))

    assert plan(state, view(ok(), ok(), ok()), RULES) == ReplayCall(1, "safe")
    assert plan(state, view(ok(), ok("ask"), ok()), RULES) == AskApprovals((1,))
    assert plan(tools(EffectResumed("safe", 5, 3)), view(ok()), RULES) == SettleCalls(((0, "interrupted"),))


def test_under_abort_a_call_that_asked_is_one_that_ran() -> None:
    calls = (
        WaitingQuestion("q", "safe"),
        AnsweredCall("safe"),
        EffectResumed("safe", 2, 0),
        EffectResumed("safe", 3, 1),
    )
    state = tools(*calls, EffectResumed("safe", 2, 0), EffectResumed("safe", 2, 0), cancelled_at=1)

    verdict = plan(state, view(*[ok()] * 6, not_begun={2, 3}, live={5}), RULES)

    assert verdict == SettleCalls(((0, "aborted"), (1, "aborted"), (2, "aborted"), (3, "aborted"), (4, "interrupted")))


# Cut answers.


def test_calls_of_a_cut_answer_are_told_so_and_never_run() -> None:
    assert plan(tools(P, P), view(ok(), MISSING, cut=True), RULES) == SettleCalls(((0, "cut"), (1, "cut")))
    assert plan(tools(D, P), view(ok(), ok(), cut=True), RULES) == SettleCalls(((1, "cut"),))


# Under abort.


def test_under_abort_planned_calls_are_not_started_and_restored_ones_interrupted() -> None:
    state = tools(P, EffectPending("safe"), N, R, P, cancelled_at=1)

    assert plan(state, view(*[ok()] * 5), RULES) == SettleCalls(
        ((0, "not_started"), (1, "interrupted"), (2, "interrupted"), (4, "not_started"))
    )


def test_under_abort_live_calls_are_waited_for_and_the_others_settled() -> None:
    state = tools(N, P, cancelled_at=1)

    assert plan(state, view(ok(), ok(), live={0}), RULES) == SettleCalls(((1, "not_started"),))
    assert plan(tools(N, R, cancelled_at=1), view(ok(), ok(), live={0}), RULES) == Idle()


def test_under_abort_an_intended_call_that_was_never_begun_is_told_apart_from_a_begun_one() -> None:
    state = tools(N, EffectPending("safe", 2, 1), N, cancelled_at=1)

    assert plan(state, view(ok(), ok(), ok(), not_begun={0, 1}), RULES) == SettleCalls(
        ((0, "not_started"), (1, "interrupted"), (2, "interrupted"))
    )


def test_under_abort_a_cut_answer_and_missing_tools_make_no_difference() -> None:
    state = tools(P, P, cancelled_at=1)

    assert plan(state, view(MISSING, alone(), cut=True), RULES) == SettleCalls(((0, "not_started"), (1, "not_started")))


CHILD = CallView("safe", child=True)


def test_runs_of_other_agents_start_with_the_calls_beside_them_and_take_slots() -> None:
    state = tools(Planned(), Planned(), Planned())
    kinds = (CHILD, ok("never"), CHILD)

    assert plan(state, view(*kinds), RULES) == StartCalls(((1, "never"),), (0, 2))
    one_at_a_time = rules(max_parallel=1)
    assert plan(state, view(*kinds), one_at_a_time) == StartCalls((), (0,))
    running = tools(WaitingChild(), Planned(), Planned())
    assert plan(running, view(*kinds, live={0}), one_at_a_time) == Idle()


def test_a_run_of_another_agent_that_nobody_drives_is_driven_whatever_became_of_its_tool() -> None:
    state = tools(EffectPending("never"), WaitingChild(), Planned())
    gone = CallView(None, problem="no such tool")

    for kind in (CHILD, gone):
        seen = view(ok("never"), kind, ok())
        assert plan(state, seen, RULES) == DriveChildren((1,))
    cancelled = tools(WaitingChild(), Planned(), cancelled_at=7)
    seen = view(CHILD, ok())
    assert plan(cancelled, seen, RULES) == SettleCalls(((1, "not_started"),))
    assert plan(tools(WaitingChild(), OutcomeReady(), cancelled_at=7), seen, RULES) == DriveChildren((0,))
