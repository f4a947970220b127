"""Seeded bugs of questions that tools ask: answers that are lost, used twice or for something else; wrong starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    EffectPending,
    EffectResumed,
    Planned,
    Tools,
    WaitingQuestion,
)
from agentlane.machine import table
from agentlane.machine.facts import (
    AskApproval,
    CallsIntended,
    CallsNotBegun,
    Fact,
    QuestionAnswered,
    QuestionsAsked,
    Step,
)
from agentlane.machine.planning import View
from agentlane.machine.rules import Rules
from agentlane.machine.verdicts import AskApprovals, Idle, ReplayCall, SettleCalls, StartCalls, Verdict
from tests.machine.moves import Machine
from tests.machine.mutants import Bug, given, said, seen, told, with_calls, with_views, without


def planned_as(change: Callable[[Any], Any]) -> Machine:
    """The planning takes a call for another one."""
    return seen(lambda state, view, rules: (with_calls(state, lambda i, call: change(call)), view, rules))


def called(kind: type, change: Callable[[Any], Any], *facts: type) -> Machine:
    """Calls of this kind come out of these facts as something else."""

    def changed(state: Any, fact: Any, taken: Step) -> Step:
        if not isinstance(fact, facts):
            return taken
        return replace(
            taken, state=with_calls(taken.state, lambda i, call: change(call) if type(call) is kind else call)
        )

    return told(changed)


def counts_a_replay(state: Any, fact: Any, taken: Step) -> Step:
    if not isinstance(fact, CallsIntended):
        return taken
    resumed = [index for index, call in enumerate(state.calls) if isinstance(call, AnsweredCall)]
    effects = tuple(replace(each, replays=each.replays + (each.index in resumed)) for each in taken.effects)
    return replace(taken, effects=effects)


def replays_the_answered(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, StartCalls):
        for index, policy in verdict.calls:
            if isinstance(state.calls[index], AnsweredCall):
                return ReplayCall(index, policy)
    return verdict


def replayed(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    """What is replayed may be a call that was answered."""
    index = getattr(fact, "index", None)
    if isinstance(fact, QuestionAnswered) or index is None:
        return state, fact, rules

    def begun(i: int, call: Any) -> Any:
        answered = i == index and isinstance(call, AnsweredCall)
        return EffectPending(call.policy, call.attempt, call.replays) if answered else call

    return with_calls(state, begun), fact, rules


def frees_a_barrier(state: Any, view: View, verdict: Verdict) -> Verdict:
    """What waits for an answer counts as ended: a barrier behind it starts."""
    if isinstance(verdict, StartCalls | SettleCalls | AskApprovals) or not isinstance(state, Tools) or view.live:
        return verdict
    waits = any(isinstance(call, WaitingQuestion) for call in state.calls)
    for index, call in enumerate(state.calls):
        now = view.calls[index]
        free = isinstance(call, Planned) and not now.parallel and now.approval == "no" and now.problem is None
        if waits and free and now.policy is not None and state.cancel_requested_at is None and not view.cut:
            return StartCalls(((index, now.policy),))
    return verdict


def asks_on(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, StartCalls):
        answered = [index for index, _ in verdict.calls if isinstance(state.calls[index], AnsweredCall)]
        approved = [index for index in answered if view.calls[index].approval == "yes"]
        return AskApprovals(tuple(approved)) if approved else verdict
    return verdict


def never_settles_questions(state: Any, view: View, verdict: Verdict) -> Verdict:
    if not isinstance(verdict, SettleCalls):
        return verdict
    left = tuple((i, why) for i, why in verdict.calls if not isinstance(state.calls[i], WaitingQuestion))
    return SettleCalls(left) if left else Idle()


def runs_the_stranded(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
    def able(index: int, call: Any) -> Any:
        return replace(call, policy="safe") if isinstance(state.calls[index], AnsweredCall) and call.policy else call

    return state, with_views(view, able) if isinstance(state, Tools) else view, rules


def settles(kind: type, old: str, new: Any) -> Machine:
    def change(state: Any, view: View, verdict: Verdict) -> Verdict:
        if not isinstance(verdict, SettleCalls):
            return verdict

        def reason(index: int, why: Any) -> Any:
            return new if why == old and isinstance(state.calls[index], kind) else why

        return SettleCalls(tuple((index, reason(index, why)) for index, why in verdict.calls))

    return said(change)


def strands_all(state: Any, view: View, verdict: Verdict) -> Verdict:
    if isinstance(verdict, StartCalls):
        answered = [index for index, _ in verdict.calls if isinstance(state.calls[index], AnsweredCall)]
        return SettleCalls(tuple((index, "stranded") for index in answered)) if answered else verdict
    return verdict


def as_pending(call: Any) -> Any:
    return EffectPending(call.policy, call.attempt, call.replays)


def is_resumed(call: Any) -> Any:
    return as_pending(call) if isinstance(call, EffectResumed) else call


def one_more(call: Any) -> Any:
    return replace(call, replays=call.replays + 1)


def unanswered(state: Any, fact: Any, taken: Step) -> Step:
    return replace(taken, state=state) if isinstance(fact, QuestionAnswered) else taken


def unkept(state: Any, fact: Any, taken: Step) -> Step:
    return without(AskApproval)(state, fact, taken) if isinstance(fact, QuestionsAsked) else taken


def as_waiting(call: Any) -> Any:
    if not isinstance(call, AnsweredCall):
        return call
    return WaitingQuestion("?", call.policy, call.attempt, call.replays)


def holds_up(state: Any, view: View, verdict: Verdict) -> Verdict:
    if not isinstance(verdict, StartCalls):
        return verdict
    live = any(isinstance(state.calls[index], EffectResumed) and state.calls[index].replays for index in view.live)
    return Idle() if live else verdict


QUESTION_BUGS: tuple[Bug, ...] = (
    Bug("a resumed call is counted as a replay", "counts", called(EffectResumed, one_more, CallsIntended)),
    Bug("a resumed call is told that it is a replay", "I6 intents", told(counts_a_replay)),
    Bug(
        "a resumed call is not counted as a start",
        "counts",
        called(EffectResumed, lambda call: replace(call, attempt=call.attempt - 1), CallsIntended),
    ),
    Bug("a resumed call is one that starts first", "questions", called(EffectResumed, as_pending, CallsIntended)),
    Bug(
        "a call is started again with its answer as a replay",
        "legal",
        Machine(
            plan=said(replays_the_answered).plan,
            step=given(replayed).step,
        ),
    ),
    Bug(
        "a close loses a resumed call to planned",
        "I7 never",
        called(AnsweredCall, lambda call: Planned(), CallsNotBegun),
    ),
    Bug("a close loses the answer", "questions", called(AnsweredCall, as_pending, CallsNotBegun)),
    Bug(
        "a close asks the question again",
        "questions",
        called(
            AnsweredCall, lambda call: WaitingQuestion("again", call.policy, call.attempt, call.replays), CallsNotBegun
        ),
    ),
    Bug(
        "a close keeps the start that came to nothing",
        "questions",
        called(AnsweredCall, lambda call: replace(call, attempt=call.attempt + 1), CallsNotBegun),
    ),
    Bug("an answer leaves the call waiting", "counts", told(unanswered)),
    Bug(
        "an answered call is as if it had never begun",
        "counts",
        called(AnsweredCall, lambda call: Planned(), QuestionAnswered),
    ),
    Bug("an answer is taken for a yes", "counts", called(AnsweredCall, lambda call: Approved("?"), QuestionAnswered)),
    Bug(
        "a question forgets replays",
        "questions",
        called(WaitingQuestion, lambda c: replace(c, replays=0), QuestionsAsked),
    ),
    Bug(
        "a question forgets the policy of its start",
        "questions",
        called(WaitingQuestion, lambda call: replace(call, policy="safe"), QuestionsAsked),
    ),
    Bug("a question is not kept", "I4 ids", told(unkept)),
    Bug("an answered call never starts", "liveness", planned_as(as_waiting)),
    Bug("a waiting question frees a barrier", "alone", said(frees_a_barrier)),
    Bug("people are asked before a call starts again", "yes", said(asks_on)),
    Bug("a question is never settled under an abort", "liveness", said(never_settles_questions)),
    Bug("a stranded call runs again", "policies", seen(runs_the_stranded)),
    Bug("an answered call is settled though it may run", "policies", said(strands_all)),
    Bug("a stranded call is said not to have begun", "truth", settles(AnsweredCall, "stranded", "refused")),
    Bug("a call that asked is said not to have started", "truth", settles(WaitingQuestion, "aborted", "not_started")),
    Bug("a call that was answered is said to be interrupted", "truth", settles(AnsweredCall, "aborted", "interrupted")),
    Bug("an abort says that a resumed call never began", "truth", planned_as(is_resumed)),
    Bug("what runs again with an answer holds up the others", "liveness", said(holds_up)),
)


# Machines that take what they must refuse: nothing of their own brings it, but a driver gone wrong might.


def taking(change: Callable[[Any, Any, Rules], tuple[Any, Any, Rules]]) -> Callable[[Any, Fact, Rules], Step]:
    return lambda state, fact, rules: table.step(*change(state, fact, rules))


def any_answer(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    call = _call_of(state, fact, QuestionAnswered)
    return state, replace(fact, question=call.question) if isinstance(call, WaitingQuestion) else fact, rules


def answered_twice(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    call = _call_of(state, fact, QuestionAnswered)
    if not isinstance(call, AnsweredCall):
        return state, fact, rules
    waits = WaitingQuestion(fact.question, call.policy, call.attempt, call.replays)
    return with_calls(state, lambda i, each: waits if i == fact.index else each), fact, rules


def under_an_abort(kind: type) -> Callable[[Any, Any, Rules], tuple[Any, Any, Rules]]:
    def change(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
        return replace(state, cancel_requested_at=None) if isinstance(fact, kind) else state, fact, rules

    return change


def whatever_the_policy(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    if not isinstance(fact, QuestionsAsked | CallsIntended):
        return state, fact, rules
    if isinstance(fact, CallsIntended):
        fact = replace(fact, calls=tuple((index, "safe") for index, _ in fact.calls))

    def safe(index: int, call: Any) -> Any:
        return replace(call, policy="safe") if isinstance(call, EffectPending | AnsweredCall) else call

    return with_calls(state, safe), fact, rules


def asked_while_waiting(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    if not isinstance(fact, QuestionsAsked):
        return state, fact, rules
    begun = with_calls(state, lambda i, call: as_pending(call) if isinstance(call, WaitingQuestion) else call)
    return begun, fact, rules


def started_without_an_answer(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    if not isinstance(fact, CallsIntended):
        return state, fact, rules

    def answered(index: int, call: Any) -> Any:
        if not isinstance(call, WaitingQuestion):
            return call
        return AnsweredCall(call.policy, call.attempt, call.replays)

    return with_calls(state, answered), fact, rules


def _call_of(state: Any, fact: Any, kind: type) -> Any:
    return state.calls[fact.index] if isinstance(fact, kind) and isinstance(state, Tools) else None


LENIENT: dict[str, Callable[[Any, Fact, Rules], Step]] = {
    "an answer for another question": taking(any_answer),
    "an answer that is used twice": taking(answered_twice),
    "a question under an abort": taking(under_an_abort(QuestionsAsked)),
    "an answer under an abort": taking(under_an_abort(QuestionAnswered)),
    "a question of a call that must not run again, and its start": taking(whatever_the_policy),
    "a second question of a call that waits": taking(asked_while_waiting),
    "a start without an answer": taking(started_without_an_answer),
}
