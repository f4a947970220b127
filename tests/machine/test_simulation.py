"""Claim: whatever a batch is like and whenever passes die, each call gets one result, in order, within the bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import (
    AnsweredCall,
    Checkpoint,
    EffectPending,
    EffectResumed,
    OperationState,
    Planned,
    ReplayPolicy,
    Tools,
    WaitingQuestion,
)
from agentlane.machine.facts import (
    AbortRequested,
    CallsIntended,
    CallsNotBegun,
    Fact,
    Outcome,
    OutcomesArrived,
    PlaceResult,
    QuestionAnswered,
    QuestionsAsked,
    ReplayIntended,
    RunCall,
    StageResult,
)
from agentlane.machine.planning import CallView, View, plan
from agentlane.machine.rules import Rules
from agentlane.machine.table import step
from agentlane.machine.verdicts import AwaitAnswers, Idle, ReplayCall, SettleCalls, StartCalls
from tests.machine.build import result, rules, tools

STEPS_MAX = 200


@dataclass
class Manner:
    """What one call is like."""

    policy: ReplayPolicy
    parallel: bool
    problem: str | None
    terminate: bool
    questions: int

    @property
    def asks(self) -> int:
        """How often it asks a person, each time that it starts with all the answers that it has."""
        return self.questions if self.policy in ("safe", "idempotent") else 0

    def view(self) -> CallView:
        return CallView(self.policy, self.parallel, self.problem)


@dataclass
class World:
    """Passes over one batch, as the driver would run them, and what became of each call."""

    manners: list[Manner]
    rules: Rules
    cut: bool
    state: OperationState
    live: set[int] = field(default_factory=set)
    not_begun: set[int] = field(default_factory=set)
    starts: dict[int, list[int]] = field(default_factory=dict)
    """Per call: the life of the process in which each of its starts was."""
    resumes: dict[int, int] = field(default_factory=dict)
    """Per call: how many of its starts were by an answer."""
    asked: dict[int, int] = field(default_factory=dict)
    life: int = 0
    results: list[tuple[int, str]] = field(default_factory=list)
    staged: dict[int, str] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)

    def take(self, fact: Fact) -> None:
        taken = step(self.state, fact, self.rules)
        assert taken.state is not None
        self.history.append(f"{fact} -> {taken.state}")
        for change in taken.changes:
            if isinstance(change, PlaceResult):
                text = self.staged.pop(change.index) if change.message is None else change.message.text
                self.results.append((change.index, text))
            elif isinstance(change, StageResult):
                self.staged[change.index] = change.message.text
        self.state = taken.state
        for effect in taken.effects:
            assert isinstance(effect, RunCall)
            self.start(effect)

    def start(self, effect: RunCall) -> None:
        index = effect.index
        before = self.starts.setdefault(index, [])
        assert isinstance(self.state, Tools) and self.state.cancel_requested_at is None
        resumes = isinstance(self.state.calls[index], EffectResumed)
        assert resumes or self.life not in before, "no call starts twice in one life"
        self.resumes[index] = self.resumes.get(index, 0) + resumes
        assert self.resumes[index] <= self.asked.get(index, 0), "an answer is used once"
        replay = bool(before) and not resumes
        if before:
            assert self.manners[index].policy != "never"
            assert not replay or not self.live, "replays go one at a time"
        before.append(self.life)
        assert effect.attempt == len(before)
        assert effect.replays == len(before) - 1 - self.resumes[index] <= self.rules.limits.max_replays
        self.check_beside(index, replay=replay)
        self.live.add(index)
        assert len(self.live) <= self.rules.limits.max_parallel

    def check_beside(self, index: int, *, replay: bool) -> None:
        """Nothing runs beside a barrier, and a call starts only when every barrier before it is over.

        A replay passes over those that wait: it has had its turn.
        """
        assert isinstance(self.state, Tools)
        for other in self.live:
            assert self.manners[other].parallel and self.manners[index].parallel, "a barrier runs alone"
        for before in range(index):
            over = not isinstance(self.state.calls[before], Planned | EffectPending)
            if not replay and isinstance(self.state.calls[before], WaitingQuestion | AnsweredCall):
                over = False
            assert over or self.manners[before].parallel, "barriers before it are passed"
            assert over or self.manners[index].parallel, "a barrier waits for those before it"

    def advance(self) -> bool:
        """Take what may be taken now; whether anything could."""
        view = View(
            now=0,
            calls=[manner.view() for manner in self.manners],
            live=frozenset(self.live),
            not_begun=frozenset(self.not_begun),
            cut=self.cut,
        )
        if not isinstance(self.state, Tools):
            return False
        match plan(self.state, view, self.rules):
            case StartCalls(calls):
                self.take(CallsIntended(calls))
            case ReplayCall(index, policy):
                self.take(ReplayIntended(index, policy))
            case SettleCalls(calls):
                self.take(OutcomesArrived(tuple(Outcome(i, synthetic(i, why)) for i, why in calls)))
            case Idle():
                assert self.live
                return False
            case AwaitAnswers():
                assert self.waiting() and not self.live
                return False
            case other:
                raise AssertionError(f"not a verdict over a batch: {other}")
        return True

    def waiting(self) -> dict[int, str]:
        """The questions that somebody may answer now, by their calls."""
        if not isinstance(self.state, Tools) or self.state.cancel_requested_at is not None:
            return {}
        return {i: call.question for i, call in enumerate(self.state.calls) if isinstance(call, WaitingQuestion)}

    def settle(self) -> None:
        """Everything that can go on without an effect's report does."""
        for _ in range(STEPS_MAX):
            if not self.advance():
                return
        raise AssertionError("no end")


def synthetic(index: int, why: str) -> ToolResultMessage:
    return result(index, why)


MANNERS = st.builds(
    Manner,
    policy=st.sampled_from(["never", "safe", "idempotent"]),
    parallel=st.sampled_from([True, True, False]),
    problem=st.sampled_from([None, None, None, "bad"]),
    terminate=st.booleans(),
    questions=st.sampled_from([0, 0, 0, 1, 2]),
)


def world(data: st.DataObject, *, cut: bool = False) -> World:
    manners = data.draw(st.lists(MANNERS, min_size=1, max_size=6))
    return World(
        manners,
        rules(max_parallel=data.draw(st.integers(1, 4)), max_replays=data.draw(st.integers(0, 3))),
        cut,
        tools(*[Planned()] * len(manners)),
    )


def report(now: World, data: st.DataObject) -> None:
    """Some of the live calls end, in some order: those that still have a question with it."""
    ended = data.draw(st.permutations(sorted(now.live)))[: data.draw(st.integers(1, len(now.live)))]
    now.live -= set(ended)
    asking = [i for i in ended if now.asked.get(i, 0) < now.manners[i].asks]
    if now.state.cancel_requested_at is not None:
        asking = []
    for index in asking:
        now.asked[index] = now.asked.get(index, 0) + 1
    if asking:
        now.take(QuestionsAsked(tuple((index, f"{index}.{now.asked[index]}") for index in asking)))
    outcomes = tuple(Outcome(i, result(i, f"real {i}"), now.manners[i].terminate) for i in ended if i not in asking)
    if outcomes:
        now.take(OutcomesArrived(outcomes))


def answer(now: World, data: st.DataObject) -> None:
    """Somebody answers one of the questions."""
    index, question = data.draw(st.sampled_from(sorted(now.waiting().items())))
    now.take(QuestionAnswered(index, question))


def run_on(now: World, data: st.DataObject) -> None:
    """Go on to the end of the batch, with nothing in the way."""
    now.settle()
    while now.live or now.waiting():
        if now.live and (not now.waiting() or data.draw(st.booleans())):
            report(now, data)
        else:
            answer(now, data)
        now.settle()


def check_end(now: World) -> None:
    told = "\n".join(now.history)
    assert isinstance(now.state, Checkpoint), told
    assert [index for index, _ in now.results] == [*range(len(now.manners))], told
    assert not now.staged and not now.live, told


@given(st.data())
def test_a_batch_that_is_left_alone_ends_with_each_calls_own_result(data: st.DataObject) -> None:
    now = world(data)

    run_on(now, data)

    check_end(now)
    for (index, text), manner in zip(now.results, now.manners, strict=True):
        assert text == (f"real {index}" if manner.problem is None else "refused")
        assert len(now.starts.get(index, [])) == (manner.problem is None) * (1 + manner.asks)
    ends = all(manner.terminate and manner.problem is None for manner in now.manners)
    assert isinstance(now.state, Checkpoint) and now.state.next == ("finish" if ends else "respond")


@given(st.data())
def test_a_batch_whose_process_dies_and_closes_and_is_aborted_at_any_time_ends_with_one_result_for_each_call(
    data: st.DataObject,
) -> None:
    now = world(data, cut=data.draw(st.sampled_from([False, False, False, True])))
    for _ in range(STEPS_MAX):
        if not isinstance(now.state, Tools):
            break
        events = ["advance"] * 3
        if now.live:
            events += ["report"] * 3
        if now.waiting():
            events += ["answer"] * 2
        if now.life < 6:
            events += ["die", "close"]
            if now.state.cancel_requested_at is None:
                events += ["abort"]
        match data.draw(st.sampled_from(events)):
            case "advance":
                if not now.advance() and not now.live and not now.waiting():
                    raise AssertionError("stuck:\n" + "\n".join(now.history))
            case "report":
                report(now, data)
            case "answer":
                answer(now, data)
            case "abort":
                now.take(AbortRequested(9))
            case "die":
                now.live.clear()
                now.not_begun.clear()
                now.life += 1
            case "close":
                close(now, data)

    now.life = 99
    now.live.clear()
    run_on(now, data)

    check_end(now)
    for index, text in now.results:
        lives = now.starts.get(index, [])
        manner = now.manners[index]
        assert lives or not text.startswith("real")
        most = 1 if manner.policy == "never" else 1 + now.rules.limits.max_replays + manner.asks
        assert len(lives) <= most
        assert not lives or (manner.problem is None and not now.cut)
        if text in ("cut", "refused", "not_started"):
            assert not lives, "nothing is called not started that was started"
        if text == "aborted":
            assert lives and now.asked[index], "it asked, so it was started"


def close(now: World, data: st.DataObject) -> None:
    """A clean close: of the live calls some have not begun, which is then known."""
    never_begun = sorted(data.draw(st.sets(st.sampled_from(sorted(now.live))))) if now.live else []
    if never_begun:
        assert isinstance(now.state, Tools)
        resumed = [index for index in never_begun if isinstance(now.state.calls[index], EffectResumed)]
        for index in resumed:
            now.resumes[index] -= 1
        now.take(CallsNotBegun(tuple(never_begun)))
        for index in never_begun:
            now.starts[index].pop()
    now.live.clear()
    now.not_begun.clear()
    now.life += 1
