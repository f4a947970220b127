"""Claim: programs of what people are asked, which are rare among random ones, are played right.

What they are about is above all stores, so that they are played on one of them, and on all with ``--whole``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stateful.people import Decide
from tests.stateful.play import run
from tests.stateful.programs import (
    Abort,
    Advance,
    Call,
    Close,
    Drive,
    Kill,
    KillAt,
    OpenAgain,
    Program,
    Reply,
    Run,
)
from tests.stateful.world import BACKENDS

ASKED = Reply("calls", (Call("asked"), Call("maybe", end="raise"), Call("maybe", end="raise"), Call("locked")))
CHECKED = Reply("calls", (Call("check", hang=2), Call("locked", hang=1)))

KNOWN = {
    "asked about three calls, one of them with its predicate: other arguments, a no, and nobody in time": Program(
        (
            Run(),
            Decide(which=1, args="stop", signed=True),
            Kill(),
            Decide(allow=False, signed=True),
            Decide(which=1),
            KillAt(3),
            Drive(answers=True),
            Drive(),
            Run(),
            OpenAgain(read_only=True),
            Advance(),
            Decide(which=1),
            Decide(handle=1, args="bad"),
            Drive(),
        ),
        ((ASKED,),),
    ),
    "asked again before what was interrupted runs once more, and aborted": Program(
        (Run(), Decide(), Kill(), Drive(), Decide(), Drive(answers=True), Close(), Abort(), Decide(which=1), Drive()),
        ((CHECKED,),),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_are_played_right(name: str, tmp_path: Path, whole: bool) -> None:
    run(KNOWN[name], tmp_path, backends=BACKENDS if whole else ("memory",))
