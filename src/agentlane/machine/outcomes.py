"""Results that a call's own tool did not give: what they say to the model. The texts are part of the contract."""

from __future__ import annotations

from agentlane.data.messages import TextPart, ToolCallPart, ToolResultMessage, UserPart
from agentlane.machine.verdicts import SettledWithout

INTERRUPTED = (
    "The call was about to run when the process stopped, and no outcome was saved. It may not have started, may have "
    "run in part, or may have finished. Check before doing it again."
)
NOT_STARTED = "The run was aborted before this call started. It had no effect."
ABORTED = "The run was aborted while this call was running. It may have run in part. Check before doing it again."
CUT = (
    "The answer was cut off at its length limit, so none of its calls was run. Ask again with a shorter answer, or in "
    "smaller steps."
)
DENIED = "This call was not approved, so it was not run. It had no effect."
EXPIRED = "Nobody approved this call in time, so it was not run. It had no effect."
STRANDED = (
    "This call stopped in the middle to ask a person. There is an answer, but the call may not run again: its tool is "
    "gone or has changed since. What it did before it asked is done. Check before doing it again."
)
STARTED_BEFORE = "An earlier start of the call may have run in part, or may have finished. Check before doing it again."
PROGRESS = "Last progress that was saved before the call was interrupted:"


def settled_without(
    call: ToolCallPart, why: SettledWithout, *, problem: str | None = None, progress: tuple[UserPart, ...] = ()
) -> ToolResultMessage:
    """The result of a call that did not give one itself; ``progress`` is what it last saved."""
    if why == "interrupted":
        return interrupted(call, INTERRUPTED, progress)
    if why == "aborted":
        return interrupted(call, ABORTED, progress)
    if why == "stranded":
        return interrupted(call, STRANDED, progress)
    text = {
        "not_started": NOT_STARTED,
        "cut": CUT,
        "expired": EXPIRED,
        "refused": problem or f"The tool {call.name!r} is not available.",
    }
    return error_result(call, text[why])


def denied(call: ToolCallPart, reason: str | None) -> ToolResultMessage:
    """The result of a call that a person did not allow, with the reason that was given."""
    return error_result(call, f"{DENIED} Reason: {reason}" if reason else DENIED)


def interrupted(call: ToolCallPart, text: str, progress: tuple[UserPart, ...]) -> ToolResultMessage:
    """An interruption result: saved progress, marked as such, then what is known."""
    before: tuple[UserPart, ...] = (TextPart(text=PROGRESS), *progress) if progress else ()
    return ToolResultMessage(call_id=call.id, name=call.name, content=(*before, TextPart(text=text)), is_error=True)


def error_result(call: ToolCallPart, text: str) -> ToolResultMessage:
    """An error result of one text."""
    return ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text=text),), is_error=True)
