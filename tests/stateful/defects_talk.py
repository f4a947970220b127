"""Defects of inboxes, put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.writes import SetValue
from agentlane.driver import aborting, inbox, queueing, steps, submitting
from agentlane.driver.inbox import WaitingItem
from agentlane.machine import planning, table
from tests.stateful.defect import Defect
from tests.stateful.programs import Abort, Accept, Advance, AppendEntry, Close, Drive, Kill, Program, Reply, Resume, Run
from tests.stateful.talk import CancelQueued, Say, Submit


def _placed_again(patch: pytest.MonkeyPatch) -> None:
    removal = WaitingItem.removal

    def staying(self: WaitingItem, lane: str, state: Any, operation_id: str | None) -> Any:
        return [] if state == "placed" else removal(self, lane, state, operation_id)

    patch.setattr(WaitingItem, "removal", staying)


def _receipt_forgotten(patch: pytest.MonkeyPatch) -> None:
    removal = WaitingItem.removal

    def forgetting(self: WaitingItem, lane: str, state: Any, operation_id: str | None) -> Any:
        writes = removal(self, lane, state, operation_id)
        return [each for each in writes if state != "cancelled" or not isinstance(each, SetValue)]

    patch.setattr(WaitingItem, "removal", forgetting)


def _not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queueing, "RETURNED_KINDS", frozenset({"steer"}))


def _given_back_until_a_restart(patch: pytest.MonkeyPatch) -> None:
    writes = queueing.abort_writes

    def forgetting(lane: Any, operation_id: str, items: Any) -> Any:
        return [each for each in writes(lane, operation_id, items) if each.address.namespace != "op.returned"]

    patch.setattr(aborting.queueing, "abort_writes", forgetting)


def _write_behind_steering(patch: pytest.MonkeyPatch) -> None:
    waiting = inbox.Inbox.waiting

    def mixed(self: inbox.Inbox, taken: Any) -> Any:
        found = waiting(self, taken)
        return replace(found, writes=0) if found.steers else found

    patch.setattr(inbox.Inbox, "waiting", mixed)


def _all_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "_at_once", lambda waiting, mode, state: waiting)


def _submitted_again(patch: pytest.MonkeyPatch) -> None:
    async def nothing(lane: Any, request_id: str) -> None:
        return None

    submit = submitting.submit

    async def forgetting(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(queueing, "receipt_of", nothing)
            return await submit(*arguments)

    patch.setattr(submitting, "submit", forgetting)


def _stranded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "open_next", lambda lane, agent, draft: None)


def _write_asks(patch: pytest.MonkeyPatch) -> None:
    place = table.TABLE[PLACE]

    def asking(state: Any, fact: Any, rules: Any) -> Any:
        return place(state, fact if fact.trigger else replace(fact, trigger=fact.items[-1]), rules)

    patch.setitem(table.TABLE, PLACE, asking)


PLACE = next(key for key in table.TABLE if key[1].__name__ == "QueuedPlaced")
HANG = ((Reply("hang"),),)

TALK_DEFECTS = (
    Defect(
        "what was placed waits again after a restart",
        _placed_again,
        Program((Accept(), Say(), Drive(), Kill(), Drive())),
    ),
    Defect(
        "a receipt does not know that its message was taken back",
        _receipt_forgotten,
        Program((Say(request=1), CancelQueued())),
    ),
    Defect("a follow-up is not given back", _not_given_back, Program((Run(), Say(kind="follow_up"), Abort()), HANG)),
    Defect(
        "what was given back is forgotten by a restart",
        _given_back_until_a_restart,
        Program((Run(), Say(), Kill(), Abort(), Close(), Resume()), HANG),
    ),
    Defect(
        "a deferred write comes behind steering",
        _write_behind_steering,
        Program((Accept(), AppendEntry(), Say(), Drive())),
    ),
    Defect(
        "two follow-ups are answered at once",
        _all_at_once,
        Program((Accept(), Say(kind="follow_up"), Say(kind="follow_up", text=1), Drive())),
    ),
    Defect(
        "a message is submitted again with its request id",
        _submitted_again,
        Program((Submit(request=0), Drive(), Submit(request=0))),
    ),
    Defect(
        "what was submitted under an abort opens nothing",
        _stranded,
        Program((Run(), Kill(), Abort(), Submit(), Drive()), HANG),
    ),
    Defect(
        "a deferred write is answered",
        _write_asks,
        Program((Run(), AppendEntry(), Advance()), ((Reply("fail", after_ms=37),),)),
    ),
)
