"""A conversation as input of the Responses API, by the rules that the API checks.

- A call's output stands behind it, under its ``call_id``; these are unique and at most 64 characters long.
- An item's own ``id`` appears once. Those of an answer go back with it, or none of them does.
- Reasoning goes back encrypted, to the model whose it is, and only with the item that followed it, which is known by
  its id: alone at the end of an answer it is refused, and so is what followed it under its own id without it.
- What a tool of the provider did goes back if it is complete in itself. A call that waits for an output from elsewhere
  does not: nobody has run it.
"""

from __future__ import annotations

import json
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
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.answering import arguments_json, shown_image
from agentlane.models.openai_client import data_url
from agentlane.models.sent_names import SentIds, SentNames

Item: TypeAlias = dict[str, Any]

PROVIDER = "openai"
"""The provider that parts of this API are kept under."""

# Items of tools that the provider runs itself and that hold their own outcome.
COMPLETE_ITEMS = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("mcp_call", "mcp_list_tools", "compaction"),
    }
)
FAILED = "[error] "
"""Goes before the output of a call that failed: the API has no field for it."""


def response_input(messages: Sequence[Message], names: SentNames, identity: ModelIdentity) -> list[Item]:
    """The items that the messages become."""
    items: list[Item] = []
    ids = SentIds()
    used: set[str] = set()
    for message in messages:
        if isinstance(message, UserMessage):
            items.append({"type": "message", "role": "user", "content": [_input(part) for part in message.content]})
        elif isinstance(message, ToolResultMessage):
            items.append(_output(message, ids))
        else:
            items += _Answer(message, names, ids, own=message.model == identity).items(used)
    return items


def signature_of(fields: dict[str, Any]) -> str | None:
    """The opaque mark that keeps what an item has beside its text; None if it has nothing."""
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else None


class _Answer:
    """One answer's items, first with everything they have, and then as far as they may be sent."""

    def __init__(self, message: AssistantMessage, names: SentNames, ids: SentIds, *, own: bool) -> None:
        self._names = names
        self._ids = ids
        self._own = own
        self._items: list[Item | None] = []
        """None stands where something was that is not sent."""
        for part in message.content:
            self._add(part)

    def items(self, used: set[str]) -> list[Item]:
        whole = self._ids_are_new(used)
        following: Item | None = None
        for place in reversed(range(len(self._items))):
            item = self._items[place]
            alone = following is None or "id" not in following
            if item is not None and item["type"] == "reasoning" and (alone or not whole):
                self._items[place] = item = None
                whole = False
            following = item
        kept = [item for item in self._items if item is not None]
        if whole and None not in self._items:
            used.update(item["id"] for item in kept if "id" in item)
            return [item if "id" in item else _without_id(item) or item for item in kept]
        return [bare for item in kept if (bare := _without_id(item)) is not None]

    def _ids_are_new(self, used: set[str]) -> bool:
        ids = [item["id"] for item in self._items if item is not None and "id" in item]
        return len(set(ids)) == len(ids) and not used & set(ids)

    def _add(self, part: TextPart | ThinkingPart | ToolCallPart | ProviderPart) -> None:
        match part:
            case TextPart():
                self._add_text(part)
            case ThinkingPart():
                kept = self._kept(part.signature)
                whole = kept.get("encrypted_content") and kept.get("id")
                self._items.append({"type": "reasoning", "summary": [], **kept} if whole else None)
            case ToolCallPart():
                item = {
                    "type": "function_call",
                    "call_id": self._ids.call(part.id),
                    "name": self._names.sent(part.name),
                    "arguments": arguments_json(part),
                }
                self._items.append(item | self._kept(part.signature))
            case ProviderPart():
                self._items.append(self._provided(part))

    def _add_text(self, part: TextPart) -> None:
        if not part.text:
            return
        content = {"type": "output_text", "text": part.text, "annotations": []}
        kept = self._kept(part.signature)
        last = self._items[-1] if self._items else None
        if last is not None and last["type"] == "message" and last.get("id") == kept.get("id"):
            last["content"].append(content)
            return
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [content]}
        self._items.append(item | kept)

    def _provided(self, part: ProviderPart) -> Item | None:
        data = part.data
        if part.provider != PROVIDER or not isinstance(data, dict):
            return None
        if data.get("type") == "refusal" and isinstance(text := data.get("refusal"), str) and text:
            content = {"type": "output_text", "text": text, "annotations": []}
            return {"type": "message", "role": "assistant", "status": "completed", "content": [content]}
        complete = data.get("type") in COMPLETE_ITEMS and data.get("status", "completed") == "completed"
        return dict(data) if self._own and complete and data.get("id") else None

    def _kept(self, signature: str | None) -> Item:
        """What the mark holds, if it is of this model and can be read."""
        if not self._own or signature is None:
            return {}
        try:
            kept = json.loads(signature)
        except ValueError:
            return {}
        return kept if isinstance(kept, dict) else {}


def _without_id(item: Item) -> Item | None:
    """The item as one of which the API knows nothing; None for one that cannot be that."""
    bare = {key: value for key, value in item.items() if key not in ("id", "status")}
    match item["type"]:
        case "message":
            text = "".join(part["text"] for part in item["content"])
            return bare | {"content": text}
        case "function_call":
            return bare
        case _:
            return None


def _input(part: TextPart | ImagePart) -> Item:
    shown = part.text if isinstance(part, TextPart) else shown_image(part)
    if isinstance(shown, str):
        return {"type": "input_text", "text": shown}
    return {"type": "input_image", "image_url": data_url(shown), "detail": "auto"}


def _output(message: ToolResultMessage, ids: SentIds) -> Item:
    text = (FAILED if message.is_error else "") + message.text
    images = [part for part in message.content if isinstance(part, ImagePart)]
    output: str | list[Item] = text or "(no output)"
    if images:
        output = [_input(part) for part in message.content if not isinstance(part, TextPart) or part.text]
        if message.is_error:
            output.insert(0, {"type": "input_text", "text": FAILED.strip()})
    return {"type": "function_call_output", "call_id": ids.result(message.call_id), "output": output}
