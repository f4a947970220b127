"""What callers in a storm were told, and whether the session holds exactly that in the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agentlane import Admitted, ListAddress, OperationResult, Session, Settled, open_session
from agentlane.data.entries import Custom
from agentlane.data.messages import AssistantMessage, TextPart, ToolResultMessage, UserMessage
from agentlane.machine.outcomes import ABORTED, INTERRUPTED, NOT_STARTED
from agentlane.testing.invariants import check_invariants, check_trace, check_trace_against

if TYPE_CHECKING:
    from tests.races.storm import Storm

LOG = ListAddress("app.storm", "log", str)
FRAMES_OUTLIVE_A_FAILURE = False
"""See ``test_saves.py``; remove this when it is mended."""


class Claims:
    """What was tried, and what was told to be durable."""

    def __init__(self) -> None:
        self.elements_tried: set[str] = set()
        self.elements: dict[str, int] = {}
        self.values_tried: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.names_tried: set[str] = set()
        self.rows_tried = 0
        self.rows = 0
        self.entries_tried: set[str] = set()
        self.entries: dict[str, tuple[str, str]] = {}
        self.operations_tried: dict[str, str] = {}
        self.operations: dict[str, Admitted] = {}
        self.aborts_tried: set[str] = set()
        self.aborts: Counter[str] = Counter()
        self.results: dict[str, OperationResult] = {}
        self.differing: list[str] = []

    def told(self, outcome: object) -> None:
        """Somebody who drove was told this."""
        if isinstance(outcome, Settled):
            result = outcome.result
            if self.results.setdefault(result.operation_id, result) != result:
                self.differing.append(result.operation_id)


SEEN_SOON = ("result done", "tool error", "operation completed", "operation aborted", "answer error")
"""What must have come about in a few storms: else they were calm."""
SEEN = (
    *SEEN_SOON,
    "result not started",
    "result aborted",
    "result interrupted",
    "commit frames",
    "commit progress",
    "commit memo",
    "commit configure",
    "commit outcome_staged",
    "life calm",
    "life close",
    "life fault",
)
"""What must have come about in fifty."""


async def check_claims(storm: Storm, session: Session, seen: Counter[str]) -> None:
    """Every invariant, every sum, and nothing that was told and is not there. ``seen`` counts what came about."""
    await _look(storm, session, seen)
    found = [
        *await check_invariants(session),
        *check_trace(storm.trace),
        *await check_trace_against(storm.trace, session),
        *(each for model in storm.models for each in model.violations),
        *storm.readings,
        *(f"{each.operation_id} is open" for each in session.open_operations()),
        *await _application_data(storm.claims, session),
        *await _operations(storm.claims, session),
        *await _conversations(storm, session),
        *await _ledger(storm.claims, session),
    ]
    assert not found, "\n".join(found)
    await _same_when_read_anew(storm, session)


async def _look(storm: Storm, session: Session, seen: Counter[str]) -> None:
    seen.update(f"life {end}" for end in storm.ends)
    seen.update(f"commit {commit.name.split('+')[0]}" for commit, _ in storm.trace.commits())
    seen.update(f"operation {result.status}" for result in storm.claims.results.values())
    for entry in await session.entries():
        body = entry.body
        if isinstance(body, AssistantMessage):
            seen[f"answer {body.stop_reason}"] += 1
        elif isinstance(body, ToolResultMessage):
            told = {NOT_STARTED: "result not started", ABORTED: "result aborted", INTERRUPTED: "result interrupted"}
            last = body.text.rpartition("\n")[2]
            seen[told.get(last, "result done" if body.text.startswith("done ") else "tool error")] += 1


async def _application_data(claims: Claims, session: Session) -> list[str]:
    found: list[str] = []
    elements = await session.elements(LOG)
    there = Counter(text for _, text in elements)
    found += [f"element {text} is there {count} times" for text, count in there.items() if count != 1]
    found += [f"element {text} was not written by anybody" for text in there if text not in claims.elements_tried]
    seqs = {text: seq for seq, text in elements}
    for text, seq in claims.elements.items():
        if seqs.get(text) != seq:
            found.append(f"element {text} was told to be at {seq} and is at {seqs.get(text)}")
    values = await session.values("app.storm", int)
    for key, number in claims.values_tried.items():
        kept = claims.values.get(key)
        if values.get(key) not in {kept, number}:
            found.append(f"value {key} is {values.get(key)}, not {kept} or {number}")
    if session.name is not None and session.name not in claims.names_tried:
        found.append(f"the session is named {session.name}")
    entries = Counter(entry.body.data for entry in await session.entries() if isinstance(entry.body, Custom))
    found += [f"entry {text} is there {count} times" for text, count in entries.items() if count != 1]
    found += [f"entry {text} was not appended by anybody" for text in entries if text not in claims.entries_tried]
    waiting = {key.partition("|")[2]: key for key in await session._runtime.storage.values("inbox")}
    for text, (lane, id) in claims.entries.items():
        placed = id in [entry.id for entry in await session.branch(lane).entries(types=["custom"])]
        if placed == (waiting.get(id) == f"{lane}|{id}"):
            found.append(f"entry {text} was told to be on {lane}, or to wait there, and is {placed and 'both'}")
    return found


async def _operations(claims: Claims, session: Session) -> list[str]:
    found = [f"operation {id} was told two ends" for id in claims.differing]
    records = await session._runtime.storage.values("result")
    found += [f"operation {id} was accepted and has no end" for id in claims.operations if id not in records]
    found += [f"operation {id} was accepted by nobody" for id in records if id not in claims.operations_tried]
    for id, lane in claims.operations_tried.items():
        prompts = [
            entry
            for entry in await session.branch(lane).entries(types=["user"])
            if isinstance(entry.body, UserMessage) and entry.body.content[0] == TextPart(text=id)
        ]
        if len(prompts) != (id in records):
            found.append(f"the prompt of {id} is on {lane} {len(prompts)} times")
    for id, result in claims.results.items():
        if id not in records:
            found.append(f"the end of {id} was told and is not stored")
        if result.status == "aborted" and id not in claims.aborts_tried:
            found.append(f"operation {id} is aborted, and nobody asked")
        if result.status != "aborted" and claims.aborts[id]:
            found.append(f"operation {id} was told to be cancelled and is {result.status}")
    found += [f"the abort of {id} was new {count} times" for id, count in claims.aborts.items() if count > 1]
    return found


async def _conversations(storm: Storm, session: Session) -> list[str]:
    """Results say *done* for effects that ended; one that began is not *not started*, and runs as often as it may."""
    found: list[str] = []
    effects = storm.effects
    for call_id, count in effects.began.items():
        if effects.tools[call_id] not in ("count", "repeat", "notes") and count != 1:
            found.append(f"{effects.tools[call_id]} {call_id} began {count} times")
    calls = 0
    for name in session.lanes():
        for entry in await session.branch(name).entries():
            if isinstance(entry.body, AssistantMessage) and entry.body.stop_reason == "tool_calls":
                calls += len(entry.body.calls)
            if not isinstance(entry.body, ToolResultMessage):
                continue
            if entry.body.text.startswith("done ") and not effects.ended[entry.body.text.removeprefix("done ")]:
                found.append(f"{entry.body.text}, which never ended")
            if entry.body.text == NOT_STARTED and effects.began[entry.id]:
                found.append(f"{entry.id} began, and its result says that it did not")
    if storm.undisturbed and not storm.claims.aborts_tried and sum(effects.began.values()) > calls:
        found.append(f"{sum(effects.began.values())} effects of {calls} calls")
    return found


async def _ledger(claims: Claims, session: Session) -> list[str]:
    rows = await session.usage()
    kinds = Counter(row.row.kind for row in rows)
    found: list[str] = []
    if not claims.rows <= kinds["adjustment"] <= claims.rows_tried:
        found.append(f"{kinds['adjustment']} adjustments of {claims.rows_tried}, {claims.rows} of them told")
    answers = [entry.id for entry in await session.entries() if isinstance(entry.body, AssistantMessage)]
    attempts = [row.row.entry_id for row in rows if row.row.kind == "attempt"]
    if sorted(answers) != sorted(filter(None, attempts)):
        found.append(f"{len(answers)} answers and {len(attempts)} rows for them")
    return found


async def _same_when_read_anew(storm: Storm, session: Session) -> None:
    """What this life shows is what the next one will."""
    live = {name: await session.branch(name).entries() for name in session.branches()}
    async with open_session(storm.failing, session_id=storm.session_id, read_only=True) as reader:
        for name, entries in live.items():
            assert await reader.branch(name).entries() == entries, name
        assert reader.stats() == session.stats()
        assert reader.name == session.name
