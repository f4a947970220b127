"""Answers as OpenAI's two interfaces stream them, built from what they are to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.wire.server import End, Reply, pieces, sse

Event = dict[str, Any]

RESPONSE_USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 8},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 150,
}
CHAT_USAGE = {
    "prompt_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 8},
    "completion_tokens": 30,
    "completion_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 150,
}


def message(text: str, id: str = "msg_1", **more: Any) -> Event:
    """An item of the Responses API: what the model says."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content} | more


def refused(text: str, id: str = "msg_1") -> Event:
    """What the model says when it will not."""
    return message("", id) | {"content": [{"type": "refusal", "refusal": text}]}


def function_call(name: str, arguments: str, *, call_id: str = "call_1", id: str = "fc_1", **more: Any) -> Event:
    """A call of a function."""
    whole = {"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments}
    return whole | {"status": "completed"} | more


def reasoning(text: str, id: str = "rs_1", encrypted: str | None = "gAAAAB-sealed==") -> Event:
    """Reasoning, with the form of it that can be sent back."""
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted}


def response_events(
    *items: Event,
    status: str = "completed",
    reason: str | None = None,
    error: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = RESPONSE_USAGE,
) -> list[Event]:
    """The events of one answer of the Responses API, deltas of three characters each."""
    head = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-x",
        "output": [],
        "status": "in_progress",
    }
    events: list[Event] = [
        {"type": "response.created", "response": head},
        {"type": "response.in_progress", "response": head},
    ]
    for place, item in enumerate(items):
        events += _item_events(place, item)
    tail = head | {"status": status, "output": list(items), "usage": usage, "error": error}
    if reason is not None:
        tail["incomplete_details"] = {"reason": reason}
    events.append({"type": f"response.{status}", "response": tail})
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def response(*items: Event, **options: Any) -> Reply:
    """One whole answer of the Responses API."""
    return Reply(pieces=[sse(*response_events(*items, **options), named=True)])


def broken(events: Sequence[Event], count: int, end: End, *, named: bool = True) -> Reply:
    """The first ``count`` of these events, and an end that goes wrong."""
    return Reply(pieces=[sse(event, named=named) for event in events[:count]], end=end)


def chat_events(
    text: str = "",
    *calls: tuple[str, str, str],
    finish: str | None = None,
    usage: Mapping[str, Any] | None = CHAT_USAGE,
    **fields: str,
) -> list[Event]:
    """The chunks of one answer of Chat Completions; a call is id, name and arguments, ``fields`` more of a delta."""
    deltas: list[Event] = [{"role": "assistant", "content": ""}]
    deltas += [{name: part} for name, whole in fields.items() for part in _threes(whole)]
    deltas += [{"content": part} for part in _threes(text)]
    for index, (id, name, arguments) in enumerate(calls):
        head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in _threes(arguments)]
    events = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    events.append(_chunk([{"index": 0, "delta": {}, "finish_reason": finish or ("tool_calls" if calls else "stop")}]))
    if usage is not None:
        events.append(_chunk([]) | {"usage": usage})
    return events


def chat(text: str = "", *calls: tuple[str, str, str], **options: Any) -> Reply:
    """One whole answer of Chat Completions."""
    return Reply(pieces=[sse(*chat_events(text, *calls, **options), done=True)])


def deltas(*deltas: Event, finish: str | None = "stop", usage: Mapping[str, Any] | None = CHAT_USAGE) -> Reply:
    """An answer of Chat Completions from deltas as some server sends them."""
    events = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    if finish is not None:
        events.append(_chunk([{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage is not None:
        events.append(_chunk([]) | {"usage": usage})
    return Reply(pieces=[sse(*events, done=True)])


def cut_at(data: bytes, place: int) -> Reply:
    """An answer whose body comes in two pieces, cut at this byte."""
    return Reply(pieces=pieces(data, place))


def _item_events(place: int, item: Event) -> Iterator[Event]:
    at: Event = {"output_index": place, "item_id": item.get("id", "")}
    empty = {"status": "in_progress", "content": [], "summary": [], "arguments": ""}
    yield {"type": "response.output_item.added", "item": {k: empty.get(k, v) for k, v in item.items()}} | at
    match item["type"]:
        case "message":
            for index, part in enumerate(item["content"]):
                kind = "refusal" if part["type"] == "refusal" else "output_text"
                field = "refusal" if kind == "refusal" else "text"
                inside = at | {"content_index": index}
                yield {"type": "response.content_part.added", "part": part | {field: ""}} | inside
                for text in _threes(part[field]):
                    yield {"type": f"response.{kind}.delta", "delta": text} | inside
                yield {"type": f"response.{kind}.done", field: part[field]} | inside
                yield {"type": "response.content_part.done", "part": part} | inside
        case "function_call":
            for text in _threes(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", "delta": text} | at
            yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]} | at
        case "reasoning":
            for index, part in enumerate(item["summary"]):
                inside = at | {"summary_index": index}
                yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | inside
                for text in _threes(part["text"]):
                    yield {"type": "response.reasoning_summary_text.delta", "delta": text} | inside
                yield {"type": "response.reasoning_summary_part.done", "part": part} | inside
    yield {"type": "response.output_item.done", "item": item} | at


def _chunk(choices: list[Event]) -> Event:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x", "choices": choices}


def _threes(text: str) -> list[str]:
    return [text[start : start + 3] for start in range(0, len(text), 3)]
