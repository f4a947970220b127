"""Claim: programs of what people are asked, deliver and answer, which are rare among random ones, are played right.

What they are about is above all stores, so that they are played on one of them, and on all with ``--whole``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stateful.delivery import Deliver
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
from tests.stateful.questions import Answer
from tests.stateful.world import BACKENDS

ASKED = Reply("calls", (Call("asked"), Call("maybe", end="raise"), Call("maybe", end="raise"), Call("locked")))
CHECKED = Reply("calls", (Call("check", hang=2), Call("locked", hang=1)))
LATER = Reply("calls", (Call("later", hang=1), Call("later"), Call("safe")))
SURVEYED = Reply("calls", (Call("survey"), Call("safe", hang=1), Call("query")))

KNOWN = {
    "asked about three calls: other arguments, a no, a yes where it dies, and arguments that do not fit": Program(
        (
            Run(),
            Decide(which=1, args="stop", signed=True),
            Kill(),
            Decide(allow=False, signed=True),
            Decide(which=1),
            KillAt(3),
            Drive(answers=True),
            Drive(),
            OpenAgain(read_only=True),
            Decide(),
            Decide(handle=1, args="bad"),
            Drive(),
        ),
        ((ASKED,),),
    ),
    "asked again before what was interrupted runs once more, and aborted": Program(
        (Run(), Decide(), Kill(), Drive(), Decide(), Drive(answers=True), Close(), Abort(), Decide(which=1), Drive()),
        ((CHECKED,),),
    ),
    "delivered before its turn, twice, by nobody, under an abort and where it dies": Program(
        (
            Run(),
            Deliver(which=1),
            Deliver(which=4),
            Deliver(end="bad"),
            Kill(),
            Deliver(which=1),
            KillAt(2),
            Deliver(end="raise"),
            Drive(),
            Abort(),
            Deliver(),
            Drive(),
        ),
        ((LATER,),),
    ),
    "asked by a tool that is killed between its questions": Program(
        (
            Run(),
            Answer(value=1, signed=True),
            Close(),
            KillAt(1),
            Answer(value=2),
            Decide(),
            Answer(value=3),
            KillAt(2),
            Drive(answers=True),
            Drive(answers=True),
            Answer(which=1),
            Answer(value=4),
            Abort(),
            Answer(),
            Drive(),
        ),
        ((SURVEYED,),),
    ),
    "asked twice, and nobody answers in time, whether it is driven or not": Program(
        (
            Run(),
            Advance(),
            Decide(),
            Drive(),
            Run(prompt=1),
            Kill(),
            Drive(),
            Advance(),
            Advance(),
            Decide(),
            Decide(),
            Drive(),
        ),
        ((Reply("calls", (Call("asked"), Call("locked"))),), (Reply("calls", (Call("check", hang=1),)),)),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_are_played_right(name: str, tmp_path: Path, whole: bool) -> None:
    run(KNOWN[name], tmp_path, backends=BACKENDS if whole else ("memory",))
