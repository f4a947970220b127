"""Anthropic's stream of events as frames and the settled answer. Pure: events in, frames out; no I/O.

- A block is one part, at its own place: text, thinking (redacted with its data for a signature), a call, and any other
  as it came, a ``ProviderPart``.
- What a block has beside the library's fields and has to have when it goes back (citations of a text, the caller of a
  call) is the part's signature, as JSON.
- The answer is settled by ``message_stop`` and by nothing else.
- A pause of the provider's own tools is no end: the answer goes on in the next response (``paused``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentlane import (
    AssistantMessage,
    ModelError,
    ModelIdentity,
    ProviderPart,
    TextPart,
    ThinkingPart,
    Usage,
)
from agentlane.models.answering import AnswerParts, call_part, count, settled
from agentlane.models.anthropic_request import PROVIDER
from agentlane.models.http_errors import cut_stream, error_of_body, refusal
from agentlane.models.prices import Prices
from agentlane.models.sent_names import SentNames


class Answer:
    """One answer as it arrives, over one response or, where the provider pauses, several; it fills ``parts``."""

    def __init__(self, parts: AnswerParts, names: SentNames, prices: Prices | None = None) -> None:
        self.paused = False
        """The provider paused: its next response goes on with this answer."""
        self._parts = parts
        self._names = names
        self._prices = prices
        self._blocks: dict[object, _Block] = {}
        self._response = 0
        self._begun = False
        self._counts: dict[str, Any] = {}
        self._counted: Usage | None = None
        """The counts of the responses before this one."""
        self._delta: dict[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> AssistantMessage | None:
        """Take the next event; gives the settled answer if it is the last.

        Raises ``ModelError`` for an error in the stream. An event that makes no sense is an ``AttributeError``,
        ``KeyError``, ``TypeError`` or ``ValueError``.
        """
        match event.get("type"):
            case "message_start":
                self._begun = True
                self._count(event["message"].get("usage"))
                self._counts.pop("output_tokens", None)  # of an answer that has only begun
                self._see()
            case "content_block_start":
                key = self._key(event)
                if key in self._blocks:
                    raise ValueError("a block begins twice")
                self._blocks[key] = _Block(self._parts, key, event["content_block"], self._names)
            case "content_block_delta":
                self._blocks[self._key(event)].delta(event["delta"])
            case "content_block_stop":
                self._blocks[self._key(event)].end()
            case "message_delta":
                self._delta |= {name: value for name, value in event["delta"].items() if value is not None}
                self._count(event.get("usage"))
                self._see()
            case "message_stop":
                return self._stopped()
            case "error":
                raise error_of_body(event)
            case _:
                pass  # kinds of events are added; those that are not known say nothing to us
        return None

    def next_response(self, identity: ModelIdentity) -> AssistantMessage:
        """The provider is asked to go on: gives what it said so far, to be sent back to it."""
        self._response += 1
        self._counted, self._counts, self._delta = self._usage(), {}, {}
        self.paused = self._begun = False
        return AssistantMessage(content=self._parts.content, stop_reason="stop", model=identity)

    def _stopped(self) -> AssistantMessage | None:
        if not self._begun:
            raise ValueError("the end of what did not begin")
        if any(block.open for block in self._blocks.values()):
            raise ValueError("the end inside a block")
        match self._delta.get("stop_reason"):
            case "pause_turn":
                self.paused = True
                return None
            case "refusal":
                return settled(self._parts, "stop", error=refusal(_why_refused(self._delta.get("stop_details"))))
            case "model_context_window_exceeded" if not self._parts.content:
                full = ModelError("the conversation leaves no room for an answer", kind="context_overflow")
                return settled(self._parts, "stop", error=full)
            case None:
                raise cut_stream("nothing was said of why it ended")
            case "max_tokens" | "model_context_window_exceeded":
                return settled(self._parts, "length")
            case _:
                calls = any(block.kind == "tool_use" for block in self._blocks.values())
                return settled(self._parts, "tool_calls" if calls else "stop")

    def _see(self) -> None:
        usage = self._usage()
        self._parts.see(usage if self._prices is None else self._prices.priced(usage))

    def _key(self, event: Mapping[str, Any]) -> object:
        return self._response, event["index"]

    def _count(self, usage: object) -> None:
        """Counts are cumulative; what is not said again stands."""
        if isinstance(usage, Mapping):
            self._counts |= {name: value for name, value in usage.items() if value is not None}

    def _usage(self) -> Usage:
        counts = self._counts
        sent, read, written = (
            count(counts.get(name))
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
        details = counts.get("output_tokens_details")
        usage = Usage(
            input_tokens=None if sent is None else count(sent + (read or 0) + (written or 0)),
            output_tokens=count(counts.get("output_tokens")),
            cache_read_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, Mapping) else None,
        )
        return usage if self._counted is None else _sum(self._counted, usage)


class _Block:
    """One block of an answer, shown as it comes."""

    def __init__(self, parts: AnswerParts, key: object, given: Mapping[str, Any], names: SentNames) -> None:
        self.open = True
        self.kind: str = given["type"]
        self._parts = parts
        self._key = key
        self._given = dict(given)
        self._input: list[str] = []
        """Of a block that is kept as it came."""
        match self.kind:
            case "text":
                parts.start(key, "text")
                parts.add(key, given.get("text") or "")
            case "thinking":
                parts.start(key, "thinking")
                parts.add(key, given.get("thinking") or "")
            case "redacted_thinking":
                parts.start(key, "thinking")
            case "tool_use":
                self._id, self._name = _text(given.get("id")), names.given(_text(given.get("name")))
                parts.start(key, "tool_call", id=self._id, name=self._name)
            case _:
                pass  # shown when it is whole

    def delta(self, delta: Mapping[str, Any]) -> None:
        if not self.open:
            raise ValueError("a delta behind the end of its block")
        match delta["type"], self.kind:
            case "text_delta", "text":
                self._parts.add(self._key, _text(delta["text"]))
            case "thinking_delta", "thinking":
                self._parts.add(self._key, _text(delta["thinking"]))
            case "input_json_delta", "tool_use":
                self._parts.add(self._key, _text(delta["partial_json"]))
            case "input_json_delta", _:
                self._input.append(_text(delta["partial_json"]))
            case "signature_delta", _:
                self._given["signature"] = _text(self._given.get("signature") or "") + _text(delta["signature"])
            case "citations_delta", _:
                self._given["citations"] = [*(self._given.get("citations") or ()), delta["citation"]]
            case _:  # of a block that is kept as it came
                for name, value in delta.items():
                    if name != "type":
                        known = self._given.get(name)
                        joins = isinstance(known, str) and isinstance(value, str)
                        self._given[name] = f"{known}{value}" if joins else value

    def end(self) -> None:
        if not self.open:
            raise ValueError("a block ends twice")
        self.open = False
        text = self._parts.text(self._key)
        match self.kind:
            case "text" if text:
                self._parts.end(self._key, TextPart(text=text, signature=self._mark("citations")))
            case "text":
                pass  # nothing was said
            case "thinking":
                # A half character cannot be kept, and what is signed goes back as it was or without its mark.
                signature = self._given.get("signature") if _encodes(text) else None
                self._parts.end(self._key, ThinkingPart(text=text, signature=signature or None))
            case "redacted_thinking":
                self._parts.end(self._key, ThinkingPart(text="", signature=_text(self._given["data"]), redacted=True))
            case "tool_use":
                given = self._given.get("input")
                text = text or (json.dumps(given) if given else "")
                mark = self._mark(*(name for name in self._given if name not in ("type", "id", "name", "input")))
                self._parts.end(self._key, call_part(self._id, self._name, text, signature=mark))
            case _:
                self._parts.whole(ProviderPart(provider=PROVIDER, data=self._as_it_came()))

    def _mark(self, *names: str) -> str | None:
        """What else of the block has to go back with it."""
        usual: tuple[Any, ...] = (None, [], {"type": "direct"})
        mark = {name: self._given[name] for name in names if self._given.get(name) not in usual}
        return json.dumps(mark) if mark else None

    def _as_it_came(self) -> dict[str, Any]:
        data = {name: value for name, value in self._given.items() if value is not None}
        if self._input:
            given = call_part("", "", "".join(self._input)).arguments
            data["input"] = {} if given is None else given
        return data


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is needed here")
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sum(one: Usage, other: Usage) -> Usage:
    """Both together; a count that either does not know is not known."""
    counts = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in counts)
    return Usage(**{name: None if a is None or b is None else count(a + b) for name, a, b in pairs})


def _why_refused(details: object) -> str:
    if not isinstance(details, Mapping):
        return ""
    told = details.get("explanation") or ""
    category = details.get("category")
    return f"{told} (category {category})".strip() if category else str(told)
