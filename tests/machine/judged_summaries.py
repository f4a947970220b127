"""What a step about a summary, or of a navigation, does to the world, checked against what the world says is right."""

from __future__ import annotations

from typing import NamedTuple, NoReturn, TypeAlias, assert_never

from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import Checkpoint, OperationState, Summarizing, SummaryReason, SummaryWait
from agentlane.data.usage import Usage
from agentlane.machine.facts import (
    Change,
    DropPreparation,
    End,
    Fact,
    MoveLane,
    Navigated,
    PlaceSummary,
    RequestSummary,
    SpendSummary,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.rules import Rules
from tests.machine.promises import Promise, broken, hold
from tests.machine.world import BASE_MS, NO_SUMMARIES, NO_TASK, OVERFLOW, Task, World, summary_request_id, task_id

SummaryFact: TypeAlias = SummaryIntended | SummaryGiven | SummaryRefused | Summarized | SummaryInterrupted | Navigated

HALVED_MAX = 6
"""How often what a summary is made of may be halved."""


def summary_after(world: World, fact: SummaryFact, taken: Step, rules: Rules) -> World:
    """The world after a step about a summary; ``Violation`` if the step is not right."""
    return _Judged(world, fact, taken, rules).after()


def says_what_is_known(after: World, state: OperationState) -> bool:
    """Whether a state says of summaries what happened."""
    if isinstance(state, Summarizing | SummaryWait):
        counts = (state.attempt, state.retries, state.restarts, state.shorter, state.model_index)
        said = Task(state.task, state.reason, *counts)
        if said != after.task or state.placed != after.fed:
            return False
    elif after.task != NO_TASK:
        return False
    looked, overflow = getattr(state, "compacted", False), getattr(state, "overflow", None)
    known = (looked, overflow, getattr(state, "unsummarized", after.unsummarized))
    return known == (after.looked, OVERFLOW if after.overflowed else None, after.unsummarized)


def check_summary_changes(world: World, fact: Fact, taken: Step) -> None:
    """What holds of every step: rows of usage come of requests alone, and a lane moves with its navigation's end."""
    told = (world, fact, taken)
    spent = [change for change in taken.changes if isinstance(change, SpendSummary)]
    hold("summaries", len(spent) == isinstance(fact, Summarized | SummaryInterrupted), told)
    end = taken.changes[-1] if taken.state is None and taken.changes else None
    completed = isinstance(end, End) and end.status == "completed"
    moved = [change for change in taken.changes if isinstance(change, MoveLane)]
    hold("moves", len(moved) == (completed and world.kind == "navigation"), told)
    if not isinstance(fact, SummaryFact):
        # What a summary was to be made of goes with the operation that waits for it.
        ends = taken.state is None and world.task != NO_TASK
        dropped = [change for change in taken.changes if isinstance(change, PlaceSummary | DropPreparation)]
        hold("summaries", dropped == ([DropPreparation(world.task.id)] if ends else []), told)


class _Judged(NamedTuple):
    """One step of one world under judgement."""

    world: World
    fact: SummaryFact
    taken: Step
    rules: Rules

    def after(self) -> World:
        fact = self.fact
        match fact:
            case SummaryIntended():
                return self._intended(fact)
            case SummaryGiven(task, reason, text):
                self._check_asked(reason, task)
                return self._placed(reason, PlaceSummary(task, text), ())
            case SummaryRefused(reason, error):
                return self._refused(reason, error)
            case Summarized():
                return self._ended(fact)
            case SummaryInterrupted():
                return self._interrupted(fact)
            case Navigated():
                self._changes(MoveLane(), End("completed", self.world.turn, self.world.answer), promise="moves")
                return self.world
            case _:
                assert_never(fact)

    def __str__(self) -> str:
        return f"\n  {self.world}\n  {self.fact}\n  {self.taken}"

    def _intended(self, fact: SummaryIntended) -> World:
        task = self.world.task
        if task == NO_TASK:
            self._check_asked(fact.reason, fact.task)
            task = Task(fact.task, fact.reason)
        hold("I4 ids", (fact.task, fact.reason) == (task.id, task.reason), self)
        self._changes()
        return self._requested(task, fact.response_id, fact.model_index)

    def _check_asked(self, reason: SummaryReason, task: str) -> None:
        """Something is to be summarized here, for this reason and no other."""
        world, state = self.world, self.world.state
        if not isinstance(state, Checkpoint):
            broken("needs", self)
        if state.next == "respond":
            hold("needs", reason == "threshold" and not world.looked and not world.unsummarized, self)
        else:
            asked = {"run": "overflow", "compaction": "manual", "navigation": "navigation"}[world.kind]
            hold("needs", state.next == "summarize" and reason == asked, self)
            hold("needs", world.overflowed == (reason == "overflow"), self)
        hold("I4 ids", task == task_id(reason, state.trigger), self)

    def _requested(self, task: Task, id: str, model_index: int | None) -> World:
        """The next request for the summary is intended, and this step says so."""
        model = task.model if model_index is None else model_index
        after = task._replace(requests=task.requests + 1, model=model)
        hold("I4 ids", id == summary_request_id(task.id, after.requests), self)
        request = RequestSummary(task.id, id, after.requests, model, after.shorter)
        hold("I6 intents", self.taken.effects == (request,), self)
        state = self.taken.state
        if not isinstance(state, Summarizing):
            broken("I6 intents", self)
        hold("I4 ids", (state.response_id, state.trigger) == (id, self._trigger()), self)
        return self.world._replace(task=after, request="intended")

    def _refused(self, reason: SummaryReason, error: ErrorInfo) -> World:
        world, task = self.world, self.world.task
        if task != NO_TASK:
            return self._without(error)
        if reason == "threshold":
            self._changes()
            self._goes_on("respond", self._trigger())
            return world._replace(looked=True)
        return self._replaced(task=Task("", reason))._without(error)

    def _ended(self, fact: Summarized) -> World:
        world, message, task = self.world, fact.message, self.world.task
        id = summary_request_id(task.id, task.requests)
        if world.aborted:
            stopped = replace(message, stop_reason="aborted") if message.stop_reason == "error" else message
            return self._aborted(SpendSummary(id, stopped))
        if message.stop_reason in ("stop", "length") and message not in NO_SUMMARIES:
            placed = PlaceSummary(task.id, message.text.strip(), message.model)
            return self._placed(task.reason, placed, (SpendSummary(id, message, task.id),))
        spent, error = SpendSummary(id, message), message.error
        if error == OVERFLOW and task.shorter < HALVED_MAX and not fact.shortest:
            return self._waits(task._replace(shorter=task.shorter + 1), spent, fact.now, exactly=True)
        if error is None:
            hold("summaries", not any(isinstance(change, PlaceSummary) for change in self.taken.changes), self)
            error = self._error_told()
            hold("summaries", (error.code, error.retryable) == ("invalid_summary", True), self)
        failed = task._replace(failures=task.failures + 1)
        if not error.retryable or failed.failures >= self.rules.retry.attempts:
            return self._without(error, spent)
        if fact.fallback is not None:
            return self._waits(failed._replace(model=fact.fallback), spent, fact.now, exactly=True)
        return self._waits(failed, spent, fact.now + max(BASE_MS // 2, error.retry_after_ms or 0))

    def _error_told(self) -> ErrorInfo:
        """The error that the step found in an answer which is no summary."""
        state, end = self.taken.state, self.taken.changes[-1]
        if isinstance(state, SummaryWait):
            return state.error
        told = end.error if isinstance(end, End) and self.world.task.reason in ("manual", "navigation") else None
        return told or ErrorInfo(code="invalid_summary", message="", retryable=True)

    def _interrupted(self, fact: SummaryInterrupted) -> World:
        spent = self._spent_by_nobody()
        if self.world.aborted:
            return self._aborted(spent)
        task = self.world.task._replace(interruptions=self.world.task.interruptions + 1)
        if task.interruptions > self.rules.limits.max_restarts:
            return self._without(ErrorInfo(code="restarts_exhausted", message=""), spent)
        if fact.unavailable is not None:
            return self._without(fact.unavailable, spent)
        if task.interruptions > 1:
            return self._waits(task, spent, fact.now + BASE_MS // 2)
        hold("waits", isinstance(self.taken.state, Summarizing), self)
        self._changes(spent)
        return self._requested(task, fact.response_id, fact.model_index)

    def _spent_by_nobody(self) -> SpendSummary:
        """The row of a request that nobody knows the end of."""
        task = self.world.task
        first = self.taken.changes[0] if self.taken.changes else None
        if not isinstance(first, SpendSummary):
            broken("summaries", self)
        message = first.message
        unknown = (message.stop_reason, message.text, message.usage) == ("error", "", Usage())
        hold("summaries", unknown, self)
        hold("I4 ids", (first.response_id, first.task) == (summary_request_id(task.id, task.requests), None), self)
        return first

    # What becomes of it.

    def _placed(self, reason: SummaryReason, placed: PlaceSummary, spent: tuple[Change, ...]) -> World:
        after = self.world._replace(task=NO_TASK, request="")
        if reason == "navigation":
            completed = End("completed", self.world.turn, self.world.answer)
            self._changes(*spent, MoveLane(), placed, completed)
            return after
        self._changes(*spent, placed)
        if reason == "manual":
            self._goes_on("end", placed.task)
            return after
        self._goes_on("respond", self._trigger())
        return after._replace(looked=True)

    def _without(self, error: ErrorInfo, *changes: Change) -> World:
        """There is no summary: a run that would have asked anyway goes on, and everything else has failed."""
        world, task = self.world, self.world.task
        hold("bounds", not isinstance(self.taken.state, Summarizing | SummaryWait), self)
        dropped = (*changes, DropPreparation(task.id)) if task.id else changes
        after = world._replace(task=NO_TASK, request="")
        if task.reason == "threshold":
            hold("needs", self.taken.state is not None, self)
            self._changes(*dropped)
            self._goes_on("respond", self._trigger())
            return after._replace(looked=True, unsummarized=True)
        end = self.taken.changes[-1] if self.taken.changes else None
        if not isinstance(end, End) or end.error is None:
            broken("needs", self)
        code, answer = error.code, world.answer
        if task.reason == "overflow":
            code, answer = OVERFLOW.code, self._trigger()
            hold("needs", error.message in end.error.message and OVERFLOW.message in end.error.message, self)
        said = (end.status, end.turns, end.answer, end.code, end.error.code)
        hold("needs", said == ("failed", world.turn, answer, code, code), self)
        self._changes(*dropped, end)
        return after

    def _waits(self, task: Task, spent: SpendSummary, at: int, *, exactly: bool = False) -> World:
        state = self.taken.state
        if not isinstance(state, SummaryWait):
            broken("bounds", self)
        hold("waits", state.not_before == at if exactly else state.not_before >= at, self)
        self._changes(spent)
        hold("I4 ids", state.trigger == self._trigger(), self)
        return self.world._replace(task=task, request="")

    def _aborted(self, spent: SpendSummary) -> World:
        ended = End("aborted", self.world.turn, self.world.answer)
        self._changes(spent, DropPreparation(self.world.task.id), ended)
        return self.world._replace(task=NO_TASK, request="")

    # What holds of every step.

    def _changes(self, *expected: Change, promise: Promise = "summaries") -> None:
        hold(promise, self.taken.changes == expected, self)
        if not isinstance(self.taken.state, Summarizing):
            hold("I6 intents", not self.taken.effects, self)

    def _goes_on(self, next: str, trigger: str) -> None:
        state = self.taken.state
        if not isinstance(state, Checkpoint):
            broken("needs", self)
        hold("needs", (state.next, state.trigger, state.code) == (next, trigger, None), self)

    def _trigger(self) -> str:
        state = self.world.state
        if not isinstance(state, Checkpoint | Summarizing | SummaryWait):
            self._illegal()
        return state.trigger

    def _illegal(self) -> NoReturn:
        broken("legal", self)

    def _replaced(self, *, task: Task) -> _Judged:
        return self._replace(world=self.world._replace(task=task))
