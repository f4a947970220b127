"""What a step does to the world, checked: each change, effect and new state against what the world says is right."""

from __future__ import annotations

from typing import Literal, assert_never

from msgspec.structs import replace

from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectGranted,
    EffectPending,
    EffectResumed,
    Generating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Summarizing,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.data.results import Status
from agentlane.ids import call_id, correction_id
from agentlane.machine.facts import (
    AbortRequested,
    Answered,
    ApprovalGiven,
    ApprovalsAsked,
    AskApproval,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    DriveChild,
    End,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    Interrupted,
    ModelUnavailable,
    Navigated,
    OutcomesArrived,
    OutputRefused,
    PlaceAnswer,
    PlaceCorrection,
    PlaceInput,
    PlaceItems,
    PlaceResult,
    QuestionAnswered,
    QuestionsAsked,
    QueuedPlaced,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    RequestModel,
    RunCall,
    StageResult,
    StartChild,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.rules import Rules
from tests.machine.judged_summaries import check_summary_changes, says_what_is_known, summary_after
from tests.machine.promises import broken, hold
from tests.machine.world import BASE_MS, NO_TASK, OVERFLOW, Call, World, asked_id, question_id, request_id

NEW = Call()
INTENDED = Call("intended")
STAGED = Call(result="staged")
PLACED = Call(result="placed")


def world_after(world: World, fact: Fact, taken: Step, rules: Rules) -> World:
    """The world that a step leads to; ``Violation`` if the step is not right."""
    return _Judged(world, fact, taken, rules).after()


class _Judged:
    """One step of one world under judgement."""

    def __init__(self, world: World, fact: Fact, taken: Step, rules: Rules) -> None:
        self.world, self.fact, self.taken, self.rules = world, fact, taken, rules

    def after(self) -> World:
        """The world after the step; ``Violation`` if the step is not right."""
        taken, world = self.taken, self.world
        if taken.state is not None and (taken.state.cancel_requested_at is not None) != (
            world.aborted or isinstance(self.fact, AbortRequested)
        ):
            broken("abort", self)
        if taken.effects and world.aborted:
            broken("abort", self)
        check_summary_changes(world, self.fact, taken)
        if sum(type(change) is End for change in taken.changes) != (taken.state is None):
            broken("I8 end", self)
        after = self._followed()
        if taken.state is None:
            return self._ended(after)
        after = after._replace(state=taken.state)
        self._check_counts(after, taken.state)
        self._check_calls(after, taken.state)
        hold("progress", taken.state != world.state or bool(taken.changes), self)
        return after

    def __str__(self) -> str:
        return f"\n  {self.world}\n  {self.fact}\n  {self.taken}"

    def _followed(self) -> World:
        world, fact, effects = self.world, self.fact, self.taken.effects
        match fact:
            case RequestIntended():
                self._only()
                return self._requested(world, fact.response_id, fact.model_index)
            case Answered():
                hold("I6 intents", not effects, self)
                return self._answered(fact)
            case Interrupted():
                return self._interrupted(fact)
            case CallsIntended():
                self._only()
                return self._intended([index for index, _ in fact.calls], again=False)
            case ChildrenStarted():
                return self._children_started(list(fact.indices))
            case ReplayIntended():
                self._only()
                return self._intended([fact.index], again=True)
            case ApprovalsAsked():
                hold("I6 intents", not effects, self)
                return self._asked([index for index, _ in fact.calls])
            case ApprovalGiven():
                self._only()
                hold("I6 intents", not effects, self)
                hold("yes", world.calls[fact.index].answer == "asked" and not world.aborted, self)
                return self._answer_of([fact.index], "given")
            case CallsDeferred():
                self._only()
                hold("I6 intents", not effects, self)
                hold("truth", all(world.calls[index].process == "running" for index in fact.indices), self)
                return self._answer_of(list(fact.indices), "deferred")
            case QuestionsAsked(asked):
                hold("I6 intents", not effects, self)
                return self._questioned(dict(asked))
            case QuestionAnswered(index):
                self._only()
                hold("I6 intents", not effects, self)
                hold("questions", world.calls[index].answer == "question" and not world.aborted, self)
                return self._answer_of([index], "answered")
            case OutcomesArrived() | ReadyPlaced():
                hold("I6 intents", not effects, self)
                return self._settled(fact)
            case CallsNotBegun():
                self._only()
                hold("I6 intents", not effects, self)
                return self._put_back(fact)
            case QueuedPlaced():
                return self._placed(fact)
            case AbortRequested():
                self._only()
                hold(
                    "abort",
                    self.taken == Step(replace(self._state(), cancel_requested_at=fact.at), boundary="abort"),
                    self,
                )
                return world._replace(aborted=True)
            case Finished():
                status: Status = "aborted" if world.aborted else "completed"
                code = None if world.aborted or not isinstance(world.state, Checkpoint) else world.state.code
                self._check_end(End(status, world.turn, world.answer, code=code))
                return world._replace(task=NO_TASK)
            case OutputRefused():
                return self._asked_again(fact)
            case FollowedUp(messages):
                hold("I6 intents", not effects, self)
                hold("I4 ids", self.taken.changes == tuple(PlaceInput(*each) for each in messages), self)
                state = self.taken.state
                if not isinstance(state, Checkpoint):
                    broken("I8 end", self)
                hold("I8 end", (state.next, state.trigger) == ("respond", messages[-1][0]), self)
                return world
            case ModelUnavailable() | Failed():
                self._check_end(End("failed", world.turn, world.answer, code=fact.error.code, error=fact.error))
                return world._replace(task=NO_TASK)
            case SummaryIntended() | SummaryGiven() | SummaryRefused():
                return summary_after(world, fact, self.taken, self.rules)
            case Summarized() | SummaryInterrupted() | Navigated():
                return summary_after(world, fact, self.taken, self.rules)
            case _:
                assert_never(fact)

    # Requests.

    def _requested(self, world: World, id: str, model_index: int | None) -> World:
        """A request is intended, and this step says so."""
        opens = world.requests == 0 and not world.overflowed
        hold("needs", world.kind == "run", self)
        after = world._replace(
            fed=False,
            unfed=False,
            request="intended",
            requests=world.requests + 1,
            turn=world.turn + 1 if opens else world.turn,
        )
        hold("I10 pairs", not world.calls, self)
        model = world.model if model_index is None else model_index
        after = after._replace(model=model)
        request = RequestModel(id, after.requests, model)
        hold("I6 intents", self.taken.effects == (request,), self)
        state = self.taken.state
        if not isinstance(state, Generating):
            broken("I6 intents", self)
        hold("I4 ids", state.response_id == id == request_id(after.turn, after.requests, again=world.overflowed), self)
        return after

    def _placed_answer(self, message: AssistantMessage) -> None:
        state = self._state()
        if not isinstance(state, Generating):
            broken("legal", self)
        placed = [change for change in self.taken.changes if not isinstance(change, End)]
        if self.world.aborted and message.stop_reason == "error":
            message = replace(message, stop_reason="aborted")
        hold("I4 ids", placed == [PlaceAnswer(state.response_id, message)], self)

    def _answered(self, fact: Answered) -> World:
        message = fact.message
        self._placed_answer(message)
        world, rules = self.world._replace(request=""), self.rules
        id = request_id(world.turn, world.requests, again=world.overflowed)
        if message.stop_reason in ("error", "aborted"):
            if world.aborted:
                self._check_end(End("aborted", world.turn, world.answer))
                return world
            after = world._replace(failures=world.failures + 1)
            error = message.error
            assert error is not None
            if error == OVERFLOW and fact.summarize and not world.overflowed:
                return self._overflowed(world, id)
            if not error.retryable or after.failures >= rules.retry.attempts:
                self._check_end(End("failed", world.turn, id, code=error.code, error=error), "bounds")
            else:
                state = self.taken.state
                if not isinstance(state, RetryWait):
                    broken("bounds", self)
                if fact.fallback is not None:
                    hold("waits", state.not_before == fact.now, self)
                    return after._replace(model=fact.fallback)
                self._check_wait(error.retry_after_ms or 0)
            return after
        calls = message.calls
        after = world._replace(requests=0, model=0, failures=0, interruptions=0, answer=id)
        after = after._replace(overflowed=False, looked=False)
        if calls:
            hold("I5 results", isinstance(self.taken.state, Tools), self)
            return after._replace(calls=(NEW,) * len(calls), cut=message.stop_reason == "length")
        state = self.taken.state
        if not isinstance(state, Checkpoint):
            broken("I8 end", self)
        hold("I8 end", (state.next, state.trigger) == ("finish", id), self)
        hold("I8 end", state.code == ("length" if message.stop_reason == "length" else None), self)
        return after

    def _overflowed(self, world: World, id: str) -> World:
        """A request was too long, for the first time since the last good answer: what it showed is summarized."""
        state = self.taken.state
        if not isinstance(state, Checkpoint):
            broken("needs", self)
        hold("needs", (state.next, state.trigger) == ("summarize", id), self)
        hold("needs", len(self.taken.changes) == 1, self)
        fresh = world._replace(requests=0, model=0, failures=0, interruptions=0)
        return fresh._replace(overflowed=True, looked=False)

    def _interrupted(self, fact: Interrupted) -> World:
        self._placed_answer(replace(fact.message, stop_reason="aborted") if self.world.aborted else fact.message)
        world, bound = self.world, self.rules.limits.max_restarts
        if world.aborted:
            self._check_end(End("aborted", world.turn, world.answer))
            return world
        after = world._replace(interruptions=world.interruptions + 1)
        state, id = self.taken.state, request_id(world.turn, world.requests, again=world.overflowed)
        if after.interruptions > bound or fact.unavailable is not None:
            end = self.taken.changes[-1]
            if not isinstance(end, End):
                broken("bounds", self)
            spent = after.interruptions > bound
            code = "restarts_exhausted" if fact.unavailable is None or spent else fact.unavailable.code
            hold("bounds", (end.status, end.code, end.turns, end.answer) == ("failed", code, world.turn, id), self)
            hold("I6 intents", not self.taken.effects, self)
            return after
        if after.interruptions == 1:
            hold("waits", isinstance(state, Generating), self)
            return self._requested(after, fact.response_id, fact.model_index)
        hold("waits", isinstance(state, RetryWait), self)
        hold("I6 intents", not self.taken.effects, self)
        self._check_wait(0)
        return after

    def _asked_again(self, fact: OutputRefused) -> World:
        """The model is told what is wrong with the answer that would have ended the run, behind that answer."""
        world, state, answer = self.world, self.taken.state, self.world.answer
        assert answer is not None
        hold("I4 ids", self.taken.changes == (PlaceCorrection(answer, fact.message),), self)
        hold("I6 intents", not self.taken.effects, self)
        if not isinstance(state, Checkpoint):
            broken("I8 end", self)
        hold("I8 end", (state.next, state.code, state.trigger) == ("respond", None, correction_id(answer)), self)
        return world._replace(corrections=world.corrections + 1)

    def _check_wait(self, retry_after_ms: int) -> None:
        state = self.taken.state
        hold("waits", isinstance(state, RetryWait) and state.not_before >= max(BASE_MS // 2, retry_after_ms), self)

    def _placed(self, fact: QueuedPlaced) -> World:
        """What waited is placed, and nothing else; input makes the run go on, a deferred write does not."""
        hold("inbox", self.taken.changes == (PlaceItems(fact.items),) and not self.taken.effects, self)
        before, after = self.world, self.taken.state
        kinds = [item[0] for item in fact.items]
        left = [count - kinds.count(kind) for count, kind in zip(before.waiting, "wsf", strict=True)]
        hold("inbox", kinds == sorted(kinds, key="wsf".index) and min(left) >= 0, self)
        if fact.trigger is None:
            hold("inbox", after == before.state, self)
            return before._replace(waiting=(left[0], left[1], left[2]))
        if not isinstance(after, Checkpoint):
            broken("inbox", self)
        hold("inbox", (after.next, after.trigger, after.code) == ("respond", fact.trigger, None), self)
        unfed = (before.unfed or "f" in kinds) and left[2] > 0 and self.rules.follow_ups == "all"
        return before._replace(waiting=(left[0], left[1], left[2]), fed=True, unfed=unfed, looked=False)

    # Calls.

    def _intended(self, indices: list[int], *, again: bool) -> World:
        world, after = self.world, self.taken.state
        if not isinstance(after, Tools):
            broken("I6 intents", self)
        calls = list(world.calls)
        started: list[RunCall] = []
        for index in indices:
            call, pending = calls[index], after.calls[index]
            if not isinstance(pending, EffectPending):
                broken("I6 intents", self)
            hold("I7 never", not call.barred and not (call.begun and pending.policy == "never"), self)
            resumes = call.answer == "answered"
            hold("I7 never", again or resumes or not call.begun, self)
            hold("questions", call.answer != "question" and not (again and resumes), self)
            hold("questions", isinstance(pending, EffectResumed) == resumes, self)
            hold("questions", not resumes or pending.policy in ("safe", "idempotent"), self)
            happened = call._replace(intents=call.intents + 1, resumes=call.resumes + resumes)
            hold("bounds", resumes or happened.replays <= self.rules.limits.max_replays, self)
            started.append(RunCall(index, attempt=happened.intents, replays=happened.replays))
            hold("yes", call.answer != "asked" and isinstance(pending, EffectGranted) == (call.answer == "given"), self)
            hold("yes", call.answer == "given" or not again or pending.policy != "ask", self)
            answer: Literal["", "used", "resumed"] = "used" if call.answer == "given" else ""
            calls[index] = happened._replace(process="intended", answer="resumed" if resumes else answer)
        hold("I6 intents", self.taken.effects == tuple(started), self)
        self._others_unmoved(indices)
        return world._replace(calls=tuple(calls))

    def _asked(self, indices: list[int]) -> World:
        changes = tuple(AskApproval(index, question_id(index)) for index in indices)
        hold("I4 ids", self.taken.changes == changes, self)
        for index in indices:
            call = self.world.calls[index]
            hold("yes", call.process == "" and call.result == "" and call.answer != "asked", self)
            hold("I7 never", not call.barred, self)
        return self._answer_of(indices, "asked")

    def _questioned(self, asked: dict[int, str]) -> World:
        """Tools have asked: each question is kept, and what else is known of the call is its start, as it was."""
        changes = tuple(AskApproval(index, id) for index, id in asked.items())
        hold("I4 ids", self.taken.changes == changes, self)
        before, after = self._state(), self.taken.state
        if not isinstance(before, Tools) or not isinstance(after, Tools):
            broken("questions", self)
        calls = list(self.world.calls)
        for index, id in asked.items():
            call, was = calls[index], before.calls[index]
            hold("questions", call.process == "running" and not call.barred and not self.world.aborted, self)
            hold("I4 ids", id == asked_id(index, call.questions + 1), self)
            if not isinstance(was, EffectPending):
                broken("questions", self)
            kept = WaitingQuestion(id, was.policy, call.intents, call.replays)
            hold("questions", after.calls[index] == kept, self)
            calls[index] = call._replace(process="", alone=False, answer="question", questions=call.questions + 1)
        self._others_unmoved(list(asked))
        return self.world._replace(calls=tuple(calls))

    def _answer_of(self, indices: list[int], answer: Literal["asked", "given", "deferred", "answered"]) -> World:
        calls = list(self.world.calls)
        for index in indices:
            calls[index] = calls[index]._replace(answer=answer, process="", alone=False)
        self._others_unmoved(indices)
        return self.world._replace(calls=tuple(calls))

    def _children_started(self, indices: list[int]) -> World:
        world, after = self.world, self.taken.state
        if not isinstance(after, Tools):
            broken("I6 intents", self)
        calls = list(world.calls)
        for index in indices:
            hold("I7 never", calls[index] == NEW, self)  # an operation of its own is accepted once
            hold("I6 intents", isinstance(after.calls[index], WaitingChild), self)
            calls[index] = Call("running", child=True)
        hold("I6 intents", self.taken.effects == tuple(DriveChild(index) for index in indices), self)
        hold("I4 ids", self.taken.changes == tuple(StartChild(world.answer or "", index) for index in indices), self)
        self._others_unmoved(indices)
        return world._replace(calls=tuple(calls))

    def _settled(self, fact: OutcomesArrived | ReadyPlaced) -> World:
        world, state = self.world, self._state()
        if not isinstance(state, Tools):
            broken("legal", self)
        calls = list(world.calls)
        given = fact.outcomes if isinstance(fact, OutcomesArrived) else fact.changed
        arrived = {outcome.index: outcome.message for outcome in given}
        for change in self.taken.changes:
            if not isinstance(change, PlaceResult | StageResult):
                broken("I5 results", self)
            index, message = change.index, change.message
            hold("I4 ids", change.answer == world.answer, self)
            if isinstance(change, PlaceResult):
                hold("I5 results", all(call.result == "placed" for call in calls[:index]), self)
                hold("I5 results", calls[index].result != "placed", self)
                staged = calls[index].result == "staged"
                hold("I4 ids", (message is None) == (staged and index not in arrived), self)
                hold("held", index not in fact.held, self)
                calls[index] = PLACED
            else:
                hold("I5 results", calls[index].result == "", self)
                calls[index] = STAGED
            if message is not None:
                hold("I5 results", message is arrived.pop(index, None), self)
        hold("I5 results", not arrived, self)
        unplaced = next((index for index, call in enumerate(calls) if call.result != "placed"), None)
        if unplaced is not None:
            # What is staged and next is placed.
            hold("I5 results", calls[unplaced].result == "" or unplaced in fact.held, self)
            hold("I5 results", isinstance(self.taken.state, Tools), self)
            hold("held", isinstance(fact, OutcomesArrived) or bool(self.taken.changes), self)
            self._others_unmoved([outcome.index for outcome in given])
            return world._replace(calls=tuple(calls))
        self._check_batch_end({outcome.index: outcome.terminate for outcome in given}, state)
        return world._replace(calls=(), cut=False)

    def _check_batch_end(self, given: dict[int, bool], before: Tools) -> None:
        state = self.taken.state
        if not isinstance(state, Checkpoint):
            broken("I5 results", self)
        wishes = {i: call.terminate for i, call in enumerate(before.calls) if isinstance(call, OutcomeReady | Placed)}
        wishes |= given
        hold("I8 end", state.next == ("finish" if all(wishes.values()) else "respond"), self)
        hold("I8 end", state.code is None, self)
        hold("I4 ids", state.trigger == call_id(before.answer, len(before.calls) - 1), self)

    def _put_back(self, fact: CallsNotBegun) -> World:
        world, before, after = self.world, self._state(), self.taken.state
        if not isinstance(before, Tools) or not isinstance(after, Tools):
            broken("legal", self)
        calls = list(world.calls)
        for call, now in zip(calls, after.calls, strict=True):
            hold("I7 never", not (call.begun and isinstance(now, Planned)), self)
        for index in fact.indices:
            call, was = calls[index], before.calls[index]
            intents = call.intents - 1
            back = call._replace(process="", alone=False, intents=intents)
            if call.answer == "resumed":  # nor is an answer
                back = back._replace(resumes=call.resumes - 1, answer="answered")
                policy = was.policy if isinstance(was, EffectResumed) else None
                kept = policy is not None and AnsweredCall(policy, intents, back.replays) == after.calls[index]
                hold("questions", kept, self)
            calls[index] = back
            if call.answer == "used":  # a yes is not used up by an intent that came to nothing
                calls[index] = calls[index]._replace(answer="given")
                if intents and isinstance(was, EffectPending):
                    granted = EffectGranted(was.policy, intents, back.replays, question_id(index), permit=True)
                    hold("yes", after.calls[index] == granted, self)
                else:
                    hold("yes", after.calls[index] == Approved(question_id(index)), self)
            elif intents == 0:
                hold("counts", isinstance(after.calls[index], Planned), self)
            elif isinstance(was, EffectPending) and call.answer != "resumed":
                hold("policies", after.calls[index] == EffectPending(was.policy, intents, back.replays), self)
        self._others_unmoved(list(fact.indices))
        return world._replace(calls=tuple(calls))

    # What holds of every step.

    def _state(self) -> OperationState:
        state = self.world.state
        assert state is not None
        return state

    def _only(self) -> None:
        """The step changes the state and writes nothing else."""
        hold("I5 results", not self.taken.changes, self)

    def _others_unmoved(self, indices: list[int]) -> None:
        """A call that the fact is not about stays as it was; a staged one may be placed."""
        before, after = self._state(), self.taken.state
        if not isinstance(before, Tools) or not isinstance(after, Tools):
            broken("legal", self)
        for index, (was, now) in enumerate(zip(before.calls, after.calls, strict=True)):
            if index in indices or was == now:
                continue
            placed = isinstance(was, OutcomeReady) and now == Placed(was.terminate)
            hold("counts", placed, self)

    def _check_end(self, end: End, promise: str = "I8 end") -> None:
        last = self.taken.changes[-1] if self.taken.changes else None
        hold("bounds" if promise == "bounds" else "I8 end", last == end, self)

    def _ended(self, after: World) -> World:
        hold("I6 intents", not self.taken.effects, self)
        hold("I3 open", not after.calls and after.request == "", self)
        end = self.taken.changes[-1]
        assert isinstance(end, End)
        hold("I8 end", (end.status == "aborted") == after.aborted, self)
        return World(None, answer=end.status)

    def _check_counts(self, after: World, state: OperationState) -> None:
        said: tuple[object, ...] = (state.turn,)
        # Until it is asked for once more, a turn whose request was too long is not counted by the state.
        again = after.overflowed and isinstance(state, Checkpoint | Summarizing | SummaryWait)
        happened: tuple[object, ...] = (after.turn - again,)
        if isinstance(state, Generating | RetryWait):
            said += (state.attempt, state.retries, state.restarts, state.model_index)
            happened += (after.requests, after.failures, after.interruptions, after.model)
        said += (state.answer,)
        happened += (after.answer,)
        hold("counts", said == happened, self)
        hold("summaries", says_what_is_known(after, state), self)
        told = (state.placed, state.more) if isinstance(state, Checkpoint) else (after.fed, after.unfed)
        hold("inbox", told == (after.fed, after.unfed), self)

    def _check_calls(self, after: World, state: OperationState) -> None:
        if not isinstance(state, Tools):
            hold("I5 results", not after.calls, self)
            return
        for call, happened in zip(state.calls, after.calls, strict=True):
            hold("counts", _says(call, happened), self)


def _says(call: CallState, happened: Call) -> bool:
    """Whether the state of a call says what happened to it."""
    match call:
        case Planned():
            return happened.intents == 0 and happened.result == "" and happened.answer == ""
        case WaitingChild():
            return happened.child and happened.result == ""
        case Approved():
            return happened.intents == 0 and happened.result == "" and happened.answer == "given"
        case WaitingApproval():
            counts = (happened.intents, happened.replays)
            return (call.attempt, call.replays) == counts and happened.answer == "asked" and happened.result == ""
        case WaitingExternal():
            counts = (happened.intents, happened.replays)
            return (call.attempt, call.replays) == counts and happened.answer == "deferred"
        case WaitingQuestion():
            counts = (happened.intents, happened.replays)
            return (call.attempt, call.replays) == counts and happened.answer == "question"
        case AnsweredCall():
            counts = (happened.intents, happened.replays)
            return (call.attempt, call.replays) == counts and happened.answer == "answered"
        case EffectPending():
            expected = ("given" if call.permit else "used") if isinstance(call, EffectGranted) else ""
            expected = "resumed" if isinstance(call, EffectResumed) else expected
            counts = (happened.intents, happened.replays)
            return (call.attempt, call.replays) == counts and happened.answer == expected
        case OutcomeReady():
            return happened.result == "staged"
        case Placed():
            return happened.result == "placed"
        case _:
            assert_never(call)
