"""One reading of a history: its fields taken with their paths, what is found on the way, what has no place kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from agentlane.data.border import clean_json, clean_object, clean_text
from agentlane.data.messages import AssistantMessage, ImagePart, TextPart, ToolCallPart, UserMessage, UserPart
from agentlane.data.requests import checked_part, checked_time
from agentlane.errors import InvalidMessage
from agentlane.histories.findings import HistoryFormat, ImportCode, ImportFinding


class Said(Struct, frozen=True, kw_only=True):
    """A message of the user."""

    index: int
    message: UserMessage


class Answered(Struct, frozen=True, kw_only=True):
    """An answer; ``places`` are the paths of its calls."""

    index: int
    message: AssistantMessage
    places: tuple[str, ...]


class Returned(Struct, frozen=True, kw_only=True):
    """A result, and the whole of it as it was given. Without a ``call_id`` it is for a call of that ``name``."""

    index: int
    path: str
    call_id: str | None
    name: str | None
    content: tuple[UserPart, ...]
    given: Any
    details: Any = None
    is_error: bool = False
    sent_at: int | None = None


class Kept(Struct, frozen=True, kw_only=True):
    """What has no place in a message, as it was given."""

    index: int
    path: str
    value: Any


Item: TypeAlias = Said | Answered | Returned | Kept


class Reading:
    """What one reading has come to so far."""

    def __init__(self, format: HistoryFormat) -> None:
        self.format: HistoryFormat = format
        self.items: list[Item] = []
        self.findings: list[ImportFinding] = []
        self.instructions: list[str] = []
        self.started = False
        """Whether a message was read that is not the system's."""

    def found(self, index: int, path: str, code: ImportCode, text: str) -> None:
        """Add to the report."""
        self.findings.append(ImportFinding(index=index, path=path, code=code, text=text))

    def keep(self, index: int, path: str, value: Any) -> None:
        """Keep ``value`` verbatim; raises ``InvalidMessage`` for what is not JSON data."""
        self.items.append(Kept(index=index, path=path, value=clean_json(value, path)))

    def system(self, index: int, path: str, message: Mapping[str, Any], text: str) -> None:
        """A message of the system: an agent has instructions, and a conversation has no message like it."""
        if not self.started:
            self.instructions.append(text)
            note = "a system message; its text is in the report's instructions, and it is kept beside the conversation"
        else:
            note = "a system message in the middle; no model is shown it, and it is kept beside the conversation"
        self.found(index, path, "kept_message", note)
        self.keep(index, path, dict(message))

    def said(self, index: int, path: str, content: tuple[UserPart, ...], given: Any, sent_at: int | None) -> None:
        """A message of the user."""
        if not content:
            self.found(index, path, "empty_message", "a user message without content; it is kept, and no message")
            self.keep(index, path, given)
            return
        if not any(not isinstance(part, TextPart) or part.text for part in content):
            self.found(index, path, "empty_message", "a user message without text; no model is shown it")
        self.items.append(Said(index=index, message=UserMessage(content=content, sent_at=sent_at)))

    def answered(self, index: int, path: str, message: AssistantMessage, places: list[str]) -> None:
        """An answer; ``places`` are the paths of its calls."""
        if not any(not isinstance(part, TextPart) or part.text for part in message.content):
            self.found(index, path, "empty_message", "an answer without content; no model is shown it")
        self.items.append(Answered(index=index, message=message, places=tuple(places)))


class Fields:
    """The fields of one JSON object that are not used yet; ``done`` keeps what is left."""

    def __init__(self, reading: Reading, index: int, path: str, given: object) -> None:
        if not isinstance(given, Mapping):
            raise InvalidMessage(f"{path}: an object is needed here, not {type(given).__name__}", path=path)
        self.reading = reading
        self.index = index
        self.path = path
        self.given: Mapping[str, Any] = given
        self._left: dict[str, Any] = {}
        for key, value in given.items():
            if not isinstance(key, str):
                raise InvalidMessage(f"{path}: key {key!r:.60} is not text", path=path)
            self._left[key] = value

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}"

    def has(self, name: str) -> bool:
        """Whether the field is there, is not null, and was not taken yet."""
        return self._left.get(name) is not None

    def take(self, name: str) -> Any:
        """The field as it is; None if it is not there."""
        return self._left.pop(name, None)

    def peek(self, name: str) -> Any:
        """The field, which counts as not used."""
        return self._left.get(name)

    def word(self, name: str) -> str:
        """A text that says what the object is."""
        value = self._left.pop(name, None)
        if not isinstance(value, str):
            raise self._needed(name, "text", value)
        return clean_text(value, self.at(name))

    def text(self, name: str) -> str:
        """A text of the conversation."""
        return self.cleaned(name, self.word(name))

    def cleaned(self, name: str, clean: str) -> str:
        """``clean``, which is what became of the field; it is found if that is not what was given."""
        if clean != self.given.get(name):
            where = self.at(name)
            self.reading.found(self.index, where, "replaced_text", "half a surrogate pair became U+FFFD")
        return clean

    def optional(self, name: str) -> str | None:
        """A text, or None where it is missing or null."""
        if not self.has(name):
            self._left.pop(name, None)
            return None
        return self.text(name)

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing or null."""
        value = self._left.pop(name, None)
        if value is None or value is False:
            return False
        if value is not True:
            raise self._needed(name, "true or false", value)
        return True

    def items(self, name: str) -> list[Any]:
        """An array."""
        value = self._left.pop(name, None)
        if not isinstance(value, list | tuple):
            raise self._needed(name, "an array", value)
        return list(value)

    def time(self, name: str) -> int | None:
        """Milliseconds, or None where they are missing or null."""
        return checked_time(self._left.pop(name, None), self.at(name))

    def inner(self, name: str) -> Fields:
        """An object in this one."""
        return Fields(self.reading, self.index, self.at(name), self._left.pop(name, None))

    def done(self) -> None:
        """Everything that was not taken is kept, unless it is null."""
        for name, value in self._left.items():
            if value is not None:
                where = self.at(name)
                self.reading.found(
                    self.index, where, "kept_field", "it has no place in a message; it is kept beside it"
                )
                self.reading.keep(self.index, where, value)
        self._left = {}

    def unknown(self, what: str) -> TextPart:
        """Keep the object whole; the text that stands for it where a model reads."""
        self.reading.found(
            self.index, self.path, "unknown_part", f"{what}; a note stands for it, and it is kept beside the message"
        )
        self.reading.keep(self.index, self.path, dict(self.given))
        self._left = {}
        return TextPart(text=f"({what}; it was not imported)")

    def referred(self, url: str) -> TextPart:
        """An image that is elsewhere: the text that stands for it."""
        text = "an image that is not in the history itself; a note with its place stands for it, and it is kept"
        self.reading.found(self.index, self.path, "image_by_reference", text)
        self.reading.keep(self.index, self.path, dict(self.given))
        self._left = {}
        return TextPart(text=f"(an image: {url})")

    def image(self, data: str, mime_type: str) -> UserPart:
        """An image of the conversation."""
        return checked_part(ImagePart(data=data, mime_type=mime_type), self.path)

    def call(self, id: str, name: str, *, given: Any, text: str | None, signature: str | None = None) -> ToolCallPart:
        """A call: its arguments as ``text``, or ``given`` as they are. What is no object of JSON data stays text."""
        if text is None:
            try:
                return ToolCallPart(id=id, name=name, arguments=clean_object(given, self.path), signature=signature)
            except InvalidMessage as error:
                self._bad_arguments(str(error))
                return ToolCallPart(id=id, name=name, arguments_text=_as_text(given), signature=signature)
        try:
            arguments = clean_object(json.loads(text, object_pairs_hook=_once), self.path)
            return ToolCallPart(id=id, name=name, arguments=arguments, signature=signature)
        except (ValueError, RecursionError, InvalidMessage) as error:
            self._bad_arguments(str(error))
            return ToolCallPart(id=id, name=name, arguments_text=text, signature=signature)

    def _bad_arguments(self, why: str) -> None:
        text = f"the arguments are no object of JSON data ({why}); they are kept as text"
        self.reading.found(self.index, self.path, "bad_arguments", text)

    def _needed(self, name: str, what: str, value: object) -> InvalidMessage:
        there = "nothing" if value is None else type(value).__name__
        return InvalidMessage(f"{self.at(name)}: {what} is needed here, not {there}", path=self.at(name))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _as_text(given: object) -> str:
    """Text for arguments that are not JSON data, as near to what was given as can be told."""
    try:
        return clean_text(json.dumps(given, ensure_ascii=False, default=repr))
    except Exception:  # a cycle, or a foreign object that cannot even be shown
        return repr(type(given))
