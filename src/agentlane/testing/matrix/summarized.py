"""What holds of summaries in a history that has come to its end: what they are about, how often one was asked for, what
was charged, and where they were placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentlane.data import addresses, codec
from agentlane.data.entries import BranchSummary, Compaction, Custom, Entry
from agentlane.data.messages import Message
from agentlane.data.operations import Summarizing
from agentlane.data.requests import Compact, Navigate
from agentlane.data.usage import UsageRow
from agentlane.data.writes import InsertEntry, SetValue, Write
from agentlane.hooks import SummaryText
from agentlane.ids import usage_id
from agentlane.machine.summaries import checked_summary
from agentlane.testing.decoded import state_of
from agentlane.testing.matrix.history import History
from agentlane.testing.matrix.oracle import Verdict, shown
from agentlane.testing.matrix.story import Aside, Chapter, Step, is_kept
from agentlane.testing.matrix.witness import Asked


class Intent(NamedTuple):
    """One request for a summary that was intended."""

    operation_id: str
    task: str
    reason: str
    turn: int


def requests_of(history: History[Any]) -> dict[str, Compact | Navigate]:
    """What was asked for, by operation, where that is no run."""
    found: dict[str, Compact | Navigate] = {}
    for write in _writes(history):
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_META:
            meta = codec.META.decode(write.payload, "op.meta")
            asked = meta.compact or meta.navigate
            if asked is not None:
                found[write.address.key] = asked
    return found


def intents_of(history: History[Any]) -> dict[str, Intent]:
    """Every intended request for a summary, by the id of the row that it is to have in the ledger."""
    found: dict[str, Intent] = {}
    for write in _writes(history):
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
            state = state_of(write.payload)
            if isinstance(state, Summarizing):
                intent = Intent(write.address.key, state.task, state.reason, state.turn)
                found[usage_id(state.response_id)] = intent
    return found


def exhausted(history: History[Any]) -> set[str]:
    """Operations in which a summary was interrupted more often than it may be asked for again."""
    limits = next((life.own_agent.limits for life in history.lives if hasattr(life, "own_agent")), None)
    found = Counter((each.operation_id, each.task) for each in history.found_summaries)
    return {id for (id, _), count in found.items() if limits is not None and count > limits.max_restarts}


def _writes(history: History[Any]) -> Iterator[Write]:
    for commit, _ in history.trace.commits():
        yield from commit.writes


# Requests.


def check_summarized(history: History[Any], story: Sequence[Step], verdict: Verdict) -> Iterator[str]:
    """Each summary is what its request, or a hook, gave, and what it was asked for was what an uninterrupted run asks.

    What a navigation left behind is not in the story of where it went, so its request is for the scenario to look at.
    """
    said = {each.value.text.strip() for each in history.witness.hooked if isinstance(each.value, SummaryText)}
    for operation_id, body in _bodies(story):
        if body.model is None:
            if body.summary not in said:
                yield f"the summary {body.summary!r} is said to be the application's, and no hook gave it"
            continue
        mine = [each for each in _asked(history, operation_id) if _made(each) == body.summary]
        if not mine:
            yield f"the summary {body.summary!r} of {operation_id} was given by no model"
        elif isinstance(body, Compaction) and not verdict.complaints:
            wanted = verdict.summarized.get(body.summary, [])
            if not any(shown(each.messages) in wanted for each in mine):
                yield (
                    f"I13: the summary {body.summary!r} of {operation_id} was made of {list(mine[-1].messages)!r}, and "
                    f"an uninterrupted run makes it of {wanted!r}"
                )


def check_asked_in_order(history: History[Any], chapter: Chapter, wanted: Sequence[list[Message]]) -> Iterator[str]:
    """What the model was asked in an operation with summaries is what an uninterrupted run asks, in its order."""
    place = 0
    for asked in history.witness.asked:
        if asked.purpose != "answer" or asked.operation_id != chapter.result.operation_id:
            continue
        messages = shown(asked.untouched)
        found = next((index for index in range(place, len(wanted)) if wanted[index] == messages), None)
        if found is None:
            yield (
                f"I13: attempt {asked.attempt} of {asked.operation_id} was shown {messages!r}, and an uninterrupted "
                f"run shows none of {list(wanted[place:])!r}"
            )
            return
        place = found


def _bodies(story: Sequence[Step]) -> Iterator[tuple[str, Compaction | BranchSummary]]:
    for each in story:
        if isinstance(each, Aside):
            yield each.result.operation_id, each.body
        elif isinstance(each, Chapter):
            for body in each.summaries:
                yield each.result.operation_id, body


def _asked(history: History[Any], operation_id: str | None = None) -> list[Asked]:
    asked = [each for each in history.witness.asked if each.purpose == "summary"]
    return [each for each in asked if operation_id in (None, each.operation_id)]


def _made(asked: Asked) -> object:
    return None if asked.answer is None else checked_summary(asked.answer)


# Attempts, the ledger, and places.


def check_summaries(history: History[Any], entries: Mapping[str, Entry], rows: Sequence[UsageRow]) -> Iterator[str]:
    """Attempts at a summary are about the same, no more than there are reasons for, and each is charged once."""
    intents = intents_of(history)
    yield from _check_rows(history, entries, [row for row in rows if row.kind == "summary"], intents)
    yield from _check_attempts(history, intents)
    yield from _check_moves(history)
    overflows = Counter(
        (operation, turn) for operation, task, reason, turn in set(intents.values()) if reason == "overflow"
    )
    yield from (f"{id} was summarized {n} times for one request" for (id, _), n in overflows.items() if n > 1)


def _check_rows(
    history: History[Any], entries: Mapping[str, Entry], rows: Sequence[UsageRow], intents: Mapping[str, Intent]
) -> Iterator[str]:
    charged = Counter(row.id for row in rows)
    for id, intent in intents.items():
        if charged[id] != 1:
            yield f"a request for the summary {intent.task} of {intent.operation_id} has {charged[id]} rows"
    yield from (f"the row {id} is of no request for a summary" for id in charged if id not in intents)
    placed = Counter(row.entry_id for row in rows if row.entry_id is not None)
    for id, entry in entries.items():
        if isinstance(entry.body, Compaction | BranchSummary):
            wanted = int(entry.body.model is not None)
            if placed.pop(id, 0) != wanted:
                yield f"the summary {id} is not named by {wanted} rows of the ledger"
    yield from (f"a row of the ledger names the summary {id}, which is not there" for id in placed)
    found = {usage_id(each.response_id) for each in history.found_summaries}
    for row in rows:
        if row.id in found and not row.usage.unknown:
            yield f"the request of the row {row.id} was interrupted, and its usage is said to be known"
        if row.id in found and row.entry_id is not None:
            yield f"the request of the row {row.id} was interrupted, and is said to have given a summary"


def _check_attempts(history: History[Any], intents: Mapping[str, Intent]) -> Iterator[str]:
    """Attempts follow one another, all about the same; another one has a reason: a failure, or a death."""
    limits = next((life.own_agent.limits for life in history.lives if hasattr(life, "own_agent")), None)
    most = 0 if limits is None else limits.max_restarts
    interrupted: Counter[str] = Counter()
    for (id, _), count in Counter((each.operation_id, each.task) for each in history.found_summaries).items():
        interrupted[id] += min(count, most)
    tasks = Counter(id for id, _ in {(each.operation_id, each.task) for each in intents.values()})
    for id in dict.fromkeys(each.operation_id for each in _asked(history)):
        asked = _asked(history, id)
        before: Asked | None = None
        for each in asked:
            if before is not None and each.attempt > before.attempt and _told(each) != _told(before):
                yield f"attempt {each.attempt} at a summary of {id} is about {_told(each)}, and before {_told(before)}"
            before = each
        reasons = tasks[id] + interrupted[id] + sum(each.failed or not isinstance(_made(each), str) for each in asked)
        if len(asked) > reasons:
            yield f"operation {id} asked {len(asked)} times for summaries, and has reasons for {reasons}"


def _told(asked: Asked) -> tuple[str, list[Message]]:
    return asked.instructions, shown(asked.messages)


def _check_moves(history: History[Any]) -> Iterator[str]:
    """A lane that takes a summary along moves in the commit that places it, and not before."""
    requests = requests_of(history)
    entries: dict[str, InsertEntry] = {}
    open_now: dict[str, str] = {}
    for commit, _ in history.trace.commits():
        placed = [write for write in commit.writes if isinstance(write, InsertEntry)]
        values = [write for write in commit.writes if isinstance(write, SetValue)]
        entries.update((write.id, write) for write in placed)
        for write in values:
            if write.address.namespace == addresses.OP_META:
                asked, meta = requests.get(write.address.key), codec.META.decode(write.payload, "op.meta")
                if isinstance(asked, Navigate) and asked.summarize and _leaves(entries, meta.start_tip, meta.base):
                    open_now[meta.lane] = write.address.key
        ended = [codec.RESULT.decode(each.payload, "result") for each in values if _is_result(each)]
        stayed = {record.operation_id for record in ended if record.status != "completed"}
        for write in values:
            id = open_now.get(write.address.key) if write.address.namespace == addresses.BRANCH_TIP else None
            if id is None or id in stayed:  # what moves the tip then is the next operation's prompt
                continue
            if not any(isinstance(codec.BODY.decode(each.payload, "entry"), BranchSummary) for each in placed):
                yield f"operation {id} moved its lane without the summary of what it left"
        over = {record.operation_id for record in ended}
        open_now = {lane: id for lane, id in open_now.items() if id not in over}


def _is_result(write: SetValue) -> bool:
    return write.address.namespace == addresses.RESULT


def _leaves(entries: Mapping[str, InsertEntry], tip: str | None, base: str | None) -> bool:
    """Whether a model is shown something of what stands behind ``base``, as far as a path tells without its agent."""
    while tip is not None and tip != base and (entry := entries.get(tip)) is not None:
        body = codec.BODY.decode(entry.payload, "entry")
        if not isinstance(body, Custom | Compaction) and is_kept(body) and getattr(body, "content", True):
            return True
        tip = entry.parent_id
    return False
