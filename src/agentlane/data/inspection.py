"""Records of what an open operation and its calls are doing, as an inspection and a watcher are shown them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.approvals import Approval
from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import ReplayPolicy, SummaryReason
from agentlane.data.results import OperationResult, Status

Phase: TypeAlias = Literal[
    "checkpoint", "generating", "retry_wait", "tools", "summarizing", "summary_wait", "navigating"
]
CallStatus: TypeAlias = Literal[
    "planned",
    "waiting_approval",
    "approved",
    "effect_pending",
    "waiting_external",
    "waiting_question",
    "answered",
    "waiting_child",
    "outcome_ready",
    "placed",
]


class CallRecord(Struct, frozen=True, kw_only=True):
    """One call of the current batch. ``policy``, ``attempt`` and ``replays`` are those of its last intent.

    ``approval_id`` is the approval or the question that it waits for, or the approval by which it may start or was
    started.
    """

    call_id: str
    tool: str
    status: CallStatus
    policy: ReplayPolicy | None = None
    attempt: int = 0
    replays: int = 0
    approval_id: str | None = None


class Operation(Struct, frozen=True, kw_only=True):
    """An operation as it is committed now. ``at`` is None once it has settled; ``status`` is ``open`` until then.

    ``result`` is the terminal record of one that ``Session.operations`` found settled. ``parent_operation_id`` is set
    for the run of an agent that is a tool: drive the parent, which drives it.
    """

    operation_id: str
    lane: str
    agent: str
    inputs: tuple[str, ...]
    started_at: int
    status: Literal["open"] | Status
    at: Phase | None = None
    turn: int = 0
    attempt: int = 0
    restarts: int = 0
    cancel_requested_at: int | None = None
    not_before: int | None = None
    last_error: ErrorInfo | None = None
    calls: tuple[CallRecord, ...] = ()
    approvals: tuple[Approval, ...] = ()
    result: OperationResult | None = None
    parent_operation_id: str | None = None
    summarizing: SummaryReason | None = None
    """Why a summary is being written, while one is."""
