"""Defects put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import Session, UsageRow, UsageTotals
from agentlane.data import codec
from agentlane.data.addresses import RESULT
from agentlane.data.operations import LaneConfig
from agentlane.data.writes import AppendElement, DeleteList
from agentlane.driver import calls, recovery, verbs
from agentlane.driver.drive import Pass
from agentlane.machine import batches, outcomes, planning, table
from agentlane.storage.jsonl_session import JsonlSession
from agentlane.storage.memory import MemorySession
from agentlane.storage.sqlite_session import SqliteSession
from tests.stateful.defect import Defect
from tests.stateful.programs import (
    Accept,
    Adjust,
    Append,
    Call,
    Close,
    Configure,
    Kill,
    KillAt,
    Program,
    Reply,
    Resume,
    Run,
    SetLabel,
    SetName,
)


def _lost_append(patch: pytest.MonkeyPatch) -> None:
    submit = SqliteSession.submit

    def losing(self: SqliteSession, writes: Any, **options: Any) -> Any:
        kept = [
            DeleteList(each.address._replace(key="elsewhere"))
            if isinstance(each, AppendElement) and each.address.namespace == "app.lists" and self.epoch > 1
            else each
            for each in writes
        ]
        return submit(self, kept, **options)

    patch.setattr(SqliteSession, "submit", losing)


def _label_stays(patch: pytest.MonkeyPatch) -> None:
    set_label = Session.set_label

    async def staying(self: Session, entry_id: str, label: str | None) -> None:
        await set_label(self, entry_id, label if label is not None else await self.label(entry_id) or "x")

    patch.setattr(Session, "set_label", staying)


def _adjustment_without_cost(patch: pytest.MonkeyPatch) -> None:
    plus = UsageTotals.plus

    def forgetting(self: UsageTotals, row: UsageRow) -> UsageTotals:
        return plus(self, row if row.kind == "attempt" else replace(row, usage=replace(row.usage, cost_nanos=0)))

    patch.setattr(UsageTotals, "plus", forgetting)


def _accept_again(patch: pytest.MonkeyPatch) -> None:
    async def nothing(lane: Any, operation_id: str) -> None:
        return None

    accept = verbs.accept

    async def accepting(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(verbs, "stored_result", nothing)
            return await accept(*arguments)

    patch.setattr(verbs, "accept", accepting)


def _result_lost(patch: pytest.MonkeyPatch) -> None:
    value = JsonlSession.value

    async def losing(self: JsonlSession, address: Any) -> bytes | None:
        return None if address.namespace == RESULT and self.epoch > 1 else await value(self, address)

    patch.setattr(JsonlSession, "value", losing)


def _configuration_kept_in_memory(patch: pytest.MonkeyPatch) -> None:
    encode = codec.encode

    def forgetting(value: Any) -> bytes:
        return encode(LaneConfig(agent=value.agent) if isinstance(value, LaneConfig) else value)

    patch.setattr(codec, "encode", forgetting)


def _never_runs_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "may_replay", lambda call, now, rules: call.replays < rules.limits.max_replays)
    patch.setattr(batches, "require", lambda holds, why, state: None)


def _frames_lost_by_close(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Pass) -> None:
        pass

    patch.setattr(Pass, "_save_rest", nothing)


def _progress_forgotten(patch: pytest.MonkeyPatch) -> None:
    interrupted = outcomes.interrupted
    for module in (outcomes, calls):
        patch.setattr(module, "interrupted", lambda call, text, progress: interrupted(call, text, ()))


def _commit_kept_though_killed(patch: pytest.MonkeyPatch) -> None:
    reach = MemorySession._reach

    def late(self: MemorySession, boundary: str) -> None:
        if not boundary.endswith(".inside"):
            reach(self, boundary.replace(".after", ".inside"))
            if boundary.endswith(".after"):
                reach(self, boundary)

    patch.setattr(MemorySession, "_reach", late)


def _restarts_not_counted(patch: pytest.MonkeyPatch) -> None:
    interrupt = table.TABLE[recovery_key]

    def forgetting(state: Any, fact: Any, rules: Any) -> Any:
        return interrupt(replace(state, restarts=0), fact, rules)

    patch.setitem(table.TABLE, recovery_key, forgetting)


recovery_key = next(key for key in table.TABLE if key[1].__name__ == "Interrupted")


def _usage_of_a_restored_operation(patch: pytest.MonkeyPatch) -> None:
    async def nothing(storage: Any, operation_id: str, since: int) -> UsageTotals:
        return UsageTotals()

    patch.setattr(recovery, "_usage", nothing)


HANG = (Reply("hang"),)
TWO_CALLS = (Reply("calls", (Call("never", hang=2), Call("safe"))),)
ONE_CALL = (Reply("calls", (Call("never", hang=2),)),)

DEFECTS = (
    Defect("an append is lost on one backend", _lost_append, Program((SetName(), Close(), Append(0, 1)))),
    Defect(
        "a label cannot be taken away",
        _label_stays,
        Program((Run(), SetLabel(0, "x"), SetLabel(0, None))),
    ),
    Defect("an adjustment is not in the stats", _adjustment_without_cost, Program((Adjust(3),))),
    Defect("accept is not idempotent", _accept_again, Program((Run(op=1), Accept(op=1)))),
    Defect("a result is lost by reopening", _result_lost, Program((Run(op=1), Close(), SetName()))),
    Defect(
        "a configuration is not stored",
        _configuration_kept_in_memory,
        Program((Configure(model=1, settings=1), Kill(), Run())),
    ),
    Defect("a call marked never runs again", _never_runs_again, Program((Run(), Kill(), Resume()), (TWO_CALLS,))),
    Defect("what was shown is lost by a close", _frames_lost_by_close, Program((Run(), Close(), Resume()), (HANG,))),
    Defect("the last progress is forgotten", _progress_forgotten, Program((Run(), Kill(), Resume()), (ONE_CALL,))),
    Defect(
        "a killed commit is there",
        _commit_kept_though_killed,
        Program((SetName("a"), KillAt(1), SetName("b"), Close())),
    ),
    Defect(
        "restarts are not counted",
        _restarts_not_counted,
        Program((Run(), Kill(), Resume(), Kill(), Resume(), Kill(), Resume(), Kill(), Resume()), (HANG * 9,)),
    ),
    Defect(
        "usage before a restart is forgotten",
        _usage_of_a_restored_operation,
        Program((Run(), Kill(), Resume()), (TWO_CALLS,)),
    ),
)
