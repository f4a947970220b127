"""An answer while it streams: what has been shown of it, and which frames are not saved yet."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from agentlane.data.border import clean_json, clean_text
from agentlane.data.messages import (
    AssistantMessage,
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
from agentlane.data.partial import ShownPart, joined, shown_content
from agentlane.data.requests import checked_time
from agentlane.data.usage import Usage, reported_usage
from agentlane.errors import InvalidMessage

PartKind: TypeAlias = Literal["text", "thinking", "tool_call"]

PARTS_MAX = 10_000
_PART_KINDS = ("text", "thinking", "tool_call")


class _Part:
    __slots__ = ("id", "kind", "name", "pieces", "whole")

    def __init__(self, kind: PartKind, id: str, name: str) -> None:
        self.kind = kind
        self.id = id
        self.name = name
        self.pieces: list[str] = []
        self.whole: AssistantPart | None = None

    def texts(self) -> tuple[str, ...]:
        text = "".join(self.pieces)
        return (text,) if text else ()


class FrameLog:
    """Collects frames; linear in their length. Raises ``InvalidMessage`` for frames that make no sense."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._unsaved: list[Frame] = []
        self.usage: Usage | None = None

    @property
    def unsaved(self) -> bool:
        """Whether frames came since the last ``take_unsaved``."""
        return bool(self._unsaved)

    def add(self, frame: Frame) -> Frame:
        """Take the next frame of the stream; gives it as it is kept."""
        if isinstance(frame, PartStart):
            if frame.kind not in _PART_KINDS:
                raise InvalidMessage(f"stream: {frame.kind!r:.40} is not a kind of part")
            id, name = clean_text(frame.id, "stream.id"), clean_text(frame.name, "stream.name")
            frame = PartStart(index=frame.index, kind=frame.kind, id=id, name=name)
            self._part(frame.index, frame.kind, id, name)
        elif isinstance(frame, PartDelta):
            frame = PartDelta(index=frame.index, text=clean_text(frame.text, "stream.text"))
            self._part(frame.index, "text", "", "").pieces.append(frame.text)
        elif isinstance(frame, PartEnd):
            frame = PartEnd(index=frame.index, part=streamed_part(frame.part))
            self._part(frame.index, "text", "", "").whole = frame.part
        elif isinstance(frame, UsageSeen):
            self.usage = reported_usage(frame.usage, "stream.usage")
        else:
            raise InvalidMessage(f"stream: {type(frame).__name__} is neither a frame nor the settled message")
        self._unsaved.append(frame)
        return frame

    def take_unsaved(self) -> tuple[Frame, ...]:
        """The frames that came since the last call, neighbouring deltas of one part joined."""
        frames, self._unsaved = self._unsaved, []
        return joined(frames)

    def put_back(self, frames: tuple[Frame, ...]) -> None:
        """They were taken and could not be saved: they come before what has been added since."""
        self._unsaved = [*frames, *self._unsaved]

    def shown(self) -> tuple[AssistantPart, ...]:
        """The parts as far as they were shown. A call that is not whole has its raw text and no arguments."""
        return shown_content(self.parts())

    def parts(self) -> tuple[ShownPart, ...]:
        """The parts as far as they were shown, in order."""
        return tuple(
            ShownPart(index=index, kind=part.kind, id=part.id, name=part.name, texts=part.texts(), whole=part.whole)
            for index, part in sorted(self._parts.items())
        )

    def _part(self, index: int, kind: PartKind, id: str, name: str) -> _Part:
        if type(index) is not int or not 0 <= index < PARTS_MAX:
            raise InvalidMessage(f"stream: {index!r} is not the index of a part (0 to {PARTS_MAX - 1})")
        part = self._parts.get(index)
        if part is None:
            part = self._parts[index] = _Part(kind, id, name)
        return part


def clean_answer(message: AssistantMessage, *, streamed: bool = False) -> AssistantMessage:
    """A model's settled message by the border rule. A call with bad arguments keeps them as text; the answer stands.

    ``streamed`` by a model, as against handed in by the program, a provider's part with bad data keeps it so too.
    """
    clean = streamed_part if streamed else clean_part
    if not isinstance(message.content, tuple | list):
        raise InvalidMessage(f"answer.content: a tuple is needed here, not {type(message.content).__name__}")
    error = message.error
    if error is not None:
        error = type(error)(
            code=clean_text(error.code, "answer.error.code"),
            message=clean_text(error.message, "answer.error.message"),
            retryable=error.retryable,
            retry_after_ms=error.retry_after_ms,
        )
    return AssistantMessage(
        content=tuple(clean(part) for part in message.content),
        stop_reason=message.stop_reason,
        model=message.model,
        usage=None if message.usage is None else reported_usage(message.usage, "answer.usage"),
        error=error,
        sent_at=checked_time(message.sent_at, "answer.sent_at"),
    )


def clean_part(part: AssistantPart) -> AssistantPart:
    """One part of an answer by the border rule. Signatures are opaque, but they are text."""
    if isinstance(part, TextPart):
        text, signature = clean_text(part.text, "answer.text"), _clean_signature(part.signature)
        return part if text is part.text and signature is part.signature else TextPart(text=text, signature=signature)
    if isinstance(part, ThinkingPart):
        if type(part.redacted) is not bool:
            raise InvalidMessage(f"answer.thinking.redacted: True or False, not {type(part.redacted).__name__}")
        text, signature = clean_text(part.text, "answer.thinking.text"), _clean_signature(part.signature)
        return ThinkingPart(text=text, signature=signature, redacted=part.redacted)
    if isinstance(part, ToolCallPart):
        return _clean_call(part)
    if isinstance(part, ProviderPart):
        provider = clean_text(part.provider, "answer.provider")
        return ProviderPart(provider=provider, data=clean_json(part.data, "answer.provider.data"))
    raise InvalidMessage(f"answer: {type(part).__name__} is not a part of an answer")


def streamed_part(part: AssistantPart) -> AssistantPart:
    """``clean_part`` of what a provider said. Its own data is foreign to whoever asked, so none of it is refused: what
    is no JSON data of ours (a number beyond 64 bits, say) is kept as text, which no adapter sends back."""
    if isinstance(part, ProviderPart):
        try:
            return clean_part(part)
        except InvalidMessage:
            part = ProviderPart(provider=part.provider, data=_as_received(part.data))
    return clean_part(part)


def _clean_signature(signature: str | None) -> str | None:
    return None if signature is None else clean_text(signature, "answer.signature")


def _clean_call(part: ToolCallPart) -> ToolCallPart:
    arguments, text = part.arguments, part.arguments_text
    if arguments is None:
        text = "" if text is None else text
    else:
        try:
            if not isinstance(arguments, dict):
                raise InvalidMessage(f"arguments: an object is needed here, not {type(arguments).__name__}")
            arguments = clean_json(arguments, "arguments")
            text = None
        except InvalidMessage:
            text = _as_received(arguments) if text is None else text
            arguments = None
    return ToolCallPart(
        id=clean_text(part.id, "call.id"),
        name=clean_text(part.name, "call.name"),
        arguments=arguments,
        arguments_text=None if text is None else clean_text(text, "call.arguments_text"),
        signature=_clean_signature(part.signature),
    )


def _as_received(given: Any) -> str:
    """Text for what is not JSON data, as near to what was sent as can be told."""
    try:
        return json.dumps(given, ensure_ascii=False, default=repr)
    except Exception:  # a cycle, or a foreign object that cannot even be shown
        return repr(type(given))
