"""What scripted and recorded models share: requests kept and checked, answers streamed, hanging and held streams."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from agentlane.clock import Clock
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    Frame,
    Message,
    ModelIdentity,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UsageSeen,
)
from agentlane.errors import InvalidDefinition
from agentlane.model import ModelLimits, ModelRequest, StreamItem, ToolDefinition
from agentlane.testing.pair import PairingError, check_pairing
from agentlane.testing.script import (
    Answer,
    Cuts,
    Half,
    Hangs,
    Raises,
    ScriptedCall,
    ScriptPart,
    Settles,
    arguments_text,
)


class ScriptExhausted(AssertionError):
    """A model was asked for an answer that its script or recording does not hold; the text says for which place."""


class PlayedModel(ABC):
    """A model whose answers are known beforehand; a subclass finds the answer to a request.

    ``requests`` holds every request received, in order, as it was when it came: later growth of the conversation does
    not change it. Each is checked by PAIR as it comes unless ``check_pairs`` is off: a breach is added to
    ``violations`` and raised as ``PairingError`` from the stream. A library that turns what a model raises into an
    error response hides that, so a test ends with ``require_no_violations()``.

    Nothing takes time unless ``delta_ms`` is given, which passes on ``clock`` before each delta. ``deltas`` is the
    number of characters of one; without it parts are shown whole. One object may serve many lanes and, one after
    another, many event loops; it is not for use from several threads.
    """

    def __init__(
        self,
        *,
        identity: ModelIdentity,
        limits: ModelLimits | None = None,
        deltas: int | None = None,
        delta_ms: int = 0,
        clock: Clock | None = None,
        check_pairs: bool = True,
    ) -> None:
        if deltas is not None and deltas < 0:
            raise InvalidDefinition(f"deltas={deltas}: a delta holds at least one character; None shows parts whole")
        if delta_ms and clock is None:
            raise InvalidDefinition("delta_ms= needs the clock= on which it passes")
        self.requests: list[ModelRequest] = []
        self.violations: list[str] = []
        self._identity = identity
        self._limits = limits or ModelLimits()
        self._deltas = deltas or None
        self._delta_ms = delta_ms
        self._clock = clock
        self._check_pairs = check_pairs
        self._snapshots = _Snapshots()
        self._hanging: list[_Stream] = []
        self._observers: list[asyncio.Future[None]] = []

    @property
    def identity(self) -> ModelIdentity:
        """Who the answers are from."""
        return self._identity

    @property
    def limits(self) -> ModelLimits:
        """What the model is said to take."""
        return self._limits

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Keep the request now; check it, find its answer and stream that as the result is iterated."""
        kept = self._snapshots.take(request)
        self.requests.append(kept)
        return self._play(kept, len(self.requests))

    async def hanging(self, *, lane: str | None = None, count: int = 1) -> None:
        """Return once ``count`` streams (of ``lane``, if named) hang or are held, with all before it taken."""
        while sum(lane in (None, stream.lane) for stream in self._hanging) < count:
            observer = asyncio.get_running_loop().create_future()
            self._observers.append(observer)
            try:
                await observer
            finally:
                self._observers.remove(observer)

    def release(self, *, lane: str | None = None) -> None:
        """Let the streams that are held now (of ``lane``, if named) end; ``hang()`` is never let go."""
        held = [stream for stream in self._hanging if stream.held and lane in (None, stream.lane)]
        if not held:
            raise RuntimeError("no stream is held; wait for `await model.hanging()` before release()")
        for stream in held:
            if not stream.wake.done():
                stream.wake.set_result(None)

    def require_no_violations(self) -> None:
        """Raise ``AssertionError`` with everything that was wrong with the requests so far, if anything was."""
        if self.violations:
            raise AssertionError("the model was asked wrongly:\n" + "\n".join(self.violations))

    @abstractmethod
    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        """The answer to ``request``, and a label unique to it for the ids of its calls.

        Raises ``ScriptExhausted`` when there is none.
        """

    async def _play(self, request: ModelRequest, number: int) -> AsyncIterator[StreamItem]:
        if self._check_pairs and (found := check_pairing(request)):
            self.violations += [f"request {number}: {violation}" for violation in found]
            raise PairingError(found)
        try:
            answer, label = self._find(request)
        except ScriptExhausted as missing:
            self.violations.append(f"request {number}: {missing}")
            raise
        parts = _with_ids(answer.parts, label)
        if answer.usage is not None and type(answer.ending) is not Settles:
            yield UsageSeen(usage=answer.usage)
        for frame in frames(parts, deltas=self._deltas):
            if self._delta_ms and self._clock is not None and type(frame) is PartDelta:
                await self._clock.sleep_until(self._clock.now_ms() + self._delta_ms)
            yield frame
        if answer.held or type(answer.ending) is Hangs:
            await self._wait(request.lane, held=answer.held)
        match answer.ending:
            case Settles() as ending:
                yield self._settled(answer, ending, parts)
            case Raises(error=error):
                raise copy.copy(error)
            case Cuts() | Hangs():
                return
            case _ as never:
                assert_never(never)

    def _settled(self, answer: Answer, ending: Settles, parts: Sequence[AssistantPart | Half]) -> AssistantMessage:
        content = tuple(_whole(part) for part in parts)
        calls = any(type(part) is ToolCallPart for part in content)
        return AssistantMessage(
            content=content,
            stop_reason=ending.stop_reason or ("tool_calls" if calls else "stop"),
            model=answer.model or self._identity,
            usage=answer.usage,
            error=ending.error,
        )

    async def _wait(self, lane: str, *, held: bool) -> None:
        stream = _Stream(lane, held=held)
        self._hanging.append(stream)
        for observer in self._observers:
            if not observer.done():
                observer.set_result(None)
        try:
            await stream.wake
        finally:
            self._hanging.remove(stream)


def frames(parts: Sequence[AssistantPart | Half], *, deltas: int | None) -> Iterator[Frame]:
    """The frames that show ``parts``, in deltas of that many characters or whole; a half part has no end.

    The opaque part of a provider has no start and no deltas, it is only shown whole.
    """
    for index, part in enumerate(parts):
        whole = _whole(part)
        text = ""
        match whole:
            case TextPart():
                text = whole.text
                yield PartStart(index=index, kind="text")
            case ThinkingPart():
                text = whole.text
                yield PartStart(index=index, kind="thinking")
            case ToolCallPart():
                text = _argument_text(whole)
                yield PartStart(index=index, kind="tool_call", id=whole.id, name=whole.name)
            case ProviderPart():
                pass
            case _ as never:
                assert_never(never)
        if isinstance(part, Half) and text and not deltas:
            yield PartDelta(index=index, text=text)
        elif deltas:
            for start in range(0, len(text), deltas):
                yield PartDelta(index=index, text=text[start : start + deltas])
        if not isinstance(part, Half):
            yield PartEnd(index=index, part=whole)


class _Stream:
    """One stream that hangs or is held."""

    def __init__(self, lane: str, *, held: bool) -> None:
        self.lane = lane
        self.held = held
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Snapshots:
    """Copies of requests; what did not change since the request before is copied once."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Message, Message]] = {}  # by identity; the original is held, so that it stays
        self._tools: dict[str, ToolDefinition] = {}

    def take(self, request: ModelRequest) -> ModelRequest:
        originals = tuple(request.messages)
        copies = {id(message): (message, self._copy(message)) for message in originals}
        self._copies = copies
        return ModelRequest(
            instructions=request.instructions,
            messages=tuple(copies[id(message)][1] for message in originals),
            tools=tuple(map(self._tool, request.tools)),
            settings=copy.deepcopy(dict(request.settings)),
            session_id=request.session_id,
            lane=request.lane,
            operation_id=request.operation_id,
            attempt=request.attempt,
            output=copy.deepcopy(request.output),
            purpose=request.purpose,
            max_output_tokens=request.max_output_tokens,
            stands_for=copy.deepcopy(request.stands_for),
        )

    def _tool(self, tool: ToolDefinition) -> ToolDefinition:
        """A copy of its own; the one of the request before unless the tool has changed since."""
        known = self._tools.get(tool.name)
        if known is None or known != tool:
            known = self._tools[tool.name] = copy.deepcopy(tool)
        return known

    def _copy(self, message: Message) -> Message:
        known = self._copies.get(id(message))
        if known is not None and known[1] == message:
            return known[1]
        return _copied(message)


def _copied(message: Message) -> Message:
    """The message with a copy of all that can be changed in place: messages are frozen, JSON data in them is not."""
    if isinstance(message, ToolResultMessage):
        return message if message.details is None else replace(message, details=_json_copied(message.details))
    if isinstance(message, AssistantMessage) and any(
        isinstance(p, ToolCallPart | ProviderPart) for p in message.content
    ):
        return replace(message, content=tuple(map(_part_copied, message.content)))
    return message


def _part_copied(part: AssistantPart) -> AssistantPart:
    match part:
        case ToolCallPart():
            return replace(part, arguments=_json_copied(part.arguments))
        case ProviderPart():
            return replace(part, data=_json_copied(part.data))
        case _:
            return part


def _json_copied(value: Any) -> Any:
    """A copy of JSON data, by far sooner made than by ``deepcopy``, which is for what should not be in there."""
    kind = type(value)
    if kind is dict:
        return {key: _json_copied(inner) for key, inner in value.items()}
    if kind is list:
        return [_json_copied(inner) for inner in value]
    return value if kind in _UNCHANGEABLE else copy.deepcopy(value)


_UNCHANGEABLE = (str, int, float, bool, type(None))


def _with_ids(parts: Sequence[ScriptPart], label: str) -> list[AssistantPart | Half]:
    """The parts with each scripted call as a call of the library: its id names its place in the script."""

    def library_call(part: ScriptedCall, index: int, *, whole: bool) -> ToolCallPart:
        arguments: dict[str, Any] | None = copy.deepcopy(part.arguments) if whole else None
        return ToolCallPart(
            id=f"call_{label}_{index + 1}",
            name=part.name,
            arguments=arguments,
            arguments_text=part.text if arguments is None else None,
        )

    given: list[AssistantPart | Half] = []
    for index, part in enumerate(parts):
        match part:
            case ScriptedCall():
                given.append(library_call(part, index, whole=True))
            case Half(part=ScriptedCall() as inner):
                given.append(Half(part=library_call(inner, index, whole=False)))
            case ToolCallPart() | ProviderPart():
                given.append(_part_copied(part))
            case _:
                given.append(part)
    return given


def _whole(part: AssistantPart | Half) -> AssistantPart:
    if not isinstance(part, Half):
        return part
    assert not isinstance(part.part, ScriptedCall), "ids are given before anything is shown"
    return part.part


def _argument_text(part: ToolCallPart) -> str:
    return part.arguments_text if part.arguments_text is not None else arguments_text(part.arguments or {})
