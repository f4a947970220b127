"""Claim: the matrix can fail. Each small breakage of the library is found by it, and said to be what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import Session
from agentlane.data import addresses, codec
from agentlane.data.messages import AssistantMessage, TextPart
from agentlane.data.operations import (
    Checkpoint,
    EffectGranted,
    EffectPending,
    Generating,
    OutcomeReady,
    Tools,
    WaitingApproval,
)
from agentlane.data.writes import SetValue
from agentlane.driver import recovery, restoring, views
from agentlane.driver.calls import CallEffect
from agentlane.driver.draft import OperationDraft
from agentlane.driver.steps import Steps
from agentlane.driver.tool_results import seal_message
from agentlane.ids import derive
from agentlane.machine import batches, planning, table, verdicts
from agentlane.machine.context import ModelContext
from agentlane.machine.facts import (
    Interrupted,
    OutcomesArrived,
    PlaceResult,
    ReplayIntended,
    RunCall,
    Step,
)
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.storage.contract import Commit, Pending
from agentlane.storage.memory import MemorySession
from agentlane.testing import CrashMatrixError, Depth, Scenario, call, crash_matrix
from agentlane.testing.matrix.builtin.asked import ASKED, REPLAYED
from agentlane.testing.matrix.builtin.bounds import REPLAYS, RESTARTS
from agentlane.testing.matrix.builtin.hands import Hands, agent_of, check_effects
from agentlane.testing.matrix.builtin.plain import BARRIER, MEMO, PARALLEL

Patch = pytest.MonkeyPatch

CALLS = PARALLEL
STAGED = Scenario(
    "a safe call whose outcome is staged",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("safe", x=1, after=[1]), call("safe", x=2)], "done"]]),
)


def transition(patch: Patch, state: type, fact: type, change: Callable[[Any, Any, Any, Any], Step]) -> None:
    """Put ``change(before, state, fact, rules)`` in the place of one transition."""
    before = table.TABLE[state, fact]
    patch.setitem(table.TABLE, (state, fact), lambda state, fact, rules: change(before, state, fact, rules))


def a_never_call_runs_again(patch: Patch) -> None:
    patch.setattr(planning, "may_replay", lambda call, now, rules: now.problem is None)

    def intend(before: Any, state: Tools, fact: ReplayIntended, rules: Any) -> Step:
        call = state.calls[fact.index]
        assert isinstance(call, EffectPending)
        again = EffectPending(policy=call.policy, attempt=call.attempt + 1, replays=call.replays + 1)
        run = RunCall(fact.index, attempt=again.attempt, replays=again.replays)
        return Step(batches._with_call(state, fact.index, again), effects=(run,), boundary="replay_intent")

    transition(patch, Tools, ReplayIntended, intend)


def a_staged_outcome_is_lost(patch: Patch) -> None:
    before = recovery._restore_batch

    async def restore(storage: Any, operation: Any, state: Tools) -> None:
        await before(storage, operation, state)
        for index, sealed in operation.staged.items():
            lost = replace(sealed.message, content=(TextPart(text=INTERRUPTED),), is_error=True)
            operation.staged[index] = seal_message(lost)

    patch.setattr(recovery, "_restore_batch", restore)


def an_interruption_is_placed_twice(patch: Patch) -> None:
    before = OperationDraft._place_result

    def place(self: OperationDraft, change: PlaceResult) -> None:
        before(self, change)
        id, body = self.path.placed[-1]
        if INTERRUPTED in getattr(body, "text", ""):
            self.path.place(derive(id, 900 + change.index), body, codec.encode(body))

    patch.setattr(OperationDraft, "_place_result", place)


def a_commit_is_published_before_it_is_durable(patch: Patch) -> None:
    before = MemorySession.submit

    def submit(self: MemorySession, writes: Sequence[Any], *, publish: Any = None, name: str = "commit") -> Pending:
        if publish is not None and name == "accept":
            publish(Commit(first_seq=self._medium.index.last_seq + 1, at=0, stats=self.stats()))
            publish = None
        return before(self, writes, publish=publish, name=name)

    patch.setattr(MemorySession, "submit", submit)


def a_close_aborts_what_runs(patch: Patch) -> None:
    before = CallEffect._failed

    def failed(self: CallEffect, error: BaseException) -> Any:
        return self._aborted() if self._stopped_by == "close" else before(self, error)

    patch.setattr(CallEffect, "_failed", failed)


def a_close_asks_for_an_abort(patch: Patch) -> None:
    before = Session.close

    async def close(self: Session) -> None:
        for operation in self.open_operations():
            lane = await self.lane(operation.lane, self._cores[operation.lane].agent)
            await lane.request_abort(operation.operation_id)
        await before(self)

    patch.setattr(Session, "close", close)


def a_restart_has_no_bound(patch: Patch) -> None:
    def interrupt(before: Any, state: Generating, fact: Interrupted, rules: Any) -> Step:
        return before(state, fact, replace(rules, limits=replace(rules.limits, max_restarts=99)))  # type: ignore[no-any-return]

    transition(patch, Generating, Interrupted, interrupt)


def a_restart_is_not_allowed(patch: Patch) -> None:
    def interrupt(before: Any, state: Generating, fact: Interrupted, rules: Any) -> Step:
        return before(state, fact, replace(rules, limits=replace(rules.limits, max_restarts=0)))  # type: ignore[no-any-return]

    transition(patch, Generating, Interrupted, interrupt)


def a_replay_has_no_bound(patch: Patch) -> None:
    before = planning.plan

    def plan(state: Any, view: Any, rules: Any) -> Any:
        return before(state, view, replace(rules, limits=replace(rules.limits, max_replays=99)))

    patch.setattr(planning, "plan", plan)

    def intend(before: Any, state: Tools, fact: ReplayIntended, rules: Any) -> Step:
        return before(state, fact, replace(rules, limits=replace(rules.limits, max_replays=99)))  # type: ignore[no-any-return]

    transition(patch, Tools, ReplayIntended, intend)


def a_replay_does_not_happen(patch: Patch) -> None:
    patch.setattr(planning, "may_replay", lambda call, now, rules: False)
    patch.setattr(planning, "may_ask", lambda call, now, rules: False)


def nobody_is_asked(patch: Patch) -> None:
    patch.setattr(planning, "_approval_of", lambda call, now: "no")


def arguments_given_with_a_yes_are_not_used(patch: Patch) -> None:
    patch.setattr(views, "effective_call", lambda call, index, changed: call)
    patch.setattr(Steps, "_bound", lambda self, draft, state, views: views)


def a_replay_is_not_asked_about(patch: Patch) -> None:
    def permitted(state: Any, view: Any, rules: Any) -> Any:
        for index, each in enumerate(state.calls):
            lost = isinstance(each, EffectPending) and index not in view.live
            if lost and each.policy == "ask" and each.replays == 0 and not view.live:
                return verdicts.ReplayCall(index, "safe")
        return known(state, view, rules)

    def intend(before: Any, state: Tools, fact: ReplayIntended, rules: Any) -> Step:
        call = state.calls[fact.index]
        if isinstance(call, EffectPending) and call.policy == "ask":
            calls = list(state.calls)
            calls[fact.index] = EffectPending("safe", call.attempt, call.replays)
            state = replace(state, calls=tuple(calls))
        step: Step = before(state, fact, rules)
        return step

    known = planning._plan_recovery
    patch.setattr(planning, "_plan_recovery", permitted)
    transition(patch, Tools, ReplayIntended, intend)


def a_no_lets_the_call_go(patch: Patch) -> None:
    def arrive(before: Any, state: Tools, fact: OutcomesArrived, rules: Any) -> Step:
        index = fact.outcomes[0].index
        asked = state.calls[index]
        if isinstance(asked, WaitingApproval) and asked.attempt:
            permit = EffectGranted(asked.policy, asked.attempt, asked.replays, asked.approval, permit=True)
            return Step(batches._with_call(state, index, permit), boundary="outcome_staged")
        step: Step = before(state, fact, rules)
        return step

    transition(patch, Tools, OutcomesArrived, arrive)


def an_interrupted_request_leaves_no_answer(patch: Patch) -> None:
    def interrupt(before: Any, state: Generating, fact: Interrupted, rules: Any) -> Step:
        step: Step = before(state, fact, rules)
        return Step(step.state, (), step.effects, step.boundary)

    transition(patch, Generating, Interrupted, interrupt)


def the_run_ends_behind_an_interrupted_call(patch: Patch) -> None:
    def arrive(before: Any, state: Tools, fact: OutcomesArrived, rules: Any) -> Step:
        step: Step = before(state, fact, rules)
        lost = any(INTERRUPTED in outcome.message.text for outcome in fact.outcomes)
        after = replace(step.state, next="finish") if lost and isinstance(step.state, Checkpoint) else step.state
        return Step(after, step.changes, step.effects, step.boundary)

    transition(patch, Tools, OutcomesArrived, arrive)


def the_model_is_shown_what_was_interrupted(patch: Patch) -> None:
    before = ModelContext.add

    def add(self: ModelContext, id: str, body: Any) -> Any:
        if isinstance(body, AssistantMessage) and body.error is not None and body.error.code == "interrupted":
            body = replace(body, content=(TextPart(text="cut off"),), stop_reason="stop", error=None)
        return before(self, id, body)

    patch.setattr(ModelContext, "add", add)


def two_results_change_places(patch: Patch) -> None:
    before = Steps._take_outcomes

    def take(self: Steps, draft: Any, outcomes: Any) -> None:
        if len(outcomes) == 2:
            (one, first), (two, second) = outcomes
            names = first.message, second.message
            swapped = [replace(a, content=b.content) for a, b in (names, names[::-1])]
            outcomes = [(one, seal_message(swapped[0])), (two, seal_message(swapped[1]))]
        before(self, draft, outcomes)

    patch.setattr(Steps, "_take_outcomes", take)


def opening_writes(patch: Patch) -> None:
    before = Session.load

    async def load(self: Session) -> None:
        await before(self)
        await self._runtime.storage.submit([SetValue(addresses.SESSION_NAME_ADDRESS, b'"opened"')], name="opened")

    patch.setattr(Session, "load", load)


def memos_are_lost(patch: Patch) -> None:
    before = recovery._restore_batch

    async def restore(storage: Any, operation: Any, state: Tools) -> None:
        await before(storage, operation, state)
        operation.memos.clear()
        operation.progress.clear()

    patch.setattr(recovery, "_restore_batch", restore)


def a_staged_outcome_runs_its_tool_again(patch: Patch) -> None:
    async def read(storage: Any, session_id: str) -> Any:
        operations = await restoring.read_open_operations(storage, session_id)
        for operation in operations.values():
            if isinstance(state := operation.state, Tools):
                again = EffectPending(policy="safe")
                calls = tuple(again if isinstance(each, OutcomeReady) else each for each in state.calls)
                operation.state = replace(state, calls=calls)
        return operations

    patch.setattr("agentlane.session.read_open_operations", read)


BREAKAGES: list[tuple[Callable[[Patch], None], Scenario[Any], str]] = [
    (a_never_call_runs_again, CALLS, "I7: call"),
    (a_staged_outcome_is_lost, CALLS, "said to be interrupted, and no process found it under way"),
    (an_interruption_is_placed_twice, CALLS, "is one too many"),
    (a_commit_is_published_before_it_is_durable, CALLS, "was reported and is not there"),
    (a_close_aborts_what_runs, CALLS, "raised CancelledError(), and its result says"),
    (a_close_asks_for_an_abort, CALLS, "were aborted, and nobody asked for that"),
    (a_restart_has_no_bound, RESTARTS, "was restarted 2 times, and 1 are allowed"),
    (a_restart_is_not_allowed, RESTARTS, "gave up after 1 restarts, and 1 are allowed"),
    (a_replay_has_no_bound, REPLAYS, "was started 3 times, and 1 replays are allowed"),
    (a_replay_does_not_happen, REPLAYS, "though each process that found it could run it again"),
    (nobody_is_asked, ASKED, "was started, and nobody allowed it"),
    (arguments_given_with_a_yes_are_not_used, ASKED, "was allowed"),
    (a_replay_is_not_asked_about, REPLAYED, "replays of it were allowed"),
    (a_no_lets_the_call_go, REPLAYED, "go, and nobody allowed it"),
    (an_interrupted_request_leaves_no_answer, CALLS, "was found under way, and is not said to be interrupted"),
    (the_run_ends_behind_an_interrupted_call, CALLS, "I13: entry"),
    (the_model_is_shown_what_was_interrupted, CALLS, "was shown"),
    (two_results_change_places, BARRIER, "and its result says"),
    (opening_writes, CALLS, "I15: opened was written where there was nothing to do"),
    (a_staged_outcome_runs_its_tool_again, STAGED, "is placed and pending at once"),
    (memos_are_lost, MEMO, "pending.output"),
]


TWICE = {
    memos_are_lost: "abort@commit.intent.before#1, kill@commit.abort.after#1",
    a_restart_has_no_bound: "kill@effect.model.start#1 / kill@effect.model.start#1",
    a_replay_has_no_bound: "kill@effect.tool.end#1 / kill@effect.tool.end#1",
}
"""What only shows when a recovery is stopped as well; all else is found by the histories with one stop."""


@pytest.mark.parametrize(("breakage", "scenario", "complaint"), BREAKAGES, ids=[each[0].__name__ for each in BREAKAGES])
async def test_a_breakage_is_found(
    breakage: Callable[[Patch], None], scenario: Scenario[Any], complaint: str, monkeypatch: Patch
) -> None:
    breakage(monkeypatch)

    only = TWICE.get(breakage)
    with pytest.raises(CrashMatrixError) as caught:
        await crash_matrix(scenario, stores=["memory"], depth=Depth(again=0), only=only, failures_max=3)

    complaints = [line for failure in caught.value.report.failures for line in failure.complaints]
    assert any(complaint in line for line in complaints), "\n".join(complaints)[:4000]
