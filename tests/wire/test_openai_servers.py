"""Claim: what servers make of Chat Completions and the Responses API in their own ways is read as what it means."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import ModelError, TextPart, ThinkingPart, Usage
from agentlane.models.prices import Prices
from tests.wire.openai_answers import deltas, function_call, response, response_events
from tests.wire.openai_apis import CHAT, RESPONSES
from tests.wire.openai_wire import Wire
from tests.wire.server import Reply, sse

from agentlane.models import openai_chat  # isort: skip

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("error", "model_error"),
        ("abort", "model_error"),
        ("insufficient_system_resource", "overloaded"),
        ("network_error", "server_error"),
    ],
)
async def test_a_server_that_stopped_for_reasons_of_its_own_gave_no_whole_answer(
    wire: Wire, reason: str, kind: str
) -> None:
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}

    found = await wire.answered(CHAT, deltas({"content": "I will"}, call, finish=reason))

    assert found.message is not None and found.message.error is not None
    assert (found.message.stop_reason, found.message.error.code) == ("error", kind)
    assert found.message.error.retryable and found.message.text == "I will"


@pytest.mark.parametrize("reason", ["length", "model_length", "model_context_window_exceeded"])
async def test_every_word_for_a_limit_is_a_length(wire: Wire, reason: str) -> None:
    found = await wire.answered(CHAT, deltas({"content": "I will"}, finish=reason))

    assert found.message is not None
    assert (found.message.stop_reason, found.message.error) == ("length", None)


async def test_a_window_without_room_for_an_answer_is_an_overflow(wire: Wire) -> None:
    found = await wire.answered(CHAT, deltas(finish="model_context_window_exceeded"))

    assert found.message is not None and found.message.error is not None
    assert (found.message.error.code, found.message.error.retryable) == ("context_overflow", False)


async def test_a_filters_other_name_is_a_filter(wire: Wire) -> None:
    found = await wire.answered(CHAT, deltas({"content": "I w"}, finish="sensitive"))

    assert found.message is not None and found.message.error is not None
    assert found.message.error.code == "content_filter"


async def test_text_and_reasoning_in_a_list_of_parts_are_both_there(wire: Wire) -> None:
    """Without this nothing of the answer was there, and it ended well."""
    parts: list[dict[str, Any]] = [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "thinking", "thinking": "!"}, {"type": "reference", "reference_ids": [1]}]},
        {"content": [{"type": "text", "text": "so"}]},
        {"content": " be it"},
    ]

    found = await wire.answered(CHAT, deltas(*parts))

    assert found.message is not None
    assert found.message.content == (ThinkingPart(text="hm!"), TextPart(text="so be it"))


async def test_arguments_that_come_as_an_object_are_that_object(wire: Wire) -> None:
    function = {"name": "f", "arguments": {"path": "ä", "n": [1, None]}}

    found = await wire.answered(CHAT, deltas({"tool_calls": [{"index": 0, "id": 7, "function": function}]}))

    assert found.message is not None, found.error
    assert [(call.id, call.arguments) for call in found.message.calls] == [("7", {"path": "ä", "n": [1, None]})]


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": 5},
        {"tool_calls": [{"index": {"a": 1}, "function": 5, "id": "a"}]},
        {"tool_calls": {"index": 0}},
        {"content": {"text": "a"}},
        {"content": [5, None, {"type": "text", "text": 5}]},
        "a",
        5,
        None,
    ],
)
async def test_deltas_of_no_shape_never_raise_anything_but_a_failure_of_the_provider(wire: Wire, delta: Any) -> None:
    found = await wire.answered(CHAT, deltas({"content": "a"}, delta))

    if found.error is not None:
        assert isinstance(found.error, ModelError), repr(found.error)
        assert (found.error.kind, found.error.retryable) == ("invalid_response", True)
    else:
        assert found.message is not None and found.message.text == "a"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "name": 5}},
        {"type": "response.output_item.done", "output_index": [1], "item": {"type": "message", "content": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "content": 5}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": 5},
        {"type": "response.completed", "response": {"output": 5}},
        {"type": "response.completed", "response": 5},
        {"type": ["a"]},
        {},
        [],
    ],
)
async def test_events_of_no_shape_never_raise_anything_but_a_failure_of_the_provider(wire: Wire, event: Any) -> None:
    events = response_events()
    found = await wire.answered(RESPONSES, Reply(pieces=[sse(events[0]), sse(event)]))

    if found.error is not None:
        assert isinstance(found.error, ModelError), repr(found.error)
        assert found.error.kind in ("invalid_response", "stream_cut") and found.error.retryable
    else:
        assert found.message is not None and found.message.content == ()


async def test_arguments_that_only_the_deltas_say_are_not_lost(wire: Wire) -> None:
    """A server that leaves them out of the whole item would have the tool run with none."""
    events = response_events(function_call("f", '{"a": 1}'))
    for event in events:
        for item in (event.get("item"), *event.get("response", {}).get("output", ())):
            if item:
                item["arguments"] = ""

    found = await wire.answered(RESPONSES, Reply(pieces=[RESPONSES.body(events)]))

    assert found.message is not None
    assert [call.arguments for call in found.message.calls] == [{"a": 1}]


def piece(text: str, **given: Any) -> dict[str, Any]:
    id = {"id": given.pop("id")} if "id" in given else {}
    return {"tool_calls": [{**given, **id, "function": {"name": "f", "arguments": text}}]}


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ([piece('{"a":1}', index=0, id="x"), piece('{"a":2}', index=0, id="x")], [{"a": 1}, {"a": 2}]),
        ([piece('{"a":1}', id="x"), piece('{"a":2}', id="x")], [{"a": 1}, {"a": 2}]),
        ([piece('{"a"'), piece(":1}"), piece('{"a":2}')], [{"a": 1}, {"a": 2}]),
        ([piece('{"a"', index=0, id="x"), piece(":1}", index=0, id="x")], [{"a": 1}]),
        ([piece("", index=0, id="x"), piece('{"a":1}', index=0, id="x"), piece("", index=0, id="x")], [{"a": 1}]),
        ([piece('{"a":1}', id="x"), piece("\n", id="x")], [{"a": 1}]),
        ([piece(""), piece("")], [{}, {}]),
        ([piece("", id="x"), piece("", id="y")], [{}, {}]),
    ],
)
async def test_calls_are_told_apart_by_what_came_of_them_where_ids_and_indexes_are_alike(
    wire: Wire, pieces: list[dict[str, Any]], arguments: list[Any]
) -> None:
    found = await wire.answered(CHAT, deltas(*pieces))

    assert found.message is not None
    assert [call.arguments for call in found.message.calls] == arguments


@pytest.mark.parametrize("number", [2**63, 10**30])
async def test_a_count_beyond_what_can_be_stored_is_unknown_and_costs_no_answer(wire: Wire, number: int) -> None:
    found = await wire.answered(CHAT, deltas({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": number}))

    assert found.message is not None and found.message.text == "a" and found.message.usage is not None
    assert (found.message.usage.input_tokens, found.message.usage.output_tokens) == (3, None)


async def test_a_cost_beyond_sense_is_unknown() -> None:
    usage = Usage(input_tokens=2**62, output_tokens=1)

    assert Prices(input=2.0, output=10.0).priced(usage) == usage
    assert Prices(input=2.0, output=10.0).priced(Usage(input_tokens=1, output_tokens=1)).cost_nanos == 12_000


async def test_counts_that_are_none_are_unknown(wire: Wire) -> None:
    odd: list[Any] = [{}, {"prompt_tokens": None, "completion_tokens": -1, "prompt_tokens_details": None}]
    for usage in odd:
        found = await wire.answered(CHAT, deltas({"content": "a"}, usage=usage))

        assert found.message is not None and found.message.text == "a"
        counts = found.message.usage
        assert counts is None or (counts.input_tokens, counts.output_tokens) == (None, None)

    found = await wire.answered(RESPONSES, response(usage={"input_tokens": 3, "output_tokens_details": None}))
    assert found.message is not None and found.message.usage is not None
    assert (found.message.usage.input_tokens, found.message.usage.output_tokens) == (3, None)


async def test_arguments_are_not_looked_through_with_each_piece_of_them(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For servers that give the name with each: a large argument would hold the event loop for minutes."""
    looked: list[str] = []
    is_object = openai_chat._is_object
    monkeypatch.setattr(openai_chat, "_is_object", lambda text: looked.append(text) or is_object(text))
    pieces = ['{"a": "', *["x" * 100] * 50, '"}']
    calls = [{"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": piece}}]} for piece in pieces]

    found = await wire.answered(CHAT, deltas(*calls, *calls))

    assert found.message is not None
    assert [call.arguments for call in found.message.calls] == [{"a": "x" * 5_000}] * 2
    assert len(looked) == 1, "only where an end could be"
