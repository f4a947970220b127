"""Claim: programs of hooks and of lanes that move, which are rare among random ones, are played right.

What they are about is above all stores, so that they are played on one of them, and on all with ``--whole``.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.stateful.hooks import Hook, Point
from tests.stateful.moves import DeleteBranch, KeepHandle, Navigate, RenameBranch, Rewind, UseHandle
from tests.stateful.play import run
from tests.stateful.programs import (
    Abort,
    AppendEntry,
    Call,
    Close,
    Configure,
    CreateBranch,
    Drive,
    FailWrite,
    Kill,
    KillAt,
    MakeLane,
    Program,
    Reply,
    Resume,
    Run,
)
from tests.stateful.talk import CancelQueued, Say
from tests.stateful.world import BACKENDS

DONE, CUT, LATER = Reply(), Reply("cut"), Reply("fail", after_ms=37)
BATCH = Reply("calls", (Call("safe", rank=2), Call("never", hang=2, rank=1), Call("key"), Call("alone", hang=1)))
TWO_CUT = Reply("length", (Call("safe"), Call("never")))
EVERYWHERE = tuple(Hook(point, says) for point in get_args(Point) for says in ("change", "raise"))

KNOWN = {
    "moved into a batch, and on from there": Program(
        (Run(), Abort(), Navigate(to=1, label="left"), Kill(), Run(), Rewind(), AppendEntry(), Rewind(before=1), Run()),
        ((BATCH,), (DONE,)),
    ),
    "a new name and a deletion that were stored, and failed": Program(
        (
            Say(request=0),
            KeepHandle(),
            FailWrite(1, "after"),
            RenameBranch(0, 2),
            UseHandle(),
            Run(2),
            FailWrite(1, "after"),
            DeleteBranch(2),
            CreateBranch(0),
            UseHandle(use="accept"),
            MakeLane(0),
            UseHandle(use="accept"),
            RenameBranch(0, 1),
            Drive(),
            RenameBranch(0, 1),
            UseHandle(use="append"),
        )
    ),
    "hooks at every point, killed among them": Program(
        (Run(handle=1), KillAt(9), Run(), Resume(), Rewind(), KillAt(21), Run(), Resume(), Resume()),
        ((Reply("calls", (Call("safe"),)), LATER),),
        tuple(Hook(each.point, each.says, "continue", plain=each.says == "raise") for each in EVERYWHERE),
    ),
    "a failing hook at every point stands in the way": Program(
        tuple(Run(prompt=each % 2) for each in range(6)), ((DONE,), (CUT, DONE)), EVERYWHERE
    ),
    "hooks of results that hang, and an abort behind it": Program(
        (Run(), Drive(handle=1), Kill(), Resume(), Close(), Resume(), Say(), Abort(), Drive()),
        ((TWO_CUT,),),
        (Hook("after_tool", "change", hang=4), Hook("after_tool", "raise", "block")),
    ),
    "what is said overtakes a hook before the end": Program(
        (Run(), AppendEntry(), CancelQueued(), Say(), Say(kind="follow_up"), Kill(), Resume(), Resume()),
        ((DONE,),),
        (Hook("before_finish", "change", hang=3), Hook("before_request", "change")),
    ),
    "configured away while a hook is asked about it": Program(
        (Run(), Configure(tools=0), Kill(), Resume(), Abort(), Drive()), ((BATCH,),), (Hook("before_tool", hang=1),)
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_are_played_right(name: str, tmp_path: Path, whole: bool) -> None:
    run(KNOWN[name], tmp_path, backends=BACKENDS if whole else BACKENDS[:1])
