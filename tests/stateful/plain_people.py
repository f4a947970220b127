"""The plain model of what people are asked before calls start or run again, and of what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.people import Decide
from tests.stateful.plain import Refused
from tests.stateful.plain_asked import Asked
from tests.stateful.plain_calls import result_of
from tests.stateful.plain_decision import Decision
from tests.stateful.plain_pass import Pass
from tests.stateful.plain_talk import PlainTalk
from tests.stateful.programs import TOOLS_OF_HANDLE


@dataclass
class PlainPeople(PlainTalk):
    """The plain model with people that are asked."""

    def which(self, lane: str, back: int) -> int:
        """The number of what a step names: what waits on the lane first, then all that was asked, from the newest."""
        waiting = [asked.number for _, asked in sorted(self._asking(lane).items())]
        made = self.disk.asked
        back -= len(waiting)
        return waiting[back] if back < 0 else made - 1 - back if back < made else made

    def late(self, lane: str, number: int) -> bool:
        """Whether the time to answer this is over, and it waits all the same."""
        return any(asked.number == number and asked.is_over(self.now) for asked in self._asking(lane).values())

    def decide(self, lane: str, action: Decide) -> Any:
        found = self.find_asked(lane, action.which)
        if found is None:
            return self.not_pending(lane, action.which)
        index, asked = found
        if asked.kind == "question":
            raise Refused("InvalidMessage")
        self._check_arguments(asked, action)
        words = "why" if action.signed else None
        op = self.disk.ops[asked.op]
        decision = Decision(self, Pass(lane, op.id, action.handle), self.disk.copy())
        if asked.is_over(self.now):
            allowed = False
            decision.decide(index, allow=False, expired=True)
        else:
            allowed = action.allow
            decision.decide(index, allow=allowed, signed=words, changed=action.args is not None)
        call = decision.op.calls[index]
        if allowed:
            call.status, call.permit = ("effect_pending", True) if call.attempt else ("approved", False)
            if action.args is not None:
                decision.op.changed[index] = action.args
        else:
            why = "expired" if asked.is_over(self.now) else f"denied: {words}" if words else "denied"
            decision.take(None, [(index, result_of(call, "interrupted" if call.attempt else why), False)])
        told = decision.draft.ops[op.id].decisions[-1]
        self.commit("+".join(dict.fromkeys(decision.names)), decision.draft)
        if lane in self.passes:
            self.advance(self.passes[lane])
        return ("refused", "ApprovalNotPending", "expired") if told.expired else ("decided", tuple(told))

    def _check_arguments(self, asked: Asked, action: Decide) -> None:
        if action.args is None:
            return
        unfit = action.args == "bad" and asked.tool in TOOLS_OF_HANDLE[action.handle]
        if not action.allow or asked.kind == "replay" or unfit:
            raise Refused("InvalidMessage")

    def _asking(self, lane: str) -> dict[int, Asked]:
        its = self.disk.lanes.get(lane)
        return {} if its is None or its.current is None else self.disk.ops[its.current].asking

    def find_asked(self, lane: str, number: int) -> tuple[int, Asked] | None:
        """What waits on a lane under this number, and the call that it is about."""
        return next((each for each in self._asking(lane).items() if each[1].number == number), None)

    def not_pending(self, lane: str, number: int) -> Any:
        its = self.disk.lanes[lane]
        decided = () if its.current is None else self.disk.ops[its.current].decisions
        decided += () if its.last is None else self.disk.results[its.last]["decisions"]
        became = next((each.became for each in decided if each.number == number), "unknown")
        return ("refused", "ApprovalNotPending", became)
