"""An answer as far as it has been shown: its parts, and how the next frames change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentlane.data.messages import (
    AssistantPart,
    Frame,
    PartDelta,
    PartEnd,
    PartStart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)


class ShownPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, eq=False):
    """One part of an answer that streams: its place, what its deltas showed, and the whole part once it has ended.

    ``text`` is ``texts`` joined: they are cut so that one delta more costs little of what there is, and where says
    nothing. Of a call it is the raw argument text. ``id`` and ``name`` are those of a call.
    """

    index: int
    kind: Literal["text", "thinking", "tool_call"] = "text"
    id: str = ""
    name: str = ""
    texts: tuple[str, ...] = ()
    whole: AssistantPart | None = None

    @property
    def text(self) -> str:
        """What its deltas showed."""
        return "".join(self.texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShownPart) and self._shown() == other._shown()

    def __hash__(self) -> int:
        return hash((self.index, self.text))

    def _shown(self) -> tuple[object, ...]:
        return self.index, self.kind, self.id, self.name, self.whole, self.text


class PartialAnswer(Struct, frozen=True, gc=False, kw_only=True):
    """An answer that is not settled, as it has been shown. Its entry will have ``response_id`` for its id."""

    response_id: str
    parts: tuple[ShownPart, ...] = ()

    @property
    def content(self) -> tuple[AssistantPart, ...]:
        """The parts as a message would have them. A call that is not whole has its raw text and no arguments."""
        return shown_content(self.parts)

    @property
    def text(self) -> str:
        """All text parts joined."""
        return "".join(part.text for part in self.content if type(part) is TextPart)

    def plus(self, frames: Iterable[Frame]) -> PartialAnswer:
        """The answer after ``frames``."""
        parts = list(self.parts)
        for frame in frames:
            if isinstance(frame, PartStart | PartDelta | PartEnd):
                place = _place(parts, frame)
                if isinstance(frame, PartDelta):
                    parts[place] = replace(parts[place], texts=_longer(parts[place].texts, frame.text))
                elif isinstance(frame, PartEnd):
                    parts[place] = replace(parts[place], whole=frame.part)
        return PartialAnswer(response_id=self.response_id, parts=tuple(parts))


def shown_content(parts: Iterable[ShownPart]) -> tuple[AssistantPart, ...]:
    """What parts in order of their index make of a message's content."""
    content: list[AssistantPart] = []
    for part in parts:
        if part.whole is not None:
            content.append(part.whole)
        elif part.kind == "tool_call":
            content.append(ToolCallPart(id=part.id, name=part.name, arguments_text=part.text))
        elif part.kind == "thinking":
            content.append(ThinkingPart(text=part.text))
        elif part.texts:
            content.append(TextPart(text=part.text))
    return tuple(content)


def joined(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The same frames, neighbouring deltas of one part made one; linear in their length."""
    found: list[Frame] = []
    pieces: list[str] = []
    for frame in frames:
        if isinstance(frame, PartDelta):
            if pieces and isinstance(found[-1], PartDelta) and found[-1].index == frame.index:
                pieces.append(frame.text)
                continue
            _close_delta(found, pieces)
            pieces = [frame.text]
        else:
            _close_delta(found, pieces)
            pieces = []
        found.append(frame)
    _close_delta(found, pieces)
    return tuple(found)


def _place(parts: list[ShownPart], frame: PartStart | PartDelta | PartEnd) -> int:
    """Where in ``parts`` the frame's part is; it is made if it is not there. What was said of it first counts."""
    place = len(parts)
    while place and parts[place - 1].index >= frame.index:
        place -= 1
        if parts[place].index == frame.index:
            return place
    if isinstance(frame, PartStart):
        parts.insert(place, ShownPart(index=frame.index, kind=frame.kind, id=frame.id, name=frame.name))
    else:
        parts.insert(place, ShownPart(index=frame.index))
    return place


def _longer(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The texts with one more. Each is at least twice as long as the next, so that a text which grows by small pieces
    is copied as often as it has doubled, and not once for each of them."""
    if not text:
        return texts
    kept, length = len(texts), len(text)
    while kept and len(texts[kept - 1]) < 2 * length:
        kept -= 1
        length += len(texts[kept])
    return (*texts[:kept], "".join((*texts[kept:], text)))


def _close_delta(found: list[Frame], pieces: list[str]) -> None:
    if len(pieces) > 1:
        last = found[-1]
        if isinstance(last, PartDelta):
            found[-1] = PartDelta(index=last.index, text="".join(pieces))
