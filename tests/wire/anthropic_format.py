"""Answers in the streaming format of Anthropic's messages API, written from its public documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.wire.server import Reply, every, failure, sse

PING = {"type": "ping"}
MODEL = "claude-test"


def text(*deltas: str, citations: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """A block of text: its start, its deltas, its end; the place is filled in by ``answer``."""
    cited = [{"type": "citations_delta", "citation": dict(each)} for each in citations]
    return _block({"type": "text", "text": ""}, [*({"type": "text_delta", "text": d} for d in deltas), *cited])


def thinking(*deltas: str, signature: str | None = "sig", cut: bool = True) -> list[dict[str, Any]]:
    """A block of reasoning, its signature in two deltas, or in one."""
    pieces: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": delta} for delta in deltas]
    if signature is not None:
        half = len(signature) // 2 if cut else 0
        pieces += [{"type": "signature_delta", "signature": s} for s in (signature[:half], signature[half:]) if s]
    return _block({"type": "thinking", "thinking": "", "signature": ""}, pieces)


def redacted(data: str) -> list[dict[str, Any]]:
    """A block of reasoning that may not be shown."""
    return _block({"type": "redacted_thinking", "data": data}, [])


def tool(name: str, arguments: object, *, id: str, pieces: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """A call; ``pieces`` are the deltas of its argument text where they matter, or where it is no JSON."""
    given = [json.dumps(arguments)] if pieces is None else list(pieces)
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *given)]
    return _block({"type": "tool_use", "id": id, "name": name, "input": {}}, deltas)


def whole(data: Mapping[str, Any], *, input: object = None) -> list[dict[str, Any]]:
    """Any other block, as it comes: at once, or with its input in deltas."""
    deltas = [] if input is None else [{"type": "input_json_delta", "partial_json": json.dumps(input)}]
    return _block(dict(data), deltas)


def start(**usage: Any) -> dict[str, Any]:
    """The first event of an answer."""
    counts = {"input_tokens": 10, "output_tokens": 1, **usage}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    return {
        "type": "message_start",
        "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": counts},
    }


def stop(reason: str | None, details: Mapping[str, Any] | None = None, **usage: Any) -> list[dict[str, Any]]:
    """The last two events of an answer."""
    delta = {"stop_reason": reason, "stop_sequence": None, **({"stop_details": details} if details else {})}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7, **usage}},
        {"type": "message_stop"},
    ]


def answer(
    *blocks: Sequence[Mapping[str, Any]],
    reason: str | None = None,
    details: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
    end_usage: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """All events of an answer, with a ping behind the first; the reason is told from the blocks if not given."""
    events: list[dict[str, Any]] = [start(**(usage or {})), dict(PING)]
    for index, block in enumerate(blocks):
        events += [{**event, "index": index} for event in block]
    calls = any(event["content_block"]["type"] == "tool_use" for block in blocks for event in block[:1])
    return [*events, *stop(reason or ("tool_use" if calls else "end_turn"), details, **(end_usage or {}))]


def reply(events: Iterable[Mapping[str, Any]], *, length: int | None = None, **how: Any) -> Reply:
    """The answer over HTTP, each event one chunk, or chunks of so many bytes."""
    events = list(events)
    data = [sse(event, named=True) for event in events] if length is None else every(sse(*events, named=True), length)
    return Reply(pieces=data, **how)


def error(status: int, kind: str, message: str, **headers: str) -> Reply:
    """A refusal in the provider's form."""
    return failure(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)


def error_event(kind: str, message: str) -> dict[str, Any]:
    """An error in the middle of a stream."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def _block(first: dict[str, Any], deltas: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "content_block": first},
        *({"type": "content_block_delta", "delta": dict(delta)} for delta in deltas),
        {"type": "content_block_stop"},
    ]
