"""The open operations of a session as they are stored, and what must hold between them, their lanes and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentlane.data import addresses
from agentlane.data.approvals import Approval
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import (
    AnsweredCall,
    EffectPending,
    Generating,
    LaneConfig,
    LaneState,
    Navigating,
    OperationConfig,
    OperationMeta,
    OperationState,
    OutcomeReady,
    Placed,
    Summarizing,
    SummaryPrep,
    SummaryWait,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.data.records.conversation import NOWHERE, Conversation
from agentlane.data.records.faults import Faults
from agentlane.data.records.inbox import InboxRecords, PendingBody
from agentlane.data.results import OperationResult
from agentlane.ids import call_id, usage_id

PARTS = (
    *(addresses.OP_CONFIG, addresses.OP_STATE, addresses.OP_ARGS, addresses.OP_MEMO, addresses.OP_ANSWER),
    *(addresses.OP_DECISION, addresses.OP_RETURNED, addresses.OP_PREP, addresses.PENDING_OUTPUT),
)
"""Namespaces of values whose key begins with the operation that they are of."""


class LaneEnd(NamedTuple):
    """What the terminal records of a lane say: the newest entry that one names, by its row, and which was the last."""

    row: int
    ended_at: int
    last: str
    agent: str


NO_END = LaneEnd(NOWHERE, -(1 << 62), "", "")
_BEGUN = (EffectPending, WaitingApproval, WaitingExternal, WaitingQuestion, AnsweredCall)


def owner_of(key: str) -> str:
    """The operation that a key in one of ``PARTS`` begins with."""
    return key.partition("|")[0]


class OperationRecords:
    """What is stored of lanes and their open operations: as much of it as can be read."""

    def __init__(self, conversation: Conversation, faults: Faults) -> None:
        self._conversation = conversation
        self._faults = faults
        self.tips: dict[str, str | None] = {}
        self.lanes: dict[str, LaneState] = {}
        self.lane_configs: dict[str, LaneConfig] = {}
        self.metas: dict[str, OperationMeta] = {}
        self.configs: dict[str, OperationConfig] = {}
        self.states: dict[str, OperationState] = {}
        self.preps: dict[str, SummaryPrep] = {}
        """By their key: the operation, and the entry that the summary will be."""
        self.parts: dict[str, list[str]] = {space: [] for space in PARTS}
        """Keys by namespace, also of what cannot be read."""
        self.frames: list[str] = []
        self.approvals: dict[str, Approval] = {}
        self.pending: dict[str, PendingBody | None] = {}
        """What is pending under each entry id; None if it cannot be read."""
        self.settled: set[str] = set()
        """Operations that have a terminal record."""
        self.misnamed: set[str] = set()
        """Those whose terminal record is that of another operation."""
        self.ends: dict[str, LaneEnd] = {}
        """What the terminal records say of each lane."""
        self.lost_ends: dict[str, tuple[str, str]] = {}
        """Entries that a terminal record ends at and that are not there, by the operation, with its lane."""
        self.unreadable: set[tuple[str, str]] = set()
        """Addresses of values that are there and cannot be read."""

    @property
    def running(self) -> dict[str, tuple[str, Tools]]:
        """The answers whose calls are being run, with the operation and its state.

        Where the states of several name one answer, all but one are damaged: it is run on the lane that it is on.
        """
        found: dict[str, tuple[str, Tools]] = {}
        for id, state in self._batches():
            if state.answer not in found or self._is_on_its_lane(id, state.answer):
                found[state.answer] = (id, state)
        return found

    def _is_on_its_lane(self, operation: str, entry: str) -> bool:
        meta = self.metas.get(operation)
        return meta is not None and entry in self._conversation.path(self.tips.get(meta.lane))

    @property
    def cancelled(self) -> set[str]:
        """The operations that are to be aborted."""
        return {id for id, state in self.states.items() if state.cancel_requested_at is not None}

    def take_result(self, id: str, result: OperationResult) -> None:
        """A terminal record; all entries were taken by now."""
        self.settled.add(id)
        entries = self._conversation
        if result.operation_id != id:
            text = f"the record of {id} is that of {result.operation_id}"
            self._faults.add("bad_result", f"result/{id}", text)
            self.misnamed.add(id)
            return
        if result.to_tip is not None and result.to_tip not in entries:
            text = f"the record of {id} ends at {result.to_tip}, which is no entry"
            self._faults.add("bad_result", f"result/{id}", text)
            self.lost_ends[id] = (result.lane, result.to_tip)
        known = self.ends.get(result.lane, NO_END)
        names = (result.to_tip, result.answer, *reversed(result.inputs), result.from_tip)
        anchor = max((entries.rows.get(name, NOWHERE) for name in names if name is not None), default=NOWHERE)
        newer = (result.ended_at, id) > (known.ended_at, known.last)
        self.ends[result.lane] = LaneEnd(
            row=max(anchor, known.row),
            ended_at=result.ended_at if newer else known.ended_at,
            last=id if newer else known.last,
            agent=result.agent if newer else known.agent,
        )

    def check(self, inbox: InboxRecords, usage_ids: set[str]) -> None:
        """Look at everything, once all of it was taken."""
        self._check_tips()
        self._check_lanes()
        self._check_parts()
        self._check_children()
        self._check_reserved(inbox, usage_ids)
        self._check_summaries(usage_ids)
        self._check_inputs()
        self._check_targets()

    def _fault(self, operation: str, text: str) -> None:
        self._faults.add("half_operation", f"op.meta/{operation}", text, operation)

    def _check_tips(self) -> None:
        for name, tip in self.tips.items():
            if tip is not None and tip not in self._conversation:
                text = f"the tip {tip} of branch {name} is no entry"
                self._faults.add("missing_entry", f"branch.tip/{name}", text)

    def _check_lanes(self) -> None:
        held = {(state.current, name) for name, state in self.lanes.items()}
        for name in {*self.lanes, *self.lane_configs}:
            if name not in self.lanes or name not in self.lane_configs or name not in self.tips:
                self._faults.add("half_lane", f"lane.state/{name}", f"lane {name} is not whole")
        for name, state in self.lanes.items():
            if state.current is not None and state.current not in self.metas:
                self._fault(state.current, f"lane {name} names operation {state.current}, which is not open")
            elif state.current is not None and self.metas[state.current].lane != name:
                text = f"lane {name} names operation {state.current}, which is open on another lane"
                self._faults.add("wrong_lane", f"lane.state/{name}", text)
            if state.last is not None and state.last in self.metas:
                text = f"lane {name} says that operation {state.last} has settled, and it is open"
                self._faults.add("settled_twice", f"lane.state/{name}", text, state.last)
        for id, meta in self.metas.items():
            if (id, meta.lane) not in held:
                text = f"operation {id} of lane {meta.lane} is open and its lane does not name it"
                self._faults.add("unheld_operation", f"op.meta/{id}", text, id)
            for namespace in (addresses.OP_CONFIG, addresses.OP_STATE):
                if id not in self.parts[namespace]:
                    self._fault(id, f"operation {id} is open without {namespace}")
            if id in self.settled:
                text = f"operation {id} is open and has a terminal record"
                self._faults.add("settled_twice", f"result/{id}", text, id)

    def _check_parts(self) -> None:
        owned = [(space, key) for space in PARTS for key in self.parts[space]]
        owned += [(addresses.PENDING_FRAMES, key) for key in self.frames]
        for space, key in owned:
            id = owner_of(key)
            if id in self.metas:
                continue
            text = f"{space}/{key} outlived its operation"
            if space in (addresses.OP_CONFIG, addresses.OP_STATE):
                self._faults.add("half_operation", f"{space}/{key}", text, id)
            else:
                self._faults.add("outlived", f"{space}/{key}", text)

    def _check_children(self) -> None:
        """Calls that are runs of other agents, and those runs. # I3"""
        waiting = {id: parent for parent, state in self.states.items() for id in _children(state)}
        cancelled = self.cancelled
        for id, meta in self.metas.items():
            call = meta.parent_call
            if call is None:
                continue
            if waiting.get(id) != call.operation_id:
                text = f"operation {id} is open for a call of operation {call.operation_id}, which does not wait for it"
                self._child(id, text)
            parent = self.metas.get(call.operation_id)
            if parent is not None and parent.lane != call.lane:
                text = f"operation {id} is open for a call on lane {call.lane}, and that is on lane {parent.lane}"
                self._child(id, text)
        for id, parent_id in waiting.items():
            child = self.metas.get(id)
            if child is None:
                if id not in self.settled:
                    text = f"call {id} of operation {parent_id} waits for a run that is neither open nor has ended"
                    self._child(parent_id, text)
            elif child.parent_call is None:
                text = f"call {id} of operation {parent_id} waits for a run that is open for no call"
                self._child(parent_id, text)
            elif parent_id in cancelled and id not in cancelled:
                self._child(id, f"operation {parent_id} is to be aborted, and the run {id} of its call is not")

    def _child(self, operation: str, text: str) -> None:
        self._faults.add("child_run", f"op.meta/{operation}", text, operation)

    def _check_reserved(self, inbox: InboxRecords, usage_ids: set[str]) -> None:
        """Ids that are reserved, and content that waits for its place, are where they belong. # I4"""
        entries, faults = self._conversation, self._faults
        staged, sides, asked, frames, calls = dict[str, str](), set[str](), dict[str, str](), set[str](), set[str]()
        for id, state in self.states.items():
            if isinstance(state, Generating):
                frames.add(f"{id}|{state.response_id}")
                if state.response_id in entries or usage_id(state.response_id) in usage_ids:
                    text = f"the reserved answer {state.response_id} of operation {id} is there already"
                    faults.add("reserved_id", f"entry {state.response_id}", text, id)
            if not isinstance(state, Tools):
                continue
            for index, call in enumerate(state.calls):
                reserved = call_id(state.answer, index)
                if isinstance(call, Placed) != (reserved in entries):
                    text = f"call {reserved} is {type(call).__name__}, and its result is {reserved in entries}"
                    faults.add("reserved_id", f"entry {reserved}", text, id)
                if isinstance(call, OutcomeReady):
                    staged[reserved] = id
                calls.add(f"{id}|{reserved}")
                if isinstance(call, _BEGUN) and call.attempt:
                    sides.add(f"{id}|{reserved}")
                question = _question_of(call)
                if question and state.cancel_requested_at is None:
                    asked[question] = reserved
        self._check_pending(staged, inbox)
        self._check_sides(sides, calls, frames)
        self._check_asked(asked)

    def _check_summaries(self, usage_ids: set[str]) -> None:
        """A summary that is being made has its preparation, and the ids that it will have are free. # I4"""
        wanted = set[str]()
        for id, state in self.states.items():
            if not isinstance(state, Summarizing | SummaryWait):
                continue
            key = f"{id}|{state.task}"
            wanted.add(key)
            if key not in self.parts[addresses.OP_PREP]:
                self._fault(id, f"operation {id} makes the summary {state.task} without {addresses.OP_PREP}")
            rows = {state.task, usage_id(state.response_id)} if isinstance(state, Summarizing) else {state.task}
            if state.task in self._conversation or rows & usage_ids:
                text = f"the reserved summary {state.task} of operation {id} is there already"
                self._faults.add("reserved_id", f"entry {state.task}", text, id)
        for key in self.parts[addresses.OP_PREP]:
            if key not in wanted:
                self._side(addresses.OP_PREP, key, "of no summary that is being made")

    def _check_pending(self, staged: dict[str, str], inbox: InboxRecords) -> None:
        faults = self._faults
        queued = inbox.queued
        for key, body in self.pending.items():
            if key in self._conversation:
                text = f"entry {key} is placed and pending at once"
                faults.add("reserved_id", f"pending.entry/{key}", text, staged.get(key))
            elif key not in staged and key not in queued:
                text = f"pending entry {key} is neither queued nor the staged result of a call"
                faults.add("left_over", f"pending.entry/{key}", text)
            elif key in staged and body is not None and body.type is not ToolResultMessage:
                text = f"the staged result {key} is a {body.type.__name__}"
                faults.add("missing_content", f"pending.entry/{key}", text, staged[key])
            elif key in staged and body is None:
                text = f"the staged result {key} cannot be read"
                faults.add("missing_content", f"pending.entry/{key}", text, staged[key])
        for key in sorted({*staged, *queued} - set(self.pending)):
            text = f"the content of {key} is nowhere"
            faults.add("missing_content", f"pending.entry/{key}", text, staged.get(key))

    def _check_sides(self, sides: set[str], calls: set[str], frames: set[str]) -> None:
        for key in self.parts[addresses.PENDING_OUTPUT]:
            if key not in sides:
                self._side(addresses.PENDING_OUTPUT, key, "of no running call")
        for space in (addresses.OP_MEMO, addresses.OP_ANSWER):
            for key in self.parts[space]:
                if key.rsplit("|", 1)[0] not in sides:
                    self._side(space, key, "of no running call")
        for key in self.parts[addresses.OP_ARGS]:
            if key not in calls:
                self._side(addresses.OP_ARGS, key, "of no call of an open batch")
        for key in self.frames:
            if key not in frames:
                self._side(addresses.PENDING_FRAMES, key, "of no open request")

    def _side(self, space: str, key: str, text: str) -> None:
        if owner_of(key) in self.metas:  # else it was told of already
            self._faults.add("left_over", f"{space}/{key}", f"{space}/{key} {text}", owner_of(key))

    def _check_asked(self, asked: dict[str, str]) -> None:
        about = {key: approval.call_id for key, approval in self.approvals.items()}
        for key, each in self.approvals.items():
            meta = self.metas.get(each.operation_id)
            if each.approval_id != key or meta is None or meta.lane != each.lane:
                text = f"the approval {key} is that of {each.approval_id}, or of another operation or lane"
                self._faults.add("approval", f"pending.approval/{key}", text, each.operation_id)
        if about == asked:
            return
        text = f"approvals are open of {about}, and calls wait for {asked}"
        owners = {call_id(state.answer, i): id for id, state in self._batches() for i in range(len(state.calls))}
        for key in sorted({key for key in {*about, *asked} if about.get(key) != asked.get(key)}):
            approval = self.approvals.get(key)
            owner = owners.get(asked.get(key, "")) or (approval.operation_id if approval is not None else None)
            self._faults.add("approval", f"pending.approval/{key}", text, owner)

    def _batches(self) -> Iterator[tuple[str, Tools]]:
        return ((id, state) for id, state in self.states.items() if isinstance(state, Tools))

    def _check_inputs(self) -> None:
        """What an open operation goes on from is on the path of its lane. # I5"""
        preps: dict[str, list[tuple[str, SummaryPrep]]] = {}
        for key, prep in self.preps.items():
            preps.setdefault(owner_of(key), []).append((f"{addresses.OP_PREP}/{key}", prep))
        for id, meta in self.metas.items():
            wanted: dict[str, tuple[str, str]] = {}
            if meta.inputs:
                wanted[meta.inputs[0]] = (f"op.meta/{id}", f"operation {id} began with the entry {meta.inputs[0]}")
            for place, prep in preps.get(id, ()):
                for entry in filter(None, (prep.tip, prep.kept_from)):
                    wanted[entry] = (place, f"the summary of operation {id} is prepared from the entry {entry}")
            state = self.states.get(id)
            if isinstance(state, Tools):
                wanted[state.answer] = (f"op.state/{id}", f"lane {meta.lane} runs the calls of {state.answer}")
            for entry in self._conversation.path(self.tips.get(meta.lane)):
                wanted.pop(entry, None)
                if not wanted:
                    break
            for place, text in wanted.values():
                self._faults.add("missing_input", place, f"{text}, which is not on the path of its lane", id)

    def _check_targets(self) -> None:
        """Where a navigation goes there is an entry. # I11"""
        targets = [(f"{addresses.OP_PREP}/{key}", owner_of(key), prep.target) for key, prep in self.preps.items()]
        for id, meta in self.metas.items():
            state = self.states.get(id)
            if meta.navigate is not None:
                targets.append((f"op.meta/{id}", id, meta.navigate.to))
            if isinstance(state, Navigating):
                targets.append((f"op.state/{id}", id, state.target))
        for place, id, target in targets:
            if target is not None and target not in self._conversation and id in self.metas:
                text = f"operation {id} is to move its lane to {target}, which is no entry"
                self._faults.add("missing_input", place, text, id)


def _children(state: OperationState) -> Iterator[str]:
    if isinstance(state, Tools):
        for index, call in enumerate(state.calls):
            if isinstance(call, WaitingChild):
                yield call_id(state.answer, index)


def _question_of(call: object) -> str:
    if isinstance(call, WaitingApproval):
        return call.approval
    return call.question if isinstance(call, WaitingQuestion) else ""
