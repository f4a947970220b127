"""The plain model of what is durable: entries, lanes and their operations, in dictionaries and lists."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.stateful.again import LIMITS, Limits
from tests.stateful.plain_asked import Asked, Decided
from tests.stateful.plain_context import shown
from tests.stateful.plain_inbox import Inbox, Item
from tests.stateful.plain_summed import Summed
from tests.stateful.programs import TOOLS_OF_HANDLE, Call
from tests.stateful.talk import PLACING


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
    mark: str = ""
    """What hooks made of its arguments."""
    approval: int | None = None
    """The number of what is asked about it, or by which it may run."""
    permit: bool = False
    """A yes for a replay that has not started."""
    answers: tuple[int, ...] = ()
    """What was answered to its questions."""
    resumed: bool = False
    """It was started again since it has an answer."""

    @property
    def seen(self) -> str:
        """How far it is, as an inspection shows it."""
        return "approved" if self.permit and self.body is None else self.status


@dataclass
class Op:
    """An open operation: what it is, and where to go on."""

    id: str
    lane: str
    prompt: int | None
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
    steering: str = "all"
    follow_ups: str = "one"
    placed: bool = False
    """Input was placed since the last answer."""
    returned: tuple[Item, ...] = ()
    """What an abort gave back."""
    asked: int = 0
    """The model of the request that is under way."""
    frames: str | None = None
    framed: tuple[str, ...] = ()
    """What was shown of the answer: its text, and the tools it calls."""
    pushed: int = 0
    """How much hooks had to say behind answers."""
    calls: list[CallState] = field(default_factory=list)
    batch: tuple[Call, ...] = ()
    cut: bool = False
    asking: dict[int, Asked] = field(default_factory=dict)
    """What waits for people, by call."""
    decisions: tuple[Decided, ...] = ()
    changed: dict[int, str] = field(default_factory=dict)
    """The ends of calls of this batch that run with other arguments than the model's."""
    limits: Limits = field(default_factory=Limits)
    time_ms: int = 0
    asked_for: list[tuple[Any, ...]] = field(default_factory=list)
    """The calls of each answer, as far as they are the same."""
    key_operation: str = ""
    parent: str | None = None
    """The operation that this one is a call of."""
    summed: Summed = field(default_factory=Summed)

    def copy(self) -> Op:
        calls = [replace(call) for call in self.calls]
        return replace(
            self,
            calls=calls,
            asking=dict(self.asking),
            changed=dict(self.changed),
            asked_for=list(self.asked_for),
            summed=self.summed.copy(),
        )


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
    inbox: Inbox = field(default_factory=Inbox)
    asked: int = 0
    """How much was ever asked."""
    kin: dict[str, int] = field(default_factory=dict)
    """The calls that became operations, in that order, and with which handle a host opens their lanes."""

    retries: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    """Operations that try another one again: on which lane, which one, and whether with its keys."""

    batches: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The calls of each answer that settled to run them, as far as they are the same."""

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
            self.inbox.copy(),
            self.asked,
            dict(self.kin),
            dict(self.retries),
            dict(self.batches),
        )

    def asking(self, lane: str) -> list[int]:
        """The numbers of what waits for people on a lane, the oldest first."""
        current = self.lanes[lane].current
        asking = () if current is None else self.ops[current].asking.values()
        return [asked.number for asked in sorted(asking)]

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

    def open(
        self,
        id: str,
        lane: str,
        prompt: int | None,
        inputs: tuple[int, ...],
        from_tip: int | None,
        now: int,
        handle: int,
    ) -> None:
        """An operation is open from now on, with what the lane and the agent of a handle say."""
        config = self.lanes[lane]
        steering, follow_ups = PLACING[handle]
        self.ops[id] = Op(
            id=id,
            lane=lane,
            prompt=prompt,
            inputs=inputs,
            from_tip=from_tip,
            started_at=now,
            tools=TOOLS_OF_HANDLE[handle] if config.tools is None else config.tools,
            model=config.model or 0,
            settings=config.settings or {},
            steering=steering,
            follow_ups=follow_ups,
            limits=LIMITS[handle],
            key_operation=id,
        )
        config.current = id

    def batch(self, branch: str) -> tuple[int, tuple[str, ...], set[int]] | None:
        """The answer whose calls the path has not all answered: its number, its tools, and the open calls."""
        found: tuple[int, tuple[str, ...], set[int]] | None = None
        for number in self.path(self.tips[branch]):
            entry = self.entries[number]
            if entry.body[0] in ("user", "branch_summary"):
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

    def shown(self, branch: str, *, projects: bool = False) -> list[tuple[Any, ...]]:
        """What a model is shown of the path."""
        return shown(self.entries, self.path(self.tips[branch]), projects=projects).messages

    def totals(self, op: str | None = None) -> tuple[int, ...]:
        """Rows, rows that are unknown, and the sums of the ledger's tokens and cost; ``op``: of its attempts alone."""
        rows = [row for row in self.ledger if op is None or (row.op == op and row.kind != "adjustment")]
        unknown = sum(row.kind != "adjustment" and None in row.tokens[:2] for row in rows)
        return (len(rows), unknown, *(sum(row.tokens[i] or 0 for row in rows) for i in range(3)))
