"""The plain model of results that come from outside, when their tools have long returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.delivery import Deliver
from tests.stateful.plain import Refused
from tests.stateful.plain_decision import Decision
from tests.stateful.plain_disk import Op
from tests.stateful.plain_pass import Pass
from tests.stateful.plain_people import PlainPeople


@dataclass
class PlainDelivery(PlainPeople):
    """The plain model with results that are delivered."""

    def call_to_deliver(self, lane: str, which: int) -> tuple[int, int] | None:
        """The call that a step names; None: one that nobody knows."""
        op = self._batch_of(lane)
        calls = (
            [] if op is None else [(call.status != "waiting_external", index) for index, call in enumerate(op.calls)]
        )
        found = [(op.answer or 0, index) for _, index in sorted(calls)] if op is not None else []
        found += [entry.call for entry in reversed(self.disk.entries) if entry.call is not None]
        return found[which] if which < len(found) else None

    def deliver(self, lane: str, action: Deliver) -> Any:
        op, call = self._batch_of(lane), action.call
        mine = op is not None and call is not None and call[0] == op.answer
        if op is None or call is None or not mine or op.cancelled or op.calls[call[1]].status != "waiting_external":
            became = "placed" if any(entry.call == call for entry in self.disk.entries if call) else "unknown"
            if op is not None and call is not None and mine:
                became = op.calls[call[1]].seen
                became = "aborting" if became == "waiting_external" else became
            return ("refused", "ApprovalNotPending", became)
        if action.end == "bad":
            raise Refused("InvalidMessage")
        decision = Decision(self, Pass(lane, op.id, action.handle), self.disk.copy())
        decision.names.append("delivery")
        failed = action.end == "raise"
        body = ("result", op.calls[call[1]].tool, "raised" if failed else "delivered", failed)
        decision.take(None, [(call[1], body, action.end == "stop")])
        self.commit("+".join(decision.names), decision.draft)
        if lane in self.passes:
            self.advance(self.passes[lane])
        return "done"

    def _batch_of(self, lane: str) -> Op | None:
        its = self.disk.lanes.get(lane)
        op = None if its is None or its.current is None else self.disk.ops[its.current]
        return op if op is not None and op.at == "tools" else None
