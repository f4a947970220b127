"""What a check of a model works with: what its provider is to say, and everything that a stream gave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentlane.data.messages import (
    AssistantMessage,
    Frame,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserMessage,
)
from agentlane.data.usage import Usage
from agentlane.model import Model, ModelError, ModelRequest, StreamItem, ToolDefinition

ITEMS_MAX = 10_000
"""An answer of a check has some dozen items; a stream that gives so many has no end."""
POLL_S = 0.001
"""How often it is looked whether the provider has a request."""
TURNS = 20
"""How many turns of the event loop something that must not happen is given to happen."""

Feature: TypeAlias = Literal[
    "streaming",
    "thinking",
    "signatures",
    "redacted",
    "usage",
    "retry_after",
    "length",
    "raw_arguments",
    "temperature",
    "max_output_tokens",
]
"""What a provider, or its interface, may not have: an answer piece by piece, reasoning, marks on it, reasoning that may
not be shown, counts, a wait that it asks for, an end at a limit, arguments as text, a setting ``temperature``, a bound
on how long an answer may be."""


class ProviderAnswer(Struct, frozen=True, kw_only=True):
    """What the provider says to one request; the author of a model puts it into the provider's own form.

    ``parts`` come in their order, each in several deltas where the form has them: texts, reasoning (with its
    ``signature``, or ``redacted`` with the signature as its data), and calls, with ``arguments`` or, to be sent as it
    is, ``arguments_text``. ``usage`` is what the provider reports: input tokens as early as it does, output tokens at
    the end; None reports nothing.

    ``ends``: ``stop``, ``tool_calls`` and ``length`` as the provider says these. ``overloaded``: it is overloaded, told
    by a status if there are no parts and by an error behind them if there are; with ``retry_after_ms`` where there is a
    header for it. ``cut``: the connection is closed. ``hang``: nothing more comes. These three come directly behind the
    last part or, if that is ``half``, behind its last delta, before its signature and its end.
    """

    parts: tuple[TextPart | ThinkingPart | ToolCallPart, ...] = ()
    ends: Literal["stop", "tool_calls", "length", "overloaded", "cut", "hang"] = "stop"
    half: bool = False
    usage: Usage | None = None
    retry_after_ms: int | None = None


class ModelPlace(Struct, frozen=True, kw_only=True):
    """A model, and a provider that gives it the answers that a check needs, in order.

    ``sent`` gives the requests that the provider has received so far, each as text; without it what is checked of them
    is skipped.
    """

    model: Model
    sent: Callable[[], Sequence[str]] | None = None


MakePlace: TypeAlias = Callable[[Sequence[ProviderAnswer]], AbstractAsyncContextManager[ModelPlace]]


class ModelCheck(Struct, frozen=True, kw_only=True):
    """One check: the rules it looks at, and the features and means without which it is skipped."""

    name: str
    rules: tuple[str, ...]
    needs: tuple[str, ...]
    run: Callable[[Bench], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


def check(*rules: str, needs: Sequence[str] = ()) -> Callable[[Callable[[Bench], Awaitable[None]]], ModelCheck]:
    """Make a check of a function that raises ``Breach`` when the model breaks one of ``rules``."""

    def of(function: Callable[[Bench], Awaitable[None]]) -> ModelCheck:
        return ModelCheck(name=function.__name__, rules=rules, needs=tuple(needs), run=function)

    return of


class Breach(AssertionError):
    """The model breaks a rule."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Lacking(Exception):
    """The place has no means for this check."""


class Given(Struct, frozen=True):
    """Everything that one stream gave, and what it raised."""

    items: tuple[StreamItem, ...]
    error: Exception | None

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(item for item in self.items if not isinstance(item, AssistantMessage))

    @property
    def messages(self) -> tuple[AssistantMessage, ...]:
        return tuple(item for item in self.items if isinstance(item, AssistantMessage))

    def whole(self, rule: str = "M1") -> AssistantMessage:
        """The settled message of a stream that ended well."""
        if self.error is not None:
            raise Breach(rule, f"the stream raised {self.error!r}, where the provider answered well")
        if not self.messages:
            raise Breach(rule, f"the stream ended without a settled message, behind {len(self.items)} frames")
        message = self.messages[-1]
        if message.stop_reason in ("error", "aborted"):
            raise Breach(
                rule, f"the answer is {message.stop_reason} ({message.error}), where the provider said it well"
            )
        return message

    @property
    def failure(self) -> tuple[bool, int | None] | None:
        """Whether it failed: if it may be tried again, and after what wait."""
        if isinstance(self.error, ModelError):
            return self.error.retryable, self.error.retry_after_ms
        if self.error is None and self.messages and self.messages[-1].stop_reason == "error":
            told = self.messages[-1].error
            return (False, None) if told is None else (told.retryable, told.retry_after_ms)
        return None


class Bench:
    """One check's means: places with the answers it needs."""

    def __init__(self, make: MakePlace) -> None:
        self._make = make

    def place(self, *answers: ProviderAnswer) -> AbstractAsyncContextManager[ModelPlace]:
        """A model whose provider gives these answers."""
        return self._make(answers)

    async def once(self, answer: ProviderAnswer) -> Given:
        """What one stream gives, of a provider that says this."""
        async with self.place(answer) as place:
            return await ask(place.model)


def a_request(*messages: Message) -> ModelRequest:
    """A request as the library makes them."""
    tools = (ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {}}),)
    return ModelRequest(
        instructions="Be brief.",
        messages=messages or (UserMessage(content=(TextPart(text="go"),)),),
        tools=tools,
        settings={},
        session_id="check",
        lane="main",
        operation_id="check",
        attempt=1,
    )


async def ask(model: Model, request: ModelRequest | None = None) -> Given:
    """Ask and read to the end, as the library does."""
    items: list[StreamItem] = []
    stream = model.stream(a_request() if request is None else request)
    try:
        async for item in stream:
            items.append(item)
            if len(items) > ITEMS_MAX:
                raise Breach("M1", f"the stream has given {len(items)} items and does not end")
    except Breach:
        raise
    except Exception as error:
        return Given(tuple(items), error)
    finally:
        await close(stream)
    return Given(tuple(items), None)


async def ask_in_turn(model: Model, count: int) -> list[Given]:
    """Read several streams of a model to their ends, one item of each at a time."""
    streams = [model.stream(a_request()) for _ in range(count)]
    reading = dict(enumerate(map(aiter, streams)))
    items: list[list[StreamItem]] = [[] for _ in streams]
    errors: list[Exception | None] = [None] * count
    try:
        while reading:
            for number, stream in list(reading.items()):
                try:
                    items[number].append(await anext(stream))
                    ended = len(items[number]) > ITEMS_MAX
                except StopAsyncIteration:
                    ended = True
                except Exception as error:
                    errors[number] = error
                    ended = True
                if ended:
                    del reading[number]
    finally:
        for stream in streams:
            await close(stream)
    return [Given(tuple(got), error) for got, error in zip(items, errors, strict=True)]


async def close(stream: AsyncIterator[StreamItem]) -> None:
    """Close a stream if it can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


async def begin(place: ModelPlace, items: list[StreamItem], count: int) -> asyncio.Task[None]:
    """A task that reads a stream into ``items``; returns once it has ``count``.

    If that is none, once the provider has the request, or soon if the place does not tell.
    """
    model = place.model
    enough = asyncio.Event()

    async def read() -> None:
        stream: Any = model.stream(a_request())
        try:
            async for item in stream:
                items.append(item)
                if len(items) >= count:
                    enough.set()
        finally:
            enough.set()
            await close(stream)

    task = asyncio.create_task(read(), name="agentlane model check")
    if count:
        await enough.wait()
    else:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        while place.sent is not None and not place.sent() and not task.done():
            await asyncio.sleep(POLL_S)  # else the provider would give what it has for this request to the next
    return task
