"""pydantic-ai's own models, pointed at servers on loopback, as places for the check of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from agentlane import ProviderPart, TextPart, ThinkingPart, ToolCallPart, Usage
from agentlane.models.pydantic_ai import PydanticAIModel
from agentlane.testing import ModelPlace, ProviderAnswer
from tests.wire import anthropic_place
from tests.wire.anthropic_client import client_of
from tests.wire.anthropic_rules import Provider
from tests.wire.openai_answers import chat_events
from tests.wire.openai_apis import CHAT
from tests.wire.openai_rules import breaches_of_responses
from tests.wire.server import Reply, WireServer, failure, sse

TEXT = "Grüße 🙂 in\nzwei Zeilen"
ARGUMENTS = '{"path": "ä/🙂.txt", "lines": [1, 2]}'
USAGE = Usage(input_tokens=120, output_tokens=30, cache_read_tokens=100, cache_write_tokens=8, reasoning_tokens=20)
FINISH = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}


def anthropic_model(client: Any, **options: Any) -> PydanticAIModel:
    """A model of Anthropic through pydantic-ai, with a client of the SDK that its user closes."""
    return PydanticAIModel(
        AnthropicModel("claude-test", provider=AnthropicProvider(anthropic_client=client)), **options
    )


def openai_client(url: str, key: str = "key") -> AsyncOpenAI:
    """A client for a server on loopback. It reads no certificates, which takes longer than a test."""
    return AsyncOpenAI(api_key=key, base_url=f"{url}/v1", http_client=DefaultAsyncHttpxClient(verify=False))


def chat_model(client: Any, **options: Any) -> PydanticAIModel:
    """A model over Chat Completions through pydantic-ai."""
    return PydanticAIModel(OpenAIChatModel("gpt-test", provider=OpenAIProvider(openai_client=client)), **options)


def chat_breaches(body: dict[str, Any]) -> list[str]:
    """What the interface would refuse. ``content`` may be null beside calls, as pydantic-ai has it."""
    bare = [
        {
            name: value
            for name, value in each.items()
            if name != "content" or value is not None or not each.get("tool_calls")
        }
        for each in body["messages"]
    ]
    return CHAT.breaches({**body, "messages": bare})


@asynccontextmanager
async def wire(*replies: Reply, **options: Any) -> AsyncIterator[tuple[WireServer, PydanticAIModel]]:
    with WireServer(replies) as server:
        async with openai_client(server.url) as client:
            yield server, chat_model(client, **options)
        assert not server.surplus, "the SDK asked again by itself"
        assert [breach for each in server.requests for breach in chat_breaches(each.body)] == []


@asynccontextmanager
async def responses(*replies: Reply) -> AsyncIterator[tuple[WireServer, PydanticAIModel]]:
    with WireServer(replies) as server:
        async with openai_client(server.url) as client:
            own = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))
            yield server, PydanticAIModel(own)
        assert not server.surplus, "the SDK asked again by itself"
        assert [breach for each in server.requests for breach in breaches_of_responses(each.body)] == []


def plain(message: Any) -> list[tuple[str, ...]]:
    """The parts of a message without the provider's marks on them."""
    found: list[tuple[str, ...]] = []
    for part in message.content:
        match part:
            case TextPart(text=text):
                found.append(("text", text))
            case ThinkingPart(text=text):
                found.append(("thinking", text))
            case ToolCallPart():
                found.append(("call", part.id, part.name, repr(part.arguments)))
            case ProviderPart(data=data):
                found.append(("other", data["part_kind"]))
    return found


@asynccontextmanager
async def anthropic(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
    with Provider(*(anthropic_place.said(answer, cut=False) for answer in answers)) as provider:
        async with client_of(provider) as client:
            model = anthropic_model(client)
            yield ModelPlace(model=model, sent=lambda: [each.data.decode() for each in provider.server.requests])
        assert not provider.violations, provider.violations


@asynccontextmanager
async def chat(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
    with WireServer(list(map(said_by_chat, answers))) as server:
        async with openai_client(server.url) as client:
            yield ModelPlace(model=chat_model(client), sent=lambda: [each.data.decode() for each in server.requests])
        assert [breach for each in server.requests for breach in chat_breaches(each.body)] == []


def said_by_chat(answer: ProviderAnswer) -> Reply:
    """What a server of Chat Completions says."""
    if answer.ends == "overloaded" and not answer.parts:
        wait = {} if answer.retry_after_ms is None else {"retry_after_ms": str(answer.retry_after_ms)}
        return failure(503, {"error": {"message": "busy", "code": "overloaded"}}, **wait)
    text = "".join(part.text for part in answer.parts if isinstance(part, TextPart))
    thought = "".join(part.text for part in answer.parts if isinstance(part, ThinkingPart))
    calls = [  # pydantic-ai tells calls apart by their index, so ids may be as they are
        (part.id, part.name, json.dumps(part.arguments) if part.arguments_text is None else part.arguments_text)
        for part in answer.parts
        if not isinstance(part, TextPart | ThinkingPart)
    ]
    usage = answer.usage and {
        "prompt_tokens": answer.usage.input_tokens,
        "completion_tokens": answer.usage.output_tokens,
    }
    reasoned = {"reasoning_content": thought} if thought else {}
    events = chat_events(text, *calls, finish=FINISH.get(answer.ends, "stop"), usage=usage, **reasoned)
    if answer.ends in FINISH:
        return Reply(pieces=[CHAT.body(events)])
    last = next(n for n, event in enumerate(events) if event["choices"] and event["choices"][0]["finish_reason"])
    shown = events[: last if answer.parts else 0]
    if answer.ends == "overloaded":
        return Reply(pieces=[sse(*shown), sse({"error": {"message": "busy", "code": "overloaded"}})])
    return Reply(pieces=[sse(event) for event in shown], end=answer.ends)  # type: ignore[arg-type]


class Overloaded(ModelHTTPError):
    """What a function says when it is overloaded."""

    def __init__(self) -> None:
        super().__init__(529, "function", {"error": {"type": "overloaded_error", "message": "busy"}})


@asynccontextmanager
async def function(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
    left = list(answers)
    sent: list[str] = []

    async def said(messages: list[Any], info: Any) -> AsyncIterator[Any]:
        told = f"{info.function_tools} {info.model_settings}"
        sent.append(ModelMessagesTypeAdapter.dump_json(messages).decode() + told)
        answer = left.pop(0)
        if answer.ends == "overloaded" and not answer.parts:
            raise Overloaded
        if not answer.parts and answer.ends not in ("cut", "hang"):
            yield ""
        for number, part in enumerate(answer.parts):
            half = answer.half and part is answer.parts[-1]
            for item in _items(number, part, half):
                yield item
        match answer.ends:
            case "overloaded":
                raise Overloaded
            case "cut":
                raise httpx.ReadError("gone")
            case "hang":
                await asyncio.Event().wait()

    model = PydanticAIModel(FunctionModel(stream_function=said, model_name="drawn"))
    yield ModelPlace(model=model, sent=lambda: sent)


def _items(number: int, part: TextPart | ThinkingPart | ToolCallPart, half: bool) -> Iterator[Any]:
    match part:
        case TextPart():
            yield from (part.text[:4], part.text[4:])
        case ThinkingPart():
            yield {number: DeltaThinkingPart(content=part.text[:4])}
            signature = None if half else part.signature
            yield {number: DeltaThinkingPart(content=part.text[4:], signature=signature)}
        case ToolCallPart():
            text = json.dumps(part.arguments) if part.arguments_text is None else part.arguments_text
            yield {number: DeltaToolCall(name=part.name, json_args=text[:3], tool_call_id=part.id)}
            yield {number: DeltaToolCall(json_args=text[3:])}
