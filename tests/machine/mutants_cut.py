"""Seeded bugs of the cut: each a small change of what it is given or what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from agentlane.data.entries import BranchSummary, Custom, EntryBody
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage, user
from agentlane.machine.compaction import Cut, Piece, cut

Cutting: TypeAlias = Callable[[Sequence[Piece], int, int], Cut | None]


class CutBug(NamedTuple):
    """A way of cutting that breaks a rule."""

    name: str
    cut: Cutting


def said(change: Callable[[Sequence[Piece], int, Cut], Cut | None]) -> Cutting:
    """The true cut, if there is one, changed."""

    def changed(pieces: Sequence[Piece], keep_tokens: int, unanswered: int) -> Cut | None:
        found = cut(pieces, keep_tokens, unanswered)
        return None if found is None else change(pieces, keep_tokens, found)

    return changed


def given(change: Callable[[EntryBody], EntryBody]) -> Cutting:
    """The true cut of pieces that are taken for something else."""
    return lambda pieces, keep_tokens, unanswered: cut(
        [piece._replace(body=change(piece.body)) for piece in pieces], keep_tokens, unanswered
    )


def another_answer(last: bool) -> Callable[[Sequence[Piece], int, Cut], Cut]:
    def change(pieces: Sequence[Piece], keep_tokens: int, found: Cut) -> Cut:
        if not found.split or found.index == len(pieces):
            return found
        answers = [index for index, piece in enumerate(pieces) if isinstance(piece.body, AssistantMessage) and index]
        return Cut(answers[-1 if last else 0], split=True)

    return change


def behind_the_answer(pieces: Sequence[Piece], keep_tokens: int, found: Cut) -> Cut:
    return Cut(found.index + 1, split=True) if found.split and found.index < len(pieces) else found


def between_users(pieces: Sequence[Piece], keep_tokens: int, found: Cut) -> Cut:
    two = [isinstance(piece.body, UserMessage | BranchSummary) for piece in pieces[found.index : found.index + 2]]
    return Cut(found.index + 1, split=False) if two == [True, True] else found


def nothing_kept(pieces: Sequence[Piece], keep_tokens: int, found: Cut) -> Cut:
    return Cut(len(pieces), split=True) if found.split else found


def as_much_as_fits(pieces: Sequence[Piece], keep_tokens: int, found: Cut) -> Cut:
    while found.index < len(pieces) and sum(piece.tokens for piece in pieces[found.index :]) > keep_tokens:
        found = Cut(found.index + 1, split=found.split)
    return found


def first_left_aside(pieces: Sequence[Piece], keep_tokens: int, unanswered: int) -> Cut | None:
    """The piece at which a tail begins is not counted."""
    shifted = [piece._replace(tokens=after.tokens) for piece, after in pairwise(pieces)]
    return cut([*shifted, pieces[-1]._replace(tokens=0)], keep_tokens, unanswered)


CUT_BUGS: tuple[CutBug, ...] = (
    CutBug("what is not answered is summarized", lambda pieces, keep, unanswered: cut(pieces, keep)),
    CutBug("one too few is not answered", lambda pieces, keep, unanswered: cut(pieces, keep, max(0, unanswered - 1))),
    CutBug("what is not answered has to fit", said(as_much_as_fits)),
    CutBug("less is kept than may be", lambda pieces, keep, unanswered: cut(pieces, keep // 2, unanswered)),
    CutBug("more is kept than may be", lambda pieces, keep, unanswered: cut(pieces, keep + 1, unanswered)),
    CutBug("the first piece of a tail does not count", first_left_aside),
    CutBug("a call is parted from its result", said(behind_the_answer)),
    CutBug("adjacent messages of users are parted", said(between_users)),
    CutBug("an answer is taken for a turn", given(lambda body: _as(AssistantMessage, body))),
    CutBug("what an application shows is a turn", given(lambda body: _as(Custom, body))),
    CutBug("the summary of a branch is no turn", given(lambda body: _unseen(BranchSummary, body))),
    CutBug("a message of a user is no turn", given(lambda body: _unseen(UserMessage, body))),
    CutBug("a split keeps the shortest tail", said(another_answer(last=True))),
    CutBug("a split is at the first answer of all", said(another_answer(last=False))),
    CutBug("where no turn fits nothing is kept", said(nothing_kept)),
    CutBug("a split is not said", said(lambda pieces, keep, found: replace(found, split=False))),
    CutBug("a split is always said", said(lambda pieces, keep, found: replace(found, split=True))),
    CutBug("there is a cut where nothing stands before it", lambda *given: cut(*given) or Cut(0, split=False)),
    CutBug(
        "there is none where nothing is kept", said(lambda p, keep, found: None if found.index == len(p) else found)
    ),
    CutBug("there is none inside a turn", said(lambda pieces, keep, found: None if found.split else found)),
)


def _as(kind: type, body: EntryBody) -> EntryBody:
    return user("taken for one") if isinstance(body, kind) else body


def _unseen(kind: type, body: EntryBody) -> EntryBody:
    return ToolResultMessage(call_id="", name="", content=()) if isinstance(body, kind) else body
