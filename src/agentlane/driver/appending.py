"""Appending to a branch: at once where it is idle, as a deferred write where an operation is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane.data import codec
from agentlane.data.border import clean_json
from agentlane.data.entries import Custom, Entry, EntryBody
from agentlane.data.inbox import Queued
from agentlane.data.messages import AssistantMessage, ToolCallPart, ToolResultMessage, UserMessage
from agentlane.driver import queueing
from agentlane.driver.draft import PathDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.errors import InvalidMessage
from agentlane.ids import IdSource, derive
from agentlane.machine.context import not_available
from agentlane.names import check_name
from agentlane.storage.contract import Commit


async def append(lane: LaneCore, body: EntryBody) -> Entry | Queued:
    """Append an entry to an idle branch, or queue it while an operation is open; durable on return."""
    runtime = lane.runtime
    lane.check_writable()
    payload, copy = codec.BODY.seal(body, "entry")

    def decide() -> Decision[Entry] | Decision[Queued] | Done[None]:
        if lane.operation is not None:
            queueing.check_deferrable(lane.operation.id, copy)
            return queueing.decide_queue(lane, "write", queueing.Sealed((payload,), (copy,)), None, submitted=False)
        if not lane.end_known:
            return Done(None)  # the lane moved since its end was read
        draft = PathDraft(lane.name, lane.tip)
        if isinstance(copy, ToolResultMessage):
            _check_answers_call(lane, copy)
        elif isinstance(copy, UserMessage | AssistantMessage):
            repair(lane, draft)
        draft.place(runtime.ids.new(), copy, payload)
        draft.seal_tip()

        def publish(commit: Commit) -> Entry:
            lane.take_path(draft)
            id = draft.placed[-1][0]
            parent = draft.placed[-2][0] if len(draft.placed) > 1 else before
            # A body of its own: the lane goes on with the one that it placed.
            return codec.entry_of(id, parent, commit.first_seq + len(draft.placed) - 1, commit.at, payload)

        before = lane.tip
        return Decision(draft.writes, "append", publish)

    while True:
        await lane.load_end()
        made = await lane.line.run(decide)
        if made is not None:
            return made


def _check_answers_call(lane: LaneCore, message: ToolResultMessage) -> None:
    """Refuse a result that is not the next one of the batch at the tip. # I5"""
    found = lane.open_calls()
    missing = () if found is None else found[1]
    if all(call.id != message.call_id for call in missing):
        raise InvalidMessage(
            f"entry: a result for call {message.call_id!r} must follow an answer with that call and no result for it"
        )
    first = missing[0]
    if first.id != message.call_id:
        raise InvalidMessage(
            f"entry: the result for call {first.id!r} of {first.name!r} must come before the one for call "
            f"{message.call_id!r}; append results in the order of the answer's calls"
        )
    if first.name != message.name:
        raise InvalidMessage(
            f"entry: call {first.id!r} is one of {first.name!r}, not of {message.name!r}; name its result so"
        )


def custom(type: str, data: Any) -> Custom:
    """A checked custom entry body."""
    return Custom(type=check_name(type, "custom entry type"), data=clean_json(data, "data"))


def repair(lane: LaneCore, draft: PathDraft) -> None:
    """On a tip inside a batch, each call without a result on this path gets one that says so. # I10"""
    found = lane.open_calls()
    if found is None:
        return
    for id, body, payload in results_of(found[1], lane.runtime.ids):
        draft.place(id, body, payload)


def results_of(calls: Sequence[ToolCallPart], ids: IdSource) -> list[tuple[str, EntryBody, bytes]]:
    """For each of these calls, which have no result on a path, the entry of one that says so."""
    base = ids.new()
    found: list[tuple[str, EntryBody, bytes]] = []
    for index, call in enumerate(calls):
        payload, body = codec.BODY.seal(not_available(call), "result")
        found.append((derive(base, index), body, payload))
    return found
