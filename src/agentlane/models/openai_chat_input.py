"""A conversation as messages of Chat Completions, by the rules that OpenAI and servers like it check.

- The results of all calls of an answer stand directly behind it, each a message of text. Images that tools returned
  come behind the last of them, in a message of the user.
- No text is empty, and an answer has text or calls. One that has neither any more is left out.
- Arguments are the text of an object, since servers parse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from agentlane import (
    AssistantMessage,
    ImagePart,
    Message,
    ModelIdentity,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.answering import arguments_json, shown_image
from agentlane.models.openai_client import data_url
from agentlane.models.openai_input import FAILED, PROVIDER
from agentlane.models.sent_names import SentIds, SentNames

Item: TypeAlias = dict[str, Any]


def chat_messages(
    messages: Sequence[Message],
    instructions: str,
    names: SentNames,
    identity: ModelIdentity,
    *,
    reasoning_field: str | None,
) -> list[Item]:
    """The messages that the conversation becomes, its instructions first."""
    sent: list[Item] = [{"role": "system", "content": instructions}] if instructions else []
    ids = SentIds()
    images: list[Item] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            sent.append(_result(message, ids))
            images += _images(message)
            continue
        if images:
            sent.append({"role": "user", "content": images})
            images = []
        if isinstance(message, UserMessage):
            sent.append({"role": "user", "content": _content(message)})
        else:
            answer = _answer(message, ids, names)
            if answer is not None:
                if reasoning_field is not None and message.model == identity and (thought := _thought(message)):
                    answer[reasoning_field] = thought
                sent.append(answer)
    if images:
        sent.append({"role": "user", "content": images})
    return sent


def _answer(message: AssistantMessage, ids: SentIds, names: SentNames) -> Item | None:
    text = message.text + "".join(_refusal(part) for part in message.content if isinstance(part, ProviderPart))
    calls = [
        {
            "id": ids.call(call.id),
            "type": "function",
            "function": {"name": names.sent(call.name), "arguments": arguments_json(call)},
        }
        for call in message.calls
    ]
    if not text and not calls:
        return None
    answer: Item = {"role": "assistant"}
    if text:
        answer["content"] = text
    if calls:
        answer["tool_calls"] = calls
    return answer


def _refusal(part: ProviderPart) -> str:
    data = part.data
    if part.provider != PROVIDER or not isinstance(data, dict) or data.get("type") != "refusal":
        return ""
    text = data.get("refusal")
    return text if isinstance(text, str) else ""


def _thought(message: AssistantMessage) -> str:
    return "\n\n".join(part.text for part in message.content if isinstance(part, ThinkingPart) and part.text)


def _content(message: UserMessage) -> str | list[Item]:
    """Text where there is nothing else: not every server takes parts."""
    if all(isinstance(part, TextPart) for part in message.content):
        return "\n\n".join(part.text for part in message.content if isinstance(part, TextPart))
    return [_part(part) for part in message.content]


def _part(part: TextPart | ImagePart) -> Item:
    shown = part.text if isinstance(part, TextPart) else shown_image(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    return {"type": "image_url", "image_url": {"url": data_url(shown)}}


def _result(message: ToolResultMessage, ids: SentIds) -> Item:
    images = any(isinstance(part, ImagePart) for part in message.content)
    text = message.text or ("(its images follow)" if images else "(no output)")
    content = (FAILED if message.is_error else "") + text
    return {"role": "tool", "tool_call_id": ids.result(message.call_id), "content": content}


def _images(message: ToolResultMessage) -> list[Item]:
    images = [_part(part) for part in message.content if isinstance(part, ImagePart)]
    return [{"type": "text", "text": f"What the tool {message.name} returned:"}, *images] if images else []
