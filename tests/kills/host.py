"""What a host does for a lane beside driving it: says more, answers what is asked, delivers what comes later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentlane import AgentLane, AgentTool, Session
from agentlane.data.results import ChildReason, ExternalReason, Settled, WaitReason
from tests.kills.reports import Answered, Delivered, Report, Said
from tests.kills.work import REFUSAL, Turn, allows, done

LATER = "later:3"


class Host:
    """One lane's host in one process. What it did in an earlier one and was told of, it does not do again."""

    def __init__(self, session: Session, lane: AgentLane[Any, Any], tell: Callable[[Report], None]) -> None:
        self._session = session
        self._lane = lane
        self._tell = tell

    async def speak(self, id: str, turn: Turn) -> None:
        """Say what is said besides a prompt; said again after a death, each is the same message."""
        for number, (kind, text, _) in enumerate(turn.besides):
            request_id = f"{id}-{number}"
            if kind == "steer":
                self._tell(Said((await self._lane.steer(text, request_id=request_id)).id))
            elif kind == "follow_up":
                self._tell(Said((await self._lane.follow_up(text, request_id=request_id)).id))
            elif kind == "submit":
                self._tell(Said((await self._lane.submit(text, request_id=request_id)).entries[0]))

    async def drive(self, id: str) -> Settled:
        """Drive an operation to its end, whoever has to answer on the way."""
        while True:
            outcome = await self._lane.drive(id)
            if isinstance(outcome, Settled):
                return outcome
            await self._answer()
            for reason in _flat(outcome.reasons):
                if isinstance(reason, ExternalReason):
                    await self._lane.deliver(reason.call_id, done(f"{self._lane.name}/{LATER}", 1))
                    self._tell(Delivered(reason.call_id))

    async def _answer(self) -> None:
        """Everything that waits for a person, on this lane and on those of agents that work for it."""
        helpers = [each.agent for each in self._lane.agent.tools.values() if isinstance(each, AgentTool)]
        for asked in self._session.approvals():
            own = asked.lane == self._lane.name
            lane = self._lane if own else await self._session.lane(asked.lane, helpers[0])
            allow = asked.kind == "replay" or allows(asked.arguments["x"])
            await lane.decide(asked.approval_id, allow=allow, reason=None if allow else REFUSAL, by="the host")
            self._tell(Answered(asked.operation_id, asked.approval_id, allow))


def _flat(reasons: Sequence[WaitReason]) -> Iterator[WaitReason]:
    for reason in reasons:
        if isinstance(reason, ChildReason):
            yield from _flat(reason.reasons)
        else:
            yield reason
