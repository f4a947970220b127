"""The plain model of what tools ask while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.plain import Refused
from tests.stateful.plain_decision import Decision
from tests.stateful.plain_delivery import PlainDelivery
from tests.stateful.plain_pass import Pass
from tests.stateful.questions import Answer


@dataclass
class PlainQuestions(PlainDelivery):
    """The plain model with tools that ask."""

    def answer(self, lane: str, action: Answer) -> Any:
        found = self.find_asked(lane, action.which)
        if found is None:
            return self.not_pending(lane, action.which)
        index, asked = found
        if asked.kind != "question":
            raise Refused("InvalidMessage")
        decision = Decision(self, Pass(lane, asked.op, 0), self.disk.copy())
        told = decision.close(index, allow=True, signed="why" if action.signed else None)
        call = decision.op.calls[index]
        call.status, call.approval, call.answers = "answered", None, (*call.answers, action.value)
        self.commit("answer", decision.draft)
        if lane in self.passes:
            self.advance(self.passes[lane])
        return ("decided", tuple(told))
