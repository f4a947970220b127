"""The plain model of operations that are no runs: compactions that somebody asks for, and navigations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.plain import Refused
from tests.stateful.plain_pass import Observer, PlainRuns
from tests.stateful.plain_summaries import leaves_something, prepare
from tests.stateful.plain_summed import Apart
from tests.stateful.summing import UNIT, Compact, Leave


@dataclass
class PlainSumming(PlainRuns):
    """The plain model with them."""

    def summarize(self, lane: str, action: Compact | Leave, label: str) -> Any:
        disk, id = self.disk, self.new_id()
        tip = disk.tips[lane]
        if isinstance(action, Leave) and action.to is not None and action.to >= len(disk.entries):
            raise Refused("InvalidNavigation")
        if disk.lanes[lane].current is not None:
            raise Refused("LaneBusy")
        if isinstance(action, Leave) and action.label is not None and tip is None:
            raise Refused("InvalidNavigation")
        after = disk.copy()
        if isinstance(action, Compact):
            after.repair(lane)
        after.open(id, lane, None, (), tip, self.now, action.handle)
        op = after.ops[id]
        if isinstance(action, Compact):
            op.summed.apart = Apart("compact", None if action.keep is None else action.keep * UNIT)
            op.summed.next = "summarize"
            if tip is None or prepare(disk, op, self.summing, "manual") is None:
                raise Refused("NothingToCompact")
        else:
            base = _base(disk.path(tip), disk.path(action.to))
            op.summed.apart = Apart("navigate", to=action.to, label=action.label, base=base)
            if leaves_something(disk, tip, base, projects=self.summing.projects):
                op.summed.next = "summarize"
            else:
                op.at = "navigating"
        self.commit("accept", after)
        if not action.driven:
            return ("admitted", ())
        self.drive(Observer(label, lane, True), id, action.handle)
        return "started"


def _base(left: list[int], target: list[int]) -> int | None:
    """The last entry that both paths have."""
    return max((number for number in left if number in target), default=None)
