"""What is seen from outside of the processes that play a recording: what was shown, saved, begun and left open."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from agentlane import Clock, Operation
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    PartDelta,
    PartEnd,
    PartStart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UsageSeen,
)
from agentlane.data.usage import Usage
from agentlane.model import ModelLimits, ModelRequest, StreamItem
from agentlane.testing.places import place_in_turns
from agentlane.testing.recorded import RecordedModel
from agentlane.testing.summaries import Summaries
from tests.recorded.plan import CallPlace


class Attempt(NamedTuple):
    """One request by its place: user message (from 1), kept answer to it (from 0), attempt (from 1)."""

    turn: int
    answer: int
    attempt: int


class Witness:
    """Outlives the processes. It is told by the test's own model, tools and probe, and looks at what a death left."""

    def __init__(self) -> None:
        self.starts: Counter[CallPlace] = Counter()
        """How often the tool of each call was started."""
        self.ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """In which order the calls of each batch, by user message and answer, were let end."""
        self.lost: set[CallPlace] = set()
        """Calls of a tool that must not run again which a death found under way: begun, and without an outcome."""
        self.cut: dict[Attempt, bool] = {}
        """Requests that a death found under way, and whether an abort was committed by then."""
        self.requests: list[ModelRequest] = []
        """All that models were asked for, in order."""
        self.problems: list[str] = []
        self._shown: defaultdict[Attempt, list[StreamItem]] = defaultdict(list)
        self._saved: Counter[Attempt] = Counter()
        self._saves: Counter[Attempt] = Counter()
        self._streaming: Attempt | None = None
        self._saving: tuple[Attempt, int] | None = None
        self._savers: list[asyncio.Future[None]] = []

    # Streams.

    def streams(self, attempt: Attempt) -> None:
        self._streaming = attempt

    def shows(self, attempt: Attempt, item: StreamItem) -> None:
        if not isinstance(item, AssistantMessage):
            self._shown[attempt].append(item)

    def saving(self) -> None:
        """What was shown until now is handed to the store."""
        assert self._streaming is not None, "frames are saved while a stream goes on"
        self._saving = (self._streaming, len(self._shown[self._streaming]))

    def saved(self) -> None:
        """The store has what was handed to it last, if anything was."""
        if self._saving is None:
            return
        attempt, count = self._saving
        self._saving = None
        self._saved[attempt] = count
        self._saves[attempt] += 1
        for future in self._savers:
            if not future.done():
                future.set_result(None)

    async def all_saved(self) -> None:
        """Return once all that the present stream has shown is saved."""
        attempt = self._streaming
        assert attempt is not None
        while self._saved[attempt] < len(self._shown[attempt]):
            future = asyncio.get_running_loop().create_future()
            self._savers = [*(each for each in self._savers if not each.done()), future]
            await future

    @property
    def saves(self) -> int:
        """How many commits have saved something of the newest stream."""
        return 0 if self._streaming is None else self._saves[self._streaming]

    def saved_part(self, attempt: Attempt) -> tuple[tuple[AssistantPart, ...], Usage | None]:
        """The committed prefix of what the model showed at this attempt."""
        return _put_together(self._shown[attempt][: self._saved[attempt]])

    # Deaths.

    def buries(self) -> None:
        """The process is dead: what it was saving was not saved."""
        self._saving = None

    def looks_at(self, operation: Operation) -> None:
        """Take note of what the life before left of an operation."""
        turn, answer = turn_of(operation.operation_id), operation.turn - 1
        cancelled = operation.cancel_requested_at is not None
        if operation.at == "generating":
            attempt = Attempt(turn, answer, operation.attempt)
            if self.cut.setdefault(attempt, cancelled) != cancelled:
                self.problems.append(f"{attempt} was found under way before and after its abort")
        for index, call in enumerate(operation.calls):
            if call.status == "effect_pending" and call.policy == "never":
                self.lost.add(CallPlace(turn, answer, index))


class WatchedModel(RecordedModel):
    """The model of one process; the witness sees what it shows."""

    def __init__(
        self,
        conversation: Iterable[Message],
        witness: Witness,
        *,
        deltas: int,
        delta_ms: int,
        clock: Clock,
        limits: ModelLimits | None = None,
        summaries: Summaries | None = None,
    ) -> None:
        super().__init__(
            conversation, deltas=deltas, delta_ms=delta_ms, clock=clock, limits=limits, summaries=summaries
        )
        self._witness = witness

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self._witness.requests.append(request)
        if request.purpose == "summary":
            return super().stream(request)
        return self._watched(super().stream(request), attempt_of(request))

    async def _watched(self, stream: AsyncIterator[StreamItem], attempt: Attempt) -> AsyncIterator[StreamItem]:
        self._witness.streams(attempt)
        try:
            async for item in stream:
                self._witness.shows(attempt, item)
                yield item
        finally:
            await stream.aclose()  # type: ignore[attr-defined]


def operation_of(turn: int) -> str:
    """The id under which the prompt of a turn is accepted, in every process."""
    return f"turn-{turn}"


def turn_of(operation_id: str) -> int:
    return int(operation_id.removeprefix("turn-"))


def attempt_of(request: ModelRequest) -> Attempt:
    """The place of a request for an answer; what a summary in front of its messages stands for counts."""
    answers = place_in_turns(request.messages, None, request.stands_for).answers
    return Attempt(turn_of(request.operation_id), answers, request.attempt)


def _put_together(items: Sequence[StreamItem]) -> tuple[tuple[AssistantPart, ...], Usage | None]:
    """Parts as far as ``items`` show them: whole ones as they end, the last one perhaps by its text only."""
    started: dict[int, PartStart] = {}
    texts: defaultdict[int, str] = defaultdict(str)
    parts: dict[int, AssistantPart] = {}
    usage = None
    for item in items:
        match item:
            case PartStart():
                started[item.index] = item
            case PartDelta():
                texts[item.index] += item.text
            case PartEnd():
                parts[item.index] = item.part
            case UsageSeen():
                usage = item.usage
            case AssistantMessage():
                raise AssertionError("a settled answer is no part of what was shown before")
    for index, start in started.items():
        if index in parts:
            continue
        if start.kind == "tool_call":
            parts[index] = ToolCallPart(id=start.id, name=start.name, arguments_text=texts[index])
        elif start.kind == "thinking":
            parts[index] = ThinkingPart(text=texts[index])
        elif texts[index]:
            parts[index] = TextPart(text=texts[index])
    return tuple(parts[index] for index in sorted(parts)), usage
