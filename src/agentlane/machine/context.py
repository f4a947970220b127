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

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
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
from agentlane.data.tokens import TOKENS_MAX, TokenCounter
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


class _Projected(NamedTuple):
    """An entry of an application that is shown, and as what."""

    body: Custom
    message: UserMessage


class _Batch:
    """The calls of one answer under the ids they are sent with, and the results seen so far."""

    __slots__ = ("answer_id", "calls", "missing", "results", "sent_ids", "waiting")

    def __init__(self, answer_id: str, calls: tuple[ToolCallPart, ...], sent_ids: tuple[str, ...]) -> None:
        self.answer_id = answer_id
        self.calls = calls
        self.sent_ids = sent_ids
        self.results: list[tuple[ToolResultMessage, int] | None] = [None] * len(calls)
        """Each with the number of its entry."""
        self.missing = len(calls)
        self.waiting: list[tuple[UserMessage, int]] = []
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

    def behind(self) -> Iterator[tuple[Message, int | None]]:
        """What is shown behind the answer, each with the number of its entry, if there is one."""
        for sent_id, call, result in zip(self.sent_ids, self.calls, self.results, strict=True):
            yield (_sent(sent_id, call, None), None) if result is None else (_sent(sent_id, call, result[0]), result[1])
        yield from self.waiting


class ModelContext:
    """The messages that a path shows to the model; grows with the path and is never read again from the store.

    ``project`` is asked once about each entry of an application. What is kept are references to what was taken since
    the newest compaction, its tail included.
    """

    def __init__(self, project: Project | None = None) -> None:
        self.project = project
        self._ids: list[str] = []
        self._bodies: list[EntryBody | _Projected | None] = []
        """What was taken, as a later compaction may keep it; None: it shows nothing."""
        self._earlier: tuple[str, Compaction] | None = None
        self._kept = 0
        """How many messages were shown when the newest compaction was taken."""
        self._begin()

    def _begin(self) -> None:
        """Show nothing. What was shown stays as it was for those who were given it."""
        self._messages: list[Message] = []
        self._shown = array("q")
        """The numbers of the entries that are shown, in the order in which they are."""
        self._starts = array("q")
        """Of each the first of its messages; those up to the next one's are its own too."""
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
        taken: EntryBody | _Projected | None = body
        if isinstance(body, Custom):
            message = None if self.project is None else self.project(entry_id, body)
            taken = None if message is None else _Projected(body, message)
        elif isinstance(body, AssistantMessage) and body.stop_reason in ("error", "aborted"):
            taken = None
        self._ids.append(entry_id)
        self._bodies.append(taken)
        self._show(len(self._ids) - 1)

    def view(self) -> Sequence[Message]:
        """The messages as of now. An unfinished batch is closed in the view only."""
        if self._batch is None:
            return MessageView(self._messages, len(self._messages))
        return (*self._messages, *(message for message, _ in self._batch.behind()))

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
        sums = self._counted(count)
        total = sums[-1] - sums[min(start, len(sums) - 1)]
        if self._batch is None:
            return total
        unfinished = islice(self._batch.behind(), max(start - len(self._messages), 0), None)
        return total + sum(count(message) for message, _ in unfinished)

    def new_tokens(self, count: TokenCounter) -> int | None:
        """How many tokens came since the newest compaction; None: there is none."""
        return None if self._earlier is None else self.tokens(count, start=self._kept)

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
        sums, (shown, starts) = self._counted(count)[:], self._spans()
        if self._batch is not None:
            for message, _ in self._batch.behind():
                sums.append(sums[-1] + count(message))
        return [
            Piece(self._ids[number], self._body(number), sums[starts[at + 1]] - sums[starts[at]])
            for at, number in enumerate(shown)
        ]

    def shown_between(self, first: str, last: str) -> tuple[Message, ...]:
        """The messages of the pieces from the entry ``first`` to the entry ``last``, both included, as ``view()`` has
        them. ``KeyError`` for an entry that is no piece."""
        shown, starts = self._spans()
        at = {self._ids[number]: place for place, number in enumerate(shown)}
        return tuple(self.view()[starts[at[first]] : starts[at[last] + 1]])

    def _spans(self) -> tuple[array[int], array[int]]:
        """The entries that are shown, and the first message of each; behind the last one how many messages there are.
        Those of an unfinished batch are among them."""
        shown, starts, end = self._shown[:], self._starts[:], len(self._messages)
        if self._batch is not None:
            for _, number in self._batch.behind():
                if number is not None:
                    shown.append(number)
                    starts.append(end)
                end += 1
        starts.append(end)
        return shown, starts

    def _body(self, number: int) -> EntryBody:
        taken = self._bodies[number]
        if taken is None:
            raise RuntimeError(f"entry {self._ids[number]} shows nothing")
        return taken.body if isinstance(taken, _Projected) else taken

    def _counted(self, count: TokenCounter) -> list[int]:
        if self._counter != count:
            self._counter, self._sums = count, [0]
        sums, messages = self._sums, self._messages
        for index in range(len(sums) - 1, len(messages)):
            sums.append(sums[-1] + count(messages[index]))
        return sums

    def _compact(self, entry_id: str, body: Compaction) -> None:
        """Show the summary and what is kept."""
        self._earlier = (entry_id, body)
        kept = len(self._ids) if body.kept_from is None else self._number_of(body.kept_from)
        if kept is not None:
            self._ids, self._bodies = self._ids[kept:], self._bodies[kept:]
        self._begin()
        self._messages.append(shown_summary(body.summary))
        # Where it is not found, what was taken stays unshown: a later compaction may keep a part of it.
        for number in range(0 if kept is None else len(self._ids)):
            self._show(number)
        self._known = None  # it was told of what was shown then
        self._kept = len(self._messages)

    def _number_of(self, entry_id: str) -> int | None:
        return self._ids.index(entry_id) if entry_id in self._ids else None

    def _show(self, number: int) -> None:
        body = self._bodies[number]
        if isinstance(body, ToolResultMessage):
            self._add_result(number, body)
        elif isinstance(body, AssistantMessage):
            self._close_batch()
            self._add_answer(number, body)
        elif isinstance(body, UserMessage):
            self._close_batch()
            self._add_user(number, body)
        elif isinstance(body, BranchSummary):
            self._close_batch()
            self._add_user(number, shown_branch_summary(body.summary))
        elif isinstance(body, _Projected):
            self._add_user(number, body.message)

    def _add_user(self, number: int, message: UserMessage) -> None:
        content = _shown(message.content)
        if not content:
            return
        said = message if content is message.content else replace(message, content=content)
        if self._batch is None:
            self._append(said, number)
        else:
            self._batch.waiting.append((said, number))

    def _append(self, message: Message, number: int | None) -> None:
        if number is not None:
            self._shown.append(number)
            self._starts.append(len(self._messages))
        self._messages.append(message)

    def _add_answer(self, number: int, body: AssistantMessage) -> None:
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
        self._append(replace(body, content=tuple(parts)) if changed else body, number)
        counted = _counted_by_provider(body)
        if counted is not None:
            self._known = (counted, len(self._messages))
        if calls:
            self._batch = _Batch(self._ids[number], tuple(calls), tuple(sent_ids))

    def _add_result(self, number: int, body: ToolResultMessage) -> None:
        batch = self._batch
        index = None if batch is None else batch.open_index(self._ids[number], body)
        if batch is None or index is None:
            return
        batch.results[index] = (body, number)
        batch.missing -= 1
        if not batch.missing:
            self._close_batch()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            for message, number in batch.behind():
                self._append(message, number)

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


def _counted_by_provider(answer: AssistantMessage) -> int | None:
    """How long request and answer were, if the provider said so."""
    usage = answer.usage
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    total = usage.input_tokens + usage.output_tokens  # cached input is part of the input
    return total if total <= TOKENS_MAX else None


def _shown(content: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """The parts that are not empty; the same tuple if all are."""
    for part in content:
        if _is_empty(part):
            return tuple(part for part in content if not _is_empty(part))
    return content


def _is_empty(part: object) -> bool:
    return isinstance(part, TextPart) and part.text == ""
