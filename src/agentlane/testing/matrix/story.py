"""A lane's conversation as a story: its operations in order, with what was asked, answered and given back by calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from agentlane.data import codec
from agentlane.data.entries import BranchSummary, Compaction, Custom, Entry, EntryBody
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage
from agentlane.data.requests import Compact, Navigate
from agentlane.data.results import OperationResult
from agentlane.ids import correction_id, is_follow_up


@dataclass
class Turn:
    """One answer that is kept, and the results of its calls, each with the id of its call."""

    answer: AssistantMessage
    results: list[tuple[str, ToolResultMessage]] = field(default_factory=list)
    correction: UserMessage | None = None
    """What the model was told where the answer was not of the type that was asked for."""


@dataclass
class Chapter:
    """One settled operation. One that was tried again has no inputs: ``asked`` are those of the first try, and
    ``earlier`` is how many answers the tries before it were given.

    ``failed`` are answers that went wrong, each with the number of answers before it that are kept: they are history,
    and no model is shown them. ``placed`` is what was queued and placed on the way, each with that number too.
    """

    result: OperationResult
    inputs: list[UserMessage] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    failed: list[tuple[int, AssistantMessage]] = field(default_factory=list)
    asked: list[UserMessage] = field(default_factory=list)
    earlier: int = 0
    follow_ups: list[tuple[int, UserMessage]] = field(default_factory=list)
    """What hooks put behind answers, each with the number of answers before it."""
    placed: list[tuple[int, EntryBody]] = field(default_factory=list)
    """Summaries of what was shown before among it."""
    overflowed: set[int] = field(default_factory=set)
    """Numbers of answers behind which a request was too long, and a summary came."""
    cut: bool = False
    """Whether its path does not go on to its end: the lane went elsewhere from inside of it."""

    @property
    def summaries(self) -> list[Compaction]:
        """What was summarized in it."""
        return [body for _, body in self.placed if isinstance(body, Compaction)]

    def placed_at(self, turns: int) -> list[EntryBody]:
        """What was placed after so many answers and before the next."""
        return [body for at, body in self.placed if at == turns]

    def whole(self) -> list[EntryBody]:
        """Everything of it that is kept, in order."""
        bodies: list[EntryBody] = [*self.inputs, *self.placed_at(0)]
        for number, turn in enumerate(self.turns, start=1):
            bodies += [plain(turn.answer), *(body for _, body in turn.results)]
            if turn.correction is not None:
                bodies.append(turn.correction)
            bodies += self.placed_at(number)
            bodies += [body for at, body in self.follow_ups if at == number]
        return bodies


@dataclass
class Aside:
    """A settled operation that is no run and left a summary: a compaction that somebody asked for, or a navigation.
    ``placed`` is what came behind the summary before the next input."""

    result: OperationResult
    request: Compact | Navigate
    body: Compaction | BranchSummary
    placed: list[EntryBody] = field(default_factory=list)


Step: TypeAlias = Chapter | Aside | EntryBody
"""An operation, or an entry that was appended outside of one."""


def is_kept(body: EntryBody) -> bool:
    """Whether later requests show it: answers that failed or were aborted are left out."""
    return not (isinstance(body, AssistantMessage) and body.stop_reason in ("error", "aborted"))


def is_placed(body: EntryBody) -> bool:
    """Whether an entry of an operation, but for its input, was queued: it is no model's answer and no result."""
    return isinstance(body, UserMessage | Custom | Compaction) or (
        isinstance(body, AssistantMessage) and is_kept(body) and body.model is None
    )


def kept(path: Sequence[Entry]) -> list[EntryBody]:
    """The bodies of a path as models are shown them, without what names entries of this one session."""
    return [plain(body) for _, body in _located(path) if is_kept(body)]


def _located(path: Sequence[Entry]) -> Iterator[tuple[Entry, EntryBody]]:
    """The entries with their bodies, in which summaries say how many entries they keep, and not which is the first."""
    count, at = 0, dict[str, int]()
    for entry in path:
        at[entry.id] = count
        body = entry.body
        if isinstance(body, Compaction):
            kept_from = None if body.kept_from is None else f"the last {count - at[body.kept_from]}"
            body = replace(body, kept_from=kept_from)
        elif isinstance(body, BranchSummary):
            body = replace(body, left="")
        if is_kept(body) and not isinstance(body, Compaction):
            count += 1
        yield entry, body


def plain(body: EntryBody) -> EntryBody:
    """A body without what names entries of this one session."""
    return replace(body, answers=()) if isinstance(body, AssistantMessage) else body


def tell(
    path: Sequence[Entry],
    results: Mapping[str, OperationResult],
    lanes: Collection[str],
    requests: Mapping[str, Compact | Navigate] | None = None,
) -> list[Step]:
    """The story of a path of the lane that has, or had, these names, root first. ``requests`` are those of operations
    that are no runs.

    Results that an accept gave to a batch left open belong to no chapter.
    """
    mine = sorted((each for each in results.values() if each.lane in lanes), key=lambda each: each.started_at)
    by_input = {id: result for result in mine if result.retry_of is None for id in result.inputs}
    retries = [result for result in mine if result.retry_of is not None]
    by_summary = {each.summary: each for each in mine if each.summary is not None}
    story: list[Step] = []
    chapter: Chapter | None = None
    aside: Aside | None = None
    answer = ""
    for entry, body in _located(path):
        if entry.id in by_input:
            if chapter is None or chapter.result is not by_input[entry.id]:
                chapter = Chapter(by_input[entry.id])
                story.append(chapter)
                aside = None
            if isinstance(body, UserMessage):
                chapter.inputs.append(body)
                chapter.asked.append(body)
        elif entry.id in by_summary and isinstance(body, Compaction | BranchSummary):
            result = by_summary[entry.id]
            aside, chapter = Aside(result, (requests or {})[result.operation_id], body), None
            story.append(aside)
        elif aside is not None:
            aside.placed.append(plain(body))
        elif chapter is None:
            if not isinstance(body, ToolResultMessage) and is_kept(body):
                story.append(plain(body))
        elif isinstance(body, UserMessage) and chapter.turns and entry.id == correction_id(answer):
            chapter.turns[-1].correction = body
        elif isinstance(body, UserMessage) and is_follow_up(entry.id):
            chapter.follow_ups.append((len(chapter.turns), body))
        elif is_placed(body):
            if isinstance(body, Compaction) and any(
                at == len(chapter.turns) and each.error is not None and each.error.code == "context_overflow"
                for at, each in chapter.failed
            ):
                chapter.overflowed.add(len(chapter.turns))
            chapter.placed.append((len(chapter.turns), plain(body)))
        elif isinstance(body, AssistantMessage):
            if is_kept(body):
                chapter.turns.append(Turn(body))
                answer = entry.id
            else:
                chapter.failed.append((len(chapter.turns), body))
        elif isinstance(body, ToolResultMessage) and chapter.turns:
            chapter.turns[-1].results.append((entry.id, body))
        while chapter is not None and entry.id == chapter.result.to_tip:
            chapter = _tried_again(chapter, retries)
            story += [] if chapter is None else [chapter]
    there = {entry.id for entry in path}
    for each in chapters(story):
        each.cut = each.result.to_tip not in there
    return story


def uncut(story: Sequence[Step]) -> list[Step]:
    """What comes before the first operation that the lane left before its end: all that can be played again."""
    for index, each in enumerate(story):
        if isinstance(each, Chapter) and each.cut:
            return list(story[:index])
    return list(story)


def summaries(story: Sequence[Step]) -> list[tuple[int, str]]:
    """The texts of all summaries, in order, each with the number of the operation that made it."""
    operations = [each for each in story if isinstance(each, Chapter | Aside)]
    made = [[each.body] if isinstance(each, Aside) else each.summaries for each in operations]
    return [(number, body.summary) for number, bodies in enumerate(made, start=1) for body in bodies]


def _tried_again(chapter: Chapter, retries: list[OperationResult]) -> Chapter | None:
    """The chapter of the retry that goes on where this one ended, if there is one; it is taken out of ``retries``."""
    for result in retries:
        if result.retry_of == chapter.result.operation_id and result.from_tip == chapter.result.to_tip:
            retries.remove(result)
            return Chapter(result, asked=chapter.asked, earlier=chapter.earlier + len(chapter.turns))
    return None


def chapters(story: Sequence[Step]) -> list[Chapter]:
    """The operations of a story."""
    return [each for each in story if isinstance(each, Chapter)]


def encoded(story: Sequence[Step]) -> bytes:
    """What is the same for two stories that tell the same: a key for what is known of it."""
    parts: list[object] = []
    for each in story:
        if isinstance(each, Chapter):
            turns = [[plain(turn.answer), *(body for _, body in turn.results), turn.correction] for turn in each.turns]
            ended = [each.result.status, each.result.code, each.result.retry_of]
            parts.append([*ended, each.inputs, turns, each.follow_ups, each.placed, sorted(each.overflowed)])
        elif isinstance(each, Aside):
            parts.append([each.request, each.body, each.placed])
        else:
            parts.append(each)
    return codec.encode(parts)
