"""What the model is shown: the messages of a path, paired and made harmless, extended entry by entry.

Rules
- Error and aborted answers are left out whole, and so are answers without content and entries of applications that
  nothing projects. A projected one is a message of the user's; inside a batch it waits until behind the results.
- Behind a compaction comes its summary as a message of the user's, then what it keeps, then what came later. Earlier
  compactions show nothing any more, their summaries included. Where what it keeps from was not taken, nothing is kept.
- The summary of a branch is a message of the user's where it stands.
- Every call that is sent is followed directly by its result, in call order. Where a result is missing further up the
  path (an import, a branch made inside a batch), one that says so is put in the request only.
- A result without its call is left out; one with its call goes under the call's name.
- Ids of calls are unique in the request: an empty or repeated one of the provider gets a suffix.
- Text that is empty is left out; a result without content says so.
The prefix never changes when the path grows without a compaction, so a provider's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

from msgspec.structs import replace

from agentlane.data.entries import BranchSummary, Compaction, Custom, EntryBody, StandsFor
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    UserPart,
)
from agentlane.data.tokens import TokenCounter
from agentlane.ids import call_index
from agentlane.machine.compaction import Piece
from agentlane.machine.summaries import shown_branch_summary, shown_summary

NO_OUTPUT = "(no output)"
NOT_AVAILABLE = "The result of this call is not available on this branch."

Project: TypeAlias = Callable[[str, Custom], UserMessage | None]
"""What an application's entry, given with its id, shows; None: nothing."""


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


class _Taken(NamedTuple):
    """An entry as a later compaction may keep it. Without a body it shows nothing, and has been asked about that."""

    id: str
    body: EntryBody | None
    message: UserMessage | None = None
    """What it shows, where that is not the body itself."""


class _Shown(NamedTuple):
    """An entry and the first of the messages that are shown for it; those up to the next entry's are its own too."""

    id: str
    body: EntryBody
    start: int


class _Batch:
    """The calls of one answer under the ids they are sent with, and the results seen so far."""

    __slots__ = ("answer_id", "calls", "missing", "results", "sent_ids", "waiting")

    def __init__(self, answer_id: str, calls: tuple[ToolCallPart, ...], sent_ids: tuple[str, ...]) -> None:
        self.answer_id = answer_id
        self.calls = calls
        self.sent_ids = sent_ids
        self.results: list[tuple[str, ToolResultMessage] | None] = [None] * len(calls)
        self.missing = len(calls)
        self.waiting: list[tuple[str, Custom, UserMessage]] = []
        """What applications put between the results."""

    def open_index(self, entry_id: str, message: ToolResultMessage) -> int | None:
        """Which call the result answers: the one that reserved its id, else the first open one it names."""
        reserved = call_index(self.answer_id, entry_id)
        if reserved is not None and reserved < len(self.calls) and self.results[reserved] is None:
            return reserved
        for index, call in enumerate(self.calls):
            if self.results[index] is None and call.id == message.call_id:
                return index
        return None

    def close(self, messages: list[Message], shown: list[_Shown]) -> None:
        """Append what is shown of the batch behind its answer, and the entries that this is of."""
        for sent_id, call, result in zip(self.sent_ids, self.calls, self.results, strict=True):
            if result is not None:
                shown.append(_Shown(*result, len(messages)))
            messages.append(_sent(sent_id, call, None if result is None else result[1]))
        for id, body, message in self.waiting:
            shown.append(_Shown(id, body, len(messages)))
            messages.append(message)


class ModelContext:
    """The messages that a path shows to the model; grows with the path and is never read again from the store.

    ``project`` is asked once about each entry of an application. What is kept are references to what was taken since
    the newest compaction, its tail included.
    """

    def __init__(self, project: Project | None = None) -> None:
        self.project = project
        self._taken: list[_Taken] = []
        self._earlier: tuple[str, Compaction] | None = None
        self._begin()

    def _begin(self) -> None:
        """Show nothing. What was shown stays as it was for those who were given it."""
        self._messages: list[Message] = []
        self._shown: list[_Shown] = []
        self._used_ids: dict[str, int] = {}
        self._batch: _Batch | None = None
        self._known: tuple[int, int] | None = None
        self._counter: TokenCounter | None = None
        self._sums = [0]
        """How many tokens the first messages have together, by their number, as far as that was asked for."""

    def add(self, entry_id: str, body: EntryBody) -> None:
        """Take the next entry of the path."""
        if isinstance(body, Compaction):
            self._compact(entry_id, body)
            return
        taken = _Taken(entry_id, body)
        if isinstance(body, Custom):
            message = None if self.project is None else self.project(entry_id, body)
            taken = _Taken(entry_id, None if message is None else body, message)
        elif isinstance(body, BranchSummary):
            taken = _Taken(entry_id, body, shown_branch_summary(body.summary))
        elif isinstance(body, AssistantMessage) and body.stop_reason in ("error", "aborted"):
            taken = _Taken(entry_id, None)
        self._taken.append(taken)
        self._show(taken)

    def view(self) -> Sequence[Message]:
        """The messages as of now. An unfinished batch is closed in the view only."""
        if self._batch is None:
            return MessageView(self._messages, len(self._messages))
        return self._closed()[0]

    def open_calls(self) -> tuple[str, tuple[ToolCallPart, ...]] | None:
        """The answer at the end of the path and its calls that have no result there, if any."""
        if self._batch is None:
            return None
        batch = self._batch
        missing = tuple(call for call, result in zip(batch.calls, batch.results, strict=True) if result is None)
        return batch.answer_id, missing

    @property
    def earlier(self) -> tuple[str, Compaction] | None:
        """The newest compaction and its entry's id; None: there is none."""
        return self._earlier

    @property
    def stands_for(self) -> StandsFor | None:
        """What the summary in front of the messages stands for, if there is one."""
        return None if self._earlier is None else self._earlier[1].stands_for

    def tokens(self, count: TokenCounter, *, start: int = 0) -> int:
        """How many tokens ``view()`` has, from the message ``start`` on, the summary included.

        However often this is asked, each message is counted once, but for the results of a batch that is not finished;
        the messages that a compaction keeps are counted again behind it. Another counter begins anew.
        """
        sums = self._counted(count, self._messages)
        total = sums[-1] - sums[min(start, len(sums) - 1)]
        if self._batch is None:
            return total
        messages, _ = self._closed()
        return total + sum(count(message) for message in messages[max(start, len(self._messages)) :])

    @property
    def known_tokens(self) -> tuple[int, int] | None:
        """What the provider counted at the newest answer since the newest compaction that says so: all that the model
        was shown, instructions and tools included, with the answer; and the number of messages that this covers.

        None where no answer has said it. ``tokens(count, start=...)`` has what came since.
        """
        return self._known

    def pieces(self, count: TokenCounter) -> list[Piece]:
        """The entries that are shown, in the order in which they are, without the summary in front of them.

        Entries that show nothing are not among them. The tokens of a result that is missing are those of the piece
        before it.
        """
        messages, shown = self._closed()
        if not shown:
            return []
        sums = self._counted(count, self._messages)
        if self._batch is not None:
            sums = list(sums)
            _extend(sums, count, messages)
        starts = [*(each.start for each in shown), len(messages)]
        return [Piece(each.id, each.body, sums[starts[n + 1]] - sums[starts[n]]) for n, each in enumerate(shown)]

    def shown_between(self, first: str, last: str) -> tuple[Message, ...]:
        """The messages of the pieces from the entry ``first`` to the entry ``last``, both included, as ``view()`` has
        them. ``KeyError`` for an entry that is no piece."""
        messages, shown = self._closed()
        at = {each.id: number for number, each in enumerate(shown)}
        behind = at[last] + 1
        end = len(messages) if behind == len(shown) else shown[behind].start
        return tuple(messages[shown[at[first]].start : end])

    def _closed(self) -> tuple[list[Message], list[_Shown]]:
        """All that is shown, and the entries that it is of; an unfinished batch is closed in a copy."""
        if self._batch is None:
            return self._messages, self._shown
        messages, shown = list(self._messages), list(self._shown)
        self._batch.close(messages, shown)
        return messages, shown

    def _counted(self, count: TokenCounter, messages: list[Message]) -> list[int]:
        if self._counter != count:
            self._counter, self._sums = count, [0]
        _extend(self._sums, count, messages)
        return self._sums

    def _compact(self, entry_id: str, body: Compaction) -> None:
        """Show the summary and what is kept."""
        self._earlier = (entry_id, body)
        kept: list[_Taken] = []
        if body.kept_from is None:
            self._taken = kept
        else:
            # Where it is not found, what was taken stays: a later compaction may keep a part of it.
            at = next((at for at, each in enumerate(self._taken) if each.id == body.kept_from), None)
            if at is not None:
                self._taken = kept = self._taken[at:]
        self._begin()
        self._messages.append(shown_summary(body.summary))
        for each in kept:
            self._show(each)
        self._known = None  # it was told of what was shown then

    def _show(self, taken: _Taken) -> None:
        id, body, message = taken
        match body:
            case None:
                return
            case ToolResultMessage():
                self._add_result(id, body)
            case AssistantMessage():
                self._close_batch()
                self._add_answer(id, body)
            case Custom() if self._batch is not None and message is not None:
                content = _shown(message.content)
                if content:
                    self._batch.waiting.append((id, body, _with(message, content)))
            case UserMessage():
                self._add_user(id, body, body)
            case _:
                if message is not None:
                    self._add_user(id, body, message)

    def _add_user(self, id: str, body: EntryBody, message: UserMessage) -> None:
        self._close_batch()
        content = _shown(message.content)
        if content:
            self._append(id, body, _with(message, content))

    def _append(self, id: str, body: EntryBody, message: Message) -> None:
        self._shown.append(_Shown(id, body, len(self._messages)))
        self._messages.append(message)

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
        self._append(entry_id, body, replace(body, content=tuple(parts)) if changed else body)
        counted = _counted_by_provider(body)
        if counted is not None:
            self._known = (counted, len(self._messages))
        if calls:
            self._batch = _Batch(entry_id, tuple(calls), tuple(sent_ids))

    def _add_result(self, entry_id: str, body: ToolResultMessage) -> None:
        batch = self._batch
        index = None if batch is None else batch.open_index(entry_id, body)
        if batch is None or index is None:
            return
        batch.results[index] = (entry_id, body)
        batch.missing -= 1
        if not batch.missing:
            self._close_batch()

    def _close_batch(self) -> None:
        if self._batch is not None:
            self._batch.close(self._messages, self._shown)
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
    if isinstance(body, Compaction):
        return body.kept_from is None
    return not isinstance(body, Custom | ToolResultMessage)


def not_available(call: ToolCallPart) -> ToolResultMessage:
    """The result of a call that has none on this path."""
    return ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text=NOT_AVAILABLE),), is_error=True)


def _sent(sent_id: str, call: ToolCallPart, result: ToolResultMessage | None) -> ToolResultMessage:
    """The result of a call as it is sent."""
    message = not_available(call) if result is None else result
    content = _shown(message.content)
    if content is message.content and content and message.call_id == sent_id and message.name == call.name:
        return message
    return replace(message, call_id=sent_id, name=call.name, content=content or (TextPart(text=NO_OUTPUT),))


def _extend(sums: list[int], count: TokenCounter, messages: list[Message]) -> None:
    """Count the messages that are not yet in the sums."""
    for index in range(len(sums) - 1, len(messages)):
        sums.append(sums[-1] + count(messages[index]))


def _counted_by_provider(answer: AssistantMessage) -> int | None:
    """How long request and answer were, if the provider said so."""
    usage = answer.usage
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return usage.input_tokens + usage.output_tokens  # cached input is part of the input


def _with(message: UserMessage, content: tuple[UserPart, ...]) -> UserMessage:
    return message if content is message.content else replace(message, content=content)


def _shown(content: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """The parts that are not empty; the same tuple if all are."""
    for part in content:
        if _is_empty(part):
            return tuple(part for part in content if not _is_empty(part))
    return content


def _is_empty(part: object) -> bool:
    return isinstance(part, TextPart) and part.text == ""
