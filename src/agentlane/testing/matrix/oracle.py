"""Invariant 13: whether an uninterrupted run with the same outcomes and interruptions makes the same conversation.

The story of a history is played again in a session of its own, by a model that gives the answers of the story and by
tools that give the outcomes of the story, interruptions among them. Nothing is stopped in there, but an operation that
was aborted, or that failed, ends at the same turn. If the library then builds another conversation, shows a model
something else, or asks it more often, the history is one that no uninterrupted run could have made.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentlane.agent import Agent
from agentlane.data.entries import BranchSummary, Compaction, Custom, Entry, EntryBody
from agentlane.data.messages import AssistantMessage, Message, ModelIdentity, TextPart, ToolResultMessage, UserMessage
from agentlane.data.operations import WHOLE_MAX
from agentlane.data.requests import Compact, Navigate, Prompt
from agentlane.data.results import Admitted, Settled, Waiting
from agentlane.errors import RequestConflict
from agentlane.hooks import BeforeFinish, Decline, FollowUp, SummaryText, hook
from agentlane.ids import call_index, correction_id
from agentlane.lane import AgentLane
from agentlane.machine.context import NOT_AVAILABLE
from agentlane.machine.outcomes import NOT_STARTED
from agentlane.model import Model, ModelError, ModelLimits, ModelRequest, StreamItem
from agentlane.opening import open_session
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.held import Held
from agentlane.testing.matrix.story import Aside, Chapter, Step, encoded, is_kept, kept, plain
from agentlane.tool import Tool, ToolResult
from agentlane.tool_context import ToolContext


@dataclass
class Verdict:
    """What an uninterrupted run made of a story.

    ``complaints`` is empty if it is the same. ``ran`` are the calls whose tool was run, by the number of the chapter,
    of the turn in it and of the call in that; ``shown`` what the model was shown, by chapter and turn; ``asked`` is the
    same by chapter, in order; ``summarized`` what it was shown to be summarized, by what it made of it.
    """

    complaints: list[str] = field(default_factory=list)
    ran: set[tuple[int, int, int]] = field(default_factory=set)
    shown: dict[tuple[int, int], list[Message]] = field(default_factory=dict)
    asked: dict[int, list[list[Message]]] = field(default_factory=dict)
    summarized: dict[str, list[list[Message]]] = field(default_factory=dict)


class Oracle:
    """Judges stories, and what processes found, each once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Verdict] = {}
        self._sound: dict[Hashable, Sequence[str]] = {}

    async def sound(self, held: Held, content: Hashable, *, hooked: bool) -> Sequence[str]:
        """What is wrong with a session by its invariants; ``content`` is all that it holds.

        ``hooked``: there are hooks for which outcomes wait.
        """
        key = (content, held.stats(), hooked)
        if key not in self._sound:
            self._sound[key] = await check_invariants(held, held=hooked)
        return self._sound[key]

    async def judge(
        self, story: Sequence[Step], agent: Agent[Any, Any], terminates: Mapping[str, bool], *, lane: str
    ) -> Verdict:
        """Play ``story`` again with the declarations of ``agent``; ``terminates`` says which calls wished to end it."""
        ends = [terminates.get(id, False) for id in _call_ids(story)]
        key = lane.encode() + bytes(ends) + encoded(story)
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = await _play(story, agent, terminates, lane)
        return verdict


def _call_ids(story: Sequence[Step]) -> list[str]:
    return [id for each in story if isinstance(each, Chapter) for turn in each.turns for id, _ in turn.results]


async def _play(
    story: Sequence[Step], agent: Agent[Any, Any], terminates: Mapping[str, bool], lane_name: str
) -> Verdict:
    verdict = Verdict()
    player = _Player(verdict, terminates)
    clock = ManualClock()
    store = MemoryStore(clock=clock, ids=CountingIds(series=1_000))
    await store.create("oracle")
    session = await open_session(store, session_id="oracle", clock=clock, ids=CountingIds(series=1), seed=0)
    try:
        lane = await session.lane(_own(lane_name), player.agent(agent, summaries=_may_summarize(story, agent)))
        number = -1
        for each in story:
            if isinstance(each, Aside):
                await player.play_aside(lane, each)
                continue
            if not isinstance(each, Chapter):
                await _append(lane, each)
                continue
            number += 1
            await player.play(lane, number, each)
        path = _without_late_corrections(await lane.entries(newest_first=False), story)
        got, (wanted, given_up) = kept(path), _bodies(story)
    finally:
        await session.close()
        await store.close()
    got = [each for index, each in enumerate(got) if not _given_by_accept(got, index)]
    for index in range(max(len(got), len(wanted))):
        one = got[index] if index < len(got) else None
        other = wanted[index] if index < len(wanted) else None
        if one != other and not (index in given_up and isinstance(one, ToolResultMessage) and one.is_error):
            verdict.complaints.append(f"I13: entry {index} is {other!r}, and an uninterrupted run makes {one!r}")
            break
    return verdict


def _may_summarize(story: Sequence[Step], agent: Agent[Any, Any]) -> bool:
    """Whether the library may want a summary somewhere in it."""
    chapters = [each for each in story if isinstance(each, Chapter)]
    long = any(body.error and body.error.code == "context_overflow" for each in chapters for _, body in each.failed)
    windows = any(model.limits.context_tokens is not None for model in agent.models.values())
    return long or windows or any(isinstance(each, Aside) for each in story)


def _own(name: str) -> str:
    """The oracle's name of a lane or an operation: those of a call's run are nobody's to give."""
    return f"told:{name}"


def _without_late_corrections(path: Sequence[Entry], story: Sequence[Step]) -> list[Entry]:
    """The path without what was said of an answer behind which the story has an abort: it ends there, as asked."""
    ended = [each for each in story if isinstance(each, Chapter) and each.result.status == "aborted"]
    last = [each.turns[-1].answer.text for each in ended if each.turns and each.turns[-1].correction is None]
    found: list[Entry] = []
    for index in reversed(range(len(path))):  # from the end: an answer before the last one may say the same
        entry, before = path[index], path[index - 1] if index else None
        behind = next((each.body for each in reversed(found) if is_kept(each.body)), None)
        said = before.body.text if before is not None and isinstance(before.body, AssistantMessage) else None
        corrects = before is not None and entry.id == correction_id(before.id)
        if corrects and not isinstance(behind, AssistantMessage) and last and said == last[-1]:
            last.pop()
        else:
            found.append(entry)
    return found[::-1]


def _ends_by_itself(outcome: Settled | Waiting) -> bool:
    """Whether nothing but its last answer, or a limit, ended the operation: an abort may have come just before."""
    result = outcome.result if isinstance(outcome, Settled) else None
    return result is not None and (result.status == "completed" or result.code in ("limit_reached", "invalid_output"))


def _given_by_accept(bodies: Sequence[object], index: int) -> bool:
    """Whether it is a result for a call that an earlier operation left open."""
    body = bodies[index]
    return isinstance(body, ToolResultMessage) and body.text == NOT_AVAILABLE


def _bodies(story: Sequence[Step]) -> tuple[list[object], set[int]]:
    """The entries of a story, and which of them an abort left not started: without it, such a call may be refused."""
    found: list[object] = []
    given_up: set[int] = set()
    for each in story:
        if isinstance(each, Aside):
            found += [each.body, *each.placed]
            continue
        if not isinstance(each, Chapter):
            found.append(each)
            continue
        bodies = each.whole()
        for at, body in enumerate(bodies):
            if each.result.status == "aborted" and isinstance(body, ToolResultMessage) and body.text == NOT_STARTED:
                given_up.add(len(found) + at)
        found += bodies
    return found, given_up


async def _append(lane: AgentLane[Any, Any], body: Any) -> None:
    if isinstance(body, Custom):
        await lane.append_custom(body.type, body.data)
    else:
        await lane.append_message(body)


class _Player:
    """The world of the second performance: the story is the script, for the model and for every tool."""

    def __init__(self, verdict: Verdict, terminates: Mapping[str, bool]) -> None:
        self._verdict = verdict
        self._terminates = terminates
        self._lane: AgentLane[Any, Any] | None = None
        self._chapter: Chapter | None = None
        self._number = 0
        self._turn = -1
        self._overflowed = set[int]()
        self._later: list[tuple[str, ModelIdentity | None, list[EntryBody]]] = []
        """Summaries that the story has from here on, and what it has behind each of them."""
        self._now = ""

    def agent(self, agent: Agent[Any, Any], *, summaries: bool) -> Agent[Any, Any]:
        """The declarations of ``agent`` with the model and the outcomes of the story."""
        played = copy.copy(agent)
        played.models = {identity: _PlayedModel(model, self) for identity, model in agent.models.items()}
        played.model = played.models[agent.model.identity]
        played.hooks = ()  # what they said is in the story; only follow-ups have to be said again
        if any(each.point == "before_finish" for each in agent.hooks):
            played.hooks = (hook("before_finish", self.follow_ups),)
        if summaries:
            played.hooks += (hook("before_compaction", self.summary),)
        played.tools = {name: _PlayedTool(each, self) for name, each in agent.tools.items()}
        return played

    async def play(self, lane: AgentLane[Any, Any], number: int, chapter: Chapter) -> None:
        """One operation, from accept to its end."""
        self._lane, self._chapter, self._number, self._turn = lane, chapter, number, -1
        self._overflowed = set(chapter.overflowed)
        try:
            admitted = await self._admit(lane, chapter)
        except RequestConflict:  # without interruption the one before completed: an abort came behind its last answer
            if chapter.turns:
                self._verdict.complaints.append(f"I13: {chapter.result.operation_id} had nothing to try again")
            return
        await self._queue(0)
        outcome = await lane.drive(admitted.operation_id, wait_for_retry=False)
        status, wanted = outcome.result.status if isinstance(outcome, Settled) else "waiting", chapter.result.status
        if status != wanted and not (wanted == "aborted" and _ends_by_itself(outcome)):
            self._verdict.complaints.append(
                f"I13: operation {chapter.result.operation_id} is {wanted}, and ends {status} without interruption"
            )
            if not isinstance(outcome, Settled):
                await lane.abort()

    async def _admit(self, lane: AgentLane[Any, Any], chapter: Chapter) -> Admitted:
        id = _own(chapter.result.operation_id)
        if chapter.result.retry_of is not None:
            return await lane.retry(_own(chapter.result.retry_of), operation_id=id)
        return await lane.accept(Prompt(messages=tuple(chapter.inputs)), operation_id=id)

    async def answer(self, request: ModelRequest) -> AssistantMessage:
        """The next answer of the chapter; where it has none, the end that the operation had."""
        lane, chapter = self._lane, self._chapter
        if request.purpose == "summary":
            return self._summarized(request)
        assert lane is not None and chapter is not None
        shown = [_shown(each) for each in request.messages]
        self._verdict.asked.setdefault(self._number, []).append(shown)
        if self._turn + 1 in self._overflowed:
            self._overflowed.remove(self._turn + 1)
            raise ModelError("the story has a summary here", kind="context_overflow")
        self._turn += 1
        self._verdict.shown[self._number, self._turn] = shown
        if self._turn < len(chapter.turns):
            await self._queue(self._turn + 1)
            return chapter.turns[self._turn].answer
        if chapter.result.status == "aborted":
            await lane.request_abort(_own(chapter.result.operation_id))
            await asyncio.get_running_loop().create_future()
        if chapter.result.status == "completed":
            self._verdict.complaints.append(
                f"I13: operation {chapter.result.operation_id} ends after {len(chapter.turns)} answers, and an "
                "uninterrupted run would ask once more"
            )
        raise ModelError("the story has no more answers", kind=chapter.result.code or "model_error")

    def follow_ups(self, info: BeforeFinish[Any]) -> list[FollowUp]:
        """What the story says that hooks put behind the answer."""
        chapter = self._chapter
        assert chapter is not None
        return [body for before, body in chapter.follow_ups if before == self._turn + 1]

    async def play_aside(self, lane: AgentLane[Any, Any], aside: Aside) -> None:
        """A compaction that somebody asked for, or a navigation: from a path that the story does not know."""
        self._lane, self._chapter, body = lane, None, aside.body
        self._later = [(body.summary, body.model, aside.placed if isinstance(body, Compaction) else [])]
        request: Compact | Navigate = aside.request
        if isinstance(request, Navigate):
            there = lane.tip()
            await lane.append_message(UserMessage(content=(TextPart(text="elsewhere"),)))
            request = Navigate(there, None, True, request.instructions)
        result = await lane.run(request, operation_id=_own(aside.result.operation_id))
        if result.status != aside.result.status:
            self._verdict.complaints.append(
                f"I13: operation {aside.result.operation_id} is {aside.result.status}, and ends {result.status} "
                "without interruption"
            )
        if isinstance(body, BranchSummary):
            for each in aside.placed:
                await _append(lane, each)

    async def summary(self, info: Any) -> Decline | SummaryText | None:
        """Whether the story has a summary here, and whether a model made it."""
        if not self._later:
            return Decline("the story has no summary here")
        self._now, model, behind = self._later.pop(0)
        await self._queued(behind)
        return SummaryText(self._now) if model is None else None

    def _summarized(self, request: ModelRequest) -> AssistantMessage:
        self._verdict.summarized.setdefault(self._now, []).append([_shown(each) for each in request.messages])
        return AssistantMessage(content=(TextPart(text=self._now),), stop_reason="stop")

    async def _queue(self, turns: int) -> None:
        """Queue what the story has placed after so many answers: writes, then what the model is asked again for."""
        chapter = self._chapter
        assert chapter is not None
        bodies: list[EntryBody] = []
        first = bodies
        self._later = []
        for each in chapter.placed_at(turns):
            if isinstance(each, Compaction):
                bodies = []
                self._later.append((each.summary, each.model, bodies))
            else:
                bodies.append(each)
        await self._queued(first, turns)

    async def _queued(self, bodies: Sequence[EntryBody], turns: int = 0) -> None:
        lane, chapter = self._lane, self._chapter
        assert lane is not None
        bodies = list(bodies)
        input: list[UserMessage] = []
        if chapter is not None and (chapter.result.status != "completed" or turns < len(chapter.turns)):
            while bodies and isinstance(bodies[-1], UserMessage):
                input.insert(0, bodies[-1])
                bodies.pop()
        for body in bodies:
            await _append(lane, body)
        if input:
            await lane.steer(Prompt(messages=tuple(input)))

    def outcome(self, context: ToolContext[Any]) -> ToolResult:
        """What the story says that the call gave."""
        chapter, index = self._chapter, call_index(context.turn_id, context.call_id)
        assert chapter is not None and index is not None
        self._verdict.ran.add((self._number, self._turn, index))
        results = chapter.turns[self._turn].results
        if index >= len(results):
            return ToolResult(content="the story has no result here", is_error=True)
        id, body = results[index]
        return ToolResult(
            content=body.content,
            details=body.details,
            is_error=body.is_error,
            terminate=self._terminates.get(id, False),
        )


def shown(messages: Sequence[Message]) -> list[Message]:
    """What a model was shown, without what names entries of this one session."""
    return [_shown(each) for each in messages]


def _shown(message: Message) -> Message:
    body = plain(message)
    assert not isinstance(body, Custom | Compaction | BranchSummary)
    return body


class _PlayedModel:
    def __init__(self, inner: Model, player: _Player) -> None:
        self._inner = inner
        self._player = player

    @property
    def identity(self) -> ModelIdentity:
        return self._inner.identity

    @property
    def limits(self) -> ModelLimits:
        return self._inner.limits

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        yield await self._player.answer(request)


class _PlayedTool(Tool[Any, Any]):
    def __init__(self, inner: Tool[Any, Any], player: _Player) -> None:
        self.__dict__.update(inner.__dict__)
        self.options = type(inner.options)(
            replay=inner.options.replay, parallel=inner.options.parallel, max_result_bytes=WHOLE_MAX
        )
        self.is_async = True
        self._player = player

    async def call(self, checked: Any, context: ToolContext[Any]) -> ToolResult:
        return self._player.outcome(context)
