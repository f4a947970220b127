"""Models over the Chat Completions API, of OpenAI or of any server that speaks it; needs the extra ``openai``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentlane import (
    AssistantMessage,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    TextPart,
    ThinkingPart,
    Usage,
)
from agentlane.models.answering import AnswerStream, call_part, close_events, count, field, settled, text_of
from agentlane.models.http_errors import content_filter, refusal
from agentlane.models.openai_chat_input import chat_messages
from agentlane.models.openai_client import SDK, Clients, cache_key, checked_settings, choose_tools, parameters_of
from agentlane.models.options import bound_answer, check_options, leave_out_of_summary, setting_list
from agentlane.models.prices import Prices
from agentlane.models.sent_names import SentNames

RESERVED = frozenset({"functions", "messages", "model", "n", "stream", "stream_options"})
"""Fields of a request that settings cannot have: the library fills them."""
NOT_IN_SUMMARIES = ("function_call", "prediction", "response_format", "tools", "web_search_options")
"""Settings that a request for a summary is made without: it runs no tools, and its answer is plain text."""
BOUNDS = ("max_completion_tokens", "max_tokens")
"""How an answer is bounded: at OpenAI, whose newer models refuse the second, and elsewhere, where all know that."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put reasoning; the API itself has no place for it."""
_LIMITS = frozenset({"length", "max_tokens", "model_context_window_exceeded", "model_length"})
_FILTERS = frozenset({"content_filter", "safety", "sensitive"})
# By these a server says that it stopped for reasons of its own: what came is no whole answer.
_BROKEN = {
    "abort": "model_error",
    "aborted": "model_error",
    "cancelled": "model_error",
    "error": "model_error",
    "insufficient_system_resource": "overloaded",
    "network_error": "server_error",
}


class OpenAIChatModel:
    """A model behind Chat Completions: with ``base_url``, that of a server of your own.

    - ``settings`` of the agent are fields of the request (``temperature``, ``max_completion_tokens`` ...). Where the
      library bounds an answer, as it does a summary, it does so by the field that they name for it; else by
      ``max_completion_tokens`` at OpenAI's own address and by ``max_tokens`` elsewhere.
    - Without ``api_key`` the environment's ``OPENAI_API_KEY`` is used, and where another address is given and there is
      none, a word in its place: servers of one's own ask for none. Without ``base_url`` it is the environment's
      ``OPENAI_BASE_URL``, or OpenAI's own address. A ``client`` of the SDK is used as it is, but for its retries, which
      are off.
    - ``provider`` is stored with each answer, as what ``provider:name`` begins with.
    - ``reasoning_field`` names the field in which reasoning goes back to the model whose it is, for servers that want
      it (``"reasoning_content"``); without it, it does not.
    - ``include_usage`` asks for counts at the end of the stream, and ``prompt_cache`` names the lane for the provider's
      cache (None: only at OpenAI's own address); off for servers that refuse what they do not know.
    - ``timeout_ms`` bounds each wait for more of an answer (ten minutes). ``prices`` give answers a cost; else it is
      unknown. ``headers`` go with each request.

    One object serves many lanes, and event loops one after another. ``InvalidDefinition`` for options that do not go
    together.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: SDK | None = None,
        provider: str = "openai-chat",
        reasoning_field: str | None = None,
        include_usage: bool = True,
        prompt_cache: bool | None = None,
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
            texts={"reasoning_field": reasoning_field},
            flags={"include_usage": include_usage},
            choices={"prompt_cache": prompt_cache},
        )
        self._identity = ModelIdentity(provider=provider, name=name)
        self._limits = limits or ModelLimits()
        self._reasoning_field = reasoning_field
        self._include_usage = include_usage
        self._prompt_cache = prompt_cache
        self._prices = prices
        self._clients = Clients(
            client=client,
            api_key=api_key,
            base_url=base_url,
            headers=headers,
            timeout_ms=timeout_ms,
            key_needed=False,
        )

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self._identity.name!r})"

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
        names = SentNames(tool.name for tool in request.tools)
        return _ChatStream(self._clients, self._fields(request, names), names, self._prices)

    async def aclose(self) -> None:
        """Close the connections that are kept for the running event loop. The model can be used again."""
        await self._clients.aclose()

    def _fields(self, request: ModelRequest, names: SentNames) -> dict[str, Any]:
        settings = checked_settings(request, RESERVED)
        bounds = [name for name in BOUNDS if settings.get(name) is not None]
        for name in bounds or [BOUNDS[0] if self._clients.at_openai else BOUNDS[1]]:
            bound_answer(settings, name, request.max_output_tokens)
        leave_out_of_summary(request, settings, NOT_IN_SUMMARIES)
        fields: dict[str, Any] = {
            "model": self._identity.name,
            "messages": chat_messages(
                request.messages,
                request.instructions,
                names,
                self._identity,
                reasoning_field=self._reasoning_field,
            ),
        }
        tools = [
            {
                "type": "function",
                "function": {
                    "name": names.sent(tool.name),
                    "description": tool.description,
                    "parameters": parameters_of(tool.parameters),
                },
            }
            for tool in request.tools
        ] + setting_list(settings, "tools", Mapping, "objects")
        choose_tools(settings, names, tools=bool(tools))
        if tools:
            fields["tools"] = tools
        if self._include_usage:
            fields["stream_options"] = {"include_usage": True}
        if self._clients.at_openai if self._prompt_cache is None else self._prompt_cache:
            fields["prompt_cache_key"] = cache_key(request)
        if request.output is not None:
            schema = {"name": request.output.name, "schema": request.output.schema, "strict": False}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields | settings


class _ChatStream(AnswerStream):
    """One answer of Chat Completions: text, reasoning and refusal are one part each, calls are told apart by us."""

    def __init__(self, clients: Clients, fields: dict[str, Any], names: SentNames, prices: Prices | None) -> None:
        super().__init__()
        self._clients = clients
        self._fields = fields
        self._names = names
        self._prices = prices
        self._stream: Any = None
        self._calls: list[_Call] = []
        self._reason: str | None = None

    async def _send(self) -> None:
        client = self._clients.current()
        model, messages = self._fields.pop("model"), self._fields.pop("messages")
        self._stream = await client.chat.completions.create(
            model=model, messages=messages, stream=True, extra_body=self._fields
        )

    async def _next(self) -> Any:
        return await self._stream.__anext__()

    async def _close(self) -> None:
        if self._stream is not None:
            await close_events(self._stream, ended=self._settled is not None)

    def _secrets(self) -> Iterator[str]:
        return self._clients.secrets()

    def _take(self, event: Any) -> AssistantMessage | None:
        usage = _usage(field(event, "usage"))
        if usage is not None:
            self.parts.see(usage if self._prices is None else self._prices.priced(usage))
        for choice in field(event, "choices") or ():
            if (field(choice, "index") or 0) == 0:
                self._add(field(choice, "delta"))
                self._reason = field(choice, "finish_reason") or self._reason
        return self._finish() if self._reason is not None and usage is not None else None

    def _finish(self) -> AssistantMessage | None:
        """The message, once it was said why it ends; what comes behind that is its usage, which may be missing."""
        if self._reason is None:
            return None
        refused = self.parts.text("refusal")
        for key in ("text", "refusal"):
            if self.parts.has(key):
                self.parts.end(key, TextPart(text=self.parts.text(key)))
        if self.parts.has("thinking"):
            self.parts.end("thinking", ThinkingPart(text=self.parts.text("thinking")))
        for call in self._calls:
            name = self._names.given(call.name)
            self.parts.end(call, call_part(call.id, name, self.parts.text(call)))
        if self._reason in _FILTERS:
            return settled(self.parts, "stop", error=content_filter())
        if self._reason in _BROKEN:
            text = f"the provider stopped in the middle of the answer: {self._reason}"
            return settled(self.parts, "stop", error=ModelError(text, kind=_BROKEN[self._reason], retryable=True))
        if refused:
            return settled(self.parts, "stop", error=refusal(refused))
        if self._reason == "model_context_window_exceeded" and not self.parts.content:
            full = ModelError("the conversation leaves no room for an answer", kind="context_overflow")
            return settled(self.parts, "stop", error=full)
        if self._reason in _LIMITS:
            return settled(self.parts, "length")
        return settled(self.parts, "tool_calls" if self._calls else "stop")

    def _add(self, delta: Any) -> None:
        for name in REASONING_FIELDS:
            if isinstance(text := field(delta, name), str) and text:
                self._say("thinking", text)
                break
        content = field(delta, "content")
        if isinstance(content, list):
            for key, text in _told(content):
                self._say(key, text)
        else:
            self._say("text", content)
        self._say("refusal", field(delta, "refusal"))
        for given in field(delta, "tool_calls") or ():
            function = field(given, "function")
            self._add_call(
                field(given, "index"),
                text_of(field(given, "id")),
                text_of(field(function, "name")),
                text_of(field(function, "arguments")),
            )
        old = field(delta, "function_call")
        if old is not None:
            self._add_call(-1, "", text_of(field(old, "name")), text_of(field(old, "arguments")))

    def _say(self, key: Literal["text", "thinking", "refusal"], text: object) -> None:
        if isinstance(text, str) and text:
            self.parts.start(key, "thinking" if key == "thinking" else "text")
            self.parts.add(key, text)

    def _add_call(self, index: Any, id: str, name: str, text: str) -> None:
        call = self._open_call(index, id, name, text)
        if call is None:
            call = _Call(index, id, name)
            self._calls.append(call)
            self.parts.start(call, "tool_call", id=id, name=self._names.given(name))
        call.id = call.id or id
        call.name = call.name or name
        self.parts.add(call, text)

    def _open_call(self, index: Any, id: str, name: str, text: str) -> _Call | None:
        """The call that a delta goes on with. Servers leave the index out, or give every call the same, and the id too;
        others say id and name with every piece of one call. So what came of it tells whether it is whole."""
        known = (call for call in reversed(self._calls) if index is None or call.index == index)
        call = next(known, None)
        if call is None or (id and id != call.id and (call.id or index is None)):
            return None
        if not name or not call.name:
            return call
        if self.parts.ends_with(call, "}") and _is_object(self.parts.text(call)):
            more = text.strip()
            return call if (not more.startswith("{") if more else id) else None
        return None if index is None and not id and not self.parts.text(call) else call


class _Call:
    """A call as far as it has come; it is its own key among the parts."""

    def __init__(self, index: Any, id: str, name: str) -> None:
        self.index = index
        self.id = id
        self.name = name


def _told(content: list[Any]) -> Iterator[tuple[Literal["text", "thinking"], object]]:
    """What a list of parts says, in which some servers stream text and reasoning."""
    for part in content:
        match field(part, "type"):
            case "text":
                yield "text", field(part, "text")
            case "thinking":
                thought = field(part, "thinking")
                for piece in thought if isinstance(thought, list) else ({"text": thought},):
                    yield "thinking", field(piece, "text")
            case _:
                pass


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _usage(given: Any) -> Usage | None:
    if given is None:
        return None
    read, made = field(given, "prompt_tokens_details"), field(given, "completion_tokens_details")
    return Usage(
        input_tokens=count(field(given, "prompt_tokens")),
        output_tokens=count(field(given, "completion_tokens")),
        cache_read_tokens=count(field(read, "cached_tokens")),
        cache_write_tokens=count(field(read, "cache_write_tokens")),
        reasoning_tokens=count(field(made, "reasoning_tokens")),
    )
