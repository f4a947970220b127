"""Models through pydantic-ai's direct interface: whatever provider it supports. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agentlane import (
    AssistantMessage,
    InvalidDefinition,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
)
from agentlane.models.answering import AnswerStream
from agentlane.models.http_errors import secrets_of
from agentlane.models.options import check_options, setting_object
from agentlane.models.prices import Prices

try:
    from pydantic_ai import direct, models
    from pydantic_ai.providers import infer_provider_class
except ModuleNotFoundError as missing:
    from agentlane.models.names import how_to_install

    if missing.name != "pydantic_ai":
        raise
    raise ModuleNotFoundError(
        f"the package 'pydantic_ai' is not installed; {how_to_install('pydantic-ai')}", name="pydantic_ai"
    ) from missing

from agentlane.models.pydantic_ai_answer import Answer
from agentlane.models.pydantic_ai_errors import failure_of
from agentlane.models.pydantic_ai_marks import PROVIDER, Foreign, Marks, Origin
from agentlane.models.pydantic_ai_request import Options, SentRequest, sent_request

PAUSES_MAX = 16
"""How often the provider may pause in one answer, at its own tools."""
DRAIN_S = 0.25
"""How long what pydantic-ai has suspended inside a stream is waited for, once its connection is closed."""
DRAIN_EVENTS_MAX = 1_000

_KEY = re.compile(r"key|credential|token|log ?in", re.IGNORECASE)


class PydanticAIModel:
    """A model that pydantic-ai knows: by its name (``"groq:llama-3.3-70b"``), or a ``Model`` object of pydantic-ai's.

    - ``settings`` of the agent are pydantic-ai's model settings (``temperature``, ``max_tokens``, ``thinking``,
      ``extra_body``, and those of one provider, as ``openai_reasoning_effort``). Its own ``max_retries`` is 0: every
      attempt is one of the library's. ``native_tools`` are tools that the provider runs itself, as objects of
      pydantic-ai's. A summary is asked for without tools and without ``thinking``.
    - A name's provider has to be known, and its SDK installed. Keys and addresses are looked for in the environment by
      pydantic-ai, when the first request is made. An object is used as it is; whoever gave it closes it.
    - ``provider`` and ``name`` are stored with each answer, as ``provider:name``; without ``name`` it is the name that
      was given, or an object's system and model.
    - ``native_output`` hands an agent's output type to the provider as a schema, where pydantic-ai says that the
      provider takes one; else, and with False, the model is told of it in words.
    - ``ends_without_reason`` takes a stream that ends for one that is whole although nothing said why it ended, for
      servers that never say. None does so where the answer is of no server, as of pydantic-ai's ``FunctionModel``.
    - ``timeout_ms`` bounds each wait for more of an answer, where the provider's SDK takes that (without it, ten
      minutes in most). ``prices`` give answers a cost; else it is unknown. ``headers`` go with each request.

    One object serves many lanes, and event loops one after another. ``InvalidDefinition`` for options that cannot work,
    for a name that pydantic-ai does not know, and where the SDK of its provider is not installed.
    """

    def __init__(
        self,
        model: str | Foreign,
        *,
        provider: str = PROVIDER,
        name: str | None = None,
        native_tools: Sequence[Foreign] = (),
        native_output: bool = True,
        ends_without_reason: bool | None = None,
        timeout_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        limits: ModelLimits | None = None,
        prices: Prices | None = None,
    ) -> None:
        if isinstance(model, str):
            _check_name(model)
        elif not isinstance(model, models.Model):
            raise InvalidDefinition(f"model={model!r}: a name or a pydantic_ai.models.Model is needed here")
        self._given = model
        stored = model if isinstance(model, str) else f"{model.system}:{model.model_name}"
        check_options(
            stored if name is None else name,
            provider=provider,
            headers=headers,
            timeout_ms=timeout_ms,
            limits=limits,
            prices=prices,
            flags={"native_output": native_output},
            choices={"ends_without_reason": ends_without_reason},
        )
        self._identity = ModelIdentity(provider=provider, name=stored if name is None else name)
        self._limits = limits or ModelLimits()
        self._prices = prices
        self._native_tools = tuple(native_tools)
        self._native_output = native_output
        self._ends_without_reason = ends_without_reason
        self._headers = dict(headers or {})
        self._settings: dict[str, Any] = {} if timeout_ms is None else {"timeout": timeout_ms / 1_000}
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Foreign] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"PydanticAIModel({self._identity.name!r})"

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
        return _Stream(self, request)

    async def aclose(self) -> None:
        """Close the connections of a named model that are kept for the running event loop. It can be used again."""
        made = self._by_loop.pop(asyncio.get_running_loop(), None)
        if made is not None:
            async with made:
                pass  # pydantic-ai closes what it made where this ends

    def _current(self) -> Foreign:
        """The given model, or this loop's: connections belong to the loop that they were made on."""
        if not isinstance(self._given, str):
            refresh = getattr(self._given, "_refresh_http_client", None)
            if refresh is not None:
                refresh()  # it makes a new client where its own is of another event loop
            return self._given
        loop = asyncio.get_running_loop()
        made = self._by_loop.get(loop)
        if made is None:
            made = self._by_loop[loop] = models.infer_model(self._given)
        return made

    def _sent(self, request: ModelRequest, model: Foreign, marks: Marks) -> SentRequest:
        """The request in pydantic-ai's terms, as this model takes it."""
        profile = _profile(model)
        settings = dict(self._settings)
        if "max_retries" not in getattr(model, "unsupported_settings", ()):
            settings["max_retries"] = 0
        native = self._native_output and bool(profile.get("supports_json_schema_output"))
        length, images = profile.get("tool_call_id_length"), bool(profile.get("supports_image_input", True))
        own = getattr(model, "settings", None)
        options = Options(
            settings, self._headers, self._native_tools, native, length, images, own if isinstance(own, Mapping) else {}
        )
        return sent_request(request, options, marks, self._identity)


class _Stream(AnswerStream):
    """One answer, over one response or, where the provider pauses, several."""

    def __init__(self, model: PydanticAIModel, request: ModelRequest) -> None:
        super().__init__()
        self._model = model
        self._request = request
        self._current: Foreign = None
        self._sent: SentRequest
        self._answer: Answer
        self._context: Any = None
        self._response: Foreign = None
        self._events: Any = None
        self._over = False
        """The events of the response have come to their end."""
        self._pauses = 0

    async def _send(self) -> None:
        try:
            self._current = model = self._model._current()
        except Exception as error:  # no key, above all
            kind = "authentication_failed" if _KEY.search(str(error)) else "invalid_request"
            raise ModelError(f"no request can be made: {error}", kind=kind, sent=False) from error
        marks = Marks(Origin(model.system, getattr(model, "_canonical_system_stamp", None)))
        self._sent = self._model._sent(self._request, model, marks)
        self._answer = Answer(self.parts, self._sent.names, marks, self._model._prices)
        await self._ask(self._sent.messages)

    async def _next(self) -> Foreign:
        while True:
            try:
                return await anext(self._events)
            except StopAsyncIteration:
                self._over = True
                said = self._response.get()
                if said.state != "suspended":
                    raise
            await self._go_on(said)

    def _take(self, event: Foreign) -> AssistantMessage | None:
        self._answer.take(event, self._response.usage)
        return None

    def _finish(self) -> AssistantMessage | None:
        """The answer, if its provider said why it ends; what is missing behind that is its usage at most."""
        if self._context is None:
            return None
        response = self._response.get()
        told = response.finish_reason is not None or bool((response.provider_details or {}).get("finish_reason"))
        if getattr(self._response, "_has_finish_reason", True) is False:
            told = getattr(self._response, "_has_refusal", False)  # else it is one that pydantic-ai made up
        if not told:
            lenient = self._model._ends_without_reason
            of_no_server = self._response.provider_url is None
            if not self._over or not (of_no_server if lenient is None else lenient):
                return None
        return self._answer.finish(response)

    def _failure(self, error: Exception) -> ModelError | None:
        return failure_of(error, begun=self._begun)

    def _secrets(self) -> Iterator[str]:
        options = {
            "default_headers": {**self._model._headers, **setting_object(self._request.settings, "extra_headers")}
        }
        for model in getattr(self._current, "models", None) or [self._current]:
            yield from secrets_of(options, getattr(getattr(model, "provider", None), "client", None))

    async def _ask(self, messages: list[Foreign]) -> None:
        sent = self._sent
        context = direct.model_request_stream(
            self._current, messages, model_settings=sent.settings, model_request_parameters=sent.parameters
        )
        self._response = await context.__aenter__()
        self._context = context
        self._events = aiter(self._response)
        self._over = False

    async def _go_on(self, said: Foreign) -> None:
        """The provider paused: ask on, with what it said so far, within this attempt."""
        if self._current.continuation_delay(said) is not None:
            raise ModelError("an answer that is made in the background is not waited for", kind="invalid_request")
        self._pauses += 1
        if self._pauses > PAUSES_MAX:
            raise ModelError(f"the provider paused {self._pauses} times in one answer", kind="model_error")
        so_far = self._answer.pause(said)
        await self._close()
        await self._ask([*self._sent.messages, so_far])

    async def _close(self) -> None:
        """Close the response, and end what pydantic-ai and the SDK have suspended inside."""
        context, self._context = self._context, None
        if context is None:
            return
        try:
            if not self._over:
                await self._break_off()
        finally:
            with suppress(Exception):
                await context.__aexit__(None, None, None)

    async def _break_off(self) -> None:
        with suppress(Exception):
            await self._response.cancel()
        of_no_server = self._response.provider_url is None
        try:
            # Of a closed response that is at once; one of no server is stopped where it waits next.
            async with asyncio.timeout(0 if of_no_server else DRAIN_S):
                for _ in range(DRAIN_EVENTS_MAX):
                    await anext(self._events)
        except Exception:  # the end of it among them
            pass


def _check_name(name: str) -> None:
    """Raise ``InvalidDefinition`` for a name that can lead to no model."""
    if name == "test":
        return
    provider, _ = models.parse_model_id(name)
    try:
        if provider is None:
            raise ValueError("a model's name has its provider before it, as in 'groq:llama-3.3-70b'")
        infer_provider_class(provider)
    except ImportError as error:
        raise InvalidDefinition(f"model={name!r}: what pydantic-ai needs for it is not installed: {error}") from error
    except ValueError as error:
        raise InvalidDefinition(f"model={name!r}: pydantic-ai does not know it: {error}") from error


def _profile(model: Foreign) -> Mapping[str, Any]:
    """What pydantic-ai says that a model can do; nothing for one that hands requests on to others."""
    try:
        found: Mapping[str, Any] = model.profile
    except NotImplementedError:
        return {}
    return found
