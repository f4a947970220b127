"""One commit of an operation in the making: steps of the machine become writes, and later what memory takes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from agentlane.data import addresses, codec
from agentlane.data.approvals import Approval, Decision, in_order
from agentlane.data.entries import BranchSummary, Compaction, EntryBody, kind_of
from agentlane.data.inbox import QueuedState
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.operations import LaneState, OperationState, Planned, SummaryPrep, Tools
from agentlane.data.results import OperationResult
from agentlane.data.usage import Usage, UsageRow, UsageTotals
from agentlane.data.writes import DeleteList, DeleteValue, InsertEntry, InsertUsage, SetValue, Write
from agentlane.driver.inbox import Inbox, WaitingItem
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.tool_results import Sealed, seal_message
from agentlane.ids import call_id, correction_id, usage_id
from agentlane.machine.facts import (
    AskApproval,
    DropPreparation,
    Effect,
    End,
    MoveLane,
    PlaceAnswer,
    PlaceCorrection,
    PlaceInput,
    PlaceItems,
    PlaceResult,
    PlaceSummary,
    SpendSummary,
    StageResult,
    StartChild,
    Step,
)


class PathDraft:
    """Entries to append to a branch, and the move of its tip."""

    def __init__(self, branch: str, tip: str | None) -> None:
        self.branch = branch
        self.tip = tip
        self.writes: list[Write] = []
        self.placed: list[tuple[str, EntryBody]] = []
        self.parents: dict[str, str | None] = {}
        self.moved = False
        """Whether the branch goes on elsewhere than at its tip, and if so from where."""
        self.moved_to: str | None = None

    def place(self, id: str, body: EntryBody, payload: bytes) -> None:
        """Append an entry at the tip."""
        self.writes.append(InsertEntry(id, self.tip, kind_of(body), payload))
        self.parents[id] = self.tip
        self.tip = id
        self.placed.append((id, body))

    def place_item(self, item: WaitingItem) -> None:
        """Append what an item of the inbox holds."""
        for id, payload, body in zip(item.item.entries, item.payloads, item.bodies, strict=True):
            self.place(id, body, payload)

    def move(self, tip: str | None) -> None:
        """What is appended from here on stands behind ``tip``."""
        self.moved = self.moved or tip != self.tip
        self.tip = self.moved_to = tip

    def seal_tip(self) -> None:
        """Write the moved tip, once all entries are placed."""
        if self.placed or self.moved:
            self.writes.append(SetValue(addresses.branch_tip(self.branch), codec.encode(self.tip)))


class OperationDraft:
    """Steps of one operation that become one commit."""

    def __init__(self, operation: OpenOperation, lane: str, tip: str | None, *, now: int, inbox: Inbox) -> None:
        self.operation = operation
        self.lane = lane
        self.now = now
        self.path = PathDraft(lane, tip)
        self.state: OperationState = operation.state
        self.effects: list[Effect] = []
        self.children: list[StartChild] = []
        """Calls whose operations are accepted in this commit; whoever makes the commit adds what that writes."""
        self.boundaries: list[str] = []
        self.calls = operation.calls
        self.cut = operation.cut
        self.answers: list[tuple[str, AssistantMessage]] = []
        self.usage: UsageTotals = operation.usage
        self.staged: dict[int, Sealed] = dict(operation.staged)
        self.follow_ups = operation.follow_ups
        self.settled_calls: list[int] = []
        self.args = operation.args
        self.pending = operation.pending
        self.decisions = operation.decisions
        self.result: OperationResult | None = None
        self.corrections = operation.corrections
        self.prep = operation.prep
        self.summary = operation.summary
        self.before_summary: Sequence[tuple[str, EntryBody, bytes]] = ()
        """What a navigation places before its summary, or before the next operation's prompt if that comes with it:
        results of calls that have none where the lane goes."""
        self.output: Any = None
        """The JSON data that the operation's answer is, if that was asked for."""
        self.successor: OpenOperation | None = None
        self.inbox = inbox
        self.left: frozenset[int] = frozenset()
        """Calls whose outcome has come and is for the next commit to take."""
        self.consumed: dict[str, WaitingItem] = {}
        """Items of the inbox that this commit takes out."""
        self._answer_text = operation.answer_text
        self._sealed: dict[int, Sealed] = {}

    def take(self, step: Step, sealed: dict[int, Sealed] | None = None) -> None:
        """Add a step; ``sealed`` are the encoded forms of its results by call index."""
        self._sealed = sealed or {}
        for change in step.changes:
            match change:
                case PlaceAnswer():
                    self._place_answer(change)
                case PlaceResult():
                    self._place_result(change)
                case PlaceInput():
                    self.path.place(change.id, change.message, codec.encode(change.message))
                    self.follow_ups += 1
                case StageResult():
                    self._stage_result(change)
                case AskApproval():
                    pass  # by `ask`, which knows what is asked
                case StartChild():
                    self.children.append(change)
                case PlaceCorrection():
                    self._place_correction(change)
                case PlaceItems(items):
                    for id in items:
                        self._place_item(id)
                case SpendSummary():
                    self._spend_summary(change)
                case PlaceSummary():
                    self._place_summary(change)
                case DropPreparation(task):
                    self._drop_preparation(task)
                case MoveLane():
                    self._move_lane()
                case End():
                    self._end(change)
        if step.state is not None:
            self.state = step.state
        self.effects.extend(step.effects)
        self.boundaries.append(step.boundary)
        if self.result is not None:
            self.boundaries.append("terminal")

    def ask(self, step: Step, approvals: dict[int, Approval]) -> None:
        """Add a step that asks people; ``approvals`` are the questions by call index."""
        self.take(step)
        for approval in approvals.values():
            address = addresses.pending_approval(approval.approval_id)
            self.path.writes.append(SetValue(address, codec.encode(approval)))
        self.pending = {**self.pending, **approvals}

    def decide(self, index: int, decision: Decision, args: dict[str, Any] | None = None) -> None:
        """Take the answer to what a call waits for, and the arguments that are part of it; its step comes next."""
        self.boundaries.append("decision")
        self._close_question(index, decision)
        if args is not None:
            address = addresses.op_args(self.operation.id, decision.call_id)
            self.path.writes.append(SetValue(address, codec.encode(args)))
            self.args = {**self.args, index: args}

    def answer(self, index: int, decision: Decision, name: str, payload: bytes) -> None:
        """Take the answer to what a call has asked; its step comes next."""
        self._close_question(index, decision)
        address = addresses.op_answer(self.operation.id, decision.call_id, name)
        self.path.writes.append(SetValue(address, payload))

    def _close_question(self, index: int, decision: Decision) -> None:
        self.path.writes.append(DeleteValue(addresses.pending_approval(decision.approval_id)))
        address = addresses.op_decision(self.operation.id, decision.approval_id)
        self.path.writes.append(SetValue(address, codec.encode(decision)))
        self.pending = {each: approval for each, approval in self.pending.items() if each != index}
        self.decisions = in_order((*self.decisions, decision))

    @property
    def answer_text(self) -> str:
        """The text of the last answer that counts."""
        return self._answer_text

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.boundaries

    @property
    def boundary(self) -> str:
        """The commit's name: the rows of the commit table it merges."""
        return "+".join(dict.fromkeys(self.boundaries))

    def writes(self) -> list[Write]:
        """The commit's writes, in order."""
        self.path.seal_tip()
        writes = self.path.writes
        if self.args and not isinstance(self.state, Tools):
            answer = str(self.state.answer)
            writes.extend(
                DeleteValue(addresses.op_args(self.operation.id, call_id(answer, index))) for index in self.args
            )
            self.args = {}
        if self.result is None:
            writes.append(SetValue(addresses.op_state(self.operation.id), codec.encode(self.state)))
        else:
            self._write_end(writes, self.result)
        return writes

    def hand_over(self) -> None:
        """The commit is published: the operation is what the draft made of it."""
        operation = self.operation
        operation.take_state(self.state, self.usage, self.staged)
        operation.calls, operation.cut, operation.answer_text = self.calls, self.cut, self._answer_text
        operation.args, operation.pending, operation.decisions = self.args, self.pending, self.decisions
        for index in self.settled_calls:
            operation.progress.pop(index, None)
            operation.memos.pop(index, None)
            operation.answers.pop(index, None)
        operation.corrections = self.corrections
        operation.prep, operation.summary = self.prep, self.summary
        operation.follow_ups = self.follow_ups

    def keep_arguments(self, index: int, arguments: dict[str, Any]) -> None:
        """A call starts with other arguments than the model's."""
        self.args = {**self.args, index: arguments}
        address = addresses.op_args(self.operation.id, call_id(self.state.answer or "", index))
        self.path.writes.append(SetValue(address, codec.encode(arguments)))

    def forget_arguments(self, indices: Sequence[int]) -> None:
        """Of these calls those that are as if they had never been started are asked about again."""
        state = self.state
        for index in indices:
            if isinstance(state, Tools) and isinstance(state.calls[index], Planned) and index in self.args:
                self.args = {each: kept for each, kept in self.args.items() if each != index}
                address = addresses.op_args(self.operation.id, call_id(state.answer, index))
                self.path.writes.append(DeleteValue(address))

    def _place_answer(self, change: PlaceAnswer) -> None:
        message = change.message  # it was decoded from its encoded form, so it reads back as it is
        self.path.place(change.id, message, codec.encode(message))
        row = UsageRow(
            id=usage_id(change.id),
            kind="attempt",
            usage=message.usage or Usage(),
            entry_id=change.id,
            operation_id=self.operation.id,
            model=None if message.model is None else str(message.model),
        )
        self.path.writes.append(InsertUsage(row))
        self.usage = self.usage.plus(row)
        if self.operation.frames:
            self.path.writes.append(DeleteList(addresses.pending_frames(self.operation.id, change.id)))
        self.answers.append((change.id, message))
        if message.stop_reason not in ("error", "aborted"):
            self.calls, self.cut = message.calls, message.stop_reason == "length"
            self._answer_text = message.text

    def prepare(self, task: str, prep: SummaryPrep) -> None:
        """Keep what the summary ``task`` is made of; the step that asks for it comes next."""
        self.prep = prep
        self.path.writes.append(SetValue(addresses.op_prep(self.operation.id, task), codec.encode(prep)))

    def _spend_summary(self, change: SpendSummary) -> None:
        message = change.message
        row = UsageRow(
            id=usage_id(change.response_id),
            kind="summary",
            usage=message.usage or Usage(),
            entry_id=change.task,
            operation_id=self.operation.id,
            model=None if message.model is None else str(message.model),
        )
        self.path.writes.append(InsertUsage(row))
        self.usage = self.usage.plus(row)

    def _place_summary(self, change: PlaceSummary) -> None:
        prep = self.prep
        if prep is None:
            raise RuntimeError(f"operation {self.operation.id}: nothing was prepared for summary {change.task}")
        body: EntryBody
        if self.operation.meta.navigate is not None:
            body = BranchSummary(summary=change.text, left=prep.tip, model=change.model)
        else:
            body = Compaction(
                summary=change.text,
                kept_from=prep.kept_from,
                tokens_before=prep.tokens_before,
                split=prep.split,
                model=change.model,
                stands_for=prep.stands_for,
            )
            self.before_summary = ()
        for id, result, encoded in self.before_summary:
            self.path.place(id, result, encoded)
        payload, sealed = codec.BODY.seal(body, "summary")
        self.path.place(change.task, sealed, payload)
        self._drop_preparation(change.task)
        self.summary = change.task, change.text

    def _drop_preparation(self, task: str) -> None:
        if self.operation.prep is not None:  # what is made and used in one commit was never written
            self.path.writes.append(DeleteValue(addresses.op_prep(self.operation.id, task)))
        self.prep = None

    def _move_lane(self) -> None:
        navigate = self.operation.meta.navigate
        if navigate is None:
            raise RuntimeError(f"operation {self.operation.id} is no navigation")
        if navigate.label is not None and self.path.tip is not None:
            self.path.writes.append(SetValue(addresses.label(self.path.tip), codec.encode(navigate.label)))
        self.path.move(navigate.to)

    def _place_result(self, change: PlaceResult) -> None:
        id = call_id(change.answer, change.index)
        staged = self.staged.pop(change.index, None)
        if staged is None:
            self._drop_side(change.index, id)
        else:
            self.path.writes.append(DeleteValue(addresses.pending_entry(id)))
        sealed = staged if change.message is None else self._sealed_of(change.index, change.message)
        if sealed is None:
            raise RuntimeError(f"operation {self.operation.id}: call {change.index} has no result to place")
        self.path.place(id, sealed.message, sealed.payload)

    def _place_correction(self, change: PlaceCorrection) -> None:
        payload, body = codec.BODY.seal(change.message, "correction")
        self.path.place(correction_id(change.answer), body, payload)
        self.corrections += 1

    def _stage_result(self, change: StageResult) -> None:
        id = call_id(change.answer, change.index)
        sealed = self._sealed_of(change.index, change.message)
        self.staged[change.index] = sealed
        self._drop_side(change.index, id)
        self.path.writes.append(SetValue(addresses.pending_entry(id), sealed.payload))

    def _place_item(self, id: str) -> None:
        item = self.inbox.get(id)
        if item is None or id in self.consumed:
            raise RuntimeError(f"item {id} does not wait on lane {self.lane!r}")
        self.path.place_item(item)
        self.consume(item, "placed", self.operation.id)

    def consume(self, item: WaitingItem, state: QueuedState, operation_id: str) -> None:
        """Take an item out of the inbox with this commit."""
        self.consumed[item.id] = item
        self.path.writes += item.removal(self.lane, state, operation_id)

    def _sealed_of(self, index: int, message: ToolResultMessage) -> Sealed:
        sealed = self._sealed.get(index)
        return sealed if sealed is not None and sealed.message is message else seal_message(message)

    def _drop_side(self, index: int, id: str) -> None:
        """A call that has its outcome needs its progress, memos and answers no more."""
        self.settled_calls.append(index)
        operation = self.operation
        if index in operation.progress:
            self.path.writes.append(DeleteValue(addresses.pending_output(operation.id, id)))
        for name in operation.memos.get(index, ()):
            self.path.writes.append(DeleteValue(addresses.op_memo(operation.id, id, name)))
        for name in operation.answers.get(index, ()):
            self.path.writes.append(DeleteValue(addresses.op_answer(operation.id, id, name)))

    def _end(self, end: End) -> None:
        operation = self.operation
        meta = operation.meta
        # A run may have been summarized as well; its text is its answer's.
        summary = None if meta.compact is None and meta.navigate is None else self.summary
        self.result = OperationResult(
            operation_id=operation.id,
            lane=meta.lane,
            agent=operation.config.agent,
            kind=meta.request.kind,
            status=end.status,
            request_digest=meta.request.digest,
            key_operation=meta.key_operation,
            inputs=meta.inputs,
            from_tip=meta.start_tip,
            to_tip=self.path.tip,
            started_at=meta.started_at,
            ended_at=self.now,
            turns=end.turns,
            code=end.code,
            error=end.error,
            answer=end.answer,
            text="" if end.status != "completed" else self._answer_text if summary is None else summary[1],
            usage=self.usage,
            retry_of=meta.retry_of,
            decisions=self.decisions,
            output=self.output if end.status == "completed" else None,
            returned=operation.returned,
            summary=None if summary is None else summary[0],
        )

    def succeed(self, successor: OpenOperation) -> None:
        """The commit that ends the operation opens this one, whose input it has placed."""
        if self.result is None:
            raise RuntimeError(f"operation {self.operation.id} has not ended")
        self.successor = successor
        self.result = replace(self.result, next_operation=successor.id)

    def _write_end(self, writes: list[Write], result: OperationResult) -> None:
        id = self.operation.id
        writes.append(DeleteValue(addresses.op_meta(id)))
        writes.append(DeleteValue(addresses.op_config(id)))
        writes.append(DeleteValue(addresses.op_state(id)))
        writes.extend(DeleteValue(addresses.op_decision(id, each.approval_id)) for each in self.decisions)
        if self.operation.returned:
            writes.append(DeleteValue(addresses.op_returned(id)))
        writes.append(SetValue(addresses.result(id), codec.encode(result)))
        if self.successor is not None:
            writes.extend(opening_writes(self.successor))
        state = LaneState(current=result.next_operation, last=id)
        writes.append(SetValue(addresses.lane_state(self.lane), codec.encode(state)))


def opening_writes(operation: OpenOperation) -> list[Write]:
    """The writes that open an operation, without those of its lane."""
    return [
        SetValue(addresses.op_meta(operation.id), codec.encode(operation.meta)),
        SetValue(addresses.op_config(operation.id), codec.encode(operation.config)),
        SetValue(addresses.op_state(operation.id), codec.encode(operation.state)),
    ]


def with_answers(message: AssistantMessage, inputs: tuple[str, ...]) -> AssistantMessage:
    """The message, naming the inputs that it is the first to answer, if it is an answer."""
    if not inputs or message.stop_reason in ("error", "aborted"):
        return message
    return replace(message, answers=inputs)
