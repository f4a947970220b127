"""Messages of the library written in each form again: what reading them back must give the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentlane import (
    AssistantMessage,
    ImagePart,
    Message,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)


def written(messages: Sequence[Message], format: str) -> list[dict[str, Any]]:
    """The messages in a form."""
    if format == "openai":
        return [_openai(each) for each in messages]
    if format == "anthropic":
        return _anthropic(messages)
    return [{"type": "message", "message": _recorded(each)} for each in messages]


def _openai(message: Message) -> dict[str, Any]:
    if isinstance(message, UserMessage):
        return {"role": "user", "content": [_openai_part(part) for part in message.content]}
    if isinstance(message, ToolResultMessage):
        content = [_openai_part(part) for part in message.content]
        return {"role": "tool", "tool_call_id": message.call_id, "content": content}
    content = [part for part in message.content if not isinstance(part, ToolCallPart)]
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": _text_of(part)}}
        for part in message.calls
    ]
    said = [part.data if isinstance(part, ProviderPart) else _openai_part(part) for part in content]
    return {"role": "assistant", "content": said or None, **({"tool_calls": calls} if calls else {})}


def _openai_part(part: Any) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"}}
    assert isinstance(part, TextPart)
    return {"type": "text", "text": part.text}


def _text_of(call: ToolCallPart) -> str:
    return json.dumps(call.arguments) if call.arguments is not None else str(call.arguments_text)


def _anthropic(messages: Sequence[Message]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            block = {
                "type": "tool_result",
                "tool_use_id": message.call_id,
                "content": [_anthropic_block(part) for part in message.content],
                "is_error": message.is_error,
            }
            if made and made[-1]["role"] == "user":
                made[-1]["content"].append(block)
            else:
                made.append({"role": "user", "content": [block]})
            continue
        role = "user" if isinstance(message, UserMessage) else "assistant"
        made.append({"role": role, "content": [_anthropic_block(part) for part in message.content]})
    return made


def _anthropic_block(part: Any) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image", "source": {"type": "base64", "media_type": part.mime_type, "data": part.data}}
        case ThinkingPart(redacted=True):
            return {"type": "redacted_thinking", "data": part.signature}
        case ThinkingPart():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCallPart():
            given = json.loads(str(part.arguments_text)) if part.arguments is None else part.arguments
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}
        case ProviderPart():
            return dict(part.data)
    raise AssertionError(part)


_STOPS = {"stop": "stop", "tool_calls": "toolUse", "length": "length", "error": "error", "aborted": "aborted"}


def _recorded(message: Message) -> dict[str, Any]:
    content = [_recorded_part(part) for part in message.content]
    if isinstance(message, UserMessage):
        return {"role": "user", "content": content, "timestamp": message.sent_at}
    if isinstance(message, ToolResultMessage):
        return {
            "role": "toolResult",
            "toolCallId": message.call_id,
            "toolName": message.name,
            "content": content,
            "details": message.details,
            "isError": message.is_error,
            "timestamp": message.sent_at,
        }
    return {
        "role": "assistant",
        "content": content,
        "stopReason": _STOPS[message.stop_reason],
        "timestamp": message.sent_at,
        **_of_the_request(message),
    }


def _of_the_request(message: AssistantMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if message.model is not None:
        found |= {"provider": message.model.provider, "model": message.model.name}
    if message.error is not None:
        found["errorMessage"] = message.error.message
    if message.usage is not None:
        usage = message.usage
        cost = None if usage.cost_nanos is None else {"total": usage.cost_nanos / 1_000_000_000}
        cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
        found["usage"] = {
            "input": None if usage.input_tokens is None else usage.input_tokens - cached,
            "output": usage.output_tokens,
            "cacheRead": usage.cache_read_tokens,
            "cacheWrite": usage.cache_write_tokens,
            "cost": cost,
        }
    return found


def _recorded_part(part: Any) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image", "data": part.data, "mimeType": part.mime_type}
        case ThinkingPart():
            return {"type": "thinking", "thinking": part.text, "thinkingSignature": part.signature}
        case ToolCallPart(arguments=None):
            return {"type": "toolCall", "id": part.id, "name": part.name, "partialJson": part.arguments_text}
        case ToolCallPart():
            return {"type": "toolCall", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ProviderPart():
            return dict(part.data)
    raise AssertionError(part)
