"""What adapters share of a streaming answer: its parts as frames and as a message, and the stream that yields them.

A provider's stream is a subclass of ``AnswerStream``: it opens a response, and turns each event into calls of its
``AnswerParts``. Nothing here is an async generator: one that is left half way is closed by the event loop, at a time of
its choosing; these streams close their response in ``aclose``, which the library always calls.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypeAlias

from msgspec.structs import replace

from agentlane import (
    AssistantMessage,
    ErrorInfo,
    ImagePart,
    ModelError,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    StreamItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
    UsageSeen,
)
from agentlane.models.http_errors import cut_stream, error_of, hidden, without_secrets

AssistantPart: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ProviderPart
Frame: TypeAlias = PartStart | PartDelta | PartEnd | UsageSeen
PartKind: TypeAlias = Literal["text", "thinking", "tool_call"]

IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
COUNT_MAX = 2**63 - 1
DRAIN_S = 0.25
"""How long the rest of an answer that has ended is read, so that its connection can be used again."""


class AnswerParts:
    """The parts of one answer by the provider's own keys, in the order in which they began.

    Every method that shows something adds a frame to ``frames``, from where the stream takes it.
    """

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.usage: Usage | None = None
        self._open: dict[object, _OpenPart] = {}
        self._parts: list[AssistantPart | None] = []

    def start(self, key: object, kind: PartKind, *, id: str = "", name: str = "") -> None:
        """A part begins, unless one with that key has begun."""
        if key not in self._open:
            self._open[key] = _OpenPart(len(self._parts), kind, id, name)
            self._parts.append(None)
            self.frames.append(PartStart(index=self._open[key].index, kind=kind, id=id, name=name))

    def hold(self, key: object) -> None:
        """Keep a place for a part of the provider's own, which is shown when it is whole."""
        self._open[key] = _OpenPart(len(self._parts), None, "", "")
        self._parts.append(None)

    def has(self, key: object) -> bool:
        """Whether a part with that key has begun."""
        return key in self._open

    def add(self, key: object, text: str) -> None:
        """More text of a part that has begun."""
        if text:
            part = self._open[key]
            part.texts.append(text)
            self.frames.append(PartDelta(index=part.index, text=text))

    def text(self, key: object) -> str:
        """What has come of a part's text."""
        part = self._open.get(key)
        return "" if part is None else "".join(part.texts)

    def ends_with(self, key: object, end: str) -> bool:
        """Whether what came last of a part's text ends so; unlike ``text`` it costs the same however much has come."""
        part = self._open.get(key)
        return part is not None and bool(part.texts) and part.texts[-1].rstrip().endswith(end)

    def end(self, key: object, part: AssistantPart) -> None:
        """A part that has begun is whole."""
        index = self._open[key].index
        self._parts[index] = part
        self.frames.append(PartEnd(index=index, part=part))

    def whole(self, part: AssistantPart) -> None:
        """A part that came in one piece."""
        self._parts.append(part)
        self.frames.append(PartEnd(index=len(self._parts) - 1, part=part))

    def see(self, usage: Usage) -> None:
        """What is known of the usage by now."""
        if usage != self.usage:
            self.usage = usage
            self.frames.append(UsageSeen(usage=usage))

    @property
    def content(self) -> tuple[AssistantPart, ...]:
        """The parts that hold something; those that never ended as far as they came, half a call without arguments."""
        made = {part.index: part for part in self._open.values()}
        parts: list[AssistantPart] = []
        for index, whole in enumerate(self._parts):
            part = whole if whole is not None else made[index].as_far_as_it_came()
            if part is not None and not _is_empty(part):
                parts.append(part)
        return tuple(parts)


class AnswerStream(ABC, AsyncIterator[StreamItem]):
    """One request and its answer: frames, then the settled message; ``ModelError`` for what goes wrong on the way.

    A subclass gives ``_send``, ``_next`` and ``_take``. What the SDK raises is translated here, once.
    """

    def __init__(self) -> None:
        self.parts = AnswerParts()
        self._settled: AssistantMessage | None = None
        self._begun = False
        self._opened = False
        self._done = False

    @abstractmethod
    async def _send(self) -> None:
        """Send the request, and return when the answer begins."""

    @abstractmethod
    async def _next(self) -> Any:
        """The next event of the answer; raises ``StopAsyncIteration`` at its end."""

    @abstractmethod
    def _take(self, event: Any) -> AssistantMessage | None:
        """Put what the event says into ``parts``; the settled message if it is the last."""

    def _finish(self) -> AssistantMessage | None:
        """The settled message of an answer whose events are over without one, however that came; None if it was cut."""
        return None

    def _failure(self, error: Exception) -> ModelError | None:
        """The failure that an exception of the SDK stands for; None for one that is none."""
        return error_of(error, begun=self._begun)

    async def _close(self) -> None:
        """Close the response, whatever became of it. Called once, and only if the request was sent."""

    def _secrets(self) -> Iterable[str]:
        """What a failure must not say, as a header that cannot be sent or a provider that repeats it would."""
        return ()

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> StreamItem:
        while not self.parts.frames:
            if self._done:
                raise StopAsyncIteration
            if self._settled is not None:
                self._done = True
                return self._settled
            await self._advance()
        return self.parts.frames.popleft()

    async def aclose(self) -> None:
        """Close the response; nothing comes after it."""
        self._done = True
        self.parts.frames.clear()
        opened, self._opened = self._opened, False
        if opened:
            await self._close()

    async def _advance(self) -> None:
        try:
            if not self._begun:
                self._opened = True
                await self._send()
                self._begun = True
                return
            try:
                event = await self._next()
            except StopAsyncIteration:
                self._settled = self._hidden(self._finish())
                if self._settled is None:
                    raise cut_stream(usage=self.parts.usage) from None
                return
            self._settled = self._hidden(self._taken(event))
        except Exception as error:
            known = error if isinstance(error, ModelError) else self._known(error)
            if known is not None and known.kind == "stream_cut" and known is not error:
                self._settled = self._hidden(self._finish())
                if self._settled is not None:
                    return
            self._done = True
            if known is None:
                raise
            self._raise(known, error)
        except BaseException:  # cancelled: there is no going on, and nothing is sent a second time
            self._done = True
            raise

    def _taken(self, event: Any) -> AssistantMessage | None:
        try:
            return self._take(event)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ModelError(
                f"an event of the stream is not as documented: {str(event)[:300]}",
                kind="invalid_response",
                retryable=True,
            ) from error

    def _known(self, error: Exception) -> ModelError | None:
        known = self._failure(error)
        if known is None and self._begun and isinstance(error, ValueError):
            text = f"the answer cannot be read: {type(error).__name__}: {error}"
            known = ModelError(text, kind="invalid_response", retryable=True)
        return known

    def _raise(self, known: ModelError, error: Exception) -> NoReturn:
        self._charge(known)
        told = without_secrets(known, self._secrets())
        if told is not known:
            raise told from None  # what it came from says the secret too
        if known is error:
            raise known
        raise known from error

    def _hidden(self, message: AssistantMessage | None) -> AssistantMessage | None:
        """The message; the failure that it may be says no secret."""
        if message is None or message.error is None:
            return message
        told = hidden(message.error.message, self._secrets())
        return replace(message, error=replace(message.error, message=told))

    def _charge(self, error: ModelError) -> None:
        """Put what is known of the usage into a failure."""
        if error.usage is None:
            error.usage = error.details["usage"] = self.parts.usage


async def close_events(events: Any, *, ended: bool) -> None:
    """Close an SDK's stream of events, by its public means. One that has ended is read out first, a short time long."""
    try:
        if ended:
            await _run_out(events)
    finally:
        await events.close()
        await _run_out(events)  # at once, of a closed response; else what the SDK has suspended is left to the loop


async def _run_out(events: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(DRAIN_S):
            while True:
                await events.__anext__()


def call_part(id: str, name: str, text: str, *, signature: str | None = None) -> ToolCallPart:
    """A whole call from the text of its arguments. No text is no arguments; what is no object is kept as text."""
    if not text.strip():
        return ToolCallPart(id=id, name=name, arguments={}, signature=signature)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return ToolCallPart(id=id, name=name, arguments_text=text, signature=signature)
    return ToolCallPart(id=id, name=name, arguments=given, arguments_text=text, signature=signature)


def sent_arguments(call: ToolCallPart) -> dict[str, Any]:
    """The arguments that a call of the conversation is sent back with: always an object, since servers parse them."""
    if call.arguments is not None:
        return call.arguments
    return {"unreadable_arguments": call.arguments_text or ""}


def arguments_json(call: ToolCallPart) -> str:
    """``sent_arguments`` as text."""
    return json.dumps(sent_arguments(call), ensure_ascii=False)


def shown_image(image: ImagePart) -> ImagePart | str:
    """The image as providers take it; in place of one that they would refuse, and the conversation with it, a text."""
    kind = image.mime_type.strip().lower()
    kind = "image/jpeg" if kind == "image/jpg" else kind
    if kind not in IMAGE_TYPES:
        return f"(an image of type {image.mime_type or 'unknown'}, which cannot be shown here)"
    data = "".join(image.data.split())
    try:
        whole = b64decode(data, validate=True)
    except ValueError:
        whole = b""
    if not whole:
        return f"(an image of type {kind} without data that can be read, which cannot be shown here)"
    return image if (kind, data) == (image.mime_type, image.data) else ImagePart(data=data, mime_type=kind)


def settled(
    parts: AnswerParts,
    stop_reason: Literal["stop", "tool_calls", "length"],
    *,
    error: ModelError | None = None,
    usage: Usage | None = None,
) -> AssistantMessage:
    """The settled message of an answer; ``error`` makes it one that failed."""
    info = None
    if error is not None:
        info = ErrorInfo(
            code=error.kind, message=str(error), retryable=error.retryable, retry_after_ms=error.retry_after_ms
        )
    return AssistantMessage(
        content=parts.content,
        stop_reason=stop_reason if info is None else "error",
        usage=parts.usage if usage is None else usage,
        error=info,
    )


def text_of(value: object) -> str:
    """A text that a provider gave: nothing if there is none, and what is not text as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def count(value: object) -> int | None:
    """A count that a provider gave, if it is one, and one that can be stored."""
    return value if type(value) is int and 0 <= value <= COUNT_MAX else None


def field(value: object, name: str) -> Any:
    """A field of what an SDK hands over, which is an object of its own, or data where it does not know it."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


class _OpenPart:
    __slots__ = ("id", "index", "kind", "name", "texts")

    def __init__(self, index: int, kind: PartKind | None, id: str, name: str) -> None:
        self.index = index
        self.kind = kind
        self.id = id
        self.name = name
        self.texts: list[str] = []

    def as_far_as_it_came(self) -> AssistantPart | None:
        if self.kind is None:
            return None
        text = "".join(self.texts)
        if self.kind == "tool_call":
            return ToolCallPart(id=self.id, name=self.name, arguments_text=text)
        return ThinkingPart(text=text) if self.kind == "thinking" else TextPart(text=text)


def _is_empty(part: AssistantPart) -> bool:
    if isinstance(part, TextPart):
        return not part.text
    return isinstance(part, ThinkingPart) and not part.text and part.signature is None
