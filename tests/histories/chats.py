"""Generated chats of each form, sound and unsound; each text is there once, so that none can be lost unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

from hypothesis import strategies as st

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

IDS = ["", "a", "b", "c", "d"]
NAMES = ["read", "write"]
MESSAGES_MAX = 10
PNG = "iVBORw0KGgo="


class Maker:
    """Draws one chat; ``spoken`` are the texts of users and answers in order, ``marks`` all texts that it made."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.marks: list[str] = []
        self.spoken: list[str] = []
        self._numbers = count(1)
        self._asked: list[str] = []

    def ask(self) -> str:
        """The id of a call."""
        self._asked.append(self.one_of(*IDS))
        return self._asked[-1]

    def answer(self) -> str:
        """The id of a result: mostly that of a call that has none, in any order."""
        if not self._asked or self.rarely():
            return str(self.one_of(*IDS))
        return self._asked.pop(self.draw(st.integers(0, len(self._asked) - 1)))

    def mark(self, kind: str) -> str:
        """A text that is nowhere else; some have what is hard to carry."""
        ends = ["", "\x00", "\u2028", "é", "\n```", '"\\']
        text = f"{kind}-{next(self._numbers)}-{self.draw(st.sampled_from(ends))}"
        self.marks.append(text)
        return text

    def speak(self) -> str:
        """A text of the conversation."""
        text = self.mark("said")
        self.spoken.append(text)
        return text

    def maybe(self) -> bool:
        return bool(self.draw(st.booleans()))

    def rarely(self) -> bool:
        return self.draw(st.integers(0, 4)) == 4

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def several(self, most: int = 2) -> Iterator[int]:
        yield from range(self.draw(st.integers(0, most)))

    def extra(self) -> dict[str, Any]:
        """Now and then a field that nobody knows, and fields that are null."""
        if self.rarely():
            return {"annotations": [{"a": self.mark("extra")}], "audio": None}
        return {}


def openai_chat(draw: Draw) -> tuple[list[dict[str, Any]], Maker]:
    maker = Maker(draw)
    kinds = ["user", "user", "assistant", "assistant", "tool", "tool", "tool", "system", "developer", "function"]
    return [_openai(maker, maker.one_of(*kinds)) for _ in range(draw(st.integers(0, MESSAGES_MAX)))], maker


def _openai(maker: Maker, role: str) -> dict[str, Any]:
    if role == "assistant":
        return {"role": role, **_openai_answer(maker), **maker.extra()}
    if role == "tool":
        return {"role": role, "tool_call_id": maker.answer(), "content": _openai_told(maker), **maker.extra()}
    if role == "function":
        return {"role": role, "name": maker.one_of(*NAMES), "content": maker.mark("result")}
    if role in ("system", "developer"):
        return {"role": role, "content": maker.mark("system"), **maker.extra()}
    if maker.maybe():
        return {"role": role, "content": maker.speak(), **maker.extra()}
    return {"role": role, "content": [_openai_part(maker) for _ in maker.several(3)], **maker.extra()}


def _openai_told(maker: Maker) -> Any:
    if maker.maybe():
        return maker.one_of("", maker.mark("result"))
    return [{"type": "text", "text": maker.mark("result"), **maker.extra()} for _ in maker.several()]


def _openai_part(maker: Maker) -> dict[str, Any]:
    kind = maker.one_of("text", "text", "image", "there", "input_audio")
    if kind == "text":
        return {"type": "text", "text": maker.speak(), **maker.extra()}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", **maker.extra()}}
    if kind == "there":
        return {"type": "image_url", "image_url": {"url": f"https://example.org/{maker.mark('url')}"}}
    return {"type": "input_audio", "input_audio": {"data": maker.mark("audio"), "format": "wav"}}


def _openai_answer(maker: Maker) -> dict[str, Any]:
    content: Any = None
    if maker.maybe():
        content = maker.speak()
    elif maker.rarely():
        content = [{"type": "text", "text": maker.speak()}, {"type": "refusal", "refusal": maker.mark("refusal")}]
    answer: dict[str, Any] = {"content": content}
    if maker.rarely():
        answer["refusal"] = maker.mark("refusal")
    if maker.rarely():
        answer["function_call"] = _function(maker)
    elif maker.maybe():
        answer["tool_calls"] = [
            {"id": maker.ask(), "type": "function", "function": _function(maker), **maker.extra()}
            for _ in maker.several(3)
        ]
    return answer


def _function(maker: Maker) -> dict[str, Any]:
    good = json.dumps({"x": maker.mark("arguments")})
    return {
        "name": maker.one_of(*NAMES),
        "arguments": maker.one_of(good, good, good[:-1], "", "[1]", '{"x": NaN}', "{}"),
    }


def anthropic_chat(draw: Draw) -> tuple[list[dict[str, Any]], Maker]:
    maker = Maker(draw)
    made = []
    for _ in range(draw(st.integers(0, MESSAGES_MAX))):
        role = maker.one_of("user", "user", "assistant", "assistant", "assistant", "system")
        if role == "system":
            made.append({"role": role, "content": maker.mark("system")})
        elif maker.rarely():
            made.append({"role": role, "content": maker.speak(), **maker.extra()})
        else:
            block = _anthropic_answer if role == "assistant" else _anthropic_block
            made.append({"role": role, "content": [block(maker) for _ in maker.several(4)], **maker.extra()})
    return made, maker


def _anthropic_block(maker: Maker) -> dict[str, Any]:
    kind = maker.one_of("text", "result", "result", "image", "there", "document")
    if kind == "text":
        return {"type": "text", "text": maker.speak(), **maker.extra()}
    if kind == "result":
        return {
            "type": "tool_result",
            "tool_use_id": maker.answer(),
            "content": _anthropic_told(maker),
            **({"is_error": maker.maybe()} if maker.maybe() else {}),
            **maker.extra(),
        }
    if kind == "image":
        source = {"type": "base64", "media_type": "image/png", "data": PNG, **maker.extra()}
        return {"type": "image", "source": source}
    if kind == "there":
        return {"type": "image", "source": {"type": "url", "url": maker.mark("url")}, **maker.extra()}
    return {"type": "document", "source": {"type": "text", "data": maker.mark("document")}}


def _anthropic_told(maker: Maker) -> Any:
    kind = maker.one_of("text", "blocks", "nothing")
    if kind == "text":
        return maker.mark("result")
    if kind == "nothing":
        return maker.one_of(None, "", [])
    return [{"type": "text", "text": maker.mark("result"), **maker.extra()} for _ in maker.several()]


def _anthropic_answer(maker: Maker) -> dict[str, Any]:
    kind = maker.one_of("text", "use", "use", "use", "thinking", "redacted", "server", "new")
    if kind == "text":
        return {"type": "text", "text": maker.speak(), **maker.extra()}
    if kind == "use":
        given = maker.one_of({"x": maker.mark("arguments")}, {}, [maker.mark("arguments")], {"x": float("nan")})
        return {"type": "tool_use", "id": maker.ask(), "name": maker.one_of(*NAMES), "input": given}
    if kind == "thinking":
        return {"type": "thinking", "thinking": maker.mark("thought"), "signature": maker.mark("signature")}
    if kind == "redacted":
        return {"type": "redacted_thinking", "data": maker.mark("redacted")}
    if kind == "server":
        return {"type": "server_tool_use", "id": "srv", "name": "search", "input": {"q": maker.mark("query")}}
    return {"type": "of_tomorrow", "field": maker.mark("new")}


def recorded_chat(draw: Draw) -> tuple[list[dict[str, Any]], Maker]:
    maker = Maker(draw)
    rows: list[dict[str, Any]] = []
    for place in range(draw(st.integers(0, MESSAGES_MAX))):
        role = maker.one_of("user", "assistant", "assistant", "toolResult", "toolResult", "row")
        if role == "row":
            rows.append({"type": "model_change", "timestamp": maker.mark("time"), "modelId": maker.mark("model")})
            continue
        body = {"user": _recorded_user, "assistant": _recorded_answer, "toolResult": _recorded_result}[role](maker)
        message = {"role": role, **body, "timestamp": 1_700_000_000_000 + place, **maker.extra()}
        rows.append({"type": "message", "timestamp": maker.mark("time"), "message": message})
    return rows, maker


def _recorded_user(maker: Maker) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for _ in maker.several(3):
        if maker.rarely():
            parts.append({"type": "image", "data": PNG, "mimeType": "image/png"})
        else:
            parts.append({"type": "text", "text": maker.speak(), **maker.extra()})
    return {"content": parts}


def _recorded_answer(maker: Maker) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    for _ in maker.several(4):
        kind = maker.one_of("text", "thinking", "toolCall", "toolCall", "half")
        if kind == "text":
            parts.append({"type": "text", "text": maker.speak()})
        elif kind == "thinking":
            thought = {"thinking": maker.mark("thought"), "thinkingSignature": maker.mark("signature")}
            parts.append({"type": "thinking", **thought})
        else:
            given = {"x": maker.mark("arguments")}
            call = {"type": "toolCall", "id": maker.ask(), "name": maker.one_of(*NAMES), "arguments": given}
            half = {"partialJson": json.dumps(given)[: maker.one_of(5, 100)]} if kind == "half" else {}
            parts.append({**call, **half})
    stop = maker.one_of("stop", "toolUse", "toolUse", "toolUse", "length", "error", "aborted")
    usage = {"input": maker.one_of(0, 7), "output": 5, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0.25}}
    error = {"errorMessage": maker.mark("error")} if stop in ("error", "aborted") else {}
    return {"content": parts, "stopReason": stop, "provider": "acme", "model": "large", "usage": usage, **error}


def _recorded_result(maker: Maker) -> dict[str, Any]:
    return {
        "toolCallId": maker.answer(),
        "toolName": maker.one_of(*NAMES),
        "content": [{"type": "text", "text": maker.mark("result")} for _ in maker.several()],
        "isError": maker.maybe(),
        **({"details": {"d": maker.mark("details")}} if maker.maybe() else {}),
    }


CHATS = {"openai": openai_chat, "anthropic": anthropic_chat, "recorded": recorded_chat}


@st.composite
def chats(draw: Draw) -> tuple[str, list[dict[str, Any]], Maker]:
    """A format, a chat of it, and what was said there."""
    format = draw(st.sampled_from(sorted(CHATS)))
    messages, maker = CHATS[format](draw)
    return format, messages, maker
