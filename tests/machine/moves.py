"""Everything that can happen next: what the planning asks for, what effects report, and every disturbance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo, TextPart, ToolResultMessage, UserMessage
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    Checkpoint,
    EffectPending,
    OperationState,
    Planned,
    RetryWait,
    Summarizing,
    SummaryReason,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.machine import planning, table
from agentlane.machine.facts import (
    AbortRequested,
    Answered,
    ApprovalGiven,
    ApprovalsAsked,
    CallsDeferred,
    CallsIntended,
    CallsNotBegun,
    ChildrenStarted,
    Fact,
    Failed,
    Finished,
    FollowedUp,
    IllegalStep,
    Interrupted,
    ModelUnavailable,
    Navigated,
    Outcome,
    OutcomesArrived,
    OutputRefused,
    QuestionAnswered,
    QuestionsAsked,
    QueuedPlaced,
    ReadyPlaced,
    ReplayIntended,
    RequestIntended,
    Step,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.planning import CallView, SummaryView, View, Waiting
from agentlane.machine.rules import Rules
from agentlane.machine.verdicts import (
    AskAgain,
    AskApprovals,
    AskModel,
    AskPredicates,
    AskSummary,
    AwaitAnswers,
    DriveChildren,
    DropRequest,
    DropSummary,
    Fail,
    Finish,
    FollowUp,
    GiveUp,
    Idle,
    Navigate,
    PlaceQueued,
    PlaceReady,
    RecoverRequest,
    RecoverSummary,
    RefuseSummary,
    ReplayCall,
    SettleCalls,
    SleepUntil,
    StartCalls,
    TakeSummary,
    Verdict,
)
from tests.machine.build import CORRECTION, INVALID, LIMIT, result
from tests.machine.judged_steps import world_after
from tests.machine.judged_verdicts import check_told, check_verdict
from tests.machine.promises import broken
from tests.machine.world import (
    BARRIER,
    CHILD,
    CHILD_BARRIER,
    LIVE,
    LOST_KINDS,
    MISSING,
    NO_SUMMARIES,
    NOT_BEGUN,
    NOT_SENT,
    PLAIN,
    SAVED_PREFIX,
    UNAVAILABLE,
    UNBOUND,
    Call,
    Process,
    Scope,
    World,
    answers,
    asked_id,
    question_id,
    request_id,
    summary_request_id,
    task_id,
    written_summaries,
)


class Machine(NamedTuple):
    """What is explored. A seeded bug is another one of these."""

    plan: Callable[[OperationState, View, Rules], Verdict] = planning.plan
    step: Callable[[OperationState, Fact, Rules], Step] = table.step


class Move(NamedTuple):
    """Something that happens. ``calm`` is false for what disturbs: an abort, a death, a close."""

    what: object
    after: World
    calm: bool = True


class Onward(NamedTuple):
    """A move as it is the same in every life: to the world of that number, with so much more lived through."""

    what: object
    number: int
    lives: int
    queued: int
    calm: bool


class Moves:
    """The moves of one scope with one machine; remembers the states and the rows of the table they went through."""

    def __init__(self, scope: Scope, machine: Machine) -> None:
        self.scope = scope
        self.machine = machine
        self.rows: set[tuple[type, type]] = set()
        self.states: set[OperationState] = set()
        self._verdicts: dict[object, list[tuple[Verdict, bool]]] = {}
        self._numbers: dict[World, int] = {scope.start: 0}
        self._worlds: list[World] = [scope.start]
        self._onward: dict[int, list[Onward]] = {}
        limits = scope.rules.limits
        self._rooms = [replace(scope.rules, limits=replace(limits, max_parallel=room)) for room in scope.room]

    def of(self, number: int) -> list[Onward]:
        """Every move from the world of that number, checked; none from the end.

        What may happen is the same in every life, however much was queued before: it is found and judged once. Worlds
        that differ in nothing else have one number; that of the scope's start is 0.
        """
        known = self._onward.get(number)
        if known is None:
            world = self._worlds[number]
            if world.state is not None:
                self.states.add(world.state)
            known = [] if world.state is None else [self._numbered(each) for each in self._found(world)]
            self._onward[number] = known
        return known

    def world(self, number: int) -> World:
        """The world of that number, in its first life."""
        return self._worlds[number]

    def _numbered(self, move: Move) -> Onward:
        after = move.after
        alike = after._replace(lives=0, queued=0) if after.lives or after.queued else after
        number = self._numbers.get(alike)
        if number is None:
            number = self._numbers[alike] = len(self._worlds)
            self._worlds.append(alike)
        return Onward(move.what, number, after.lives, after.queued, move.calm)

    def _found(self, world: World) -> Iterator[Move]:
        for verdict, alone in self._possible_verdicts(world):
            check_told(world, verdict)
            for fact in _facts(world, verdict, self.scope.models, self._held_arrivals(world)):
                after = self._taken(world, fact)
                if alone and isinstance(fact, CallsIntended):
                    after = _with(after, [fact.calls[0][0]], alone=True)
                elif alone and isinstance(fact, ChildrenStarted):
                    after = _with(after, [fact.indices[0]], alone=True)
                yield Move(fact, after, calm=not _asks_anew(world, fact))
            if isinstance(verdict, DriveChildren):
                yield Move("children are driven again", _with(world, list(verdict.indices), process="running"))
        yield from self._request_moves(world)
        yield from self._call_moves(world)
        yield from self._disturbances(world)

    # What the planning asks for, with every configuration that may be in force.

    def _possible_verdicts(self, world: World) -> list[tuple[Verdict, bool]]:
        """The verdicts that are possible here, each with whether what it starts is a barrier."""
        processes = tuple((call.process, call.alone) for call in world.calls)
        key = (world.state, processes, world.cut, world.request, world.corrections, world.waiting, world.task)
        known = self._verdicts.get(key)
        if known is not None:
            return known
        state = world.state
        assert state is not None
        found: dict[tuple[Verdict, bool], None] = {}
        for view, rules in self._views(world, state):
            verdict = self.machine.plan(state, view, rules)
            check_verdict(world, view, rules, verdict)
            starts = [i for i, _ in verdict.calls] + [*verdict.children] if isinstance(verdict, StartCalls) else []
            found[verdict, any(not view.calls[index].parallel for index in starts)] = None
        self._verdicts[key] = list(found)
        return self._verdicts[key]

    def _views(self, world: World, state: OperationState) -> Iterator[tuple[View, Rules]]:
        if not isinstance(state, Tools):
            waits = isinstance(state, RetryWait | SummaryWait)
            nows = (0, state.not_before - 1, state.not_before) if waits else (0,)
            situations = product(nows, ((None, None), (UNAVAILABLE, None), (None, LIMIT)), self._summaries(world))
            for now, (problem, limit), summary in situations:
                live, not_begun = world.request in LIVE, world.request == "not_begun"
                view = View(
                    now=now,
                    request_live=live,
                    request_not_begun=not_begun,
                    model_problem=problem,
                    limit=limit,
                    waiting=Waiting(*world.waiting),
                    summary=summary,
                )
                yield view, self.scope.rules
                if self.scope.hooks:
                    yield replace(view, failure=HOOK_FAILED), self.scope.rules
                    if world.turn <= self.scope.batches:  # the bound of follow-ups is not the machine's
                        yield replace(view, follow_up=True), self.scope.rules
            if isinstance(state, Checkpoint) and state.next == "finish" and self.scope.corrections:
                more = world.corrections < self.scope.corrections
                yield View(now=0, output=CORRECTION if more else INVALID), self.scope.rules
            return
        live_calls = frozenset(index for index, call in enumerate(world.calls) if call.process in LIVE)
        stuck = frozenset(index for index, call in enumerate(world.calls) if call.process == "waiting")
        not_begun_calls = frozenset(index for index, call in enumerate(world.calls) if call.process == "not_begun")
        kinds = [self._kinds(world, call, happened) for call, happened in zip(state.calls, world.calls, strict=True)]
        starting = any(isinstance(call, Planned | Approved | AnsweredCall) for call in state.calls)
        may_be_held = _held(world)
        asked = [] if world.aborted else [i for i, call in enumerate(state.calls) if isinstance(call, WaitingApproval)]
        for calls, late in product(product(*kinds), product((False, True), repeat=len(asked))):
            expired = frozenset(index for index, is_late in zip(asked, late, strict=True) if is_late)
            view = View(0, calls, live_calls, not_begun_calls, world.cut, expired, stuck=stuck)
            seen = [replace(view, held=held) if held else view for held in may_be_held]
            yield from product(seen, self._rooms if starting else self._rooms[-1:])

    def _summaries(self, world: World) -> tuple[SummaryView | None, ...]:
        """What may be told of a summary: that one is asked for or due, that there will be none, or the whole of it."""
        state = world.state
        if not self.scope.shorter or not isinstance(state, Checkpoint) or state.next not in ("respond", "summarize"):
            return (None,)
        reason: SummaryReason = "threshold"
        if state.next == "summarize":
            reason = "overflow" if world.overflowed else "navigation" if world.kind == "navigation" else "manual"
        told = SummaryView(reason), SummaryView(reason, refused=DECLINED), SummaryView(reason, given="mine")
        return told if state.next == "summarize" else (None, *told)

    def _kinds(self, world: World, call: CallState, happened: Call) -> tuple[CallView, ...]:
        """What this process may make of one call now; of one that it runs only whether its tool is still configured."""
        if isinstance(call, WaitingApproval | WaitingExternal | WaitingQuestion):
            return PLAIN, BARRIER, MISSING
        if isinstance(call, WaitingChild):
            return (CHILD_BARRIER,) if happened.alone else (CHILD, CHILD_BARRIER, MISSING)
        if not isinstance(call, Planned | Approved | AnsweredCall | EffectPending):
            return (PLAIN,)
        if isinstance(call, EffectPending) and happened.process in LIVE:
            parallel = not happened.alone
            return CallView(call.policy, parallel), CallView(None, parallel, "taken away")
        if world.aborted or world.cut:
            return PLAIN, MISSING
        if isinstance(call, Approved):
            return (*self.scope.kinds, UNBOUND)
        return self.scope.kinds if isinstance(call, Planned) else self.scope.lost or LOST_KINDS

    def _taken(self, world: World, fact: Fact) -> World:
        """The world after the step of a fact."""
        state = world.state
        assert state is not None
        self.rows.add((type(state), type(fact)))
        try:
            taken = self.machine.step(state, fact, self.scope.rules)
        except IllegalStep as error:
            broken("legal", f"{error}\n  {world}\n  {fact}")
        return world_after(world, fact, taken, self.scope.rules)

    # What effects report.

    def _request_moves(self, world: World) -> Iterator[Move]:
        if world.request == "intended":
            yield Move("the request is sent", world._replace(request="running"))
        elif world.request == "running" and isinstance(world.state, Summarizing):
            for message in written_summaries(self.scope, world):
                retried = message.stop_reason == "error" or message in NO_SUMMARIES
                for fallback in (None, *(range(world.task.model + 1, self.scope.models) if retried else ())):
                    written = Summarized(message, now=0, jitter=0.0, fallback=fallback)
                    yield Move(written, self._taken(world, written))
        elif world.request == "running":
            for message in answers(self.scope, world):
                failed = message.stop_reason == "error"
                for fallback in (None, *(range(world.model + 1, self.scope.models) if failed else ())):
                    for summarize in (False, True) if self.scope.shorter and failed else (False,):
                        fact = Answered(message, now=0, jitter=0.0, fallback=fallback, summarize=summarize)
                        yield Move(fact, self._taken(world, fact))
        elif world.request == "withdrawn":
            kind = Summarized if isinstance(world.state, Summarizing) else Answered
            unsent = kind(NOT_SENT, now=0, jitter=0.0)
            yield Move(unsent, self._taken(world, unsent))

    def _call_moves(self, world: World) -> Iterator[Move]:
        state = world.state
        if not isinstance(state, Tools):
            return
        for index, happened in enumerate(world.calls):
            call = state.calls[index]
            if happened.process == "intended" and isinstance(call, EffectPending):
                barred = happened.barred or call.policy == "never"
                after = _with(world, [index], process="running", begun=True, barred=barred)
                yield Move(f"call {index} begins", after)
            elif happened.process == "withdrawn":
                yield Move(f"call {index} did not begin", _with(world, [index], process="not_begun"))
            elif isinstance(call, WaitingApproval) and not world.aborted:
                for answer in (ApprovalGiven(index, call.approval), OutcomesArrived((Outcome(index, DENIED[index]),))):
                    yield Move(answer, self._taken(world, answer))
            elif isinstance(call, WaitingChild) and happened.process == "waiting":
                yield Move(f"child {index} can go on", _with(world, [index], process=""))
            elif isinstance(call, WaitingChild) and happened.process == "running":
                yield Move(f"child {index} waits", _with(world, [index], process="waiting"), calm=False)
            elif isinstance(call, WaitingExternal) and not world.aborted:
                delivered = OutcomesArrived((Outcome(index, REAL[index]),))
                yield Move(delivered, self._taken(world, delivered))
            elif isinstance(call, WaitingQuestion) and not world.aborted:
                told = QuestionAnswered(index, call.question)
                yield Move(told, self._taken(world, told))
            if self.scope.deferring and happened.process == "running":
                yield Move(CallsDeferred((index,)), self._taken(world, CallsDeferred((index,))))
        for group in self._asking(world, state):
            fact = QuestionsAsked(tuple((index, asked_id(index, world.calls[index].questions + 1)) for index in group))
            yield Move(fact, self._taken(world, fact))
        running = [index for index, call in enumerate(world.calls) if call.process == "running"]
        for count in range(1, len(running) + 1):
            for order in permutations(running, count):
                for wishes in product(_wishes(world), repeat=count):
                    ended = tuple(Outcome(index, REAL[index], wish) for index, wish in zip(order, wishes, strict=True))
                    for held in self._held_arrivals(world):
                        fact = OutcomesArrived(ended, held)
                        yield Move(fact, self._taken(world, fact))

    def _asking(self, world: World, state: Tools) -> Iterator[tuple[int, ...]]:
        """The calls whose tools may ask people now, in every group. Under an abort nobody is asked for them."""
        may: list[int] = []
        for index, (call, happened) in enumerate(zip(state.calls, world.calls, strict=True)):
            repeats = isinstance(call, EffectPending) and call.policy in ("safe", "idempotent")
            if repeats and happened.process == "running" and happened.questions < self.scope.questions:
                may.append(index)
        for count in range(1, 1 if world.aborted else len(may) + 1):
            yield from combinations(may, count)

    def _held_arrivals(self, world: World) -> tuple[frozenset[int], ...]:
        """With hooks on results all are held until those have spoken; an abort asks none."""
        if not self.scope.hooks or world.aborted:
            return (frozenset(),)
        return frozenset(), frozenset(range(len(world.calls)))

    # What disturbs.

    def _disturbances(self, world: World) -> Iterator[Move]:
        if self.scope.queued:
            for kind, waiting in zip(("write", "steer", "follow-up"), _one_more(world.waiting), strict=True):
                after = world._replace(waiting=waiting, queued=world.queued + 1)
                yield Move(f"a {kind} is queued", after, calm=False)
        if not world.aborted:
            fact = AbortRequested(1)
            after = self._taken(world, fact)._replace(waiting=(world.waiting[0], 0, 0))  # input is given back with it
            # What is intended and did not begin will not: it is held back, or told to stop before its first step.
            yield Move(fact, _none_begins(after, "not_begun"), calm=False)
            yield Move(fact, _none_begins(after, "withdrawn"), calm=False)
        if self.scope.deaths:
            yield Move("the process dies", _reopened(world), calm=False)
            held = tuple(index for index, call in enumerate(world.calls) if call.process in NOT_BEGUN)
            after = self._taken(world, CallsNotBegun(held)) if held else world
            yield Move("the session closes", _reopened(after), calm=False)


def _asks_anew(world: World, fact: Fact) -> bool:
    """Whether arguments were changed under a yes: each time that happens a person is asked once more."""
    state = world.state
    if not isinstance(fact, ApprovalsAsked) or not isinstance(state, Tools):
        return False
    return any(isinstance(state.calls[index], Approved) for index, _ in fact.calls)


def _facts(world: World, verdict: Verdict, models: int, held_arrivals: tuple[frozenset[int], ...]) -> list[Fact]:
    """What the driver makes of a verdict. With several models any may be the one that is here."""
    here = (None, *range(models)) if models > 1 else (None,)
    match verdict:
        case AskModel():
            turn = world.turn + 1 if world.requests == 0 and not world.overflowed else world.turn
            id = request_id(turn, world.requests + 1, again=world.overflowed)
            return [RequestIntended(id, index) for index in here]
        case RecoverRequest():
            return [*(_interrupted(world, None, index) for index in here), _interrupted(world, UNAVAILABLE)]
        case DropRequest():
            return [Answered(NOT_SENT, now=0, jitter=0.0)]
        case AskSummary(reason):
            task = world.task.id or task_id(reason, _trigger(world))
            id = summary_request_id(task, world.task.requests + 1)
            return [SummaryIntended(task, reason, id, index) for index in here]
        case TakeSummary(reason, text):
            return [SummaryGiven(task_id(reason, _trigger(world)), reason, text)]
        case RefuseSummary(reason, error):
            return [SummaryRefused(reason, error)]
        case RecoverSummary():
            id = summary_request_id(world.task.id, world.task.requests + 1)
            again = [SummaryInterrupted(id, now=0, jitter=0.0, model_index=index) for index in here]
            return [*again, SummaryInterrupted(id, now=0, jitter=0.0, unavailable=UNAVAILABLE)]
        case DropSummary():
            return [Summarized(NOT_SENT, now=0, jitter=0.0)]
        case Navigate():
            return [Navigated()]
        case StartCalls(calls, children):  # the driver takes both steps in one commit
            return [ChildrenStarted(children)] if children else [CallsIntended(calls)]
        case ReplayCall(index, policy):
            return [ReplayIntended(index, policy)]
        case AskApprovals(asked):
            return [ApprovalsAsked(tuple((index, question_id(index)) for index in asked))]
        case SettleCalls(calls):
            given = tuple(Outcome(index, _given(index, why)) for index, why in calls)
            return [OutcomesArrived(given, held) for held in held_arrivals]
        case PlaceQueued(writes, steers, follow_ups):
            items = [f"w{i}" for i in range(writes)]
            input = [*(f"s{i}" for i in range(steers)), *(f"f{i}" for i in range(follow_ups))]
            # One commit may hold the first of them only.
            parts = [[*items, *input][: count + 1] for count in range(writes + len(input))]
            return [_part_placed(part, verdict) for part in parts]
        case FollowUp():
            ids = [f"f{world.turn}-000{number}" for number in (1, 2)]
            return [FollowedUp(tuple((id, SAID_MORE) for id in ids[:count])) for count in (1, 2)]
        case PlaceReady():
            return list(_placements(world))
        case Finish():
            return [Finished()]
        case GiveUp(error):
            return [ModelUnavailable(error)]
        case Fail(error):
            return [Failed(error)]
        case AskAgain(message):
            return [OutputRefused(message)]
        case AskPredicates() | AwaitAnswers() | SleepUntil() | Idle() | DriveChildren():
            return []
        case _:
            assert_never(verdict)


def _trigger(world: World) -> str:
    """What is to be answered; where it is not a checkpoint nothing is."""
    return world.state.trigger if isinstance(world.state, Checkpoint) else ""


def _part_placed(part: list[str], verdict: PlaceQueued) -> QueuedPlaced:
    trigger = None if part[-1].startswith("w") else part[-1]
    more = verdict.follow_ups > 0 and len(part) < verdict.writes + verdict.steers + verdict.follow_ups
    return QueuedPlaced(tuple(part), trigger, more and trigger is not None)


def _interrupted(world: World, unavailable: ErrorInfo | None, model_index: int | None = None) -> Interrupted:
    next_id = request_id(world.turn, world.requests + 1, again=world.overflowed)
    return Interrupted(SAVED_PREFIX, next_id, now=0, jitter=0.0, unavailable=unavailable, model_index=model_index)


def _staged(world: World) -> list[int]:
    return [index for index, call in enumerate(world.calls) if call.result == "staged"]


def _held(world: World) -> list[frozenset[int]]:
    """What may be held now: any outcome that is staged, since nobody knows whose hooks have spoken."""
    staged = [] if world.aborted else _staged(world)
    return [frozenset(held) for count in range(len(staged) + 1) for held in combinations(staged, count)]


def _placements(world: World) -> Iterator[ReadyPlaced]:
    """What hooks have said of the outcomes that are next: nothing, or another result with another wish."""
    first = next(index for index, call in enumerate(world.calls) if call.result != "placed")
    for held in _held(world):
        if first in held:
            continue
        yield ReadyPlaced((), held)
        yield from (ReadyPlaced((Outcome(first, HOOKED[first], wish),), held) for wish in _wishes(world))


REAL: tuple[ToolResultMessage, ...] = tuple(result(index, "real") for index in range(4))
DENIED: tuple[ToolResultMessage, ...] = tuple(result(index, "denied") for index in range(4))
SAID_MORE = UserMessage(content=(TextPart(text="and this?"),))
DECLINED = ErrorInfo(code="compaction_declined", message="not now")
HOOK_FAILED = ErrorInfo(code="hook_failed", message="a hook said so")
HOOKED: tuple[ToolResultMessage, ...] = tuple(result(index, "hooked") for index in range(4))
_GIVEN: dict[tuple[int, str], ToolResultMessage] = {}


def _given(index: int, why: str) -> ToolResultMessage:
    """The result of a call that no tool gave."""
    return _GIVEN.setdefault((index, why), result(index, why))


def _wishes(world: World) -> tuple[bool, ...]:
    """Whether a tool asks for the end of the run. Under an abort it makes no difference."""
    return (False,) if world.aborted else (False, True)


def _none_begins(world: World, process: Process) -> World:
    """An abort is committed, so what is intended does not begin."""
    intended = [index for index, call in enumerate(world.calls) if call.process == "intended"]
    after = _with(world, intended, process=process)
    return after._replace(request=process) if after.request == "intended" else after


def _one_more(waiting: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    writes, steers, follow_ups = waiting
    yield writes + 1, steers, follow_ups
    yield writes, steers + 1, follow_ups
    yield writes, steers, follow_ups + 1


def _with(world: World, indices: list[int], **changed: object) -> World:
    """The world with something else true of these calls."""
    if not indices:
        return world
    calls = list(world.calls)
    for index in indices:
        calls[index] = calls[index]._replace(**changed)  # type: ignore[arg-type]
    return world._replace(calls=tuple(calls))


def _reopened(world: World) -> World:
    """Another process has opened the session and drives."""
    calls = tuple(call._replace(process="", alone=False) for call in world.calls)
    return world._replace(calls=calls, request="", lives=world.lives + 1)
