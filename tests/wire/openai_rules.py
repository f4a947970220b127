"""What OpenAI's two interfaces refuse, as a checker of requests: each breach by its place, none for a good one.

The rules are those of the public documentation and of the errors that the service answers with. Where servers like it
are stricter (they parse arguments, and want text to be there), so is this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*")
_SERVER_ITEMS = {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}


def breaches_of_responses(body: dict[str, Any]) -> list[str]:
    """What the Responses API would refuse of a request."""
    found = [*_fields(body, "input"), *_tools(body.get("tools", ()), lambda tool: tool)]
    items = body.get("input")
    if not isinstance(items, list) or not items:
        return [*found, "input: a list of items is needed"]
    ids: set[str] = set()
    calls: dict[str, int] = {}
    answered: set[str] = set()
    for place, item in enumerate(items):
        at = f"input[{place}]"
        kind = item.get("type", "message")
        found += [f"{at}.{name}: null" for name, value in item.items() if value is None]
        if "id" in item:
            found += [] if item["id"] else [f"{at}.id: empty"]
            found += [f"{at}.id: {item['id']!r} is there twice"] if item["id"] in ids else []
            ids.add(item["id"])
        if kind == "message":
            found += _response_message(at, item)
        elif kind == "function_call":
            found += _call(at, item["call_id"], item["name"], item["arguments"], calls)
            calls[item["call_id"]] = place
        elif kind == "function_call_output":
            if item["call_id"] not in calls:
                found.append(f"{at}: no tool call found for function call output with call_id {item['call_id']}")
            if item["call_id"] in answered:
                found.append(f"{at}: a second output for {item['call_id']}")
            answered.add(item["call_id"])
            found += _response_output(at, item["output"])
        elif kind == "reasoning":
            following = items[place + 1] if place + 1 < len(items) else {}
            own = following.get("type") in {"message", "function_call", "reasoning", *_SERVER_ITEMS}
            if not own or following.get("role", "assistant") != "assistant" or "id" not in following:
                found.append(f"{at}: reasoning was provided without its required following item")
            if not item.get("encrypted_content"):
                found.append(f"{at}: it is not stored, and nothing encrypted is with it")
            if not str(item.get("id", "")) or not isinstance(item.get("summary"), list):
                found.append(f"{at}: id and summary are needed")
        elif kind in _SERVER_ITEMS:
            found += [] if item.get("id") and item.get("status") == "completed" else [f"{at}: not complete"]
        else:
            found.append(f"{at}: an item of type {kind!r} that nobody answers")
    found += [
        f"input[{place}]: no tool output found for function call {id}"
        for id, place in calls.items()
        if id not in answered
    ]
    return found + list(_unfollowed(items))


def breaches_of_chat(body: dict[str, Any]) -> list[str]:
    """What Chat Completions would refuse of a request."""
    found = [*_fields(body, "messages"), *_tools(body.get("tools", ()), lambda tool: tool["function"])]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*found, "messages: a list is needed"]
    calls: dict[str, int] = {}
    waiting: list[str] = []
    for place, item in enumerate(messages):
        at = f"messages[{place}]"
        role = item["role"]
        found += [f"{at}.{name}: null" for name, value in item.items() if value is None]
        if role == "tool":
            if item["tool_call_id"] not in waiting:
                found.append(
                    f"{at}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                )
            else:
                waiting.remove(item["tool_call_id"])
            found += _text(f"{at}.content", item["content"])
            continue
        found += [f"{at}: no response for the tool calls {waiting} before it"] if waiting else []
        waiting = []
        if role == "assistant":
            if not item.get("content") and not item.get("tool_calls"):
                found.append(f"{at}: neither content nor tool_calls")
            found += _text(f"{at}.content", item["content"]) if "content" in item else []
            for call in item.get("tool_calls", ()):
                function = call["function"]
                found += _call(at, call["id"], function["name"], function["arguments"], calls)
                found += [] if call["type"] == "function" else [f"{at}: a call of type {call['type']!r}"]
                calls[call["id"]] = place
                waiting.append(call["id"])
        elif role == "user":
            found += _chat_content(f"{at}.content", item["content"])
        elif role == "system":
            found += _text(f"{at}.content", item["content"]) + ([] if place == 0 else [f"{at}: not the first"])
        else:
            found.append(f"{at}.role: {role!r}")
    return found + ([f"no response for the tool calls {waiting} at the end"] if waiting else [])


def _unfollowed(items: list[dict[str, Any]]) -> Iterator[str]:
    """Items of an answer that began with reasoning go back with it: under their own id, none may stand without it."""
    for place, item in enumerate(items):
        if item.get("role") in ("user", "system") or item.get("type") == "function_call_output":
            continue
        if item.get("type") != "reasoning" and str(item.get("id", "")).endswith("_reasoned"):
            before = items[place - 1] if place else {}
            if before.get("type") not in ("reasoning", "function_call", "message") or "id" not in before:
                yield f"input[{place}]: {item['id']} was provided without its required 'reasoning' item"


def _fields(body: dict[str, Any], content: str) -> list[str]:
    found = [f"{name}: null" for name, value in body.items() if value is None]
    found += [] if body.get("stream") is True else ["stream: not asked for"]
    found += [] if body.get("model") else ["model: empty"]
    found += ["instructions: empty"] if body.get("instructions", "x") == "" else []
    return found + ([] if content in body else [f"{content}: missing"])


def _tools(tools: Any, function: Any) -> list[str]:
    found: list[str] = []
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if tool["type"] != "function":
            continue
        given = function(tool)
        name, schema = given["name"], given["parameters"]
        found += [] if _NAME.fullmatch(name) else [f"tools[{place}].name: {name!r} does not match"]
        found += [f"tools[{place}].name: {name!r} twice"] if name in names else []
        names.add(name)
        if schema.get("type") != "object" or "properties" not in schema:
            found.append(f"tools[{place}].parameters: an object schema with properties is needed")
    return found


def _call(at: str, id: str, name: str, arguments: object, calls: dict[str, int]) -> list[str]:
    found = (
        [] if isinstance(id, str) and 1 <= len(id) <= 64 else [f"{at}: a call's id of 1 to 64 characters, not {id!r}"]
    )
    found += [f"{at}: the call id {id} is there twice"] if id in calls else []
    found += [] if _NAME.fullmatch(name) else [f"{at}: the name {name!r} does not match"]
    try:
        good = isinstance(arguments, str) and isinstance(json.loads(arguments, parse_constant=_refuse), dict)
    except ValueError:
        good = False
    return found + ([] if good else [f"{at}: the arguments {arguments!r} are not the text of an object"])


def _refuse(word: str) -> None:
    raise ValueError(word)


def _response_message(at: str, item: dict[str, Any]) -> list[str]:
    role, content = item["role"], item["content"]
    if role == "assistant":
        if isinstance(content, str):
            return _text(f"{at}.content", content) + (["an id without parts"] if "id" in item else [])
        found = [] if item.get("id") and item.get("status") == "completed" else [f"{at}: id and status are needed"]
        good = ("output_text", "refusal")
        found += [f"{at}: {part['type']!r} in an answer" for part in content if part["type"] not in good]
        return found + [breach for part in content for breach in _text(at, part.get("text", part.get("refusal")))]
    if role != "user":
        return [f"{at}.role: {role!r}"]
    return _response_output(at, content) if content else [f"{at}.content: empty"]


def _response_output(at: str, output: Any) -> list[str]:
    if isinstance(output, str):
        return _text(at, output)
    found = [] if output else [f"{at}: empty"]
    for part in output:
        if part["type"] == "input_text":
            found += _text(at, part["text"])
        elif part["type"] != "input_image" or not _DATA_URL.fullmatch(part["image_url"]):
            found.append(f"{at}: {part['type']!r} is no input that can be read")
    return found


def _chat_content(at: str, content: Any) -> list[str]:
    if isinstance(content, str):
        return _text(at, content)
    found = [] if content else [f"{at}: empty"]
    for part in content:
        if part["type"] == "text":
            found += _text(at, part["text"])
        elif part["type"] != "image_url" or not _DATA_URL.fullmatch(part["image_url"]["url"]):
            found.append(f"{at}: {part['type']!r} is no content that can be read")
    return found


def _text(at: str, text: object) -> list[str]:
    return [] if isinstance(text, str) and text else [f"{at}: text that is not empty is needed, not {text!r}"]
