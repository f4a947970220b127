"""The plain model of a host: what each step must be answered, with processes that die and writes that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tests.stateful.again import Retry
from tests.stateful.delivery import Deliver
from tests.stateful.kin import FROM_NEWEST, FROM_OLDEST
from tests.stateful.moves import MOVES
from tests.stateful.people import Decide
from tests.stateful.plain import Died, Faulted, Refused
from tests.stateful.plain_abort import PlainAborts
from tests.stateful.plain_again import PlainAgain
from tests.stateful.plain_kin import call_on, lane_of, unsettled_beside
from tests.stateful.plain_moves import PlainMoves
from tests.stateful.plain_pass import Observer
from tests.stateful.plain_questions import PlainQuestions
from tests.stateful.plain_summing import PlainSumming
from tests.stateful.programs import (
    ADVANCE_MS,
    BRANCHES,
    LANES,
    SETTINGS,
    TOOL_CHOICES,
    Abort,
    Accept,
    Adjust,
    Advance,
    Append,
    AppendEntry,
    Close,
    Configure,
    CreateBranch,
    Direct,
    Drive,
    FailWrite,
    Held,
    Kill,
    KillAt,
    LeaveDrive,
    MakeLane,
    OpenAgain,
    Result,
    Resume,
    Run,
    SetLabel,
    SetName,
    SetValue,
    Step,
)
from tests.stateful.questions import Answer
from tests.stateful.summing import Compact, Leave
from tests.stateful.talk import CancelQueued, Say, Submit

NO_SUCH = "op-none"


@dataclass(frozen=True)
class Open:
    """A new process opens the session."""


@dataclass(frozen=True)
class Reopen:
    """Go on after a failed write; before, every call is refused."""


@dataclass(frozen=True)
class Elapse:
    """So much time passes."""

    ms: int


Action: TypeAlias = Step | Open | Reopen | Elapse


@dataclass
class PlainHost(PlainQuestions, PlainMoves, PlainAborts, PlainAgain, PlainSumming):
    """The plain model as one that plays steps."""

    def before(self, step: Step) -> list[Action]:
        """What must be done before ``step``, so that there is a session that it can be played on."""
        if isinstance(step, Close | Kill):
            return []
        if self.phase == "down":
            return [Open()]
        return [Reopen()] if self.phase == "faulted" else []

    def concrete(self, step: Step) -> Action:
        """``step`` with what it names looked up: entries (one beyond the last: an unknown one), operations, time."""
        count = len(self.disk.entries) + 1
        if isinstance(step, MOVES):
            return self.concrete_move(step)
        if getattr(step, "lane", 0) >= FROM_NEWEST:  # of a call, or the first one where there is none
            step = self._on_lane_of_call(step)
        match step:
            case SetLabel():
                return replace(step, entry=step.entry % count)
            case Adjust(entry=int(entry)):
                return replace(step, entry=entry % count)
            case CreateBranch(at=int(at)) | MakeLane(at=int(at)):
                return replace(step, at=at % count)
            case Leave(to=int(to)):
                return replace(step, to=to % count)
            case Close() if self.several and self.failing is not None:
                return Kill()  # which of several passes would meet the failing write is not determined
            case Abort(lane, op) if self._unsettled_beside(self._lane(lane), op):
                return Kill()
            case Advance():
                return self._elapse()
            case CancelQueued(item=back):
                made = self.disk.inbox.made
                return replace(step, item=made - 1 - back if back < made else made)
            case Decide(lane, back):
                number = self.which(LANES[lane], back)
                if self.failing is not None and self.late(LANES[lane], number):
                    return Kill()  # whether it is told before or after what fails behind it is not determined
                return replace(step, which=number)
            case Answer(lane, back):
                return replace(step, which=self.which(LANES[lane], back))
            case Deliver(lane, which):
                return replace(step, call=self.call_to_deliver(LANES[lane], which))
            case Held():
                return replace(step, calls=tuple(self.concrete(call) for call in step.calls))  # type: ignore[misc]
            case _:
                return step

    def play(self, action: Action, label: str) -> Any:
        """What ``action`` must be answered; ``finished`` has the drives that end by it."""
        self.finished.clear()
        try:
            return self._guarded(lambda: self._play(action, label), label if is_drive(action) else None)
        except Died:
            self._die()
            return "died"

    def _guarded(self, act: Callable[[], Any], label: str | None = None) -> Any:
        """The outcome of one call; one of a drive is among those that finish."""
        try:
            return act()
        except Refused as refused:
            outcome: Any = ("refused", str(refused))
        except Faulted:
            self.fault()
            outcome = ("refused", "SessionFaulted")
        if label is None:
            return outcome
        if label not in dict(self.finished):
            self.finished.append((label, outcome))
        return "started"

    def _die(self) -> None:
        self.phase, self.left_over = "down", None
        self.passes.clear()
        self.finished.clear()

    def _play(self, action: Action, label: str) -> Any:
        if isinstance(action, MOVES):
            return self.move(action)
        match action:
            case Open():
                self.phase, self.muted, self.failing = "open", False, None
                self.trace.clear()
                self.kills.clear()
                self.forget_handles()
                self.find_operations()
                self.passed_over = 0
                return "opened"
            case Reopen():
                self.phase = "open"
                self.take_left_over()
                self.find_operations()
                return "reopened"
            case Close():
                return self._close()
            case Kill():
                was, self.phase = self.phase, "down"
                self._die()
                return "nothing" if was == "down" else "died"
            case KillAt(nth):
                self.kills.add(len(self.trace) + nth)
            case FailWrite(nth, where):
                self.failing = (nth, where)
            case Elapse(ms):
                self.pass_time(ms)
            case OpenAgain(read_only):
                return self.view() if read_only else ("refused", "SessionOwned")
            case Held():
                return self._held(action)
            case SetValue() | Append() | SetName() | SetLabel() | Adjust():
                self._direct(action)
            case CreateBranch(name, at):
                self.create_branch(BRANCHES[name], at)
            case MakeLane(name, at):
                self.make_lane(BRANCHES[name], at)
            case AppendEntry(branch, text, assistant):
                return self.append_entry(BRANCHES[branch], text, assistant)
            case _:
                return self._on_lane(action, label)
        return "done"

    def _elapse(self) -> Elapse:
        """How much time an ``Advance`` lets pass now: up to the first who waits for it."""
        due = [at for run in self.passes.values() if (at := self.due(run)) is not None]
        first = sorted(each - self.now for each in due if each - self.now <= ADVANCE_MS)
        if len(first) > 1 and first[0] == first[1]:
            return Elapse(0)  # two at a time have no order
        return Elapse(first[0] if first else ADVANCE_MS)

    def _close(self) -> Any:
        was, self.muted = self.phase, self.muted or self.several  # several passes end in no order
        if was == "down":
            return "nothing"
        if was == "open":
            self.phase = "closing"
            ended = dict(self.passes)
            try:
                self.stop_all("SessionClosed", flush=True)
            except Faulted:  # what was to be saved last is not, which keeps no session open
                self.passes = ended
                self.stop_all("SessionFaulted", flush=False)
        self.phase = "down"
        self.take_left_over()
        return "closed"

    def _held(self, action: Held) -> Any:
        """Each call as it would be alone; held before the write, nothing of it survives a kill."""
        outcomes = []
        kept = self.disk
        self.muted = action.hold == "before_write"  # one transaction may take all of them
        for call in action.calls:
            if action.hold == "before_write" and not self._accepts(call):
                outcomes.append(("refused", "UnknownEntry"))
            elif self.phase == "faulted":
                outcomes.append(("refused", "SessionFaulted"))
            elif not (action.kill and action.hold == "before_write"):
                outcomes.append(self._guarded(lambda call=call: self._direct(call)))  # type: ignore[misc]
        self.muted = False
        if action.kill:
            self.disk = kept if action.hold == "before_write" else self.disk
            raise Died("held")
        return outcomes

    def _accepts(self, call: Direct) -> bool:
        entry = getattr(call, "entry", None)
        return entry is None or entry < len(self.disk.entries)

    def _direct(self, call: Direct) -> Any:
        match call:
            case SetValue(key, value):
                self.set_value(f"v{key}", value)
            case Append(key, value):
                self.append(f"l{key}", value)
            case SetName(text):
                self.set_name(text)
            case SetLabel(entry, text):
                self.set_label(entry, text)
            case Adjust(cost, op, entry):
                self.adjust(cost, None if op is None else f"op-{op}", entry)
        return "done"

    def _on_lane(self, action: Action, label: str) -> Any:
        lane = self._lane(action.lane)  # type: ignore[union-attr]
        self.make_lane(lane, None)
        current = self.disk.lanes[lane].current
        match action:
            case Accept(_, prompt, op, handle):
                return self.accept(lane, self._id(op), prompt % len(self.prompts), handle)
            case Run(_, prompt, op, handle):
                id = self._id(op)
                self.accept(lane, id, prompt % len(self.prompts), handle)
                self.drive(Observer(label, lane, True), id, handle)
            case Drive(_, op, wait, handle, answers):
                self.drive(Observer(label, lane, wait, answers), None if op is None else f"op-{op}", handle)
            case Resume():
                if current is None:
                    self.finished.append((label, ("nothing",)))
                else:
                    self.drive(Observer(label, lane, True), current, self.disk.kin.get(call_on(lane), 0))
            case Compact() | Leave():
                return self.summarize(lane, action, label)
            case Say() | Submit() | CancelQueued():
                return self.talk(lane, action)
            case Decide():
                return self.decide(lane, action)
            case Retry(_, of, op, same_keys, handle):
                id, settled = None if op is None else f"op-{op}", None if of is None else f"op-{of}"
                return self.retry(lane, settled, id, handle, same_keys=same_keys)
            case Deliver():
                return self.deliver(lane, action)
            case Answer():
                return self.answer(lane, action)
            case LeaveDrive():
                return "left" if self.leave(lane) else "nobody"
            case Abort(_, op):
                return self.abort(lane, (current or NO_SUCH) if op is None else f"op-{op}")
            case Result(_, op):
                return ("result", self.result(lane, f"op-{op}"))
            case Configure(_, model, tools, settings, handle):
                self.configure(
                    lane,
                    handle,
                    model,
                    None if tools is None else TOOL_CHOICES[tools],
                    None if settings is None else SETTINGS[settings],
                )
                return "done"
            case _:
                raise AssertionError(f"{action} is no step of a lane")
        return "started"

    def _on_lane_of_call(self, step: Any) -> Any:
        calls = list(self.disk.kin.items())
        if not calls:
            return replace(step, lane=0)
        number = len(calls) - 1 - (step.lane - FROM_NEWEST) % len(calls)
        handle = {"handle": calls[number][1]} if hasattr(step, "handle") else {}
        return replace(step, lane=FROM_OLDEST + number, **handle)

    def _unsettled_beside(self, lane: str, op: int | None) -> bool:
        current = self.disk.lanes[lane].current if lane in self.disk.lanes else None
        if current is None or (op is not None and current != f"op-{op}"):
            return False
        return unsettled_beside(self.disk, self.disk.ops[current], list(self.passes))

    def _lane(self, lane: int) -> str:
        return LANES[lane] if lane < FROM_OLDEST else lane_of(list(self.disk.kin)[lane - FROM_OLDEST])

    def _id(self, op: int | None) -> str:
        return self.new_id() if op is None else f"op-{op}"


def is_drive(action: Action) -> bool:
    """Whether the action begins to drive, which ends when it ends."""
    return isinstance(action, Drive | Run | Resume) or (isinstance(action, Compact | Leave) and action.driven)
