"""Claim: what is broken about summaries is found by the matrix, and said to be what it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.messages import TextPart
from agentlane.data.operations import Checkpoint, CompactionPolicy, Generating, Navigating, Summarizing
from agentlane.data.writes import SetValue
from agentlane.driver import apart, recovery
from agentlane.driver.draft import OperationDraft
from agentlane.driver.summarizing import Summaries
from agentlane.ids import derive
from agentlane.machine.facts import Answered, PlaceSummary, SpendSummary, Step, Summarized, SummaryInterrupted
from agentlane.machine.rules import Rules
from agentlane.model import ModelError, ModelRequest, StreamItem
from agentlane.testing import CrashMatrixError, Depth, Scenario, ScriptedModel, crash_matrix
from agentlane.testing.matrix.builtin.compacting import INTERRUPTED, LEFT, MANUAL, THRESHOLD, long
from tests.crash.test_catches import Patch, transition


class TooShort(ScriptedModel):
    """A model that is asked for its third answer in vain, however short the request is."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        last = request.messages[-1].content[0]
        if isinstance(last, TextPart) and last.text == "third":
            raise ModelError("too long", kind="context_overflow")
        async for item in super().stream(request):
            yield item


AGAIN_AND_AGAIN = Scenario(
    "requests that are too long whatever is summarized",
    prompt=["first", "second", "third"],
    agent=lambda life: Agent(
        model=TooShort(turns=[[long("alpha")], ["two"], ["three"]], summaries="so far"),
        compaction=CompactionPolicy(keep_tokens=60),
    ),
)


def _was_interrupted(draft: OperationDraft) -> bool:
    return isinstance(draft.state, Summarizing) and draft.state.restarts > 0


def a_summary_is_placed_twice(patch: Patch) -> None:
    before = OperationDraft._place_summary

    def place(self: OperationDraft, change: PlaceSummary) -> None:
        again, prep = _was_interrupted(self), self.prep
        before(self, change)
        if again:
            self.prep = prep
            before(self, PlaceSummary(derive(change.task, 900), change.text, change.model))

    patch.setattr(OperationDraft, "_place_summary", place)


def the_cut_is_decided_anew(patch: Patch) -> None:
    before = recovery._prep

    async def read(*args: Any) -> Any:
        return replace(await before(*args), kept_from=None)

    patch.setattr(recovery, "_prep", read)


def the_kept_tail_is_lost(patch: Patch) -> None:
    before = OperationDraft._place_summary

    def place(self: OperationDraft, change: PlaceSummary) -> None:
        if _was_interrupted(self) and self.prep is not None:
            self.prep = replace(self.prep, kept_from=None)
        before(self, change)

    patch.setattr(OperationDraft, "_place_summary", place)


def an_interrupted_attempt_is_not_charged(patch: Patch) -> None:
    def interrupt(before: Any, state: Summarizing, fact: SummaryInterrupted, rules: Rules) -> Step:
        step: Step = before(state, fact, rules)
        kept = tuple(change for change in step.changes if not isinstance(change, SpendSummary))
        return Step(step.state, kept, step.effects, step.boundary)

    transition(patch, Summarizing, SummaryInterrupted, interrupt)


def an_attempt_is_said_to_have_given_what_another_gave(patch: Patch) -> None:
    def interrupt(before: Any, state: Summarizing, fact: SummaryInterrupted, rules: Rules) -> Step:
        step: Step = before(state, fact, rules)
        changes = tuple(
            SpendSummary(change.response_id, change.message, state.task) if isinstance(change, SpendSummary) else change
            for change in step.changes
        )
        return Step(step.state, changes, step.effects, step.boundary)

    transition(patch, Summarizing, SummaryInterrupted, interrupt)


def an_interrupted_summary_is_given_up(patch: Patch) -> None:
    def interrupt(before: Any, state: Summarizing, fact: SummaryInterrupted, rules: Rules) -> Step:
        step: Step = before(state, fact, replace(rules, limits=replace(rules.limits, max_restarts=0)))
        return step

    transition(patch, Summarizing, SummaryInterrupted, interrupt)


def a_restart_of_a_summary_has_no_bound(patch: Patch) -> None:
    def interrupt(before: Any, state: Summarizing, fact: SummaryInterrupted, rules: Rules) -> Step:
        step: Step = before(state, fact, replace(rules, limits=replace(rules.limits, max_restarts=99)))
        return step

    transition(patch, Summarizing, SummaryInterrupted, interrupt)


def a_summary_that_came_is_written_by_nobody(patch: Patch) -> None:
    def take(before: Any, state: Summarizing, fact: Summarized, rules: Rules) -> Step:
        step: Step = before(state, fact, rules)
        changes = tuple(
            PlaceSummary(change.task, "Something else.", change.model) if isinstance(change, PlaceSummary) else change
            for change in step.changes
        )
        return Step(step.state, changes if state.restarts else step.changes, step.effects, step.boundary)

    transition(patch, Summarizing, Summarized, take)


def a_request_is_summarized_for_again(patch: Patch) -> None:
    before = Summaries.can_recover

    def can_recover(self: Summaries, state: Any) -> bool:
        return before(self, replace(state, overflow=None))

    def answered(before: Any, state: Generating, fact: Answered, rules: Rules) -> Step:
        overflows = fact.message.error is not None
        step: Step = before(replace(state, overflow=None) if overflows else state, fact, rules)
        return step

    patch.setattr(Summaries, "can_recover", can_recover)
    transition(patch, Generating, Answered, answered)


def a_lane_moves_before_its_summary_is_there(patch: Patch) -> None:
    before = OperationDraft.prepare

    def prepare(self: OperationDraft, task: str, prep: Any) -> None:
        before(self, task, prep)
        if self.operation.meta.navigate is not None:
            self.path.writes.append(SetValue(addresses.branch_tip(self.path.branch), codec.encode(prep.target)))

    patch.setattr(OperationDraft, "prepare", prepare)


def a_lane_moves_without_its_summary(patch: Patch) -> None:
    def first(lane: Any, navigate: Any, aside: Any, tip: Any) -> Any:
        if navigate is None:
            return Checkpoint(next="summarize", trigger=tip)
        return Navigating(target=navigate.to, label=navigate.label)

    patch.setattr(apart, "_first_state", first)


BREAKAGES: list[tuple[Callable[[Patch], None], Scenario[Any], str, str | None]] = [
    (a_summary_is_placed_twice, THRESHOLD, "is not named by", "kill@effect.summary.end#1"),
    (the_cut_is_decided_anew, MANUAL, "is about", "kill@effect.summary.end#1"),
    (the_kept_tail_is_lost, MANUAL, "I13: entry", "kill@effect.summary.end#1"),
    (an_interrupted_attempt_is_not_charged, THRESHOLD, "has 0 rows", "kill@effect.summary.end#1"),
    (
        an_attempt_is_said_to_have_given_what_another_gave,
        THRESHOLD,
        "is said to have given a summary",
        "kill@effect.summary.end#1",
    ),
    (an_interrupted_summary_is_given_up, THRESHOLD, "and without stops [(1,", "kill@effect.summary.end#1"),
    (
        a_restart_of_a_summary_has_no_bound,
        INTERRUPTED,
        "asked 3 times for summaries, and has reasons for 2",
        "kill@effect.summary.end#1 / kill@effect.summary.end#1",
    ),
    (a_summary_that_came_is_written_by_nobody, THRESHOLD, "was given by no model", "kill@effect.summary.end#1"),
    (a_request_is_summarized_for_again, AGAIN_AND_AGAIN, "was summarized 2 times for one request", ""),
    (a_lane_moves_before_its_summary_is_there, LEFT, "I11: commit", ""),
    (a_lane_moves_without_its_summary, LEFT, "moved its lane without the summary", ""),
]
"""Each with the history that shows it; those with none show without any stop."""


@pytest.mark.parametrize(
    ("breakage", "scenario", "complaint", "only"), BREAKAGES, ids=[each[0].__name__ for each in BREAKAGES]
)
async def test_a_breakage_is_found(
    breakage: Callable[[Patch], None], scenario: Scenario[Any], complaint: str, only: str | None, monkeypatch: Patch
) -> None:
    await crash_matrix(scenario, stores=["memory"], depth=Depth(again=0), only=only)
    breakage(monkeypatch)

    with pytest.raises(CrashMatrixError) as caught:
        await crash_matrix(scenario, stores=["memory"], depth=Depth(again=0), only=only)

    complaints = [line for failure in caught.value.report.failures for line in failure.complaints]
    assert any(complaint in line for line in complaints), "\n".join(complaints)[:4000]
