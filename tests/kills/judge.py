"""What must be true of a history that has come to its end: of the session, and of the world outside of it."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from agentlane import Session, open_session
from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, TextPart, ToolResultMessage, UserMessage
from agentlane.machine.outcomes import ABORTED, INTERRUPTED, NOT_STARTED
from agentlane.storage.contract import SessionStorage
from agentlane.testing.invariants import check_invariants
from tests.kills.history import History
from tests.kills.host import LATER
from tests.kills.life import SESSION, store_of
from tests.kills.reports import (
    CLOSING,
    Aborting,
    Accepted,
    Answered,
    Delivered,
    Opened,
    Pended,
    Published,
    Said,
    Settled,
)
from tests.kills.work import Expected, done, expected, expected_of_helper, policy_of

R = TypeVar("R")


class Line(NamedTuple):
    """One line that an effect left outside."""

    what: str
    label: str
    attempt: int
    call_id: str
    key: str


async def judge(history: History) -> list[str]:
    """Everything that is wrong, each in a line; none if all is right."""
    before = _bytes(history.folder)
    store = store_of(history.disk, "process", history.folder)
    try:
        async with open_session(store, session_id=SESSION, create=False) as session:
            found = [*history.complaints(), *await check_invariants(session)]
            found += [f"operation {each.operation_id} is open" for each in session.open_operations()]
            storage = session._runtime.storage
            verdict = _Verdict(history, await storage.values(addresses.RESULT))
            await verdict.commits(storage)
            for lane in history.work.lanes:
                await verdict.lane(session, lane)
            await verdict.helper(session)
            await verdict.told(storage)
            verdict.effects()
    finally:
        await store.close()
    if _bytes(history.folder) != before:
        found.append("opening a session with nothing left to do wrote something")
    return found + verdict.found


async def require_right(history: History) -> None:
    """Raise ``AssertionError``, with the history, unless all is right."""
    found = await judge(history)
    assert not found, "\n".join([*found, history.story()])


class _Verdict:
    def __init__(self, history: History, results: dict[str, bytes]) -> None:
        self.found: list[str] = []
        self._history = history
        self._results = results
        self._reports = [report for life in history.lives for report in life.reports]
        self._generating = {id for each in self._of(Opened) for id in each.generating}
        self._pended: dict[str, list[Pended]] = defaultdict(list)
        for opened in self._of(Opened):
            for each in opened.pending:
                self._pended[each.call_id].append(each)
        self._lines = _lines(history.folder)
        self._by_call: dict[str, list[Line]] = defaultdict(list)
        for line in self._lines:
            self._by_call[line.call_id].append(line)

    async def lane(self, session: Session, lane: str) -> None:
        """The conversation of one lane is one that nobody's stopping it, with these interruptions, could have made."""
        entries = await session.branch(lane).entries(newest_first=False)
        self._answers(entries)
        kept = [each for each in entries if not _failed(each)]
        aborting = {each.operation_id for each in self._of(Aborting)}
        settled = {each.operation_id: each for each in self._of(Settled)}
        for number, wanted in enumerate(expected(self._history.work, lane)):
            id = f"{lane}-{number}"
            if id not in self._results:
                self.found.append(f"{id} has no result")
                return
            result = codec.RESULT.decode(self._results[id], id)
            if result.status != "completed" and not (result.status == "aborted" and self._history.work.aborts):
                self.found.append(f"{id} ended {result.status} ({result.code})")
            if id in aborting and result.status != "aborted":
                self.found.append(f"{id} was to be aborted, which was acknowledged, and ended {result.status}")
            if id in settled and (settled[id].status, settled[id].text) != (result.status, result.text):
                self.found.append(f"{id} was told to have ended as {settled[id]}, and ended as {result}")
            kept = self._operation(id, wanted, kept, aborted=result.status == "aborted")
        self.found += [f"{lane}: {_text(entry)!r} is too much" for entry in kept]

    async def helper(self, session: Session) -> None:
        """An agent that is a tool ran once, and as nobody's stopping it could have made it."""
        work, runs = self._history.work, self._helped()
        if len(runs) != (1 if work.helper else 0):
            self.found.append(f"the agent that is a tool ran as {runs}")
        for id in runs:
            entries = await session.branch(f"child:{id}").entries(newest_first=False)
            self._answers(entries)
            kept = [each for each in entries if not _failed(each)]
            rest = self._operation(id, expected_of_helper(work), kept, aborted=False)
            self.found += [f"{id}: {_text(entry)!r} is too much" for entry in rest]

    def _helped(self) -> set[str]:
        decoded = {id: codec.RESULT.decode(payload, id) for id, payload in self._results.items()}
        return {id for id, each in decoded.items() if each.lane == f"child:{id}" and each.status == "completed"}

    async def told(self, storage: SessionStorage) -> None:
        """What was said, answered and delivered, and acknowledged, has come where it belongs, once."""
        said = {each.entry_id for each in self._of(Said)}
        rows = {row.id for row in await storage.entries(sorted(said)) if row is not None}
        self.found += [f"message {id} was acknowledged and is lost" for id in said - rows]
        besides = [each for turns in self._history.work.lanes.values() for turn in turns() for each in turn.besides]
        if len(said) != len([kind for kind, _, _ in besides if kind != "hook"]):
            self.found.append(f"messages were said as {sorted(said)}")
        answered = [each.approval_id for each in self._of(Answered)]
        if len(answered) != len(set(answered)):
            self.found.append(f"an approval was answered twice: {answered}")
        for each in self._of(Answered):
            payload = self._results.get(each.operation_id)
            taken = () if payload is None else codec.RESULT.decode(payload, each.operation_id).decisions
            kept = {decision.approval_id: decision.allow for decision in taken}
            if kept.get(each.approval_id) != each.allow:
                self.found.append(f"the answer {each} was acknowledged, and the record has {kept}")
        for delivered in self._of(Delivered):
            row = (await storage.entries([delivered.call_id]))[0]
            body = None if row is None or row.payload is None else codec.BODY.decode(row.payload, row.id)
            if not isinstance(body, ToolResultMessage) or not body.text.endswith(done(LATER, 1)):
                self.found.append(f"the result of {delivered.call_id} was delivered and is lost: {body}")

    def _operation(self, id: str, wanted: Sequence[Expected], kept: list[Entry], *, aborted: bool) -> list[Entry]:
        """Compare what one operation added; gives the entries behind it."""
        for place, plain in enumerate(wanted):
            follows = place > 0 and kept and isinstance(kept[0].body, UserMessage)
            if aborted and (not kept or follows):
                return kept
            if not kept:
                self.found.append(f"{id}: the conversation ends before {plain}")
                return kept
            entry = kept.pop(0)
            if plain.label is not None and isinstance(entry.body, ToolResultMessage):
                self._call(id, plain.label, entry.id, entry.body, aborted=aborted)
            elif _text(entry) != plain.line:
                self.found.append(f"{id}: {_text(entry)!r} stands where {plain} should")
        return kept

    def _call(self, id: str, label: str, call_id: str, message: ToolResultMessage, *, aborted: bool) -> None:
        """A result says what happened outside, and an interruption stands where one was, and nowhere else."""
        lines, pended = self._by_call.get(call_id, []), self._pended.get(call_id, [])
        where = f"{id}: the result of {label} ({message.text!r})"
        lost = any(each.policy == "never" or each.cancelled for each in pended)
        if (INTERRUPTED in message.text) != lost:
            self.found.append(f"{where} does not go with what the deaths found: {pended}")
        if any(line.label != label for line in lines):
            self.found.append(f"{where} is of another call: {lines}")
        if INTERRUPTED in message.text:
            pass
        elif NOT_STARTED in message.text:
            if lines or not aborted:
                self.found.append(f"{where} says that it was not started: {lines}")
        elif ABORTED in message.text:
            if not lines or not aborted:
                self.found.append(f"{where} says that it was stopped: {lines}")
        else:
            ends = {done(label, line.attempt): line.attempt for line in lines if line.what == "end"}
            if message.text not in ends or message.is_error:
                self.found.append(f"{where} claims more than was done: {lines}")

    def _answers(self, entries: Sequence[Entry]) -> None:
        """An answer is an interrupted one where a request was found under way, and nowhere else."""
        codes = {each.id: _code(each) for each in entries if _code(each) is not None}
        interrupted = {id for id, code in codes.items() if code == "interrupted"}
        here = self._generating & {each.id for each in entries}
        if interrupted != here:
            self.found.append(f"interrupted answers: {interrupted}; requests found under way: {self._generating}")
        if rest := set(codes.values()) - {"interrupted", "overloaded", "aborted"}:
            self.found.append(f"answers failed with {rest}")

    async def commits(self, storage: SessionStorage) -> None:
        """Nothing that was acknowledged is lost, and nothing is there twice."""
        highest = 0
        for each in self._of(Published):
            if each.first_seq <= highest:
                self.found.append(f"a commit at seq {each.first_seq} was made after one that ended at {highest}")
            highest = max(highest, each.last_seq)
        entries: dict[str, int] = {}
        for each in self._of(Published):
            entries |= each.staged | each.entries
        rows = {
            row.id: zlib.crc32(row.payload or b"") for row in await storage.entries(list(entries)) if row is not None
        }
        self.found += [f"entry {id} was acknowledged and is lost" for id in entries.keys() - rows.keys()]
        self.found += [
            f"entry {id} is not what was acknowledged" for id in entries.keys() & rows.keys() if entries[id] != rows[id]
        ]
        results = {key: zlib.crc32(payload) for key, payload in self._results.items()}
        for each in self._of(Published):
            self.found += [f"result {id} was lost" for id, sum in each.results.items() if results.get(id) != sum]
        accepted = {each.operation_id for each in self._of(Accepted)}
        self.found += [f"operation {id} was accepted and is lost" for id in accepted - results.keys()]
        if results.keys() - self._helped() != set(self._history.work.operations()):
            self.found.append(f"there are results of {sorted(results)}")

    def effects(self) -> None:
        """No effect more often than its policy and the deaths allow, none by a call that was told not to have begun."""
        labels: dict[str, set[str]] = defaultdict(set)
        for call_id, lines in self._by_call.items():
            starts = [line.attempt for line in lines if line.what == "start"]
            ends = [line.attempt for line in lines if line.what == "end"]
            found_at = {each.attempt for each in self._pended.get(call_id, [])}
            told = "\n    ".join(map(str, lines))
            labels[lines[0].label].add(call_id)
            if policy_of(lines[0].label) == "never" and len(starts) > 1:
                self.found.append(f"a call that must not run again ran again:\n    {told}")
            if starts != sorted(set(starts)) or len(starts) > 1 + len(found_at):
                self.found.append(f"an effect began more often than {found_at} allows:\n    {told}")
            if not set(ends) <= set(starts) or len({line.key for line in lines}) > 1:
                self.found.append(f"an effect ended that had not begun, or changed its key:\n    {told}")
        self.found += [f"{label} was run as {calls}" for label, calls in labels.items() if len(calls) > 1]
        self._closes()

    def _closes(self) -> None:
        """What a clean close leaves pending had begun, or was left so by the death before."""
        begun = {(line.call_id, line.attempt) for line in self._lines if line.what == "start"}
        known: set[tuple[str, int]] = set()
        closed = False
        for life in self._history.lives:
            opened = next((each for each in life.reports if isinstance(each, Opened)), None)
            if opened is None:
                continue
            pending = {(each.call_id, each.attempt) for each in opened.pending}
            if closed and (rest := pending - begun - known):
                self.found.append(f"a clean close left calls pending whose effect had not begun: {rest}")
            known, closed = pending, life.how in CLOSING

    def _of(self, kind: type[R]) -> Iterator[R]:
        return (report for report in self._reports if isinstance(report, kind))


def _lines(folder: Path) -> list[Line]:
    path = folder / "effects.log"
    if not path.exists():
        return []
    words = [line.split(" ") for line in path.read_text().splitlines()]
    return [Line(what, label, int(attempt), call_id, key) for what, label, attempt, call_id, key in words]


def _failed(entry: Entry) -> bool:
    return isinstance(entry.body, AssistantMessage) and entry.body.stop_reason in ("error", "aborted")


def _code(entry: Entry) -> str | None:
    body = entry.body
    return body.error.code if isinstance(body, AssistantMessage) and body.error is not None else None


def _text(entry: Entry) -> str:
    match entry.body:
        case UserMessage() as message:
            return "user " + "".join(part.text for part in message.content if isinstance(part, TextPart))
        case AssistantMessage() as message:
            return f"assistant {message.text}"
        case ToolResultMessage() as message:
            return f"result {message.text}"
        case other:
            return type(other).__name__


def _bytes(folder: Path) -> dict[str, bytes]:
    """The bytes of a JSONL session. What is in SQLite's files is moved between them by whoever opens them."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}
