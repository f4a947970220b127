"""Whether a verdict of the planning may be given: judged by the world alone, with no look at the planning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectPending,
    EffectResumed,
    Generating,
    Navigating,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Summarizing,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.machine.planning import CallView, SummaryView, View
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
from tests.machine.promises import broken, hold
from tests.machine.world import LIVE, World, may_run_again, may_run_again_by_a_yes, may_start_with_an_answer


def check_verdict(world: World, view: View, rules: Rules, verdict: Verdict) -> None:
    """Raise ``Violation`` if the verdict may not be given here, as far as ``view`` and what runs can tell."""
    state, told = world.state, (verdict, view, world)
    if isinstance(state, Checkpoint) and not world.aborted:
        due = _to_place(world, view, rules)
        placed = (verdict.writes, verdict.steers, verdict.follow_ups) if isinstance(verdict, PlaceQueued) else (0, 0, 0)
        hold("inbox", placed == due, told)
    match verdict:
        case Idle():
            runs = world.request in LIVE or any(call.process in LIVE for call in world.calls)
            asking = isinstance(state, Tools) and any(
                isinstance(call, Planned) and seen.approval == "asking"
                for call, seen in zip(state.calls, view.calls, strict=True)
            )
            hold("liveness", runs or asking or _next(world) in view.held, told)
            hold("liveness", world.aborted or world.cut or not _has_room_for_a_start(world, view.calls, rules), told)
        case AwaitAnswers():
            outside = ("asked", "deferred", "question")
            waits = any(call.answer in outside or call.process == "waiting" for call in world.calls)
            hold("liveness", waits and not world.aborted, told)
            hold("liveness", not any(call.process in LIVE for call in world.calls), told)
            hold("yes", not _may_go_on(world, view.calls), told)
        case AskPredicates(calls):
            _check_asks(world, view.calls, rules, calls, "open")
        case AskApprovals(calls):
            _check_asks(world, view.calls, rules, calls, "yes")
        case SleepUntil(at):
            hold("waits", isinstance(state, RetryWait | SummaryWait) and at == state.not_before > view.now, told)
            hold("liveness", not world.aborted, told)
            hold("bounds", view.limit is None, told)
        case AskModel():
            hold("abort", not world.aborted, told)
            hold("waits", not isinstance(state, RetryWait) or view.now >= state.not_before, told)
            hold("legal", view.model_problem is None and view.failure is None, told)
            hold("bounds", view.limit is None, told)
            hold("I10 pairs", not world.calls, told)
            hold("needs", world.kind == "run" and _summary_due(world, view) is None, told)
        case AskSummary() | TakeSummary() | RefuseSummary():
            _check_summary(world, view, verdict)
        case RecoverSummary():
            hold("truth", isinstance(state, Summarizing) and world.request == "", told)
        case DropSummary():
            hold("truth", isinstance(state, Summarizing) and world.request == "not_begun", told)
        case Navigate():
            hold("moves", isinstance(state, Navigating) and world.kind == "navigation", told)
            hold("abort", not world.aborted, told)
            hold("I8 end", view.failure is None, told)
        case GiveUp(error):
            hold("I8 end", not world.aborted and error == view.model_problem, told)
            hold("needs", world.kind == "run" and not isinstance(state, SummaryWait), told)
        case Fail(error):
            hold("I8 end", not world.aborted and error == (view.failure or _in_the_way(state, view)), told)
        case AskAgain(message):
            due = isinstance(state, Checkpoint) and state.next == "finish"
            hold("I8 end", not world.aborted and due and view.failure is None and message == view.output, told)
        case RecoverRequest():
            hold("truth", isinstance(state, Generating) and world.request == "", told)
        case DropRequest():
            hold("truth", isinstance(state, Generating) and world.request == "not_begun", told)
        case PlaceQueued():
            hold("abort", not world.aborted, told)
            hold("I5 results", isinstance(state, Checkpoint) and not world.calls, told)
            hold("progress", bool(verdict.writes or verdict.steers or verdict.follow_ups), told)
        case Finish():
            ends = isinstance(state, Checkpoint) and view.failure is None and state.next == "finish"
            ends = ends and view.output is None and not view.follow_up
            if isinstance(state, Checkpoint) and state.next == "end":
                ends = view.failure is None
            hold("I8 end", world.aborted or ends, told)
        case FollowUp():
            due = isinstance(state, Checkpoint) and state.next == "finish"
            hold("I8 end", due and not world.aborted and view.follow_up and view.failure is None, told)
        case PlaceReady():
            hold("held", isinstance(state, Tools) and _next(world) not in view.held, told)
            hold("held", world.calls[_next(world)].result == "staged", told)
        case StartCalls(calls, children):
            starts = [index for index, _ in calls]
            hold("alone", starts == sorted(starts) and list(children) == sorted(children), told)
            _check_starts(world, view.calls, rules, sorted([*starts, *children]))
            hold("policies", all(view.calls[i].policy == policy for i, policy in calls), told)
            hold("policies", [i for i in (*starts, *children) if view.calls[i].child] == list(children), told)
        case DriveChildren(indices):
            idle = ("", "waiting") if world.aborted else ("",)
            children = [(index, call) for index, call in enumerate(world.calls) if call.child and call.result == ""]
            left = [index for index, call in children if call.process in idle]
            hold("truth", list(indices) == left and bool(left), told)
        case ReplayCall(index, policy):
            _check_replay(world, view.calls, rules, index)
            hold("policies", view.calls[index].policy == policy, told)
        case SettleCalls(calls):
            hold("progress", bool(calls), told)
            for index, why in calls:
                _check_settled(world, view.calls[index], rules, index, why)
        case _:
            assert_never(verdict)


def _in_the_way(state: object, view: View) -> object:
    """What stands in the way of the next step, beside a hook: not the limit where the model is not asked any more."""
    if isinstance(state, Checkpoint) and state.next == "finish":
        return view.output
    return (
        None if isinstance(state, Navigating) or (isinstance(state, Checkpoint) and state.next == "end") else view.limit
    )


def _summary_due(world: World, view: View) -> SummaryView | None:
    """What is to be summarized before anything else is asked for."""
    state = world.state
    if isinstance(state, Checkpoint) and state.next == "respond" and (world.looked or world.unsummarized):
        return None
    return view.summary


def _check_summary(world: World, view: View, verdict: AskSummary | TakeSummary | RefuseSummary) -> None:
    """A summary is asked for, taken or given up as it is told, of what is asked for or due."""
    state, told = world.state, (verdict, view, world)
    hold("abort", not world.aborted, told)
    hold("I8 end", view.failure is None, told)
    hold("bounds", view.limit is None, told)
    if isinstance(state, SummaryWait):
        hold("waits", view.now >= state.not_before, told)
        hold("summaries", verdict.reason == world.task.reason and not isinstance(verdict, TakeSummary), told)
        error = verdict.error if isinstance(verdict, RefuseSummary) else None
        hold("needs", error == view.model_problem, told)
        return
    due = _summary_due(world, view)
    if due is None or verdict.reason != due.reason:
        broken("needs", told)
    match verdict:
        case AskSummary():
            hold("needs", due.refused is None and due.given is None and view.model_problem is None, told)
        case TakeSummary(_, text):
            hold("needs", due.refused is None and due.given == text, told)
        case RefuseSummary(_, error):
            hold("needs", error == (due.refused or view.model_problem), told)
            hold("needs", due.refused is not None or due.given is None, told)
        case _:
            assert_never(verdict)


def _to_place(world: World, view: View, rules: Rules) -> tuple[int, int, int]:
    """What must be placed at this checkpoint: writes always; input only where it can be answered."""
    state = world.state
    writes, steers, follow_ups = world.waiting
    if isinstance(state, Checkpoint) and state.next == "finish" and view.output is not None:
        return 0, 0, 0
    if view.failure is not None:
        return 0, 0, 0
    if isinstance(state, Checkpoint) and state.next in ("summarize", "end"):
        return writes if state.next == "end" else 0, 0, 0
    if view.model_problem is not None or view.limit is not None or not isinstance(state, Checkpoint):
        return writes, 0, 0
    if rules.steering == "one" and steers:
        steers = 0 if world.fed else 1
    if world.unfed:
        follow_ups = world.waiting[2]
    elif state.next == "respond" or world.waiting[1]:
        follow_ups = 0
    elif rules.follow_ups == "one" and follow_ups:
        follow_ups = 1
    return writes, steers, follow_ups


def check_told(world: World, verdict: Verdict) -> None:
    """Raise ``Violation`` if the verdict says of a call what the past of this world contradicts."""
    if isinstance(verdict, SettleCalls):
        for index, why in verdict.calls:
            begun = world.calls[index].begun
            says = {"interrupted": None, "expired": None, "aborted": True, "stranded": True}.get(why, False)
            hold("truth", says is None or begun is says, (verdict, world))


_WAITING = WaitingApproval | WaitingExternal | WaitingQuestion
"""What somebody outside must answer."""


def _has_room_for_a_start(world: World, views: Sequence[CallView], rules: Rules) -> bool:
    """Whether a call could start beside those that run: it has its turn, and none of them is, or waits for, a replay.

    A call that starts again with an answer is no replay.
    """
    state = world.state
    running = sum(call.process in LIVE for call in world.calls)
    if not isinstance(state, Tools) or running >= rules.limits.max_parallel:
        return False
    both = list(zip(state.calls, world.calls, strict=True))
    pending = [happened for call, happened in both if isinstance(call, EffectPending)]
    if any(each.process not in LIVE or (each.replays > 0 and each.answer != "resumed") for each in pending):
        return False
    beside = running > 0
    for call, seen in zip(state.calls, views, strict=True):
        if isinstance(call, OutcomeReady | Placed) or (isinstance(call, Planned | Approved) and seen.problem):
            continue
        if isinstance(call, Planned | Approved | AnsweredCall):
            if beside and not seen.parallel:
                return False
            if _wants(call, seen) == "no":
                return True
        beside = True
        if not seen.parallel:
            return False
    return False


def _may_go_on(world: World, views: Sequence[CallView]) -> bool:
    """Whether some call could go on though others wait for an answer: it is in their group, and is not one of them."""
    state = world.state
    if not isinstance(state, Tools):
        return True
    waits = False
    for call, seen, happened in zip(state.calls, views, world.calls, strict=True):
        if isinstance(call, OutcomeReady | Placed):
            continue
        if not isinstance(call, _WAITING) and happened.process != "waiting":
            return seen.parallel or not waits
        waits = True
        if not seen.parallel:
            return False
    return False


def _check_asks(
    world: World, views: Sequence[CallView], rules: Rules, asked: Sequence[int], approval: Literal["open", "yes"]
) -> None:
    """People are asked, or whether they are to be, about calls whose turn has come; about all of them at once."""
    state, told = world.state, (asked, views, world)
    hold("abort", not world.aborted, told)
    hold("truth", not world.cut, told)
    hold("progress", bool(asked) and list(asked) == sorted(set(asked)), told)
    if not isinstance(state, Tools):
        broken("legal", told)
    again = any(isinstance(state.calls[index], EffectPending) for index in asked)
    hold("yes", _due(world, views, rules, approval, again=again) == list(asked), told)


def _due(
    world: World, views: Sequence[CallView], rules: Rules, approval: Literal["open", "yes"], *, again: bool
) -> list[int]:
    """The calls that are to be asked about now: lost ones, or those of the running group."""
    state = world.state
    assert isinstance(state, Tools)
    found: list[int] = []
    before = False
    for index, (call, seen) in enumerate(zip(state.calls, views, strict=True)):
        if isinstance(call, OutcomeReady | Placed):
            continue
        lost = isinstance(call, EffectPending) and world.calls[index].process not in LIVE
        if again:
            if isinstance(call, EffectPending) and lost and world.calls[index].answer != "given":
                by_yes = may_run_again_by_a_yes(call.policy, call.replays, seen, rules)
                if by_yes and not may_run_again(call.policy, call.replays, seen, rules):
                    found.append(index)
            continue
        refused = not isinstance(call, EffectPending | _WAITING) and (seen.problem is not None)
        if isinstance(call, AnsweredCall):
            refused = not may_start_with_an_answer(call.policy, seen)
        if not seen.parallel and before and not refused:
            break
        if not refused and _wants(call, seen) == approval:
            found.append(index)
        before = before or not refused
        if not seen.parallel and not refused:
            break
    return found


def _wants(call: CallState, seen: CallView) -> str:
    if isinstance(call, Approved):
        return "yes" if seen.unbound else "no"
    return seen.approval if isinstance(call, Planned) else "no"


def _next(world: World) -> int:
    """The call whose result is placed next; beyond the last one there is none."""
    placed = [call.result == "placed" for call in world.calls]
    return placed.index(False) if False in placed else len(placed)


def _check_starts(world: World, views: Sequence[CallView], rules: Rules, starts: list[int]) -> None:
    state, told = world.state, (starts, views, world)
    hold("abort", not world.aborted, told)
    hold("truth", not world.cut, told)
    if not isinstance(state, Tools):
        broken("legal", told)
    running = [index for index, call in enumerate(world.calls) if call.process in LIVE]
    hold("alone", len(running) + len(starts) <= rules.limits.max_parallel, told)
    hold("alone", starts == sorted(set(starts)), told)
    for index, call in enumerate(state.calls):
        if isinstance(call, EffectPending):
            hold("alone", index in running, told)
            hold("alone", call.replays == 0 or isinstance(call, EffectResumed), told)
        elif isinstance(call, WaitingChild):
            hold("alone", index in running or world.calls[index].process == "waiting", told)
    for index in starts:
        view = views[index]
        call = state.calls[index]
        hold("legal", isinstance(call, Planned | Approved | AnsweredCall), told)
        if isinstance(call, AnsweredCall):
            hold("policies", may_start_with_an_answer(call.policy, view) and not view.child, told)
        hold("yes", world.calls[index].answer != "asked" and _wants(call, view) == "no", told)
        hold("policies", view.policy is not None and view.problem is None, told)
        hold("alone", view.parallel or (not running and len(starts) == 1), told)
        for before in range(index):
            if isinstance(state.calls[before], OutcomeReady | Placed):
                continue
            beside = before in starts or before in running or not _is_about_to_start(state.calls[before], views[before])
            hold("alone", view.parallel and beside, told)
    hold("alone", not any(call.alone and call.process in (*LIVE, "waiting") for call in world.calls), told)


def _is_about_to_start(call: CallState, seen: CallView) -> bool:
    """Whether a call before others is neither one that waits for an answer nor one that is about to."""
    if isinstance(call, _WAITING | WaitingChild):
        return not seen.parallel
    return _wants(call, seen) == "no" or not seen.parallel


def _check_replay(world: World, views: Sequence[CallView], rules: Rules, index: int) -> None:
    state, told = world.state, (index, views, world)
    hold("abort", not world.aborted, told)
    if not isinstance(state, Tools):
        broken("legal", told)
    hold("alone", not any(call.process in LIVE and not call.child for call in world.calls), told)
    stored = state.calls[index]
    if not isinstance(stored, EffectPending):
        broken("legal", told)
    hold("I7 never", "never" not in (stored.policy, views[index].policy), told)
    for each, call in enumerate(state.calls[: index + 1]):
        if isinstance(call, EffectPending):
            again = may_run_again(call.policy, call.replays, views[each], rules)
            if world.calls[each].answer == "given":
                again = may_run_again_by_a_yes(call.policy, call.replays, views[each], rules)
            hold("policies" if each == index else "alone", again == (each == index), told)


def _check_settled(world: World, view: CallView, rules: Rules, index: int, why: SettledWithout) -> None:
    state, told = world.state, (index, why, view, world)
    if not isinstance(state, Tools):
        broken("legal", told)
    call, process = state.calls[index], world.calls[index].process
    hold("truth", process not in LIVE, told)
    match why:
        case "not_started":
            hold("truth", world.aborted, told)
            waits = isinstance(call, WaitingApproval) and call.attempt == 0
            hold("truth", isinstance(call, Planned | Approved) or waits or process == "not_begun", told)
        case "interrupted":
            if isinstance(call, WaitingApproval):
                hold("truth", world.aborted and call.attempt > 0, told)
                return
            if not isinstance(call, EffectPending):
                broken("truth", told)
            hold("truth", process == "" or (call.replays > 0 and not isinstance(call, EffectResumed)), told)
            by_yes = may_run_again_by_a_yes(call.policy, call.replays, view, rules)
            hold("policies", world.aborted or not by_yes, told)
        case "aborted":
            ended = isinstance(call, WaitingExternal | WaitingQuestion | AnsweredCall)
            ended = ended or (isinstance(call, EffectResumed) and process == "not_begun")
            hold("truth", ended and world.aborted, told)
        case "stranded":
            hold("truth", isinstance(call, AnsweredCall) and not world.aborted, told)
            hold("policies", isinstance(call, AnsweredCall) and not may_start_with_an_answer(call.policy, view), told)
        case "expired":
            hold("truth", isinstance(call, WaitingApproval) and not world.aborted, told)
        case "refused":
            hold("truth", isinstance(call, Planned | Approved) and not world.aborted and not world.cut, told)
            hold("truth", view.problem is not None, told)
        case "cut":
            hold("truth", isinstance(call, Planned) and not world.aborted and world.cut, told)
        case _:
            assert_never(why)
