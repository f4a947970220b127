"""What an earlier pass left of an operation: read from the store once, before anything goes on."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data import addresses, codec
from agentlane.data.approvals import in_order
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, ErrorInfo, Frame, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.data.operations import Generating, OutcomeReady, Tools
from agentlane.data.usage import UsageTotals
from agentlane.driver.frames import FrameLog
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.tool_results import Sealed
from agentlane.errors import CorruptSession
from agentlane.ids import call_id, correction_id, is_follow_up
from agentlane.storage.contract import SessionStorage

INTERRUPTED = (
    "the process stopped while the model was answering; what is here was saved before that, and what the provider "
    "charged is not known"
)


def restored_answer(frames: Sequence[Frame], model: ModelIdentity | None) -> AssistantMessage:
    """The saved prefix of an answer as an error answer; calls in it never run and are never sent back."""
    log = FrameLog()
    for frame in frames:
        log.add(frame)
    return AssistantMessage(
        content=log.shown(),
        stop_reason="error",
        model=model,
        usage=log.usage,
        error=ErrorInfo(code="interrupted", message=INTERRUPTED, retryable=True),
    )


async def restore(storage: SessionStorage, operation: OpenOperation, path: Sequence[Entry]) -> None:
    """Read what belongs to ``operation`` besides its state. ``path`` is the lane's, root first."""
    state = operation.state
    for entry in path:
        if isinstance(entry.body, AssistantMessage):
            operation.take_answer(entry.body)
    since = next((entry.seq for entry in path if entry.id == operation.meta.inputs[0]), None)
    if since is None:
        raise CorruptSession(
            f"operation {operation.id}: its input {operation.meta.inputs[0]} is not on the path of lane "
            f"{operation.meta.lane!r}"
        )
    operation.corrections = _corrections(operation, path)
    mine = (entry for entry in path if entry.seq >= since and isinstance(entry.body, UserMessage))
    operation.follow_ups = sum(is_follow_up(entry.id) for entry in mine if entry.id not in operation.meta.inputs)
    operation.usage = await _usage(storage, operation.id, since)
    decisions = await storage.values(addresses.OP_DECISION, f"{operation.id}|")
    operation.decisions = in_order(
        codec.DECISION.decode(payload, f"decision {key}") for key, payload in decisions.items()
    )
    if isinstance(state, Generating):
        for element in await storage.elements(addresses.pending_frames(operation.id, state.response_id)):
            operation.frames.extend(codec.FRAMES.decode(element.payload, f"frames of {state.response_id}"))
    elif isinstance(state, Tools):
        await _restore_batch(storage, operation, state)


def _corrections(operation: OpenOperation, path: Sequence[Entry]) -> int:
    """How many entries of the operation's own say what is wrong with an answer: those under an id made for that."""
    meta = operation.meta
    start = meta.inputs[0] if meta.retry_of is None else meta.start_tip
    count, answer = 0, ""
    for entry in path:
        if entry.id == start:
            count = 0
        if isinstance(entry.body, AssistantMessage):
            answer = entry.id
        elif answer and entry.id == correction_id(answer):
            count += entry.id != start
    return count


async def _usage(storage: SessionStorage, operation_id: str, since: int) -> UsageTotals:
    totals = UsageTotals()
    for ledger in await storage.usage(after_seq=since):
        if ledger.row.operation_id == operation_id and ledger.row.kind == "attempt":
            totals = totals.plus(ledger.row)
    return totals


async def _restore_batch(storage: SessionStorage, operation: OpenOperation, state: Tools) -> None:
    if len(operation.calls) != len(state.calls):
        raise CorruptSession(
            f"operation {operation.id}: answer {state.answer} has {len(operation.calls)} calls, its state "
            f"{len(state.calls)}"
        )
    index_of = {call_id(state.answer, index): index for index in range(len(state.calls))}
    for id, index in index_of.items():
        call = state.calls[index]
        if isinstance(call, OutcomeReady):
            payload = await storage.value(addresses.pending_entry(id))
            message = None if payload is None else codec.BODY.decode(payload, f"staged result {id}")
            if payload is None or not isinstance(message, ToolResultMessage):
                raise CorruptSession(f"operation {operation.id}: the staged result {id} is not there")
            operation.staged[index] = Sealed(message, payload, call.terminate)
    for key, payload in (await storage.values(addresses.PENDING_OUTPUT, f"{operation.id}|")).items():
        index = index_of[key.split("|")[1]]
        operation.progress[index] = codec.PROGRESS.decode(payload, f"progress {key}")
    for key, payload in (await storage.values(addresses.OP_ARGS, f"{operation.id}|")).items():
        operation.args[index_of[key.split("|")[1]]] = codec.JSON.decode(payload, f"arguments {key}")
    for key, payload in (await storage.values(addresses.OP_MEMO, f"{operation.id}|")).items():
        _, id, name = key.split("|")
        operation.memos.setdefault(index_of[id], {})[name] = payload
    for key, payload in (await storage.values(addresses.OP_ANSWER, f"{operation.id}|")).items():
        _, id, name = key.split("|")
        operation.answers.setdefault(index_of[id], {})[name] = payload
