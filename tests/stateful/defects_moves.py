"""Defects of moving lanes and changing branches, put into the library on purpose, each with a program that tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentlane.data import addresses
from agentlane.data.entries import Entry
from agentlane.driver import branches, navigating
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Line
from tests.stateful.defect import Defect, above_stores
from tests.stateful.moves import DeleteBranch, KeepHandle, Navigate, RenameBranch, Rewind, UseHandle
from tests.stateful.programs import Accept, Call, Close, CreateBranch, Drive, Kill, MakeLane, Program, Reply, Run
from tests.stateful.talk import Say, Submit


def _old_path_shown(patch: pytest.MonkeyPatch) -> None:
    def staying(self: LaneCore, tip: str | None, path: Sequence[Entry]) -> None:
        self.tip = tip

    patch.setattr(LaneCore, "move", staying)


def _moved_in_memory(patch: pytest.MonkeyPatch) -> None:
    decide = navigating._decide

    def forgetting(lane: LaneCore, target: Any, path: Any, mark: Any) -> Any:
        decided = decide(lane, target, path, mark)
        if isinstance(decided, Decision) and mark is not None:
            kept = [each for each in decided.writes if each.address.namespace != addresses.BRANCH_TIP]  # type: ignore[union-attr]
            return decided._replace(writes=kept)
        return decided

    patch.setattr(navigating, "_decide", forgetting)


def _label_on_the_target(patch: pytest.MonkeyPatch) -> None:
    label = addresses.label
    decide = navigating._decide

    def elsewhere(lane: LaneCore, target: Any, path: Any, mark: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(navigating.addresses, "label", lambda entry: label(target or entry))
            return decide(lane, target, path, mark)

    patch.setattr(navigating, "_decide", elsewhere)


def _moves_under_an_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(navigating, "_check_idle", lambda lane: None)


def _one_message_of_several(patch: pytest.MonkeyPatch) -> None:
    standing = navigating._standing

    async def first(lane: LaneCore, tip: Any, before: str) -> Any:
        parent, messages = await standing(lane, tip, before)
        return parent, messages[:1]

    patch.setattr(navigating, "_standing", first)


def _rewound_to_the_message(patch: pytest.MonkeyPatch) -> None:
    standing = navigating._standing

    async def at(lane: LaneCore, tip: Any, before: str) -> Any:
        return before, (await standing(lane, tip, before))[1]

    patch.setattr(navigating, "_standing", at)


def _rewound_off_the_path(patch: pytest.MonkeyPatch) -> None:
    standing = navigating._standing

    async def anywhere(lane: LaneCore, tip: Any, before: str) -> Any:
        return await standing(lane, before or tip, before)

    patch.setattr(navigating, "_standing", anywhere)


def _inbox_left_behind(patch: pytest.MonkeyPatch) -> None:
    async def receipts(runtime: Any, name: str) -> Any:
        return {at: each for at, each in (await kept(runtime, name)).items() if at.namespace == addresses.RECEIPT}

    kept = branches._kept
    patch.setattr(branches, "_kept", receipts)


def _receipts_left_behind(patch: pytest.MonkeyPatch) -> None:
    async def inbox(runtime: Any, name: str) -> Any:
        return {at: each for at, each in (await kept(runtime, name)).items() if at.namespace == addresses.INBOX}

    kept = branches._kept
    patch.setattr(branches, "_kept", inbox)


def _deleted_under_an_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(branches, "_check", lambda core: core.check())


def _handle_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaneCore, "_check_exists", lambda self: None)
    patch.setattr(Line, "close", lambda self, error: None)


def _configuration_left_behind(patch: pytest.MonkeyPatch) -> None:
    own = branches._own
    patch.setattr(branches, "_own", lambda core: own(core)[:1])


DONE = ((Reply(),),)
TWO = ((Reply("calls", (Call("safe"), Call("never"))),), (Reply(),))

MOVE_DEFECTS = above_stores(
    Defect("a model is shown the path that was left", _old_path_shown, Program((Run(), Rewind(), Run()), TWO)),
    Defect(
        "a move with a label is not stored",
        _moved_in_memory,
        Program((Run(), Navigate(to=0, label="left"), Kill(), Run())),
    ),
    Defect("the label is on the wrong entry", _label_on_the_target, Program((Run(), Navigate(to=0, label="left")))),
    Defect(
        "a lane moves under its operation",
        _moves_under_an_operation,
        Program((Run(), Accept(), Navigate(to=0), Drive())),
    ),
    Defect(
        "a rewind gives back one message of several",
        _one_message_of_several,
        Program((Say(both=True), Run(), Rewind(before=2))),
    ),
    Defect("a rewind keeps the message", _rewound_to_the_message, Program((Run(), Rewind(), Run()))),
    Defect(
        "a rewind leaves its path",
        _rewound_off_the_path,
        Program((Run(), Run(1), Rewind(before=0, of_user=False), Rewind(before=2, of_user=False))),
    ),
    Defect(
        "what waits is left behind by a new name",
        _inbox_left_behind,
        Program((Say(), RenameBranch(0, 2), Close(), Run(2), Run())),
    ),
    Defect(
        "receipts are left behind by a new name",
        _receipts_left_behind,
        Program((Submit(request=0), Drive(), RenameBranch(0, 2), Submit(2, request=0))),
    ),
    Defect(
        "a lane is deleted under its operation",
        _deleted_under_an_operation,
        Program((Accept(), DeleteBranch(), Drive())),
    ),
    Defect(
        "the handle of a deleted branch goes on",
        _handle_of_the_dead,
        Program((CreateBranch(), KeepHandle(2), DeleteBranch(2), MakeLane(2), UseHandle(use="append"))),
    ),
    Defect(
        "a deleted lane is half there",
        _configuration_left_behind,
        Program((Run(), KeepHandle(), DeleteBranch(), Kill(), MakeLane(0))),
    ),
)
