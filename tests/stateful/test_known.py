"""Claim: programs that once told of a mistake, or that are rare, are played right on every backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stateful.kin import FROM_NEWEST
from tests.stateful.play import run
from tests.stateful.programs import (
    Abort,
    Accept,
    Adjust,
    Advance,
    Append,
    AppendEntry,
    Call,
    Close,
    Configure,
    CreateBranch,
    Drive,
    FailWrite,
    Held,
    Kill,
    KillAt,
    LeaveDrive,
    MakeLane,
    OpenAgain,
    Program,
    Reply,
    Resume,
    Run,
    SetLabel,
    SetName,
    SetValue,
)
from tests.stateful.talk import CancelQueued, Say, Submit

HANG, DONE, CUT = Reply("hang"), Reply(), Reply("cut")
CALLS = (Reply("calls", (Call("safe", hang=1),)), DONE, Reply("length"))
BATCH = Reply("calls", (Call("safe", rank=2), Call("never", hang=2, rank=1), Call("key"), Call("alone", hang=1)))
LATER = Reply("fail", after_ms=37)
ASK, ASK_FURTHER = Reply("calls", (Call("agent", prompt=1),)), Reply("calls", (Call("safe"), Call("kin", prompt=2)))
ITS = FROM_NEWEST

KNOWN = {
    "what a failed write left is there once its storage was closed": Program(
        (FailWrite(1, "after"), Run(), Close(), Resume())
    ),
    "what a failed write left is gone when it was killed": Program((FailWrite(1, "after"), Run(), Kill(), Resume())),
    "a batch of every policy, interrupted by kills and a close": Program(
        (Run(), Kill(), Resume(), Close(), Resume(), KillAt(3), Resume(), Resume()), ((BATCH,),)
    ),
    "a batch of every policy, aborted by a host that opened it": Program(
        (Run(), Kill(), Abort(), Drive(), OpenAgain(read_only=True)), ((BATCH,),)
    ),
    "an abort beside what runs": Program((Run(), OpenAgain(), Advance(), Abort(), Abort(op=0)), ((BATCH,),)),
    "one answer after the other cut off by the end of the process": Program(
        (Run(), Advance(), Kill(), Resume(), Close(), Resume(), Kill(), Resume(), Resume()), ((HANG,) * 5,)
    ),
    "a wait that one caller sits out, and one does not": Program(
        (Run(), Drive(wait=False), LeaveDrive(), Drive(), Close(), Drive(wait=False), Drive(), Advance(), Advance()),
        ((LATER, LATER, DONE),),
    ),
    "a lane made inside of a batch": Program(
        (Run(), Abort(), MakeLane(1, 1), Run(1), MakeLane(2, 1), AppendEntry(2), AppendEntry(2, None)), ((BATCH,),)
    ),
    "configured while it is asked, and settled by another process": Program(
        (Run(), Configure(model=1, tools=0, settings=1), Kill(), Resume(), Run(handle=1)), ((HANG, DONE),)
    ),
    "commits held back and lost": Program(
        (Held((SetName(), SetValue(), Append(), Adjust()), kill=True), SetLabel(0), Run(), SetLabel(0))
    ),
    "commits made and never told": Program((Held((SetName(), Append()), "before_report", kill=True), OpenAgain(True))),
    "commits held back, one of which fails": Program(
        (FailWrite(2), Held((SetName("a"), SetName("b"), Append())), Held((Append(), Append(0, 2)), "before_report"))
    ),
    "a write that fails when nobody calls": Program((Run(), FailWrite(), Advance(), Resume()), ((HANG,),)),
    "an abort that is committed before a write fails": Program((Run(), FailWrite(2), Abort(), Resume()), ((HANG,),)),
    "an adjustment of an operation that another process goes on with": Program(
        (Accept(op=0), Adjust(5, 0), Kill(), Drive())
    ),
    "killed by what a close saves": Program((Run(), KillAt(2), Close(), Resume()), ((HANG,),)),
    "a branch made where a making of it failed": Program(
        (Run(), FailWrite(), CreateBranch(1), CreateBranch(1, 0)),
    ),
    "steering, follow-ups and a deferred write, placed by another process": Program(
        (Run(), Say(kind="follow_up"), Say(both=True), AppendEntry(), Say(kind="next_run"), Kill(), Resume(), Run()),
        (CALLS,),
    ),
    "given back by an abort, and what is submitted under it opens the next": Program(
        (
            Run(),
            Submit(request=0),
            Say(),
            Kill(),
            Abort(),
            Say(),
            Submit(1, 1),
            Submit(prompt=1, request=0),
            Submit(prompt=1),
            Close(),
            Drive(),
            CancelQueued(item=0),
            Drive(),
            Submit(prompt=1, request=0),
        ),
        ((HANG, HANG), (DONE,)),
    ),
    "killed where it is queued, taken back and placed": Program(
        (
            Run(),
            KillAt(1),
            Say(),
            Run(),
            KillAt(2),
            Say(),
            KillAt(2),
            CancelQueued(),
            CancelQueued(),
            Say(),
            Kill(),
            KillAt(4),
            Resume(),
            Resume(),
            CancelQueued(),
        ),
        ((HANG, HANG, DONE),),
    ),
    "a write fails where it is queued, and where it is placed": Program(
        (Run(), FailWrite(1, "after"), Say(request=1), Say(request=1), FailWrite(2, "half"), Resume(), Resume()),
        ((HANG, HANG),),
    ),
    "one at a time, and a receipt that answers again": Program(
        (
            Run(handle=1),
            Say(request=0),
            Say(text=1, request=1),
            Say(request=0),
            Say(request=1),
            Kill(),
            Drive(),
            Say(request=0),
        ),
        ((HANG, CUT),),
    ),
    "three agents below each other, aborted from below, between and above": Program(
        (Run(), Abort(ITS), Run(), Abort(ITS + 1), Run(), Close(), Resume(), Abort(), Run(), Kill(), Abort(), Resume()),
        ((ASK,), (ASK_FURTHER,), (HANG, HANG)),
    ),
    "agents that wait, while one caller sits it out and one does not": Program(
        (Accept(), Drive(wait=False), Drive(), Drive(wait=False), Configure(ITS, 1), Advance(), Abort(ITS), Run()),
        ((ASK, ASK), (ASK_FURTHER,), (LATER, LATER)),
    ),
    "gone on with by a process that knows one agent less": Program(
        (Run(), Say(ITS), Kill(), Drive(handle=1), Run(), Submit(ITS, 1), Kill(), Drive(handle=1), Drive(ITS)),
        ((ASK,), (ASK_FURTHER,), (HANG, DONE)),
    ),
    "an abort leaves what the lane of a call went on with, whose end is not taken yet": Program(
        (Run(), Kill(), Abort(ITS), Submit(ITS, 1), KillAt(3), Resume(), Abort(), Resume(), Drive(ITS)),
        ((ASK,), (HANG, DONE)),
    ),
    "the lane of a call goes on by itself": Program(
        (Run(), Submit(ITS, 1), Drive(ITS), Kill(), Abort(ITS), Resume(), Drive(ITS), Run(ITS), Accept(ITS)),
        ((ASK,), (HANG, DONE)),
    ),
    "two lanes that hang, closed together": Program(
        (Run(), Run(1, 1), Advance(), Close(), Resume(), Resume(1), Abort(1)), ((HANG, BATCH), (HANG, HANG, LATER))
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_programs_are_played_right(name: str, tmp_path: Path) -> None:
    run(KNOWN[name], tmp_path)
