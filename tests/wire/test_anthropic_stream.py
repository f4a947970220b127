"""Claim: what Anthropic's streaming format says becomes frames and one settled answer, however the bytes are cut, and
what goes wrong becomes the failure that it is. Through the official SDK, over HTTP on loopback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic")

from agentlane import (
    AssistantMessage,
    InvalidDefinition,
    ModelError,
    ModelLimits,
    ModelRequest,
    OutputSchema,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    StreamItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    Usage,
    UsageSeen,
    UserMessage,
)
from agentlane.models.anthropic import PAUSES_MAX, AnthropicModel
from agentlane.models.prices import Prices
from tests.wire.anthropic_client import client_of
from tests.wire.anthropic_format import (
    answer,
    error,
    error_event,
    redacted,
    reply,
    start,
    stop,
    text,
    thinking,
    tool,
    whole,
)
from tests.wire.anthropic_rules import Provider
from tests.wire.server import Reply, sse

SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds+/="
RICH = answer(
    thinking("I will", " look — é€😀", signature=SIGNATURE),
    redacted("opaque=="),
    text("Hel", "lo ", "wörld 😀"),
    tool("read", None, id="toolu_1", pieces=['{"pa', 'th": "a', '😀"}']),
    tool("now", {}, id="toolu_2", pieces=[]),
    usage={"cache_read_input_tokens": 30, "cache_creation_input_tokens": 5},
    end_usage={"output_tokens_details": {"thinking_tokens": 4}},
)
RICH_CONTENT = (
    ThinkingPart(text="I will look — é€😀", signature=SIGNATURE),
    ThinkingPart(text="", signature="opaque==", redacted=True),
    TextPart(text="Hello wörld 😀"),
    ToolCallPart(id="toolu_1", name="read", arguments={"path": "a😀"}, arguments_text='{"path": "a😀"}'),
    ToolCallPart(id="toolu_2", name="now", arguments={}),
)


def request(**given: Any) -> ModelRequest:
    known: dict[str, Any] = {
        "instructions": "Be brief.",
        "messages": (UserMessage(content=(TextPart(text="hi"),)),),
        "tools": (ToolDefinition(name="read", description="reads", parameters={"type": "object"}),),
        "settings": {},
        "session_id": "s",
        "lane": "main",
        "operation_id": "op",
        "attempt": 1,
    }
    return ModelRequest(**{**known, **given})


@asynccontextmanager
async def serving(*script: Sequence[Any] | Reply, **given: Any) -> AsyncIterator[tuple[Provider, AnthropicModel]]:
    """A provider with this script, and a model that asks it."""
    with Provider(*script) as provider:
        async with client_of(provider) as client:
            yield provider, AnthropicModel("claude-test", client=client, **given)


async def ask(model: AnthropicModel, asked: ModelRequest | None = None) -> tuple[list[StreamItem], ModelError | None]:
    """Everything that one request yields, and how it failed."""
    items: list[StreamItem] = []
    stream: Any = model.stream(asked or request())
    try:
        async for item in stream:
            items.append(item)
    except ModelError as failed:
        return items, failed
    finally:
        await stream.aclose()
    return items, None


def settled(items: Sequence[StreamItem]) -> AssistantMessage:
    """The answer, which is the last item and the only one of its kind."""
    assert [isinstance(item, AssistantMessage) for item in items].count(True) == 1
    assert isinstance(items[-1], AssistantMessage)
    return items[-1]


@pytest.mark.parametrize("length", [None, 1, 2, 3, 7, 1000])
async def test_an_answer_is_the_same_however_its_bytes_are_cut(length: int | None) -> None:
    async with serving(reply(RICH, length=length)) as (provider, model):
        items, failed = await ask(model)

    assert failed is None
    message = settled(items)
    assert message.content == RICH_CONTENT
    assert message.stop_reason == "tool_calls"
    assert message.usage == Usage(
        input_tokens=45, output_tokens=7, cache_read_tokens=30, cache_write_tokens=5, reasoning_tokens=4
    )
    deltas: dict[int, str] = {}
    for item in items:
        if isinstance(item, PartDelta):
            deltas[item.index] = deltas.get(item.index, "") + item.text
    assert deltas == {0: "I will look — é€😀", 2: "Hello wörld 😀", 3: '{"path": "a😀"}'}
    assert [item for item in items if isinstance(item, PartStart)][3:] == [
        PartStart(index=3, kind="tool_call", id="toolu_1", name="read"),
        PartStart(index=4, kind="tool_call", id="toolu_2", name="now"),
    ]
    assert tuple(item.part for item in items if isinstance(item, PartEnd)) == RICH_CONTENT
    provider.require_kept()


async def test_pings_comments_and_line_ends_of_every_kind_change_nothing() -> None:
    events = [event for event in answer(text("a", "b")) for event in (event, {"type": "ping"}, {"type": "to come"})]
    replies = [
        Reply(pieces=[sse(*events, named=True, newline=newline, keep_alives=True)]) for newline in ("\n", "\r\n", "\r")
    ]
    async with serving(*replies) as (_, model):
        answers = [settled((await ask(model))[0]) for _ in replies]

    assert [message.text for message in answers] == ["ab"] * 3


@pytest.mark.parametrize(
    ("reason", "blocks", "expected"),
    [
        ("end_turn", [text("a")], "stop"),
        ("stop_sequence", [text("a")], "stop"),
        ("max_tokens", [text("a")], "length"),
        ("max_tokens", [tool("read", {}, id="1")], "length"),
        ("model_context_window_exceeded", [text("a")], "length"),
        ("tool_use", [tool("read", {}, id="1")], "tool_calls"),
        ("a reason to come", [text("a")], "stop"),
        ("a reason to come", [tool("read", {}, id="1")], "tool_calls"),
        ("end_turn", [tool("read", {}, id="1")], "tool_calls"),
    ],
)
async def test_why_an_answer_stopped(reason: str, blocks: Any, expected: str) -> None:
    async with serving(answer(*blocks, reason=reason)) as (_, model):
        message = settled((await ask(model))[0])

    assert (message.stop_reason, message.error) == (expected, None)


async def test_a_refusal_is_a_failure_that_is_not_tried_again_and_keeps_what_it_cost() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "not this"}
    async with serving(answer(text("I"), reason="refusal", details=details)) as (_, model):
        message = settled((await ask(model))[0])

    assert message.stop_reason == "error" and message.error is not None
    assert (message.error.code, message.error.retryable) == ("refusal", False)
    assert "not this (category bio)" in message.error.message
    assert message.usage == Usage(input_tokens=10, output_tokens=7)
    assert message.text == "I"


async def test_a_full_context_window_without_an_answer_is_an_overflow() -> None:
    async with serving(answer(reason="model_context_window_exceeded")) as (_, model):
        message = settled((await ask(model))[0])

    assert message.error is not None and message.error.code == "context_overflow"


@pytest.mark.parametrize(
    ("given", "kind", "retryable", "retry_after_ms"),
    [
        (error(429, "rate_limit_error", "slow down", retry_after="7"), "rate_limited", True, 7_000),
        (error(429, "rate_limit_error", "slow down", retry_after_ms="1500"), "rate_limited", True, 1_500),
        (
            error(
                429,
                "rate_limit_error",
                "slow down",
                retry_after="Wed, 21 Oct 2026 12:00:07 GMT",
                date="Wed, 21 Oct 2026 12:00:00 GMT",
            ),
            "rate_limited",
            True,
            7_000,
        ),
        (error(529, "overloaded_error", "Overloaded"), "overloaded", True, None),
        (error(503, "api_error", "busy", retry_after="2"), "overloaded", True, 2_000),
        (error(500, "api_error", "not again", x_should_retry="false"), "server_error", False, None),
        (error(408, "timeout_error", "too slow"), "timeout", True, None),
        (error(409, "conflict_error", "at once"), "conflict", True, None),
        (error(402, "billing_error", "pay first"), "quota_exhausted", False, None),
        (error(500, "api_error", "Internal server error"), "server_error", True, None),
        (error(504, "timeout_error", "too long"), "timeout", True, None),
        (error(401, "authentication_error", "invalid x-api-key"), "authentication_failed", False, None),
        (error(403, "permission_error", "no"), "permission_denied", False, None),
        (error(404, "not_found_error", "model: x"), "not_found", False, None),
        (error(400, "invalid_request_error", "messages: wrong"), "invalid_request", False, None),
        (error(413, "request_too_large", "too large"), "context_overflow", False, None),
        (
            error(400, "invalid_request_error", "prompt is too long: 208656 tokens > 200000 maximum"),
            "context_overflow",
            False,
            None,
        ),
        (
            error(
                400,
                "invalid_request_error",
                "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length or "
                "`max_tokens` and try again",
            ),
            "context_overflow",
            False,
            None,
        ),
        (
            error(400, "invalid_request_error", "Your credit balance is too low to access the API."),
            "quota_exhausted",
            False,
            None,
        ),
        (Reply(status=502, pieces=[b"<html>bad gateway</html>"]), "server_error", True, None),
    ],
)
async def test_a_refused_request_says_why_and_is_asked_once(
    given: Reply, kind: str, retryable: bool, retry_after_ms: int | None
) -> None:
    async with serving(given) as (provider, model):
        items, failed = await ask(model)

    assert items == [] and failed is not None
    assert (failed.kind, failed.retryable, failed.retry_after_ms) == (kind, retryable, retry_after_ms)
    assert failed.sent and failed.usage is None  # what it cost is not known
    assert len(provider.bodies) == 1


@pytest.mark.parametrize(
    ("kind", "expected", "retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("api_error", "server_error", True),
        ("rate_limit_error", "rate_limited", True),
        ("invalid_request_error", "invalid_request", False),
        ("never heard of", "model_error", True),
    ],
)
async def test_an_error_in_the_stream_keeps_what_was_shown_and_counted(
    kind: str, expected: str, retryable: bool
) -> None:
    async with serving([*answer(text("a", "b"))[:5], error_event(kind, "Sorry")]) as (provider, model):
        items, failed = await ask(model)

    assert failed is not None and (failed.kind, failed.retryable) == (expected, retryable)
    assert "Sorry" in str(failed)
    assert failed.usage == Usage(input_tokens=10)  # how much was written is not known
    assert [item.text for item in items if isinstance(item, PartDelta)] == ["a", "b"]
    assert len(provider.bodies) == 1


@pytest.mark.parametrize("end", ["whole", "cut", "reset"])
async def test_a_stream_that_ends_before_its_end_is_never_an_answer(end: Any) -> None:
    events = answer(thinking("hm"), text("a"), tool("read", {"path": "x"}, id="1"))
    replies = [reply(events[:count], end=end) for count in range(len(events))]
    async with serving(*replies) as (provider, model):
        outcomes = [await ask(model) for _ in replies]

    for items, failed in outcomes:
        assert failed is not None and failed.retryable
        assert failed.kind in ("stream_cut", "connection_failed")
        assert not any(isinstance(item, AssistantMessage) for item in items)
    assert len(provider.bodies) == len(replies)


async def test_half_an_event_is_none() -> None:
    data = sse(*answer(text("a")), named=True)
    last = data.rindex(b"event: message_stop")
    cuts = [last, last + 10, len(data) - 3, len(data) - 1]  # the last without the empty line that ends it
    async with serving(*(Reply(pieces=[data[:at]], end="cut") for at in cuts)) as (_, model):
        outcomes = [await ask(model) for _ in cuts]

    assert [failed.kind for _, failed in outcomes if failed is not None] == ["stream_cut"] * len(cuts)


@pytest.mark.parametrize(
    "events",
    [
        [start(), {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}],
        [start(), *({"index": 0, **event} for event in text("a")), {"type": "content_block_stop", "index": 0}],
        [start(), {"type": "content_block_start", "index": 0}],
        [start(), {"type": "content_block_start", "index": 0, "content_block": None}],
        [start(), {"index": 0, **text("a")[0]}, *stop("end_turn")],
        [start(), {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": 5}}],
        [{"type": "message_stop"}],
        [{"type": "message_start", "message": None}],
        [start(), {"type": "message_delta", "delta": 5}],
    ],
)  # fmt: skip
async def test_events_that_make_no_sense_are_a_failure(events: list[dict[str, Any]]) -> None:
    async with serving(reply(events)) as (_, model):
        items, failed = await ask(model)

    assert failed is not None and (failed.kind, failed.retryable) == ("invalid_response", True)
    assert not any(isinstance(item, AssistantMessage) for item in items)


@pytest.mark.parametrize("data", [b"event: message_start\ndata: {\n\n", b"event: message_start\ndata: \xff\n\n"])
async def test_bytes_that_cannot_be_read_are_a_failure(data: bytes) -> None:
    async with serving(Reply(pieces=[data])) as (_, model):
        _, failed = await ask(model)

    assert failed is not None and (failed.kind, failed.retryable) == ("invalid_response", True)


async def test_ids_that_are_empty_or_repeat_and_arguments_that_do_not_parse_are_kept_as_they_came() -> None:
    blocks = [
        tool("read", {}, id=""),
        tool("read", {"a": 1}, id="same"),
        tool("read", None, id="same", pieces=['{"a": 1', "1"]),
        tool("read", None, id="list", pieces=["[1]"]),
        tool("read", None, id="nan", pieces=['{"a": NaN}']),
    ]
    async with serving(answer(*blocks)) as (_, model):
        calls = settled((await ask(model))[0]).calls

    assert [call.id for call in calls] == ["", "same", "same", "list", "nan"]
    assert [call.arguments for call in calls[:4]] == [{}, {"a": 1}, None, None]
    assert [call.arguments_text for call in calls[2:]] == ['{"a": 11', "[1]", '{"a": NaN}']


async def test_input_that_comes_with_the_start_of_its_block_counts() -> None:
    block = whole({"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a"}})
    async with serving(answer(block)) as (_, model):
        calls = settled((await ask(model))[0]).calls

    assert calls[0].arguments == {"path": "a"}


async def test_a_half_character_in_reasoning_takes_its_mark_away() -> None:
    """It cannot be kept as it came, and changed reasoning would be refused for ever."""
    events = answer(thinking("a\ud800", signature="sig"), text("b"))
    data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    async with serving(Reply(pieces=[data])) as (_, model):
        part = settled((await ask(model))[0]).content[0]

    assert isinstance(part, ThinkingPart) and part.signature is None


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "http://x", "encrypted_content": "e=="}],
}


async def test_what_the_provider_ran_itself_and_what_it_cites_go_back_as_they_came() -> None:
    cite = {"type": "web_search_result_location", "url": "http://x", "encrypted_index": "i==", "cited_text": "t"}
    blocks = [whole(SEARCH, input={"query": "é"}), whole(FOUND), text("so", citations=[cite]), text("")]
    async with serving(answer(*blocks), answer(text("b"))) as (provider, model):
        message = settled((await ask(model))[0])
        own = AssistantMessage(content=message.content, stop_reason="stop", model=model.identity)
        said = UserMessage(content=(TextPart(text="and"),))
        await ask(model, request(messages=(said, own, said)))

    assert message.calls == ()
    assert message.content[0] == ProviderPart(provider="anthropic", data={**SEARCH, "input": {"query": "é"}})
    assert len(message.content) == 3  # the empty text is none
    assert provider.bodies[1]["messages"][1]["content"] == [
        {**SEARCH, "input": {"query": "é"}},
        FOUND,
        {"type": "text", "text": "so", "citations": [cite]},
    ]
    provider.require_kept()


async def test_a_block_that_nobody_knows_yet_is_kept_whole_with_its_deltas() -> None:
    block = [
        {"type": "content_block_start", "content_block": {"type": "compaction", "content": None}},
        *({"type": "content_block_delta", "delta": {"type": "compaction_delta", "content": c}} for c in ("a", "b")),
        {"type": "content_block_stop"},
    ]
    async with serving(answer(block, text("t"))) as (_, model):
        message = settled((await ask(model))[0])

    assert message.content[0] == ProviderPart(provider="anthropic", data={"type": "compaction", "content": "ab"})


async def test_a_pause_of_the_providers_own_tools_goes_on_in_the_same_answer() -> None:
    first = answer(text("looking"), whole(SEARCH, input={"query": "a"}), reason="pause_turn")
    then = answer(whole(FOUND), text("found"), usage={"cache_read_input_tokens": 3})
    # The provider that pauses takes its answer back last and as it came, which the strict rules refuse otherwise.
    async with serving(reply(first), reply(then)) as (provider, model):
        provider.rules.broken = lambda data: []  # type: ignore[method-assign]
        message = settled((await ask(model))[0])

    assert [part.text if isinstance(part, TextPart) else part.data["type"] for part in message.content] == [  # type: ignore[union-attr]
        "looking",
        "server_tool_use",
        "web_search_tool_result",
        "found",
    ]
    assert provider.bodies[1]["messages"][-1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "looking"}, {**SEARCH, "input": {"query": "a"}}],
    }
    assert message.usage == Usage(input_tokens=23, output_tokens=14, cache_read_tokens=None)


async def test_a_provider_that_pauses_for_ever_is_left() -> None:
    pauses = [answer(text("."), reason="pause_turn")] * (PAUSES_MAX + 1)
    async with serving(*pauses) as (provider, model):
        provider.rules.broken = lambda data: []  # type: ignore[method-assign]
        _, failed = await ask(model)

    assert failed is not None and "paused" in str(failed)
    assert len(provider.bodies) == PAUSES_MAX + 1


async def test_what_an_answer_costs_is_told_where_prices_are() -> None:
    prices = Prices(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    counts = {"input_tokens": 100, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 10}
    async with serving(answer(text("a"), usage=counts), prices=prices) as (_, model):
        usage = settled((await ask(model))[0]).usage

    # 100 x 3 + 1000 x 0.3 + 10 x 3.75 + 7 x 15, in millionths: each token is counted once.
    assert usage is not None and usage.cost_nanos == 742_500


async def test_usage_is_told_as_it_is_seen() -> None:
    async with serving(answer(text("a"), usage={"cache_read_input_tokens": 0})) as (_, model):
        items, _ = await ask(model)

    assert [item.usage for item in items if isinstance(item, UsageSeen)] == [
        Usage(input_tokens=10, cache_read_tokens=0),
        Usage(input_tokens=10, output_tokens=7, cache_read_tokens=0),
    ]


@pytest.mark.parametrize("shown", [0, 5])
async def test_a_cancelled_request_closes_its_connection(shown: int) -> None:
    async with serving(reply(answer(text("a", "b"))[:shown], end="hang")) as (provider, model):
        task = asyncio.create_task(ask(model))
        await asyncio.to_thread(provider.server.hanging)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(provider.server.left)


async def test_a_stream_that_is_left_half_way_closes_its_connection() -> None:
    async with serving(reply(answer(text("a", "b"))[:5], end="hang"), answer(text("c"))) as (provider, model):
        stream: Any = model.stream(request())
        await anext(stream)
        await stream.aclose()
        await asyncio.to_thread(provider.server.left)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

        assert settled((await ask(model))[0]).text == "c"


async def test_the_end_of_a_whole_answer_does_not_wait_for_the_end_of_its_response() -> None:
    async with serving(reply(answer(text("a")), end="hang")) as (provider, model):
        items, failed = await ask(model)
        await asyncio.to_thread(provider.server.left)

    assert failed is None and settled(items).text == "a"


async def test_a_whole_answer_leaves_its_connection_for_the_next() -> None:
    async with serving(*[answer(text("a"))] * 3) as (provider, model):
        for _ in range(3):
            await ask(model)

    assert provider.server.connections == 1


async def test_a_connection_that_cannot_be_made_costs_nothing() -> None:
    async with serving() as (provider, model):
        provider.server.close()
        _, failed = await ask(model)

    assert failed is not None
    assert (failed.kind, failed.retryable, failed.sent) == ("connection_failed", True, False)


async def test_a_missing_key_is_a_failure_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ANTHROPIC_CONFIG_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with serving() as (provider, _):
        model = AnthropicModel("claude-test", base_url=provider.url)
        _, failed = await ask(model)
        await model.aclose()

    assert failed is not None and failed.kind == "authentication_failed"
    assert not failed.sent and not failed.retryable
    assert "api_key" in str(failed)


async def test_a_client_of_ones_own_is_used_without_its_retries_and_stays_open() -> None:
    async with serving(error(529, "overloaded_error", "x"), answer(text("a"))) as (provider, _):
        async with client_of(provider, default_headers={"x-mine": "yes"}, max_retries=9) as client:
            model = AnthropicModel("claude-test", client=client)
            _, failed = await ask(model)
            await model.aclose()
            items, _ = await ask(model)

    assert failed is not None and failed.kind == "overloaded"
    assert settled(items).text == "a"
    assert [received.headers["x-mine"] for received in provider.server.requests] == ["yes", "yes"]


def test_one_model_serves_one_event_loop_after_another() -> None:
    with Provider(answer(text("a")), answer(text("b"))) as provider:
        model = AnthropicModel("claude-test", api_key="key", base_url=provider.url)

        async def once() -> str:
            try:
                return settled((await ask(model))[0]).text
            finally:
                await model.aclose()

        assert [asyncio.run(once()), asyncio.run(once())] == ["a", "b"]


async def test_settings_betas_and_limits_are_sent() -> None:
    limits = ModelLimits(output_tokens=500)
    thinking = {"type": "enabled", "budget_tokens": 100}
    settings = {"temperature": 0.9, "thinking": thinking, "betas": ["one", "two"]}
    async with serving(answer(text("a")), limits=limits) as (provider, model):
        await ask(model, request(settings=settings))

    body = provider.bodies[0]
    assert (body["max_tokens"], body["temperature"], body["thinking"]["budget_tokens"]) == (500, 0.9, 100)
    assert provider.server.requests[0].headers["anthropic-beta"] == "one,two"
    provider.require_kept()


OBJECT = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
FREE = {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": {"type": "integer"}}}}


@pytest.mark.parametrize(
    ("schema", "native", "as_format"),
    [(OBJECT, True, True), (OBJECT, False, False), (FREE, True, False), ({"type": "array"}, True, False)],
)
async def test_an_output_type_is_handed_over_where_the_provider_has_a_form_for_it(
    schema: dict[str, Any], native: bool, as_format: bool
) -> None:
    async with serving(answer(text("{}")), native_output=native) as (provider, model):
        await ask(model, request(output=OutputSchema(name="A", schema=schema)))

    body = provider.bodies[0]
    assert ("output_config" in body) == as_format
    assert (len(body["system"]) == 2) == (not as_format)
    provider.require_kept()


@pytest.mark.parametrize(
    "given",
    [{"cache": "1d"}, {"max_tokens": 0}, {"max_tokens": 1.5}, {"client": object()}, {"timeout_ms": 0}],
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition):
        AnthropicModel(**{"name": "claude-test", **given})


@pytest.mark.parametrize("delta", [None, {"stop_reason": None}])
async def test_an_end_that_does_not_say_why_is_a_cut_one(delta: dict[str, Any] | None) -> None:
    events = [event for event in answer(text("half an ans")) if event["type"] != "message_delta"]
    if delta is not None:
        events.insert(-1, {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}})
    async with serving(reply(events)) as (_, model):
        items, failed = await ask(model)

    assert failed is not None and (failed.kind, failed.retryable) == ("stream_cut", True)
    assert not any(isinstance(item, AssistantMessage) for item in items)
