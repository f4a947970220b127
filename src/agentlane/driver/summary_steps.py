"""The part of a pass's steps that is about summaries and navigations: what is due, and the facts of their steps."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data.entries import Entry
from agentlane.data.messages import ErrorInfo, ToolCallPart
from agentlane.data.operations import Checkpoint, OperationState, Summarizing, SummaryPrep, SummaryReason, SummaryWait
from agentlane.driver.appending import results_of
from agentlane.driver.bounded_path import read_path
from agentlane.driver.draft import OperationDraft
from agentlane.driver.hooks import Gates
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.runtime import Runtime
from agentlane.driver.summarizing import Summaries
from agentlane.hooks import Decline
from agentlane.machine import planning, verdicts
from agentlane.machine.context import ModelContext
from agentlane.machine.facts import SummaryIntended, SummaryInterrupted


class SummarySteps:
    """What one pass decides about the summaries, and the move, of its operation."""

    def __init__(self, runtime: Runtime, operation: OpenOperation, summaries: Summaries, gates: Gates | None) -> None:
        self._runtime = runtime
        self._operation = operation
        self._summaries = summaries
        self._gates = gates
        self.target: Sequence[Entry] = ()
        """The path to where a navigation goes, as far as a lane reads one."""
        self._open_calls: Sequence[ToolCallPart] = ()

    async def prepare(self) -> None:
        """Read what the steps have to know, once: where a navigation goes, and which calls have no result there."""
        navigate = self._operation.meta.navigate
        if navigate is None:
            return
        self.target = await read_path(self._runtime.storage, navigate.to)
        context = ModelContext()
        for entry in self.target:
            context.add(entry.id, entry.body)
        found = context.open_calls()
        self._open_calls = () if found is None else found[1]

    def begin(self, draft: OperationDraft) -> None:
        """A draft is to be made."""
        if self._open_calls:
            draft.before_summary = results_of(self._open_calls, self._runtime.ids)

    def view(self, draft: OperationDraft) -> planning.SummaryView | None:
        """What is to be summarized, with what hooks said to that."""
        wanted = self._summaries.wanted(draft)
        if wanted is None or wanted.refused is not None:
            return None if wanted is None else wanted.shown
        said = None if self._gates is None else self._gates.summary(draft.state)
        if isinstance(said, Decline):
            reason = f"it was declined: {said.reason}" if said.reason else "it was declined"
            return planning.SummaryView(wanted.reason, ErrorInfo(code="compaction_declined", message=reason))
        return planning.SummaryView(wanted.reason, given=None if said is None else said.text)

    def asked_about(self, state: OperationState) -> bool:
        """Whether hooks are being asked about the summary, or have spoken: what is said meanwhile stands behind it."""
        return self._gates is not None and self._gates.asked_about_summary(state)

    def prep(self, draft: OperationDraft) -> SummaryPrep:
        """What the summary is made of that a verdict speaks of."""
        wanted = self._summaries.wanted(draft)
        if wanted is None or wanted.prep is None:
            raise RuntimeError(f"operation {self._operation.id}: there is nothing to summarize at {draft.state!r}")
        return wanted.prep

    def intended(self, draft: OperationDraft, reason: SummaryReason, model_index: int) -> SummaryIntended:
        """The next attempt at a summary; what it is made of is kept with the first."""
        if isinstance(draft.state, SummaryWait):
            task = draft.state.task
        else:
            task = self._runtime.ids.new()
            draft.prepare(task, self.prep(draft))
        return SummaryIntended(task, reason, self._runtime.ids.new(), model_index)

    def interrupted(self, draft: OperationDraft, model_index: int, problem: ErrorInfo | None) -> SummaryInterrupted:
        """The end of a request for a summary that an earlier pass left; ``problem`` is why none may follow."""
        state = draft.state
        if not isinstance(state, Summarizing):
            raise RuntimeError(f"no summary is asked for at {state!r}")
        if self._gates is not None:
            problem = self._gates.failure or problem
        return SummaryInterrupted(
            self._runtime.ids.new(),
            draft.now,
            self._runtime.rng.random(),
            model=self._operation.config.model_of(state),
            unavailable=problem,
            model_index=model_index,
        )


def is_apart(draft: OperationDraft, verdict: verdicts.Verdict) -> bool:
    """Whether what is next is told from what is committed alone, and something is not committed yet."""
    if draft.empty or not isinstance(draft.state, Checkpoint):
        return False
    return isinstance(verdict, (verdicts.AskSummary, verdicts.TakeSummary, verdicts.RefuseSummary))
