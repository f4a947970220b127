"""The invariants that speak of what a session holds, over one reading of it; part of ``invariants``."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from agentlane.clock import SystemClock
from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.operations import LaneState
from agentlane.data.records.check import RecordCheck
from agentlane.data.records.faults import KINDS
from agentlane.data.usage import Stats
from agentlane.data.writes import Address, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import AgentLaneError
from agentlane.machine.context import ModelContext
from agentlane.storage.contract import EntryRow, LedgerRow, SessionStorage
from agentlane.storage.memory import MemoryStore
from agentlane.testing.decoded import body_of, entry_of
from agentlane.testing.pair import check_pairing

OPERATION_VALUES = (
    *("op.meta", "op.config", "op.state", "op.args", "op.memo", "op.answer", "op.returned", "op.prep", "op.decision"),
)
PENDING_VALUES = ("pending.entry", "pending.output", "pending.approval")
KEPT_VALUES = (
    "branch.tip",
    "lane.config",
    "lane.state",
    "result",
    "receipt",
    "session.name",
    "session.feature",
    "label",
)
EXCUSED = frozenset({"missing_result", "stale_receipt"})
"""What may be wrong once operations and what waits were deleted: the next accept gives an answer its results, and a
receipt of what waited says so still."""


class Snapshot:
    """Everything that the predicates look at, read once."""

    def __init__(self, storage: SessionStorage, *, held: bool = False) -> None:
        self.storage = storage
        self.held = held
        self.entries: list[EntryRow] = []
        self.ledger: list[LedgerRow] = []
        self.values: dict[str, dict[str, bytes]] = {}
        self.frames: dict[str, list[bytes]] = {}
        self.stats = Stats()
        self._by_id: dict[str, EntryRow] = {}

    @classmethod
    async def read(cls, storage: SessionStorage, *, held: bool = False) -> Snapshot:
        self = cls(storage, held=held)
        self.entries = await storage.scan()
        self._by_id = {row.id: row for row in self.entries}
        self.ledger = await storage.usage()
        for namespace in (*OPERATION_VALUES, *PENDING_VALUES, *KEPT_VALUES, "inbox"):
            self.values[namespace] = await storage.values(namespace)
        for key in await storage.lists(addresses.PENDING_FRAMES):
            elements = await storage.elements(Address(addresses.PENDING_FRAMES, key))
            self.frames[key] = [element.payload for element in elements]
        self.stats = storage.stats()
        return self

    def holds(self) -> tuple[object, ...]:
        """All that was read: equal in two snapshots if nothing was written between, for states never come again."""
        return [row.id for row in self.entries], self.ledger, self.values, self.frames

    def tips(self) -> dict[str, str | None]:
        """Where each branch ends."""
        return {name: codec.OPTIONAL_TEXT.decode(each, name) for name, each in self.values["branch.tip"].items()}

    def lanes(self) -> dict[str, LaneState]:
        """The state of each lane."""
        return {name: codec.LANE_STATE.decode(each, name) for name, each in self.values["lane.state"].items()}

    def violations(self, excused: frozenset[str] = frozenset()) -> list[str]:
        """Everything that is wrong among the records, each behind the number of its invariant; then what the model
        would be shown."""
        check = RecordCheck(held=self.held, body_of=body_of)
        for entry in self.entries:
            check.entry(entry.id, entry.parent_id, entry.seq, entry.kind, entry.payload)
        for ledger in self.ledger:
            check.usage(ledger.row)
        for key, elements in self.frames.items():
            for element in elements:
                check.element(Address(addresses.PENDING_FRAMES, key), element)
        for namespace, values in self.values.items():
            for key, payload in values.items():
                check.value(Address(namespace, key), payload)
        found = [each for each in check.finish(self.stats) if each.code not in excused]
        return [*(f"{KINDS[each.code].invariant}: {each.text}" for each in found), *self._pairs()]

    def path(self, tip: str | None) -> list[Entry]:
        """From the root to ``tip``; ends early at a parent that is not there."""
        found: list[Entry] = []
        at = tip
        while at is not None and at in self._by_id and len(found) <= len(self.entries):
            found.append(entry_of(self._by_id[at]))
            at = found[-1].parent_id
        return found[::-1]

    def _pairs(self) -> Iterator[str]:
        for name, tip in self.tips().items():
            context = ModelContext()
            for entry in self.path(tip):
                context.add(entry.id, entry.body)
            yield from (f"I10: branch {name}: {line}" for line in check_pairing(context.view()))


async def without_operations(snapshot: Snapshot) -> list[str]:
    """I12, tried out: a copy of what is left in a session of its own, and what is wrong with that."""
    deleted = (*OPERATION_VALUES, *PENDING_VALUES, "inbox")
    if not any(snapshot.values[space] for space in deleted) and all(
        not each.current for each in snapshot.lanes().values()
    ):
        return []  # nothing is deleted, so what is left was looked at already
    try:
        store = MemoryStore(clock=SystemClock())
        storage = await store.open((await store.create("left")).id)
        writes: list[tuple[int, Write]] = []
        lanes = snapshot.lanes()
        for row in await snapshot.storage.scan():
            writes.append((row.seq, InsertEntry(row.id, row.parent_id, row.kind, row.payload)))
        writes += [(row.seq, InsertUsage(row.row)) for row in snapshot.ledger]
        values: list[Write] = []
        for space in KEPT_VALUES:
            for key, payload in snapshot.values[space].items():
                kept = payload
                if space == "lane.state":
                    kept = codec.encode(replace(lanes[key], current=None))
                values.append(SetValue(Address(space, key), kept))
        ordered = [write for _, write in sorted(writes, key=lambda each: each[0])]
        if ordered or values:
            storage.submit([*ordered, *values])
        left = await Snapshot.read(storage)
        found = left.violations(EXCUSED)
        for name, tip in snapshot.tips().items():
            if [entry.body for entry in left.path(tip)] != [entry.body for entry in snapshot.path(tip)]:
                found.append(f"branch {name} is another one")
        await store.close()
    except AgentLaneError as error:
        found = [f"nothing can be made of it: {error}"]
    return [f"I12: with its operations deleted: {line}" for line in found]
