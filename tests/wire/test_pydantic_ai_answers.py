"""Claim: what pydantic-ai streams becomes frames and a message that say the same, however it is cut; a failure is told
as what it is; and what a provider has to get back goes back to it as it came.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai import messages as pai
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from agentlane import (
    AssistantMessage,
    ImagePart,
    ModelError,
    OutputSchema,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agentlane.models.prices import Prices
from agentlane.models.pydantic_ai import PAUSES_MAX, PydanticAIModel
from tests.wire.asking import Answered, ask, request, said
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
from tests.wire.openai_rules import breaches_of_responses
from tests.wire.pydantic_ai_drawn import DrawnModel
from tests.wire.pydantic_ai_places import chat_breaches, chat_model, openai_client
from tests.wire.server import Reply, WireServer, every, failure, sse

TEXT = "Grüße 🙂 in\nzwei Zeilen"
ARGUMENTS = '{"path": "ä/🙂.txt", "lines": [1, 2]}'
USAGE = Usage(input_tokens=120, output_tokens=30, cache_read_tokens=100, cache_write_tokens=8, reasoning_tokens=20)
EVENTS = chat_events(TEXT, ("call_a", "read", ARGUMENTS), ("call_b", "now", "{}"), reasoning_content="let me see")
LOOK = ToolDefinition(name="files/look", description="", parameters={})


@asynccontextmanager
async def wire(*replies: Reply, **options: Any) -> AsyncIterator[tuple[WireServer, PydanticAIModel]]:
    with WireServer(replies) as server:
        async with openai_client(server.url) as client:
            yield server, chat_model(client, **options)
        assert not server.surplus, "the SDK asked again by itself"
        assert [breach for each in server.requests for breach in chat_breaches(each.body)] == []


@asynccontextmanager
async def responses(*replies: Reply) -> AsyncIterator[tuple[WireServer, PydanticAIModel]]:
    with WireServer(replies) as server:
        async with openai_client(server.url) as client:
            own = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(openai_client=client))
            yield server, PydanticAIModel(own)
        assert not server.surplus, "the SDK asked again by itself"
        assert [breach for each in server.requests for breach in breaches_of_responses(each.body)] == []


async def answered(*replies: Reply, given: Any = None, **options: Any) -> Answered:
    """What the model makes of the last of these replies."""
    async with wire(*replies, **options) as (_, model):
        found = [await ask(model, given) for _ in replies]
    return found[-1]


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
            case ProviderPart(data=data):
                found.append(("other", data["part_kind"]))
    return found


WHOLE = [
    ("thinking", "let me see"),
    ("text", TEXT),
    ("call", "call_a", "read", "{'path': 'ä/🙂.txt', 'lines': [1, 2]}"),
    ("call", "call_b", "now", "{}"),
]


@pytest.mark.parametrize("length", [1, 2, 7, 10_000])
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


async def test_a_conversation_of_everything_is_one_that_the_interface_takes() -> None:
    pixel = ImagePart(data="aGk=", mime_type="image/png")
    calls = tuple(ToolCallPart(id=id, name="files/look", arguments={"n": n}) for n, id in enumerate(("x", "x|y", "é")))
    results = (
        ToolResultMessage(call_id="x", name="files/look", content=(TextPart(text="here"), pixel)),
        ToolResultMessage(call_id="x|y", name="files/look", content=(TextPart(text="no"), pixel), is_error=True),
        ToolResultMessage(call_id="é", name="files/look", content=()),
    )
    async with wire(chat("", ("c", "files_look_9e6a", "{}"), reasoning_content="hm"), chat("ok")) as (server, model):
        first = (await ask(model, request(tools=[LOOK]))).message
        assert first is not None
        own = AssistantMessage(content=first.content, stop_reason="tool_calls", model=model.identity)
        foreign = AssistantMessage(
            content=(ThinkingPart(text="theirs", signature="s"), TextPart(text=" "), *calls), stop_reason="tool_calls"
        )
        name = server.requests[0].body["tools"][0]["function"]["name"]
        given = request(
            AssistantMessage(content=(TextPart(text="I begin"),), stop_reason="stop"),
            foreign,
            *results,
            UserMessage(content=(TextPart(text="look"), pixel, ImagePart(data="?", mime_type="image/x-odd"))),
            own,
            ToolResultMessage(call_id="c", name="files/look", content=(TextPart(text="seen"),)),
            tools=[LOOK],
            instructions="Be brief.",
        )
        await ask(model, given)

    messages = server.requests[1].body["messages"]
    assert [each["role"] for each in messages] == [
        *("system", "user", "assistant", "assistant", "tool", "tool", "tool", "user", "user", "assistant", "tool"),
    ]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    ids = [call["id"] for each in messages for call in each.get("tool_calls") or ()]
    assert len(set(ids)) == 4 and all(ids)
    assert [each["tool_call_id"] for each in messages if each["role"] == "tool"] == ids
    told = [each["content"] for each in messages if each["role"] == "tool"]
    assert (told[1], told[2], told[3]) == ('{"error":"no"}', "(no output)", "seen") and "here" in told[0]
    assert name.startswith("files_look_") and "theirs" not in json.dumps(messages)
    thought = [each.get("reasoning_content") for each in messages if each["role"] == "assistant"]
    assert thought[-1] == "hm", "reasoning goes back to the model whose it is, in the field that it came in"
    assert json.dumps(messages).count("aGk=") == 3 and "cannot be shown" in json.dumps(messages)


async def test_what_a_model_is_known_not_to_take_is_not_sent() -> None:
    """Ids of nine characters, as one provider wants them, and images that a model cannot see."""
    profile = ModelProfile(tool_call_id_length=9, supports_image_input=False)
    pixel = ImagePart(data="aGk=", mime_type="image/png")
    calls = tuple(ToolCallPart(id=id, name="look", arguments={}) for id in ("call_1", "123456789"))
    results = tuple(ToolResultMessage(call_id=call.id, name="look", content=(pixel,)) for call in calls)
    with WireServer([chat("ok")]) as server:
        async with openai_client(server.url) as client:
            model = PydanticAIModel(
                OpenAIChatModel("gpt-test", provider=OpenAIProvider(openai_client=client), profile=profile)
            )
            asked = AssistantMessage(content=calls, stop_reason="tool_calls")
            found = await ask(model, request(said("go"), asked, *results, UserMessage(content=(pixel,))))

    assert found.error is None
    body = server.requests[0].body
    assert chat_breaches(body) == []
    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert [len(id) for id in ids] == [9, 9] and ids[1] == "123456789" and ids[0].isalnum()
    assert json.dumps(body).count("cannot be shown here") == 3 and "aGk" not in json.dumps(body)


async def test_the_output_type_is_handed_on_or_told_in_words() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = request(output=OutputSchema(name="number", schema=schema))
    async with wire(chat('{"n": 1}')) as (server, model):
        await ask(model, given)
    form = server.requests[0].body["response_format"]["json_schema"]
    assert (form["name"], form["schema"]["properties"], form.get("strict")) == ("number", schema["properties"], False)

    async with wire(chat('{"n": 1}'), native_output=False) as (server, model):
        await ask(model, given)
    assert "json_schema" not in server.requests[0].body.get("response_format", {})
    assert '"n"' in server.requests[0].body["messages"][0]["content"]


# What pydantic-ai draws: parts of every kind, as some provider of its gives them.

SEARCH = pai.NativeToolCallPart(
    tool_name="web_search", args={"query": "q"}, tool_call_id="ws", provider_name="drawn", provider_details={"k": [1]}
)
FOUND = pai.NativeToolReturnPart(
    tool_name="web_search", content={"status": "ok"}, tool_call_id="ws", provider_name="drawn"
)
DRAWN = [
    pai.ThinkingPart(
        content="hm", id="rs_1", signature="sealed+/==", provider_name="drawn", provider_details={"d": {"e": 1}}
    ),
    pai.ThinkingPart(content="", id="redacted_thinking", signature="hidden", provider_name="drawn"),
    SEARCH,
    FOUND,
    pai.TextPart(content="so", id="msg_1", provider_name="drawn", provider_details={"phase": "x"}),
    pai.FilePart(content=pai.BinaryContent(data=b"\x00\xff", media_type="image/png"), provider_name="drawn"),
    pai.ToolCallPart(
        tool_name="look", args={"a": 1}, tool_call_id="c", id="fc_1", provider_name="drawn", provider_details={"t": "s"}
    ),
]


async def test_every_part_goes_back_as_it_came_and_only_to_the_model_that_gave_it() -> None:
    drawn = DrawnModel([DRAWN], [pai.TextPart(content="ok")], [pai.TextPart(content="ok")])
    model = PydanticAIModel(drawn)
    found = await ask(model)
    assert found.message is not None
    content = found.message.content
    result = ToolResultMessage(call_id="c", name="look", content=(TextPart(text="r"),))
    own = AssistantMessage(content=content, stop_reason="tool_calls", model=model.identity)
    await ask(model, request(said("go"), own, result))
    await ask(model, request(said("go"), AssistantMessage(content=content, stop_reason="tool_calls"), result))

    assert plain(found.message) == [
        ("thinking", "hm"),
        ("thinking", ""),
        ("other", "builtin-tool-call"),
        ("other", "builtin-tool-return"),
        ("text", "so"),
        ("other", "file"),
        ("call", "c", "look", "{'a': 1}"),
    ]
    assert [p.signature for p in content if isinstance(p, ThinkingPart) and p.redacted] == ["hidden"]
    back = drawn.received[1][1]
    assert (back.provider_name, [_bare(part) for part in back.parts]) == ("drawn", [_bare(part) for part in DRAWN])
    assert [part.part_kind for part in drawn.received[2][1].parts] == ["text", "tool-call"]
    assert "sealed" not in str(drawn.received[2]) and "hidden" not in str(drawn.received[2])


def _bare(part: Any) -> dict[str, Any]:
    dumped = pai.ModelMessagesTypeAdapter.dump_python([pai.ModelResponse(parts=[part])], mode="json")[0]["parts"][0]
    return {name: value for name, value in dumped.items() if value is not None and name != "timestamp"}


async def test_what_the_provider_ran_goes_back_whole_or_not_at_all() -> None:
    drawn = DrawnModel([[SEARCH, pai.TextPart(content="t")]], [pai.TextPart(content="ok")])
    model = PydanticAIModel(drawn)
    found = await ask(model)
    assert found.message is not None and not found.message.calls, "nobody here runs it"
    own = AssistantMessage(content=found.message.content, stop_reason="stop", model=model.identity)
    await ask(model, request(said("go"), own, said("on")))

    assert [part.part_kind for part in drawn.received[1][1].parts] == ["text"]


async def test_a_pause_is_asked_on_within_the_attempt() -> None:
    drawn = DrawnModel([SEARCH], [FOUND, pai.TextPart(content="done")], paused=1)
    found = await ask(PydanticAIModel(drawn))

    assert found.error is None and found.message is not None
    assert plain(found.message) == [("other", "builtin-tool-call"), ("other", "builtin-tool-return"), ("text", "done")]
    assert [part.tool_call_id for part in drawn.received[1][1].parts] == ["ws"]
    assert found.message.usage is not None
    assert (found.message.usage.input_tokens, found.message.usage.output_tokens) == (20, 10)


async def test_a_provider_that_pauses_for_ever_is_a_failure() -> None:
    drawn = DrawnModel(*[[SEARCH]] * (PAUSES_MAX + 2), paused=PAUSES_MAX + 2)
    found = await ask(PydanticAIModel(drawn))

    assert isinstance(found.error, ModelError) and "paused 17 times" in str(found.error)
    assert len(drawn.received) == PAUSES_MAX + 1


async def test_an_answer_that_comes_in_one_piece_is_shown_whole() -> None:
    found = await ask(PydanticAIModel(TestModel(call_tools=[], custom_output_text="all at once")))

    assert found.message is not None and (found.message.text, found.shown) == ("all at once", "all at once")


async def test_a_function_that_gives_no_id_gets_a_result_for_its_call() -> None:
    seen: list[Any] = []

    async def drawn(messages: list[Any], info: Any) -> AsyncIterator[Any]:
        seen.append(messages)
        yield {0: DeltaToolCall(name="look", json_args='{"a": 1}')} if len(seen) == 1 else "done"

    model = PydanticAIModel(FunctionModel(stream_function=drawn))
    first = (await ask(model)).message
    assert first is not None
    (call,) = first.calls
    result = ToolResultMessage(call_id=call.id, name="look", content=(TextPart(text="r"),))
    own = AssistantMessage(content=first.content, stop_reason="tool_calls", model=model.identity)
    second = await ask(model, request(said("go"), own, result))

    assert second.message is not None and second.message.text == "done"
    assert seen[1][1].parts[0].tool_call_id == seen[1][2].parts[0].tool_call_id == call.id


RESPONSE = (
    reasoning("why", encrypted="gAA=+/é"),
    message(TEXT, phase="commentary"),
    function_call("read", ARGUMENTS, call_id="call_a", id="fc_1"),
    function_call("read", "{}", call_id="call_b", id="fc_2"),
)


async def test_the_responses_interface_gets_back_its_items_as_they_came_and_another_model_none_of_them() -> None:
    async with responses(response(*RESPONSE), response(message("ok")), response(message("ok"))) as (server, model):
        first = (await ask(model)).message
        assert first is not None
        own = AssistantMessage(content=first.content, stop_reason="tool_calls", model=model.identity)
        foreign = AssistantMessage(content=first.content, stop_reason="tool_calls")
        results = [
            ToolResultMessage(call_id=call.id, name="read", content=(TextPart(text="r"),)) for call in first.calls
        ]
        for answer in (own, foreign):
            found = await ask(model, request(said("go"), answer, *results, tools=[LOOK]))
            assert found.message is not None and found.message.text == "ok"

    assert plain(first) == [("thinking", "why"), *WHOLE[1:3], ("call", "call_b", "read", "{}")]
    assert (first.stop_reason, first.usage) == ("tool_calls", USAGE)
    items = server.requests[1].body["input"]
    assert [item.get("type", item.get("role")) for item in items] == [
        *("user", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    assert (items[1]["id"], items[1]["encrypted_content"]) == ("rs_1", "gAA=+/é")
    assert [item.get("id") for item in items[2:5]] == ["msg_1", "fc_1", "fc_2"]
    assert "gAA=" not in server.requests[2].data.decode() and "rs_1" not in server.requests[2].data.decode()


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
