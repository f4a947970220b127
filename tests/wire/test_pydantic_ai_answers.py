"""Claim: what pydantic-ai streams becomes frames and a message that say the same, however it is cut; a failure is told
as what it is; and what a provider has to get back goes back to it as it came.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai.models.test import TestModel

from agentlane import (
    ModelError,
    OutputSchema,
    PartStart,
)
from agentlane.models.prices import Prices
from agentlane.models.pydantic_ai import PydanticAIModel
from tests.wire.asking import Answered, ask, request
from tests.wire.openai_answers import (
    broken,
    chat,
    chat_events,
    deltas,
    function_call,
    message,
    reasoning,
    refused,
    response,
    response_events,
)
from tests.wire.pydantic_ai_places import (
    ARGUMENTS,
    TEXT,
    USAGE,
    chat_model,
    openai_client,
    plain,
    responses,
    wire,
)
from tests.wire.server import Reply, WireServer, every, failure, sse

EVENTS = chat_events(TEXT, ("call_a", "read", ARGUMENTS), ("call_b", "now", "{}"), reasoning_content="let me see")


async def answered(*replies: Reply, given: Any = None, **options: Any) -> Answered:
    """What the model makes of the last of these replies."""
    async with wire(*replies, **options) as (_, model):
        found = [await ask(model, given) for _ in replies]
    return found[-1]


WHOLE = [
    ("thinking", "let me see"),
    ("text", TEXT),
    ("call", "call_a", "read", "{'path': 'ä/🙂.txt', 'lines': [1, 2]}"),
    ("call", "call_b", "now", "{}"),
]


@pytest.mark.parametrize("length", [1, 7])
async def test_an_answer_is_whole_wherever_its_bytes_are_cut(length: int) -> None:
    data = sse(*EVENTS, done=True, keep_alives=True, newline="\r\n")
    found = await answered(Reply(pieces=every(data, length)))

    assert found.error is None and found.message is not None
    assert (plain(found.message), found.message.stop_reason) == (WHOLE, "tool_calls")
    assert found.message.usage == USAGE
    assert found.shown == "let me see" + TEXT + ARGUMENTS + "{}"
    assert [frame.kind for frame in found.frames if isinstance(frame, PartStart)] == [
        "thinking",
        "text",
        *["tool_call"] * 2,
    ]


@pytest.mark.parametrize("end", ["whole", "cut", "reset"])
async def test_an_answer_that_breaks_off_is_a_cut_one(end: Any, whole: bool) -> None:
    last = len(EVENTS) - 2  # up to the chunk that says why it ended
    for count in range(1, last + 1) if whole else (1, last // 2, last):
        found = await answered(Reply(pieces=[sse(event) for event in EVENTS[:count]], end=end))

        assert found.message is None
        assert isinstance(found.error, ModelError), found.error
        assert (found.error.kind, found.error.retryable, found.error.sent) == ("stream_cut", True, True), count
        assert ("let me see" + TEXT + ARGUMENTS + "{}").startswith(found.shown)
        assert found.error.usage is None, "what was charged is not known"


async def test_a_server_that_never_says_why_it_ends_can_be_believed() -> None:
    silent = Reply(pieces=[sse(*EVENTS[:5], done=True)])

    assert isinstance((await answered(silent)).error, ModelError)
    found = await answered(silent, ends_without_reason=True)
    assert found.message is not None and found.message.stop_reason == "stop"
    broken = Reply(pieces=[sse(*EVENTS[:5])], end="cut")
    assert isinstance((await answered(broken, ends_without_reason=True)).error, ModelError), "but not where it broke"


@pytest.mark.parametrize("end", ["whole", "cut", "reset"])
async def test_an_answer_that_said_why_it_ends_is_whole_even_if_its_usage_never_comes(end: Any) -> None:
    found = await answered(Reply(pieces=[sse(event) for event in chat_events("done", usage=None)], end=end))

    assert found.message is not None
    assert (found.message.text, found.message.stop_reason, found.message.usage) == ("done", "stop", None)


@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        ("", {}, None),
        ('{"a": ', None, '{"a": '),
        ("[1]", None, "[1]"),
        ("null", None, "null"),
        ("[" * 999, None, "[" * 999),
    ],
)
async def test_arguments_are_an_object_or_text(arguments: str, expected: Any, text: Any) -> None:
    found = await answered(chat("", ("a", "f", arguments)))

    assert found.message is not None
    assert [(call.arguments, call.arguments_text) for call in found.message.calls] == [(expected, text)]


async def test_calls_whose_deltas_are_mixed_end_as_what_each_is() -> None:
    mixed = deltas(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "a", "function": {"name": "g", "arguments": '{"y"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]},
        finish="stop",
    )
    found = await answered(mixed)

    assert found.message is not None
    assert [(c.id, c.name, c.arguments_text) for c in found.message.calls] == [
        ("a", "f", '{"x": 1}'),
        ("a", "g", '{"y": 2}'),
    ]
    assert found.message.stop_reason == "tool_calls", "whether there are calls decides, and not the word"


ENDINGS: dict[str, tuple[Reply, str, str]] = {
    "refusal": (chat(refusal="I will not."), "refusal", "I will not."),
    "filter": (chat("I w", finish="content_filter"), "content_filter", "I w"),
}


@pytest.mark.parametrize("given", ENDINGS)
async def test_answers_that_fail_say_why_and_keep_what_was_said_and_charged(given: str) -> None:
    reply, kind, text = ENDINGS[given]
    found = await answered(reply)

    assert found.message is not None and found.message.error is not None
    assert (found.message.stop_reason, found.message.error.code) == ("error", kind)
    assert not found.message.error.retryable
    assert (found.message.text, found.shown, found.message.usage) == (text, text, USAGE)


async def test_a_limit_of_tokens_is_a_length_and_half_a_call_stays_half() -> None:
    found = await answered(chat("so", ("c", "f", '{"a": '), finish="length"))

    assert found.message is not None
    assert (found.message.stop_reason, found.message.text) == ("length", "so")
    assert [(call.arguments, call.arguments_text) for call in found.message.calls] == [(None, '{"a": ')]


FAILURES: dict[str, tuple[Reply, str, bool, int | None]] = {
    "no key": (
        failure(401, {"error": {"message": "no", "code": "invalid_api_key"}}),
        "authentication_failed",
        False,
        None,
    ),
    "denied": (failure(403, {"error": {"message": "no"}}), "permission_denied", False, None),
    "no model": (failure(404, {"error": {"message": "no", "code": "model_not_found"}}), "not_found", False, None),
    "bad": (failure(422, {"error": {"message": "no"}}), "invalid_request", False, None),
    "overflow": (
        failure(400, {"error": {"message": "maximum context length is 8", "type": "invalid_request_error"}}),
        "context_overflow",
        False,
        None,
    ),
    "unpaid": (
        failure(429, {"error": {"message": "no", "code": "insufficient_quota"}}),
        "quota_exhausted",
        False,
        None,
    ),
    "rate": (failure(429, {"error": {"message": "slow"}}, retry_after="7"), "rate_limited", True, 7_000),
    "rate in ms": (failure(429, {"error": {"message": "slow"}}, retry_after_ms="1500"), "rate_limited", True, 1_500),
    "overloaded": (failure(529, {"error": {"message": "busy"}}), "overloaded", True, None),
    "unavailable": (failure(503, {"error": {"message": "busy"}}, retry_after="2"), "overloaded", True, 2_000),
    "server": (failure(500, {"error": {"message": "oh"}}), "server_error", True, None),
    "in the stream": (
        Reply(pieces=[sse(*EVENTS[:4]), sse({"error": {"message": "busy", "code": "slow_down"}})]),
        "overloaded",
        True,
        None,
    ),
    "in words": (Reply(pieces=[sse(*EVENTS[:4]), sse({"error": "out of memory"})]), "model_error", True, None),
    "no JSON": (Reply(pieces=[sse(*EVENTS[:4]), b"data: <html>\n\n"]), "invalid_response", True, None),
    "nothing": (Reply(), "stream_cut", True, None),
}


@pytest.mark.parametrize("given", FAILURES)
async def test_a_failure_is_told_as_what_it_is_and_not_tried_again_inside(given: str) -> None:
    reply, kind, retryable, wait_ms = FAILURES[given]
    found = await answered(reply)

    assert found.message is None
    assert isinstance(found.error, ModelError), found.error
    assert (found.error.kind, found.error.retryable, found.error.retry_after_ms) == (kind, retryable, wait_ms)
    assert found.error.sent
    assert found.shown == ("let" + " me" + " se" if reply.status == 200 and reply.pieces else "")[: len(found.shown)]


async def test_a_connection_that_never_was_sent_nothing() -> None:
    with WireServer() as server:
        url = server.url
    async with openai_client(url) as client:
        found = await ask(chat_model(client))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("connection_failed", True, False)


async def test_silence_ends_at_the_timeout_that_was_set() -> None:
    with WireServer([Reply(end="hang")]) as server:
        async with openai_client(server.url) as client:
            found = await ask(chat_model(client, timeout_ms=50))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("timeout", True, True)


async def test_the_connection_of_an_answer_is_used_again_and_one_that_is_closed_half_way_is_hung_up() -> None:
    half = Reply(pieces=[sse(*EVENTS[:6])], end="hang")
    async with wire(chat("one"), chat("two"), half, chat("three")) as (server, model):
        for text in ("one", "two"):
            assert (await ask(model)).shown == text
        assert server.connections == 1
        stream: Any = model.stream(request())
        await anext(stream)
        await stream.aclose()
        await asyncio.to_thread(server.left)
        assert (await ask(model)).shown == "three"


async def test_nothing_of_a_stream_that_is_closed_half_way_is_left_for_the_event_loop_to_end() -> None:
    left: list[str] = []
    began, ended = sys.get_asyncgen_hooks()
    half = Reply(pieces=[sse(event) for event in EVENTS[:6]], end="hang")
    async with wire(half) as (_, model):
        try:
            sys.set_asyncgen_hooks(finalizer=lambda generator: left.append(generator.__qualname__))
            stream: Any = model.stream(request())
            await anext(stream)
            await stream.aclose()
            del stream
            gc.collect()
        finally:
            sys.set_asyncgen_hooks(firstiter=began, finalizer=ended)

    assert left == []


async def test_settings_headers_and_prices() -> None:
    prices = Prices(input=2.0, output=8.0, cache_read=0.5, cache_write=2.5)
    given = request(settings={"temperature": 0.5, "extra_headers": {"x-b": "2"}})
    async with wire(chat("hi"), prices=prices, headers={"x-a": "1", "x-b": "1"}) as (server, model):
        found = await ask(model, given)

    assert found.message is not None and found.message.usage is not None
    assert found.message.usage.cost_nanos == 334_000  # 12 plain, 100 read, 8 written, 30 out
    sent = server.requests[0]
    assert (sent.body["temperature"], sent.headers["x-a"], sent.headers["x-b"]) == (0.5, "1", "2")


async def test_a_setting_that_is_the_librarys_is_refused() -> None:
    found = await ask(PydanticAIModel(TestModel()), request(settings={"max_retries": 3}))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.sent, "'max_retries'" in str(found.error)) == ("invalid_request", False, True)


async def test_the_output_type_is_handed_on_or_told_in_words() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = request(output=OutputSchema(name="number", schema=schema))
    async with wire(chat('{"n": 1}')) as (server, model):
        await ask(model, given)
    form = server.requests[0].body["response_format"]["json_schema"]
    assert (form["name"], form["schema"]["properties"]) == ("number", schema["properties"])

    for options, told in (({"native_output": False}, schema), ({}, {"type": "array", "items": {"type": "integer"}})):
        async with wire(chat("[1]"), **options) as (server, model):
            await ask(model, request(instructions="Be brief.", output=OutputSchema(name="number", schema=told)))
        assert "response_format" not in server.requests[0].body
        system = server.requests[0].body["messages"][0]["content"]
        assert system.startswith("Be brief.\n\n") and system.endswith(json.dumps(told))


RESPONSE = (reasoning("why"), message(TEXT), function_call("read", ARGUMENTS))


@pytest.mark.parametrize("end", ["whole", "cut"])
async def test_a_response_without_its_end_is_a_cut_one(end: Any) -> None:
    events = response_events(*RESPONSE)
    for count in (1, len(events) // 2, len(events) - 1):
        async with responses(broken(events, count, end)) as (_, model):
            found = await ask(model)
        assert isinstance(found.error, ModelError), found
        assert (found.error.kind, found.error.retryable) == ("stream_cut", True), count


RESPONSE_ENDINGS: dict[str, tuple[Reply, str, bool]] = {
    "refusal": (response(refused("I will not.")), "refusal", False),
    "filter": (response(message("I w"), status="incomplete", reason="content_filter"), "content_filter", False),
    "failed": (
        response(message("I w"), status="failed", error={"code": "server_error", "message": "sorry"}),
        "server_error",
        True,
    ),
    "overflow": (
        response(status="failed", error={"code": "context_length_exceeded", "message": "too long"}),
        "context_overflow",
        False,
    ),
}


@pytest.mark.parametrize("given", RESPONSE_ENDINGS)
async def test_responses_that_fail_say_why(given: str) -> None:
    reply, kind, retryable = RESPONSE_ENDINGS[given]
    async with responses(reply) as (_, model):
        found = await ask(model)

    info = found.message.error if found.message is not None else found.error
    assert info is not None
    assert (getattr(info, "kind", None) or getattr(info, "code", None), getattr(info, "retryable", None)) == (
        kind,
        retryable,
    )


async def test_a_response_cut_by_its_limit_is_a_length() -> None:
    async with responses(response(message("so"), status="incomplete", reason="max_output_tokens")) as (_, model):
        found = await ask(model)

    assert found.message is not None and (found.message.stop_reason, found.message.text) == ("length", "so")
