"""The plain model of what a session holds: dictionaries, and one commit after the other; each may fail, or kill.

``Plain`` is told the same calls as the real sessions and says what each must answer. It knows no storage, no event loop
and none of the library's code but the texts of results. What operations do is in ``plain_pass``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.stateful.programs import Call, Prompts

START_MS = 1_700_000_000_000


class Refused(Exception):
    """A call is refused with the error of this name, and nothing has changed."""


class Faulted(Exception):
    """A write failed: the session does nothing more until it is reopened."""


class Died(Exception):
    """The process is gone."""


class Entry(NamedTuple):
    """An entry; its number is its place in ``Disk.entries``. ``call`` is what a result answers: (answer, index)."""

    parent: int | None
    body: tuple[Any, ...]
    call: tuple[int, int] | None = None


class Row(NamedTuple):
    """A row of the ledger. ``tokens`` are input, output and cost; None is unknown."""

    kind: str
    tokens: tuple[int | None, int | None, int | None]
    entry: int | None
    op: str | None
    model: int | None = None


@dataclass
class CallState:
    """One call of the current batch. ``body`` is its outcome once it has one."""

    tool: str
    status: str = "planned"
    policy: str | None = None
    attempt: int = 0
    replays: int = 0
    stop: bool = False
    body: tuple[Any, ...] | None = None
    progress: str | None = None
    memo: int | None = None


@dataclass
class Op:
    """An open operation: what it is, and where to go on."""

    id: str
    lane: str
    prompt: int
    inputs: tuple[int, ...]
    from_tip: int | None
    started_at: int
    tools: tuple[str, ...]
    model: int
    settings: dict[str, int]
    at: str = "checkpoint"
    finish: bool = False
    code: str | None = None
    turn: int = 0
    answer: int | None = None
    attempt: int = 0
    retries: int = 0
    restarts: int = 0
    not_before: int = 0
    error: str | None = None
    cancelled: bool = False
    asked: int = 0
    """The model of the request that is under way."""
    frames: str | None = None
    calls: list[CallState] = field(default_factory=list)
    batch: tuple[Call, ...] = ()
    cut: bool = False

    def copy(self) -> Op:
        return replace(self, calls=[replace(call) for call in self.calls])


@dataclass
class Lane:
    """A lane's configuration (None: what the agent says) and its operations."""

    model: int | None = None
    tools: tuple[str, ...] | None = None
    settings: dict[str, int] | None = None
    current: str | None = None
    last: str | None = None


@dataclass
class Disk:
    """Everything that is durable."""

    entries: list[Entry] = field(default_factory=list)
    tips: dict[str, int | None] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    ops: dict[str, Op] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    ledger: list[Row] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    lists: dict[str, list[int]] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    name: str | None = None

    def copy(self) -> Disk:
        return Disk(
            list(self.entries),
            dict(self.tips),
            {name: replace(lane) for name, lane in self.lanes.items()},
            {id: op.copy() for id, op in self.ops.items()},
            dict(self.results),
            list(self.ledger),
            dict(self.values),
            {key: list(elements) for key, elements in self.lists.items()},
            dict(self.labels),
            self.name,
        )

    def path(self, tip: int | None) -> list[int]:
        """The numbers of the entries from the root to ``tip``."""
        found = []
        while tip is not None:
            found.append(tip)
            tip = self.entries[tip].parent
        return found[::-1]

    def add(self, branch: str, body: tuple[Any, ...], call: tuple[int, int] | None = None) -> int:
        """Append an entry to a branch."""
        self.entries.append(Entry(self.tips[branch], body, call))
        self.tips[branch] = len(self.entries) - 1
        return len(self.entries) - 1

    def batch(self, branch: str) -> tuple[int, tuple[str, ...], set[int]] | None:
        """The answer whose calls the path has not all answered: its number, its tools, and the open calls."""
        found: tuple[int, tuple[str, ...], set[int]] | None = None
        for number in self.path(self.tips[branch]):
            entry = self.entries[number]
            if entry.body[0] == "user":
                found = None
            elif entry.body[0] == "assistant" and entry.body[2] not in ("error", "aborted"):
                tools = entry.body[4]
                found = (number, tools, set(range(len(tools)))) if tools else None
            elif entry.call is not None and found is not None and entry.call[0] == found[0]:
                found[2].discard(entry.call[1])
                found = found if found[2] else None
        return found

    def repair(self, branch: str) -> None:
        """Behind a batch without all of its results, each call gets one that says so."""
        found = self.batch(branch)
        if found is not None:
            answer, tools, missing = found
            for index in sorted(missing):
                self.add(branch, ("result", tools[index], "not available", True), (answer, index))

    def unanswered(self, branch: str) -> tuple[int, ...]:
        """The user messages behind the last good answer of the path."""
        found: list[int] = []
        for number in self.path(self.tips[branch]):
            body = self.entries[number].body
            if body[0] == "user":
                found.append(number)
            elif body[0] == "assistant" and body[2] not in ("error", "aborted"):
                found.clear()
        return tuple(found)

    def shown(self, branch: str) -> list[tuple[Any, ...]]:
        """What a model is shown of the path: errors left out, every call with its result."""
        messages: list[tuple[Any, ...]] = []
        waiting: dict[tuple[int, int], tuple[Any, ...] | None] = {}
        tools: dict[tuple[int, int], str] = {}

        def close() -> None:
            for call, result in waiting.items():
                messages.append(result or ("result", tools[call], "not available", True))
            waiting.clear()

        for number in self.path(self.tips[branch]):
            body, call = self.entries[number].body, self.entries[number].call
            if body[0] == "user":
                close()
                messages.append(body)
            elif body[0] == "assistant" and body[2] not in ("error", "aborted"):
                close()
                if body[1] or body[4]:
                    messages.append(("assistant", body[1], body[4]))
                for index, tool in enumerate(body[4]):
                    waiting[number, index], tools[number, index] = None, tool
            elif call in waiting and waiting[call] is None:
                waiting[call] = body
                if all(waiting.values()):
                    close()
        close()
        return messages

    def totals(self, op: str | None = None) -> tuple[int, ...]:
        """Rows, rows that are unknown, and the sums of the ledger's tokens and cost; ``op``: of its attempts alone."""
        rows = [row for row in self.ledger if op is None or (row.op == op and row.kind == "attempt")]
        unknown = sum(row.kind == "attempt" and None in row.tokens[:2] for row in rows)
        return (len(rows), unknown, *(sum(row.tokens[i] or 0 for row in rows) for i in range(3)))


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

    def append_entry(self, branch: str, text: str | None, assistant: bool) -> None:
        if branch not in self.disk.tips:
            raise Refused("UnknownBranch")
        lane = self.disk.lanes.get(branch)
        if lane is not None and lane.current is not None:
            raise Refused("LaneBusy")
        after = self.disk.copy()
        if text is None:
            after.add(branch, ("custom", "note", 1))
        else:
            after.repair(branch)
            after.add(branch, ("assistant", text, "stop", None, (), (), None) if assistant else ("user", text))
        self.commit("append", after)

    # What can be seen.

    def view(self, *, results: Collection[str] | None = None) -> dict[str, Any]:
        """What the public reads of an open session must show; ``results``: those that are read, or all."""
        disk = self.disk
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
            "results": {id: each for id, each in disk.results.items() if results is None or id in results},
            "stats": (len(disk.entries), *disk.totals()),
            "ledger": [tuple(row) for row in disk.ledger],
        }


def seen(op: Op) -> tuple[Any, ...]:
    """An open operation as an inspection shows it."""
    counted = op.at in ("generating", "retry_wait")
    calls = tuple(
        (
            call.tool,
            call.status,
            *((call.policy, call.attempt, call.replays) if call.status == "effect_pending" else (None, 0, 0)),
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
        op.not_before if op.at == "retry_wait" else None,
        calls if op.at == "tools" else (),
    )
