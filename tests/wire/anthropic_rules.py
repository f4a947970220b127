"""What Anthropic's messages API refuses, as a strict checker, and a server that holds every request to it.

The rules are those of the public documentation and of error messages that the provider is known to answer with.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.wire.anthropic_format import error, reply
from tests.wire.server import Received, Reply, WireServer

BODY_KEYS = {
    *("model", "max_tokens", "messages", "stream", "system", "tools", "tool_choice", "thinking", "output_config"),
    *("metadata", "stop_sequences", "temperature", "top_k", "top_p", "service_tier", "container"),
}
BLOCK_KEYS = {
    "text": {"type", "text", "citations", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "server_tool_use": {"type", "id", "name", "input", "caller", "cache_control"},
    "web_search_tool_result": {"type", "tool_use_id", "content", "caller", "cache_control"},
}
ROLES = {
    "user": {"text", "image", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"},
}
REASONING = ("thinking", "redacted_thinking")
IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]+")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
CACHE_MARKS_MAX = 4


class Rules:
    """Checks requests; knows the reasoning that was sent, since only that may come back."""

    def __init__(self) -> None:
        self._reasoning: set[str] = set()
        self._of_call: dict[str, list[str]] = {}

    def sent(self, events: Iterable[Mapping[str, Any]]) -> None:
        """These events were sent, whole or not: their reasoning may come back, and with a call of theirs it has to."""
        blocks: dict[int, dict[str, Any]] = {}
        for event in events:
            index, begun, delta = event.get("index"), event.get("content_block"), event.get("delta")
            if event.get("type") == "content_block_start" and begun and type(index) is int:
                blocks[index] = dict(begun)
            elif event.get("type") == "content_block_delta" and delta and index in blocks and delta["type"] in _GROWS:
                name = _GROWS[delta["type"]]
                blocks[index][name] += delta[name]
        whole = [_canonical(block) for _, block in sorted(blocks.items()) if block["type"] in REASONING]
        self._reasoning.update(whole)
        for block in blocks.values():
            if block["type"] == "tool_use" and block["id"]:
                self._of_call[block["id"]] = whole

    def broken(self, data: bytes) -> list[str]:
        """Each rule that the body of a request breaks, with its place."""
        try:
            text = data.decode()
            body = json.loads(text)
            json.dumps(body, ensure_ascii=False).encode()
        except ValueError as bad:
            return [f"body: not JSON in UTF-8: {bad}"]
        found = [f"body.{key}: not permitted" for key in sorted(set(body) - BODY_KEYS)]
        if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
            found.append("body.max_tokens: a whole number of at least 1 is required")
        if body.get("stream") is not True or not body.get("model"):
            found.append("body: stream and model are required")
        thinking = body.get("thinking") or {}
        if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
            found.append("body.thinking: the budget must be less than max_tokens")
        found += self._tools(body)
        found += self._messages(body.get("messages"))
        for index, block in enumerate(body.get("system") or ()):
            found += _block(f"system[{index}]", block, {"text"})
        marks = [block for block in _blocks(body) if "cache_control" in block]
        if len(marks) > CACHE_MARKS_MAX:
            found.append(f"body: {len(marks)} blocks with cache_control; at most {CACHE_MARKS_MAX} may be")
        found += [f"cache_control: {block['cache_control']}" for block in marks if not _is_mark(block["cache_control"])]
        return found

    def _tools(self, body: Mapping[str, Any]) -> Iterable[str]:
        tools = body.get("tools") or []
        names = [tool.get("name", "") for tool in tools]
        for index, tool in enumerate(tools):
            if "type" in tool and "input_schema" not in tool:
                continue  # of the provider's own
            if not TOOL_NAME.fullmatch(tool["name"]):
                yield f"tools[{index}].name: {tool['name']!r} does not match"
            if tool.get("input_schema", {}).get("type") != "object":
                yield f"tools[{index}].input_schema.type: must be object"
            if extra := set(tool) - {"name", "description", "input_schema", "cache_control"}:
                yield f"tools[{index}]: {extra} not permitted"
            if tool.get("description") == "":
                yield f"tools[{index}].description: empty"
        if len(set(names)) != len(names):
            yield "tools: names must be unique"
        if not tools and "tool_choice" in body:
            yield "tool_choice: only with tools"
        used = any(block.get("type") in ("tool_use", "tool_result") for block in _blocks(body))
        if used and not tools:
            yield "tools: required where messages hold tool_use or tool_result"

    def _messages(self, messages: Any) -> Iterable[str]:
        if not messages:
            yield "messages: at least one is required"
            return
        roles = [message.get("role") for message in messages]
        if roles[0] != "user" or roles[-1] != "user":
            yield "messages: the first and the last must be the user's"
        if any(one == other for one, other in pairwise(roles)):
            yield "messages: roles must alternate"
        asked: list[str] = []
        ids: set[str] = set()
        server: list[str] = []
        for index, message in enumerate(messages):
            place = f"messages[{index}]"
            content = message.get("content")
            if set(message) != {"role", "content"} or not isinstance(content, list) or not content:
                yield f"{place}: role and content, which is not empty"
                continue
            for number, block in enumerate(content):
                yield from _block(f"{place}.content[{number}]", block, ROLES[message["role"]])
            if message["role"] == "user":
                yield from _results(place, content, asked)
                asked = []
                continue
            yield from self._reasoned(place, content, last=index == len(messages) - 2)
            asked = [block["id"] for block in content if block["type"] == "tool_use"]
            yield from (f"{place}: tool_use id {id!r} is used before" for id in asked if id in ids)
            if len(set(asked)) != len(asked):
                yield f"{place}: tool_use ids must be unique"
            ids.update(asked)
            server += [block["id"] for block in content if block["type"] == "server_tool_use"]
            for block in content:
                if block["type"].endswith("_tool_result"):
                    if block["tool_use_id"] not in server:
                        yield f"{place}: {block['type']} without its server_tool_use"
                    else:
                        server.remove(block["tool_use_id"])
        yield from (f"messages: server_tool_use {id!r} without its result" for id in server)

    def _reasoned(self, place: str, content: Sequence[Mapping[str, Any]], *, last: bool) -> Iterable[str]:
        if content[-1]["type"] in REASONING:
            yield f"{place}: the final block cannot be thinking"
        reasoning = [_canonical(block) for block in content if block["type"] in REASONING]
        yield from (
            f"{place}: reasoning that was not sent so: {block}" for block in reasoning if block not in self._reasoning
        )
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        due = next((self._of_call[id] for id in calls if id in self._of_call), [])
        if last and due and reasoning[-len(due) :] != due:
            yield f"{place}: the reasoning in the latest assistant message cannot be modified: {due} was sent"


class Provider:
    """A server that answers in order with events or replies, and refuses each request that breaks the rules.

    A test ends with ``require_kept()``.
    """

    def __init__(self, *script: Sequence[Mapping[str, Any]] | Reply) -> None:
        self.rules = Rules()
        self.violations: list[str] = []
        self._script = list(script)
        self.server = WireServer(self._reply)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def bodies(self) -> list[Any]:
        """The body of each request."""
        return [request.body for request in self.server.requests]

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def add(self, *script: Sequence[Mapping[str, Any]] | Reply) -> None:
        self._script += script

    def require_kept(self) -> None:
        assert not self.violations, "\n".join(self.violations)
        assert not self._script, f"{len(self._script)} answers were not asked for"

    def _reply(self, request: Received) -> Reply:
        number = len(self.server.requests)
        if found := self.rules.broken(request.data):
            self.violations += [f"request {number}: {each}" for each in found]
            return error(400, "invalid_request_error", "; ".join(found))
        if not self._script:
            self.violations.append(f"request {number}: nobody expected it")
            return error(400, "invalid_request_error", "the script is used up")
        given = self._script.pop(0)
        made = given if isinstance(given, Reply) else reply(given)
        self.rules.sent(_events(made) if isinstance(given, Reply) else given)
        return made


_GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def _events(made: Reply) -> list[Any]:
    lines = b"".join(made.pieces).decode(errors="replace").splitlines()
    if made.status != 200:
        return []
    found = []
    for line in lines:
        if line.startswith("data: "):
            try:
                found.append(json.loads(line[6:]))
            except ValueError:
                pass  # it was sent broken
    return found


def _results(place: str, content: Sequence[Mapping[str, Any]], asked: Sequence[str]) -> Iterable[str]:
    results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
    if [block["type"] for block in content[: len(results)]] != ["tool_result"] * len(results):
        yield f"{place}: tool_result blocks must come first"
    yield from (f"{place}: tool_use {id!r} without a tool_result directly after" for id in asked if id not in results)
    yield from (
        f"{place}: tool_result {id!r} without its tool_use directly before" for id in results if id not in asked
    )
    if results != list(asked):
        yield f"{place}: each call has one result, in the order of the calls: {asked} and {results}"


def _block(place: str, block: Mapping[str, Any], allowed: set[str]) -> Iterable[str]:
    kind = block.get("type", "")
    if kind not in allowed:
        yield f"{place}.type: {kind!r} is not permitted here"
        return
    if extra := set(block) - BLOCK_KEYS[kind]:
        yield f"{place}: {sorted(extra)} not permitted"
    match kind:
        case "text":
            if not block["text"].strip():
                yield f"{place}.text: must contain non-whitespace text"
        case "image":
            yield from _image(place, block["source"])
        case "thinking":
            if not block.get("signature") or not isinstance(block.get("thinking"), str):
                yield f"{place}.signature: required, and the thinking"
        case "redacted_thinking":
            if not block.get("data"):
                yield f"{place}.data: required"
        case "tool_use" | "server_tool_use":
            if not isinstance(block.get("input"), dict):
                yield f"{place}.input: must be an object"
            if not IDENTIFIER.fullmatch(block.get("id", "")) or not TOOL_NAME.fullmatch(block.get("name", "")):
                yield f"{place}: id {block.get('id')!r} or name {block.get('name')!r} does not match"
        case "tool_result":
            content = block.get("content")
            if not isinstance(content, list) or not content:
                yield f"{place}.content: empty"
                return
            for number, inner in enumerate(content):
                yield from _block(
                    f"{place}.content[{number}]", inner, {"text"} if block.get("is_error") else {"text", "image"}
                )


def _image(place: str, source: Mapping[str, Any]) -> Iterable[str]:
    if set(source) != {"type", "media_type", "data"} or source["media_type"] not in IMAGE_TYPES:
        yield f"{place}.source: {source.get('media_type')!r} is not permitted"
    try:
        base64.b64decode(source["data"], validate=True)
    except binascii.Error:
        yield f"{place}.source.data: not base64"


def _blocks(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every block that may be marked, and the tools."""
    found = [*(body.get("tools") or ()), *(body.get("system") or ())]
    for message in body.get("messages") or ():
        for block in message["content"]:
            found.append(block)
            if isinstance(block.get("content"), list):
                found += block["content"]
    return found


def _is_mark(mark: Any) -> bool:
    return mark in ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"})


def _canonical(block: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in block.items() if key != "cache_control"}, sort_keys=True)
