"""The invariants of the design as numbered predicates: over an open session, and over a recorded trace.

Each violation is a line that begins with its number. ``check_invariants`` speaks of what a session holds:

    I1   ids of entries and usage rows are unique; each entry's parent is an earlier entry
    I3   at most one open operation per lane; its ``op.*`` and ``pending.*`` exist exactly while it is open; that of a
         call is open only while its call waits for it, and a call waits only for one that is open or has ended
    I4   a reserved id is used only for what its intent named; a payload has one place at a time
    I5   every call of an answer that settled to run its calls has one result, in order; placed calls are a prefix
    I8   an operation is open or has one terminal record, never both
    I9   stats equal the ledger
    I10  what a model would be shown of any branch pairs calls and results; what a compaction keeps is on its own path
    I11  each tip is an entry of the session
    I12  without ``op.*``, ``pending.*`` and ``inbox/*`` and with idle lanes, a valid conversation is left

``check_trace`` speaks of histories and effects:

    I1   an id is written once; what is stored is what was written (with a session)
    I2   commits are all or none (with a session); sequence numbers grow strictly
    I6   no effect precedes its intent, and an intent starts its effect at most once; a call that waits for a person is
         let go by that person's answer alone
    I7   a call marked ``never`` starts at most once
    I8   one terminal record per operation, and under a committed abort it says ``aborted``
    I11  a tip moves only to an entry appended in the same commit, or by navigation to one that was there before
    I15  (``check_nothing_written``) recovery with nothing to do, and opening, write nothing

Call them while nothing is under way. They need nothing but the library.
"""

from __future__ import annotations

from collections import Counter

from agentlane.data.writes import InsertEntry
from agentlane.errors import LaneBusy
from agentlane.session import Session
from agentlane.storage.contract import EntryRow, SessionStorage
from agentlane.testing.invariants_session import Snapshot, without_operations
from agentlane.testing.invariants_trace import TraceWalk, at_most_once, insert_id, inserts
from agentlane.testing.trace import Committed, Submitted, Trace

READINGS_MAX = 10
"""How often a session that moves is read before a check is given up."""


async def check_invariants(session: Session | SessionStorage, *, held: bool = False) -> list[str]:
    """Every violation of I1, I3, I4, I5, I8, I9, I10, I11 and I12 by what the session holds; empty when it is sound.

    It takes several reads, so it is for a session at rest: a commit between two of them may look like a violation. What
    looks like one is therefore read again until two readings agree; ``LaneBusy`` is raised for a session that is
    written so much that they never do: await its drives first, or hold them up.

    ``held`` says that an agent of the session has ``after_tool`` hooks, so that an outcome may wait for them to be
    placed; without it a staged outcome that is next is one that was forgotten.
    """
    storage = session._runtime.storage if isinstance(session, Session) else session
    snapshot = await Snapshot.read(storage, held=held)
    for _ in range(READINGS_MAX):
        found = snapshot.violations() or await without_operations(snapshot)
        if not found:
            return []
        before, snapshot = snapshot, await Snapshot.read(storage, held=held)
        if snapshot.holds() == before.holds():
            return found
    raise LaneBusy(
        f"session {storage.info.id!r} was written at each of {READINGS_MAX} readings, and a check is of a session at "
        "rest; await its drives first"
    )


def check_trace(trace: Trace) -> list[str]:
    """Every violation of I1, I2, I6, I7, I8 and I11 that the trace alone shows."""
    return [*TraceWalk(trace).violations(), *at_most_once(trace)]


async def check_trace_against(trace: Trace, session: Session | SessionStorage) -> list[str]:
    """Every violation of I1 and I2 by what the session holds of the trace's commits."""
    storage = session._runtime.storage if isinstance(session, Session) else session
    rows = {row.id: row for row in await storage.scan()}
    ledger = {row.row.id: row for row in await storage.usage()}
    reported = {each.number for each in trace.facts if isinstance(each, Committed)}
    commits = [each for each in trace.facts if isinstance(each, Submitted) and each.session_id == storage.info.id]
    made = Counter(insert_id(write) for each in commits for write in inserts(each))
    found: list[str] = []
    for commit in commits:
        made_here = inserts(commit)
        there = [insert_id(write) in rows or insert_id(write) in ledger for write in made_here]
        if commit.number not in reported:
            # Ids that it had reserved may have been used since, by another commit.
            own = [each and made[insert_id(write)] == 1 for each, write in zip(there, made_here, strict=True)]
            if any(own) and not all(there):
                found.append(f"I2: commit {commit.number} ({commit.name}) is there in part")
            continue
        if not all(there):
            found.append(f"I2: commit {commit.number} ({commit.name}) was reported and is not there")
        for write in made_here:
            row = rows.get(insert_id(write))
            if isinstance(write, InsertEntry) and row is not None and _differs(row, write):
                found.append(f"I1: entry {write.id} is not what commit {commit.number} wrote")
    return found


def check_nothing_written(trace: Trace, *, since: int) -> list[str]:
    """Violations of I15: commits that were handed over in the trace from its ``since``-th event on."""
    return [
        f"I15: {each.name} was written where there was nothing to do"
        for each in trace.events[since:]
        if isinstance(each, Submitted)
    ]


def _differs(row: EntryRow, write: InsertEntry) -> bool:
    return (row.parent_id, row.kind, row.payload) != (write.parent_id, write.kind, write.payload)
