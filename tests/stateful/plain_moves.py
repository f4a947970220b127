"""The plain model of lanes that move, of branches that are renamed or deleted, and of handles that somebody kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.stateful.moves import (
    KEPT_TEXT,
    DeleteBranch,
    KeepHandle,
    Move,
    Navigate,
    RenameBranch,
    Rewind,
    UseHandle,
)
from tests.stateful.plain import Refused, first
from tests.stateful.plain_disk import Disk
from tests.stateful.plain_inbox import Item
from tests.stateful.plain_pass import PlainRuns
from tests.stateful.programs import BRANCHES, LANES


@dataclass
class Place:
    """What handles of a branch hold on to: it has a name, and goes with it until it is deleted."""

    name: str
    gone: bool = False


@dataclass
class PlainMoves(PlainRuns):
    """The plain model with its branches on the move."""

    places: dict[str, Place] = field(default_factory=dict)
    kept: list[tuple[Place, bool]] = field(default_factory=list)
    """The handles that were kept in this life, and whether they are those of lanes."""

    def forget_handles(self) -> None:
        """A new process holds none."""
        self.places.clear()
        self.kept.clear()

    def concrete_move(self, step: Move) -> Move:
        """``step`` with the entries that it names looked up."""
        count = len(self.disk.entries) + 1
        match step:
            case Navigate(to=int(to)):
                return replace(step, to=to % count)
            case Rewind(lane, before, of_user=True):
                path = self.disk.path(self.disk.tips.get(LANES[lane]))
                users = [number for number in reversed(path) if self.disk.entries[number].body[0] == "user"]
                return replace(step, before=users[before % len(users)] if users else count - 1, of_user=False)
            case Rewind(before=before):
                return replace(step, before=before % count)
            case _:
                return step

    def move(self, action: Move) -> Any:
        match action:
            case Navigate(lane, to, label):
                self.make_lane(LANES[lane], None)
                return self._navigate(LANES[lane], to, label)
            case Rewind(lane, before, label):
                self.make_lane(LANES[lane], None)
                return self._rewind(LANES[lane], before, label)
            case RenameBranch(branch, name):
                self._rename(BRANCHES[branch], BRANCHES[name])
            case DeleteBranch(branch):
                self._delete(BRANCHES[branch])
            case KeepHandle(branch):
                name = BRANCHES[branch]
                self._check(name)
                self.kept.append((self._place(name), name in self.disk.lanes))
            case UseHandle(which, use):
                return self._use(*self.kept[-1 - which % len(self.kept)], use) if self.kept else "nothing"
        return "done"

    def _navigate(self, name: str, to: int | None, label: str | None) -> Any:
        if to is not None and to >= len(self.disk.entries):
            raise Refused("InvalidNavigation")
        return ("moved", *self._go(name, to, label, ()))

    def _rewind(self, name: str, before: int, label: str | None) -> Any:
        path = self.disk.path(self.disk.tips[name])
        if before not in path or self.disk.entries[before].body[0] != "user":
            raise Refused("InvalidNavigation")
        said: list[str] = []
        for number in path[path.index(before) :]:
            body = self.disk.entries[number].body
            if body[0] != "user":
                break
            said.append(body[1])
        return ("moved", *self._go(name, self.disk.entries[before].parent, label, tuple(said)), tuple(said))

    def _go(self, name: str, to: int | None, label: str | None, said: tuple[str, ...]) -> tuple[int | None, int | None]:
        left = self.disk.tips[name]
        self._check_idle(name)
        if to != left:
            self.ask_to_move(name, to, label, said)
        if label is not None and left is None:
            raise Refused("InvalidNavigation")
        after = self.disk.copy()
        after.tips[name] = to
        if label is not None and left is not None:
            after.labels[left] = label
        if to != left or label is not None:
            self.commit("navigate", after)
        return left, to

    def _rename(self, old: str, new: str) -> None:
        self._check(old)
        if old == new:
            return
        self._check_idle(old)
        if new in self.disk.tips:
            raise Refused("InvalidName")
        after = self.disk.copy()
        after.tips[new] = after.tips.pop(old)
        if old in after.lanes:
            after.lanes[new] = after.lanes.pop(old)
        waiting = after.inbox
        waiting.items = [_moved(item, old, new) for item in waiting.items]
        waiting.receipts = {(new if at == old else at, key): each for (at, key), each in waiting.receipts.items()}
        self.commit("rename_branch", after)
        if new in self.places:
            self.places[new].gone = True
        self.places[new] = self._place(old)
        del self.places[old]
        self.places[new].name = new

    def _delete(self, name: str) -> None:
        self._check(name)
        self._check_idle(name)
        after = self.disk.copy()
        del after.tips[name]
        after.lanes.pop(name, None)
        _forget(after, name)
        self.commit("delete_branch", after)
        self._place(name).gone = True
        del self.places[name]

    def _use(self, place: Place, of_lane: bool, use: str) -> Any:
        name = place.name
        if place.gone:
            raise Refused("UnknownBranch")
        self._check(name)
        if use == "append":
            return self.append_entry(name, KEPT_TEXT, False)
        if use == "navigate" and of_lane:
            return self._navigate(name, None, None)
        if use in ("accept", "steer") and of_lane:
            if name not in self.disk.lanes:
                raise Refused("UnknownOperation")
            return self._speak(name, use)
        return ("at", name, self.disk.tips[name])

    def _speak(self, name: str, use: str) -> Any:
        if use == "accept":
            return self.accept(name, self.new_id(), 0, 0)
        after = self.disk.copy()
        item = after.inbox.queue(name, "steer", (("user", KEPT_TEXT),))
        self.commit("queue", after)
        return ("queued", first(self.queued(item)), "steer")

    def _place(self, name: str) -> Place:
        return self.places.setdefault(name, Place(name))

    def _check(self, name: str) -> None:
        if name not in self.disk.tips:
            raise Refused("UnknownBranch")

    def _check_idle(self, name: str) -> None:
        lane = self.disk.lanes.get(name)
        if lane is not None and lane.current is not None:
            raise Refused("LaneBusy")


def _moved(item: Item, old: str, new: str) -> Item:
    return replace(item, lane=new) if item.lane == old else item


def _forget(disk: Disk, lane: str) -> None:
    """What waits on a lane is gone with it, and so is what was known of it."""
    disk.inbox.items = [item for item in disk.inbox.items if item.lane != lane]
    disk.inbox.receipts = {place: each for place, each in disk.inbox.receipts.items() if place[0] != lane}
