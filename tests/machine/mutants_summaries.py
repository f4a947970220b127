"""Seeded bugs of summaries and navigations: made too often or never, lost, paid for twice, or in a run's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from agentlane.data.messages import TextPart
from agentlane.data.operations import Checkpoint, Generating, Navigating, Summarizing, SummaryWait
from agentlane.machine import table
from agentlane.machine.facts import (
    Answered,
    DropPreparation,
    End,
    Fact,
    MoveLane,
    Navigated,
    OutcomesArrived,
    PlaceSummary,
    QueuedPlaced,
    RequestIntended,
    SpendSummary,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.planning import View, Waiting
from agentlane.machine.rules import Rules
from agentlane.machine.verdicts import (
    AskModel,
    AskSummary,
    DropSummary,
    Idle,
    PlaceQueued,
    RecoverSummary,
    RefuseSummary,
    Verdict,
)
from tests.machine.moves import Machine
from tests.machine.mutants import Bug, after_of, attempts, given, limits, said, seen, told, when, without
from tests.machine.world import OVERFLOW

SUMMARY_FACTS = (SummaryIntended, SummaryGiven, SummaryRefused, Summarized, SummaryInterrupted)

# What the planning may get wrong.


def summary_as(**changed: Any) -> Machine:
    """What is told of a summary is taken for something else."""

    def change(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
        summary = view.summary
        return state, view if summary is None else replace(view, summary=replace(summary, **changed)), rules

    return seen(change)


def seen_at(kind: type, *nexts: str, **changed: Any) -> Machine:
    """At a state of this kind something else is seen."""

    def change(state: Any, view: View, rules: Rules) -> tuple[Any, View, Rules]:
        here = isinstance(state, kind) and (not nexts or state.next in nexts)
        return state, replace(view, **changed) if here else view, rules

    return seen(change)


def state_as(kind: type, **changed: Any) -> Machine:
    """The planning takes a state of this kind for another one."""
    return seen(
        lambda state, view, rules: (replace(state, **changed) if isinstance(state, kind) else state, view, rules)
    )


def places_at(next: str) -> Callable[[Any, View, Verdict], Verdict]:
    """At such a checkpoint everything that waits is placed."""

    def change(state: Any, view: View, verdict: Verdict) -> Verdict:
        w = view.waiting
        due = isinstance(state, Checkpoint) and state.next == next and (w.writes or w.steers or w.follow_ups)
        return PlaceQueued(w.writes, w.steers, w.follow_ups) if due and view.failure is None else verdict

    return change


def instead(kind: type, verdict: Verdict) -> Machine:
    return said(lambda state, view, said: verdict if isinstance(said, kind) else said)


def answers_a_compaction(state: Any, view: View, verdict: Verdict) -> Verdict:
    return AskModel() if isinstance(verdict, AskSummary) and verdict.reason == "manual" else verdict


def gives_up_a_wait(state: Any, view: View, verdict: Verdict) -> Verdict:
    waits = isinstance(state, SummaryWait) and isinstance(verdict, AskSummary)
    return RefuseSummary(state.reason, state.error) if waits else verdict


# What the table may get wrong.


def taken_as(kind: type, rules_as: Callable[[Rules], Rules]) -> Machine:
    """A fact of this kind is taken by other rules."""
    return given(lambda state, fact, rules: (state, fact, rules_as(rules) if isinstance(fact, kind) else rules))


def summarizes_again(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    again = isinstance(fact, Answered) and fact.message.error == OVERFLOW and state.cancel_requested_at is None
    return replace(state, overflow=None) if again else state, fact, rules


def summarizes_under_an_abort(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    written = isinstance(fact, Summarized) and fact.message.stop_reason == "stop"
    return replace(state, cancel_requested_at=None) if written else state, fact, rules


def with_input(**changed: Any) -> Callable[[Any, Any, Step], Step]:
    """Where input is placed, something else."""

    def change(state: Any, fact: Any, taken: Step) -> Step:
        return after_of(taken, **changed) if isinstance(fact, QueuedPlaced) and fact.trigger is not None else taken

    return change


def given_fact(kind: type, **changed: Any) -> Machine:
    """Facts of this kind say something else."""
    return given(
        lambda state, fact, rules: (state, replace(fact, **changed) if isinstance(fact, kind) else fact, rules)
    )


def of_reason(reason: str, **changed: Any) -> Machine:
    """What comes after a summary of this reason is something else."""

    def change(state: Any, fact: Any, taken: Step) -> Step:
        here = getattr(fact, "reason", getattr(state, "reason", "")) == reason
        return after_of(taken, **changed) if here and isinstance(taken.state, Checkpoint) else taken

    return told(change)


def at_state(kind: type, **changed: Any) -> Machine:
    """Whenever a state of this kind comes out, it says something else."""
    return told(lambda state, fact, taken: after_of(taken, **changed) if isinstance(taken.state, kind) else taken)


def changed_as(kind: type, change: Callable[[Any], Any]) -> Machine:
    """Changes of this kind come out as something else."""

    def of(state: Any, fact: Any, taken: Step) -> Step:
        return replace(taken, changes=tuple(change(each) if isinstance(each, kind) else each for each in taken.changes))

    return told(of)


def fails_the_run(state: Any, fact: Any, taken: Step) -> Step:
    failed = isinstance(fact, Summarized | SummaryInterrupted | SummaryRefused) and isinstance(taken.state, Checkpoint)
    if not failed or not taken.state.unsummarized or getattr(state, "unsummarized", False):
        return taken
    return Step(None, (*taken.changes, End("failed", state.turn, state.answer)), boundary="summary_failed")


def tells_the_wrong_error(state: Any, fact: Any, taken: Step) -> Step:
    def plain(change: Any) -> Any:
        if not isinstance(change, End) or change.status != "failed":
            return change
        return replace(change, code=fact.error.code, error=fact.error)

    return replace(taken, changes=tuple(map(plain, taken.changes))) if isinstance(fact, SummaryRefused) else taken


def forgets_the_turn(state: Any, fact: Any, taken: Step) -> Step:
    def less(change: Any) -> Any:
        return replace(change, turns=state.turn) if isinstance(change, End) else change

    return replace(taken, changes=tuple(map(less, taken.changes))) if isinstance(fact, SUMMARY_FACTS) else taken


def counts_the_turn_twice(state: Any, fact: Any, taken: Step) -> Step:
    summarizes = isinstance(taken.state, Checkpoint) and taken.state.next == "summarize"
    return after_of(taken, turn=state.turn) if summarizes and isinstance(state, Generating) else taken


def waits_first(state: Any, fact: Any, rules: Rules) -> Step:
    """The first restart of a summary waits like the later ones."""
    if not isinstance(fact, SummaryInterrupted) or state.restarts or state.cancel_requested_at is not None:
        return table.step(state, fact, rules)
    more = limits(rules, max_restarts=rules.limits.max_restarts + 1)
    taken = table.step(replace(state, restarts=1), fact, more)
    return after_of(taken, restarts=1) if isinstance(taken.state, SummaryWait) else taken


def never_waits(state: Any, fact: Any, taken: Step) -> Step:
    failed = isinstance(fact, Summarized) and isinstance(taken.state, SummaryWait)
    return after_of(taken, not_before=fact.now) if failed else taken


def stays_with_the_model(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, model_index=state.model_index) if isinstance(taken.state, SummaryWait) else taken


def keeps_the_id(state: Any, fact: Any, taken: Step) -> Step:
    again = isinstance(fact, SummaryInterrupted) and isinstance(taken.state, Summarizing)
    return after_of(taken, response_id=state.response_id) if again else taken


def moves_early(state: Any, fact: Any, taken: Step) -> Step:
    return replace(taken, changes=(MoveLane(),)) if isinstance(fact, SummaryIntended) else taken


def moves_late(state: Any, fact: Any, taken: Step) -> Step:
    rest = [each for each in taken.changes if not isinstance(each, MoveLane)]
    if not isinstance(fact, Summarized) or len(rest) == len(taken.changes):
        return taken
    return replace(taken, changes=(*rest[:-1], MoveLane(), rest[-1]))


def moves_whatever_comes(state: Any, fact: Any, taken: Step) -> Step:
    failed = isinstance(fact, SUMMARY_FACTS) and taken.state is None
    if not failed or any(isinstance(change, MoveLane) for change in taken.changes):
        return taken
    return replace(taken, changes=(MoveLane(), *taken.changes))


def takes_anything(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    """Whatever an answer holds is a summary."""
    if not isinstance(fact, Summarized) or fact.message.stop_reason in ("error", "aborted"):
        return state, fact, rules
    said = tuple(part for part in fact.message.content if isinstance(part, TextPart))
    return state, replace(fact, message=replace(fact.message, content=said)), rules


def halves_for_ever(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    again = isinstance(fact, Summarized) and fact.message.error == OVERFLOW
    return replace(state, shorter=min(state.shorter, 5)) if again else state, fact, rules


SUMMARY_BUGS: tuple[Bug, ...] = (
    # Whether something is summarized.
    Bug("what would be too long is asked for as it is", "needs", seen_at(Checkpoint, "respond", summary=None)),
    Bug("something is summarized again and again for one request", "needs", state_as(Checkpoint, compacted=False)),
    Bug("after a failed summary another one is made", "needs", state_as(Checkpoint, unsummarized=False)),
    Bug("a summary is made though it was declined", "needs", summary_as(refused=None)),
    Bug("a summary is made though the application gave one", "needs", summary_as(given=None)),
    Bug(
        "a model that is not here is asked for a summary", "needs", seen_at(Checkpoint, "summarize", model_problem=None)
    ),
    Bug("a wait for a model that has gone goes on", "needs", seen_at(SummaryWait, model_problem=None)),
    Bug("a limit does not stand in a compaction's way", "bounds", seen_at(Checkpoint, "summarize", limit=None)),
    Bug("a limit does not end a wait for a summary", "bounds", seen_at(SummaryWait, limit=None)),
    Bug("a hook does not stand in a navigation's way", "I8 end", seen_at(Navigating, failure=None)),
    Bug("a compaction asks the model for an answer", "needs", said(answers_a_compaction)),
    Bug("a failed attempt at a summary is the last one", "needs", said(gives_up_a_wait)),
    Bug("a wait for a summary is not sat out", "waits", seen_at(SummaryWait, now=10**9)),
    Bug("a dead request for a summary is waited for", "liveness", instead(RecoverSummary, Idle())),
    Bug("a summary that never began is said to be interrupted", "truth", instead(DropSummary, RecoverSummary())),
    Bug("input is placed before the summary it waits for", "inbox", said(places_at("summarize"))),
    Bug("input is placed at a compaction's end", "inbox", said(places_at("end"))),
    Bug("writes wait on at a compaction's end", "inbox", seen_at(Checkpoint, "end", waiting=Waiting())),
    # What is written.
    Bug("an attempt at a summary has no row of usage", "summaries", told(without(SpendSummary))),
    Bug(
        "the row of usage does not name its summary",
        "summaries",
        changed_as(SpendSummary, lambda each: replace(each, task=None)),
    ),
    Bug("what a summary was made of is left", "summaries", told(without(DropPreparation))),
    Bug("a summary is nowhere", "summaries", told(without(PlaceSummary))),
    Bug("whatever an answer holds is a summary", "summaries", given(takes_anything)),
    Bug(
        "the spaces around a summary are kept",
        "summaries",
        changed_as(PlaceSummary, lambda each: replace(each, text=f" {each.text} ")),
    ),
    Bug("a navigation leaves the lane where it is", "moves", told(without(MoveLane))),
    Bug("a lane moves before its summary is made", "moves", told(moves_early)),
    Bug("a lane moves though its summary failed", "moves", told(moves_whatever_comes)),
    Bug("a summary is placed where the lane was", "summaries", told(moves_late)),
    # What the run goes on with.
    Bug("a request that was too long fails the run", "needs", given_fact(Answered, summarize=False)),
    Bug("whatever is too long is summarized for, over and over", "bounds", given(summarizes_again)),
    Bug("a summary forgets that the request was too long", "summaries", of_reason("overflow", overflow=None)),
    Bug(
        "the second request forgets that the first was too long",
        "summaries",
        told(when(RequestIntended, overflow=None)),
    ),
    Bug("the second request counts as another turn", "counts", told(counts_the_turn_twice)),
    Bug("the turn of a request that was too long is lost", "needs", told(forgets_the_turn)),
    Bug("a summary fails a run that did not need it", "needs", told(fails_the_run)),
    Bug("the run fails with why there is no summary", "needs", told(tells_the_wrong_error)),
    Bug("a failed summary is forgotten", "summaries", told(when(Summarized, unsummarized=False))),
    Bug("a failed summary is forgotten by the answer", "summaries", told(when(Answered, unsummarized=False))),
    Bug("a failed summary is forgotten by the results", "summaries", told(when(OutcomesArrived, unsummarized=False))),
    Bug("a failed summary is forgotten by input", "summaries", told(with_input(unsummarized=False))),
    Bug("a declined summary is one that failed", "summaries", told(when(SummaryRefused, unsummarized=True))),
    Bug("a summary is forgotten before the request", "summaries", of_reason("threshold", compacted=False)),
    Bug("a summary is forgotten by the request", "summaries", told(when(RequestIntended, compacted=False))),
    Bug("input that is placed is taken as summarized for", "summaries", told(with_input(compacted=True))),
    Bug("a summary forgets that input was placed", "inbox", told(when(Summarized, placed=False))),
    Bug(
        "a request for a summary forgets that input was placed", "summaries", told(when(SummaryIntended, placed=False))
    ),
    Bug("a compaction goes on to an answer", "needs", of_reason("manual", next="respond")),
    Bug("a summary is made under an abort", "abort", given(summarizes_under_an_abort)),
    # How often it is asked for.
    Bug("attempts at a summary have no bound", "bounds", taken_as(Summarized, lambda rules: attempts(rules, 99))),
    Bug(
        "attempts at a summary end before their bound",
        "bounds",
        taken_as(Summarized, lambda rules: attempts(rules, -1)),
    ),
    Bug(
        "restarts of a summary have no bound",
        "bounds",
        taken_as(SummaryInterrupted, lambda rules: limits(rules, max_restarts=99)),
    ),
    Bug("the first restart of a summary waits", "waits", Machine(step=waits_first)),
    Bug("a restarted summary takes the id of the dead request", "I4 ids", told(keeps_the_id)),
    Bug("a failed attempt at a summary is repeated at once", "waits", told(never_waits)),
    Bug("a failing model is asked for the summary again", "summaries", told(stays_with_the_model)),
    Bug(
        "the next attempt at a summary begins with the first model",
        "summaries",
        told(when(SummaryIntended, model_index=0)),
    ),
    Bug("attempts at a summary are not counted", "summaries", told(when(SummaryIntended, attempt=1))),
    Bug("what is too long is shown as it was", "summaries", at_state(SummaryWait, shorter=0)),
    Bug("what is too long is halved for ever", "bounds", given(halves_for_ever)),
)


def taking(change: Callable[[Any, Any, Rules], tuple[Any, Any, Rules]]) -> Callable[[Any, Fact, Rules], Step]:
    """A table that takes something else than what comes."""
    return lambda state, fact, rules: table.step(*change(state, fact, rules))


def another_task(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    waits = isinstance(fact, SummaryIntended) and isinstance(state, SummaryWait)
    return state, replace(fact, task=state.task, reason=state.reason) if waits else fact, rules


def any_reason(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    asked = isinstance(fact, SummaryIntended | SummaryGiven | SummaryRefused) and isinstance(state, Checkpoint)
    return state, replace(fact, reason="manual") if asked and state.next == "summarize" else fact, rules


def an_empty_one(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    return state, replace(fact, text="nothing") if isinstance(fact, SummaryGiven) else fact, rules


def under_an_abort(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    about = isinstance(fact, SummaryIntended | SummaryGiven | SummaryRefused | Navigated)
    return replace(state, cancel_requested_at=None) if about else state, fact, rules


def input_before_the_summary(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    early = isinstance(fact, QueuedPlaced) and isinstance(state, Checkpoint) and state.next == "summarize"
    return replace(state, next="respond") if early else state, fact, rules


def input_at_the_end(state: Any, fact: Any, rules: Rules) -> tuple[Any, Any, Rules]:
    late = isinstance(fact, QueuedPlaced) and isinstance(state, Checkpoint) and state.next == "end"
    return state, replace(fact, trigger=None) if late else fact, rules


LENIENT_SUMMARIES: dict[str, Callable[[Any, Fact, Rules], Step]] = {
    "the next attempt at another summary": taking(another_task),
    "a summary for a reason that nobody has": taking(any_reason),
    "a summary of the application that is empty": taking(an_empty_one),
    "a summary under an abort": taking(under_an_abort),
    "input that is placed before the summary": taking(input_before_the_summary),
    "input that is placed when a compaction ends": taking(input_at_the_end),
}
