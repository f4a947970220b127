"""Defects of trying again and of limits, put into the library on purpose, each with a program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.driver import limits, retrying, verbs
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.limits import LimitWatch
from agentlane.machine import planning
from tests.stateful.again import Retry
from tests.stateful.defect import Defect, above_stores
from tests.stateful.kin import FROM_NEWEST
from tests.stateful.programs import (
    Abort,
    Accept,
    Advance,
    AppendEntry,
    Call,
    Drive,
    Kill,
    Program,
    Reply,
    Resume,
    Run,
)
from tests.stateful.talk import Say


def _asked_again(patch: pytest.MonkeyPatch) -> None:
    def asking(lane: Any, old: Any, path: Any) -> Any:
        return retrying.Checkpoint(next="respond", trigger=old.inputs[-1])

    patch.setattr(retrying, "_first_state", asking)


def _from_elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retrying, "_check_tip", lambda lane, old: None)


def _what_completed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retrying, "_check_retryable", lambda lane, old: retrying._check_tip(lane, old))


def _tried_twice(patch: pytest.MonkeyPatch) -> None:
    async def nothing(lane: Any, operation_id: str) -> None:
        return None

    tried = retrying.retry

    async def forgetting(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(verbs, "stored_result", nothing)
            inner.setattr(verbs, "result", stored)
            return await tried(*arguments, **options)

    async def stored(lane: LaneCore, operation_id: str) -> Any:
        payload = await lane.runtime.storage.value(retrying.addresses.result(operation_id))
        return None if payload is None else retrying.codec.RESULT.decode(payload, "result")

    patch.setattr(retrying, "retry", forgetting)


def _not_told_of_what(patch: pytest.MonkeyPatch) -> None:
    meta = retrying.OperationMeta

    def forgetting(**fields: Any) -> Any:
        return meta(**{**fields, "retry_of": None})

    patch.setattr(retrying, "OperationMeta", forgetting)


def _keys_change(patch: pytest.MonkeyPatch) -> None:
    meta = retrying.OperationMeta

    def changing(**fields: Any) -> Any:
        return meta(**{**fields, "key_operation": f"{fields['key_operation']}-again"})

    patch.setattr(retrying, "OperationMeta", changing)


def _one_more(patch: pytest.MonkeyPatch) -> None:
    reached = limits.limit_reached
    patch.setattr(limits, "limit_reached", lambda of, spent: reached(of, replace(spent, requests=spent.requests - 1)))


def _interrupted_for_nothing(patch: pytest.MonkeyPatch) -> None:
    reached = LimitWatch.reached
    patch.setattr(LimitWatch, "reached", lambda self, draft, interrupted=None: reached(self, draft))


def _time_before_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitWatch, "stamp", lambda self, draft: None)


def _slept_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitWatch, "sleep_until", lambda self, at: at)


def _repeated_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LimitWatch, "refuse", lambda self, draft, resolved: resolved)


def _taken_without_room(patch: pytest.MonkeyPatch) -> None:
    placement = planning._plan_placement
    patch.setattr(
        planning, "_plan_placement", lambda state, view, rules: placement(state, replace(view, limit=None), rules)
    )


HANG, FAILS, LATER, DONE = Reply("hang"), Reply("fail"), Reply("fail", after_ms=37), Reply()
LOOKS = Reply("calls", (Call("safe"),))
ASKS = (Reply("calls", (Call("agent", prompt=1),)),)
CIRCLES = (ASKS, (LOOKS, LOOKS, LOOKS))

AGAIN_DEFECTS = above_stores(
    Defect(
        "a whole answer is asked for again",
        _asked_again,
        Program((Accept(), AppendEntry(assistant=True), Drive(), Retry(), Drive()), ((FAILS,),)),
    ),
    Defect(
        "something is tried again where it did not end",
        _from_elsewhere,
        Program((Run(), AppendEntry(), Retry()), ((FAILS,),)),
    ),
    Defect("what was completed is tried again", _what_completed, Program((Run(), Retry()))),
    Defect(
        "one and the same is tried again twice",
        _tried_twice,
        Program((Run(op=1), Retry(op=2), Drive(), Retry(of=1, op=2)), ((FAILS,),)),
    ),
    Defect(
        "a record does not tell what it tried again",
        _not_told_of_what,
        Program((Run(), Retry(), Drive()), ((FAILS,),)),
    ),
    Defect(
        "what is tried again with the same keys has others",
        _keys_change,
        Program((Run(), Abort(), Retry(same_keys=True), Drive()), ((LOOKS, HANG),)),
    ),
    Defect("a request more than allowed", _one_more, Program((Run(handle=1),), ((LOOKS,) * 5,))),
    Defect(
        "a request that was interrupted is not counted",
        _interrupted_for_nothing,
        Program((Run(handle=1), Kill(), Resume(), Kill(), Resume()), ((LOOKS, LOOKS, HANG, HANG),)),
    ),
    Defect(
        "time of earlier processes is not counted",
        _time_before_forgotten,
        Program((Run(handle=1), Advance(), Kill(), Resume(), Advance()), ((LATER, LATER, DONE),)),
    ),
    Defect(
        "a wait is longer than the time that is left",
        _slept_too_long,
        Program((Run(handle=1), Advance(), Advance()), ((LATER, LATER, DONE),)),
    ),
    Defect("a call is repeated all the same", _repeated_all_the_same, Program((Run(),), CIRCLES)),
    Defect(
        "steering is taken where nothing may be asked",
        _taken_without_room,
        Program(
            (Run(handle=1), Say(kind="steer"), Kill(), Resume(), Drive(FROM_NEWEST)),
            ((LOOKS, LOOKS, LOOKS, Reply("calls", (Call("safe", hang=1),))),),
        ),
    ),
)
