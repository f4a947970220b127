"""The plain model of what a session holds: dictionaries, and one commit after the other; each may fail, or kill.

``Plain`` is told the same calls as the real sessions and says what each must answer. It knows no storage, no event loop
and none of the library's code but the texts of results. What operations do is in ``plain_pass``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tests.stateful.plain_disk import Disk, Lane, Op, Row
from tests.stateful.plain_inbox import Item
from tests.stateful.programs import Prompts

START_MS = 1_700_000_000_000


class Refused(Exception):
    """A call is refused with the error of this name, and nothing has changed."""


class Faulted(Exception):
    """A write failed: the session does nothing more until it is reopened."""


class Died(Exception):
    """The process is gone."""


@dataclass
class Plain:
    """The session's owner: what is durable, whether it is open, and what stands to go wrong."""

    prompts: Prompts
    disk: Disk = field(default_factory=Disk)
    phase: str = "down"
    now: int = START_MS
    trace: list[str] = field(default_factory=list)
    """The boundaries of this life, in order."""
    muted: bool = False
    kills: set[int] = field(default_factory=set)
    failing: tuple[int, str] | None = None
    """How many commits from now the failing one is (from 1), and how far it gets."""
    left_over: Disk | None = None
    """What a failed write has left, once its storage is closed; a kill before that leaves nothing of it."""

    def reach(self, boundary: str) -> None:
        if self.muted:
            return
        self.trace.append(boundary)
        if len(self.trace) - 1 in self.kills:
            raise Died(boundary)

    def commit(self, name: str, after: Disk) -> None:
        """Make ``after`` what is durable, unless it fails or kills before."""
        if self.failing is not None:
            left, where = self.failing
            self.failing = (left - 1, where) if left > 1 else None
            if left == 1:
                self.left_over = after if where == "after" else None
                raise Faulted(name)
        self.reach(f"commit.{name}.before")
        self.reach(f"commit.{name}.inside")
        self.disk = after
        self.reach(f"commit.{name}.after")

    def take_left_over(self) -> None:
        """The storage of a failed write is closed."""
        self.disk, self.left_over = self.left_over or self.disk, None

    # What has nothing to do with operations.

    def set_value(self, key: str, value: int | None) -> None:
        after = self.disk.copy()
        if value is None:
            after.values.pop(key, None)
        else:
            after.values[key] = value
        self.commit("value", after)

    def append(self, key: str, value: int | None) -> None:
        after = self.disk.copy()
        if value is None:
            after.lists.pop(key, None)
        else:
            after.lists.setdefault(key, []).append(value)
        self.commit("list", after)

    def set_name(self, text: str | None) -> None:
        after = self.disk.copy()
        after.name = text
        self.commit("name", after)

    def check_entry(self, entry: int | None) -> None:
        if entry is not None and entry >= len(self.disk.entries):
            raise Refused("UnknownEntry")

    def set_label(self, entry: int, text: str | None) -> None:
        self.check_entry(entry)
        after = self.disk.copy()
        if text is None:
            after.labels.pop(entry, None)
        else:
            after.labels[entry] = text
        self.commit("label", after)

    def adjust(self, cost: int, op: str | None, entry: int | None) -> None:
        self.check_entry(entry)
        after = self.disk.copy()
        after.ledger.append(Row("adjustment", (None, None, cost), entry, op))
        self.commit("usage", after)

    def create_branch(self, name: str, at: int | None) -> None:
        self.check_entry(at)
        if name in self.disk.tips:
            raise Refused("InvalidName")
        after = self.disk.copy()
        after.tips[name] = at
        self.commit("branch", after)

    def make_lane(self, name: str, at: int | None) -> None:
        """A lane that is there is only opened; ``at`` is not even looked at then."""
        if name in self.disk.lanes:
            return
        self.check_entry(at)
        after = self.disk.copy()
        after.tips.setdefault(name, at)
        after.lanes[name] = Lane()
        self.commit("lane", after)

    def append_entry(self, branch: str, text: str | None, assistant: bool) -> Any:
        """Placed at once, or while an operation is open at its next boundary."""
        if branch not in self.disk.tips:
            raise Refused("UnknownBranch")
        lane = self.disk.lanes.get(branch)
        after = self.disk.copy()
        body: tuple[Any, ...] = ("custom", "note", 1) if text is None else ("user", text)
        if text is not None and assistant:
            body = ("assistant", text, "stop", None, (), (), None)
        if lane is not None and lane.current is not None:
            item = after.inbox.queue(branch, "write", (body,))
            self.commit("queue", after)
            return ("queued", first(self.queued(item)), "write")
        if text is not None:
            after.repair(branch)
        after.add(branch, body)
        self.commit("append", after)
        return "done"

    def poke(self, lane: str) -> None:
        """Something changed: whoever drives the lane looks again."""

    def queued(self, item: Item) -> tuple[Any, ...]:
        """Something waits now; where it is by the time that everybody has looked."""
        self.poke(item.lane)
        if self.phase == "faulted":
            return ("item", None)  # nobody can look
        return self.disk.inbox.placed.get(item.number, ("item", item.number))

    # What can be seen.

    def view(self, *, results: Collection[str] | None = None) -> dict[str, Any]:
        """What the public reads of an open session must show; ``results``: those that are read, or all."""
        disk = self.disk
        told = disk.results if disk.lanes else {}  # it is a lane that one asks
        return {
            "branches": {name: disk.tips[name] for name in sorted(disk.tips)},
            "lanes": {name: (disk.tips[name], lane.current, lane.last) for name, lane in sorted(disk.lanes.items())},
            "entries": [(entry.parent, entry.body) for entry in disk.entries],
            "paths": {name: disk.path(tip)[::-1] for name, tip in sorted(disk.tips.items())},
            "values": dict(sorted(disk.values.items())),
            "lists": dict(sorted(disk.lists.items())),
            "labels": dict(sorted(disk.labels.items())),
            "name": disk.name,
            "open": {id: seen(op) for id, op in disk.ops.items()},
            "results": {id: each for id, each in told.items() if results is None or id in results},
            "inbox": {name: [item.seen() for item in disk.inbox.of(name)] for name in sorted(disk.lanes)},
            "receipts": {place: receipt.seen() for place, receipt in disk.inbox.receipts.items()},
            "asked": sorted((tuple(each) for op in disk.ops.values() for each in op.asking.values()), key=_oldest),
            "stats": (len(disk.entries), *disk.totals()),
            "ledger": [tuple(row) for row in disk.ledger],
        }


def first(where: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where the first message of an item is: the item itself, or an entry."""
    return where if where[0] == "item" else where[:1]


def _oldest(asked: tuple[Any, ...]) -> tuple[int, int]:
    return (asked[6], asked[0])


def seen(op: Op) -> tuple[Any, ...]:
    """An open operation as an inspection shows it."""
    counted = op.at in ("generating", "retry_wait", "summarizing", "summary_wait")
    calls = tuple(
        (
            call.tool,
            call.seen,
            *((call.policy, call.attempt, call.replays) if call.attempt and call.body is None else (None, 0, 0)),
            call.approval if call.body is None else None,
        )
        for call in op.calls
    )
    return (
        op.lane,
        op.at,
        op.inputs,
        op.turn,
        op.attempt if counted else 0,
        op.restarts if counted else 0,
        op.cancelled,
        op.not_before if op.at in ("retry_wait", "summary_wait") else None,
        op.parent,
        calls if op.at == "tools" else (),
    )
