"""The plain model of an inbox: what waits, in the order it came, and a receipt for what was given a request id."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

Body = tuple[Any, ...]
Key = str | tuple[str, int]
"""A request id; or, for what was submitted without one, the item that it waits as or the entry that it became."""


class Places(Protocol):
    """What takes entries at the tip of a branch."""

    def add(self, branch: str, body: Body) -> int: ...


@dataclass(frozen=True)
class Item:
    """What waits. ``number`` counts all that ever waited in the session; ``key`` is that of its receipt."""

    number: int
    lane: str
    kind: str
    bodies: tuple[Body, ...]
    submitted: bool = False
    key: Key | None = None

    def seen(self) -> tuple[Any, ...]:
        """As callers see it."""
        return (self.number, self.kind, self.bodies, self.submitted, "own" if isinstance(self.key, tuple) else self.key)


@dataclass(frozen=True)
class Receipt:
    """What became of a message. ``where``: its entries, or the item that it is or was."""

    kind: str
    bodies: tuple[Body, ...]
    submitted: bool
    where: tuple[Any, ...]
    state: str = "queued"
    op: str | None = None

    def seen(self) -> tuple[Any, ...]:
        """As callers see it."""
        return (self.kind, self.submitted, self.state, self.where, self.op)

    def says(self, kind: str, bodies: tuple[Body, ...], *, submitted: bool) -> bool:
        """Whether it is of this message."""
        return (self.kind, self.bodies, self.submitted) == (kind, bodies, submitted)


@dataclass
class Inbox:
    """All inboxes of the session, and all receipts."""

    items: list[Item] = field(default_factory=list)
    made: int = 0
    placed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The numbers of the items that are entries by now, and those entries."""
    receipts: dict[tuple[str, Key], Receipt] = field(default_factory=dict)

    def copy(self) -> Inbox:
        return Inbox(list(self.items), self.made, dict(self.placed), dict(self.receipts))

    def of(self, lane: str, *kinds: str) -> list[Item]:
        """What waits on a lane: all of it, or of these kinds."""
        return [item for item in self.items if item.lane == lane and (not kinds or item.kind in kinds)]

    def queue(
        self, lane: str, kind: str, bodies: tuple[Body, ...], key: str | None = None, *, submitted: bool = False
    ) -> Item:
        """Something waits from now on."""
        own = ("item", self.made) if submitted and key is None else key
        item = Item(self.made, lane, kind, bodies, submitted, own)
        self.made += 1
        self.items.append(item)
        if own is not None:
            self.receipts[lane, own] = Receipt(kind, bodies, submitted, ("item", item.number))
        return item

    def take_out(self, item: Item, state: str, op: str | None) -> None:
        """It waits no more."""
        self.items.remove(item)
        if item.key is not None:
            known = self.receipts[item.lane, item.key]
            self.receipts[item.lane, item.key] = replace(known, state=state, op=op)

    def place(self, item: Item, disk: Places, op: str, state: str = "placed") -> tuple[int, ...]:
        """It becomes entries at the tip of its lane."""
        self.take_out(item, state, op)
        entries = tuple(disk.add(item.lane, body) for body in item.bodies)
        self.placed[item.number] = entries
        if item.key is not None:
            known = self.receipts[item.lane, item.key]
            self.receipts[item.lane, item.key] = replace(known, where=entries)
        return entries
