"""Whether a verdict of the planning may be given: judged by the world alone, with no look at the planning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Tools,
)
from agentlane.machine.planning import (
    AskModel,
    CallView,
    DropRequest,
    Fail,
    Finish,
    GiveUp,
    Idle,
    RecoverRequest,
    ReplayCall,
    SettleCalls,
    SettledWithout,
    SleepUntil,
    StartCalls,
    Verdict,
    View,
)
from agentlane.machine.table import Rules
from tests.machine.promises import broken, hold
from tests.machine.world import LIVE, World, may_run_again


def check_verdict(world: World, view: View, rules: Rules, verdict: Verdict) -> None:
    """Raise ``Violation`` if the verdict may not be given here, as far as ``view`` and what runs can tell."""
    state, told = world.state, (verdict, view, world)
    match verdict:
        case Idle():
            runs = world.request in LIVE or any(call.process in LIVE for call in world.calls)
            hold("liveness", runs, told)
        case SleepUntil(at):
            hold("waits", isinstance(state, RetryWait) and at == state.not_before > view.now, told)
            hold("liveness", not world.aborted, told)
            hold("bounds", view.limit is None, told)
        case AskModel():
            hold("abort", not world.aborted, told)
            hold("waits", not isinstance(state, RetryWait) or view.now >= state.not_before, told)
            hold("legal", view.model_problem is None, told)
            hold("bounds", view.limit is None, told)
            hold("I10 pairs", not world.calls, told)
        case GiveUp(error):
            hold("I8 end", not world.aborted and error == view.model_problem, told)
        case Fail(error):
            hold("I8 end", not world.aborted and error == view.limit, told)
        case RecoverRequest():
            hold("truth", isinstance(state, Generating) and world.request == "", told)
        case DropRequest():
            hold("truth", isinstance(state, Generating) and world.request == "not_begun", told)
        case Finish():
            due = isinstance(state, Checkpoint) and state.next == "finish"
            hold("I8 end", world.aborted or due, told)
        case StartCalls(calls):
            _check_starts(world, view.calls, rules, [index for index, _ in calls])
            hold("policies", all(view.calls[i].policy == policy for i, policy in calls), told)
        case ReplayCall(index, policy):
            _check_replay(world, view.calls, rules, index)
            hold("policies", view.calls[index].policy == policy, told)
        case SettleCalls(calls):
            hold("progress", bool(calls), told)
            for index, why in calls:
                _check_settled(world, view.calls[index], rules, index, why)
        case _:
            assert_never(verdict)


def check_told(world: World, verdict: Verdict) -> None:
    """Raise ``Violation`` if the verdict says of a call what the past of this world contradicts."""
    if isinstance(verdict, SettleCalls):
        for index, why in verdict.calls:
            hold("truth", why == "interrupted" or not world.calls[index].begun, (verdict, world))


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
            hold("alone", index in running and call.replays == 0, told)
    for index in starts:
        view = views[index]
        hold("legal", isinstance(state.calls[index], Planned), told)
        hold("policies", view.policy is not None and view.problem is None, told)
        hold("alone", view.parallel or (not running and len(starts) == 1), told)
        for before in range(index):
            if isinstance(state.calls[before], OutcomeReady | Placed):
                continue
            hold("alone", view.parallel and (before in starts or before in running), told)
    hold("alone", not any(world.calls[index].alone for index in running), told)


def _check_replay(world: World, views: Sequence[CallView], rules: Rules, index: int) -> None:
    state, told = world.state, (index, views, world)
    hold("abort", not world.aborted, told)
    if not isinstance(state, Tools):
        broken("legal", told)
    hold("alone", not any(call.process in LIVE for call in world.calls), told)
    stored = state.calls[index]
    if not isinstance(stored, EffectPending):
        broken("legal", told)
    hold("I7 never", "never" not in (stored.policy, views[index].policy), told)
    for each, call in enumerate(state.calls[: index + 1]):
        if isinstance(call, EffectPending):
            again = may_run_again(call.policy, call.replays, views[each], rules)
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
            hold("truth", isinstance(call, Planned) or process == "not_begun", told)
        case "interrupted":
            if not isinstance(call, EffectPending):
                broken("truth", told)
            hold("truth", process == "" or call.replays > 0, told)
            again = may_run_again(call.policy, call.replays, view, rules)
            hold("policies", world.aborted or not again, told)
        case "refused":
            hold("truth", isinstance(call, Planned) and not world.aborted and not world.cut, told)
            hold("truth", view.problem is not None, told)
        case "cut":
            hold("truth", isinstance(call, Planned) and not world.aborted and world.cut, told)
        case _:
            assert_never(why)
