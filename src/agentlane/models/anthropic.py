"""Anthropic's models through its official SDK: the messages API, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from agentlane import (
    AssistantMessage,
    InvalidDefinition,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    OutputSchema,
)
from agentlane.models.answering import AnswerStream, close_events
from agentlane.models.anthropic_answer import Answer
from agentlane.models.anthropic_request import PROVIDER, CacheTime, WireRequest, wire_request
from agentlane.models.http_errors import secrets_of
from agentlane.models.options import check_options
from agentlane.models.prices import Prices

try:
    import anthropic
except ModuleNotFoundError as missing:
    from agentlane.models.names import how_to_install

    raise ModuleNotFoundError(
        f"the package 'anthropic' is not installed; {how_to_install('anthropic')}", name="anthropic"
    ) from missing

SDK: TypeAlias = Any
"""A client of the SDK: foreign, whether its types are installed here or not."""

MAX_TOKENS = 16_384
"""How long an answer may be where neither the model, its limits nor the settings say."""
PAUSES_MAX = 16
"""How often the provider may pause in one answer, at its own tools."""
TIMEOUT_MS = 600_000
CONNECT_TIMEOUT_MS = 5_000

_NAMED = ("model", "max_tokens", "messages")


class AnthropicModel:
    """A model of Anthropic, or of a server that speaks its messages API.

    - ``settings`` of the agent are fields of the request (``thinking``, ``temperature``, ``tool_choice`` and so on). A
      list of ``tools`` there holds tools that the provider runs itself, which go with the agent's own: an answer in
      which it pauses at them is asked on within the same attempt. ``betas`` there names beta features.
    - ``max_tokens`` bounds an answer, its reasoning included: 16,384, or ``limits.output_tokens``. A summary, which the
      library bounds closer, is asked for without ``thinking`` and without tools.
    - ``cache`` has the provider keep the tools, the instructions and the conversation so far, for five minutes or an
      hour after each use; None has it keep nothing.
    - ``native_output`` hands an agent's output type to the provider as a schema that it enforces, where that has a form
      there; else, and with False, the model is told of it in words.
    - Without ``api_key`` and ``base_url`` the SDK looks for them in the environment, when the first request is made. A
      ``client`` of the SDK (for Bedrock or Vertex, say) is used as it is, but for its retries, which are off; whoever
      gave it closes it.
    - ``provider`` is stored with each answer, as what ``provider:name`` begins with. Give one of your own where another
      server answers under names of Anthropic's.
    - ``timeout_ms`` bounds each wait for more of an answer (ten minutes). ``prices`` give answers a cost; else it is
      unknown. ``headers`` go with each request.

    One object serves many lanes, and event loops one after another. ``InvalidDefinition`` for options that cannot work.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: SDK | None = None,
        provider: str = PROVIDER,
        max_tokens: int | None = None,
        cache: CacheTime | None = "5m",
        native_output: bool = True,
        timeout_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        limits: ModelLimits | None = None,
        prices: Prices | None = None,
    ) -> None:
        check_options(
            name,
            provider=provider,
            api_key=api_key,
            base_url=base_url,
            headers=headers,
            timeout_ms=timeout_ms,
            limits=limits,
            prices=prices,
            flags={"native_output": native_output},
        )
        if cache not in ("5m", "1h", None):
            raise InvalidDefinition(f"cache={cache!r} must be '5m', '1h' or None")
        if client is not None and (api_key is not None or base_url is not None or headers is not None):
            raise InvalidDefinition("client= has its own api_key, base_url and headers; give them to it")
        if client is not None and not hasattr(client, "messages"):
            raise InvalidDefinition(f"client={client!r}: an anthropic.AsyncAnthropic is needed here")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise InvalidDefinition(f"max_tokens={max_tokens!r} must be a whole number of at least 1")
        self._identity = ModelIdentity(provider=provider, name=name)
        self._limits = limits or ModelLimits()
        self._max_tokens = max_tokens or self._limits.output_tokens or MAX_TOKENS
        self._cache: CacheTime | None = cache
        self._native_output = native_output
        self._prices = prices
        options: dict[str, Any] = {"max_retries": 0}  # every attempt is one of the library's
        if timeout_ms is not None or client is None:
            read_s = (timeout_ms or TIMEOUT_MS) / 1_000
            options["timeout"] = anthropic.Timeout(read_s, connect=CONNECT_TIMEOUT_MS / 1_000)
        self._client = None if client is None else client.with_options(**options)
        self._options = options | {"api_key": api_key, "base_url": base_url, "default_headers": headers}
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SDK] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"AnthropicModel({self._identity.name!r})"

    @property
    def identity(self) -> ModelIdentity:
        """Who answers."""
        return self._identity

    @property
    def limits(self) -> ModelLimits:
        """What the model takes, as far as it was told."""
        return self._limits

    def stream(self, request: ModelRequest) -> AnswerStream:
        """Answer the request; see ``agentlane.Model``. Cancelled, it closes the connection."""
        native = _output_format(request.output) if self._native_output else None
        wire = wire_request(
            request, identity=self._identity, max_tokens=self._max_tokens, cache=self._cache, output_format=native
        )
        return _Stream(self, wire, self._prices)

    async def aclose(self) -> None:
        """Close the connections that are kept for the running event loop. The model can be used again."""
        made = self._by_loop.pop(asyncio.get_running_loop(), None)
        if made is not None:
            await made.close()

    def _current(self) -> SDK:
        """The given client, or this loop's: connections belong to the loop that they were made on."""
        if self._client is not None:
            return self._client
        loop = asyncio.get_running_loop()
        made = self._by_loop.get(loop)
        if made is None:
            made = self._by_loop[loop] = anthropic.AsyncAnthropic(**self._options)
        return made

    def _secrets(self) -> Iterator[str]:
        made = self._client or self._by_loop.get(asyncio.get_running_loop())
        yield from secrets_of(self._options, made)


class _Stream(AnswerStream):
    """One answer, over one response or, where the provider pauses, several."""

    def __init__(self, model: AnthropicModel, wire: WireRequest, prices: Prices | None) -> None:
        super().__init__()
        self._model = model
        self._wire = wire
        self._answer = Answer(self.parts, wire.names, prices)
        self._events: Any = None
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
        return _as_given(await anext(self._events))

    def _take(self, event: Mapping[str, Any]) -> AssistantMessage | None:
        return self._answer.take(event)

    async def _ask(self, body: Mapping[str, Any]) -> None:
        try:
            client = self._model._current()
        except Exception as error:  # no key, or none that can be read, or an address that is none
            kind = "invalid_request" if type(error).__name__ == "InvalidURL" else "authentication_failed"
            raise ModelError(f"no client: {error}", kind=kind, sent=False) from error
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
            kind = "authentication_failed" if "authentication" in str(error) else "invalid_request"
            raise ModelError(f"the request could not be made: {error}", kind=kind, sent=False) from error

    async def _close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            await close_events(events, ended=self._settled is not None or self._answer.paused)

    def _secrets(self) -> Iterator[str]:
        return self._model._secrets()


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
        return {"type": "json_schema", "schema": anthropic.transform_schema(output.schema)}
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
