"""Where a path is cut when its older part is summarized, what a summary stands for, and when one is made.

Rules
- A cut stands at a turn boundary: before the first of adjacent messages of users, the summary of a path that was left
  being one of them. Entries of an application that are shown between messages of users do not part them.
- Of the turn boundaries the one with the longest tail is taken that is not larger than what may be kept. If there is
  none, the cut is inside the last turn, before an answer, and again with the longest tail; and if none fits there
  either, nothing is kept. No cut stands before a result, so a call and its results stay together.
- User messages that are not answered yet are kept, whatever their size, and nothing besides where that is too much.
- A compaction that the library makes by itself takes away a quarter of what may be kept, at least, and comes only after
  as many new tokens. So it can't loop: n new tokens are followed by no more than n // quarter of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from agentlane.data.entries import BranchSummary, Custom, EntryBody, StandsFor
from agentlane.data.messages import AssistantMessage, UserMessage
from agentlane.data.operations import CompactionPolicy

SHARE = 4
"""Which part of a window the reserve, the kept tail and the summary are at most; and of the tail what has to go."""

REQUEST_TOKENS = 1_000
"""What the instructions of a summary request are allowed besides the transcript; less in a small window."""


class Piece(NamedTuple):
    """One entry as the model is shown it, and what it takes there. What is not shown is no piece."""

    id: str
    body: EntryBody
    tokens: int


class Cut(Struct, frozen=True):
    """The pieces before ``index`` are summarized, the others are kept.

    ``split``: the turn that was under way, or whose end is kept, began before the cut.
    """

    index: int
    split: bool


class Budgets(NamedTuple):
    """What a policy comes to with a model's window, in tokens.

    A request beyond ``threshold`` is due for a compaction (None: no window is known). The kept tail is at most
    ``keep``, ``reserve`` is what is left free, a summary is at most ``summary`` long, and the message of a request for
    one at most ``shown`` (None: as long as it is).
    """

    threshold: int | None
    keep: int
    reserve: int
    shown: int | None
    summary: int


def cut(pieces: Sequence[Piece], keep_tokens: int, unanswered: int = 0) -> Cut | None:
    """Where to cut ``pieces``, oldest first; None if nothing stands before the cut.

    ``unanswered`` is how many of the user messages, counted from the end, have to be kept.
    """
    tails = _tails(pieces)
    if tails[0] <= keep_tokens:
        return None
    latest = _latest(pieces, unanswered)
    boundaries = [index for index in _boundaries(pieces) if index < latest]
    if latest < len(pieces):
        index = next((index for index in boundaries if tails[index] <= keep_tokens), latest)
        return Cut(index, split=False) if index else None
    for index in boundaries:
        if tails[index] <= keep_tokens:
            return Cut(index, split=False) if index else None
    last = boundaries[-1] if boundaries else 0
    for index in range(last + 1, len(pieces)):
        if isinstance(pieces[index].body, AssistantMessage) and tails[index] <= keep_tokens:
            return Cut(index, split=True)
    return Cut(len(pieces), split=_under_way(pieces))


def stands_for(pieces_before: Sequence[Piece], earlier: StandsFor | None) -> StandsFor:
    """What a summary of these pieces stands for, with what the earlier summary does. An answer that does not say whose
    it is counts under the empty name."""
    before = earlier or StandsFor()
    users, answers, since = before.users, dict(before.answers), dict(before.answers_since)
    for piece in pieces_before:
        if isinstance(piece.body, UserMessage):
            users += 1
            since = {}
        elif isinstance(piece.body, AssistantMessage):
            model = "" if piece.body.model is None else str(piece.body.model)
            answers[model] = answers.get(model, 0) + 1
            since[model] = since.get(model, 0) + 1
    return StandsFor(users=users, answers=answers, answers_since=since)


def worth(tokens_cut: int, keep_tokens: int, new_tokens: int | None = None) -> bool:
    """Whether an automatic compaction that takes ``tokens_cut`` away is made.

    ``new_tokens`` is what came since the newest compaction of the path; None if there is none. A quarter of
    ``keep_tokens``, and at least 1, is asked of either. One that was asked for, or that has to be because a request was
    too long, is made in any case.
    """
    least = max(1, keep_tokens // SHARE)
    return tokens_cut >= least and (new_tokens is None or new_tokens >= least)


def budgets(policy: CompactionPolicy, window: int | None) -> Budgets:
    """The numbers for a model with this window; None: the one that the policy says, if it does."""
    if window is None:
        window = policy.context_tokens
    if window is None:
        return Budgets(None, policy.keep_tokens, policy.reserve_tokens, None, policy.max_summary_tokens)
    part = max(0, window) // SHARE
    reserve = min(policy.reserve_tokens, part)
    summary = max(1, min(policy.max_summary_tokens, part))
    shown = max(0, window - reserve - summary - min(REQUEST_TOKENS, part))
    return Budgets(max(0, window - reserve), min(policy.keep_tokens, part), reserve, shown, summary)


def _tails(pieces: Sequence[Piece]) -> list[int]:
    """By index, what the pieces from there on take; the last is 0."""
    tails = [0] * (len(pieces) + 1)
    for index in range(len(pieces) - 1, -1, -1):
        tails[index] = tails[index + 1] + pieces[index].tokens
    return tails


def _latest(pieces: Sequence[Piece], unanswered: int) -> int:
    """The last place where a cut leaves the unanswered messages in the tail."""
    latest = len(pieces)
    for index in range(len(pieces) - 1, -1, -1):
        if unanswered <= 0:
            break
        if isinstance(pieces[index].body, UserMessage):
            unanswered -= 1
            latest = index
    return latest


def _boundaries(pieces: Sequence[Piece]) -> Iterator[int]:
    """The turn boundaries, in order."""
    adjacent = False
    for index, piece in enumerate(pieces):
        if isinstance(piece.body, UserMessage | BranchSummary):
            if not adjacent:
                yield index
            adjacent = True
        elif not isinstance(piece.body, Custom):
            adjacent = False


def turn_start(pieces: Sequence[Piece], index: int) -> int:
    """Where the turn begins that the piece before ``index`` belongs to."""
    return max((start for start in _boundaries(pieces[:index])), default=0)


def _under_way(pieces: Sequence[Piece]) -> bool:
    """Whether the last turn is answered in part: it ends with calls or their results."""
    for piece in reversed(pieces):
        if not isinstance(piece.body, Custom):
            body = piece.body
            return (
                bool(body.calls)
                if isinstance(body, AssistantMessage)
                else not isinstance(body, UserMessage | BranchSummary)
            )
    return False
