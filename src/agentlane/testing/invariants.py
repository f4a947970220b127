"""The invariants of the design as numbered predicates: over an open session, and over a recorded trace.

Each violation is a line that begins with its number. ``check_invariants`` speaks of what a session holds:

    I1   ids of entries and usage rows are unique; each entry's parent is an earlier entry
    I3   at most one open operation per lane; its ``op.*`` and ``pending.*`` exist exactly while it is open
    I4   a reserved id is used only for what its intent named; a payload has one place at a time
    I5   every call of an answer that settled to run its calls has one result, in order; placed calls are a prefix
    I8   an operation is open or has one terminal record, never both
    I9   stats equal the ledger
    I10  what a model would be shown of any branch pairs calls and results
    I11  each tip is an entry of the session
    I12  without ``op.*``, ``pending.*`` and ``inbox/*`` and with idle lanes, a valid conversation is left

``check_trace`` speaks of histories and effects:

    I1   an id is written once; what is stored is what was written (with a session)
    I2   commits are all or none (with a session); sequence numbers grow strictly
    I6   no effect precedes its intent, and an intent starts its effect at most once; a call that waits for a person is
         let go by that person's answer alone
    I7   a call marked ``never`` starts at most once
    I8   one terminal record per operation, and under a committed abort it says ``aborted``
    I11  a tip moves only to an entry appended in the same commit, or by navigation to one that was there before
    I15  (``check_nothing_written``) recovery with nothing to do, and opening, write nothing

Call them while nothing is under way. They need nothing but the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from agentlane.clock import SystemClock
from agentlane.data import addresses, codec
from agentlane.data.approvals import Decision
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, ToolCallPart, ToolResultMessage
from agentlane.data.operations import (
    Approved,
    CallState,
    EffectGranted,
    EffectPending,
    Generating,
    LaneState,
    OperationMeta,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    ReplayPolicy,
    Tools,
    WaitingApproval,
    WaitingExternal,
)
from agentlane.data.usage import UsageTotals
from agentlane.data.writes import Address, DeleteValue, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import AgentLaneError, LaneBusy
from agentlane.ids import call_id, usage_id
from agentlane.machine.context import ModelContext
from agentlane.session import Session
from agentlane.storage.contract import EntryRow, LedgerRow, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.decoded import entry_of, state_of
from agentlane.testing.invariants_inbox import LEFT_BEHIND, InboxSnapshot
from agentlane.testing.pair import check_pairing
from agentlane.testing.trace import Began, Committed, Opened, Submitted, Trace

OPERATION_VALUES = ("op.meta", "op.config", "op.state", "op.args", "op.memo", "op.returned", "op.prep", "op.decision")
PENDING_VALUES = ("pending.entry", "pending.output", "pending.approval")
KEPT_VALUES = ("branch.tip", "lane.config", "lane.state", "result", "receipt", "session.name", "label")
READINGS_MAX = 10
"""How often a session that moves is read before a check is given up."""


async def check_invariants(session: Session | SessionStorage, *, held: bool = False) -> list[str]:
    """Every violation of I1, I3, I4, I5, I8, I9, I10, I11 and I12 by what the session holds; empty when it is sound.

    It takes several reads, so it is for a session at rest: a commit between two of them may look like a violation. What
    looks like one is therefore read again until two readings agree; ``LaneBusy`` is raised for a session that is
    written so much that they never do: await its drives first, or hold them up.

    ``held`` says that an agent of the session has ``after_tool`` hooks, so that an outcome may wait for them to be
    placed; without it a staged outcome that is next is one that was forgotten.
    """
    storage = session._runtime.storage if isinstance(session, Session) else session
    snapshot = await _Snapshot.read(storage, held=held)
    for _ in range(READINGS_MAX):
        found = snapshot.violations() or await _without_operations(snapshot)
        if not found:
            return []
        before, snapshot = snapshot, await _Snapshot.read(storage, held=held)
        if snapshot.holds() == before.holds():
            return found
    raise LaneBusy(
        f"session {storage.info.id!r} was written at each of {READINGS_MAX} readings, and a check is of a session at "
        "rest; await its drives first"
    )


def check_trace(trace: Trace) -> list[str]:
    """Every violation of I1, I2, I6, I7, I8 and I11 that the trace alone shows."""
    return [*_TraceWalk(trace).violations(), *_at_most_once(trace)]


async def check_trace_against(trace: Trace, session: Session | SessionStorage) -> list[str]:
    """Every violation of I1 and I2 by what the session holds of the trace's commits."""
    storage = session._runtime.storage if isinstance(session, Session) else session
    rows = {row.id: row for row in await storage.scan()}
    ledger = {row.row.id: row for row in await storage.usage()}
    reported = {each.number for each in trace.events if isinstance(each, Committed)}
    commits = [each for each in trace.events if isinstance(each, Submitted) and each.session_id == storage.info.id]
    made = Counter(_insert_id(write) for each in commits for write in _inserts(each))
    found: list[str] = []
    for commit in commits:
        inserts = _inserts(commit)
        there = [_insert_id(write) in rows or _insert_id(write) in ledger for write in inserts]
        if commit.number not in reported:
            # Ids that it had reserved may have been used since, by another commit.
            own = [each and made[_insert_id(write)] == 1 for each, write in zip(there, inserts, strict=True)]
            if any(own) and not all(there):
                found.append(f"I2: commit {commit.number} ({commit.name}) is there in part")
            continue
        if not all(there):
            found.append(f"I2: commit {commit.number} ({commit.name}) was reported and is not there")
        for write in inserts:
            row = rows.get(_insert_id(write))
            if isinstance(write, InsertEntry) and row is not None and _differs(row, write):
                found.append(f"I1: entry {write.id} is not what commit {commit.number} wrote")
    return found


def check_nothing_written(trace: Trace, *, since: int) -> list[str]:
    """Violations of I15: commits that were handed over in the trace from its ``since``-th event on."""
    return [
        f"I15: {each.name} was written where there was nothing to do"
        for each in trace.events[since:]
        if isinstance(each, Submitted)
    ]


# A session.


class _Snapshot:
    """Everything that the predicates look at, read once."""

    def __init__(self, storage: SessionStorage, *, held: bool = False) -> None:
        self.storage = storage
        self.held = held
        self.entries: list[Entry] = []
        self.by_id: dict[str, Entry] = {}
        self.ledger: list[LedgerRow] = []
        self.values: dict[str, dict[str, bytes]] = {}
        self.frames: list[str] = []
        self.tips: dict[str, str | None] = {}
        self.lanes: dict[str, LaneState] = {}
        self.metas: dict[str, OperationMeta] = {}
        self.states: dict[str, OperationState] = {}
        self.inbox: InboxSnapshot

    @classmethod
    async def read(cls, storage: SessionStorage, *, held: bool = False) -> _Snapshot:
        self = cls(storage, held=held)
        for row in await storage.scan():
            self.entries.append(entry_of(row))
        self.by_id = {entry.id: entry for entry in self.entries}
        self.ledger = await storage.usage()
        for namespace in (*OPERATION_VALUES, *PENDING_VALUES, *KEPT_VALUES, "inbox"):
            self.values[namespace] = await storage.values(namespace)
        self.frames = await storage.lists(addresses.PENDING_FRAMES)
        tips = self.values["branch.tip"]
        self.tips = {name: codec.OPTIONAL_TEXT.decode(payload, name) for name, payload in tips.items()}
        self.lanes = {name: codec.LANE_STATE.decode(each, name) for name, each in self.values["lane.state"].items()}
        self.inbox = InboxSnapshot(self.values, self.by_id)
        self.metas = {id: codec.META.decode(payload, id) for id, payload in self.values["op.meta"].items()}
        self.states = {id: state_of(payload) for id, payload in self.values["op.state"].items()}
        return self

    def holds(self) -> tuple[object, ...]:
        """All that was read: equal in two snapshots if nothing was written between, for states never come again."""
        return [entry.id for entry in self.entries], self.ledger, self.values, self.frames

    def violations(self) -> list[str]:
        parts = (
            self._ids,
            self._open,
            self._reserved,
            self._waiting,
            self._batches,
            self._ends,
            self._stats,
            self._pairs,
        )
        return [line for part in parts for line in part()]

    def path(self, tip: str | None) -> list[Entry]:
        """From the root to ``tip``; ends early at a parent that is not there."""
        found: list[Entry] = []
        at = tip
        while at is not None and at in self.by_id and len(found) <= len(self.entries):
            found.append(self.by_id[at])
            at = found[-1].parent_id
        return found[::-1]

    def _ids(self) -> Iterator[str]:
        counts = Counter([entry.id for entry in self.entries] + [row.row.id for row in self.ledger])
        yield from (f"I1: id {id} is used {count} times" for id, count in counts.items() if count > 1)
        for entry in self.entries:
            parent = entry.parent_id
            if parent is not None and (parent not in self.by_id or self.by_id[parent].seq >= entry.seq):
                yield f"I1: the parent {parent} of entry {entry.id} is not an earlier entry"
        for name, tip in self.tips.items():
            if tip is not None and tip not in self.by_id:
                yield f"I11: the tip {tip} of branch {name} is no entry"

    def _open(self) -> Iterator[str]:
        held = {state.current: name for name, state in self.lanes.items() if state.current is not None}
        for name in {*self.lanes, *self.values["lane.config"]}:
            if name not in self.lanes or name not in self.values["lane.config"] or name not in self.tips:
                yield f"I3: lane {name} is not whole"
        for name, state in self.lanes.items():
            if state.current is not None and state.current not in self.metas:
                yield f"I3: lane {name} names operation {state.current}, which is not open"
        for id, meta in self.metas.items():
            if held.get(id) != meta.lane:
                yield f"I3: operation {id} of lane {meta.lane} is open and its lane does not name it"
            for namespace in ("op.config", "op.state"):
                if id not in self.values[namespace]:
                    yield f"I3: operation {id} is open without {namespace}"
        owned = [(space, key) for space in (*OPERATION_VALUES, "pending.output") for key in self.values[space]]
        owned += [(addresses.PENDING_FRAMES, key) for key in self.frames]
        for space, key in owned:
            if key.split("|")[0] not in self.metas:
                yield f"I3: {space}/{key} outlived its operation"

    def _reserved(self) -> Iterator[str]:
        ledger = {row.row.id for row in self.ledger}
        staged, memos, outputs, frames = set[str](), set[str](), set[str](), set[str]()
        asked: dict[str, str] = {}
        batches = set[str]()
        for id, state in self.states.items():
            if isinstance(state, Generating):
                frames.add(f"{id}|{state.response_id}")
                if state.response_id in self.by_id or usage_id(state.response_id) in ledger:
                    yield f"I4: the reserved answer {state.response_id} of operation {id} is there already"
            if not isinstance(state, Tools):
                continue
            for index, call in enumerate(state.calls):
                reserved = call_id(state.answer, index)
                if isinstance(call, Placed) != (reserved in self.by_id):
                    yield f"I4: call {reserved} is {type(call).__name__}, and its result is {reserved in self.by_id}"
                if isinstance(call, OutcomeReady):
                    staged.add(reserved)
                batches.add(f"{id}|{reserved}")
                if isinstance(call, EffectPending | WaitingApproval | WaitingExternal) and call.attempt:
                    outputs.add(f"{id}|{reserved}")
                    memos.add(f"{id}|{reserved}")
                if isinstance(call, WaitingApproval) and state.cancel_requested_at is None:
                    asked[call.approval] = reserved
        inbox = self.inbox.queued
        for key in self.values["pending.entry"]:
            if key in self.by_id:
                yield f"I4: entry {key} is placed and pending at once"
            elif key not in staged | inbox:
                yield f"I4: pending entry {key} is neither queued nor the staged result of a call"
        for key in (staged | inbox) - set(self.values["pending.entry"]):
            yield f"I4: the content of {key} is nowhere"
        for key in set(self.values["pending.output"]) - outputs:
            yield f"I4: pending.output/{key} of no running call"
        for key in self.values["op.memo"]:
            if key.rsplit("|", 1)[0] not in memos:
                yield f"I4: op.memo/{key} of no running call"
        for key in set(self.values["op.args"]) - batches:
            yield f"I4: op.args/{key} of no call of an open batch"
        questions = self.values["pending.approval"]
        about = {key: codec.APPROVAL.decode(payload, key).call_id for key, payload in questions.items()}
        if about != asked:
            yield f"I4: approvals are open of {about}, and calls wait for {asked}"
        yield from (f"I4: frames {key} of no open request" for key in set(self.frames) - frames)

    def _waiting(self) -> Iterator[str]:
        return self.inbox.violations([id for id, each in self.states.items() if each.cancel_requested_at is not None])

    def _batches(self) -> Iterator[str]:
        children: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.parent_id is not None:
                children.setdefault(entry.parent_id, []).append(entry)
        open_answers = {state.answer: state for state in self.states.values() if isinstance(state, Tools)}
        settled = {row.row.entry_id for row in self.ledger if row.row.kind == "attempt"}
        for entry in self.entries:
            body = entry.body
            if isinstance(body, AssistantMessage) and body.calls and body.stop_reason not in ("error", "aborted"):
                yield from self._results(entry.id, body.calls, children)
                batch = open_answers.get(entry.id)
                if batch is not None:
                    yield from _prefix(entry.id, batch, len(body.calls), held=self.held)
                elif entry.id in settled:
                    missing = [i for i in range(len(body.calls)) if call_id(entry.id, i) not in self.by_id]
                    if missing:
                        yield f"I5: calls {missing} of answer {entry.id} have no result and nobody will give one"
        for lane, state in ((m.lane, self.states.get(id)) for id, m in self.metas.items()):
            if isinstance(state, Tools) and state.answer not in {each.id for each in self.path(self.tips.get(lane))}:
                yield f"I5: lane {lane} runs the calls of {state.answer}, which is not on its path"

    def _results(self, answer: str, calls: Sequence[ToolCallPart], children: dict[str, list[Entry]]) -> Iterator[str]:
        """On every path behind an answer: one result per call, in order, before anything else."""
        todo: list[tuple[str, int]] = [(answer, 0)]
        while todo:
            at, index = todo.pop()
            for entry in children.get(at, ()):
                body = entry.body
                if index >= len(calls):
                    if isinstance(body, ToolResultMessage):
                        yield f"I5: result {entry.id} behind answer {answer} is one too many"
                elif not isinstance(body, ToolResultMessage):
                    if isinstance(body, AssistantMessage) or entry.type == "message":
                        yield f"I5: {entry.id} goes on past answer {answer} before its call {index} has a result"
                    else:
                        todo.append((entry.id, index))
                elif (body.call_id, body.name) != (calls[index].id, calls[index].name):
                    yield f"I5: result {entry.id} stands where call {index} of answer {answer} has its own"
                else:
                    todo.append((entry.id, index + 1))

    def _ends(self) -> Iterator[str]:
        for id in set(self.metas) & set(self.values["result"]):
            yield f"I8: operation {id} is open and has a terminal record"
        for id, payload in self.values["result"].items():
            record = codec.RESULT.decode(payload, id)
            if record.operation_id != id:
                yield f"I8: the record of {id} is that of {record.operation_id}"
            if record.to_tip is not None and record.to_tip not in self.by_id:
                yield f"I8: the record of {id} ends at {record.to_tip}, which is no entry"
        for name, state in self.lanes.items():
            if state.last is not None and state.last in self.metas:
                yield f"I8: lane {name} says that operation {state.last} has settled, and it is open"

    def _stats(self) -> Iterator[str]:
        totals = UsageTotals()
        for row in self.ledger:
            totals = totals.plus(row.row)
        stats = self.storage.stats()
        if stats.usage != totals:
            yield f"I9: stats say {stats.usage}, the ledger {totals}"
        if stats.entries != len(self.entries):
            yield f"I9: stats say {stats.entries} entries, there are {len(self.entries)}"

    def _pairs(self) -> Iterator[str]:
        for name, tip in self.tips.items():
            context = ModelContext()
            for entry in self.path(tip):
                context.add(entry.id, entry.body)
            yield from (f"I10: branch {name}: {line}" for line in check_pairing(context.view()))


def _prefix(answer: str, state: Tools, calls: int, *, held: bool) -> Iterator[str]:
    if len(state.calls) != calls:
        yield f"I5: answer {answer} has {calls} calls, its operation's state {len(state.calls)}"
    placed = [isinstance(call, Placed) for call in state.calls]
    if placed != sorted(placed, reverse=True):
        yield f"I5: the placed calls of answer {answer} are no prefix: {placed}"
    if all(placed):
        yield f"I5: all calls of answer {answer} are placed and its batch goes on"
    first = placed.index(False) if False in placed else len(placed)
    if not held and first < len(state.calls) and isinstance(state.calls[first], OutcomeReady):
        yield f"I5: call {first} of answer {answer} is ready and next, and was not placed"


async def _without_operations(snapshot: _Snapshot) -> list[str]:
    """I12, tried out: a copy of what is left in a session of its own, and what is wrong with that."""
    deleted = (*OPERATION_VALUES, *PENDING_VALUES, "inbox")
    if not any(snapshot.values[space] for space in deleted) and all(
        not each.current for each in snapshot.lanes.values()
    ):
        return []  # nothing is deleted, so what is left was looked at already
    try:
        store = MemoryStore(clock=SystemClock())
        storage = await store.open((await store.create("left")).id)
        writes: list[tuple[int, Write]] = []
        for row in await snapshot.storage.scan():
            writes.append((row.seq, InsertEntry(row.id, row.parent_id, row.kind, row.payload)))
        writes += [(row.seq, InsertUsage(row.row)) for row in snapshot.ledger]
        values: list[Write] = []
        for space in KEPT_VALUES:
            for key, payload in snapshot.values[space].items():
                kept = payload
                if space == "lane.state":
                    kept = codec.encode(replace(snapshot.lanes[key], current=None))
                values.append(SetValue(Address(space, key), kept))
        ordered = [write for _, write in sorted(writes, key=lambda each: each[0])]
        if ordered or values:
            storage.submit([*ordered, *values])
        left = await _Snapshot.read(storage)
        # An answer whose operation was deleted may be left without results: the next accept gives them.
        # A receipt of what waited says so still.
        excused = ("nobody will give one", LEFT_BEHIND)
        found = [line for line in left.violations() if not any(each in line for each in excused)]
        for name, tip in snapshot.tips.items():
            if [entry.body for entry in left.path(tip)] != [entry.body for entry in snapshot.path(tip)]:
                found.append(f"branch {name} is another one")
        await store.close()
    except AgentLaneError as error:
        found = [f"nothing can be made of it: {error}"]
    return [f"I12: with its operations deleted: {line}" for line in found]


# A trace.


class _TraceWalk:
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
        for event in self._trace.events:
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
            self._maybe_inserted.update((session_id, _insert_id(write)) for write in _inserts(commit))
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
                id = _insert_id(write)
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
            reachable = commit.name == "navigate" and self._is_there(commit.session_id, tip)
            if before is not None and tip not in (*before, *inserted) and not reachable:
                self._found.append(f"I11: commit {commit.number} ({commit.name}) moved branch {key} to {tip}")
            self._tips[branch] = [tip]

    def _is_there(self, session_id: str, entry: str | None) -> bool:
        known = entry is None or (session_id, entry) in self._inserted or (session_id, entry) in self._maybe_inserted
        return known or session_id in self._older

    def _request(self, event: Began) -> None:
        for state in self._states.get(event.operation_id, ()):
            if isinstance(state, Generating) and state.attempt == event.attempt:
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
        if isinstance(was, WaitingApproval) and isinstance(now, Planned | Approved | EffectPending):
            yes = {decision.approval_id for decision in _decisions(commit) if decision.allow}
            kept = isinstance(now, Approved | EffectGranted) and now.approval == was.approval
            if not kept or was.approval not in yes:
                id = call_id(after.answer, index)
                yield f"I6: commit {commit.number} ({commit.name}) lets call {id} go, and nobody allowed it"


def _decisions(commit: Submitted) -> list[Decision]:
    return [
        codec.DECISION.decode(write.payload, "trace")
        for write in commit.writes
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_DECISION
    ]


def _at_most_once(trace: Trace) -> Iterator[str]:
    starts: dict[tuple[str, int], int] = Counter((each.call_id, each.attempt) for each in trace.effects("call"))
    for (id, attempt), count in starts.items():
        if count > 1:
            yield f"I6: attempt {attempt} of call {id} began {count} times"
    counts = Counter(each.call_id for each in trace.effects("call"))
    for id in sorted(set(_again_though_never(trace))):
        yield f"I7: call {id} must not run again, and began {counts[id]} times"


def _again_though_never(trace: Trace) -> Iterator[str]:
    """Calls that began again behind an intent marked ``never``; one that a close put back never began by it."""
    names = {each.number: each for each in trace.events if isinstance(each, Submitted)}
    policies: dict[str, dict[int, ReplayPolicy]] = {}
    for event in trace.events:
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


def _differs(row: EntryRow, write: InsertEntry) -> bool:
    return (row.parent_id, row.kind, row.payload) != (write.parent_id, write.kind, write.payload)


def _inserts(commit: Submitted) -> list[InsertEntry | InsertUsage]:
    return [write for write in commit.writes if isinstance(write, InsertEntry | InsertUsage)]


def _insert_id(write: InsertEntry | InsertUsage) -> str:
    return write.id if isinstance(write, InsertEntry) else write.row.id
