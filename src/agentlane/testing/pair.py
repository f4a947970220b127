"""PAIR: what every request must hold so that no provider refuses it, as a check that names each breach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentlane.data.messages import (
    AssistantMessage,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.model import ModelRequest


class PairingError(AssertionError):
    """A request breaks the pairing rules; ``violations`` lists how."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("the request breaks PAIR:\n" + "\n".join(violations))
        self.violations = tuple(violations)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.violations,))


def check_pairing(request: ModelRequest | Sequence[Message]) -> list[str]:
    """Each way in which a request, or a conversation as it would be sent, breaks the rules; empty when it is sound.

    - Each call is answered by exactly one result, directly after its answer, in call order, under the call's name; no
      result is without its call.
    - Call ids are not empty and unique in the request; a call has arguments, or their text.
    - No answer that ended in an error or an abort is sent.
    - No message is without content, and no text is empty.
    - All text encodes to UTF-8, keys and values of arguments and details included.
    """
    if isinstance(request, ModelRequest):
        return [*_about_request(request), *_Walk().violations(request.messages)]
    return _Walk().violations(request)


def require_pairing(request: ModelRequest | Sequence[Message]) -> None:
    """Raise ``PairingError`` unless ``check_pairing`` finds nothing."""
    if found := check_pairing(request):
        raise PairingError(found)


class _Walk:
    """One walk over one conversation, with the calls that wait for their results."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._ids: set[str] = set()
        self._place = ""
        self._asked: list[ToolCallPart] = []  # the calls of the answer directly before
        self._answered: list[bool] = []  # for each of them

    def violations(self, messages: Sequence[Message]) -> list[str]:
        for index, message in enumerate(messages):
            place = f"messages[{index}]"
            match message:
                case ToolResultMessage():
                    self._result(place, message)
                case AssistantMessage():
                    self._close_batch()
                    self._answer(place, message)
                case UserMessage():
                    self._close_batch()
            self._content(place, message)
        self._close_batch()
        return self._found

    def _answer(self, place: str, message: AssistantMessage) -> None:
        if message.stop_reason in ("error", "aborted"):
            self._found.append(f"{place}: an answer that ended with {message.stop_reason!r} is sent")
            return
        self._place, self._asked = place, list(message.calls)
        self._answered = [False] * len(self._asked)
        for call in self._asked:
            if not call.id:
                self._found.append(f"{place}: a call of {call.name!r} has an empty id")
            elif call.id in self._ids:
                self._found.append(f"{place}: call id {call.id!r} is used twice")
            self._ids.add(call.id)
            if call.arguments is None and call.arguments_text is None:
                self._found.append(f"{place}: call {call.id!r} has neither arguments nor their text")

    def _result(self, place: str, message: ToolResultMessage) -> None:
        named = [index for index, call in enumerate(self._asked) if call.id == message.call_id]
        if not named:
            self._found.append(f"{place}: result of {message.call_id!r} without its call directly before")
            return
        index = next((index for index in named if not self._answered[index]), None)
        if index is None:
            self._found.append(f"{place}: call {message.call_id!r} has a second result")
            return
        if any(self._answered[index + 1 :]):
            self._found.append(f"{place}: result of {message.call_id!r} is not in call order")
        self._answered[index] = True
        if message.name != self._asked[index].name:
            self._found.append(
                f"{place}: result of {message.call_id!r} says {message.name!r}, the call {self._asked[index].name!r}"
            )

    def _close_batch(self) -> None:
        for call, answered in zip(self._asked, self._answered, strict=True):
            if not answered:
                self._found.append(f"{self._place}: call {call.id!r} has no result directly after")
        self._asked, self._answered = [], []

    def _content(self, place: str, message: Message) -> None:
        if not message.content:
            self._found.append(f"{place}: a message without content")
        for index, part in enumerate(message.content):
            if type(part) is TextPart and not part.text:
                self._found.append(f"{place}.content[{index}]: an empty text")
        if not _encodes(message):
            self._found += [f"{where}: not UTF-8" for where, text in _texts(place, message) if _broken(text)]


def _about_request(request: ModelRequest) -> Iterator[str]:
    texts = [("instructions", request.instructions)]
    for index, tool in enumerate(request.tools):
        texts += [(f"tools[{index}].name", tool.name), (f"tools[{index}].description", tool.description)]
        texts += _json_texts(f"tools[{index}].parameters", tool.parameters)
    return (f"{where}: not UTF-8" for where, text in texts if _broken(text))


def _encodes(message: Message) -> bool:
    """Whether all of it does, told fast; a no is looked at text by text."""
    try:
        msgspec.json.encode(message)
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        return False
    return True


def _texts(place: str, message: Message) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(message.content):
        where = f"{place}.content[{index}]"
        match part:
            case TextPart() | ThinkingPart():
                yield f"{where}.text", part.text
            case ToolCallPart():
                yield f"{where}.id", part.id
                yield f"{where}.name", part.name
                yield f"{where}.arguments_text", part.arguments_text or ""
                yield from _json_texts(f"{where}.arguments", part.arguments)
            case _:
                pass
        yield f"{where}.signature", getattr(part, "signature", None) or ""
        yield from _json_texts(f"{where}.data", getattr(part, "data", None))
    if isinstance(message, ToolResultMessage):
        yield f"{place}.call_id", message.call_id
        yield f"{place}.name", message.name
        yield from _json_texts(f"{place}.details", message.details)


def _json_texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text in JSON data, with its place; iterative, because what is checked may be nested without bound."""
    waiting: list[tuple[str, Any]] = [(place, value)]
    while waiting:
        where, item = waiting.pop()
        if isinstance(item, str):
            yield where, item
        elif isinstance(item, dict):
            for key, inner in item.items():
                yield f"{where} (a key)", str(key)
                waiting.append((f"{where}.{key}", inner))
        elif isinstance(item, list | tuple):
            waiting += [(f"{where}[{index}]", inner) for index, inner in enumerate(item)]


def _broken(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
