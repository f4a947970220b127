"""What pydantic-ai keeps beside a part's text and has to get back: ids, signatures, details, parts that only it knows.

Its own adapter of messages writes and reads all of it, so that what goes back is what came. A part keeps it in its
``signature``: the provider's as it is where there is nothing else to keep, and otherwise as JSON under one key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_ai import messages as pai

from agentlane import ProviderPart, TextPart, ThinkingPart, ToolCallPart
from agentlane.models.answering import call_part

PROVIDER = "pydantic-ai"
"""What parts that only pydantic-ai knows are kept under, and what its models' names begin with."""

REDACTED = ("redacted_thinking", "redacted_content")
"""How pydantic-ai marks reasoning that may not be shown: by its id."""

Foreign: TypeAlias = Any
"""An object of pydantic-ai: foreign, whether its types are installed here or not."""

_PREFIX = f'{{"{PROVIDER}":'


@dataclass(frozen=True)
class Origin:
    """Whom pydantic-ai says an answer is from; it decides by this what it sends back to whom."""

    provider_name: str | None
    canonical_system: str | None = None

    def of(self, response: Foreign) -> Origin:
        """That of a response; one that does not say is from whom this is."""
        system = getattr(response, "canonical_system", None)
        if response.provider_name is None and system is None:
            return self
        return Origin(response.provider_name, system)


class Marks:
    """The marks of one model's answers. ``usual`` is whom they are from where a mark does not say."""

    def __init__(self, usual: Origin) -> None:
        self.usual = usual

    def text(self, part: Foreign, origin: Origin) -> TextPart:
        """A text as it is kept."""
        return TextPart(text=part.content, signature=self._mark(part, origin, "content"))

    def thinking(self, part: Foreign, origin: Origin) -> ThinkingPart:
        """Reasoning as it is kept."""
        redacted = part.id in REDACTED
        beside = {**_written(part), "part_kind": None, "content": None, "signature": None}
        if beside.get("provider_name") == self.usual.provider_name:
            beside["provider_name"] = None
        if part.id == REDACTED[0] and not part.content:
            beside["id"] = None
        plain = origin == self.usual and not any(value is not None for value in beside.values())
        signature = part.signature
        if not plain or (signature or "").startswith(_PREFIX):
            signature = self._mark(part, origin, "content")
        return ThinkingPart(text=part.content, signature=signature or None, redacted=redacted)

    def call(self, part: Foreign, origin: Origin, name: str) -> ToolCallPart:
        """A call as it is kept, under the name of the tool that is meant."""
        mark = self._mark(part, origin, "args", "tool_name", "tool_call_id")
        return call_part(part.tool_call_id, name, arguments_text(part.args), signature=mark)

    def other(self, part: Foreign, origin: Origin) -> ProviderPart:
        """A part of a kind of its own, whole."""
        data = _written(part)
        return ProviderPart(provider=PROVIDER, data=data if origin == self.usual else {**data, "from": _told(origin)})

    def thinking_back(self, part: ThinkingPart) -> tuple[Foreign, Origin]:
        """Reasoning as it came, and whom it is from."""
        kept = _kept(part.signature)
        if kept is not None:
            return self._back(kept, part_kind="thinking", content=part.text)
        id = REDACTED[0] if part.redacted else None
        name = self.usual.provider_name
        back = pai.ThinkingPart(content=part.text, id=id, signature=part.signature, provider_name=name)
        return back, self.usual

    def text_back(self, part: TextPart) -> tuple[Foreign, Origin]:
        """A text as it came."""
        kept = _kept(part.signature)
        if kept is None:
            return pai.TextPart(content=part.text), self.usual
        return self._back(kept, part_kind="text", content=part.text)

    def call_back(self, part: ToolCallPart, name: str, id: str, arguments: dict[str, Any]) -> tuple[Foreign, Origin]:
        """A call as it came, but for the name and the id that it is sent with."""
        kept = _kept(part.signature)
        if kept is None:
            return pai.ToolCallPart(tool_name=name, args=arguments, tool_call_id=id), self.usual
        return self._back(kept, part_kind="tool-call", tool_name=name, args=arguments, tool_call_id=id)

    def other_back(self, part: ProviderPart) -> tuple[Foreign, Origin] | None:
        """A part of a kind of its own as it came; None for one that this version of pydantic-ai cannot read."""
        if part.provider != PROVIDER or not isinstance(part.data, dict):
            return None
        try:
            return self._back(part.data)
        except ValueError:
            return None

    def _mark(self, part: Foreign, origin: Origin, *fields: str) -> str | None:
        """What a part has beside these fields, for its signature; None if that is nothing."""
        usual = ("part_kind", *fields)
        kept = {name: value for name, value in _written(part).items() if name not in usual and value is not None}
        if set(kept) == {"provider_name"} and kept["provider_name"] == self.usual.provider_name:
            kept = {}
        if origin != self.usual:
            kept["from"] = _told(origin)
        return json.dumps({PROVIDER: kept}, ensure_ascii=False, separators=(",", ":")) if kept else None

    def _back(self, kept: dict[str, Any], **fields: Any) -> tuple[Foreign, Origin]:
        told = kept.get("from")
        origin = Origin(*told) if isinstance(told, list) and len(told) == 2 else self.usual
        data = {name: value for name, value in kept.items() if name != "from"} | fields
        read = pai.ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": [data]}])
        return read[0].parts[0], origin


def arguments_text(args: object) -> str:
    """The arguments of a call as text."""
    if args is None or args == {}:
        return ""
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)


def _told(origin: Origin) -> list[str | None]:
    return [origin.provider_name, origin.canonical_system]


def _written(part: Foreign) -> dict[str, Any]:
    """A part as pydantic-ai writes it, without what it does not have."""
    written = pai.ModelMessagesTypeAdapter.dump_python([pai.ModelResponse(parts=[part])], mode="json")
    given: dict[str, Any] = written[0]["parts"][0]
    return {name: value for name, value in given.items() if value is not None}


def _kept(signature: str | None) -> dict[str, Any] | None:
    """What a mark of ours holds; None for a signature that is the provider's own."""
    if signature is None or not signature.startswith(_PREFIX):
        return None
    try:
        kept = json.loads(signature)[PROVIDER]
    except (KeyError, ValueError):
        return None
    return kept if isinstance(kept, dict) else None
