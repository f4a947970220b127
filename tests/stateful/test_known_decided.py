"""Claim: programs in which hooks decide about summaries, which are rare among random ones, are played right.

What they are about is above all stores, so that they are played on one of them, and on all with ``--whole``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stateful.hooks import Hook
from tests.stateful.play import run
from tests.stateful.programs import (
    Abort,
    AppendEntry,
    Call,
    Close,
    Configure,
    Drive,
    Kill,
    KillAt,
    MakeLane,
    Program,
    Reply,
    Resume,
    Run,
    Step,
)
from tests.stateful.summing import Compact, Leave, Summing
from tests.stateful.talk import Say
from tests.stateful.world import BACKENDS

DONE, LONG = Reply(), Reply("long")
CALLS = Reply("calls", (Call("safe"), Call("safe")))
WRITTEN: tuple[Step, ...] = (MakeLane(0), *(AppendEntry(assistant=each) for each in (False, True) * 3))
OWN, DECLINES = Hook("before_compaction", "change", plain=True), Hook("before_compaction", "block", plain=True)
FAILS = Hook("before_compaction", "raise", plain=True)
SMALL = Summing(window=4, keep=1)


def _thinks(times: int, says: Any = "change") -> Hook:
    return Hook("before_compaction", says, hang=times)


KNOWN: dict[str, tuple[Program, int, list[Any]]] = {
    # How often hooks are asked about summaries, and how the operations end; no model is asked for one.
    "thinks about one that was asked for, through a kill, a close and a configuration": (
        Program(
            (*WRITTEN, Compact(keep=0), Kill(), Resume(), Configure(model=1), Close(), Say(), Resume(), Run()),
            hooks=(_thinks(2),),
            summing=Summing(),
        ),
        3,
        [("compact", "completed", None), ("prompt", "completed", None)],
    ),
    "thinks, and it is aborted; it thinks about the next run, to which something is said": (
        Program(
            (*WRITTEN, Compact(keep=0), Abort(), Run(), AppendEntry(), Kill(), Resume()),
            hooks=(_thinks(2, "block"),),
            summing=SMALL,
        ),
        3,
        [("compact", "aborted", None), ("prompt", "completed", None)],
    ),
    "thought about once, whatever is said meanwhile, and once more by another process": (
        Program(
            (*WRITTEN, Run(), AppendEntry(), Say(), Say(kind="follow_up"), AppendEntry(text=None), Kill(), Resume()),
            hooks=(_thinks(1),),
            summing=SMALL,
        ),
        3,
        [("prompt", "completed", None)],
    ),
    "declined before each request of a run, and at last where it was too long": (
        Program((*WRITTEN, Run()), ((CALLS, LONG),), (DECLINES,), SMALL),
        3,
        [("prompt", "failed", "context_overflow")],
    ),
    "one that was too long goes on behind a hook's own, and is killed where that is placed": (
        Program((*WRITTEN, KillAt(13), Run(), Resume()), ((LONG, DONE),), (FAILS, OWN), Summing()),
        4,
        [("prompt", "completed", None)],
    ),
    "a path is left with a hook's own, then declined, and then stayed on": (
        Program(
            (*WRITTEN, Leave(to=1, label="left"), Run(), KillAt(4), Leave(to=0, handle=1), Drive(handle=1), Run()),
            hooks=(OWN, DECLINES),
            summing=Summing(),
        ),
        3,
        [
            ("navigate", "completed", None),
            ("prompt", "completed", None),
            ("navigate", "failed", "compaction_declined"),
            ("prompt", "completed", None),
        ],
    ),
    "a failure that stands in the way fails whatever needs the summary": (
        Program(
            (*WRITTEN, Compact(keep=0), Leave(to=1), Run()),
            hooks=(Hook("before_compaction", "raise", "block", plain=True),),
            summing=SMALL,
        ),
        3,
        [
            ("compact", "failed", "hook_failed"),
            ("navigate", "failed", "hook_failed"),
            ("prompt", "failed", "hook_failed"),
        ],
    ),
    "a lane that may not leave asks nobody about a summary": (
        Program(
            (*WRITTEN, Leave(to=1), Leave(driven=False), Abort(), Drive()),
            hooks=(Hook("before_navigation", "block"), OWN),
            summing=Summing(),
        ),
        0,
        [("navigate", "failed", "navigation_refused"), ("navigate", "aborted", None)],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_are_played_right(name: str, tmp_path: Path, whole: bool) -> None:
    program, asked, ended = KNOWN[name]
    plain = run(program, tmp_path, backends=BACKENDS if whole else BACKENDS[:1])
    assert [(each["kind"], each["status"], each["code"]) for each in plain.disk.results.values()] == ended
    assert len([each for each in plain.heard if each[1] == "before_compaction"]) == asked
    assert not [row for row in plain.disk.ledger if row.kind == "summary"]
