"""The plain model of an abort: of an operation and all that runs for it, in one commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful import plain_kin as kin
from tests.stateful.plain_calls import result_of
from tests.stateful.plain_pass import Pass, PlainRuns


@dataclass
class PlainAborts(PlainRuns):
    """The plain model with aborts."""

    def abort(self, lane: str, op: str) -> tuple[Any, ...]:
        if op != self.disk.lanes[lane].current:
            record = self.settled(lane, op)
            return ("abort", False, record["status"], record["returned"])
        if self.disk.ops[op].cancelled:
            return ("abort", False, "cancel_requested", tuple(item.seen() for item in self.disk.ops[op].returned))
        after = self.disk.copy()
        family = [each for each in kin.family_of(after, after.ops[op]) if not each.cancelled]
        for each in family:
            each.cancelled, each.returned = True, tuple(after.inbox.of(each.lane, "steer", "follow_up"))
            for item in each.returned:
                after.inbox.take_out(item, "returned", each.id)
            each.asking.clear()
        self.commit("abort", after)
        above = list(kin.ancestors_of(after, after.ops[op]))
        running = [self.passes.get(each.lane) for each in (*family, *above)]
        for each, its in zip((*family, *above), running, strict=True):
            if its is not None and self.passes.get(each.lane) is its:
                self._signal(its)
        return ("abort", True, "cancel_requested", tuple(item.seen() for item in family[0].returned))

    def _signal(self, running: Pass) -> None:
        """An abort is committed, perhaps of this operation: what runs of it is ended."""
        answered, outcomes = None, []
        op = self.disk.ops[running.op]
        if op.cancelled and running.request is not None:
            self.reach(self.end_of_request(running))
            answered = (running.within or "aborted", running.request)
            running.request = running.unsaved = running.within = None
        for index in list(running.live) if op.cancelled else ():
            if op.calls[index].status == "effect_pending":
                self.reach("effect.tool.end")
                outcomes.append((index, result_of(op.calls[index], "aborted"), False))
                running.live.remove(index)
        if op.cancelled:
            running.gates.drop()
        self.advance(running, answered, outcomes)
