"""The invariants of what waits on a lane, and of the receipts that tell what became of it; part of ``invariants``.

I3   what waits belongs to a lane; what an abort gave back is kept while its operation is open, and is nowhere else
I4   an item has its content, whole, in one place; a receipt says what became of it, and that is so
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from agentlane.data import codec
from agentlane.data.inbox import QueuedItem, Receipt
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage
from agentlane.errors import AgentLaneError

LEFT_BEHIND = "is said to wait"
"""In a violation that is none once what waits was deleted."""


class InboxSnapshot:
    """What waits, as it is stored: ``values`` by namespace and key, ``entries`` the ids of all that is placed."""

    def __init__(self, values: Mapping[str, Mapping[str, bytes]], entries: Collection[str]) -> None:
        self._values = values
        self._entries = entries
        self.items: dict[str, QueuedItem] = {
            key: codec.QUEUED.decode(payload, f"inbox/{key}") for key, payload in values["inbox"].items()
        }
        self.receipts: dict[str, Receipt] = {
            key: codec.RECEIPT.decode(payload, f"receipt/{key}") for key, payload in values["receipt"].items()
        }

    @property
    def queued(self) -> set[str]:
        """The entry ids of everything that waits."""
        return {entry for item in self.items.values() for entry in item.entries}

    def violations(self, cancelled: Collection[str]) -> Iterator[str]:
        """Everything that is wrong; ``cancelled`` are the open operations that are to be aborted."""
        yield from self._items_are_whole()
        yield from self._receipts_are_true()
        for operation, payload in self._values["op.returned"].items():
            if operation not in cancelled:
                yield f"I3: op.returned/{operation} is kept, and no abort of that operation is committed"
            for item in codec.RETURNED.decode(payload, f"op.returned/{operation}"):
                if item.id in self._entries or item.id in self.queued:
                    yield f"I4: {item.id} was given back by the abort of {operation}, and is elsewhere too"

    def _items_are_whole(self) -> Iterator[str]:
        owners: dict[str, str] = {}
        orders: set[tuple[str, int]] = set()
        for key, item in self.items.items():
            lane, _, id = key.partition("|")
            if lane not in self._values["lane.config"]:
                yield f"I3: inbox/{key} waits on a lane that is not there"
            if not item.entries or item.entries[0] != id:
                yield f"I4: inbox/{key} names the entries {item.entries}"
            if (lane, item.order) in orders:
                yield f"I4: inbox/{key} has the place {item.order} of another item"
            orders.add((lane, item.order))
            for entry in item.entries:
                if owners.setdefault(entry, key) != key:
                    yield f"I4: {entry} waits as part of {key} and of {owners[entry]}"
                yield from self._content(key, item, entry)

    def _content(self, key: str, item: QueuedItem, entry: str) -> Iterator[str]:
        payload = self._values["pending.entry"].get(entry)
        if payload is None:
            return  # told by the check of what is pending
        try:
            body = codec.BODY.decode(payload, entry)
        except AgentLaneError as error:
            yield f"I4: the content of inbox/{key} cannot be read: {error}"
            return
        unplaceable = isinstance(body, ToolResultMessage) or (isinstance(body, AssistantMessage) and body.calls)
        if unplaceable or (item.kind != "write" and not isinstance(body, UserMessage)):
            yield f"I4: inbox/{key} of kind {item.kind} holds a {type(body).__name__}"

    def _receipts_are_true(self) -> Iterator[str]:
        waiting = {(key.partition("|")[0], item.request_id): item for key, item in self.items.items()}
        for key, receipt in self.receipts.items():
            lane, _, request_id = key.partition("|")
            if receipt.request_id != request_id:  # its lane may have been renamed since
                yield f"I4: receipt/{key} is one of the request id {receipt.request_id}"
            item = waiting.get((lane, request_id))
            if receipt.state == "queued":
                if item is None:
                    yield f"I4: {request_id} of lane {lane} {LEFT_BEHIND}, and does not"
                elif item.entries != receipt.entries or item.kind != receipt.kind:
                    yield f"I4: receipt/{key} is not of the item that waits under its request id"
                continue
            if item is not None:
                yield f"I4: {request_id} of lane {lane} is said to be {receipt.state}, and waits"
            there = [entry for entry in receipt.entries if entry in self._entries]
            wanted = list(receipt.entries) if receipt.state in ("placed", "taken") else []
            if there != wanted:
                yield f"I4: {request_id} of lane {lane} is {receipt.state}, and of its entries {there} are there"
        for lane, request in waiting:
            if request is not None and f"{lane}|{request}" not in self.receipts:
                yield f"I4: {request} waits on lane {lane} without its receipt"
