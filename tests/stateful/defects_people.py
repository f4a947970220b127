"""Defects of what people are asked, put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.operations import EffectGranted
from agentlane.driver import aborting, deciding, restoring
from agentlane.driver.draft import OperationDraft
from agentlane.driver.drive import Pass
from agentlane.driver.predicates import Predicates
from agentlane.machine import table
from tests.stateful.defect import Defect, above_stores
from tests.stateful.people import Decide
from tests.stateful.programs import (
    Abort,
    Accept,
    Advance,
    Call,
    Drive,
    Kill,
    Program,
    Prompts,
    Reply,
    Run,
    SetName,
    ToolName,
)


def _forgotten(patch: pytest.MonkeyPatch) -> None:
    async def nothing(storage: Any, operations: Any, session_id: str) -> None:
        pass

    patch.setattr(restoring, "_find_approvals", nothing)


def _arguments_forgotten(patch: pytest.MonkeyPatch) -> None:
    decide = OperationDraft.decide

    def forgetting(self: OperationDraft, index: int, decision: Any, args: Any = None) -> None:
        decide(self, index, decision, args)
        self.path.writes = [each for each in self.path.writes if each.address.namespace != "op.args"]  # type: ignore[union-attr]

    patch.setattr(OperationDraft, "decide", forgetting)


def _no_to_a_replay(patch: pytest.MonkeyPatch) -> None:
    refusal = deciding._refusal
    patch.setattr(
        deciding,
        "_refusal",
        lambda operation, index, asked, decision: refusal(operation, index, replace(asked, kind="call"), decision),
    )


def _answered_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "is_expired", lambda approval, now: False)


def _nobody_wakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pass, "_next_wake", lambda self: None)


def _permit_stays(patch: pytest.MonkeyPatch) -> None:
    intend = table.TABLE[REPLAY]

    def keeping(state: Any, fact: Any, rules: Any) -> Any:
        step = intend(state, fact, rules)
        calls = [replace(c, permit=True) if isinstance(c, EffectGranted) else c for c in step.state.calls]  # type: ignore[union-attr]
        return replace(step, state=replace(step.state, calls=tuple(calls)))  # type: ignore[type-var]

    patch.setitem(table.TABLE, REPLAY, keeping)


def _not_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aborting, "voiding", lambda operation: [])


def _said_of_all(patch: pytest.MonkeyPatch) -> None:
    seen = Predicates._seen

    def mixing(self: Predicates, index: int, view: Any) -> Any:
        first = next(iter(self._answers), index)
        return seen(self, first if index in self._answers else index, view)

    patch.setattr(Predicates, "_seen", mixing)


REPLAY = next(key for key in table.TABLE if key[1].__name__ == "ReplayIntended")


def _calls(*tools: ToolName, hang: int = 0) -> Prompts:
    return ((Reply("calls", tuple(Call(tool, hang=hang) for tool in tools)),),)


PEOPLE_DEFECTS = above_stores(
    Defect(
        "what people are asked is forgotten by a restart",
        _forgotten,
        Program((Run(), Kill(), Decide()), _calls("asked")),
    ),
    Defect(
        "arguments that came with a yes are forgotten by a restart",
        _arguments_forgotten,
        Program((Accept(), Drive(), Decide(args="ok"), Kill(), Drive()), _calls("asked")),
    ),
    Defect(
        "a no to running again says that the call never ran",
        _no_to_a_replay,
        Program((Run(), Kill(), Drive(), Decide(allow=False)), _calls("check", hang=1)),
    ),
    Defect(
        "a yes counts that came too late",
        _answered_late,
        Program((Accept(), Drive(), Advance(), Decide()), _calls("asked")),
    ),
    Defect("nobody answers, and nothing goes on", _nobody_wakes, Program((Run(), Advance()), _calls("asked"))),
    Defect(
        "a yes is not used up by running again",
        _permit_stays,
        Program((Run(), Kill(), Drive(answers=True), Decide()), _calls("check", hang=2)),
    ),
    Defect(
        "a question outlives an abort",
        _not_void,
        Program((Accept(), Drive(), Abort(), Kill(), SetName()), _calls("locked")),
    ),
    Defect("what a predicate says is for all calls", _said_of_all, Program((Run(),), _calls("maybe", "maybe"))),
)
