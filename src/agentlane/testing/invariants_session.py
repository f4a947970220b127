"""The invariants that speak of what a session holds, over one reading of it; part of ``invariants``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from agentlane.clock import SystemClock
from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, ToolCallPart, ToolResultMessage
from agentlane.data.operations import (
    AnsweredCall,
    EffectPending,
    Generating,
    LaneState,
    OperationMeta,
    OperationState,
    OutcomeReady,
    Placed,
    Tools,
    WaitingApproval,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.data.usage import UsageTotals
from agentlane.data.writes import Address, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import AgentLaneError
from agentlane.ids import call_id, usage_id
from agentlane.machine.context import ModelContext
from agentlane.storage.contract import LedgerRow, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.decoded import entry_of, state_of
from agentlane.testing.invariants_family import family_violations
from agentlane.testing.invariants_inbox import LEFT_BEHIND, InboxSnapshot
from agentlane.testing.pair import check_pairing

OPERATION_VALUES = (
    *("op.meta", "op.config", "op.state", "op.args", "op.memo", "op.answer", "op.returned", "op.prep", "op.decision"),
)
_BEGUN = (EffectPending, WaitingApproval, WaitingExternal, WaitingQuestion, AnsweredCall)
PENDING_VALUES = ("pending.entry", "pending.output", "pending.approval")
KEPT_VALUES = ("branch.tip", "lane.config", "lane.state", "result", "receipt", "session.name", "label")


class Snapshot:
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
    async def read(cls, storage: SessionStorage, *, held: bool = False) -> Snapshot:
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
            self._families,
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

    def _families(self) -> Iterator[str]:
        return family_violations(self.metas, self.states, self.values["result"])

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
                if isinstance(call, _BEGUN) and call.attempt:
                    outputs.add(f"{id}|{reserved}")
                    memos.add(f"{id}|{reserved}")
                if isinstance(call, WaitingApproval) and state.cancel_requested_at is None:
                    asked[call.approval] = reserved
                if isinstance(call, WaitingQuestion) and state.cancel_requested_at is None:
                    asked[call.question] = reserved
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
        for space in ("op.memo", "op.answer"):
            for key in self.values[space]:
                if key.rsplit("|", 1)[0] not in memos:
                    yield f"I4: {space}/{key} of no running call"
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


async def without_operations(snapshot: Snapshot) -> list[str]:
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
        left = await Snapshot.read(storage)
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
