"""Everything that must hold among the records of one session, over one reading of them in the order of a snapshot.

The records come one by one: entries by number, then ledger rows, then elements of lists, then values. What is held of
them is the ids of entries, ledger rows, results and receipts, and the records of what is open now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlane.data import addresses, codec, features
from agentlane.data.entries import EntryBody, kind_of
from agentlane.data.messages import AssistantMessage
from agentlane.data.records.conversation import Conversation
from agentlane.data.records.faults import Faults
from agentlane.data.records.inbox import InboxRecords, PendingBody
from agentlane.data.records.operations import PARTS, OperationRecords, owner_of
from agentlane.data.usage import Stats, UsageRow, UsageTotals
from agentlane.data.writes import Address
from agentlane.errors import AgentLaneError, CorruptSession, UnsupportedFormat

KINDS: dict[str, codec.Kind[Any]] = {
    addresses.BRANCH_TIP: codec.OPTIONAL_TEXT,
    addresses.LANE_CONFIG: codec.LANE_CONFIG,
    addresses.LANE_STATE: codec.LANE_STATE,
    addresses.INBOX: codec.QUEUED,
    addresses.OP_META: codec.META,
    addresses.OP_CONFIG: codec.CONFIG,
    addresses.OP_STATE: codec.STATE,
    addresses.OP_ARGS: codec.JSON,
    addresses.OP_MEMO: codec.JSON,
    addresses.OP_ANSWER: codec.JSON,
    addresses.OP_DECISION: codec.DECISION,
    addresses.OP_RETURNED: codec.RETURNED,
    addresses.OP_PREP: codec.PREP,
    addresses.PENDING_APPROVAL: codec.APPROVAL,
    addresses.PENDING_ENTRY: codec.BODY,
    addresses.PENDING_OUTPUT: codec.PROGRESS,
    addresses.RESULT: codec.RESULT,
    addresses.RECEIPT: codec.RECEIPT,
    addresses.SESSION_NAME: codec.TEXT,
    addresses.SESSION_FEATURE: features.MARK,
    addresses.LABEL: codec.TEXT,
}
"""What is stored in each of the library's own namespaces of values."""


class RecordCheck:
    """Reads the records of one session, and says what is wrong among them.

    ``held``: an outcome may wait for hooks to be placed. ``body_of`` reads an entry's payload, for whoever keeps what
    was read.
    """

    def __init__(self, *, held: bool = True, body_of: Callable[[bytes, str], EntryBody] | None = None) -> None:
        self._held = held
        self._body_of = body_of or (lambda payload, id: codec.BODY.decode(payload, f"entry {id}"))
        self.faults = Faults()
        self.conversation = Conversation(self.faults)
        self.operations = OperationRecords(self.conversation, self.faults)
        self.inbox = InboxRecords(self.conversation, self.faults)
        self._usage_ids: set[str] = set()
        self._totals = UsageTotals()

    def entry(self, id: str, parent_id: str | None, seq: int, kind: str, payload: bytes) -> EntryBody | None:
        """Take the next entry; what it holds, None if that cannot be read."""
        body: EntryBody | None = None
        try:
            body = self._body_of(payload, id)
            _check_calls(id, body)
        except AgentLaneError as error:
            self._unreadable(f"entry {id}", error)
            body = None
        if body is not None and kind_of(body) != kind:
            text = f"entry {id} is stored as one of kind {kind!r} and holds one of kind {kind_of(body)!r}"
            self.faults.add("wrong_kind", f"entry {id}", text)
            self.conversation.kinds[id] = kind_of(body)
        self.conversation.add(id, parent_id, seq, body)
        return body

    def usage(self, row: UsageRow) -> None:
        """Take the next row of the ledger."""
        if row.id in self._usage_ids or row.id in self.conversation:
            self.faults.add("duplicate_id", f"usage row {row.id}", f"id {row.id} is used 2 times")
        self._usage_ids.add(row.id)
        self._totals = self._totals.plus(row)
        if row.kind == "attempt" and row.entry_id is not None:
            self.conversation.settle(row.entry_id)

    def element(self, address: Address, payload: bytes) -> None:
        """Take the next element of a list."""
        if address.namespace == addresses.PENDING_FRAMES:
            frames = self.operations.frames
            if not frames or frames[-1] != address.key:
                frames.append(address.key)
            try:
                codec.FRAMES.decode(payload, f"{address.namespace}/{address.key}")
            except AgentLaneError as error:
                self._unreadable(f"{address.namespace}/{address.key}", error, owner_of(address.key))
        elif not address.namespace.startswith("app."):
            self._unknown(address, "list")

    def value(self, address: Address, payload: bytes) -> None:
        """Take the next value."""
        namespace, key = address
        kind = KINDS.get(namespace)
        if kind is None:
            if not namespace.startswith("app."):
                self._unknown(address, "value")
            return
        operations = self.operations
        if namespace in operations.parts:
            operations.parts[namespace].append(key)
        try:
            record = kind.decode(payload, f"{namespace}/{key}")
        except AgentLaneError as error:
            owner = owner_of(key) if namespace in PARTS or namespace == addresses.OP_META else None
            self._unreadable(f"{namespace}/{key}", error, owner)
            operations.unreadable.add((namespace, key))
            if namespace == addresses.PENDING_ENTRY:
                operations.pending[key] = None
            return
        self._take(namespace, key, record)

    def finish(self, stats: Stats | None = None) -> Faults:
        """What is wrong, when everything was taken; ``stats`` are those that the session has."""
        operations = self.operations
        operations.check(self.inbox, self._usage_ids)
        self.conversation.check_batches(operations.running, held=self._held)
        self.inbox.check(operations.lane_configs, operations.cancelled, operations.pending)
        if stats is not None and stats.usage != self._totals:
            self.faults.add("stats", "stats", f"stats say {stats.usage}, the ledger {self._totals}")
        if stats is not None and stats.entries != len(self.conversation):
            text = f"stats say {stats.entries} entries, there are {len(self.conversation)}"
            self.faults.add("stats", "stats", text)
        return self.faults

    def _take(self, namespace: str, key: str, record: Any) -> None:
        operations = self.operations
        match namespace:
            case addresses.BRANCH_TIP:
                operations.tips[key] = record
            case addresses.LANE_CONFIG:
                operations.lane_configs[key] = record
            case addresses.LANE_STATE:
                operations.lanes[key] = record
            case addresses.OP_META:
                operations.metas[key] = record
            case addresses.OP_CONFIG:
                operations.configs[key] = record
            case addresses.OP_STATE:
                operations.states[key] = record
            case addresses.OP_PREP:
                operations.preps[key] = record
            case addresses.OP_RETURNED:
                self.inbox.take_returned(key, record)
            case addresses.PENDING_APPROVAL:
                operations.approvals[key] = record
            case addresses.PENDING_ENTRY:
                operations.pending[key] = PendingBody.of(record)
            case addresses.INBOX:
                self.inbox.items[key] = record
            case addresses.RECEIPT:
                self.inbox.take_receipt(key, record)
            case addresses.RESULT:
                operations.take_result(key, record)
            case addresses.LABEL:
                if key not in self.conversation:
                    self.faults.add("missing_entry", f"label/{key}", f"a label is of {key}, which is no entry")
            case _:
                pass  # kept for the operation, and looked at by its key

    def _unreadable(self, place: str, error: AgentLaneError, operation: str | None = None) -> None:
        code = "newer_record" if isinstance(error, UnsupportedFormat) else "undecodable"
        self.faults.add(code, place, str(error), operation)  # type: ignore[arg-type]

    def _unknown(self, address: Address, what: str) -> None:
        place = f"{address.namespace}/{address.key}"
        self.faults.add("newer_record", place, f"this version keeps no {what} at {place}")


def _check_calls(id: str, body: EntryBody) -> None:
    """Each call of a stored answer has arguments, or their text: a name that was changed by a bit is no field's."""
    for call in body.calls if isinstance(body, AssistantMessage) else ():
        if call.arguments is None and call.arguments_text is None:
            raise CorruptSession(f"entry {id}: call {call.id!r} has neither arguments nor their text", id=id)
