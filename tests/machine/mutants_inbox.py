"""Seeded bugs of the inbox: what waits is placed too late, too early, in part, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from agentlane.data.operations import Checkpoint
from agentlane.machine.facts import PlaceItems, QueuedPlaced, Step
from agentlane.machine.planning import View, Waiting
from agentlane.machine.verdicts import PlaceQueued, Verdict
from tests.machine.moves import Machine
from tests.machine.mutants import Bug, after_of, said, seen, told, when, without


def waiting_as(change: Callable[[Waiting], Waiting]) -> Machine:
    return seen(lambda state, view, rules: (state, replace(view, waiting=change(view.waiting)), rules))


def overlooks_the_model(state: Any, view: View, rules: Any) -> tuple[Any, View, Any]:
    ends = isinstance(state, Checkpoint) and state.next == "finish"
    return state, replace(view, model_problem=None, limit=None) if ends else view, rules


def forgets_the_rest(state: Any, view: View, rules: Any) -> tuple[Any, View, Any]:
    return (replace(state, more=False) if isinstance(state, Checkpoint) else state), view, rules


def places_everything(state: Any, view: View, verdict: Verdict) -> Verdict:
    w = view.waiting
    if isinstance(state, Checkpoint) and isinstance(verdict, PlaceQueued):
        return PlaceQueued(w.writes, w.steers, w.follow_ups)
    return verdict


def goes_on_after_a_write(state: Any, fact: Any, taken: Step) -> Step:
    placed = isinstance(fact, QueuedPlaced) and isinstance(taken.state, Checkpoint)
    return after_of(taken, next="respond") if placed else taken


def ends_though_steered(state: Any, fact: Any, taken: Step) -> Step:
    return after_of(taken, next=state.next) if isinstance(fact, QueuedPlaced) else taken


INBOX_BUGS: tuple[Bug, ...] = (
    Bug("what waits is not looked at", "inbox", waiting_as(lambda waiting: Waiting())),
    Bug("deferred writes are left", "inbox", waiting_as(lambda waiting: replace(waiting, writes=0))),
    Bug("steering is left when the run ends", "inbox", waiting_as(lambda waiting: replace(waiting, steers=0))),
    Bug("follow-ups come with steering", "inbox", said(places_everything)),
    Bug("one at a time is all at once", "inbox", seen(lambda s, v, r: (s, v, replace(r, steering="all")))),
    Bug("one at a time is one in all", "inbox", seen(lambda s, v, r: (s, v, replace(r, follow_ups="one")))),
    Bug("a second one is placed before the first is answered", "inbox", told(when(QueuedPlaced, placed=False))),
    Bug("the rest of the follow-ups is forgotten", "inbox", told(when(QueuedPlaced, more=False))),
    Bug("the rest of the follow-ups is left for the next end", "inbox", seen(forgets_the_rest)),
    Bug("a follow-up that came later is placed too early", "inbox", told(when(QueuedPlaced, more=True))),
    Bug("input that nobody can answer is placed", "inbox", seen(overlooks_the_model)),
    Bug("a deferred write makes the run go on", "inbox", told(goes_on_after_a_write)),
    Bug("steering does not make the run go on", "inbox", told(ends_though_steered)),
    Bug("the length of an answer outlives a follow-up", "inbox", told(when(QueuedPlaced, code="length"))),
    Bug("what is placed is nowhere", "inbox", told(without(PlaceItems))),
)
