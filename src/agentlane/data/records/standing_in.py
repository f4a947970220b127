"""What a repair writes in the place of records that are lost, or that cannot stay where they were."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data.approvals import Decision, in_order
from agentlane.data.entries import Custom
from agentlane.data.inbox import QueuedInput
from agentlane.data.messages import ErrorInfo, TextPart, ToolCallPart, ToolResultMessage, UserPart
from agentlane.data.operations import OperationConfig, OperationMeta
from agentlane.data.results import OperationResult
from agentlane.data.usage import UsageTotals
from agentlane.data.writes import Address

LOST = "repair.lost"
"""The type of the custom entry that stands for one that is lost."""
UNREADABLE = "repair.unreadable"
"""The type of the custom entry that holds, as text, what cannot be read of the entry whose id it has."""
SET_ASIDE = "repair.set_aside"
"""The type of the custom entries that hold records which could not stay where they were, as text."""

UNCERTAIN = "uncertain"
"""The code of an operation that a repair has ended, and of its error."""

_LOST_TEXT = (
    "This entry was lost when the session's records were damaged. What was said before it may be on another branch."
)
RESULT_LOST = (
    "The records of this call were damaged, and its result is lost if it had one. It may not have started, may have "
    "run in part, or may have finished. Check before doing it again."
)
_PROGRESS = "Last progress that was saved of the call:"


def lost_entry() -> Custom:
    """What stands for an entry of which only the id is known."""
    return Custom(type=LOST, data={"text": _LOST_TEXT})


def unreadable_entry(kind: str, payload: bytes) -> Custom:
    """What stands for an entry that is there and cannot be read."""
    return Custom(type=UNREADABLE, data={"kind": kind, "payload": _text(payload)})


def lost_result(
    call: ToolCallPart, *, progress: tuple[UserPart, ...] = (), payload: bytes | None = None
) -> ToolResultMessage:
    """What stands for the result of a call; with ``payload`` that is there and cannot be read."""
    before: tuple[UserPart, ...] = (TextPart(text=_PROGRESS), *progress) if progress else ()
    return ToolResultMessage(
        call_id=call.id,
        name=call.name,
        content=(*before, TextPart(text=RESULT_LOST)),
        details=None if payload is None else {"unreadable": _text(payload)},
        is_error=True,
    )


def set_aside(address: Address, payload: bytes) -> Custom:
    """A value, or an element of a list, that could not stay where it was."""
    return Custom(type=SET_ASIDE, data={"address": f"{address.namespace}/{address.key}", "payload": _text(payload)})


def uncertain_end(
    operation_id: str,
    *,
    lane: str,
    meta: OperationMeta | None,
    config: OperationConfig | None,
    why: str,
    now: int,
    to_tip: str | None,
    usage: UsageTotals,
    decisions: Sequence[Decision],
    returned: tuple[QueuedInput, ...],
) -> OperationResult:
    """The terminal record of an operation of which nobody can tell how far it came. Its id is never used again: with
    this record ``accept`` under it is refused, or gives this operation, and starts nothing."""
    return OperationResult(
        operation_id=operation_id,
        lane=lane,
        agent="" if config is None else config.agent,
        kind="prompt" if meta is None else meta.request.kind,
        status="failed",
        code=UNCERTAIN,
        error=ErrorInfo(code=UNCERTAIN, message=f"the session's records were damaged, and a repair ended this: {why}"),
        request_digest="" if meta is None else meta.request.digest,
        key_operation=operation_id if meta is None else meta.key_operation,
        inputs=() if meta is None else meta.inputs,
        from_tip=None if meta is None else meta.start_tip,
        to_tip=to_tip,
        started_at=now if meta is None else meta.started_at,
        ended_at=now,
        usage=usage,
        retry_of=None if meta is None else meta.retry_of,
        decisions=in_order(decisions),
        returned=returned,
    )


def _text(payload: bytes) -> str:
    return payload.decode(errors="replace")
