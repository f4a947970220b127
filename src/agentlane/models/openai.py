"""OpenAI's models over the Responses API; needs the extra ``openai``. For Chat Completions see ``openai_chat``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentlane import (
    AssistantMessage,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    ProviderPart,
    TextPart,
    ThinkingPart,
    Usage,
)
from agentlane.models.answering import AnswerStream, call_part, close_events, count, field, settled, text_of
from agentlane.models.http_errors import content_filter, error_of_body, refusal
from agentlane.models.openai_client import (
    SDK,
    Clients,
    cache_key,
    checked_settings,
    choose_tools,
    parameters_of,
)
from agentlane.models.openai_input import PROVIDER, response_input, signature_of
from agentlane.models.openai_items import Item, Items
from agentlane.models.options import (
    bound_answer,
    check_options,
    leave_out_of_object,
    leave_out_of_summary,
    setting_list,
    setting_object,
)
from agentlane.models.prices import Prices
from agentlane.models.sent_names import SentNames

RESERVED = frozenset(
    {
        *("background", "conversation", "input", "instructions", "model", "previous_response_id"),
        *("stream", "stream_options"),
    }
)
"""Fields of a request that settings cannot have: the library fills them, or they keep the conversation elsewhere."""
NOT_IN_SUMMARIES = ("include", "max_tool_calls", "prompt", "tools")
"""Settings that a request for a summary is made without: it runs no tools, and its reasoning does not go back."""

_NOT_REASONING = re.compile(r"(ft:)?(gpt-3|gpt-4|chatgpt|computer-use)|gpt-5(\.\d+)?-chat")


class OpenAIModel:
    """A model of OpenAI, or of a server that speaks the Responses API.

    - ``settings`` of the agent are fields of the request (``reasoning``, ``max_output_tokens``, ``temperature`` ...). A
      list of ``tools`` there holds tools that the provider runs itself; it goes with the agent's own. A summary is
      asked for without them, and in plain text.
    - Without ``api_key`` the environment's ``OPENAI_API_KEY`` is used, and without ``base_url`` its
      ``OPENAI_BASE_URL`` or OpenAI's own address. Whether there is a key is seen when a request is made. A ``client``
      of the SDK is used as it is, but for its retries, which are off.
    - ``provider`` is stored with each answer, as what ``provider:name`` begins with. Give one of your own where another
      server answers under names of OpenAI's.
    - ``store`` lets the provider keep requests and answers. Nothing here needs it: reasoning is kept encrypted and sent
      back. ``encrypted_reasoning`` says whether to ask for it; None tells by the model's name.
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
        provider: str = PROVIDER,
        store: bool = False,
        encrypted_reasoning: bool | None = None,
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
            flags={"store": store},
            choices={"encrypted_reasoning": encrypted_reasoning},
        )
        self._identity = ModelIdentity(provider=provider, name=name)
        self._limits = limits or ModelLimits()
        self._store = store
        self._encrypted = _NOT_REASONING.match(name) is None if encrypted_reasoning is None else encrypted_reasoning
        self._prices = prices
        self._clients = Clients(
            client=client,
            api_key=api_key,
            base_url=base_url,
            headers=headers,
            timeout_ms=timeout_ms,
            key_needed=True,
        )

    def __repr__(self) -> str:
        return f"OpenAIModel({self._identity.name!r})"

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
        return _ResponseStream(self._clients, self._fields(request, names), names, self._prices)

    async def aclose(self) -> None:
        """Close the connections that are kept for the running event loop. The model can be used again."""
        await self._clients.aclose()

    def _fields(self, request: ModelRequest, names: SentNames) -> dict[str, Any]:
        settings = checked_settings(request, RESERVED)
        bound_answer(settings, "max_output_tokens", request.max_output_tokens)
        leave_out_of_summary(request, settings, NOT_IN_SUMMARIES)
        if request.purpose == "summary":
            leave_out_of_object(settings, "text", "format")
        fields: dict[str, Any] = {
            "model": self._identity.name,
            "input": response_input(request.messages, names, self._identity),
            "store": self._store,
            "prompt_cache_key": cache_key(request),
        }
        if request.instructions:
            fields["instructions"] = request.instructions
        tools = [
            {
                "type": "function",
                "name": names.sent(tool.name),
                "description": tool.description,
                "parameters": parameters_of(tool.parameters),
                "strict": False,
            }
            for tool in request.tools
        ] + setting_list(settings, "tools", Mapping, "objects")
        choose_tools(settings, names, tools=bool(tools))
        if tools:
            fields["tools"] = tools
        include = setting_list(settings, "include", str, "texts")
        sent_back = self._encrypted and request.purpose == "answer"
        if sent_back and "reasoning.encrypted_content" not in include:
            include.append("reasoning.encrypted_content")
        if include:
            fields["include"] = include
        if request.output is not None:
            schema = {"type": "json_schema", "name": request.output.name, "schema": request.output.schema}
            settings["text"] = {"format": schema | {"strict": False}} | setting_object(settings, "text")
        return fields | settings


class _ResponseStream(AnswerStream):
    """One answer of the Responses API: items as they are told apart, contents by their place in the item."""

    def __init__(self, clients: Clients, fields: dict[str, Any], names: SentNames, prices: Prices | None) -> None:
        super().__init__()
        self._clients = clients
        self._fields = fields
        self._names = names
        self._prices = prices
        self._stream: Any = None
        self._items = Items()
        self._refused: list[str] = []
        self._calls = 0

    async def _send(self) -> None:
        client = self._clients.current()
        model, given = self._fields.pop("model"), self._fields.pop("input")
        self._stream = await client.responses.create(model=model, input=given, stream=True, extra_body=self._fields)

    async def _next(self) -> Any:
        return await self._stream.__anext__()

    async def _close(self) -> None:
        if self._stream is not None:
            await close_events(self._stream, ended=self._settled is not None)

    def _secrets(self) -> Iterator[str]:
        return self._clients.secrets()

    def _take(self, event: Any) -> AssistantMessage | None:
        match field(event, "type"):
            case "response.output_item.added":
                said = field(event, "item")
                self._begin(self._items.begin(field(event, "output_index"), said), said)
            case "response.content_part.added":
                if field(field(event, "part"), "type") in ("output_text", "refusal"):
                    self._add_text(event)
            case "response.output_text.delta" | "response.refusal.delta":
                self._add_text(event)
            case "response.reasoning_summary_part.added":
                item = self._item(event, "reasoning")
                if self.parts.text(item) and not item.whole:
                    self.parts.add(item, "\n\n")
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add(self._item(event, "reasoning"), "thinking", field(event, "delta"))
            case "response.function_call_arguments.delta":
                self._add(self._item(event, "function_call"), "tool_call", field(event, "delta"))
            case "response.function_call_arguments.done":
                item = self._item(event, "function_call")
                if not self.parts.text(item):  # of a server that says them at once
                    self._add(item, "tool_call", field(event, "arguments"))
            case "response.output_item.done":
                said = field(event, "item")
                self._end(self._item(event, text_of(field(said, "type"))), said)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                response = field(event, "response")
                status = field(response, "status") or field(event, "type").removeprefix("response.")
                return self._settle(response, status)
            case "error":
                raise error_of_body(field(event, "error") or {name: field(event, name) for name in ("code", "message")})
            case _:
                pass
        return None

    def _item(self, event: Any, type: str) -> Item:
        id = field(event, "item_id") or field(field(event, "item"), "id")
        return self._items.of(field(event, "output_index"), text_of(id), type)

    def _add(self, item: Item, kind: Literal["thinking", "tool_call"], text: str | None) -> None:
        if not item.whole:
            self.parts.start(item, kind)
            self.parts.add(item, text or "")

    def _add_text(self, event: Any) -> None:
        item, number = self._item(event, "message"), field(event, "content_index") or 0
        if not item.whole:
            if number not in item.contents:
                item.contents.append(number)
            self.parts.start((item, number), "text")
            self.parts.add((item, number), field(event, "delta") or "")

    def _begin(self, item: Item, said: Any) -> None:
        match field(said, "type"):
            case "function_call":
                name = self._names.given(text_of(field(said, "name")))
                self.parts.start(item, "tool_call", id=text_of(field(said, "call_id")), name=name)
            case "reasoning":
                self.parts.start(item, "thinking")
            case _:
                pass

    def _end(self, item: Item, said: Any) -> None:
        """An item is whole: what it says now counts, whatever its deltas said."""
        if item.whole:
            return
        item.whole, item.said, item.id = True, said, text_of(field(said, "id")) or item.id
        match field(said, "type"):
            case "message":
                self._end_message(item, said)
            case "function_call":
                self._begin(item, said)
                self._calls += 1
                name = self._names.given(text_of(field(said, "name")))
                text = text_of(field(said, "arguments"))
                kept = signature_of({"id": field(said, "id"), "namespace": field(said, "namespace")})
                id = text_of(field(said, "call_id"))
                self.parts.end(item, call_part(id, name, text or self.parts.text(item), signature=kept))
            case "reasoning":
                self._begin(item, said)
                self.parts.end(item, _reasoning(said))
            case _:
                self.parts.whole(ProviderPart(provider=PROVIDER, data=_data(said)))

    def _end_message(self, item: Item, said: Any) -> None:
        kept = signature_of({"id": field(said, "id"), "phase": field(said, "phase")})
        contents = list(field(said, "content") or ())
        numbers = list(range(len(contents)))
        if not set(item.contents) <= set(numbers):  # counted otherwise: then they are known by their order
            numbers = item.contents + [max(item.contents) + 1 + number for number in numbers]
        for number, content in zip(numbers, contents, strict=False):
            refused = field(content, "type") == "refusal"
            text = field(content, "refusal" if refused else "text") or ""
            if refused:
                self._refused.append(text)
            key = (item, number)
            self.parts.start(key, "text")
            self.parts.end(key, TextPart(text=text, signature=kept))

    def _settle(self, response: Any, status: str) -> AssistantMessage:
        for item, said in self._items.listed(list(field(response, "output") or ())):
            self._end(item, said)  # a server may say it here only
        if status == "completed":
            self._end_all()
        usage = _usage(field(response, "usage"))
        if usage is not None:
            self.parts.see(usage if self._prices is None else self._prices.priced(usage))
        reason = field(field(response, "incomplete_details"), "reason")
        if status in ("failed", "cancelled"):
            body = _data(field(response, "error")) or {"message": f"the response is {status}"}
            return settled(self.parts, "stop", error=error_of_body(body))
        if status == "incomplete" and reason == "content_filter":
            return settled(self.parts, "stop", error=content_filter())
        if self._refused:
            return settled(self.parts, "stop", error=refusal(" ".join(self._refused)))
        if status == "incomplete":
            return settled(self.parts, "length")
        return settled(self.parts, "tool_calls" if self._calls else "stop")

    def _end_all(self) -> None:
        """The answer is whole, so what was streamed of it is, though nothing said so of each item."""
        for item in self._items.all:
            if item.whole:
                continue
            if item.type == "function_call":
                self._end(item, {name: field(item.said, name) for name in ("type", "id", "call_id", "name")})
            elif item.type == "reasoning" and self.parts.has(item):
                item.whole = True
                self.parts.end(item, ThinkingPart(text=self.parts.text(item)))
            for number in item.contents:
                item.whole = True
                self.parts.end((item, number), TextPart(text=self.parts.text((item, number))))


def _reasoning(item: Any) -> ThinkingPart:
    """The reasoning with what it takes to send it back. The item itself is that: its summary has to be as it was."""
    data = _data(item)
    texts = [field(part, "text") or "" for part in (*(data.get("summary") or ()), *(data.get("content") or ()))]
    kept = {name: data.get(name) for name in ("id", "summary", "content", "encrypted_content")}
    return ThinkingPart(text="\n\n".join(text for text in texts if text), signature=signature_of(kept))


def _usage(given: Any) -> Usage | None:
    if given is None:
        return None
    read, made = field(given, "input_tokens_details"), field(given, "output_tokens_details")
    return Usage(
        input_tokens=count(field(given, "input_tokens")),
        output_tokens=count(field(given, "output_tokens")),
        cache_read_tokens=count(field(read, "cached_tokens")),
        cache_write_tokens=count(field(read, "cache_write_tokens")),
        reasoning_tokens=count(field(made, "reasoning_tokens")),
    )


def _data(item: Any) -> dict[str, Any]:
    """An object of the SDK as JSON data, without what was not said."""
    if item is None or isinstance(item, Mapping):
        return dict(item or {})
    return dict(item.to_dict(mode="json"))
