"""What a path shows behind compactions, and where it is to be cut: told from the entries alone, by rules of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from agentlane.data.entries import Compaction, Entry, StandsFor
from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolResultMessage, UserMessage
from agentlane.data.tokens import estimate_message
from agentlane.data.usage import Usage
from agentlane.machine.context import not_available
from agentlane.model import ModelRequest
from agentlane.testing.script import Answer, Settles


class Shown(NamedTuple):
    """A message that a model is shown, and the entry that it is of; None: the result of a call is yet to be placed."""

    id: str | None
    message: Message
    tokens: int


@dataclass(frozen=True)
class CutAt:
    """What is shown from ``index`` on is kept."""

    index: int
    split: bool


def shown(entries: Sequence[Entry]) -> list[Shown]:
    """What is shown of entries besides summaries: all that was said, but for answers that failed."""
    return [
        Shown(entry.id, entry.body, estimate_message(entry.body))
        for entry in entries
        if isinstance(entry.body, Message) and entry.body.content and not _failed(entry.body)
    ]


def missing(pieces: Sequence[Shown]) -> list[Shown]:
    """The results that a path which ends inside a batch does not have."""
    for results, piece in enumerate(reversed(pieces)):
        if isinstance(piece.message, AssistantMessage):
            absent = [not_available(call) for call in piece.message.calls[results:]]
            return [Shown(None, each, estimate_message(each)) for each in absent]
        if not isinstance(piece.message, ToolResultMessage):
            break
    return []


def unanswered(pieces: Sequence[Shown]) -> int:
    """How many messages of users stand behind the last answer."""
    behind = [isinstance(piece.message, UserMessage) for piece in reversed(pieces)]
    return behind.index(False) if False in behind else len(behind)


def cut_of(pieces: Sequence[Shown], keep_tokens: int) -> CutAt | None:
    """Of the cuts that are allowed the one that keeps most; None: nothing is to be summarized.

    A turn is cut inside only where none is small enough to be kept whole, and then the last one. What nobody has
    answered is kept, however long it is.
    """
    tails = [*accumulate((piece.tokens for piece in reversed(pieces)), initial=0)][::-1]
    if tails[0] <= keep_tokens:
        return None
    fit = {index for index, tail in enumerate(tails) if tail <= keep_tokens}
    users = [isinstance(piece.message, UserMessage) for piece in pieces]
    turns = {index for index, is_user in enumerate(users) if is_user and not (index and users[index - 1])}
    if waiting := unanswered(pieces):
        last = len(pieces) - waiting
        index = min((index for index in turns & fit if index <= last), default=last)
        return CutAt(index, split=False) if index else None
    if turns & fit:
        return CutAt(min(turns & fit), split=False)
    inside = [n for n in fit if n > max(turns, default=0) and n < len(pieces) and not users[n]]
    answers = [n for n in inside if isinstance(pieces[n].message, AssistantMessage)]
    if answers:
        return CutAt(min(answers), split=True)
    last_message = pieces[-1].message
    called = isinstance(last_message, AssistantMessage) and bool(last_message.calls)
    return CutAt(len(pieces), split=called or isinstance(last_message, ToolResultMessage))


def counted(messages: Sequence[Message], tokens: Sequence[int], overhead: int) -> int:
    """How long a request with these messages is; what a provider has counted up to an answer counts where it is more.

    ``tokens`` are those of the messages, ``overhead`` is what each request takes besides.
    """
    total = overhead + sum(tokens)
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        usage = message.usage if isinstance(message, AssistantMessage) else None
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            return max(total, usage.input_tokens + usage.output_tokens + sum(tokens[index + 1 :]))
    return total


def standing_for(pieces: Sequence[Shown], earlier: StandsFor | None = None) -> StandsFor:
    """What a summary of ``pieces`` stands for."""
    before = StandsFor() if earlier is None else earlier
    messages = [piece.message for piece in pieces]
    users = [index for index, message in enumerate(messages) if isinstance(message, UserMessage)]
    since = _by_model(messages[users[-1] :] if users else messages)
    return StandsFor(
        users=before.users + len(users),
        answers=dict(Counter(before.answers) + _by_model(messages)),
        answers_since=dict(since if users else Counter(before.answers_since) + since),
    )


def is_summary(message: Message, compaction: Compaction) -> bool:
    """Whether ``message`` shows the summary, and nothing else that was said."""
    if not isinstance(message, UserMessage) or len(message.content) != 1:
        return False
    [part] = message.content
    return isinstance(part, TextPart) and part.text.endswith(f"<summary>\n{compaction.summary}\n</summary>")


def summary(request: ModelRequest) -> Answer:
    """Another one for each transcript, and the same for the same."""
    [message] = request.messages
    [part] = message.content
    assert isinstance(part, TextPart)
    text = f"{len(part.text)} characters, {sha256(part.text.encode(errors='surrogatepass')).hexdigest()}"
    usage = Usage(input_tokens=len(part.text), output_tokens=len(text))
    return Answer(parts=(TextPart(text=text),), ending=Settles(), usage=usage)


def _by_model(messages: Sequence[Message]) -> Counter[str]:
    return Counter(str(message.model) for message in messages if isinstance(message, AssistantMessage))


def _failed(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in ("error", "aborted")
