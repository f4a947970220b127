"""Claim: an answer of OpenAI's interfaces is what was streamed, however its bytes arrive, or says why it is not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from agentlane import ModelError, ProviderPart, TextPart, ThinkingPart, ToolCallPart, Usage
from agentlane.models.prices import Prices
from tests.wire.openai_answers import (
    broken,
    chat_events,
    deltas,
    function_call,
    message,
    reasoning,
    refused,
    response,
    response_events,
)
from tests.wire.openai_apis import CHAT, RESPONSES, Api, both
from tests.wire.openai_wire import Wire
from tests.wire.server import End, Reply, every, pieces

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Grüße 🙂 in\nzwei Zeilen"
ARGUMENTS = '{"path": "ä/🙂.txt", "lines": [1, 2]}'
USAGE = Usage(
    input_tokens=120,
    output_tokens=30,
    cache_read_tokens=100,
    cache_write_tokens=8,
    reasoning_tokens=20,
    cost_nanos=None,
)


def plain(message: Any) -> list[tuple[str, ...]]:
    """The parts of a message without the provider's marks on them."""
    found: list[tuple[str, ...]] = []
    for part in message.content:
        match part:
            case TextPart(text=text):
                found.append(("text", text))
            case ThinkingPart(text=text):
                found.append(("thinking", text))
            case ToolCallPart():
                found.append(("call", part.id, part.name, repr(part.arguments)))
    return found


WHOLE = [
    ("thinking", "let me see"),
    ("text", TEXT),
    ("call", "call_a", "read", "{'path': 'ä/🙂.txt', 'lines': [1, 2]}"),
    ("call", "call_b", "now", "{}"),
]


def whole_events(api: Api) -> list[dict[str, Any]]:
    return api.events(TEXT, ("call_a", "read", ARGUMENTS), ("call_b", "now", "{}"), thought="let me see")


@both
async def test_a_whole_answer_has_its_parts_in_order_its_usage_and_its_stop_reason(wire: Wire, api: Api) -> None:
    found = await wire.answered(api, Reply(pieces=[api.body(whole_events(api))]))

    assert found.error is None and found.message is not None
    assert plain(found.message) == WHOLE
    assert found.message.stop_reason == "tool_calls"
    assert found.message.usage == USAGE
    assert found.shown == "let me see" + TEXT + ARGUMENTS + "{}"
    assert [frame.kind for frame in found.frames if hasattr(frame, "kind")] == ["thinking", "text", *["tool_call"] * 2]


@both
@pytest.mark.parametrize(("length", "newline"), [(1, "\n"), (1, "\r\n"), (2, "\r"), (7, "\r\n")])
async def test_it_does_not_matter_where_the_bytes_are_cut(
    wire: Wire, api: Api, length: int, newline: str, whole: bool
) -> None:
    if (length, newline) == (1, "\n") and not whole:
        pytest.skip("what line ends of two bytes show more of: with --whole")
    data = api.body(whole_events(api), newline=newline, keep_alives=True)

    found = await wire.answered(api, Reply(pieces=every(data, length)))

    assert found.error is None and found.message is not None
    assert (plain(found.message), found.message.usage) == (WHOLE, USAGE)


@both
async def test_it_does_not_matter_where_one_cut_is(wire: Wire, api: Api, whole: bool) -> None:
    data = api.body(api.events("é🙂", ("a", "f", '{"é": 1}')), newline="\r\n")
    # Inside characters, line ends and names of fields: elsewhere one byte is like another.
    found_at = [(data.index(mark), len(mark)) for mark in ("é".encode(), "🙂".encode(), b"\r\n\r\n", b"data:")]
    found_at.append((data.rindex(b"\r\n\r\n"), 4))
    places = [place for start, length in found_at for place in range(start, start + length + 1)]
    found = [
        await wire.answered(api, Reply(pieces=pieces(data, place))) for place in (places if whole else places[::3])
    ]

    assert {str(each.message) for each in found} == {str(found[0].message)}
    assert plain(found[0].message) == [("text", "é🙂"), ("call", "a", "f", "{'é': 1}")]


@both
async def test_the_connection_of_an_answer_is_used_again(wire: Wire, api: Api) -> None:
    await wire.answered(api, api.reply("one"))
    before = wire.server.connections
    await wire.answered(api, api.reply("two"))

    assert wire.server.connections == before, "the answer was read to its last byte, and nothing was hung up"


@both
@pytest.mark.parametrize("end", ["whole", "cut", "reset"])
async def test_an_answer_that_breaks_off_is_a_cut_one(wire: Wire, api: Api, end: End, whole: bool) -> None:
    events = whole_events(api)
    last = len(events) - (1 if api is RESPONSES else 2)  # up to the event that says why it ended
    counts = range(1, last + 1) if whole and end == "cut" else (1, last // 2, last)
    for count in counts:
        found = await wire.answered(api, api.broken(events, count, end))

        assert found.message is None
        assert isinstance(found.error, ModelError), found.error
        assert (found.error.kind, found.error.retryable, found.error.sent) == ("stream_cut", True, True), count
        assert ("let me see" + TEXT + ARGUMENTS + "{}").startswith(found.shown)
        assert found.error.usage is None, "what was charged is not known"


async def test_usage_that_was_seen_before_the_cut_is_in_the_failure(wire: Wire) -> None:
    events = chat_events("Hello")
    early = [event | {"usage": events[-1]["usage"]} for event in events[:2]]  # servers that count with each chunk

    found = await wire.answered(CHAT, broken(early, 2, "cut", named=False))

    assert isinstance(found.error, ModelError)
    assert found.error.usage == USAGE == pickle.loads(pickle.dumps(found.error)).usage


@pytest.mark.parametrize("end", ["whole", "cut", "reset"])
async def test_a_chat_answer_that_said_why_it_ends_is_whole_even_if_its_usage_never_comes(wire: Wire, end: End) -> None:
    events = chat_events("done", usage=None)

    found = await wire.answered(CHAT, broken(events, len(events), end, named=False))

    assert found.message is not None
    assert (found.message.text, found.message.stop_reason, found.message.usage) == ("done", "stop", None)


async def test_an_answer_that_is_only_told_at_the_end_is_whole(wire: Wire) -> None:
    events = response_events(reasoning("why"), message("told late"), function_call("f", "{}"))

    found = await wire.answered(RESPONSES, Reply(pieces=[RESPONSES.body([events[0], events[-1]])]))

    assert found.message is not None
    assert plain(found.message) == [("thinking", "why"), ("text", "told late"), ("call", "call_1", "f", "{}")]


async def test_the_event_says_how_it_ended_where_the_response_does_not(wire: Wire) -> None:
    events = response_events(message("so"), status="incomplete", reason="max_output_tokens")
    del events[-1]["response"]["status"]

    found = await wire.answered(RESPONSES, Reply(pieces=[RESPONSES.body(events)]))

    assert found.message is not None and found.message.stop_reason == "length"


@both
@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        ("", {}, None),
        ("{}", {}, "{}"),
        ('{"a": ', None, '{"a": '),
        ('{"a": 1}{"a": 2}', None, '{"a": 1}{"a": 2}'),
        ("[1]", None, "[1]"),
        ("null", None, "null"),
        ("[" * 2_000, None, "[" * 2_000),
    ],
)
async def test_arguments_are_an_object_or_text(wire: Wire, api: Api, arguments: str, expected: Any, text: Any) -> None:
    found = await wire.answered(api, api.reply("", ("a", "f", arguments)))

    assert found.message is not None
    assert [(call.arguments, call.arguments_text) for call in found.message.calls] == [(expected, text)]
    assert found.message.stop_reason == "tool_calls"


DELTAS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "one index for all, told apart by their ids": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": '{"x": 2}'}}]},
        ],
        [("a", "f", '{"x": 1}'), ("b", "g", '{"x": 2}')],
    ),
    "no ids at all, one index for all": (
        [
            {"tool_calls": [{"index": 0, "id": "", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            {"tool_calls": [{"index": 0, "id": "", "function": {"name": "f", "arguments": '{"x": 2}'}}]},
        ],
        [("", "f", '{"x": 1}'), ("", "f", '{"x": 2}')],
    ),
    "one id for two calls": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            {"tool_calls": [{"index": 1, "id": "a", "function": {"name": "f", "arguments": '{"x": 2}'}}]},
        ],
        [("a", "f", '{"x": 1}'), ("a", "f", '{"x": 2}')],
    ),
    "no index": (
        [
            {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x"'}}]},
            {"tool_calls": [{"function": {"arguments": ": 1}"}}]},
            {"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "{}"}}]},
        ],
        [("a", "f", '{"x": 1}'), ("b", "g", "{}")],
    ),
    "interleaved": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
            {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]},
            {"tool_calls": [{"index": 1, "function": {"arguments": ": 2}"}}]},
        ],
        [("a", "f", '{"x": 1}'), ("b", "g", '{"y": 2}')],
    ),
    "id and name with each piece": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]},
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ": 1}"}}]},
        ],
        [("a", "f", '{"x": 1}')],
    ),
    "the older form": (
        [{"function_call": {"name": "f", "arguments": '{"x"'}}, {"function_call": {"arguments": ": 1}"}}],
        [("", "f", '{"x": 1}')],
    ),
}


@pytest.mark.parametrize("given", DELTAS)
async def test_calls_are_told_apart_as_servers_number_them(wire: Wire, given: str) -> None:
    parts, expected = DELTAS[given]

    found = await wire.answered(CHAT, deltas(*parts, finish="stop"))

    assert found.message is not None
    assert [(call.id, call.name, call.arguments_text) for call in found.message.calls] == expected
    assert found.message.stop_reason == "tool_calls", "whether there are calls decides, and not the word"


@both
async def test_an_answer_without_anything_is_an_empty_one(wire: Wire, api: Api) -> None:
    found = await wire.answered(api, api.reply())

    assert found.message is not None
    assert (found.message.content, found.message.stop_reason) == ((), "stop")


async def test_a_limit_of_tokens_is_a_length_and_half_a_call_stays_half(wire: Wire) -> None:
    half = function_call("f", '{"a": ', status="incomplete")
    for api, reply in (
        (RESPONSES, response(message("so"), half, status="incomplete", reason="max_output_tokens")),
        (CHAT, Reply(pieces=[CHAT.body(chat_events("so", ("call_1", "f", '{"a": '), finish="length"))])),
    ):
        found = await wire.answered(api, reply)

        assert found.message is not None
        assert (found.message.stop_reason, found.message.text) == ("length", "so")
        assert [(call.arguments, call.arguments_text) for call in found.message.calls] == [(None, '{"a": ')]


ENDINGS = {
    "responses refusal": (RESPONSES, response(refused("I will not.")), "refusal", False),
    "chat refusal": (CHAT, Reply(pieces=[CHAT.body(chat_events(refusal="I will not."))]), "refusal", False),
    "responses filter": (
        RESPONSES,
        response(message("I w"), status="incomplete", reason="content_filter"),
        "content_filter",
        False,
    ),
    "chat filter": (
        CHAT,
        Reply(pieces=[CHAT.body(chat_events("I w", finish="content_filter"))]),
        "content_filter",
        False,
    ),
    "responses failed": (
        RESPONSES,
        response(message("I w"), status="failed", error={"code": "server_error", "message": "sorry"}),
        "server_error",
        True,
    ),
    "responses overflow": (
        RESPONSES,
        response(status="failed", error={"code": "context_length_exceeded", "message": "too long"}),
        "context_overflow",
        False,
    ),
    "responses policy": (
        RESPONSES,
        response(status="failed", error={"code": "bio_policy", "message": "no"}),
        "content_filter",
        False,
    ),
}


@pytest.mark.parametrize("given", ENDINGS)
async def test_answers_that_fail_say_why_and_keep_what_was_said_and_charged(wire: Wire, given: str) -> None:
    api, reply, kind, retryable = ENDINGS[given]

    found = await wire.answered(api, reply)

    assert found.message is not None and found.message.error is not None
    assert (found.message.stop_reason, found.message.error.code) == ("error", kind)
    assert found.message.error.retryable is retryable
    assert found.message.usage == USAGE
    assert "I will not.".startswith(found.message.text)
    assert found.message.text == found.shown


ERRORS: dict[str, tuple[Api, bytes, str]] = {
    "chat": (CHAT, b'data: {"error": {"message": "busy", "type": "server_error", "code": 503}}\n\n', "server_error"),
    "chat, words only": (CHAT, b'data: {"error": "out of memory"}\n\n', "model_error"),
    "responses, flat": (
        RESPONSES,
        b'event: error\ndata: {"type": "error", "code": "rate_limit_exceeded", "message": "busy"}\n\n',
        "rate_limited",
    ),
    "responses, nested": (
        RESPONSES,
        b'event: error\ndata: {"type": "error", "error": {"code": "slow_down", "message": "busy"}}\n\n',
        "overloaded",
    ),
    "not JSON": (CHAT, b"data: <html>\n\n", "invalid_response"),
    "not UTF-8": (RESPONSES, b'data: {"type": "\xff\xfe"}\n\n', "invalid_response"),
}


@pytest.mark.parametrize("given", ERRORS)
async def test_an_error_in_the_middle_is_the_providers_and_may_be_tried_again(wire: Wire, given: str) -> None:
    api, tail, kind = ERRORS[given]
    events = api.events("Hello there")[:5]
    head = api.body(events).removesuffix(b"data: [DONE]\n\n")

    found = await wire.answered(api, Reply(pieces=[head, tail]))

    assert found.message is None
    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable) == (kind, True)
    assert found.shown and "Hello there".startswith(found.shown)


async def test_parts_of_the_providers_own_tools_are_kept_as_they_came(wire: Wire) -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    shell = {
        "type": "local_shell_call",
        "id": "sh_1",
        "call_id": "s",
        "status": "in_progress",
        "action": {"type": "exec"},
    }

    found = await wire.answered(RESPONSES, response(search, shell, message("found it")))

    assert found.message is not None
    assert found.message.stop_reason == "stop" and not found.message.calls, "nobody here runs them"
    assert [part.data for part in found.message.content if isinstance(part, ProviderPart)] == [search, shell]


async def test_reasoning_keeps_what_it_takes_to_send_it_back(wire: Wire) -> None:
    found = await wire.answered(
        RESPONSES, response(reasoning("think", encrypted="gAA=+/é"), message("so", phase="commentary"))
    )

    assert found.message is not None
    thought, text = found.message.content
    assert isinstance(thought, ThinkingPart) and isinstance(text, TextPart)
    assert thought.signature is not None and '"gAA=+/é"' in thought.signature
    assert text.signature == '{"id":"msg_1","phase":"commentary"}'


@both
async def test_prices_give_an_answer_its_cost(wire: Wire, api: Api) -> None:
    prices = Prices(input=2.0, output=8.0, cache_read=0.5, cache_write=2.5)

    found = await wire.answered(api, api.reply("hi"), prices=prices)

    assert found.message is not None and found.message.usage is not None
    # 12 plain, 100 read, 8 written, 30 out: 24 + 50 + 20 + 240 millionths
    assert found.message.usage.cost_nanos == 334_000
