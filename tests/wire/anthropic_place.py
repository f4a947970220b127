"""Anthropic's adapter over loopback as a place for the check of models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentlane import TextPart, ThinkingPart, ToolCallPart
from agentlane.models.anthropic import AnthropicModel
from agentlane.testing import ModelPlace, ProviderAnswer
from tests.wire.anthropic_client import client_of
from tests.wire.anthropic_format import error, error_event, redacted, reply, start, stop, text, thinking, tool
from tests.wire.anthropic_rules import Provider
from tests.wire.server import Reply

REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


@asynccontextmanager
async def place(answers: Sequence[ProviderAnswer]) -> AsyncIterator[ModelPlace]:
    with Provider(*map(said, answers)) as provider:
        async with client_of(provider) as client:
            model = AnthropicModel("claude-test", client=client)
            yield ModelPlace(model=model, sent=lambda: [each.data.decode() for each in provider.server.requests])
        assert not provider.violations, provider.violations


def said(answer: ProviderAnswer, *, cut: bool = True) -> Reply:
    """What the provider says, in its own form; ``cut`` has a signature come in two deltas."""
    if answer.ends == "overloaded" and not answer.parts:
        wait = {} if answer.retry_after_ms is None else {"retry_after_ms": str(answer.retry_after_ms)}
        return error(529, "overloaded_error", "Overloaded", **wait)
    usage = answer.usage
    first = start()
    first["message"]["usage"] = {} if usage is None else {"input_tokens": usage.input_tokens, "output_tokens": 1}
    events: list[Any] = [first]
    for index, part in enumerate(answer.parts):
        events += [{**event, "index": index} for event in block(part, cut)]
    if answer.half:
        events.pop()
        if events[-1].get("delta", {}).get("type") == "signature_delta":
            events.pop()
    match answer.ends:
        case "overloaded":
            return reply([*events, error_event("overloaded_error", "Overloaded")])
        case "cut" | "hang":
            return reply(events if answer.parts else [], end=answer.ends)
        case ends:
            last = stop(REASONS[ends])
            last[0]["usage"] = {} if usage is None else {"output_tokens": usage.output_tokens}
            return reply([*events, *last])


def block(part: TextPart | ThinkingPart | ToolCallPart, cut: bool) -> list[dict[str, Any]]:
    match part:
        case TextPart():
            return text(part.text[:5], part.text[5:])
        case ThinkingPart(redacted=True):
            return redacted(part.signature or "")
        case ThinkingPart():
            return thinking(part.text[:5], part.text[5:], signature=part.signature, cut=cut)
        case ToolCallPart():
            pieces = None if part.arguments_text is None else [part.arguments_text[:3], part.arguments_text[3:]]
            return tool(part.name, part.arguments, id=part.id, pieces=pieces)
