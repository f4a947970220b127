"""A lane's inbox in memory: what waits, in the order it came, with what it says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from agentlane.data import addresses, codec
from agentlane.data.entries import EntryBody
from agentlane.data.inbox import QueuedInput, QueuedItem, QueuedKind, QueuedState, Receipt, queued_digest
from agentlane.data.writes import DeleteValue, SetValue, Write
from agentlane.errors import CorruptSession
from agentlane.machine.planning import NOTHING_WAITS, Waiting
from agentlane.machine.verdicts import PlaceQueued

RETURNED_KINDS: frozenset[QueuedKind] = frozenset({"steer", "follow_up"})
"""What an abort gives back: it was said to the operation that is aborted."""


RECENT_MAX = 4_096
"""Receipts that are remembered; a caller behind whose back more are written looks again."""


class WaitingItem:
    """One item with its content, encoded and decoded."""

    __slots__ = ("bodies", "item", "payloads")

    def __init__(self, item: QueuedItem, payloads: tuple[bytes, ...], bodies: tuple[EntryBody, ...]) -> None:
        self.item = item
        self.payloads = payloads
        self.bodies = bodies

    @property
    def id(self) -> str:
        """The id that it was queued with, which is that of its first entry."""
        return self.item.entries[0]

    def insertion(self, lane: str) -> list[Write]:
        """The writes that make it wait."""
        writes: list[Write] = [SetValue(addresses.inbox(lane, self.id), codec.encode(self.item))]
        contents = zip(self.item.entries, self.payloads, strict=True)
        writes += [SetValue(addresses.pending_entry(entry), payload) for entry, payload in contents]
        if self.item.request_id is not None:
            writes.append(self._receipt(lane, self.item.request_id, "queued", None))
        return writes

    def removal(self, lane: str, state: QueuedState, operation_id: str | None) -> list[Write]:
        """The writes that take it out, and say in its receipt what became of it."""
        writes: list[Write] = [DeleteValue(addresses.inbox(lane, self.id))]
        writes += [DeleteValue(addresses.pending_entry(entry)) for entry in self.item.entries]
        if self.item.request_id is not None:
            writes.append(self._receipt(lane, self.item.request_id, state, operation_id))
        return writes

    def shown(self) -> QueuedInput:
        """The item as callers see it, with content of its own."""
        item = self.item
        content = tuple(codec.BODY.decode(payload, f"queued {self.id}") for payload in self.payloads)
        return QueuedInput(
            id=self.id, kind=item.kind, content=content, submitted=item.submitted, request_id=item.request_id
        )

    def receipt(self, lane: str, request_id: str, state: QueuedState, operation_id: str | None) -> Receipt:
        """Its receipt, which is made of what the item holds."""
        item = self.item
        return Receipt(
            request_id=request_id,
            lane=lane,
            kind=item.kind,
            entries=item.entries,
            digest=queued_digest(item.kind, self.payloads, submitted=item.submitted),
            submitted=item.submitted,
            state=state,
            operation_id=operation_id,
        )

    def _receipt(self, lane: str, request_id: str, state: QueuedState, operation_id: str | None) -> SetValue:
        receipt = self.receipt(lane, request_id, state, operation_id)
        return SetValue(addresses.receipt(lane, request_id), codec.encode(receipt))


class Inbox:
    """What waits on one lane. Changed only when a commit is published."""

    def __init__(self, items: Iterable[WaitingItem] = ()) -> None:
        self._items: dict[str, WaitingItem] = {}
        self._kinds: dict[QueuedKind, dict[str, WaitingItem]] = {}
        self._order = 0
        for item in sorted(items, key=lambda each: each.item.order):
            self.add(item)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[WaitingItem]:
        return iter(self._items.values())

    @property
    def next_order(self) -> int:
        """Greater than the order of everything that has waited in this process."""
        return self._order + 1

    def get(self, id: str) -> WaitingItem | None:
        """The item that was queued with this id, if it waits."""
        return self._items.get(id)

    def of(self, kind: QueuedKind) -> Mapping[str, WaitingItem]:
        """What waits of one kind, in the order it came."""
        return self._kinds.get(kind, {})

    def add(self, item: WaitingItem) -> None:
        """It is committed."""
        self._items[item.id] = item
        self._kinds.setdefault(item.item.kind, {})[item.id] = item
        self._order = max(self._order, item.item.order)

    def remove(self, items: Iterable[WaitingItem]) -> None:
        """These are placed, returned or cancelled."""
        for item in items:
            del self._items[item.id]
            del self._kinds[item.item.kind][item.id]

    def waiting(self, taken: Mapping[str, WaitingItem]) -> Waiting:
        """How much waits that an open operation may place, without what is ``taken`` already."""
        if len(self._items) == len(taken):
            return NOTHING_WAITS
        left = {kind: len(items) - sum(id in items for id in taken) for kind, items in self._kinds.items()}
        found = Waiting(left.get("write", 0), left.get("steer", 0), left.get("follow_up", 0))
        return NOTHING_WAITS if found == NOTHING_WAITS else found


def due(inbox: Inbox, verdict: PlaceQueued, taken: Mapping[str, WaitingItem]) -> Iterator[WaitingItem]:
    """Which items a verdict speaks of: of each kind the first that are not ``taken``, deferred writes before input."""
    kinds: tuple[tuple[QueuedKind, int], ...] = (
        ("write", verdict.writes),
        ("steer", verdict.steers),
        ("follow_up", verdict.follow_ups),
    )
    for kind, count in kinds:
        yield from islice((item for id, item in inbox.of(kind).items() if id not in taken), count)


class RecentReceipts:
    """Which receipts this process has written lately, so that two calls with one request id have one outcome."""

    def __init__(self) -> None:
        self.count = 0
        self._written: OrderedDict[str, int] = OrderedDict()

    def add(self, request_id: str) -> None:
        """A receipt is committed."""
        self.count += 1
        self._written[request_id] = self.count
        if len(self._written) > RECENT_MAX:
            self._written.popitem(last=False)

    def since(self, request_id: str, count: int) -> bool:
        """Whether one of that id may have been written after ``count`` of them were."""
        return self.count - count > RECENT_MAX or self._written.get(request_id, 0) > count


def restored_inboxes(inbox: Mapping[str, bytes], pending: Mapping[str, bytes]) -> dict[str, Inbox]:
    """The inboxes by lane, of all that is stored; half an item is ``CorruptSession``, which names the place."""
    found: dict[str, list[WaitingItem]] = {}
    for key, payload in inbox.items():
        place = f"inbox/{key}"
        lane, _, id = key.partition("|")
        item = codec.QUEUED.decode(payload, place)
        if not item.entries or item.entries[0] != id:
            raise CorruptSession(f"{place}: it names the entries {list(item.entries)}, not its own", place=place)
        payloads: list[bytes] = []
        for entry in item.entries:
            if entry not in pending:
                raise CorruptSession(f"{place}: its content is not at pending.entry/{entry}", place=place)
            payloads.append(pending[entry])
        bodies = tuple(codec.BODY.decode(each, f"pending.entry of {place}") for each in payloads)
        found.setdefault(lane, []).append(WaitingItem(item, tuple(payloads), bodies))
    return {lane: Inbox(items) for lane, items in found.items()}
