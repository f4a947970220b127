"""Whether the items of a stream are in order, and show what its message holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentlane.data import codec
from agentlane.data.messages import (
    AssistantPart,
    Frame,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UsageSeen,
)
from agentlane.driver.frames import clean_answer, streamed_part
from agentlane.errors import InvalidMessage
from agentlane.testing.model_checks.bench import Breach, Given

KINDS = {"text": TextPart, "thinking": ThinkingPart, "tool_call": ToolCallPart}


def orderly(given: Given) -> tuple[AssistantPart, ...]:
    """The parts of an answer that ended well, once its stream is found in order (M1, M2)."""
    message = given.whole()
    if given.items[-1] is not message or len(given.messages) != 1:
        kinds = [type(item).__name__ for item in given.items]
        raise Breach("M1", f"one settled message is wanted, as the last item: {kinds}")
    try:
        codec.BODY.seal(clean_answer(message, streamed=True), "answer")
    except (InvalidMessage, AttributeError, TypeError) as error:
        raise Breach("M1", f"the settled message cannot be stored: {error}") from error
    shown = shown_parts(given.frames)
    ended = [part for _, part in sorted(shown.ended.items()) if not _is_empty(part)]
    content = [streamed_part(part) for part in message.content if not _is_empty(part)]
    if ended != content:
        raise Breach("M2", f"the frames ended with {ended}, and the message holds {content}")
    open_parts = set(shown.kinds) - set(shown.ended)
    if any(shown.texts[index] for index in open_parts):
        raise Breach("M2", f"parts {sorted(open_parts)} were shown and never ended")
    return tuple(content)


class Shown:
    """What frames have shown: the kind, the text and the end of each part, by its number."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        self.ended: dict[int, AssistantPart] = {}


def shown_parts(frames: Sequence[Frame]) -> Shown:
    """Follow the frames of a stream, ended well or not; raises ``Breach`` of M2 for one that is out of order."""
    shown = Shown()
    for frame in frames:
        match frame:
            case PartStart(index=index, kind=kind):
                if index in shown.kinds or index in shown.ended:
                    raise Breach("M2", f"part {index} starts twice, or behind its end")
                if index < max((*shown.kinds, *shown.ended), default=0):
                    raise Breach("M2", f"part {index} starts behind one with a higher number")
                shown.kinds[index], shown.texts[index] = kind, ""
            case PartDelta(index=index, text=text):
                if index not in shown.kinds or index in shown.ended:
                    raise Breach("M2", f"a delta of part {index}, which has not started or has ended")
                shown.texts[index] += text
            case PartEnd(index=index, part=part):
                _end(shown, index, streamed_part(part))
            case UsageSeen():
                pass
            case _:
                raise Breach("M1", f"{type(frame).__name__} is neither a frame nor a settled message")
    return shown


def _end(shown: Shown, index: int, part: AssistantPart) -> None:
    if index in shown.ended:
        raise Breach("M2", f"part {index} ends twice")
    kind = shown.kinds.get(index)
    if kind is None:
        if not isinstance(part, ProviderPart):
            raise Breach("M2", f"part {index} ends and has not started")
    elif not isinstance(part, KINDS[kind]):
        raise Breach("M2", f"part {index} started as {kind} and ends as {type(part).__name__}")
    text = shown.texts.get(index, "")
    if text and not _says(part, text):
        raise Breach("M2", f"part {index} was shown as {text!r} and ends as {part}")
    shown.ended[index] = part


def _says(part: AssistantPart, text: str) -> bool:
    """Whether ``text`` is what the part holds."""
    if isinstance(part, TextPart | ThinkingPart):
        return part.text == text
    if not isinstance(part, ToolCallPart):
        return True
    if part.arguments is None:
        return part.arguments_text == text
    try:
        return bool(json.loads(text) == part.arguments)
    except ValueError:
        return False


def _is_empty(part: object) -> bool:
    return isinstance(part, TextPart) and not part.text
