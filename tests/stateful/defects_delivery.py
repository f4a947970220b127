"""Defects of results that are delivered, put into the library on purpose, each with a program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.driver import delivering
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.machine import table
from agentlane.machine.facts import Outcome
from tests.stateful.defect import Defect, above_stores
from tests.stateful.delivery import Deliver
from tests.stateful.programs import Abort, Accept, Call, Drive, Kill, Program, Reply, Run


def _runs_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivering, "Outcome", lambda index, message, terminate: Outcome(index, message))


def _wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneCore, "poke", lambda self: None)


def _under_an_abort(patch: pytest.MonkeyPatch) -> None:
    waiting = delivering._waiting

    class Uncancelled:
        def __init__(self, lane: Any) -> None:
            self.operation = None if lane.operation is None else _Uncancelled(lane.operation)

    class _Uncancelled:
        cancelled = False

        def __init__(self, operation: Any) -> None:
            self.state = operation.state

    def found(lane: Any, id: str) -> Any:
        its = waiting(Uncancelled(lane), id)  # type: ignore[arg-type]
        return its and (lane.operation, its[1])

    patch.setattr(delivering, "_waiting", found)


def _runs_again(patch: pytest.MonkeyPatch) -> None:
    defer = table.TABLE[DEFER]
    patch.setitem(table.TABLE, DEFER, lambda state, fact, rules: replace(defer(state, fact, rules), state=state))


def _no_error(patch: pytest.MonkeyPatch) -> None:
    seal = delivering.seal_given

    def fine(call: Any, value: Any, limit_bytes: int) -> Any:
        return seal(call, replace(value, is_error=False), limit_bytes)

    patch.setattr(delivering, "seal_given", fine)


def _lost_before_its_turn(patch: pytest.MonkeyPatch) -> None:
    stage = OperationDraft._stage_result

    def losing(self: OperationDraft, change: Any) -> None:
        stage(self, change)
        self.path.writes.pop()

    patch.setattr(OperationDraft, "_stage_result", losing)


def _not_known(patch: pytest.MonkeyPatch) -> None:
    async def nothing(lane: Any, call_id: object) -> None:
        delivering._not_waiting(lane, call_id)

    patch.setattr(delivering, "_no_longer_waiting", nothing)


DEFER = next(key for key in table.TABLE if key[1].__name__ == "CallsDeferred")
ONE, TWO = ((Reply("calls", (Call("later"),) * count),) for count in (1, 2))

DELIVERY_DEFECTS = above_stores(
    Defect("what is delivered ends no run", _runs_on, Program((Run(), Deliver(end="stop")), (ONE,))),
    Defect("what is delivered wakes nobody", _wakes_nobody, Program((Run(), Deliver()), (ONE,))),
    Defect(
        "what comes under an abort is taken", _under_an_abort, Program((Accept(), Drive(), Abort(), Deliver()), (ONE,))
    ),
    Defect("a tool whose result comes later runs again", _runs_again, Program((Run(),), (ONE,))),
    Defect("an error that is delivered is none", _no_error, Program((Run(), Deliver(end="raise")), (ONE,))),
    Defect(
        "what is delivered before its turn is lost by a restart",
        _lost_before_its_turn,
        Program((Run(), Deliver(which=1), Kill(), Drive()), (TWO,)),
    ),
    Defect("of what was delivered nobody knows", _not_known, Program((Run(), Deliver(), Deliver()), (ONE,))),
)
