"""What the library shows, in the shapes of the plain model: messages as short tuples, ids as numbers and labels."""

from __future__ import annotations

import re
from typing import Any

from agentlane import (
    AssistantMessage,
    BranchSummary,
    ChildReason,
    Compaction,
    Custom,
    ModelIdentity,
    Operation,
    OperationResult,
    QueuedInput,
    Receipt,
    RetryReason,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agentlane.data.approvals import Approval, Decision, arguments_digest
from agentlane.data.entries import EntryBody
from agentlane.data.results import ApprovalReason, ExternalReason, QuestionReason, Waiting
from agentlane.ids import call_id
from agentlane.machine.context import NOT_AVAILABLE
from agentlane.machine.outcomes import ABORTED, CUT, DENIED, EXPIRED, INTERRUPTED, NOT_STARTED, PROGRESS, STRANDED
from tests.stateful.summing import UNIT, in_words

TEXTS = {
    NOT_AVAILABLE: "not available",
    ABORTED: "aborted",
    CUT: "cut",
    INTERRUPTED: "interrupted",
    NOT_STARTED: "not started",
    DENIED: "denied",
    EXPIRED: "expired",
    STRANDED: "stranded",
    f"{DENIED} Reason: why": "denied: why",
}
FAILURES = {
    "overloaded": "scripted failure: overloaded",
    "stream_cut": "the model's stream ended without its end",
    "restarts_exhausted": "times during one turn",
    "model_unavailable": "is not among the models",
    "limit_reached": "; the limit is ",
}
"""What a failed run of another agent is told to have met."""


class Names:
    """The ids of one session as the plain model names them: entries by number, operations by label."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.entries: list[str] = []
        self.labels: dict[str, str] = {}
        self.operations: dict[str, str] = {}
        self.items: dict[str, int] = {}
        """What waited in inboxes: its ids, and the plain model's numbers."""
        self.asked: dict[str, int] = {}
        """What people were asked: its ids, and the plain model's numbers."""
        self.kin: dict[str, int] = {}
        """The calls that became operations, and with which handle a host opens their lanes."""
        self.receipts: set[tuple[str, Any]] = set()
        """The receipts that there are, by lane and key."""

    def take_entries(self, ids: list[str]) -> None:
        self.entries = ids
        self.numbers = {id: number for number, id in enumerate(ids)}

    def take_operation(self, label: str | None, id: str | None) -> None:
        """The operation with this id is the one that the plain model calls so."""
        if label is not None and id is not None and label not in self.operations:
            self.operations[label], self.labels[id] = id, label

    def take_calls(self, calls: dict[str, int]) -> None:
        """These calls became operations."""
        self.kin = dict(calls)
        for label in calls:
            _, answer, index = label.split("-")
            self.take_operation(label, call_id(self.entries[int(answer)], int(index)))

    def lane(self, name: str) -> str:
        """A lane as the plain model calls it: that of a call by the call."""
        kind, _, id = name.partition(":")
        return f"{kind}:{self.label(id)}" if id else name

    def lane_id(self, lane: str) -> str:
        """The same, the other way round."""
        kind, _, label = lane.partition(":")
        return f"{kind}:{self.operation(label)}" if label else lane

    def lane_of_call(self, number: int) -> tuple[str, int]:
        """The lane of a call, by how many there were before, and with which handle it is opened."""
        label, handle = list(self.kin.items())[number]
        return self.lane_id(f"child:{label}"), handle

    def call_key(self, key: str) -> tuple[Any, ...]:
        """An idempotency key."""
        _, operation, call, count = key.split("/")
        return (self.label(operation), call.split("#")[0], int(count))

    def take_items(self, numbers: list[int], ids: list[str]) -> None:
        """These wait."""
        for number, id in zip(numbers, ids, strict=False):
            self.items.setdefault(id, number)

    def take_asked(self, numbers: list[int], ids: list[str]) -> None:
        """People are asked these."""
        for number, id in zip(numbers, ids, strict=False):
            self.asked.setdefault(id, number)

    def asked_as(self, number: int) -> str:
        return next((id for id, each in self.asked.items() if each == number), "no-such-approval")

    def item(self, number: int) -> str:
        return next((id for id, each in self.items.items() if each == number), "no-such-item")

    def where(self, ids: tuple[str, ...]) -> tuple[Any, ...]:
        """Entries, or the item that is not there as entries."""
        if all(id in self.numbers for id in ids):
            return tuple(self.numbers[id] for id in ids)
        return ("item", self.items.get(ids[0]))

    def key(self, key: Any) -> str:
        """The request id that a receipt's key stands for."""
        if isinstance(key, str):
            return key
        kind, number = key
        return self.item(number) if kind == "item" else self.entry(number) or ""

    def entry(self, number: int | None) -> str | None:
        """The id of an entry; of one that is not there, for a number beyond the last."""
        if number is None:
            return None
        return self.entries[number] if number < len(self.entries) else "no-such-entry"

    def number(self, id: str | None) -> int | None:
        return None if id is None else self.numbers[id]

    def label(self, id: str | None) -> str | None:
        return None if id is None else self.labels.get(id, id)

    def operation(self, label: str) -> str:
        return self.operations.get(label, label)

    def body(self, body: EntryBody) -> tuple[Any, ...]:
        """An entry's body: as a message, with what only an entry tells."""
        match body:
            case Compaction():
                told = (body.summary, self.number(body.kept_from), body.split, body.tokens_before // UNIT)
                return ("compaction", *told, model_number(body.model))
            case BranchSummary():
                return ("branch_summary", body.summary, self.number(body.left), model_number(body.model))
            case Custom():
                return ("custom", body.type, body.data)
            case AssistantMessage():
                answers = tuple(self.numbers[each] for each in body.answers)
                code = None if body.error is None else body.error.code
                return (
                    "assistant",
                    body.text,
                    body.stop_reason,
                    code,
                    tuple(c.name for c in body.calls),
                    answers,
                    model_number(body.model),
                )
            case _:
                return message_shape(body)

    def record(self, record: OperationResult) -> dict[str, Any]:
        """A terminal record. The prompt is told by the caller, who knows the entries."""
        usage = record.usage
        return {
            "lane": self.lane(record.lane),
            "inputs": tuple(self.numbers[each] for each in record.inputs),
            "status": record.status,
            "code": record.code,
            "kind": record.kind,
            "summary": self.number(record.summary),
            "answer": self.number(record.answer),
            "text": record.text,
            "turns": record.turns,
            "tips": (self.number(record.from_tip), self.number(record.to_tip)),
            "times": (record.started_at, record.ended_at),
            "decisions": tuple(sorted(self.decided(each) for each in record.decisions)),
            "returned": tuple(self.waiting(each) for each in record.returned),
            "next": self.label(record.next_operation),
            "key_operation": self.label(record.key_operation),
            "retry_of": self.label(record.retry_of),
            "usage": (usage.rows, usage.unknown_rows, usage.input_tokens, usage.output_tokens, usage.cost_nanos),
        }

    def waiting(self, item: QueuedInput) -> tuple[Any, ...]:
        """What waits, or was given back."""
        key = "own" if item.request_id == item.id else item.request_id
        bodies = tuple(self.body(each) for each in item.content)
        return (self.items.get(item.id, item.id), item.kind, bodies, item.submitted, key)

    def receipt(self, receipt: Receipt) -> tuple[Any, ...]:
        return (
            receipt.kind,
            receipt.submitted,
            receipt.state,
            self.where(receipt.entries),
            self.label(receipt.operation_id),
        )

    def call(self, id: str) -> tuple[int, int]:
        """A call: the number of its answer, and which of that it is."""
        return (self.numbers[f"{id[:-4]}0000"], int(id[-4:], 16) - 2)

    def call_id(self, call: tuple[int, int] | None) -> str:
        return "no-such-call" if call is None else f"{self.entries[call[0]][:-4]}{call[1] + 2:04x}"

    def asks(self, asked: Approval) -> tuple[Any, ...]:
        """What waits for a person."""
        assert asked.digest == arguments_digest(asked.arguments)
        return (
            self._asked(asked.approval_id),
            self.label(asked.operation_id),
            self.lane(asked.lane),
            self.call(asked.call_id),
            asked.tool,
            asked.kind,
            asked.asked_at,
            asked.expires_at,
            asked.arguments.get("end", "bad"),
            "".join(getattr(part, "text", "?") for part in asked.progress) or None,
            asked.name,
        )

    def decided(self, decision: Decision) -> tuple[Any, ...]:
        assert decision.kind == "question" or decision.by == decision.reason
        return (
            self._asked(decision.approval_id),
            self.call(decision.call_id),
            decision.tool,
            decision.kind,
            decision.allow,
            decision.at,
            decision.by,
            decision.changed,
            decision.expired,
        )

    def waits(self, waiting: Waiting) -> tuple[Any, ...]:
        """What a drive waits for: time, or answers."""
        return ("waiting", waiting.wake_at, tuple(self._reason(each) for each in waiting.reasons))

    def _reason(self, reason: Any) -> tuple[Any, ...]:
        match reason:
            case ApprovalReason():
                return (
                    "approval",
                    self._asked(reason.approval_id),
                    self.call(reason.call_id),
                    reason.tool,
                    reason.expires_at,
                )
            case RetryReason():
                return ("retry", reason.not_before, reason.attempt, reason.error.code)
            case ChildReason():
                assert reason.lane == self.lane_id(f"child:{self.label(reason.call_id)}")
                return ("child", self.label(reason.operation_id), tuple(self._reason(each) for each in reason.reasons))
            case ExternalReason():
                return ("external", self.call(reason.call_id), reason.tool)
            case QuestionReason():
                return (
                    "question",
                    self._asked(reason.question_id),
                    self.call(reason.call_id),
                    reason.tool,
                    reason.name,
                )
            case _:
                raise AssertionError(f"nobody waits for {reason!r}")

    def _asked(self, id: str | None) -> Any:
        return None if id is None else self.asked.get(id, id)

    def operation_seen(self, operation: Operation) -> tuple[Any, ...]:
        calls = tuple(
            (c.tool, c.status, c.policy, c.attempt, c.replays, self._asked(c.approval_id)) for c in operation.calls
        )
        return (
            self.lane(operation.lane),
            operation.at,
            tuple(self.numbers[each] for each in operation.inputs),
            operation.turn,
            operation.attempt,
            operation.restarts,
            operation.cancel_requested_at is not None,
            operation.not_before,
            self.label(operation.parent_operation_id),
            calls,
        )


def model_number(model: ModelIdentity | str | None) -> int | None:
    """Which of the agent's models this is."""
    return None if model is None else int(str(model).removeprefix("plain:m"))


def message_shape(message: Any) -> tuple[Any, ...]:
    """A message as a model is shown it."""
    match message:
        case UserMessage():
            return ("user", in_words("".join(getattr(part, "text", "?") for part in message.content)))
        case AssistantMessage():
            return ("assistant", message.text, tuple(each.name for each in message.calls))
        case ToolResultMessage():
            return ("result", message.name, result_text(message.text), message.is_error)
        case _:
            raise AssertionError(f"{message!r} is no message")


def result_text(given: str) -> str:
    """The text of a result."""
    text, hooks = re.fullmatch(r"(.*?)((?: h\d+)*)", given, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{_without_hooks(text)}{hooks}"


def _without_hooks(text: str) -> str:
    lines = text.split("\n")
    last = TEXTS.get(lines[-1], lines[-1])
    if lines[0] == PROGRESS:
        return f"{last} after {lines[1]}"
    if "is not available here" in last:
        return "refused"
    if "something that cannot be used" in last:
        return "unusable"
    if "are not valid" in last:
        return "unfit"
    if "which is as often as this run may" in last:
        return "repeated"
    if last.startswith("The agent "):
        return "failed: " + next(code for code, why in FAILURES.items() if why in last)
    return "raised" if last.endswith("failed: ValueError: on purpose") else last


def tokens(usage: Usage) -> tuple[int | None, int | None, int | None]:
    return (usage.input_tokens, usage.output_tokens, usage.cost_nanos)
