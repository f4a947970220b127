"""OpenAI's two adapters over loopback as places for the check of models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from agentlane import TextPart, ThinkingPart, ToolCallPart
from agentlane.models.answering import arguments_json
from agentlane.testing import ModelPlace, ProviderAnswer
from tests.wire.openai_answers import Event, chat_events, function_call, message, reasoning, response_events
from tests.wire.openai_apis import CHAT, Api
from tests.wire.server import Reply, WireServer, failure, sse

LACKING = {
    # Its reasoning that may not be shown is like any other, without text.
    "responses": ("redacted",),
    "chat": ("signatures", "redacted"),
}


def places(api: Api, client: Any) -> Callable[[Sequence[ProviderAnswer]], AbstractAsyncContextManager[ModelPlace]]:
    """Places of an interface, all of whose models ask with ``client``, moved to the server of each."""

    @asynccontextmanager
    async def place(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
        with WireServer([said(api, answer) for answer in answers]) as server:
            model = api.adapter("gpt-x", client=client.with_options(base_url=f"{server.url}/v1"))
            yield ModelPlace(model=model, sent=lambda: [each.data.decode() for each in server.requests])
        assert [api.breaches(each.body) for each in server.requests] == [[]] * len(server.requests)

    return place


def said(api: Api, answer: ProviderAnswer) -> Reply:
    """What the provider says, in its own form."""
    if answer.ends == "overloaded" and not answer.parts:
        wait = {} if answer.retry_after_ms is None else {"retry_after_ms": str(answer.retry_after_ms)}
        return failure(503, {"error": {"message": "busy", "code": "server_is_overloaded"}}, **wait)
    events = _chat(answer) if api is CHAT else _responses(answer)
    match answer.ends:
        case "overloaded":
            error = {"error": {"message": "busy", "code": "server_is_overloaded"}}
            return Reply(pieces=[sse(*events, named=api.named), sse(error)])
        case "cut" | "hang":
            return api.broken(events, len(events) if answer.parts else 0, answer.ends)
        case _:
            return Reply(pieces=[api.body(events)])


def _responses(answer: ProviderAnswer) -> list[Event]:
    items = [_item(number, part) for number, part in enumerate(answer.parts)]
    usage = answer.usage and {"input_tokens": answer.usage.input_tokens, "output_tokens": answer.usage.output_tokens}
    incomplete = {"status": "incomplete", "reason": "max_output_tokens"} if answer.ends == "length" else {}
    events = response_events(*items, usage=usage, **incomplete)
    if answer.ends in ("stop", "tool_calls", "length"):
        return events
    events.pop()
    while answer.half and "delta" not in events[-1]["type"]:
        events.pop()
    return events


def _item(number: int, part: TextPart | ThinkingPart | ToolCallPart) -> Event:
    match part:
        case TextPart():
            return message(part.text, f"msg_{number}")
        case ThinkingPart():
            return reasoning(part.text, f"rs_{number}", part.signature)
        case ToolCallPart():
            return function_call(part.name, _arguments(part), call_id=part.id, id=f"fc_{number}")


def _chat(answer: ProviderAnswer) -> list[Event]:
    texts = {kind: "".join(p.text for p in answer.parts if isinstance(p, kind)) for kind in (TextPart, ThinkingPart)}
    calls = [(part.id, part.name, _arguments(part)) for part in answer.parts if isinstance(part, ToolCallPart)]
    usage = answer.usage and {
        "prompt_tokens": answer.usage.input_tokens,
        "completion_tokens": answer.usage.output_tokens,
    }
    fields = {"reasoning_content": texts[ThinkingPart]} if texts[ThinkingPart] else {}
    finish = answer.ends if answer.ends in ("stop", "tool_calls", "length") else None
    events = chat_events(texts[TextPart], *calls, finish=finish, usage=usage, **fields)
    if finish is not None:
        return events
    return events[: len(events) - (1 if usage is None else 2)]


def _arguments(call: ToolCallPart) -> str:
    return arguments_json(call) if call.arguments_text is None else call.arguments_text
