"""What a user interface shows of one operation, as small records in the order it happens."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from agentlane.data.approvals import Approval
from agentlane.data.inspection import CallStatus
from agentlane.data.messages import AssistantMessage, ErrorInfo, ToolResultMessage, UserPart
from agentlane.data.operations import SummaryReason
from agentlane.data.results import Settled


class TextDelta(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="text_delta"):
    """More text of the answer that will be, or is, the entry ``entry_id``."""

    entry_id: str
    text: str


class ThinkingDelta(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="thinking_delta"):
    """More of the model's reasoning."""

    entry_id: str
    text: str


class AnswerEnded(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="answer_ended"):
    """An answer is an entry now: what counts, whatever its deltas showed. Its stop reason may be ``error``."""

    entry_id: str
    message: AssistantMessage


class CallRequested(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="call_requested"):
    """The answer asks for a call. Its arguments are None where they could not be read."""

    call_id: str
    tool: str
    arguments: dict[str, Any] | None = None


class CallStarted(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="call_started"):
    """The call runs; ``attempt`` is greater than 1 when it runs again. A call that is refused never starts."""

    call_id: str
    tool: str
    attempt: int = 1


class CallWaiting(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="call_waiting"):
    """The call waits: ``status`` says for what, and ``approval`` what a person is asked, if it is that."""

    call_id: str
    tool: str
    status: CallStatus
    approval: Approval | None = None


class CallProgress(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="call_progress"):
    """The latest progress that the call saved."""

    call_id: str
    tool: str
    content: tuple[UserPart, ...]


class CallEnded(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="call_ended"):
    """The call has its result. Comes in the order of completion, which need not be that of the conversation."""

    call_id: str
    tool: str
    message: ToolResultMessage


class SummaryStarted(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="summary_started"):
    """A summary is being written, because of ``reason``. Nothing of it is shown before it is whole."""

    reason: SummaryReason


class SummaryEnded(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="summary_ended"):
    """No summary is being written any more: ``summary`` is the entry ``entry_id`` now, or both are None if none came.

    One that was placed before somebody joined, and one that a hook gave, ends without having started.
    """

    entry_id: str | None = None
    summary: str | None = None


class Retrying(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="retrying"):
    """The answer, or a summary that comes before it, failed; attempt number ``attempt`` is made when the clock reaches
    ``not_before``."""

    not_before: int
    attempt: int
    error: ErrorInfo


class Aborting(Struct, frozen=True, gc=False, kw_only=True, tag_field="shown", tag="aborting"):
    """Somebody asked to abort the operation; what runs is being stopped."""

    requested_at: int


Shown: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | AnswerEnded
    | CallRequested
    | CallStarted
    | CallWaiting
    | CallProgress
    | CallEnded
    | SummaryStarted
    | SummaryEnded
    | Retrying
    | Aborting
    | Settled
)
"""An item of ``lane.stream``. The last is ``Settled``."""
