"""Queueing input on a lane, cancelling it, and taking it out of the inbox in the commit of whoever places it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from agentlane.data import addresses, codec
from agentlane.data.entries import EntryBody
from agentlane.data.inbox import Queued, QueuedItem, QueuedKind, Receipt, queued_digest
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage
from agentlane.data.reads import id_text
from agentlane.data.requests import Prompt, prompt_messages
from agentlane.data.writes import SetValue, Write
from agentlane.driver.amounts import all_fit, check_input, fitting_items, written
from agentlane.driver.draft import PathDraft
from agentlane.driver.inbox import RETURNED_KINDS, WaitingItem
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.errors import InvalidMessage, RequestConflict, UnknownOperation
from agentlane.ids import derive
from agentlane.names import check_name
from agentlane.storage.contract import Commit

MESSAGES_MAX = 10_000
"""Messages that one item, or one prompt, may hold."""

CancelOutcome: TypeAlias = Literal["cancelled", "already_consumed", "not_found"]
"""What ``cancel_queued`` found: it waited and does no more; it is an entry of the session by now; it is neither."""


class Sealed(NamedTuple):
    """Messages, checked and encoded before any line is entered."""

    payloads: tuple[bytes, ...]
    bodies: tuple[EntryBody, ...]


class Again(NamedTuple):
    """Somebody else was faster: look again."""


def as_prompt(message: str | UserMessage | Prompt) -> Prompt:
    """What somebody says to a lane, in its long form."""
    if isinstance(message, str):
        return Prompt(message)
    return Prompt(messages=(message,)) if isinstance(message, UserMessage) else message


def sealed_input(message: str | UserMessage | Prompt) -> Sealed:
    """The checked messages of what somebody says to a lane; ``InvalidMessage`` has the path of what is wrong."""
    messages = prompt_messages(as_prompt(message))
    if len(messages) > MESSAGES_MAX:
        raise InvalidMessage(f"prompt: {len(messages)} messages; at most {MESSAGES_MAX} are taken at once")
    sealed = [codec.BODY.seal(each, f"prompt.messages[{index}]") for index, each in enumerate(messages)]
    return Sealed(tuple(payload for payload, _ in sealed), tuple(body for _, body in sealed))


async def queue(
    lane: LaneCore, kind: QueuedKind, message: str | UserMessage | Prompt, request_id: str | None
) -> Queued:
    """Commit one message, or several that stay together, as an item of the inbox. See ``AgentLane.steer``."""
    lane.check_writable()
    sealed = sealed_input(message)
    if request_id is None:
        return await lane.line.run(lambda: decide_queue(lane, kind, sealed, None, submitted=False))
    request_id = check_name(request_id, "request id")
    digest = queued_digest(kind, sealed.payloads, submitted=False)

    def decide(looked: int) -> Decision[Queued | Again] | Done[Queued | Again]:
        if lane.receipts.since(request_id, looked):
            return Done(Again())
        return decide_queue(lane, kind, sealed, request_id, submitted=False)

    while True:
        looked = lane.receipts.count
        known = await receipt_of(lane, request_id)
        if known is not None:
            known = same_content(known, digest)
            return Queued(id=known.entries[0], lane=lane.name, kind=known.kind, request_id=request_id)
        outcome = await lane.line.run(lambda looked=looked: decide(looked))  # type: ignore[misc]
        if isinstance(outcome, Queued):
            return outcome


def decide_queue(
    lane: LaneCore, kind: QueuedKind, sealed: Sealed, request_id: str | None, *, submitted: bool
) -> Decision[Queued]:
    """The commit of one item. A submitted one without a request id has its receipt under its own id."""
    if lane.config is None:
        raise UnknownOperation(f"branch {lane.name!r} is not a lane; open it with session.lane(name, agent)")
    check_input(sealed.payloads, kind)
    base = lane.runtime.ids.new()
    entries = entry_ids(base, len(sealed.bodies))
    item = QueuedItem(
        kind=kind,
        entries=entries,
        order=lane.inbox.next_order,
        submitted=submitted,
        request_id=base if submitted and request_id is None else request_id,
    )
    waiting = WaitingItem(item, sealed.payloads, sealed.bodies)

    def publish(commit: Commit) -> Queued:
        lane.inbox.add(waiting)
        if item.request_id is not None:
            lane.receipts.add(item.request_id)
        if lane.running is not None:
            lane.running.poke()
        return Queued(id=base, lane=lane.name, kind=kind, request_id=item.request_id)

    return Decision(waiting.insertion(lane.name), "queue", publish)


def entry_ids(base: str, count: int) -> tuple[str, ...]:
    """The entry ids that an item of ``count`` messages has, queued with the id ``base``."""
    return tuple(derive(base, index) for index in range(count))


def check_deferrable(operation_id: str, body: EntryBody) -> None:
    """Refuse what could not be placed at whatever boundary comes next: it belongs to one place in a conversation."""
    if isinstance(body, ToolResultMessage) or (isinstance(body, AssistantMessage) and body.calls):
        what = "a tool result" if isinstance(body, ToolResultMessage) else "an answer with calls"
        raise InvalidMessage(
            f"entry: {what} cannot be appended while operation {operation_id} is open; append it when it has settled"
        )


async def cancel_queued(lane: LaneCore, id: str) -> CancelOutcome:
    """Take an item out of the inbox. See ``AgentLane.cancel_queued``."""
    lane.check_writable()
    text = id_text(id)
    if text is None:
        return "not_found"

    def decide() -> Decision[bool] | Done[bool]:
        item = lane.inbox.get(text)
        if item is None:
            return Done(False)

        def publish(commit: Commit) -> bool:
            lane.inbox.remove([item])
            return True

        return Decision(item.removal(lane.name, "cancelled", None), "cancel_queued", publish)

    if await lane.line.run(decide):
        return "cancelled"
    return "not_found" if (await lane.runtime.storage.entries([text]))[0] is None else "already_consumed"


# Receipts.


async def receipt_of(lane: LaneCore, request_id: str) -> Receipt | None:
    """What is stored of the message that was queued or submitted with this id."""
    payload = await lane.runtime.storage.value(addresses.receipt(lane.name, request_id))
    return None if payload is None else codec.RECEIPT.decode(payload, f"receipt {lane.name}|{request_id}")


def same_content(known: Receipt, digest: str) -> Receipt:
    """The receipt, if it is of the same content; ``RequestConflict`` otherwise."""
    if known.digest != digest:
        raise RequestConflict(
            f"request id {known.request_id!r} was used on lane {known.lane!r} for another message; use a new id"
        )
    return known


# Taking items out of the inbox.


def place_before_prompt(lane: LaneCore, path: PathDraft, operation_id: str) -> Sequence[WaitingItem]:
    """Place all that waits, in the order it came, before the prompt of an operation that is being opened."""
    items = tuple(lane.inbox)
    for item in items:
        path.place_item(item)
        path.writes += item.removal(lane.name, "placed", operation_id)
    return items


def fits_before_prompt(lane: LaneCore, path: PathDraft, prompt_bytes: int) -> bool:
    """Whether one commit holds all that waits, and the prompt behind it."""
    return not lane.inbox or all_fit(lane.inbox, written(path) + prompt_bytes)


def place_part(lane: LaneCore, path: PathDraft) -> Decision[Again]:
    """Place the first of what waits, as much as one commit holds, before a prompt that is still to come: that one, or
    whoever is faster, finds the conversation as if it had come in one commit."""
    items = fitting_items(lane.inbox, 0)
    for item in items:
        path.place_item(item)
        path.writes += item.removal(lane.name, "placed", None)
    path.seal_tip()

    def publish(commit: Commit) -> Again:
        lane.inbox.remove(items)
        lane.take_path(path)
        return Again()

    return Decision(path.writes, "placement", publish)


def returned_by_abort(lane: LaneCore) -> list[WaitingItem]:
    """What waits for the operation that is to be aborted. What its record would not hold waits on."""
    return fitting_items((item for item in lane.inbox if item.item.kind in RETURNED_KINDS), 0)


def abort_writes(lane: LaneCore, operation_id: str, items: Sequence[WaitingItem]) -> list[Write]:
    """The writes that give these items back, and keep them with the operation until its record does."""
    writes: list[Write] = []
    for item in items:
        writes += item.removal(lane.name, "returned", operation_id)
    if items:
        returned = tuple(item.shown() for item in items)
        writes.append(SetValue(addresses.op_returned(operation_id), codec.encode(returned)))
    return writes
