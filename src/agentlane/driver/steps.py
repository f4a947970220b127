"""The steps of a pass: at the head of the lane's line verdicts become facts, and facts one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, assert_never

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.agent_tool import AgentTool
from agentlane.data.approvals import Approval, arguments_digest
from agentlane.data.messages import AssistantMessage, ErrorInfo
from agentlane.data.operations import (
    Approved,
    EffectPending,
    Generating,
    OperationState,
    RetryWait,
    RunLimits,
    Summarizing,
    SummaryWait,
    Tools,
    WaitingApproval,
)
from agentlane.data.usage import Usage
from agentlane.driver.amounts import NONE, fitting, held_back, is_full, queued_to_place
from agentlane.driver.children import ChildStart, refuse_taken, start_child
from agentlane.driver.draft import OperationDraft, with_answers
from agentlane.driver.generation import GenerationEffect
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.limits import LimitWatch
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.output import OutputCheck
from agentlane.driver.questions import approval_of, expired_no, is_expired, question_of
from agentlane.driver.recovery import restored_answer
from agentlane.driver.running import EffectsOwner, RunningEffects
from agentlane.driver.runtime import Runtime
from agentlane.driver.succession import open_next
from agentlane.driver.summary_steps import SummarySteps, is_apart
from agentlane.driver.tool_results import Sealed, seal_message
from agentlane.driver.views import ResolvedCall, Resolver, fallback_of, resolve_model
from agentlane.ids import call_id
from agentlane.machine import planning, verdicts
from agentlane.machine.facts import (
    Answered,
    ApprovalsAsked,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    DriveChild,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    Interrupted,
    ModelUnavailable,
    Navigated,
    Outcome,
    OutcomesArrived,
    OutputRefused,
    QuestionsAsked,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    RequestModel,
    RequestSummary,
    RunCall,
    StartChild,
    Summarized,
    SummaryGiven,
    SummaryRefused,
)
from agentlane.machine.outcomes import settled_without
from agentlane.machine.summarizing import CONTEXT_OVERFLOW
from agentlane.machine.table import step
from agentlane.model import Model
from agentlane.storage.contract import Commit

StopMode: TypeAlias = Literal["close", "fault"]

STEPS_MAX = 100_000
"""Steps that one commit may merge; more of them means that the machine makes no progress."""


_INTENTS = (verdicts.AskModel, verdicts.AskSummary, verdicts.StartCalls, verdicts.ReplayCall)
_WAITS = (verdicts.Idle, verdicts.SleepUntil, verdicts.AwaitAnswers, verdicts.DriveChildren)
_REQUESTS = (RequestModel, RequestSummary)
_WITH_MODEL = (Generating, RetryWait, Summarizing, SummaryWait)


class Steps:
    """What one pass decides and publishes. Deciding is synchronous and changes nothing but a draft."""

    def __init__(
        self,
        owner: EffectsOwner,
        lane: LaneCore,
        operation: OpenOperation,
        agent: Agent[Any, Any],
        effects: RunningEffects,
        resolver: Resolver,
    ) -> None:
        self.stopping: StopMode | None = None
        """Set once nothing new is to begin; ``fault``: nothing more is written either."""
        limits = operation.config.run_limits
        self.limits = LimitWatch(lane, operation, limits) if isinstance(limits, RunLimits) else None
        self._owner = owner
        self._lane = lane
        self._operation = operation
        self._agent = agent
        self._runtime: Runtime = lane.runtime
        self._effects = effects
        self._resolver = resolver
        self._children = any(isinstance(tool, AgentTool) for tool in agent.tools.values())
        self.summaries = SummarySteps(lane.runtime, operation, effects.summaries, effects.gates)
        retries = operation.config.output_retries
        self._output = OutputCheck(agent.output, retries) if agent.output and isinstance(retries, int) else None

    def decide(self) -> Decision[verdicts.Verdict] | Done[verdicts.Verdict]:
        """One step of the operation, or how it waits. Called at the head of the line."""
        operation = self._operation
        verdict: verdicts.Verdict = verdicts.Idle()
        full = False
        if operation.result is not None or self.stopping == "fault" or (self._effects.lost and self.stopping is None):
            return Done(verdict)
        if self.stopping is None and not operation.abort_waiting and not operation.cancelled:
            self._effects.start_held()
        self._effects.predicates.wanted.clear()
        lane = self._lane
        draft = OperationDraft(operation, lane.name, lane.tip, now=self._runtime.clock.now_ms(), inbox=lane.inbox)
        answered, outcomes = self._effects.answered, fitting(self._effects.outcomes)
        draft.left = frozenset(index for index, _ in self._effects.outcomes[len(outcomes) :])
        self.summaries.begin(draft)
        if answered is not None:
            self._take(draft, self._answer_to(draft.state, answered))
        if outcomes:
            self._take_outcomes(draft, outcomes)
        if self.stopping is not None:
            self._put_back(draft)
        else:
            for _ in range(STEPS_MAX):
                if draft.result is not None:
                    break
                verdict = planning.plan(draft.state, self._view(draft), operation.rules)
                if self._effects.gates is not None and self._waits_for_hooks(verdict, draft):
                    verdict = verdicts.Idle()
                    break
                if isinstance(verdict, _WAITS):
                    break
                if is_full(draft, verdict) or is_apart(draft, verdict):
                    full, verdict = True, verdicts.Idle()  # the next commit goes on with it
                    break
                self._follow(verdict, draft)
                if isinstance(verdict, _INTENTS):
                    verdict = verdicts.Idle()  # what was just intended must report first
                    break
            else:
                raise RuntimeError(f"operation {operation.id} makes no progress at {draft.state!r}")
        if draft.empty:
            self._ask_predicates(draft)
            return Done(verdict)
        if self.limits is not None:
            self.limits.stamp(draft)
        if draft.result is not None and lane.inbox:
            open_next(lane, self._agent, draft)
        version = operation.version
        children = [self._start_child(draft, each) for each in draft.children]
        more = full or bool(draft.left) or bool(held_back(draft))

        def publish(commit: Commit) -> verdicts.Verdict:
            if operation.version != version:
                raise RuntimeError(f"operation {operation.id}: a step was published on a state it was not made for")
            if answered is not None:
                self._effects.answered = None
            del self._effects.outcomes[: len(outcomes)]
            for child in children:
                child.publish()
            self._publish(draft)
            if more:
                self._owner.poke()
            return verdict

        writes = draft.writes()
        for child in children:
            writes.extend(child.writes)
        return Decision(writes, draft.boundary, publish)

    def _answer_to(self, state: OperationState, message: AssistantMessage) -> Answered | Summarized:
        """The end of the request that ran."""
        now, jitter = self._runtime.clock.now_ms(), self._runtime.rng.random()
        asked = state.model_index if isinstance(state, Generating | Summarizing) else 0
        fallback = fallback_of(self._agent, self._operation.config.models_for(state), asked)
        if isinstance(state, Summarizing):
            summaries = self._effects.summaries
            return Summarized(summaries.bounded(message), now, jitter, fallback, summaries.shortest)
        overflows = message.error is not None and message.error.code == CONTEXT_OVERFLOW
        summarize = overflows and self._effects.summaries.can_recover(state)
        return Answered(with_answers(message, tuple(self._lane.unanswered)), now, jitter, fallback, summarize)

    def _start_child(self, draft: OperationDraft, start: StartChild) -> ChildStart:
        resolved = self._batch(draft)[start.index]
        if not isinstance(resolved.tool, AgentTool):
            raise RuntimeError(f"call {start.index} was started as a run of another agent, and is none")
        id = call_id(start.answer, start.index)
        begin = None
        if resolved.tool.history == "path":
            begin = draft.path.parents.get(start.answer, self._lane.before_answer)
        return start_child(self._lane, self._operation, resolved.tool, resolved.checked, id, begin)

    def _take(self, draft: OperationDraft, fact: Fact, sealed: dict[int, Sealed] | None = None) -> None:
        draft.take(step(draft.state, fact, self._operation.rules), sealed)

    def _take_outcomes(self, draft: OperationDraft, outcomes: Sequence[tuple[int, Sealed]]) -> None:
        deferred = tuple(index for index, each in outcomes if each.deferred)
        if deferred:
            self._take(draft, CallsDeferred(deferred))
            outcomes = [(index, each) for index, each in outcomes if not each.deferred]
        outcomes = self._take_questions(draft, outcomes)
        if not outcomes:
            return
        sealed = dict(outcomes)
        facts = tuple(Outcome(index, each.message, each.terminate) for index, each in outcomes)
        self._take(draft, OutcomesArrived(facts, self._held(draft, sealed)), sealed)

    def _take_questions(
        self, draft: OperationDraft, outcomes: Sequence[tuple[int, Sealed]]
    ) -> Sequence[tuple[int, Sealed]]:
        """Put what tools have asked; what is left are the outcomes. Once an abort is committed nobody is asked."""
        asked = {index: each.question for index, each in outcomes if each.question is not None}
        state = draft.state
        if not asked or not isinstance(state, Tools):
            return outcomes
        rest = [(index, each) for index, each in outcomes if index not in asked]
        if state.cancel_requested_at is not None:
            return [*rest, *((index, self._settled_without(draft, index, "aborted")) for index in asked)]
        self._batch(draft)
        ids = tuple((index, self._runtime.ids.new()) for index in asked)
        questions: dict[int, Approval] = {}
        for index, id in ids:
            call, progress = self._resolver.calls[index], self._effects.progress_of(index)
            questions[index] = question_of(
                self._operation, state.answer, index, id, call, asked[index], progress, now=draft.now
            )
        draft.ask(step(state, QuestionsAsked(ids), self._operation.rules), questions)
        return rest

    def _held(self, draft: OperationDraft, arrived: Mapping[int, Sealed] = NONE) -> frozenset[int]:
        gates = self._effects.gates
        full = held_back(draft, arrived)
        return full if gates is None else gates.held(draft.state) | full

    def _place_ready(self, draft: OperationDraft) -> None:
        gates = self._effects.gates
        changed = [] if gates is None else gates.changed_results(draft)
        facts = tuple(Outcome(index, each.message, each.terminate) for index, each in changed)
        self._take(draft, ReadyPlaced(facts, self._held(draft)), dict(changed))

    def _waits_for_hooks(self, verdict: verdicts.Verdict, draft: OperationDraft) -> bool:
        """Whether hooks have to speak, or to end, before anything goes on."""
        gates = self._effects.gates
        if gates is None:
            return False
        if draft.state.cancel_requested_at is not None:
            return gates.busy
        batch = self._batch(draft) if isinstance(draft.state, Tools) else []
        return gates.stand_before(verdict, draft, batch)

    def _put_back(self, draft: OperationDraft) -> None:
        """A clean close knows which effects never began."""
        held = self._effects.calls_not_begun()
        if draft.result is None and isinstance(draft.state, Tools):
            calls = draft.state.calls
            indices = tuple(i for i in sorted(held) if isinstance(calls[i], EffectPending))
            if indices:
                self._take(draft, CallsNotBegun(indices))
                draft.forget_arguments(indices)

    def _view(self, draft: OperationDraft) -> planning.View:
        state = draft.state
        effects = self._effects
        held = () if self._operation.cancelled else effects.held
        started = (*draft.effects, *held)
        if isinstance(state, Tools):
            resolved = self._batch(draft)
            running = {effect.index for effect in started if isinstance(effect, (RunCall, DriveChild))}
            views = [each.view for each in resolved]
            if self._resolver.consults:
                views = effects.predicates.seen(state.answer, draft.args, views)
            if draft.decisions:
                views = self._bound(draft, state, views)
            return planning.View(
                now=draft.now,
                calls=views,
                expired=frozenset(index for index, each in draft.pending.items() if is_expired(each, draft.now)),
                live=draft.left.union(running, effects.calls),
                not_begun=frozenset(effects.calls_not_begun()),
                cut=draft.cut,
                stuck=frozenset(effects.children_waiting(draft.now)),
                held=self._held(draft),
            )
        _, _, problem = self._model_of(state)
        summary = self.summaries.view(draft)
        asked_about = summary is not None and draft.empty and self.summaries.asked_about(state)
        return planning.View(
            now=draft.now,
            request_live=effects.request is not None or any(isinstance(effect, _REQUESTS) for effect in started),
            request_not_begun=any(isinstance(effect, _REQUESTS) for effect in effects.held),
            model_problem=problem,
            follow_up=effects.gates is not None and bool(effects.gates.follow_ups(draft)),
            failure=None if effects.gates is None else effects.gates.failure,
            limit=None if self.limits is None else self.limits.reached(draft),
            output=None if self._output is None else self._output.look(draft),
            waiting=planning.NOTHING_WAITS if asked_about else self._lane.inbox.waiting(draft.consumed),
            summary=summary,
        )

    def _batch(self, draft: OperationDraft) -> list[ResolvedCall]:
        gates = self._effects.gates
        changed = draft.args if gates is None else gates.arguments(draft)
        resolved = self._resolver.batch(draft.state.answer, draft.calls, self._operation.config, changed)
        if self._children and isinstance(draft.state, Tools):
            resolved = refuse_taken(self._lane, draft.state, resolved)
        if self.limits is not None:
            resolved = self.limits.refuse(draft, resolved)
        return resolved if gates is None else gates.resolved(draft, resolved)

    def _bound(
        self, draft: OperationDraft, state: Tools, views: Sequence[planning.CallView]
    ) -> list[planning.CallView]:
        """The views with those approved calls marked whose yes is for other arguments than they would run with."""
        digests = {each.approval_id: each.digest for each in draft.decisions if each.allow}
        bound = list(views)
        for index, call in enumerate(state.calls):
            if isinstance(call, Approved):
                digest = arguments_digest(self._resolver.calls[index].arguments)
                if digests.get(call.approval) != digest:
                    bound[index] = replace(views[index], unbound=True)
        return bound

    def _ask_predicates(self, draft: OperationDraft) -> None:
        if self._effects.predicates.wanted and self.stopping is None and not self._operation.abort_waiting:
            self._effects.predicates.start(self._resolver.calls, self._batch(draft))

    def _follow(self, verdict: verdicts.Verdict, draft: OperationDraft) -> None:
        """Turn a verdict into a fact and take its step."""
        runtime = self._runtime
        match verdict:
            case verdicts.AskModel():
                model_index, _, _ = self._model_of(draft.state)
                self._take(draft, RequestIntended(runtime.ids.new(), model_index))
            case verdicts.RecoverRequest():
                self._take(draft, self._interrupted(draft))
            case verdicts.DropRequest():
                self._take(draft, Answered(GenerationEffect.dropped(), draft.now, 0.0))
            case verdicts.AskSummary(reason):
                self._take(draft, self.summaries.intended(draft, reason, self._summary_model(draft.state)))
            case verdicts.TakeSummary(reason, text):
                draft.prep = self.summaries.prep(draft)
                self._take(draft, SummaryGiven(runtime.ids.new(), reason, text))
            case verdicts.RefuseSummary(reason, error):
                self._take(draft, SummaryRefused(reason, error))
            case verdicts.RecoverSummary():
                model_index, _, problem = self._model_of(draft.state)
                if self.limits is not None:
                    problem = self.limits.reached(draft, Usage()) or problem
                self._take(draft, self.summaries.interrupted(draft, model_index, problem))
            case verdicts.DropSummary():
                self._take(draft, Summarized(GenerationEffect.dropped(), draft.now, 0.0))
            case verdicts.Navigate():
                self._take(draft, Navigated())
            case verdicts.StartCalls(calls, children):
                self._keep_arguments(draft, [*(index for index, _ in calls), *children])
                if children:
                    self._take(draft, ChildrenStarted(children))
                if calls:
                    self._take(draft, CallsIntended(calls))
            case verdicts.ReplayCall(index, policy):
                self._take(draft, ReplayIntended(index, policy))
            case verdicts.AskPredicates(asked):
                self._effects.predicates.wanted.update(asked)
            case verdicts.AskApprovals(asked):
                self._ask_people(draft, asked)
            case verdicts.SettleCalls(calls):
                for index, why in calls:
                    if why == "expired":
                        draft.decide(index, expired_no(draft.pending[index], draft.now))
                self._take_outcomes(draft, [(i, self._settled_without(draft, i, why)) for i, why in calls])
            case verdicts.PlaceReady():
                self._place_ready(draft)
            case verdicts.FollowUp():
                gates = self._effects.gates
                self._take(draft, FollowedUp(() if gates is None else gates.follow_ups(draft)))
            case verdicts.PlaceQueued():
                self._take(draft, queued_to_place(draft, verdict))
            case verdicts.Finish():
                draft.output = None if self._output is None else self._output.value
                self._take(draft, Finished())
            case verdicts.GiveUp(error):
                self._take(draft, ModelUnavailable(error))
            case verdicts.Fail(error):
                self._take(draft, Failed(error))
            case verdicts.AskAgain(message):
                self._take(draft, OutputRefused(message))
            case verdicts.SleepUntil() | verdicts.AwaitAnswers() | verdicts.Idle() | verdicts.DriveChildren():
                raise RuntimeError("there is nothing to follow")
            case _:
                assert_never(verdict)

    def _model_of(self, state: OperationState) -> tuple[int, Model | None, ErrorInfo | None]:
        """The model that the state's next request goes to. Each turn begins with the first."""
        model_index = state.model_index if isinstance(state, _WITH_MODEL) else 0
        return resolve_model(self._agent, self._operation.config.models_for(state), model_index)

    def _summary_model(self, state: OperationState) -> int:
        """The index of the model that the state's next request for a summary goes to."""
        model_index = state.model_index if isinstance(state, _WITH_MODEL) else 0
        return resolve_model(self._agent, self._operation.config.summary_models, model_index)[0]

    def _ask_people(self, draft: OperationDraft, indices: Sequence[int]) -> None:
        state = draft.state
        if not isinstance(state, Tools):
            raise RuntimeError(f"there are no calls to ask about at {state!r}")
        self._batch(draft)
        self._keep_arguments(draft, indices)
        ids = tuple((index, self._runtime.ids.new()) for index in indices)
        asked = {
            index: approval_of(
                self._operation, state, index, id, self._resolver.calls[index], self._agent, now=draft.now
            )
            for index, id in ids
        }
        draft.ask(step(state, ApprovalsAsked(ids), self._operation.rules), asked)

    def _keep_arguments(self, draft: OperationDraft, indices: Sequence[int]) -> None:
        """What hooks made of the arguments of these calls is durable with this commit."""
        changed = {} if self._effects.gates is None else self._effects.gates.changed_arguments(draft)
        for index in indices:
            if index in changed:
                draft.keep_arguments(index, changed[index])

    def _interrupted(self, draft: OperationDraft) -> Interrupted:
        state = draft.state
        if not isinstance(state, Generating):
            raise RuntimeError(f"no request is under way at {state!r}")
        config = self._operation.config
        model_index, _, problem = self._model_of(state)
        message = restored_answer(self._operation.frames, config.model_of(state))
        if self.limits is not None:
            problem = self.limits.reached(draft, message.usage or Usage()) or problem
        if self._effects.gates is not None:
            problem = self._effects.gates.failure or problem
        return Interrupted(
            message=message,
            response_id=self._runtime.ids.new(),
            now=draft.now,
            jitter=self._runtime.rng.random(),
            unavailable=problem,
            model_index=model_index,
        )

    def _settled_without(self, draft: OperationDraft, index: int, why: verdicts.SettledWithout) -> Sealed:
        problem = self._view(draft).calls[index].problem if why == "refused" else None
        state = draft.state
        if why == "expired" and isinstance(state, Tools):
            waiting = state.calls[index]
            why = "interrupted" if isinstance(waiting, WaitingApproval) and waiting.attempt else why
        progress = self._effects.progress_of(index)
        return seal_message(settled_without(draft.calls[index], why, problem=problem, progress=progress))

    # Publishing: memory takes over what is committed, and the effects that it admits start, in one synchronous step.

    def _publish(self, draft: OperationDraft) -> None:
        operation = self._operation
        draft.hand_over()
        if draft.answers:
            operation.frames.clear()
        self._effects.settled(draft.state, draft.settled_calls, answered=bool(draft.answers))
        if draft.path.moved:
            self._lane.leave(draft.path.moved_to, self.summaries.target)
        self._lane.take_path(draft.path)
        if draft.consumed:
            self._lane.inbox.remove(draft.consumed.values())
        if draft.result is not None:
            self._lane.settle(operation, draft.result)
        if draft.successor is not None:
            self._lane.begin(draft.successor)
        for effect in draft.effects:
            # An abort or a close that came while the commit was under way is looked at here.
            if self.stopping is None and not operation.abort_waiting:
                self._effects.start(effect)
            elif not isinstance(effect, DriveChild):  # a child has its own state: it is driven when that is looked at
                self._effects.held.append(effect)
        if self._effects.gates is not None:
            self._effects.gates.forget(draft.state)
            self._owner.poke()  # hooks are asked on what is committed
        if self._effects.held:
            self._owner.poke()
        self._ask_predicates(draft)
