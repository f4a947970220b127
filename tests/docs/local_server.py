"""A server of Chat Completions for the blocks of a page, which it answers by the model that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.wire.openai_answers import broken, chat, chat_events
from tests.wire.openai_rules import breaches_of_chat
from tests.wire.server import Received, Reply, WireServer, failure

ADDRESS = re.compile(r"http://localhost:\d+/v1")


@contextmanager
def local_server() -> Iterator[str]:
    """Its address. At the end every request was one that is taken, and told no key."""
    breaches: list[str] = []
    asked: list[str] = []

    def reply(request: Received) -> Reply:
        body = request.body
        breaches.extend(breaches_of_chat(body))
        breaches.extend([] if request.headers["authorization"] == "Bearer none" else ["a key was told"])
        asked.append(body["model"])
        match body["model"]:
            case "qwen3:8b":
                results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
                if results:
                    return chat(f"It has {results[0]}.")
                return chat("", ("", "count_words", json.dumps({"text": "to be or not to be"})))
            case "counts-nothing":
                return chat("I count 6.", usage=None) if "stream_options" not in body else failure(400, {})
            case "dies-once" if asked.count("dies-once") == 1:
                return broken(chat_events("I count 6."), 3, "cut", named=False)
            case _:
                return chat("I count 6.")

    with WireServer(reply) as server:
        yield f"{server.url}/v1"
    assert breaches == []
    assert asked, "nobody was asked"
