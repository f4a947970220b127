"""OpenAI's two interfaces side by side, for claims that hold for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("openai")

from agentlane.models.openai import OpenAIModel
from agentlane.models.openai_chat import OpenAIChatModel
from tests.wire.openai_answers import (
    Event,
    chat_events,
    function_call,
    message,
    reasoning,
    response_events,
)
from tests.wire.openai_rules import breaches_of_chat, breaches_of_responses
from tests.wire.server import End, Reply, sse

Call = tuple[str, str, str]
"""Id, name and arguments."""


class Api(NamedTuple):
    """One interface: a model of it, an answer as it streams it, and what it refuses."""

    name: str
    adapter: Callable[..., Any]
    named: bool
    breaches: Callable[[dict[str, Any]], list[str]]

    def model(self, url: str, **options: Any) -> Any:
        """A model of the server at ``url``."""
        return self.adapter("gpt-x", **{"api_key": "a-key", "base_url": f"{url}/v1"} | options)

    def events(self, text: str = "", *calls: Call, thought: str = "") -> list[Event]:
        """The events of an answer."""
        if self.name == "chat":
            return chat_events(text, *calls, **({"reasoning_content": thought} if thought else {}))
        items = [reasoning(thought, encrypted="sealed")] if thought else []
        items += [message(text)] if text else []
        items += [function_call(name, args, call_id=id, id=f"fc_{n}") for n, (id, name, args) in enumerate(calls)]
        return response_events(*items)

    def body(self, events: list[Event], **options: Any) -> bytes:
        """These events as the bytes of an answer that ends well."""
        return sse(*events, named=self.named, done=not self.named, **options)

    def reply(self, text: str = "", *calls: Call, thought: str = "") -> Reply:
        """A whole answer."""
        return Reply(pieces=[self.body(self.events(text, *calls, thought=thought))])

    def broken(self, events: list[Event], count: int, end: End) -> Reply:
        """The first ``count`` events, and an end that goes wrong."""
        return Reply(pieces=[sse(event, named=self.named) for event in events[:count]], end=end)


RESPONSES = Api("responses", OpenAIModel, True, breaches_of_responses)
CHAT = Api("chat", OpenAIChatModel, False, breaches_of_chat)
APIS = [RESPONSES, CHAT]

both = pytest.mark.parametrize("api", APIS, ids=[api.name for api in APIS])
