"""Seeded bugs: machines that break one promise each, for the exploration to find; each a small change of the true one.

A bug of the planning sees something else than what is there (``seen``) or says something else (``said``); a bug of the
table takes something else (``given``) or comes out with something else (``told``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentlane.data.operations import (
    Approved,
    Checkpoint,
    EffectGranted,
    EffectPending,
    Generating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Tools,
    WaitingApproval,
)
from agentlane.machine import planning, table
from agentlane.machine.facts import (
    Answered,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    End,
    Fact,
    Finished,
    Interrupted,
    OutcomesArrived,
    PlaceAnswer,
    PlaceCorrection,
    PlaceInput,
    PlaceResult,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    RequestModel,
    StageResult,
    Step,
)
from agentlane.machine.planning import View
from agentlane.machine.rules import Rules
from agentlane.machine.verdicts import (
    AskApprovals,
    AskModel,
    DriveChildren,
    Finish,
    FollowUp,
    Idle,
    PlaceReady,
    RecoverRequest,
    ReplayCall,
    SettleCalls,
    StartCalls,
    Verdict,
)
from tests.machine.moves import Machine
from tests.machine.promises import Promise


class Bug(NamedTuple):
    """A machine with a bug, and the promise that it breaks first."""

    name: str
    breaks: Promise
    machine: Machine


def seen(change: Callable[[Any, View, Rules], tuple[Any, View, Rules]]) -> Machine:
    return Machine(plan=lambda state, view, rules: planning.plan(*change(state, view, rules)))


def said(change: Callable[[Any, View, Verdict], Verdict], step: Any = table.step) -> Machine:
    return Machine(plan=lambda state, view, rules: change(state, view, planning.plan(state, view, rules)), step=step)


def given(change: Callable[[Any, Any, Rules], tuple[Any, Any, Rules]]) -> Machine:
    return Machine(step=lambda state, fact, rules: table.step(*change(state, fact, rules)))


def told(change: Callable[[Any, Any, Step], Step]) -> Machine:
    return Machine(step=lambda state, fact, rules: change(state, fact, table.step(state, fact, rules)))


def both(change: Callable[[Rules], Rules]) -> Machine:
    return Machine(
        plan=lambda state, view, rules: planning.plan(state, view, change(rules)),
        step=lambda state, fact, rules: table.step(state, fact, change(rules)),
    )


def limits(rules: Rules, **changed: int) -> Rules:
    return replace(rules, limits=replace(rules.limits, **changed))


def with_views(view: View, change: Callable[[int, Any], Any]) -> View:
    return replace(view, calls=tuple(change(index, call) for index, call in enumerate(view.calls)))


def with_calls(state: Any, change: Callable[[int, Any], Any]) -> Any:
    if not isinstance(state, Tools):
        return state
    return replace(state, calls=tuple(change(index, call) for index, call in enumerate(state.calls)))


def after_of(taken: Step, **changed: Any) -> Step:
    """The step with something else in the state that comes out."""
    return taken if taken.state is None else replace(taken, state=replace(taken.state, **changed))


# What the planning may get wrong.


def stored_policy_only(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def as_stored(index: int, call: Any) -> Any:
        pending = state.calls[index]
        return replace(call, policy=pending.policy, problem=None) if isinstance(pending, EffectPending) else call

    return state, with_views(view, as_stored) if isinstance(state, Tools) else view, rules


def current_policy_only(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def as_current(index: int, call: Any) -> Any:
        policy = view.calls[index].policy
        return replace(call, policy=policy) if isinstance(call, EffectPending) and policy is not None else call

    return with_calls(state, as_current), view, rules


def never_taken_for_safe(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def safe(index: int, call: Any) -> Any:
        pending = isinstance(state.calls[index], EffectPending)
        return replace(call, policy="safe") if pending and view.calls[index].policy == "never" else call

    def stored_safe(index: int, call: Any) -> Any:
        return replace(call, policy="safe") if isinstance(call, EffectPending) and call.policy == "never" else call

    if not isinstance(state, Tools):
        return state, view, rules
    return with_calls(state, stored_safe), with_views(view, safe), rules


def keyed_taken_for_never(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def never(index: int, call: Any) -> Any:
        return (
            replace(call, policy="never") if isinstance(call, EffectPending) and call.policy == "idempotent" else call
        )

    return with_calls(state, never), view, rules


def replays_side_by_side(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, Idle) and isinstance(state, Tools) and state.cancel_requested_at is None:
        for index, call in enumerate(state.calls):
            policy = view.calls[index].policy
            lost = isinstance(call, EffectPending) and index not in view.live and not view.cut
            if lost and policy in ("safe", "idempotent"):
                return ReplayCall(index, policy)
    return verdict


def replays_last_first(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, ReplayCall):
        for index in range(len(state.calls) - 1, verdict.index, -1):
            policy, call = view.calls[index].policy, state.calls[index]
            if isinstance(call, EffectPending) and call.policy != "never" and policy in ("safe", "idempotent"):
                return ReplayCall(index, policy)
    return verdict


def starts_before_replays(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, ReplayCall):
        for index, call in enumerate(state.calls):
            policy = view.calls[index].policy
            if isinstance(call, Planned) and policy is not None and view.calls[index].problem is None:
                return StartCalls(((index, policy),))
    return verdict


def resettled(old: str, new: Any) -> Callable[[Any, View, Verdict], Verdict]:
    def change(state: Any, view: View, verdict: Verdict) -> Verdict:
        if not isinstance(verdict, SettleCalls):
            return verdict
        return SettleCalls(tuple((index, new if why == old else why) for index, why in verdict.calls))

    return change


def asks_inside_a_batch(state: Any, view: View, verdict: Verdict) -> Verdict:
    return AskModel() if isinstance(state, Tools) and isinstance(verdict, Idle) else verdict


def asks_again_unsettled(state: Any, view: View, verdict: Verdict) -> Verdict:
    return AskModel() if isinstance(verdict, RecoverRequest) and state.cancel_requested_at is None else verdict


def ends_inside_a_batch(state: Any, view: View, verdict: Verdict) -> Verdict:
    return Finish() if isinstance(state, Tools) and state.cancel_requested_at is not None else verdict


def ended_anywhere(state: OperationState, fact: Fact, rules: Rules) -> Step:
    if isinstance(state, Tools) and isinstance(fact, Finished):
        return Step(None, (End("aborted", state.turn, state.answer),), boundary="terminal")
    return table.step(state, fact, rules)


def settles_nothing(state: Any, view: View, verdict: Verdict) -> Verdict:
    return SettleCalls(()) if isinstance(verdict, SettleCalls) else verdict


def waits_for_children_left(state: Any, view: View, verdict: Verdict) -> Verdict:
    return Idle() if isinstance(verdict, DriveChildren) else verdict


def drives_what_waits(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    return state, replace(view, stuck=frozenset()), rules


def interrupts_children(state: Any, view: View, verdict: Verdict) -> Verdict:
    if not isinstance(verdict, DriveChildren):
        return verdict
    return SettleCalls(tuple((index, "interrupted") for index in verdict.indices))


def starts_children_as_calls(state: Any, view: View, verdict: Verdict) -> Verdict:
    if not isinstance(verdict, StartCalls):
        return verdict
    return StartCalls((*verdict.calls, *((index, "safe") for index in verdict.children)))


def waits_for_the_lost(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    if not isinstance(state, Tools):
        return state, view, rules
    pending = frozenset(index for index, call in enumerate(state.calls) if isinstance(call, EffectPending))
    return state, replace(view, live=view.live | pending), rules


def asks_nobody(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    return state, with_views(view, lambda index, call: replace(call, approval="no", unbound=False)), rules


def old_yes_for_new_arguments(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    return state, with_views(view, lambda index, call: replace(call, unbound=False)), rules


def replays_unasked(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def safe(index: int, call: Any) -> Any:
        return replace(call, policy="safe") if call.policy == "ask" else call

    stored = with_calls(state, lambda i, call: safe(i, call) if isinstance(call, EffectPending) else call)
    return stored, with_views(view, safe), rules


def waits_as_a_barrier(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def alone(index: int, call: Any) -> Any:
        return replace(call, parallel=False) if isinstance(state.calls[index], WaitingApproval) else call

    return state, with_views(view, alone) if isinstance(state, Tools) else view, rules


def asks_one_by_one(state: Any, view: View, verdict: Verdict) -> Verdict:
    return AskApprovals(verdict.calls[:1]) if isinstance(verdict, AskApprovals) else verdict


def finishes(state: Any, view: View, verdict: Verdict) -> Verdict:
    return Finish() if isinstance(verdict, FollowUp) else verdict


def keeps_back(state: Any, view: View, verdict: Verdict) -> Verdict:
    return Idle() if isinstance(verdict, PlaceReady) else verdict


# What the table may get wrong.


def keeps_the_permit(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, ReplayIntended):
        return taken
    kept = with_calls(taken.state, lambda i, call: replace(call, permit=True) if type(call) is EffectGranted else call)
    return replace(taken, state=kept)


def loses_the_yes(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, CallsNotBegun):
        return taken
    return replace(taken, state=with_calls(taken.state, lambda i, call: Planned() if type(call) is Approved else call))


def _let_go(fact: Any) -> Any:
    return replace(fact, held=frozenset()) if isinstance(fact, OutcomesArrived | ReadyPlaced) else fact


def changes_nothing(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    return state, replace(fact, changed=()) if isinstance(fact, ReadyPlaced) else fact, rules


def places_as_it_comes(state: Any, fact: Any, taken: Step) -> Step:
    staged = [change for change in taken.changes if isinstance(change, StageResult)]
    placed = tuple(PlaceResult(change.answer, change.index, change.message) for change in staged)
    return replace(taken, changes=(*taken.changes[: len(taken.changes) - len(staged)], *placed)) if staged else taken


def without(kind: type) -> Callable[[Any, Any, Step], Step]:
    def change(state: Any, fact: Any, taken: Step) -> Step:
        return replace(taken, changes=tuple(each for each in taken.changes if not isinstance(each, kind)))

    return change


def places_staged_anew(state: Any, fact: Any, taken: Step) -> Step:
    def anew(change: Any) -> Any:
        again = isinstance(change, PlaceResult) and change.message is None
        return replace(change, message=fact.outcomes[0].message) if again else change

    return replace(taken, changes=tuple(anew(change) for change in taken.changes))


def goes_on_early(state: Any, fact: Any, taken: Step) -> Step:
    if isinstance(fact, OutcomesArrived) and isinstance(taken.state, Tools):
        after = Checkpoint(next="respond", trigger="?", turn=state.turn, answer=state.answer)
        return replace(taken, state=replace(after, cancel_requested_at=state.cancel_requested_at))
    return taken


def any_may_end(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, OutcomesArrived) or not isinstance(taken.state, Checkpoint):
        return taken
    known = [call.terminate for call in state.calls if isinstance(call, OutcomeReady | Placed)]
    wishes = any([*known, *(outcome.terminate for outcome in fact.outcomes)])
    return after_of(taken, next="finish" if wishes else "respond")


def forgets_replays(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, CallsNotBegun):
        return taken
    return replace(taken, state=with_calls(taken.state, lambda i, call: Planned() if i in fact.indices else call))


def puts_back_too_much(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, CallsNotBegun):
        return taken
    back = with_calls(taken.state, lambda i, call: Planned() if isinstance(call, EffectPending) else call)
    return replace(taken, state=back)


def when(kind: type, **changed: Any) -> Callable[[Any, Any, Step], Step]:
    """In the state that a fact of this kind leads to, something else."""
    return lambda state, fact, taken: after_of(taken, **changed) if isinstance(fact, kind) else taken


def counts_a_restart_as_a_retry(state: Any, fact: Any, taken: Step) -> Step:
    if isinstance(fact, Interrupted) and isinstance(taken.state, Generating | RetryWait):
        return after_of(taken, retries=taken.state.retries + 1, restarts=taken.state.restarts - 1)
    return taken


def waiting(state: Any, error: Any, **changed: int) -> RetryWait:
    return RetryWait(
        attempt=state.attempt,
        not_before=500,
        error=error,
        retries=state.retries + changed.get("retries", 0),
        restarts=state.restarts + changed.get("restarts", 0),
        turn=state.turn,
        answer=state.answer,
    )


def always_waits_after_a_death(state: Any, fact: Any, taken: Step) -> Step:
    if isinstance(fact, Interrupted) and isinstance(taken.state, Generating):
        return replace(taken, state=waiting(state, fact.message.error, restarts=1), effects=())
    return taken


def never_waits_after_a_death(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, Interrupted) or not isinstance(taken.state, RetryWait):
        return taken
    attempt, restarts = state.attempt + 1, state.restarts + 1
    again = replace(state, response_id=fact.response_id, attempt=attempt, restarts=restarts)
    return replace(taken, state=again, effects=(RequestModel(fact.response_id, attempt, 0),))


def never_waits(state: Any, fact: Any, taken: Step) -> Step:
    retried = isinstance(fact, Answered) and isinstance(taken.state, RetryWait)
    return after_of(taken, not_before=fact.now) if retried else taken


def stays_with_the_model(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, model_index=state.model_index) if isinstance(taken.state, RetryWait) else taken


def waits_for_another_model(state: Any, fact: Any, taken: Step) -> Step:
    if isinstance(fact, Answered) and fact.fallback is not None and isinstance(taken.state, RetryWait):
        return after_of(taken, not_before=fact.now + 1)
    return taken


def forgets_the_model(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, model_index=0) if isinstance(fact, RequestIntended) else taken


def keeps_the_id(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, response_id=state.response_id) if isinstance(fact, Interrupted) else taken


def intends_less(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, CallsIntended):
        return taken
    return replace(taken, state=with_calls(taken.state, lambda i, call: Planned() if i == fact.calls[-1][0] else call))


def starts_nothing(state: Any, fact: Any, taken: Step) -> Step:
    return replace(taken, effects=taken.effects[1:]) if isinstance(fact, ReplayIntended) else taken


def ends_as(status: Any) -> Callable[[Any, Any, Step], Step]:
    def change(state: Any, fact: Any, taken: Step) -> Step:
        ended = tuple(replace(each, status=status) if isinstance(each, End) else each for each in taken.changes)
        return replace(taken, changes=ended)

    return change


def ends_twice(state: Any, fact: Any, taken: Step) -> Step:
    return replace(taken, changes=(*taken.changes, *(each for each in taken.changes if isinstance(each, End))))


def retries_what_is_final(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, Answered) or fact.message.error is None or fact.message.error.retryable:
        return taken
    if state.cancel_requested_at is not None:
        return taken
    return Step(waiting(state, fact.message.error, retries=1), taken.changes[:1], boundary="settlement")


def forgets_the_cut(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, code=None) if isinstance(taken.state, Checkpoint) else taken


def drives_no_child(state: Any, fact: Any, taken: Step) -> Step:
    return replace(taken, effects=()) if isinstance(fact, ChildrenStarted) else taken


def runs_the_same_turn_again(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, turn=state.turn) if isinstance(fact, RequestIntended) else taken


def attempts(rules: Rules, more: int) -> Rules:
    return replace(rules, retry=replace(rules.retry, attempts=rules.retry.attempts + more))


def past(change: Callable[[Rules], Rules]) -> Machine:
    return given(lambda state, fact, rules: (state, fact, change(rules)))


BUGS: tuple[Bug, ...] = (
    Bug("only the stored policy is asked", "policies", seen(stored_policy_only)),
    Bug("only the current policy is asked", "I7 never", seen(current_policy_only)),
    Bug("a `never` call is replayed", "I7 never", seen(never_taken_for_safe)),
    Bug("an idempotent call is not replayed", "policies", seen(keyed_taken_for_never)),
    Bug("replays have no bound", "policies", both(lambda rules: limits(rules, max_replays=99))),
    Bug("replays end before their bound", "policies", both(lambda rules: limits(rules, max_replays=0))),
    Bug("a replay that did not begin is forgotten by a close", "policies", told(forgets_replays)),
    Bug("a close puts back what began", "I7 never", told(puts_back_too_much)),
    Bug("restored calls run side by side", "alone", said(replays_side_by_side)),
    Bug("restored calls run last first", "alone", said(replays_last_first)),
    Bug("new calls start before restored ones", "alone", said(starts_before_replays)),
    Bug(
        "barriers are ignored",
        "alone",
        seen(lambda s, v, r: (s, with_views(v, lambda i, c: replace(c, parallel=True)), r)),
    ),
    Bug("max_parallel is ignored", "alone", seen(lambda s, v, r: (s, v, limits(r, max_parallel=99)))),
    Bug("calls of a cut answer run", "truth", seen(lambda s, v, r: (s, replace(v, cut=False), r))),
    Bug("a begun call is said not to have started", "truth", said(resettled("interrupted", "not_started"))),
    Bug("a call that never began is said to be interrupted", "truth", said(resettled("not_started", "interrupted"))),
    Bug("a wait is not sat out", "waits", seen(lambda s, v, r: (s, replace(v, now=10**9), r))),
    Bug("a model is asked inside a batch", "I10 pairs", said(asks_inside_a_batch)),
    Bug("a dead request is sent again without its end", "legal", said(asks_again_unsettled)),
    Bug("an abort ends inside a batch", "I3 open", said(ends_inside_a_batch, ended_anywhere)),
    Bug("calls are settled over and over", "progress", said(settles_nothing)),
    Bug("lost calls are waited for", "liveness", seen(waits_for_the_lost)),
    Bug("calls start under an abort", "abort", seen(lambda s, v, r: (replace(s, cancel_requested_at=None), v, r))),
    Bug("placing forgets an abort", "abort", told(when(OutcomesArrived, cancel_requested_at=None))),
    Bug("a close marks the operation as cancelled", "abort", told(when(CallsNotBegun, cancel_requested_at=1))),
    Bug("what is held is placed", "held", given(lambda s, f, r: (s, _let_go(f), r))),
    Bug("what is not held is kept back", "liveness", said(keeps_back)),
    Bug("a changed outcome is placed as it was", "I4 ids", given(changes_nothing)),
    Bug("a follow-up is not placed", "I4 ids", told(without(PlaceInput))),
    Bug("a run completes though hooks have more to say", "I8 end", said(finishes)),
    Bug("a hook that stands in the way is passed by", "legal", seen(lambda s, v, r: (s, replace(v, failure=None), r))),
    Bug("results are placed as they come", "I5 results", told(places_as_it_comes)),
    Bug("a staged outcome is dropped", "I5 results", told(without(StageResult))),
    Bug("a staged outcome is placed as another one", "I4 ids", told(places_staged_anew)),
    Bug("a batch goes on before its end", "I5 results", told(goes_on_early)),
    Bug("one tool's wish ends the run", "I8 end", told(any_may_end)),
    Bug("a restart is counted as a retry", "counts", told(counts_a_restart_as_a_retry)),
    Bug("turns are not counted", "counts", told(runs_the_same_turn_again)),
    Bug("a failing model is asked again though another follows", "counts", told(stays_with_the_model)),
    Bug("another model is waited for", "waits", told(waits_for_another_model)),
    Bug("a turn goes on with the first model", "counts", told(forgets_the_model)),
    Bug("retries have no bound", "bounds", past(lambda rules: attempts(rules, 99))),
    Bug("retries end before their bound", "bounds", past(lambda rules: attempts(rules, -1))),
    Bug(
        "what is wrong with an answer is not looked at", "I8 end", seen(lambda s, v, r: (s, replace(v, output=None), r))
    ),
    Bug("a correction gets no entry", "I4 ids", told(without(PlaceCorrection))),
    Bug("limits are not looked at", "bounds", seen(lambda s, v, r: (s, replace(v, limit=None), r))),
    Bug("restarts have no bound", "bounds", past(lambda rules: limits(rules, max_restarts=99))),
    Bug("an error that is final is retried", "bounds", told(retries_what_is_final)),
    Bug("the first restart waits", "waits", told(always_waits_after_a_death)),
    Bug("the second restart does not wait", "waits", told(never_waits_after_a_death)),
    Bug("a retry comes at once", "waits", told(never_waits)),
    Bug("an interrupted answer gets no entry", "I4 ids", told(without(PlaceAnswer))),
    Bug("a restart takes the id of the dead request", "I4 ids", told(keeps_the_id)),
    Bug("a call starts that was not intended", "I6 intents", told(intends_less)),
    Bug("the run of another agent is left where it stands", "liveness", said(waits_for_children_left)),
    Bug("the run of another agent that waits is driven over and over", "truth", seen(drives_what_waits)),
    Bug("the run of another agent is said to be interrupted", "truth", said(interrupts_children)),
    Bug("the run of another agent is started as a call", "policies", said(starts_children_as_calls)),
    Bug("the run of another agent is accepted and not driven", "I6 intents", told(drives_no_child)),
    Bug("an intended replay does not start", "I6 intents", told(starts_nothing)),
    Bug("an abort ends as completed", "I8 end", told(ends_as("completed"))),
    Bug("an operation ends twice", "I8 end", told(ends_twice)),
    Bug("a cut answer ends without its code", "I8 end", told(forgets_the_cut)),
    Bug("nobody is asked", "yes", seen(asks_nobody)),
    Bug("a yes is used for other arguments", "yes", seen(old_yes_for_new_arguments)),
    Bug("a replay that a person must allow starts unasked", "policies", seen(replays_unasked)),
    Bug("calls that wait for a person hold up the others", "yes", seen(waits_as_a_barrier)),
    Bug("a group is asked about one by one", "yes", said(asks_one_by_one)),
    Bug("a yes allows every replay", "counts", told(keeps_the_permit)),
    Bug("a close loses a yes", "yes", told(loses_the_yes)),
)
