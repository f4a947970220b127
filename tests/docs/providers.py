"""Providers on loopback that the demo asks as real ones: the request tells the answer, and is held to the rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.wire.anthropic_format import answer, error, reply, text, tool
from tests.wire.anthropic_rules import Rules
from tests.wire.openai_apis import CHAT, RESPONSES, Api
from tests.wire.server import Received, Reply, WireServer, failure

Call = tuple[str, dict[str, Any]]
Says = tuple[str, Sequence[Call]]
Policy = Callable[["Asked"], Says]


class Asked(NamedTuple):
    """What a policy sees of a request: the results of the calls so far, by call and in order, and the tools."""

    results: list[str]
    tools: list[str]


def tidies(asked: Asked) -> Says:
    """Does the task as a model would: looks around, then asks for everything at once, and checks what is uncertain."""
    match asked.results:
        case []:
            return "I look around.", [("list_files", {"path": "."})]
        case [_]:
            return "And now.", [
                ("search", {"text": "def accept"}),
                ("delete_file", {"path": "draft.txt"}),
                ("write_file", {"path": "NOTES.md", "text": "Work is accepted in lane.py.\n"}),
                ("delete_folder", {"path": "build"}),
                ("read_file", {"path": "no such file"}),
                ("read_file", {"path": "errors.py"}),
            ]
        case [*_, last] if any("no outcome was saved" in each for each in asked.results) and "files" not in last[:12]:
            return "I check.", [("list_files", {"path": "."})]
        case _:
            return "It is done.", []


def only_talks(asked: Asked) -> Says:
    """Never calls a tool."""
    return f"I could do that with {asked.tools[0]}, but I would rather talk about it.", []


class Provider:
    """A server that speaks all three interfaces. ``breaches`` are what its strict checkers found in the requests."""

    def __init__(self, policy: Policy = tidies, *, refuses: bool = False, models: Sequence[str] = ("local-1",)) -> None:
        self.breaches: list[str] = []
        self.models: list[str] = []
        """The model that each request is for."""
        self.keys: list[str | None] = []
        self._policy = policy
        self._refuses = refuses
        self._served = models
        self._rules = Rules()
        self.server = WireServer(self._reply)

    def __enter__(self) -> Provider:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def _reply(self, request: Received) -> Reply:
        if request.method == "GET":
            body = json.dumps({"data": [{"id": name} for name in self._served]})
            return Reply(pieces=[body.encode()], headers={"content-type": "application/json"})
        body = request.body
        self.models.append(body["model"])
        self.keys.append(request.headers.get("x-api-key") or request.headers.get("authorization"))
        if request.path == "/v1/messages":
            return self._anthropic(body, request.data)
        return self._openai(RESPONSES if request.path == "/v1/responses" else CHAT, body)

    def _openai(self, api: Api, body: dict[str, Any]) -> Reply:
        self.breaches += api.breaches(body)
        if self._refuses:
            return failure(401, {"error": {"message": "Incorrect API key provided: bad", "code": "invalid_api_key"}})
        if api is CHAT:
            results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
            tools = [each["function"]["name"] for each in body["tools"]]
        else:
            results = [each["output"] for each in body["input"] if each.get("type") == "function_call_output"]
            tools = [each["name"] for each in body["tools"]]
        said, calls = self._policy(Asked(results, tools))
        number = len(self.models)
        return api.reply(
            said, *((f"call_{number}_{n}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
        )

    def _anthropic(self, body: dict[str, Any], data: bytes) -> Reply:
        self.breaches += self._rules.broken(data)
        if self._refuses:
            return error(401, "authentication_error", "invalid x-api-key")
        blocks = [block for turn in body["messages"] for block in turn["content"]]
        results = [block["content"][0]["text"] for block in blocks if block["type"] == "tool_result"]
        said, calls = self._policy(Asked(results, [each["name"] for each in body["tools"]]))
        number = len(self.models)
        asked = [tool(name, given, id=f"toolu_{number}_{n}") for n, (name, given) in enumerate(calls)]
        events = answer(text(said), *asked)
        self._rules.sent(events)
        return reply(events)
