"""What a playback's conversation must be: the recording, and what the deaths that were seen make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, ErrorInfo, Message, TextPart, ToolCallPart, ToolResultMessage
from agentlane.machine.outcomes import INTERRUPTED
from tests.recorded.plan import Answered, Append, CallPlace, Plan, Run
from tests.recorded.witness import Attempt, Witness


def expected(plan: Plan, witness: Witness) -> Iterator[tuple[str, Message]]:
    """Each message with its place in the recording, for people."""
    for step in plan.steps:
        if isinstance(step, Append):
            yield "the appended answer", step.message
            continue
        yield f"turn {step.turn}, its prompt", step.prompt
        for number, answered in enumerate(step.answers):
            place = f"turn {step.turn}, answer {number}"
            yield from _answers(place, step, number, answered, witness)
            for index, result in enumerate(answered.results):
                lost = CallPlace(step.turn, number, index) in witness.lost
                shown = _interrupted(answered.message.calls[index]) if lost else result
                yield f"{place}, result {index}", shown


def _answers(place: str, run: Run, number: int, answered: Answered, witness: Witness) -> Iterator[tuple[str, Message]]:
    """The error answers of the streams that were cut, and the answer itself, which may be cut by abort and death."""
    cut = sorted(attempt for attempt in witness.cut if attempt[:2] == (run.turn, number))
    for attempt in cut:
        stop_reason = "aborted" if witness.cut[attempt] else "error"
        yield f"{place}, cut at attempt {attempt.attempt}", _cut(witness, attempt, stop_reason)
    if not any(witness.cut[attempt] for attempt in cut):
        yield place, answered.message


def _cut(witness: Witness, attempt: Attempt, stop_reason: str) -> AssistantMessage:
    content, usage = witness.saved_part(attempt)
    return AssistantMessage(
        content=content,
        stop_reason=stop_reason,  # type: ignore[arg-type]
        usage=usage,
        error=ErrorInfo(code="interrupted", message=""),
    )


def _interrupted(call: ToolCallPart) -> ToolResultMessage:
    return ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text=INTERRUPTED),), is_error=True)


def differences(wanted: Sequence[tuple[str, Message]], entries: Sequence[Entry]) -> str:
    """The first place where the conversation is not what is wanted, with both messages; empty if there is none."""
    for index, (want, entry) in enumerate(zip_longest(wanted, entries)):
        got = None if entry is None else entry.body
        if want is None or not isinstance(got, Message) or compared(want[1]) != compared(got):
            place = "behind the end of the recording" if want is None else want[0]
            return (
                f"message {index} ({place}) differs\n"
                f"wanted: {_shown(None if want is None else want[1])}\n"
                f"got:    {_shown(got)}"
            )
    return ""


def compared(message: Message) -> Message:
    """What of a message counts: no wording of errors, not which inputs are answered, and no model where none ended."""
    if not isinstance(message, AssistantMessage):
        return message
    if message.stop_reason not in ("error", "aborted"):
        return replace(message, answers=())
    code = "aborted" if message.error is None else message.error.code
    return replace(message, answers=(), model=None, error=ErrorInfo(code=code, message=""))


def _shown(message: object) -> str:
    text = "nothing" if message is None else msgspec.json.encode(message).decode()
    return text if len(text) <= 3_000 else f"{text[:3_000]}... ({len(text)} characters)"
