"""What can go on now: a verdict over an operation's state and over what this process knows (the view). Pure.

The driver turns a verdict into a fact, takes the step, and asks again until the verdict is ``Idle``, ``SleepUntil`` or
``AwaitAnswers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

from msgspec import Struct

from agentlane.data.messages import ErrorInfo, UserMessage
from agentlane.data.operations import (
    REPEATABLE,
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
    SummaryReason,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.machine.rules import Rules
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
    SettledWithout,
    SleepUntil,
    StartCalls,
    TakeSummary,
    Verdict,
)


class CallView(Struct, frozen=True, gc=False):
    """What this process knows of one call: why it cannot run (text for the model), its policy now, and its manners.

    ``policy`` is None when no implementation is here. ``problem`` is None when the arguments are valid. ``approval``
    is whether a person is to be asked before its start: ``open`` until its predicate was asked, ``asking`` while that
    is under way. ``unbound`` says that the stored yes is for other arguments. ``child`` says that the call is another
    agent's run.
    """

    policy: ReplayPolicy | None
    parallel: bool = True
    problem: str | None = None
    approval: Literal["no", "yes", "open", "asking"] = "no"
    unbound: bool = False
    child: bool = False


class Waiting(Struct, frozen=True, gc=False):
    """How many items of the inbox wait that an open operation may place."""

    writes: int = 0
    steers: int = 0
    follow_ups: int = 0


NOTHING_WAITS = Waiting()


class SummaryView(Struct, frozen=True, gc=False):
    """That something is to be summarized before the model is asked, and for which ``reason``.

    ``refused`` is why it cannot be, or must not; ``given`` is what the application has written itself.
    """

    reason: SummaryReason
    refused: ErrorInfo | None = None
    given: str | None = None


class View(Struct, frozen=True, gc=False):
    """What this process knows besides the state.

    ``live`` are the calls whose effect runs in this pass or whose outcome has not been taken yet; ``not_begun`` are
    those that were intended but whose effect was then not started. ``request_live`` and ``request_not_begun`` say the
    same of a model request. ``cut`` says that the answer ended at its length limit. ``expired`` are the calls that wait
    for an answer whose time is over, ``held`` those whose outcome must not be placed yet.
    """

    now: int
    calls: Sequence[CallView] = ()
    live: frozenset[int] = frozenset()
    not_begun: frozenset[int] = frozenset()
    cut: bool = False
    expired: frozenset[int] = frozenset()
    stuck: frozenset[int] = frozenset()
    """Runs of other agents that cannot go on now."""
    request_live: bool = False
    request_not_begun: bool = False
    model_problem: ErrorInfo | None = None
    held: frozenset[int] = frozenset()
    follow_up: bool = False
    """Hooks have more to say where the run would finish."""
    failure: ErrorInfo | None = None
    """Why the run fails at the next boundary, also where it would finish."""
    limit: ErrorInfo | None = None
    """The limit of the operation that is reached."""
    output: UserMessage | ErrorInfo | None = None
    """What is wrong with the answer that would end the operation: what the model is told, or the end without that."""
    waiting: Waiting = NOTHING_WAITS
    summary: SummaryView | None = None
    """What is to be summarized where the state asks for it, or before the next request."""


_IDLE = Idle()
_AWAIT_ANSWERS = AwaitAnswers()


def plan(state: OperationState, view: View, rules: Rules) -> Verdict:
    """The one thing to do next."""
    cancelled = state.cancel_requested_at is not None
    match state:
        case Checkpoint():
            if cancelled:
                return Finish()
            if view.failure is not None:
                return Fail(view.failure)
            if state.next == "summarize":
                return Fail(view.limit) if view.limit is not None else _plan_summary(state, view)
            if view.waiting is not NOTHING_WAITS and (placement := _plan_placement(state, view, rules)) is not None:
                return placement
            if state.next == "end":
                return Finish()
            if state.next == "finish":
                return _plan_finish(view)
            if view.limit is not None:
                return Fail(view.limit)
            if view.model_problem is not None:
                return GiveUp(view.model_problem)
            if view.summary is None or state.compacted or state.unsummarized:
                return AskModel()
            return _plan_summary(state, view)
        case RetryWait():
            if cancelled:
                return Finish()
            if view.failure is not None:
                return Fail(view.failure)
            if view.limit is not None:
                return Fail(view.limit)
            if view.now < state.not_before:
                return SleepUntil(state.not_before)
            return AskModel() if view.model_problem is None else GiveUp(view.model_problem)
        case Generating():
            if view.request_live:
                return _IDLE
            return DropRequest() if cancelled and view.request_not_begun else RecoverRequest()
        case Summarizing():
            if view.request_live:
                return _IDLE
            return DropSummary() if cancelled and view.request_not_begun else RecoverSummary()
        case SummaryWait():
            return _plan_next_summary(state, view)
        case Navigating():
            if cancelled:
                return Finish()
            return Navigate() if view.failure is None else Fail(view.failure)
        case Tools():
            if _is_ready(state, view.held):
                return PlaceReady()
            return _plan_cancelled(state, view) if cancelled else _plan_calls(state, view, rules)
        case _:
            assert_never(state)


def _plan_summary(state: Checkpoint, view: View) -> Verdict:
    """A summary that the state asks for, or that the next request needs."""
    wanted = view.summary
    if wanted is None:
        raise RuntimeError(f"it is not known what to summarize at {state!r}")
    if wanted.refused is not None:
        return RefuseSummary(wanted.reason, wanted.refused)
    if wanted.given is not None:
        return TakeSummary(wanted.reason, wanted.given)
    if view.model_problem is not None:
        return RefuseSummary(wanted.reason, view.model_problem)
    return AskSummary(wanted.reason)


def _plan_next_summary(state: SummaryWait, view: View) -> Verdict:
    if state.cancel_requested_at is not None:
        return Finish()
    problem = view.failure or view.limit
    if problem is not None:
        return Fail(problem)
    if view.now < state.not_before:
        return SleepUntil(state.not_before)
    if view.model_problem is not None:
        return RefuseSummary(state.reason, view.model_problem)
    return AskSummary(state.reason)


def _plan_finish(view: View) -> Verdict:
    if view.output is None:
        return FollowUp() if view.follow_up else Finish()
    return AskAgain(view.output) if isinstance(view.output, UserMessage) else Fail(view.output)


def _is_ready(state: Tools, held: frozenset[int]) -> bool:
    """Whether the outcome that is next is staged. Only where it was held before."""
    index = next((index for index, call in enumerate(state.calls) if not isinstance(call, Placed)), None)
    return index is not None and index not in held and isinstance(state.calls[index], OutcomeReady)


def _plan_placement(state: Checkpoint, view: View, rules: Rules) -> PlaceQueued | None:
    """Writes at any boundary; steers too, and a follow-up where the run would end without one: these ask the model."""
    waiting = view.waiting
    if state.next == "finish" and view.output is not None:
        return None  # what is wrong with the answer comes right behind it
    steers = follow_ups = 0
    if state.next == "end":
        return PlaceQueued(waiting.writes) if waiting.writes else None
    # Input that cannot be answered waits on, and fails no run that is complete.
    if view.model_problem is None and view.limit is None:
        steers = _at_once(waiting.steers, rules.steering, state)
        if state.more:
            follow_ups = waiting.follow_ups
        elif state.next == "finish" and not waiting.steers:
            follow_ups = _at_once(waiting.follow_ups, rules.follow_ups, state)
    if not (waiting.writes or steers or follow_ups):
        return None
    return PlaceQueued(waiting.writes, steers, follow_ups)


def _at_once(waiting: int, mode: PlaceMode, state: Checkpoint) -> int:
    return waiting if mode == "all" else min(waiting, 0 if state.placed else 1)


def may_replay(call: EffectPending, now: CallView, rules: Rules) -> bool:
    """Whether a call that an earlier pass began may run again: stored and current policy allow it, and its bound."""
    return (
        now.problem is None
        and now.policy in REPEATABLE
        and call.policy in REPEATABLE
        and call.replays < rules.limits.max_replays
    )


def may_ask(call: EffectPending, now: CallView, rules: Rules) -> bool:
    """Whether a call that an earlier pass began may run again if a person says so: no policy forbids it, nor its bound.

    With a permit that is what its yes is worth.
    """
    return (
        now.problem is None
        and now.policy not in (None, "never")
        and call.policy != "never"
        and call.replays < rules.limits.max_replays
    )


def may_resume(call: AnsweredCall, now: CallView) -> bool:
    """Whether a call that asked may start again: stored and current policy allow it. It is no replay."""
    return now.problem is None and now.policy in REPEATABLE and call.policy in REPEATABLE


def _plan_cancelled(state: Tools, view: View) -> Verdict:
    settle: list[tuple[int, SettledWithout]] = []
    for index, call in enumerate(state.calls):
        if isinstance(call, Planned | Approved):
            settle.append((index, "not_started"))
        elif isinstance(call, WaitingApproval):
            settle.append((index, "interrupted" if call.attempt else "not_started"))
        elif isinstance(call, WaitingExternal | WaitingQuestion | AnsweredCall):
            settle.append((index, "aborted"))
        elif isinstance(call, EffectPending) and index not in view.live:
            settle.append((index, _cancelled(call, not_begun=index in view.not_begun)))
    return SettleCalls(tuple(settle)) if settle else _drive_children(state, view.live) or _IDLE


def _cancelled(call: EffectPending, *, not_begun: bool) -> SettledWithout:
    """What is known of a call that nobody runs: one that was to start again has begun, and asked, all the same."""
    if not_begun and isinstance(call, EffectResumed):
        return "aborted"
    return "not_started" if not_begun and call.replays == 0 else "interrupted"


def _plan_calls(state: Tools, view: View, rules: Rules) -> Verdict:
    if view.cut:
        settle = tuple((i, "cut") for i, call in enumerate(state.calls) if isinstance(call, Planned))
        return SettleCalls(settle) if settle else _IDLE  # type: ignore[arg-type]
    if view.expired:
        return SettleCalls(tuple((index, "expired") for index in sorted(view.expired)))
    waiting = _drive_children(state, view.live | view.stuck)
    return waiting or _plan_recovery(state, view, rules) or _plan_starts(state, view, rules)


def _drive_children(state: Tools, driven: frozenset[int]) -> Verdict | None:
    """A run of another agent goes on where it stands, whatever stopped: it has an operation of its own."""
    left = tuple(i for i, call in enumerate(state.calls) if isinstance(call, WaitingChild) and i not in driven)
    return DriveChildren(left) if left else None


def _plan_recovery(state: Tools, view: View, rules: Rules) -> Verdict | None:
    """Calls begun by an earlier pass come first: results for those that must not run again, the others one by one."""
    lost: list[tuple[int, SettledWithout]] = []
    again: list[tuple[int, ReplayPolicy]] = []
    ask: list[int] = []
    replaying = False
    for index, call in enumerate(state.calls):
        if not isinstance(call, EffectPending):
            continue
        if index in view.live:
            replaying = replaying or (call.replays > 0 and not isinstance(call, EffectResumed))
            continue
        now = view.calls[index]
        asked = may_ask(call, now, rules)
        if now.policy is not None and (may_replay(call, now, rules) or (asked and _permitted(call))):
            again.append((index, now.policy))
        elif asked:
            ask.append(index)
        else:
            lost.append((index, "interrupted"))
    if lost:
        return SettleCalls(tuple(lost))
    if ask:
        return AskApprovals(tuple(ask))
    if replaying:
        return _IDLE
    if again:  # beside nothing else: a yes may come when other calls run already
        return _IDLE if view.live else ReplayCall(*again[0])
    return None


def _permitted(call: EffectPending) -> bool:
    return isinstance(call, EffectGranted) and call.permit


def _plan_starts(state: Tools, view: View, rules: Rules) -> Verdict:
    refused: list[tuple[int, SettledWithout]] = []
    starts: list[tuple[int, ReplayPolicy]] = []
    children: list[int] = []
    consult: list[int] = []
    ask: list[int] = []
    waits = consulting = full = False
    running = len(view.live)
    for index, call in enumerate(state.calls):
        if isinstance(call, (OutcomeReady, Placed)):
            continue
        now = view.calls[index]
        if isinstance(call, (EffectPending, WaitingApproval, WaitingExternal, WaitingQuestion, WaitingChild)):
            waits = waits or isinstance(call, WaitingApproval | WaitingExternal | WaitingQuestion)
            waits = waits or index in view.stuck
            if not now.parallel:
                break  # it runs alone
            continue
        if isinstance(call, AnsweredCall) and not may_resume(call, now):
            refused.append((index, "stranded"))
            continue
        if now.problem is not None or now.policy is None:
            if not full:
                refused.append((index, "refused"))
            continue
        if not now.parallel and (running or starts or children or waits):
            break  # a barrier: what is before it ends, it runs alone, then the later ones
        approval = _approval_of(call, now)
        if approval == "no":
            full = full or running + len(starts) + len(children) >= rules.limits.max_parallel
            if not full and now.child:
                children.append(index)
            elif not full:
                starts.append((index, now.policy))
        else:  # it holds no slot
            waits = True
            consulting = consulting or approval == "asking"
            if approval != "asking":
                (ask if approval == "yes" else consult).append(index)
        if not now.parallel:
            break
    if refused:
        return SettleCalls(tuple(refused))
    if consult:
        return AskPredicates(tuple(consult))
    if ask and not consulting:
        return AskApprovals(tuple(ask))
    if starts or children:
        return StartCalls(tuple(starts), tuple(children))
    return _AWAIT_ANSWERS if waits and not consulting and not running else _IDLE


def _approval_of(call: CallState, now: CallView) -> Literal["no", "yes", "open", "asking"]:
    """Whether a person is to be asked before the start of a call that has not begun."""
    if isinstance(call, AnsweredCall):
        return "no"
    if isinstance(call, Approved):
        return "yes" if now.unbound else "no"
    return now.approval
