"""What the demo claims, each claim checked by the store and by the log of effects outside of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from _folder_tools import TOOLS
from _models import NOTES

from agentlane import (
    Agent,
    AssistantMessage,
    CallRecord,
    Entry,
    OperationResult,
    ToolResultMessage,
    open_session,
)
from agentlane.testing import ScriptedModel

OPERATION = "tidy-up-1"
POLICIES = {tool.name: tool.options.replay for tool in TOOLS}
READER = Agent("tidy", model=ScriptedModel([]))


class Place(NamedTuple):
    """The files of one demo."""

    folder: Path
    store: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def effects(self) -> Path:
        return self.folder / "effects.log"


class Claim(NamedTuple):
    """One claim; ``holds`` is None where nothing happened that it is about."""

    text: str
    holds: bool | None


class Kept(NamedTuple):
    """What the store holds in the end, and what the log says."""

    entries: list[Entry]
    record: OperationResult | None
    nothing_open: bool
    log: list[dict[str, Any]]

    def starts(self, call_id: str) -> list[int]:
        """The processes that started the call, by the log; a result has the id of its call."""
        return [each["process"] for each in self.log if each["event"] == "start" and each.get("call") == call_id]

    @property
    def asked(self) -> list[int]:
        """The processes that asked the model, in order."""
        return [each["process"] for each in self.log if each["what"] == "model"]


async def kept(place: Place) -> Kept:
    """Read the store, beside whoever has it, and the log."""
    log = [json.loads(each) for each in place.effects.read_text().splitlines()]
    async with open_session(place.store, read_only=True) as session:
        lane = await session.lane("main", READER)
        entries = await lane.entries(newest_first=False)
        return Kept(entries, await lane.result(OPERATION), not session.open_operations(), log)


async def found(place: Place) -> list[CallRecord]:
    """The calls of the open operation, as the store holds them; none if nothing is open."""
    async with open_session(place.store, read_only=True) as session:
        operation = (await session.lane("main", READER)).inspect().operation
        return [] if operation is None else list(operation.calls)


async def check(place: Place, first: int, second: int, seen: list[str]) -> list[tuple[str, bool]]:
    """Each claim about the run of the script, whose answers are known, and whether it holds."""
    entries, record, nothing_open, log = whole = await kept(place)
    at = next(i for i, e in enumerate(entries) if isinstance(e.body, AssistantMessage) and len(e.body.calls) > 1)
    batch = entries[at].body
    assert isinstance(batch, AssistantMessage)
    results = results_behind(entries, at)
    search, read, delete_file, write, delete_folder, late = results

    def starts(index: int) -> list[int]:
        return whole.starts(entries[at + 1 + index].id)

    keys = {each["key"] for each in log if each["event"] == "start" and each["what"] == "write_file"}
    deletion = [each["event"] for each in log if each["what"] == "delete_folder"]
    return [
        (
            "at the kill the store held two staged outcomes behind an unfinished call, and one call not started",
            seen == ["effect_pending", "outcome_ready", "outcome_ready", "effect_pending", "effect_pending", "planned"],
        ),
        (
            "the safe call ran twice: begun by the first process, again and to its end by the second",
            starts(0) == [first, second] and made_by(search) == second and not search.is_error,
        ),
        (
            "staged outcomes were kept: both tools ran once, in the first process, and theirs are the results",
            starts(1) == starts(2) == [first] and made_by(read) == made_by(delete_file) == first,
        ),
        (
            "the idempotent call ran again under the same key, and left one whole file and no draft",
            starts(3) == [first, second]
            and len(keys) == 1
            and made_by(write) == second
            and (place.project / "NOTES.md").read_text() == NOTES
            and not list(place.project.glob(".NOTES.md.*")),
        ),
        (
            "the never call started exactly once, and its result says that the outcome is unknown",
            starts(4) == [first] and deletion == ["start", "half way"] and says_unknown(delete_folder),
        ),
        ("the call that had not started ran once, in the second process", starts(5) == [second] == [made_by(late)]),
        (
            "each call has one result, in the order in which the model asked",
            [each.name for each in results] == [each.name for each in batch.calls],
        ),
        (
            "the model was not asked again for an answer that was settled: twice before the kill, twice after",
            whole.asked == [first, first, second, second] and record is not None and record.usage.rows == 4,
        ),
        (
            "the operation is completed, and nothing is open",
            record is not None and record.status == "completed" and nothing_open,
        ),
    ]


async def check_any(place: Place, first: int, second: int, calls: Iterable[CallRecord]) -> list[Claim]:
    """Each claim about a run whose answers nobody knows beforehand. ``calls`` is what the store held at the kill."""
    whole = await kept(place)
    results = {e.id: e.body for e in whole.entries if isinstance(e.body, ToolResultMessage)}
    keys: dict[str, set[str]] = defaultdict(set)
    for each in whole.log:
        if each["event"] == "start" and "call" in each:
            keys[each["call"]].add(each["key"])
    answers = [e.body for e in whole.entries if isinstance(e.body, AssistantMessage)]
    never = [each for each in keys if each in results and POLICIES[results[each].name] == "never"]
    under_way = [call for call in calls if call.status == "effect_pending"]
    unsafe = [call.call_id for call in under_way if call.policy == "never"]
    again = [call.call_id for call in under_way if call.policy != "never"]
    staged = [call.call_id for call in calls if call.status in ("outcome_ready", "placed")]
    planned = [call.call_id for call in calls if call.status == "planned"]
    # A call that the kill came before can have its intent in the store, and no start in the log.
    return [
        Claim(
            "the call that was held at the kill had started, and the store had no outcome of it",
            any(whole.starts(call.call_id)[:1] == [first] for call in under_way) if under_way else None,
        ),
        Claim(
            "a never call that was under way was not started again, and its result says that the outcome is unknown",
            all(whole.starts(each) in ([], [first]) and says_unknown(results[each]) for each in unsafe)
            if unsafe
            else None,
        ),
        Claim(
            "a safe or idempotent call that was under way ran again in the second process, under the same key",
            all(whole.starts(each) in ([second], [first, second]) and len(keys[each]) == 1 for each in again)
            if again
            else None,
        ),
        Claim(
            "outcomes that the store held at the kill were kept: their tools did not run again",
            not any(second in whole.starts(each) for each in staged) if staged else None,
        ),
        Claim(
            "a call that had not started at the kill was started by the second process alone, or not at all",
            all(whole.starts(each) in ([], [second]) for each in planned) if planned else None,
        ),
        Claim("no never call started twice", all(len(whole.starts(each)) == 1 for each in never) if never else None),
        Claim("no tool started of which the store has no result", set(keys) <= set(results) if keys else None),
        Claim(
            "each call has one result, in the order in which the model asked",
            all(_is_answered(whole.entries, at) for at in range(len(whole.entries))) if results else None,
        ),
        Claim(
            "each request to the model has one answer in the conversation and one row in the ledger",
            whole.record is not None and len(whole.asked) == len(answers) == whole.record.usage.rows,
        ),
        Claim("the operation has settled, and nothing is open", whole.record is not None and whole.nothing_open),
    ]


def results_behind(entries: list[Entry], at: int) -> list[ToolResultMessage]:
    """The tool results directly behind the entry at that place."""
    found: list[ToolResultMessage] = []
    for entry in entries[at + 1 :]:
        if not isinstance(entry.body, ToolResultMessage):
            break
        found.append(entry.body)
    return found


def made_by(result: ToolResultMessage) -> int | None:
    """The process whose tool gave this result; None for one that the library wrote."""
    return result.details["process"] if result.details else None


def says_unknown(result: ToolResultMessage) -> bool:
    """Whether it is the library's result for a call whose outcome nobody knows."""
    return result.is_error and result.details is None and "no outcome was saved" in result.text


def _is_answered(entries: list[Entry], at: int) -> bool:
    """Whether the entry is no answer whose calls were to run, or has their results directly behind it."""
    answer = entries[at].body
    if not isinstance(answer, AssistantMessage) or answer.stop_reason in ("error", "aborted"):
        return True
    return [each.name for each in results_behind(entries, at)] == [each.name for each in answer.calls]
