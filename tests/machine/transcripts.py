"""Paths of all kinds of entries, and the rules of a cut as a judge of any cut of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from agentlane.data.entries import BranchSummary, Custom, EntryBody
from agentlane.data.messages import (
    AssistantMessage,
    Message,
    StopReason,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.machine.compaction import Cut, Piece
from agentlane.machine.context import ModelContext

UNIT = "§"
"""One token is counted for each."""

KINDS = (
    *("user", "users", "answer", "batch", "batch", "batch with a custom", "open batch"),
    *("failed", "branch", "custom", "orphan"),
)


class Step(NamedTuple):
    """What comes next on a path, and how large it is."""

    kind: str
    size: int


steps = st.lists(
    st.builds(Step, st.sampled_from(KINDS), st.sampled_from((0, 1, 2, 3, 5, 8, 40))), min_size=1, max_size=14
)


class Path:
    """The entries of a path, by its steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.entries: list[tuple[str, EntryBody]] = []
        for step in steps:
            self._take(step)

    def _take(self, step: Step) -> None:
        text = "t" + UNIT * step.size
        match step.kind:
            case "user" | "users":
                for _ in range(1 + (step.kind == "users")):
                    self._add(user(text))
            case "answer":
                self._add(answer(text))
            case "failed":
                self._add(answer(text, stop_reason="error"))
            case "branch":
                self._add(BranchSummary(summary=text, left="elsewhere"))
            case "custom":
                self._add(Custom(type="note", data=text))
            case "orphan":
                self._add(ToolResultMessage(call_id="nobody's", name="read", content=(TextPart(text=text),)))
            case _:
                self._batch(step.kind, text)

    def _batch(self, kind: str, text: str) -> None:
        calls = [ToolCallPart(id=f"call-{number}", name="read", arguments={}) for number in range(1 + len(text) % 3)]
        self._add(answer("", calls=calls))
        for number, call in enumerate(calls):
            if kind == "batch with a custom":
                self._add(Custom(type="note", data=text))
            if kind != "open batch" or number:
                self._add(ToolResultMessage(call_id=call.id, name="read", content=(TextPart(text=text),)))

    def _add(self, body: EntryBody) -> None:
        self.entries.append((f"e{len(self.entries)}", body))


def answer(text: str, *, calls: Sequence[ToolCallPart] = (), stop_reason: StopReason = "stop") -> AssistantMessage:
    said = (TextPart(text=text),) if text else ()
    return AssistantMessage(content=(*said, *calls), stop_reason="tool_calls" if calls else stop_reason)


def count(message: Message) -> int:
    """The units in it, and one for each call."""
    calls = len(message.calls) if isinstance(message, AssistantMessage) else 0
    return calls + sum(part.text.count(UNIT) for part in message.content if isinstance(part, TextPart))


def context_of(entries: Sequence[tuple[str, EntryBody]]) -> ModelContext:
    context = ModelContext(lambda id, body: user(body.data))
    for id, body in entries:
        context.add(id, body)
    return context


def pieces_of(entries: Sequence[tuple[str, EntryBody]]) -> list[Piece]:
    return context_of(entries).pieces(count)


def broken_rules(pieces: Sequence[Piece], keep_tokens: int, unanswered: int, found: Cut | None) -> list[str]:
    """Each rule that this cut breaks."""
    end = len(pieces)
    users = [index for index, piece in enumerate(pieces) if isinstance(piece.body, UserMessage)]
    latest = users[-unanswered] if unanswered else end
    turns = [index for index in range(end) if begins_turn(pieces, index)]
    last_turn = turns[-1] if turns else 0

    def fits(index: int) -> bool:
        return sum(piece.tokens for piece in pieces[index:]) <= keep_tokens

    def is_answer(index: int) -> bool:
        return isinstance(pieces[index].body, AssistantMessage)

    if found is None:
        useful = not fits(0) and latest > 0
        return ["there is something to summarize"] if useful else []
    index, broken = found.index, []
    if not 0 < index <= end:
        return ["nothing stands before the cut"]
    if index > latest:
        broken.append("a message that is not answered is summarized")
    if not fits(index) and index != latest:
        broken.append("the tail is too large")
    at_turn = index in turns or (unanswered and index == latest)
    if index < end and not at_turn:
        if not is_answer(index):
            broken.append("the cut is neither at a turn nor before an answer")
        if index < last_turn:
            broken.append("a turn is cut that is not the last")
        if any(fits(turn) for turn in turns):
            broken.append("a turn is cut though a whole one fits")
    longer = [turn for turn in turns if 0 < turn < min(index, latest) and fits(turn)]
    if not any(fits(turn) for turn in turns) and latest == end:
        longer += [each for each in range(last_turn + 1, index) if is_answer(each) and fits(each)]
    if longer:
        broken.append("a longer tail fits")
    under_way = next((piece.body for piece in reversed(pieces) if not isinstance(piece.body, Custom)), None)
    begun = isinstance(under_way, ToolResultMessage) or (isinstance(under_way, AssistantMessage) and under_way.calls)
    if found.split != bool(begun if index == end else not at_turn):
        broken.append("it is not said whether a turn is split")
    return broken


def begins_turn(pieces: Sequence[Piece], index: int) -> bool:
    """Whether this is the first of adjacent messages of users, what applications show between them left aside."""
    if not isinstance(pieces[index].body, UserMessage | BranchSummary):
        return False
    before = [piece.body for piece in pieces[:index] if not isinstance(piece.body, Custom)]
    return not before or not isinstance(before[-1], UserMessage | BranchSummary)
