"""Places for the check of models: one whose answers are played in order, and models that each break a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from agentlane import (
    AssistantMessage,
    ErrorInfo,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartEnd,
    PartStart,
    StreamItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UsageSeen,
)
from agentlane.testing import (
    ModelPlace,
    ProviderAnswer,
    answer,
    cut,
    fail,
    half,
    hang,
)
from agentlane.testing.playback import PlayedModel
from agentlane.testing.script import Answer

PROVIDER = ModelIdentity(provider="played", name="model")


class Played(PlayedModel):
    """Gives answers in order, one to each request."""

    def __init__(self, answers: Sequence[ProviderAnswer], *, deltas: int | None = 3) -> None:
        super().__init__(identity=PROVIDER, deltas=deltas, check_pairs=False)
        self._answers = [scripted(each) for each in answers]
        self.sent: list[str] = []

    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        own = [m if isinstance(m, AssistantMessage) and m.model == PROVIDER else _unsigned(m) for m in request.messages]
        self.sent.append(msgspec.json.encode(replace(request, messages=own)).decode())
        return self._answers.pop(0), str(len(self.sent))


def scripted(said: ProviderAnswer) -> Answer:
    """What the provider says, as the script of a test says it."""
    parts: list[Any] = list(said.parts)
    if said.half:
        parts[-1] = half(parts[-1])
    match said.ends:
        case "cut":
            return cut(parts)
        case "hang":
            return hang(parts)
        case "overloaded":
            return fail("overloaded", retryable=True, retry_after_ms=said.retry_after_ms, parts=parts, usage=said.usage)
        case _:
            return answer(parts, stop_reason=said.ends, usage=said.usage)


Wrap = Callable[[Played], Any]


def place_of(wrap: Wrap = lambda model: model) -> Any:
    """A place with played answers, whose model is wrapped."""

    @asynccontextmanager
    async def place(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
        played = Played(answers)
        yield ModelPlace(model=wrap(played), sent=lambda: played.sent)

    return place


class Wrapped:
    """A model that does as the one inside; a subclass breaks a rule."""

    def __init__(self, inside: Played) -> None:
        self.inside = inside

    @property
    def identity(self) -> ModelIdentity:
        return self.inside.identity

    @property
    def limits(self) -> ModelLimits:
        return self.inside.limits

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return self.broken(request)

    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in self.inside.stream(request):
            for changed in self.change(item):
                yield changed

    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [item]


class SettlesTwice(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [item, item] if isinstance(item, AssistantMessage) else [item]


class NeverSettles(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [] if isinstance(item, AssistantMessage) else [item]


class ShowsBehindTheEnd(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [item, UsageSeen(usage=Usage())] if isinstance(item, AssistantMessage) else [item]


class ShowsWithoutStart(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [] if isinstance(item, PartStart) else [item]


class ShowsWithoutEnd(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [] if isinstance(item, PartEnd) else [item]


class ShowsTwice(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [item, item] if isinstance(item, PartDelta) else [item]


class ShowsAnotherPart(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        if isinstance(item, PartEnd) and isinstance(item.part, TextPart):
            return [replace(item, part=TextPart(text=item.part.text.strip() + "."))]
        return [item]


class NumbersEveryPartAlike(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [replace(item, index=0)] if isinstance(item, PartStart | PartDelta | PartEnd) else [item]


class Changes(Wrapped):
    """Changes parts, in their end and in the message alike."""

    def part(self, part: Any) -> Any:
        return part

    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        if isinstance(item, PartEnd):
            return [replace(item, part=self.part(item.part))]
        if isinstance(item, AssistantMessage):
            return [replace(item, content=tuple(map(self.part, item.content)))]
        return [item]


class DropsSignatures(Changes):
    def part(self, part: Any) -> Any:
        return replace(part, signature=None) if isinstance(part, ThinkingPart) and not part.redacted else part


class CutsSignatures(Changes):
    def part(self, part: Any) -> Any:
        return (
            replace(part, signature=part.signature[:-1]) if isinstance(part, ThinkingPart) and part.signature else part
        )


class ForgetsRedacted(Changes):
    def part(self, part: Any) -> Any:
        return replace(part, redacted=False) if isinstance(part, ThinkingPart) else part


class MendsArguments(Changes):
    def part(self, part: Any) -> Any:
        if isinstance(part, ToolCallPart) and part.arguments is None:
            return replace(part, arguments={}, arguments_text=None)
        return part


class EscapesText(Changes):
    def part(self, part: Any) -> Any:
        return TextPart(text=ascii(part.text)[1:-1]) if isinstance(part, TextPart) else part

    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [] if isinstance(item, PartDelta) else super().change(item)


class DropsCallsThatShareAnId(Wrapped):
    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        if isinstance(item, AssistantMessage):
            kept = {call.id: call for call in item.calls}
            others = [part for part in item.content if not isinstance(part, ToolCallPart)]
            return [replace(item, content=(*others, *kept.values()))]
        return [item]


class Message(Wrapped):
    """Changes the settled message."""

    def of(self, message: AssistantMessage) -> AssistantMessage:
        return message

    def change(self, item: StreamItem) -> Sequence[StreamItem]:
        return [self.of(item)] if isinstance(item, AssistantMessage) else [item]


class AlwaysStops(Message):
    def of(self, message: AssistantMessage) -> AssistantMessage:
        return replace(message, stop_reason="stop")


class CountsZero(Message):
    def of(self, message: AssistantMessage) -> AssistantMessage:
        return replace(message, usage=message.usage or Usage(input_tokens=0, output_tokens=0))


class ForgetsCounts(Message):
    def of(self, message: AssistantMessage) -> AssistantMessage:
        return replace(message, usage=None)


class CannotBeStored(Message):
    def of(self, message: AssistantMessage) -> AssistantMessage:
        return replace(message, stop_reason="end_turn")


class Catches(Wrapped):
    """Makes something else of what goes wrong."""

    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        raise error or AssertionError

    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        shown: list[StreamItem] = []
        try:
            async for item in self.inside.stream(request):
                shown.append(item)
                yield item
        except Exception as error:
            yield self.caught(error, shown)
            return
        if not isinstance(shown[-1] if shown else None, AssistantMessage):
            yield self.caught(None, shown)


class TakesACutForAnEnd(Catches):
    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        if error is not None:
            raise error
        parts = [item.part for item in shown if isinstance(item, PartEnd)]
        return AssistantMessage(content=tuple(parts), stop_reason="stop")


class TakesAnEmptyStreamForAnEnd(Catches):
    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        if error is not None or shown:
            raise error or ModelError("cut", retryable=True)
        return AssistantMessage(content=(), stop_reason="stop")


class RaisesItsOwn(Catches):
    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        raise RuntimeError("an error of the SDK") from error


class FailsForGood(Catches):
    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        return AssistantMessage(content=(), stop_reason="error", error=ErrorInfo(code="model_error", message="x"))


class ForgetsTheWait(Catches):
    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        raise ModelError("overloaded", retryable=True)


class CompletesHalves(Catches):
    """What was half is said to be whole."""

    def caught(self, error: Exception | None, shown: list[StreamItem]) -> StreamItem:
        text = "".join(item.text for item in shown if isinstance(item, PartDelta))
        calls = any(isinstance(item, PartStart) and item.kind == "tool_call" for item in shown)
        part: Any = ToolCallPart(id="1", name="look", arguments={}) if calls else ThinkingPart(text=text, signature="s")
        info = ErrorInfo(code="stream_cut", message="cut", retryable=True)
        return AssistantMessage(content=(part,), stop_reason="error", error=info)


class ShowsNothingOfFailures(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        for item in [item async for item in self.inside.stream(request)]:
            yield item


class TriesAgain(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            async for item in self.inside.stream(request):
                yield item
        except ModelError:
            async for item in self.inside.stream(request):
                yield item


class SwallowsCancellation(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            async for item in self.inside.stream(request):
                yield item
        except asyncio.CancelledError:
            return


class AnswersACancellation(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        try:
            async for item in self.inside.stream(request):
                yield item
        except asyncio.CancelledError as cancelled:
            raise ModelError("it was cancelled") from cancelled


class SendsAtOnce(Wrapped):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.inside.sent.append("early")
        return self.broken(request)


class ChangesTheRequest(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        for tool in request.tools:
            tool.parameters["additionalProperties"] = False
        async for item in self.inside.stream(request):
            yield item


class SendsNoSignature(Wrapped):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return self.inside.stream(replace(request, messages=tuple(map(_unsigned, request.messages))))


class Leaves(Wrapped):
    """Leaves something of the request out."""

    def left(self, request: ModelRequest) -> ModelRequest:
        raise NotImplementedError

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return self.inside.stream(self.left(request))


class SendsNoResults(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=[m for m in request.messages if not isinstance(m, ToolResultMessage)])


class SendsNoCalls(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        texts = (
            replace(m, content=tuple(p for p in m.content if isinstance(p, TextPart)))
            if isinstance(m, AssistantMessage)
            else m
            for m in request.messages
        )
        return replace(request, messages=list(texts))


class SendsNoTools(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, tools=())


class SendsNoInstructions(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, instructions="")


class SendsNoBound(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, max_output_tokens=None)


class SendsAnEmptySummaryRequest(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=()) if request.purpose == "summary" else request


class NeedsTools(Wrapped):
    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        if not request.tools:
            raise ModelError("tools: at least one is required", kind="invalid_request")
        async for item in self.inside.stream(request):
            yield item


class SendsNoSettings(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, settings={})


class SendsTheLastMessageOnly(Leaves):
    def left(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=request.messages[-1:])


class SendsEverySignature(Wrapped):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        own = [replace(m, model=PROVIDER) if isinstance(m, AssistantMessage) else m for m in request.messages]
        return self.inside.stream(replace(request, messages=own))


class OneAtATime(Wrapped):
    """Keeps the answer that is streaming in the model itself."""

    shown: list[StreamItem]

    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.shown = []
        async for item in self.inside.stream(request):
            self.shown.append(item)
            await asyncio.sleep(0)
            yield self.shown[-1]


class SharesItsItems(Wrapped):
    """What any stream has read waits in one place for whichever asks next."""

    def __init__(self, inside: Played) -> None:
        super().__init__(inside)
        self.ready: list[StreamItem] = []

    async def broken(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in self.inside.stream(request):
            self.ready.append(item)
            if len(self.ready) > 1 or isinstance(item, AssistantMessage):
                while self.ready:
                    yield self.ready.pop(0)


class IgnoresItsClosing:
    """A stream that goes on when it is closed."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._inside)

    async def aclose(self) -> None:
        pass


class CannotBeClosed(Wrapped):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return IgnoresItsClosing(self.inside.stream(request))


class SaysNothingOfItself(Wrapped):
    @property
    def identity(self) -> Any:
        return "played:model"


BROKEN: dict[type[Wrapped], str] = {
    SettlesTwice: "M1",
    NeverSettles: "M1",
    ShowsBehindTheEnd: "M1",
    CannotBeStored: "M1",
    ShowsWithoutStart: "M2",
    ShowsWithoutEnd: "M2",
    ShowsTwice: "M2",
    ShowsAnotherPart: "M2",
    NumbersEveryPartAlike: "M2",
    EscapesText: "M3",
    MendsArguments: "M3",
    DropsCallsThatShareAnId: "M3",
    AlwaysStops: "M3",
    DropsSignatures: "M4",
    CutsSignatures: "M4",
    ForgetsRedacted: "M4",
    SendsNoSignature: "M4",
    SendsEverySignature: "M4",
    CountsZero: "M5",
    ForgetsCounts: "M5",
    RaisesItsOwn: "M6",
    FailsForGood: "M6",
    ForgetsTheWait: "M6",
    ShowsNothingOfFailures: "M6",
    TakesACutForAnEnd: "M7",
    TakesAnEmptyStreamForAnEnd: "M7",
    CompletesHalves: "M7",
    SwallowsCancellation: "M8",
    AnswersACancellation: "M8",
    CannotBeClosed: "M9",
    TriesAgain: "M10",
    SendsAtOnce: "M10",
    ChangesTheRequest: "M11",
    SendsNoResults: "M11",
    SendsNoCalls: "M11",
    SendsNoTools: "M11",
    SendsNoInstructions: "M11",
    SendsNoSettings: "M11",
    SendsTheLastMessageOnly: "M11",
    OneAtATime: "M12",
    SharesItsItems: "M12",
    SaysNothingOfItself: "M12",
    SendsNoBound: "M13",
    SendsAnEmptySummaryRequest: "M13",
    NeedsTools: "M13",
}
"""Models that each break a rule, and the rule."""


def _unsigned(message: Any) -> Any:
    if not isinstance(message, AssistantMessage):
        return message
    parts = [replace(p, signature=None) if isinstance(p, ThinkingPart) else p for p in message.content]
    return replace(message, content=tuple(parts))
