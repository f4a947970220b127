"""The part of the table that is about the calls of a batch: they start, wait, end, and their results are placed.

The rules of ``machine/table.py`` hold here too, and its table has these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from agentlane.data.operations import (
    REPEATABLE,
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectGranted,
    EffectPending,
    EffectResumed,
    OutcomeReady,
    Placed,
    Planned,
    ReplayPolicy,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.ids import call_id
from agentlane.machine.facts import (
    ApprovalGiven,
    ApprovalsAsked,
    AskApproval,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    Change,
    ChildrenStarted,
    DriveChild,
    Effect,
    IllegalStep,
    Outcome,
    OutcomesArrived,
    PlaceResult,
    QuestionAnswered,
    QuestionsAsked,
    ReadyPlaced,
    ReplayIntended,
    RunCall,
    StageResult,
    StartChild,
    Step,
)
from agentlane.machine.rules import Rules, require


def _intend_calls(state: Tools, fact: CallsIntended, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "no call starts once an abort is asked for", state)
    require(bool(fact.calls), "nothing is intended", state)
    calls = list(state.calls)
    effects: list[Effect] = []
    for index, policy in fact.calls:
        begun = _begin(state, calls[index], index, policy)
        calls[index] = begun
        effects.append(RunCall(index, attempt=begun.attempt, replays=begun.replays))
    return Step(replace(state, calls=tuple(calls)), effects=tuple(effects), boundary="tool_intents")


def _begin(state: Tools, call: CallState, index: int, policy: ReplayPolicy) -> EffectPending:
    if isinstance(call, Planned):
        return EffectPending(policy=policy)
    if isinstance(call, Approved):
        return EffectGranted(policy=policy, approval=call.approval)
    if isinstance(call, AnsweredCall):
        require(REPEATABLE.issuperset((call.policy, policy)), f"call {index} must not run again", state)  # I7
        return EffectResumed(policy=policy, attempt=call.attempt + 1, replays=call.replays)
    raise IllegalStep(f"call {index} is not planned: {state!r}")


def _start_children(state: Tools, fact: ChildrenStarted, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "no call starts once an abort is asked for", state)
    require(bool(fact.indices), "nothing is started", state)
    calls = list(state.calls)
    for index in fact.indices:
        if not isinstance(calls[index], (Planned, Approved)):
            raise IllegalStep(f"call {index} is not planned: {state!r}")
        calls[index] = WaitingChild()
    changes = tuple(StartChild(state.answer, index) for index in fact.indices)
    effects = tuple(DriveChild(index) for index in fact.indices)
    return Step(replace(state, calls=tuple(calls)), changes, effects, boundary="child_started")


def _intend_replay(state: Tools, fact: ReplayIntended, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "no call starts once an abort is asked for", state)
    call = state.calls[fact.index]
    if not isinstance(call, EffectPending):
        raise IllegalStep(f"call {fact.index} was not under way: {state!r}")
    require("never" not in (call.policy, fact.policy), f"call {fact.index} must not run again", state)  # I7
    require(call.replays < rules.limits.max_replays, f"call {fact.index} has used up its replays", state)
    attempt, replays = call.attempt + 1, call.replays + 1
    if isinstance(call, EffectGranted) and call.permit:
        again: EffectPending = EffectGranted(fact.policy, attempt, replays, approval=call.approval)
    else:
        require("ask" not in (call.policy, fact.policy), f"nobody allowed call {fact.index} to run again", state)
        again = EffectPending(policy=fact.policy, attempt=attempt, replays=replays)
    effect = RunCall(fact.index, attempt=again.attempt, replays=again.replays)
    return Step(_with_call(state, fact.index, again), effects=(effect,), boundary="replay_intent")


def _ask_approvals(state: Tools, fact: ApprovalsAsked, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "nobody is asked once an abort is asked for", state)
    require(bool(fact.calls), "nothing is asked", state)
    calls = list(state.calls)
    for index, approval in fact.calls:
        call = calls[index]
        if isinstance(call, Planned | Approved):
            calls[index] = WaitingApproval(approval)
        elif isinstance(call, EffectPending) and not (isinstance(call, EffectGranted) and call.permit):
            require(call.policy != "never", f"call {index} must not run again", state)  # I7
            require(call.replays < rules.limits.max_replays, f"call {index} has used up its replays", state)
            calls[index] = WaitingApproval(approval, call.policy, call.attempt, call.replays)
        else:
            raise IllegalStep(f"there is nothing to ask about call {index}: {state!r}")
    asked = tuple(AskApproval(index, approval) for index, approval in fact.calls)
    return Step(replace(state, calls=tuple(calls)), asked, boundary="approval_asked")


def _give_approval(state: Tools, fact: ApprovalGiven, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort made every question void", state)
    call = state.calls[fact.index]
    if not isinstance(call, WaitingApproval) or call.approval != fact.approval:
        raise IllegalStep(f"call {fact.index} does not wait for approval {fact.approval}: {state!r}")
    after: CallState = Approved(fact.approval)
    if call.attempt:
        after = EffectGranted(call.policy, call.attempt, call.replays, approval=fact.approval, permit=True)
    return Step(_with_call(state, fact.index, after), boundary="decision")


def _defer_calls(state: Tools, fact: CallsDeferred, rules: Rules) -> Step:
    require(bool(fact.indices), "no call is named", state)
    calls = list(state.calls)
    for index in fact.indices:
        call = calls[index]
        if not isinstance(call, EffectPending) or (isinstance(call, EffectGranted) and call.permit):
            raise IllegalStep(f"call {index} was not under way: {state!r}")
        calls[index] = WaitingExternal(call.policy, call.attempt, call.replays)
    return Step(replace(state, calls=tuple(calls)), boundary="deferred")


def _ask_questions(state: Tools, fact: QuestionsAsked, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "nobody is asked once an abort is asked for", state)
    require(bool(fact.calls), "nothing is asked", state)
    calls = list(state.calls)
    for index, question in fact.calls:
        call = calls[index]
        if not isinstance(call, EffectPending) or (isinstance(call, EffectGranted) and call.permit):
            raise IllegalStep(f"call {index} was not under way: {state!r}")
        require(call.policy in REPEATABLE, f"call {index} must not run again", state)  # I7
        calls[index] = WaitingQuestion(question, call.policy, call.attempt, call.replays)
    asked = tuple(AskApproval(index, question) for index, question in fact.calls)
    return Step(replace(state, calls=tuple(calls)), asked, boundary="question_asked")


def _take_answer(state: Tools, fact: QuestionAnswered, rules: Rules) -> Step:
    require(state.cancel_requested_at is None, "an abort made every question void", state)
    call = state.calls[fact.index]
    if not isinstance(call, WaitingQuestion) or call.question != fact.question:
        raise IllegalStep(f"call {fact.index} does not wait for an answer to {fact.question}: {state!r}")
    after = AnsweredCall(call.policy, call.attempt, call.replays)
    return Step(_with_call(state, fact.index, after), boundary="answer")


def _take_outcomes(state: Tools, fact: OutcomesArrived, rules: Rules) -> Step:
    require(bool(fact.outcomes), "no outcome arrived", state)
    calls = list(state.calls)
    arrived = {outcome.index: outcome for outcome in fact.outcomes}
    require(len(arrived) == len(fact.outcomes), "two outcomes for one call", state)  # I5
    for outcome in fact.outcomes:
        if isinstance(calls[outcome.index], (OutcomeReady, Placed)):
            raise IllegalStep(f"call {outcome.index} has one: {state!r}")  # I5
        calls[outcome.index] = OutcomeReady(terminate=outcome.terminate)
    return _place_ready(state, calls, arrived, fact.held)


def _take_ready(state: Tools, fact: ReadyPlaced, rules: Rules) -> Step:
    calls = list(state.calls)
    changed = {outcome.index: outcome for outcome in fact.changed}
    for outcome in fact.changed:
        if not isinstance(calls[outcome.index], OutcomeReady):
            raise IllegalStep(f"call {outcome.index} is not staged: {state!r}")  # I5
        calls[outcome.index] = OutcomeReady(terminate=outcome.terminate)
    placed = _place_ready(state, calls, changed, fact.held)
    require(placed.boundary == "outcome_placed", "no staged outcome is next", state)
    require(not any(isinstance(change, StageResult) for change in placed.changes), "it is not next", state)
    return placed


def _place_ready(state: Tools, calls: list[CallState], arrived: dict[int, Outcome], held: frozenset[int]) -> Step:
    """Place what is next and not held; what arrived and is not placed is staged."""
    changes: list[Change] = []
    first = next((i for i, call in enumerate(calls) if not isinstance(call, Placed)), len(calls))
    all_placed = True
    for index in range(first, len(calls)):
        call = calls[index]
        if not isinstance(call, OutcomeReady) or index in held:
            all_placed = False
            break
        calls[index] = Placed(terminate=call.terminate)
        changes.append(PlaceResult(state.answer, index, arrived.pop(index).message if index in arrived else None))
    boundary = "outcome_placed" if changes else "outcome_staged"
    changes.extend(StageResult(state.answer, outcome.index, outcome.message) for outcome in arrived.values())
    if not all_placed:
        return Step(replace(state, calls=tuple(calls)), tuple(changes), boundary=boundary)
    after = Checkpoint(
        next="finish" if all(call.terminate for call in calls if isinstance(call, Placed)) else "respond",
        trigger=call_id(state.answer, len(calls) - 1),
        turn=state.turn,
        answer=state.answer,
        cancel_requested_at=state.cancel_requested_at,
        unsummarized=state.unsummarized,
    )
    return Step(after, tuple(changes), boundary=boundary)


def _calls_not_begun(state: Tools, fact: CallsNotBegun, rules: Rules) -> Step:
    require(bool(fact.indices), "no call is named", state)
    calls = list(state.calls)
    for index in fact.indices:
        call = calls[index]
        # A replay that never began is still a call that an earlier pass began.
        if not isinstance(call, EffectPending) or (isinstance(call, EffectGranted) and call.permit):
            raise IllegalStep(f"call {index} was not under way: {state!r}")
        calls[index] = _not_begun(call)
    return Step(replace(state, calls=tuple(calls)), boundary="close")


def _not_begun(call: EffectPending) -> CallState:
    """What the call was before the intent that came to nothing; a yes is not used up by it, nor an answer."""
    if isinstance(call, EffectResumed):
        return AnsweredCall(call.policy, call.attempt - 1, call.replays)
    if call.replays == 0:
        return Approved(call.approval) if isinstance(call, EffectGranted) else Planned()
    attempt, replays = call.attempt - 1, call.replays - 1
    if isinstance(call, EffectGranted):
        return EffectGranted(call.policy, attempt, replays, approval=call.approval, permit=True)
    return EffectPending(policy=call.policy, attempt=attempt, replays=replays)


Transition: TypeAlias = Callable[[Any, Any, Rules], Step]

BATCH_TABLE: dict[tuple[type, type], Transition] = {
    (Tools, CallsIntended): _intend_calls,
    (Tools, ChildrenStarted): _start_children,
    (Tools, ReplayIntended): _intend_replay,
    (Tools, ApprovalsAsked): _ask_approvals,
    (Tools, ApprovalGiven): _give_approval,
    (Tools, CallsDeferred): _defer_calls,
    (Tools, QuestionsAsked): _ask_questions,
    (Tools, QuestionAnswered): _take_answer,
    (Tools, OutcomesArrived): _take_outcomes,
    (Tools, ReadyPlaced): _take_ready,
    (Tools, CallsNotBegun): _calls_not_begun,
}


def _with_call(state: Tools, index: int, call: CallState) -> Tools:
    return replace(state, calls=(*state.calls[:index], call, *state.calls[index + 1 :]))
