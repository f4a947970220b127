"""The invariants that speak of histories and effects, over a recorded trace; part of ``invariants``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agentlane.data import addresses, codec
from agentlane.data.approvals import Decision
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    CallState,
    EffectGranted,
    EffectPending,
    Generating,
    OperationState,
    Planned,
    ReplayPolicy,
    Summarizing,
    Tools,
    WaitingApproval,
    WaitingQuestion,
)
from agentlane.data.writes import DeleteValue, InsertEntry, InsertUsage, SetValue
from agentlane.ids import call_id
from agentlane.testing.decoded import state_of
from agentlane.testing.trace import Began, Committed, Ended, Opened, Submitted, Trace


class TraceWalk:
    """One walk over a trace, with what is committed at each event."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._submitted: dict[int, Submitted] = {}
        self._unknown: dict[int, Submitted] = {}
        self._last_seq: dict[str, int] = {}
        self._tips: dict[tuple[str, str], list[str | None]] = {}
        self._maybe_made: set[tuple[str, str]] = set()
        """Branches whose making was not reported: if it came to nothing, their first tip may still be any."""
        self._states: dict[str, list[OperationState]] = {}
        self._cancelled: set[str] = set()
        self._inserted: dict[tuple[str, str], int] = {}
        self._maybe_inserted: set[tuple[str, str]] = set()
        """What commits without a report were to insert, and then may have."""
        self._older: set[str] = set()
        """Sessions that were written before the trace began, so that it does not know all of their entries."""
        self._results: Counter[str] = Counter()
        self._found: list[str] = []

    def violations(self) -> list[str]:
        for event in self._trace.facts:
            match event:
                case Submitted():
                    self._submitted[event.number] = self._unknown[event.number] = event
                case Committed():
                    self._commit(self._submitted[event.number], event)
                case Opened():
                    self._open(event.session_id)
                case Began(kind="request"):
                    self._request(event)
                case Began(kind="call"):
                    self._call(event)
                case _:
                    self._unknown.pop(getattr(event, "number", 0), None)
        return self._found

    def _open(self, session_id: str) -> None:
        """What the life before submitted and was never told of may have become true."""
        for commit in [each for each in self._unknown.values() if each.session_id == session_id]:
            del self._unknown[commit.number]
            self._maybe_inserted.update((session_id, insert_id(write)) for write in inserts(commit))
            for write in commit.writes:
                if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                    state = state_of(write.payload)
                    self._states.setdefault(write.address.key, []).append(state)
                if isinstance(write, SetValue) and write.address.namespace == addresses.BRANCH_TIP:
                    tip = codec.OPTIONAL_TEXT.decode(write.payload, "trace")
                    key = (session_id, write.address.key)
                    if key not in self._tips:
                        self._maybe_made.add(key)
                    self._tips.setdefault(key, []).append(tip)
                if isinstance(write, DeleteValue) and write.address.namespace == addresses.BRANCH_TIP:
                    self._maybe_made.add((session_id, write.address.key))

    def _commit(self, commit: Submitted, report: Committed) -> None:
        self._unknown.pop(commit.number, None)
        last = self._last_seq.get(commit.session_id, 0)
        if last == 0 and report.first_seq > 1:
            self._older.add(commit.session_id)
        if report.first_seq <= last:
            self._found.append(f"I2: commit {commit.number} ({commit.name}) has seq {report.first_seq} after {last}")
        self._last_seq[commit.session_id] = report.first_seq + len(commit.writes) - 1
        inserted: list[str] = []
        for write in commit.writes:
            if isinstance(write, InsertEntry | InsertUsage):
                id = insert_id(write)
                before = self._inserted.setdefault((commit.session_id, id), commit.number)
                if before != commit.number or id in inserted:
                    self._found.append(f"I1: id {id} is written by commits {before} and {commit.number}")
                inserted.append(id)
            elif isinstance(write, SetValue):
                self._value(commit, write, inserted)
            elif isinstance(write, DeleteValue) and write.address.namespace == addresses.BRANCH_TIP:
                self._tips.pop((commit.session_id, write.address.key), None)

    def _value(self, commit: Submitted, write: SetValue, inserted: list[str]) -> None:
        space, key = write.address
        if space == addresses.OP_STATE:
            state = state_of(write.payload)
            known = self._states.get(key, [])
            if len(known) == 1:
                self._found += _let_go(commit, known[0], state)
            self._states[key] = [state]
            if state.cancel_requested_at is not None:
                self._cancelled.add(key)
        elif space == addresses.RESULT:
            self._results[key] += 1
            status = codec.RESULT.decode(write.payload, "trace").status
            if self._results[key] > 1:
                self._found.append(f"I8: operation {key} has a second terminal record, in commit {commit.number}")
            if key in self._cancelled and status != "aborted":
                self._found.append(f"I8: operation {key} was to be aborted and ended {status}")
        elif space == addresses.BRANCH_TIP:
            tip = codec.OPTIONAL_TEXT.decode(write.payload, "trace")
            branch = (commit.session_id, key)
            before = None if branch in self._maybe_made else self._tips.get(branch)
            self._maybe_made.discard(branch)
            moves = not {"navigate", "navigation"}.isdisjoint(commit.name.split("+"))
            reachable = moves and self._is_there(commit.session_id, tip)
            if before is not None and tip not in (*before, *inserted) and not reachable:
                self._found.append(f"I11: commit {commit.number} ({commit.name}) moved branch {key} to {tip}")
            self._tips[branch] = [tip]

    def _is_there(self, session_id: str, entry: str | None) -> bool:
        known = entry is None or (session_id, entry) in self._inserted or (session_id, entry) in self._maybe_inserted
        return known or session_id in self._older

    def _request(self, event: Began) -> None:
        for state in self._states.get(event.operation_id, ()):
            if isinstance(state, Generating | Summarizing) and state.attempt == event.attempt:
                return
        self._found.append(f"I6: request {event.number} (attempt {event.attempt}) was sent without its intent")

    def _call(self, event: Began) -> None:
        for state in self._states.get(event.operation_id, ()):
            for index, call in enumerate(state.calls) if isinstance(state, Tools) else ():
                named = isinstance(state, Tools) and call_id(state.answer, index) == event.call_id
                if named and isinstance(call, EffectPending) and call.attempt == event.attempt:
                    return
        self._found.append(
            f"I6: call {event.call_id} of {event.name} (attempt {event.attempt}) began without its intent"
        )


def _let_go(commit: Submitted, before: OperationState, after: OperationState) -> Iterator[str]:
    """Calls that waited for a person and may start by this commit, without a yes in it."""
    if not isinstance(before, Tools) or not isinstance(after, Tools) or before.answer != after.answer:
        return
    for index, (was, now) in enumerate(zip(before.calls, after.calls, strict=True)):
        id = call_id(after.answer, index)
        yes = {decision.approval_id for decision in _decisions(commit) if decision.allow}
        if isinstance(was, WaitingApproval) and isinstance(now, Planned | Approved | EffectPending):
            kept = isinstance(now, Approved | EffectGranted) and now.approval == was.approval
            if not kept or was.approval not in yes:
                yield f"I6: commit {commit.number} ({commit.name}) lets call {id} go, and nobody allowed it"
        answered = isinstance(now, AnsweredCall) and isinstance(was, WaitingQuestion) and was.question in yes
        may_start = isinstance(now, Planned | Approved | EffectPending | AnsweredCall)
        if isinstance(was, WaitingQuestion) and may_start and not answered:
            yield f"I6: commit {commit.number} ({commit.name}) lets call {id} go, and nobody answered it"


def _decisions(commit: Submitted) -> list[Decision]:
    return [
        codec.DECISION.decode(write.payload, "trace")
        for write in commit.writes
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_DECISION
    ]


def at_most_once(trace: Trace) -> Iterator[str]:
    never = {each.number for each in trace.facts if isinstance(each, Ended) and not each.begun}
    starts: dict[tuple[str, int], int] = Counter(
        (each.call_id, each.attempt) for each in trace.effects("call") if each.number not in never
    )
    for (id, attempt), count in starts.items():
        if count > 1:
            yield f"I6: attempt {attempt} of call {id} began {count} times"
    counts = Counter(each.call_id for each in trace.effects("call"))
    for id in sorted(set(_again_though_never(trace))):
        yield f"I7: call {id} must not run again, and began {counts[id]} times"


def _again_though_never(trace: Trace) -> Iterator[str]:
    """Calls that began again behind an intent marked ``never``; one that a close put back never began by it."""
    names = {each.number: each for each in trace.facts if isinstance(each, Submitted)}
    policies: dict[str, dict[int, ReplayPolicy]] = {}
    for event in trace.facts:
        if isinstance(event, Committed):
            for id, call in _calls_of(names[event.number]):
                if isinstance(call, EffectPending):
                    policies.setdefault(id, {})[call.attempt] = call.policy
                elif isinstance(call, Planned | Approved):
                    policies.pop(id, None)
        elif isinstance(event, Began) and event.kind == "call":
            known = policies.setdefault(event.call_id, {})
            before = [policy for attempt, policy in known.items() if attempt < event.attempt]
            if "never" in before or (event.policy == "never" and event.attempt > 1):
                yield event.call_id
            known.setdefault(event.attempt, event.policy or "never")


def _calls_of(commit: Submitted) -> Iterator[tuple[str, CallState]]:
    for write in commit.writes:
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
            state = state_of(write.payload)
            if isinstance(state, Tools):
                yield from ((call_id(state.answer, index), call) for index, call in enumerate(state.calls))


def inserts(commit: Submitted) -> list[InsertEntry | InsertUsage]:
    return [write for write in commit.writes if isinstance(write, InsertEntry | InsertUsage)]


def insert_id(write: InsertEntry | InsertUsage) -> str:
    return write.id if isinstance(write, InsertEntry) else write.row.id
