"""What an earlier pass left of an operation: read from the store once, before anything goes on."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data import addresses, codec
from agentlane.data.approvals import in_order
from agentlane.data.entries import Compaction, Entry
from agentlane.data.messages import AssistantMessage, ErrorInfo, Frame, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.data.operations import Checkpoint, Generating, OutcomeReady, Summarizing, SummaryPrep, SummaryWait, Tools
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
    """Read what belongs to ``operation`` besides its state. ``path`` is the lane's, oldest first, from the operation's
    input on at least."""
    state = operation.state
    own = _own(operation, path)
    for entry in own:
        if isinstance(entry.body, AssistantMessage):
            operation.take_answer(entry.body)
    operation.corrections = _corrections(operation, own)
    mine = (entry for entry in own if isinstance(entry.body, UserMessage) and entry.id not in operation.meta.inputs)
    operation.follow_ups = sum(is_follow_up(entry.id) for entry in mine)
    operation.usage = await _usage(storage, operation.id, own[0].seq if own else await _begun_at(storage, operation))
    decisions = await storage.values(addresses.OP_DECISION, f"{operation.id}|")
    operation.decisions = in_order(
        codec.DECISION.decode(payload, f"decision {key}") for key, payload in decisions.items()
    )
    if isinstance(state, Generating):
        for element in await storage.elements(addresses.pending_frames(operation.id, state.response_id)):
            operation.frames.extend(codec.FRAMES.decode(element.payload, f"frames of {state.response_id}"))
    elif isinstance(state, Tools):
        await _restore_batch(storage, operation, state)
    elif isinstance(state, Summarizing | SummaryWait):
        operation.prep = await _prep(storage, operation, state.task)
    elif isinstance(state, Checkpoint) and state.next == "end":
        body = next((entry.body for entry in reversed(path) if entry.id == state.trigger), None)
        if isinstance(body, Compaction):
            operation.summary = state.trigger, body.summary


def _own(operation: OpenOperation, path: Sequence[Entry]) -> Sequence[Entry]:
    """The entries from the operation's input on; none of an operation that has no input, as of a compaction."""
    inputs = operation.meta.inputs
    if not inputs:
        return ()
    for at, entry in enumerate(path):
        if entry.id == inputs[0]:
            return path[at:]
    raise CorruptSession(
        f"operation {operation.id}: its input {inputs[0]} is not on the path of lane {operation.meta.lane!r}"
    )


async def _begun_at(storage: SessionStorage, operation: OpenOperation) -> int:
    """A place in the session's order before which nothing is the operation's."""
    tip = operation.meta.start_tip
    row = None if tip is None else (await storage.entries([tip]))[0]
    return 0 if row is None else row.seq


async def _prep(storage: SessionStorage, operation: OpenOperation, task: str) -> SummaryPrep:
    payload = await storage.value(addresses.op_prep(operation.id, task))
    if payload is None:
        raise CorruptSession(f"operation {operation.id}: what the summary {task} is made of is not there")
    return codec.PREP.decode(payload, f"preparation of the summary {task}")


def _corrections(operation: OpenOperation, own: Sequence[Entry]) -> int:
    """How many entries of the operation's own say what is wrong with an answer: those under an id made for that."""
    meta = operation.meta
    start = None if meta.retry_of is None else meta.start_tip
    count, answer = 0, ""
    for entry in own:
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
        if ledger.row.operation_id == operation_id and ledger.row.kind in ("attempt", "summary"):
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
