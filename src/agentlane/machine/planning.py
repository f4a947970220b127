"""What can go on now: a verdict over an operation's state and over what this process knows (the view). Pure.

The driver turns a verdict into a fact, takes the step, and asks again until the verdict is ``Idle`` or ``SleepUntil``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    ReplayPolicy,
    RetryWait,
    Tools,
)
from agentlane.machine.table import Rules


class CallView(Struct, frozen=True, gc=False):
    """What this process knows of one call: why it cannot run (text for the model), its policy now, and its manners.

    ``policy`` is None when no implementation is here. ``problem`` is None when the arguments are valid.
    """

    policy: ReplayPolicy | None
    parallel: bool = True
    problem: str | None = None


class View(Struct, frozen=True, gc=False):
    """What this process knows besides the state.

    ``live`` are the calls whose effect runs in this pass or whose outcome has not been taken yet; ``not_begun`` are
    those that were intended but whose effect was then not started. ``request_live`` and ``request_not_begun`` say the
    same of a model request. ``cut`` says that the answer ended at its length limit.
    """

    now: int
    calls: Sequence[CallView] = ()
    live: frozenset[int] = frozenset()
    not_begun: frozenset[int] = frozenset()
    cut: bool = False
    request_live: bool = False
    request_not_begun: bool = False
    model_problem: ErrorInfo | None = None
    limit: ErrorInfo | None = None
    """The limit of the operation that is reached."""


class AskModel(Struct, frozen=True, gc=False):
    """Intend a model request."""


class RecoverRequest(Struct, frozen=True, gc=False):
    """Settle a request that an earlier pass left without an answer."""


class DropRequest(Struct, frozen=True, gc=False):
    """Settle a request that was intended and, since an abort came, never sent."""


class StartCalls(Struct, frozen=True, gc=False):
    """Intend these planned calls together."""

    calls: tuple[tuple[int, ReplayPolicy], ...]


class ReplayCall(Struct, frozen=True, gc=False):
    """Intend to run this call of an earlier pass again."""

    index: int
    policy: ReplayPolicy


SettledWithout: TypeAlias = Literal["not_started", "interrupted", "refused", "cut"]
"""Why a call gets a result that its tool did not give."""


class SettleCalls(Struct, frozen=True, gc=False):
    """Give these calls results that their tools did not give."""

    calls: tuple[tuple[int, SettledWithout], ...]


class Finish(Struct, frozen=True, gc=False):
    """End the operation."""


class GiveUp(Struct, frozen=True, gc=False):
    """End the operation: its model is not here."""

    error: ErrorInfo


class Fail(Struct, frozen=True, gc=False):
    """End the operation: it may not go on."""

    error: ErrorInfo


class SleepUntil(Struct, frozen=True, gc=False):
    """Nothing can go on before this time."""

    at: int


class Idle(Struct, frozen=True, gc=False):
    """Something that runs in this pass must report first."""


Verdict: TypeAlias = (
    AskModel
    | RecoverRequest
    | DropRequest
    | StartCalls
    | ReplayCall
    | SettleCalls
    | Finish
    | GiveUp
    | Fail
    | SleepUntil
    | Idle
)

_IDLE = Idle()


def plan(state: OperationState, view: View, rules: Rules) -> Verdict:
    """The one thing to do next."""
    cancelled = state.cancel_requested_at is not None
    match state:
        case Checkpoint():
            if cancelled or state.next == "finish":
                return Finish()
            if view.limit is not None:
                return Fail(view.limit)
            return AskModel() if view.model_problem is None else GiveUp(view.model_problem)
        case RetryWait():
            if cancelled:
                return Finish()
            if view.limit is not None:
                return Fail(view.limit)
            if view.now < state.not_before:
                return SleepUntil(state.not_before)
            return AskModel() if view.model_problem is None else GiveUp(view.model_problem)
        case Generating():
            if view.request_live:
                return _IDLE
            return DropRequest() if cancelled and view.request_not_begun else RecoverRequest()
        case Tools():
            return _plan_cancelled(state, view) if cancelled else _plan_calls(state, view, rules)
        case _:
            assert_never(state)


def may_replay(call: EffectPending, now: CallView, rules: Rules) -> bool:
    """Whether a call that an earlier pass began may run again: stored and current policy allow it, and its bound."""
    return (
        now.problem is None
        and now.policy in ("safe", "idempotent")
        and call.policy in ("safe", "idempotent")
        and call.replays < rules.limits.max_replays
    )


def _plan_cancelled(state: Tools, view: View) -> Verdict:
    settle: list[tuple[int, SettledWithout]] = []
    for index, call in enumerate(state.calls):
        if isinstance(call, Planned):
            settle.append((index, "not_started"))
        elif isinstance(call, EffectPending) and index not in view.live:
            begun = index not in view.not_begun or call.replays > 0
            settle.append((index, "interrupted" if begun else "not_started"))
    return SettleCalls(tuple(settle)) if settle else _IDLE


def _plan_calls(state: Tools, view: View, rules: Rules) -> Verdict:
    if view.cut:
        settle = tuple((i, "cut") for i, call in enumerate(state.calls) if isinstance(call, Planned))
        return SettleCalls(settle) if settle else _IDLE  # type: ignore[arg-type]
    recovery = _plan_recovery(state, view, rules)
    return recovery if recovery is not None else _plan_starts(state, view, rules)


def _plan_recovery(state: Tools, view: View, rules: Rules) -> Verdict | None:
    """Calls begun by an earlier pass come first: results for those that must not run again, the others one by one."""
    lost: list[tuple[int, SettledWithout]] = []
    again: list[tuple[int, ReplayPolicy]] = []
    replaying = False
    for index, call in enumerate(state.calls):
        if not isinstance(call, EffectPending):
            continue
        if index in view.live:
            replaying = replaying or call.replays > 0
            continue
        policy = view.calls[index].policy
        if policy is not None and may_replay(call, view.calls[index], rules):
            again.append((index, policy))
        else:
            lost.append((index, "interrupted"))
    if lost:
        return SettleCalls(tuple(lost))
    if replaying:
        return _IDLE
    if again:
        return ReplayCall(*again[0])
    return None


def _plan_starts(state: Tools, view: View, rules: Rules) -> Verdict:
    refused: list[tuple[int, SettledWithout]] = []
    starts: list[tuple[int, ReplayPolicy]] = []
    running = len(view.live)
    for index, call in enumerate(state.calls):
        if isinstance(call, OutcomeReady | Placed):
            continue
        now = view.calls[index]
        if isinstance(call, EffectPending):
            if not now.parallel:
                break  # it runs alone
            continue
        if now.problem is not None or now.policy is None:
            refused.append((index, "refused"))
            continue
        if not now.parallel:
            if running == 0 and not starts:
                starts.append((index, now.policy))
            break  # a barrier: what is before it ends, it runs alone, then the later ones
        if running + len(starts) >= rules.limits.max_parallel:
            break
        starts.append((index, now.policy))
    if refused:
        return SettleCalls(tuple(refused))
    return StartCalls(tuple(starts)) if starts else _IDLE
