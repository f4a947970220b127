"""What the model is shown: the messages of a path, paired and made harmless, extended entry by entry.

Rules
- Error and aborted answers are left out whole, and so are answers without content and entries of applications.
- Every call that is sent is followed directly by its result, in call order. Where a result is missing further up the
  path (an import, a branch made inside a batch), one that says so is put in the request only.
- A result without its call is left out; one with its call goes under the call's name.
- Ids of calls are unique in the request: an empty or repeated one of the provider gets a suffix.
- Text that is empty is left out; a result without content says so.
The prefix never changes when the path grows, so a provider's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from msgspec.structs import replace

from agentlane.data.entries import Custom, EntryBody
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserPart,
)
from agentlane.ids import call_index

NO_OUTPUT = "(no output)"
NOT_AVAILABLE = "The result of this call is not available on this branch."


class MessageView(Sequence[Message]):
    """The first ``length`` messages of a list that only grows: a snapshot that costs nothing to take."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message], length: int) -> None:
        self._messages = messages
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return self._messages[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._messages[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Message]:
        for index in range(self._length):
            yield self._messages[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))


class _Batch:
    """The calls of one answer under the ids they are sent with, and the results seen so far."""

    __slots__ = ("answer_id", "calls", "missing", "results", "sent_ids")

    def __init__(self, answer_id: str, calls: tuple[ToolCallPart, ...], sent_ids: tuple[str, ...]) -> None:
        self.answer_id = answer_id
        self.calls = calls
        self.sent_ids = sent_ids
        self.results: list[ToolResultMessage | None] = [None] * len(calls)
        self.missing = len(calls)

    def open_index(self, entry_id: str, message: ToolResultMessage) -> int | None:
        """Which call the result answers: the one that reserved its id, else the first open one it names."""
        reserved = call_index(self.answer_id, entry_id)
        if reserved is not None and reserved < len(self.calls) and self.results[reserved] is None:
            return reserved
        for index, call in enumerate(self.calls):
            if self.results[index] is None and call.id == message.call_id:
                return index
        return None


class ModelContext:
    """The messages that a path shows to the model; grows with the path and is never read again from the store."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._used_ids: dict[str, int] = {}
        self._batch: _Batch | None = None

    def add(self, entry_id: str, body: EntryBody) -> None:
        """Take the next entry of the path."""
        if isinstance(body, Custom):
            return
        if isinstance(body, ToolResultMessage):
            self._add_result(entry_id, body)
            return
        if isinstance(body, AssistantMessage):
            if body.stop_reason in ("error", "aborted"):
                return
            self._close_batch()
            self._add_answer(entry_id, body)
            return
        self._close_batch()
        content = _shown(body.content)
        if content:
            self._messages.append(body if content is body.content else replace(body, content=content))

    def view(self) -> Sequence[Message]:
        """The messages as of now. An unfinished batch is closed in the view only."""
        if self._batch is None:
            return MessageView(self._messages, len(self._messages))
        return (*self._messages, *_results(self._batch))

    def open_calls(self) -> tuple[str, tuple[ToolCallPart, ...]] | None:
        """The answer at the end of the path and its calls that have no result there, if any."""
        if self._batch is None:
            return None
        batch = self._batch
        missing = tuple(call for call, result in zip(batch.calls, batch.results, strict=True) if result is None)
        return batch.answer_id, missing

    def _add_answer(self, entry_id: str, body: AssistantMessage) -> None:
        parts: list[AssistantPart] = []
        calls: list[ToolCallPart] = []
        sent_ids: list[str] = []
        changed = False
        for part in body.content:
            if isinstance(part, ToolCallPart):
                sent_id = self._unique(part.id)
                calls.append(part)
                sent_ids.append(sent_id)
                if part.id != sent_id:
                    part = replace(part, id=sent_id)
                    changed = True
            elif _is_empty(part):
                changed = True
                continue
            parts.append(part)
        if not parts:
            return
        self._messages.append(replace(body, content=tuple(parts)) if changed else body)
        if calls:
            self._batch = _Batch(entry_id, tuple(calls), tuple(sent_ids))

    def _add_result(self, entry_id: str, body: ToolResultMessage) -> None:
        batch = self._batch
        index = None if batch is None else batch.open_index(entry_id, body)
        if batch is None or index is None:
            return
        batch.results[index] = body
        batch.missing -= 1
        if not batch.missing:
            self._close_batch()

    def _close_batch(self) -> None:
        if self._batch is not None:
            self._messages.extend(_results(self._batch))
            self._batch = None

    def _unique(self, given: str) -> str:
        """``given`` if no call before has it, else with the first free number behind it."""
        base = given or "call"
        number = self._used_ids.get(base, 0)
        candidate = base if number == 0 else f"{base}-{number + 1}"
        while number and candidate in self._used_ids:
            number += 1
            candidate = f"{base}-{number + 1}"
        self._used_ids[base] = number + 1
        if candidate != base:
            self._used_ids[candidate] = 1
        return candidate


def begins_anew(body: EntryBody) -> bool:
    """Whether no call before this entry is open behind it, so that it and what follows tell which calls are."""
    if isinstance(body, AssistantMessage):
        return body.stop_reason not in ("error", "aborted")
    return not isinstance(body, Custom | ToolResultMessage)


def not_available(call: ToolCallPart) -> ToolResultMessage:
    """The result of a call that has none on this path."""
    return ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text=NOT_AVAILABLE),), is_error=True)


def _results(batch: _Batch) -> Iterator[ToolResultMessage]:
    for sent_id, call, result in zip(batch.sent_ids, batch.calls, batch.results, strict=True):
        message = not_available(call) if result is None else result
        content = _shown(message.content)
        if content is message.content and content and message.call_id == sent_id and message.name == call.name:
            yield message
        else:
            sent = content or (TextPart(text=NO_OUTPUT),)
            yield replace(message, call_id=sent_id, name=call.name, content=sent)


def _shown(content: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """The parts that are not empty; the same tuple if all are."""
    for part in content:
        if _is_empty(part):
            return tuple(part for part in content if not _is_empty(part))
    return content


def _is_empty(part: object) -> bool:
    return isinstance(part, TextPart) and part.text == ""
