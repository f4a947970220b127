"""What waits on lanes as it is stored, and the receipts that tell what became of it; what must hold between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from agentlane.data.entries import BranchSummary, Compaction, EntryBody
from agentlane.data.inbox import QueuedInput, QueuedItem, Receipt
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage
from agentlane.data.records.conversation import Conversation
from agentlane.data.records.faults import Faults

_NEVER_QUEUED = (ToolResultMessage, Compaction, BranchSummary)
"""What is placed where it is made, or not at all."""


class PendingBody(NamedTuple):
    """As much of pending content as tells where it may be placed."""

    type: type[object]
    has_calls: bool

    @classmethod
    def of(cls, body: EntryBody) -> PendingBody:
        return cls(type(body), isinstance(body, AssistantMessage) and bool(body.calls))


class InboxRecords:
    """Items by their key (lane and entry id), receipts by theirs (lane and request id)."""

    def __init__(self, conversation: Conversation, faults: Faults) -> None:
        self._conversation = conversation
        self._faults = faults
        self.items: dict[str, QueuedItem] = {}
        self.bad: set[str] = set()
        """Items that cannot be placed, whatever their content is."""
        self.returned: dict[str, tuple[str, ...]] = {}
        """By operation, the ids of what its abort gave back."""
        self._receipts: dict[str, str] = {}
        """What each receipt says became of its message; the whole of it is kept for what waits."""
        self._waiting: dict[str, Receipt] = {}

    @property
    def queued(self) -> set[str]:
        """The entry ids of everything that waits."""
        return {entry for item in self.items.values() for entry in item.entries}

    def take_receipt(self, key: str, receipt: Receipt) -> None:
        """One more; all entries were taken by now."""
        self._receipts[key] = receipt.state
        _, _, request_id = key.partition("|")
        if receipt.request_id != request_id:  # its lane may have been renamed since
            self._receipt(key, f"receipt/{key} is one of the request id {receipt.request_id}")
        if receipt.state == "queued":
            self._waiting[key] = receipt
            return
        there = [entry for entry in receipt.entries if entry in self._conversation]
        wanted = list(receipt.entries) if receipt.state in ("placed", "taken") else []
        if there != wanted:
            lane = key.partition("|")[0]
            text = f"{request_id} of lane {lane} is {receipt.state}, and of its entries {there} are there"
            self._receipt(key, text)

    def take_returned(self, operation: str, inputs: Iterable[QueuedInput]) -> None:
        """What an abort gave back."""
        self.returned[operation] = tuple(each.id for each in inputs)

    @property
    def said_to_wait(self) -> set[str]:
        """Receipts that say that their message waits."""
        return set(self._waiting)

    def is_told_of(self, key: str, item: QueuedItem) -> bool:
        """Whether the receipt with this key says of the item that it waits."""
        receipt = self._waiting.get(key)
        return receipt is not None and (receipt.entries, receipt.kind) == (item.entries, item.kind)

    def stale_receipts(self) -> list[str]:
        """Receipts of what is said to wait, and does not."""
        waiting = self._waits()
        return [key for key in self._waiting if key not in waiting]

    def check(
        self, lanes: Collection[str], cancelled: Collection[str], pending: Mapping[str, PendingBody | None]
    ) -> None:
        """Look at everything, once all of it was taken; ``cancelled`` are the operations that are to be aborted."""
        self._check_items(lanes, pending)
        self._check_receipts()
        for operation, ids in self.returned.items():
            place = f"op.returned/{operation}"
            if operation not in cancelled:
                text = f"op.returned/{operation} is kept, and no abort of that operation is committed"
                self._faults.add("left_over", place, text, operation)
            for id in ids:
                if id in self._conversation or id in self.queued:
                    text = f"{id} was given back by the abort of {operation}, and is elsewhere too"
                    self._faults.add("reserved_id", place, text, operation)

    def _check_items(self, lanes: Collection[str], pending: Mapping[str, PendingBody | None]) -> None:
        owners: dict[str, str] = {}
        orders: set[tuple[str, int]] = set()
        for key, item in self.items.items():
            lane, _, id = key.partition("|")
            if lane not in lanes:
                self._faults.add("inbox", f"inbox/{key}", f"inbox/{key} waits on a lane that is not there")
            if not item.entries or item.entries[0] != id:
                self._item(key, f"inbox/{key} names the entries {item.entries}")
            if (lane, item.order) in orders:
                self._item(key, f"inbox/{key} has the place {item.order} of another item")
            orders.add((lane, item.order))
            for entry in item.entries:
                if owners.setdefault(entry, key) != key:
                    self._item(key, f"{entry} waits as part of {key} and of {owners[entry]}")
                if entry in pending:
                    self._check_content(key, item, pending[entry])

    def _check_content(self, key: str, item: QueuedItem, body: PendingBody | None) -> None:
        if body is None:
            self._item(key, f"the content of inbox/{key} cannot be read")
            return
        unplaceable = body.type in _NEVER_QUEUED or body.has_calls
        if unplaceable or (item.kind != "write" and body.type is not UserMessage):
            self._item(key, f"inbox/{key} of kind {item.kind} holds a {body.type.__name__}")

    def _check_receipts(self) -> None:
        waiting = self._waits()
        for key, item in waiting.items():
            lane, _, request = key.partition("|")
            if key not in self._receipts:
                self._receipt(key, f"{request} waits on lane {lane} without its receipt")
                continue
            state, receipt = self._receipts[key], self._waiting.get(key)
            if receipt is None:
                self._receipt(key, f"{request} of lane {lane} is said to be {state}, and waits")
            elif item.entries != receipt.entries or item.kind != receipt.kind:
                self._receipt(key, f"receipt/{key} is not of the item that waits under its request id")
        for key in self.stale_receipts():
            lane, _, request = key.partition("|")
            text = f"{request} of lane {lane} is said to wait, and does not"
            self._faults.add("stale_receipt", f"receipt/{key}", text)

    def _waits(self) -> dict[str, QueuedItem]:
        return {f"{lane}|{item.request_id}": item for lane, item in self._by_lane() if item.request_id is not None}

    def _by_lane(self) -> Iterator[tuple[str, QueuedItem]]:
        return ((key.partition("|")[0], item) for key, item in self.items.items())

    def _item(self, key: str, text: str) -> None:
        self.bad.add(key)
        self._faults.add("inbox", f"inbox/{key}", text)

    def _receipt(self, key: str, text: str) -> None:
        self._faults.add("receipt", f"receipt/{key}", text)
