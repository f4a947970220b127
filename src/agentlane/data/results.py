"""What an operation leaves behind: its immutable terminal record, and what accept, drive and abort return."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentlane.data.approvals import Decision
from agentlane.data.inbox import QueuedInput
from agentlane.data.messages import ErrorInfo
from agentlane.data.usage import UsageTotals

Status: TypeAlias = Literal["completed", "failed", "aborted"]


class OperationResult(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The terminal record (``result/{op}``), written once in the commit that ends the operation.

    ``code`` refines the status: ``length``, ``restarts_exhausted``, ``model_unavailable``, ``uncertain`` (ended by a
    repair), or the error's own code.
    ``returned`` is the input that an abort found waiting; ``next_operation`` was opened in the same commit, with the
    submitted messages that nothing had taken as its prompt, and is driven by whoever drives it.
    """

    operation_id: str
    lane: str
    agent: str
    kind: str
    status: Status
    request_digest: str
    key_operation: str
    inputs: tuple[str, ...]
    from_tip: str | None
    to_tip: str | None
    started_at: int
    ended_at: int
    turns: int = 0
    code: str | None = None
    error: ErrorInfo | None = None
    answer: str | None = None
    text: str = ""
    usage: UsageTotals = UsageTotals()
    retry_of: str | None = None
    decisions: tuple[Decision, ...] = ()
    output: Any = None
    returned: tuple[QueuedInput, ...] = ()
    next_operation: str | None = None
    summary: str | None = None
    """The entry that a compaction, or a navigation with a summary, has placed; ``text`` is the summary then."""


class Admitted(Struct, frozen=True, gc=False, kw_only=True):
    """An accepted operation: durable, and started by nobody yet. ``inputs`` are the prompt's entry ids."""

    operation_id: str
    lane: str
    inputs: tuple[str, ...]


class Settled(Struct, frozen=True, gc=False):
    """A drive ended with the operation's terminal record."""

    result: OperationResult


class RetryReason(Struct, frozen=True, gc=False, kw_only=True, tag="retry"):
    """The next model request must not start before ``not_before`` (milliseconds); ``error`` is the last one's."""

    not_before: int
    attempt: int
    error: ErrorInfo


class ApprovalReason(Struct, frozen=True, gc=False, kw_only=True, tag="approval"):
    """A person has not said yet whether the call may run; an expiry (milliseconds) is a no."""

    approval_id: str
    call_id: str
    tool: str
    expires_at: int | None = None


class ExternalReason(Struct, frozen=True, gc=False, kw_only=True, tag="external"):
    """A tool has said that the result of its call is delivered later; ``lane.deliver`` takes it."""

    call_id: str
    tool: str


class QuestionReason(Struct, frozen=True, gc=False, kw_only=True, tag="question"):
    """A tool has asked a person something, under ``name``; ``lane.answer`` takes the answer."""

    question_id: str
    call_id: str
    tool: str
    name: str


class ChildReason(Struct, frozen=True, gc=False, kw_only=True, tag="child"):
    """A run of another agent, the operation of the call, waits itself: ``reasons`` says for what."""

    call_id: str
    operation_id: str
    lane: str
    reasons: tuple[WaitReason, ...]


WaitReason: TypeAlias = RetryReason | ApprovalReason | ExternalReason | QuestionReason | ChildReason


def is_for_retry(reason: WaitReason) -> bool:
    """Whether time alone ends the wait: a retry, or one of another agent's run."""
    if isinstance(reason, ChildReason):
        return all(map(is_for_retry, reason.reasons))
    return isinstance(reason, RetryReason)


class Waiting(Struct, frozen=True, gc=False):
    """A drive ended while the operation must wait: every reason, and the earliest time it can go on (milliseconds).

    ``wake_at`` is None where only an answer lets it go on.
    """

    operation_id: str
    reasons: tuple[WaitReason, ...]
    wake_at: int | None


class AbortReceipt(Struct, frozen=True, gc=False, kw_only=True):
    """What ``request_abort`` committed: whether this call was the one that asked, and what the operation is now.

    ``status`` is ``cancel_requested``, or the status of an operation that is settled already. ``returned`` is the input
    that waited when the abort was committed: it will not be placed.
    """

    operation_id: str
    newly_requested: bool
    status: Literal["cancel_requested", "completed", "failed", "aborted"]
    returned: tuple[QueuedInput, ...] = ()
