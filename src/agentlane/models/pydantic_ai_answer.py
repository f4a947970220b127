"""pydantic-ai's stream of events as frames and the settled answer. Pure: events in, frames out; no I/O.

- Deltas are shown as they come. Parts end with the answer: where pydantic-ai says that one has ended, it may still add
  to it, and it says so of one that broke off.
- An answer has ended once its provider said why. pydantic-ai makes up a reason where some server gave none.
- A pause of the provider's own tools is no end: the answer goes on in the next response (``paused``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs
from pydantic_ai import messages as pai

from agentlane import AssistantMessage, ModelError, TextPart, Usage
from agentlane.models.answering import AnswerParts, PartKind, count, settled
from agentlane.models.http_errors import MESSAGE_LENGTH_MAX, content_filter, refusal
from agentlane.models.prices import Prices
from agentlane.models.pydantic_ai_marks import Foreign, Marks, arguments_text
from agentlane.models.sent_names import SentNames


class Answer:
    """One answer as it arrives, over one response or, where the provider pauses, several; it fills ``parts``."""

    def __init__(self, parts: AnswerParts, names: SentNames, marks: Marks, prices: Prices | None = None) -> None:
        self._parts = parts
        self._names = names
        self._marks = marks
        self._prices = prices
        self._round = 0
        self._begun: dict[int, PartKind | None] = {}
        """What has begun in this response, by pydantic-ai's number: its kind, or None for what is shown when whole."""
        self._calls = 0
        self._before: Foreign | None = None
        self._so_far: Foreign | None = None

    def take(self, event: Foreign, usage: Foreign) -> None:
        """Show what an event says, and what is known of the usage behind it."""
        if isinstance(event, pai.PartStartEvent):
            self._start(event.index, event.part)
        elif isinstance(event, pai.PartDeltaEvent) and self._begun.get(event.index) is not None:
            delta = event.delta
            args = getattr(delta, "args_delta", None)
            text = args if args is not None else getattr(delta, "content_delta", None)
            if isinstance(text, str):
                self._parts.add(self._key(event.index), text)
        if usage.input_tokens:
            self._see(usage, early=True)

    def pause(self, response: Foreign) -> Foreign:
        """The provider is asked to go on: gives what it said so far, to be sent back to it as it came."""
        self._whole(response)
        parts = [*(() if self._so_far is None else self._so_far.parts), *response.parts]
        self._so_far = replace(response, parts=parts)
        self._before = response.usage if self._before is None else self._before + response.usage
        self._round += 1
        self._begun = {}
        return self._so_far

    def finish(self, response: Foreign) -> AssistantMessage:
        """The settled answer of a response that ended."""
        self._whole(response)
        self._see(response.usage)
        details = response.provider_details or {}
        told, reason = details.get("refusal"), details.get("finish_reason")
        refused = told if isinstance(told, str) else ""
        if refused and reason != "refusal":  # in the model's own words
            self._parts.start("refusal", "text")
            self._parts.add("refusal", refused)
            self._parts.end("refusal", TextPart(text=refused))
        match response.finish_reason:
            case "content_filter" if refused or reason == "refusal":
                return settled(self._parts, "stop", error=refusal(_why(refused, details)))
            case "content_filter":
                return settled(self._parts, "stop", error=content_filter())
            case "error":
                text = f"the provider ended the answer with an error: {reason or 'no reason was given'}"
                failed = ModelError(text[:MESSAGE_LENGTH_MAX], kind="model_error", retryable=True)
                return settled(self._parts, "stop", error=failed)
            case "length" if reason == "model_context_window_exceeded" and not self._parts.content:
                full = ModelError("the conversation leaves no room for an answer", kind="context_overflow")
                return settled(self._parts, "stop", error=full)
            case "length":
                return settled(self._parts, "length")
            case _:
                return settled(self._parts, "tool_calls" if self._calls else "stop")

    def _start(self, index: int, part: Foreign) -> None:
        if index in self._begun:
            return  # it came again, with more in it; what it is in the end is seen then
        key = self._key(index)
        kind = _kind(part)
        self._begun[index] = kind
        match kind:
            case None:
                self._parts.hold(key)
            case "tool_call":
                name = self._names.given(part.tool_name)
                self._parts.start(key, kind, id=part.tool_call_id, name=name)
                if isinstance(part.args, str):
                    self._parts.add(key, part.args)
            case _:
                self._parts.start(key, kind)
                self._parts.add(key, part.content)

    def _whole(self, response: Foreign) -> None:
        """End the parts of a response, by what pydantic-ai says of each in the end."""
        origin = self._marks.usual.of(response)
        begun = iter(sorted(self._begun))
        for number, part in enumerate(response.parts):
            index = next(begun, None)
            if index is None:
                index = number + len(response.parts)
                self._start(index, part)
            key = self._key(index)
            match _kind(part):
                case "text":
                    text = self._marks.text(part, origin)
                    self._rest(key, text.text)
                    self._parts.end(key, text)
                case "thinking":
                    thinking = self._marks.thinking(part, origin)
                    self._rest(key, thinking.text)
                    self._parts.end(key, thinking)
                case "tool_call":
                    self._calls += 1
                    self._rest(key, arguments_text(part.args))
                    self._parts.end(key, self._marks.call(part, origin, self._names.given(part.tool_name)))
                case None:
                    self._parts.end(key, self._marks.other(part, origin))

    def _rest(self, key: object, text: str) -> None:
        """Show what was not shown of a part that is whole."""
        shown = self._parts.text(key)
        if text.startswith(shown):
            self._parts.add(key, text[len(shown) :])

    def _see(self, usage: Foreign, *, early: bool = False) -> None:
        known = usage_of(usage if self._before is None else self._before + usage)
        if known is not None and early:  # what was said is counted at the end
            known = structs.replace(known, output_tokens=None, reasoning_tokens=None)
        if known is not None:
            self._parts.see(known if self._prices is None else self._prices.priced(known))

    def _key(self, index: int) -> object:
        return self._round, index


def usage_of(given: Foreign) -> Usage | None:
    """The counts that a response was given. pydantic-ai has zero for those that were not: they are unknown."""
    if getattr(given, "unmeasured_requests", 0):
        return None
    counts = {
        "input_tokens": given.input_tokens,
        "output_tokens": given.output_tokens,
        "cache_read_tokens": given.cache_read_tokens,
        "cache_write_tokens": given.cache_write_tokens,
        "reasoning_tokens": given.output_reasoning_tokens or (given.details or {}).get("reasoning_tokens"),
    }
    known = {name: count(value) or None for name, value in counts.items()}
    return Usage(**known) if any(known.values()) else None


def _kind(part: Foreign) -> PartKind | None:
    match part:
        case pai.TextPart():
            return "text"
        case pai.ThinkingPart():
            return "thinking"
        case pai.ToolCallPart():
            return "tool_call"
        case _:
            return None


def _why(refused: str, details: dict[str, Any]) -> str:
    category = details.get("refusal_category")
    return f"{refused} (category {category})".strip() if category else refused
