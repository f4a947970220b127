"""Anthropic's models through its official SDK: the messages API, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from anthropic import AsyncAnthropic, AsyncStream, transform_schema
from anthropic.types import RawMessageStreamEvent

from agentlane import (
    AssistantMessage,
    InvalidDefinition,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    OutputSchema,
    StreamItem,
)
from agentlane.models.answering import AnswerStream
from agentlane.models.anthropic_answer import Answer
from agentlane.models.anthropic_request import PROVIDER, CacheTime, WireRequest, wire_request

MAX_TOKENS = 16_384
"""How long an answer may be where neither the model, its limits nor the settings say."""
PAUSES_MAX = 16
"""How often the provider may pause in one answer, at its own tools."""
DRAIN_S = 0.25
"""How long the end of a response is waited for behind its last event, so that its connection can be used again."""

_NAMED = ("model", "max_tokens", "messages")


class AnthropicModel:
    """A model of Anthropic, by its name there.

    - ``client`` is an ``AsyncAnthropic`` of your own, or one of its kind (for Bedrock or Vertex, say), which you close.
      Without one a client is made for each event loop, with ``api_key`` and ``base_url`` or what the SDK finds in the
      environment; ``aclose`` closes it. The SDK's own retries are off with either.
    - ``max_tokens`` bounds an answer, its reasoning included: 16,384, or ``limits.output_tokens``.
    - ``settings`` are parameters of the API that every request has, ``thinking`` or ``temperature``, say; those of the
      agent and of the lane go over them. ``betas`` names beta features. What a request is made of (``messages``,
      ``model``, ``stream``, ``system``, ``tools``) is no setting.
    - ``cache`` has the provider keep the tools, the instructions and the conversation so far, for five minutes or an
      hour; None has it keep nothing.
    - ``server_tools`` are definitions of tools that the provider runs itself. An answer in which it pauses at them is
      asked on within the same attempt.
    - ``native_output`` hands an agent's output type to the provider as a schema that it enforces, where that schema has
      a form there; else, and with False, the model is told of it in words.

    Raises ``InvalidDefinition`` for what cannot work.
    """

    def __init__(
        self,
        name: str,
        *,
        client: AsyncAnthropic | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int | None = None,
        settings: Mapping[str, Any] | None = None,
        cache: CacheTime | None = "5m",
        server_tools: Sequence[Mapping[str, Any]] = (),
        native_output: bool = True,
        limits: ModelLimits | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidDefinition(f"model name {name!r}: the name of a model of the provider is needed here")
        if cache not in ("5m", "1h", None):
            raise InvalidDefinition(f"cache={cache!r} must be '5m', '1h' or None")
        if client is not None and (api_key is not None or base_url is not None):
            raise InvalidDefinition("client= has its own key and address; leave out api_key= and base_url=")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise InvalidDefinition(f"max_tokens={max_tokens!r} must be a whole number of at least 1")
        self._identity = ModelIdentity(provider=PROVIDER, name=name)
        self._limits = limits or ModelLimits()
        self._client = None if client is None else client.with_options(max_retries=0)
        self._given = {"api_key": api_key, "base_url": base_url}
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncAnthropic] = WeakKeyDictionary()
        self._max_tokens = max_tokens or self._limits.output_tokens or MAX_TOKENS
        self._settings = dict(settings or {})
        self._cache: CacheTime | None = cache
        self._server_tools = tuple(map(dict, server_tools))
        self._native_output = native_output

    @property
    def identity(self) -> ModelIdentity:
        """``anthropic`` and the model's name."""
        return self._identity

    @property
    def limits(self) -> ModelLimits:
        """What was said of it when it was made."""
        return self._limits

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer ``request``; it is sent when the first item is asked for. See ``agentlane.Model``."""
        return _Stream(self, request)

    async def aclose(self) -> None:
        """Close the client that was made for this event loop, if one was. A request after it makes another."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _wire(self, request: ModelRequest) -> WireRequest:
        native = self._native_output and request.output is not None
        return wire_request(
            request,
            identity=self._identity,
            max_tokens=self._max_tokens,
            settings=self._settings,
            server_tools=self._server_tools,
            cache=self._cache,
            output_format=_output_format(request.output) if native else None,
        )

    def _client_here(self) -> AsyncAnthropic:
        """The given client, or this loop's: connections belong to the loop that they were made on."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncAnthropic(**self._given, max_retries=0)  # type: ignore[arg-type]
        return client


class _Stream(AnswerStream):
    """One answer, over one response or, where the provider pauses, several."""

    def __init__(self, model: AnthropicModel, request: ModelRequest) -> None:
        super().__init__()
        self._model = model
        self._wire = model._wire(request)
        self._answer = Answer(self.parts, self._wire.names)
        self._events: AsyncStream[RawMessageStreamEvent] | None = None
        self._pauses = 0

    async def _send(self) -> None:
        await self._ask(self._wire.body)

    async def _next(self) -> Mapping[str, Any]:
        if self._answer.paused:
            self._pauses += 1
            if self._pauses > PAUSES_MAX:
                raise ModelError(f"the provider paused {self._pauses} times in one answer", kind="model_error")
            await self._close()
            so_far = self._answer.next_response(self._model.identity)
            await self._ask(self._wire.going_on(so_far, self._model.identity))
        assert self._events is not None, "the request was sent"
        try:
            return _as_given(await anext(self._events))
        except ValueError as error:
            raise ModelError(f"the stream cannot be read: {error}", kind="invalid_response", retryable=True) from error

    def _take(self, event: Mapping[str, Any]) -> AssistantMessage | None:
        return self._answer.take(event)

    async def _ask(self, body: Mapping[str, Any]) -> None:
        try:
            client = self._model._client_here()
        except Exception as error:  # no key, or none that can be read
            raise ModelError(f"no client: {error}", kind="authentication_failed", sent=False) from error
        try:
            self._events = await client.messages.create(
                model=body["model"],
                max_tokens=body["max_tokens"],
                messages=body["messages"],
                stream=True,
                extra_headers=self._wire.headers,
                extra_body={key: value for key, value in body.items() if key not in _NAMED},
            )
        except (TypeError, ValueError) as error:  # the SDK could make no request of it, for want of a key above all
            raise ModelError(f"the request could not be made: {error}", kind="invalid_request", sent=False) from error

    async def _close(self) -> None:
        """Let the response go. Behind a whole answer its end is read, a short time long, to keep the connection."""
        events, self._events = self._events, None
        if events is None:
            return
        try:
            if self._settled is not None or self._answer.paused:
                async with asyncio.timeout(DRAIN_S):
                    await _run_out(events)
        except TimeoutError:
            pass
        finally:
            await events.close()
            await _run_out(events)


async def _run_out(events: AsyncStream[RawMessageStreamEvent]) -> None:
    """Read to the end, which ends what the SDK has suspended inside; of a closed response that is at once."""
    with suppress(Exception):
        while True:
            await anext(events)


def _as_given(event: object) -> Mapping[str, Any]:
    """An event as the provider sent it; what the SDK does not know yet is in it too."""
    to_dict = getattr(event, "to_dict", None)
    given = None if to_dict is None else to_dict(mode="python", warnings=False)
    return given if isinstance(given, Mapping) else {"type": "error", "error": {"message": f"no event: {event!r:.200}"}}


def _output_format(output: OutputSchema | None) -> dict[str, Any] | None:
    """The provider's own form of a schema, or None where it has none: an object with free keys, or no object."""
    if output is None or output.schema.get("type") != "object" or _has_free_keys(output.schema):
        return None
    try:
        return {"type": "json_schema", "schema": transform_schema(output.schema)}
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _has_free_keys(schema: object) -> bool:
    """Whether some object in it may have keys that are not named, which that form would forbid it."""
    if isinstance(schema, Mapping):
        free = schema.get("type") == "object" and "properties" not in schema
        return (
            free or schema.get("additionalProperties") not in (None, False) or any(map(_has_free_keys, schema.values()))
        )
    return isinstance(schema, list) and any(map(_has_free_keys, schema))
