"""Claim: the page on adapters says what is so: each line has tests, and what no other test tells is told here."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("openai")

from agentlane import (
    AssistantMessage,
    ImagePart,
    Message,
    ModelError,
    ModelLimits,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.anthropic import AnthropicModel
from agentlane.models.openai import OpenAIModel
from agentlane.models.openai_chat import OpenAIChatModel
from tests.wire.anthropic_format import answer
from tests.wire.anthropic_format import text as text_block
from tests.wire.anthropic_rules import Provider
from tests.wire.asking import ask, request, said
from tests.wire.openai_answers import message as message_item
from tests.wire.openai_answers import reasoning, response
from tests.wire.openai_apis import RESPONSES
from tests.wire.server import Reply, WireServer, sse

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "adapters.md"

COUNTED = [
    "test_a_whole_answer_has_its_parts_in_order_its_usage_and_its_stop_reason",
    "test_an_answer_is_the_same_however_its_bytes_are_cut",
]
# Each line of the page's tables, and the tests that stand for it.
LINES = {
    "instructions": ["test_instructions_texts_and_images_have_their_places"],
    "text": [
        "test_instructions_texts_and_images_have_their_places",
        "test_text_that_is_empty_is_not_sent",
        "test_every_conversation_makes_a_request_that_is_taken",
    ],
    "images of the user": ["test_instructions_texts_and_images_have_their_places"],
    "images in a result": [
        "test_a_conversation_goes_over_the_wire_as_it_is",
        "test_images_of_tools_come_behind_all_results_in_a_chat",
        "test_images_of_a_result_that_is_an_error_stand_behind_all_results_of_the_turn",
    ],
    "images that are not PNG, JPEG, GIF or WebP, or have no readable data": [
        "test_an_image_whose_data_is_none_is_told_in_words",
        "test_an_image_that_the_provider_does_not_take_is_told_and_ends_no_conversation",
        "test_anthropic_is_told_of_images_that_it_does_not_take",
    ],
    "a result that is an error": [
        "test_a_conversation_goes_over_the_wire_as_it_is",
        "test_results_without_content_and_results_that_are_errors",
    ],
    "a result without content": ["test_results_without_content_and_results_that_are_errors"],
    "reasoning": [
        "test_reasoning_goes_back_as_it_came_with_what_followed_it",
        "test_reasoning_that_would_be_refused_stays_behind_and_so_do_the_ids_with_it",
        "test_reasoning_goes_back_in_a_chat_where_the_server_wants_it",
        "test_reasoning_goes_back_whole_and_only_to_the_model_that_gave_it",
    ],
    "reasoning that may not be shown": [
        "test_reasoning_that_is_only_encrypted_is_kept_and_goes_back",
        "test_an_answer_is_the_same_however_its_bytes_are_cut",
        "test_reasoning_goes_back_whole_and_only_to_the_model_that_gave_it",
    ],
    "calls whose arguments were no object": ["test_arguments_that_were_no_object_go_back_as_one"],
    "ids of calls": [
        "test_ids_that_repeat_or_are_empty_pair_each_call_with_its_own_result",
        "test_parallel_calls_have_their_results_in_one_turn_before_what_the_user_says",
        "test_an_id_that_repeats_is_another_and_its_result_follows_it",
    ],
    "names of tools that are not taken": [
        "test_names_that_the_provider_does_not_take_lead_back_to_the_tool",
        "test_names_of_tools_are_written_so_that_the_provider_takes_them_and_read_back",
    ],
    "settings": ["test_settings_are_fields_of_the_request", "test_settings_betas_and_limits_are_sent"],
    "settings that are refused": ["test_each_field_that_the_library_fills_is_refused"],
    "longest answer": ["test_how_long_an_answer_may_be"],
    "a bound of the library's on an answer, in the place of a greater one": [
        "test_a_bound_is_sent_in_the_place_of_a_greater_one",
        "test_a_chat_is_bounded_by_the_field_that_its_server_knows",
        "test_reasoning_is_left_out_where_its_budget_does_not_fit_under_the_bound",
    ],
    "a request for a summary": [
        "test_openai_is_asked_for_a_summary_without_tools_and_in_plain_text",
        "test_a_chat_is_asked_for_a_summary_without_tools_and_in_plain_text",
        "test_anthropic_is_asked_for_a_summary_without_tools_and_reasoning",
        "test_pydantic_ai_is_asked_for_a_summary_without_tools_and_reasoning",
    ],
    "output type": [
        "test_the_schema_of_the_output_is_handed_over",
        "test_an_output_type_is_handed_over_where_the_provider_has_a_form_for_it",
        "test_an_output_type_without_a_form_of_the_providers_own_is_told_in_words",
    ],
    "cache of the provider": [
        "test_each_lane_has_a_key_of_its_own_for_the_providers_cache",
        "test_the_cache_is_named_at_openais_own_address",
        "test_a_mark_of_the_cache_stands_behind_tools_instructions_and_the_last_two_turns_of_the_user",
        "test_marks_of_ones_own_are_counted_so_that_there_are_never_more_than_four",
    ],
    "tools that the provider runs": [
        "test_settings_are_fields_of_the_request",
        "test_tools_that_anthropic_runs_stand_before_the_agents",
    ],
    "text, in deltas": [
        "test_a_whole_answer_has_its_parts_in_order_its_usage_and_its_stop_reason",
        "test_text_and_reasoning_in_a_list_of_parts_are_both_there",
        "test_an_answer_is_the_same_however_its_bytes_are_cut",
        "test_what_the_provider_ran_itself_and_what_it_cites_go_back_as_they_came",
    ],
    "reasoning, in deltas": [
        "test_reasoning_keeps_what_it_takes_to_send_it_back",
        "test_reasoning_goes_back_in_a_chat_where_the_server_wants_it",
        "test_an_answer_is_the_same_however_its_bytes_are_cut",
    ],
    "parallel calls": [
        "test_a_whole_answer_has_its_parts_in_order_its_usage_and_its_stop_reason",
        "test_calls_are_told_apart_as_servers_number_them",
        "test_an_answer_is_the_same_however_its_bytes_are_cut",
    ],
    "ids of calls, empty or twice": [
        "test_calls_are_told_apart_as_servers_number_them",
        "test_ids_that_repeat_or_are_empty_pair_each_call_with_its_own_result",
        "test_ids_that_are_empty_or_repeat_and_arguments_that_do_not_parse_are_kept_as_they_came",
    ],
    "arguments": [
        "test_arguments_are_an_object_or_text",
        "test_arguments_that_come_as_an_object_are_that_object",
        "test_ids_that_are_empty_or_repeat_and_arguments_that_do_not_parse_are_kept_as_they_came",
    ],
    "whether calls are to run": [
        "test_calls_are_told_apart_as_servers_number_them",
        "test_arguments_are_an_object_or_text",
        "test_why_an_answer_stopped",
    ],
    "cut by its limit of tokens": [
        "test_every_word_for_a_limit_is_a_length",
        "test_a_limit_of_tokens_is_a_length_and_half_a_call_stays_half",
        "test_why_an_answer_stopped",
    ],
    "refusal": [
        "test_answers_that_fail_say_why_and_keep_what_was_said_and_charged",
        "test_a_refusal_is_a_failure_that_is_not_tried_again_and_keeps_what_it_cost",
    ],
    "a filter stopped it": ["test_answers_that_fail_say_why_and_keep_what_was_said_and_charged"],
    "it stopped for reasons of its own": [
        "test_a_server_that_stopped_for_reasons_of_its_own_gave_no_whole_answer",
        "test_answers_that_fail_say_why_and_keep_what_was_said_and_charged",
        "test_an_error_in_the_stream_keeps_what_was_shown_and_counted",
    ],
    "what the provider's tools did": [
        "test_parts_of_the_providers_own_tools_are_kept_as_they_came",
        "test_what_the_providers_own_tools_did_goes_back_only_where_it_is_complete",
        "test_a_call_that_the_provider_runs_goes_back_with_its_result_and_never_dangling",
    ],
    "a pause of the provider's tools": [
        "test_a_pause_of_the_providers_own_tools_goes_on_in_the_same_answer",
        "test_a_provider_that_pauses_for_ever_is_left",
    ],
    "an end without a word about why": [
        "test_an_end_that_does_not_say_why_is_a_cut_one",
        "test_an_answer_that_breaks_off_is_a_cut_one",
        "test_a_chat_answer_that_said_why_it_ends_is_whole_even_if_its_usage_never_comes",
        "test_a_stream_that_ends_before_its_end_is_never_an_answer",
    ],
    "`input_tokens`, all that was sent": COUNTED,
    "`output_tokens`": COUNTED,
    "`cache_read_tokens`, a part of what was sent": COUNTED,
    "`cache_write_tokens`, a part of what was sent": COUNTED,
    "`reasoning_tokens`, a part of the output": COUNTED,
    "`cost_nanos`": [
        "test_prices_give_an_answer_its_cost",
        "test_what_an_answer_costs_is_told_where_prices_are",
    ],
    "seen before a cut": [
        "test_an_answer_that_breaks_off_is_a_cut_one",
        "test_usage_that_was_seen_before_the_cut_is_in_the_failure",
        "test_an_error_in_the_stream_keeps_what_was_shown_and_counted",
    ],
    "400, 401, 402, 403, 404, 408, 409, 413, 429, 500, 503, 529": [
        "test_each_status_is_told_apart_and_asked_for_once",
        "test_a_refused_request_says_why_and_is_asked_once",
        "test_statuses_and_words_become_kinds",
    ],
    "an error in the stream": [
        "test_an_error_in_the_middle_is_the_providers_and_may_be_tried_again",
        "test_answers_that_fail_say_why_and_keep_what_was_said_and_charged",
        "test_an_error_in_the_stream_keeps_what_was_shown_and_counted",
    ],
    "the conversation is too long": [
        "test_answers_that_fail_say_why_and_keep_what_was_said_and_charged",
        "test_statuses_and_words_become_kinds",
        "test_a_full_context_window_without_an_answer_is_an_overflow",
        "test_a_window_without_room_for_an_answer_is_an_overflow",
        "test_a_refused_request_says_why_and_is_asked_once",
    ],
    "how long to wait": [
        "test_each_status_is_told_apart_and_asked_for_once",
        "test_a_lane_waits_as_long_as_the_provider_asked",
        "test_a_refused_request_says_why_and_is_asked_once",
    ],
    "whether to try again": [
        "test_each_status_is_told_apart_and_asked_for_once",
        "test_a_refused_request_says_why_and_is_asked_once",
    ],
    "no connection": [
        "test_nobody_at_the_address_means_that_nothing_was_sent",
        "test_a_connection_that_cannot_be_made_costs_nothing",
    ],
    "no key": [
        "test_without_a_key_nothing_is_sent",
        "test_a_server_of_ones_own_needs_no_key",
        "test_a_missing_key_is_a_failure_that_says_so",
    ],
    "keys, and values of headers": ["test_no_secret_is_told_or_stored_or_shown"],
    "an address or a key that cannot be used": [
        "test_a_key_that_is_no_header_is_a_failure_at_once_that_does_not_say_it",
        "test_an_address_that_is_none_is_a_failure_at_once",
    ],
    "silence": [
        "test_a_provider_that_says_nothing_any_more_is_given_up",
        "test_anthropic_is_given_up_when_it_says_nothing_any_more",
    ],
    "events that make no sense": [
        "test_deltas_of_no_shape_never_raise_anything_but_a_failure_of_the_provider",
        "test_events_of_no_shape_never_raise_anything_but_a_failure_of_the_provider",
        "test_events_that_make_no_sense_are_a_failure",
    ],
    "retries of the SDK": [
        "test_the_sdk_counts_no_retry_and_is_asked_once",
        "test_a_client_of_ones_own_is_used_without_its_retries",
        "test_a_client_of_ones_own_is_used_without_its_retries_and_stays_open",
        "test_each_status_is_told_apart_and_asked_for_once",
    ],
    "a request that is cancelled, or left": [
        "test_a_stream_that_nobody_reads_on_hangs_up",
        "test_an_abort_closes_the_connection_and_keeps_what_was_shown",
        "test_a_cancelled_request_closes_its_connection",
    ],
}

IMAGE = ImagePart(data="aGk=", mime_type="image/png")
DATA_URL = "data:image/png;base64,aGk="


def bodies(*messages: Message, limits: ModelLimits | None = None, **options: Any) -> tuple[Any, Any, Any]:
    """The request of these messages, as each adapter makes it."""
    given = request(*messages, **options)
    return (
        OpenAIModel("gpt-x", api_key="k", limits=limits).stream(given)._fields,  # type: ignore[attr-defined]
        OpenAIChatModel("gpt-x", api_key="k", limits=limits).stream(given)._fields,  # type: ignore[attr-defined]
        AnthropicModel("claude-x", api_key="k", limits=limits, cache=None).stream(given)._wire.body,  # type: ignore[attr-defined]
    )


def called(*calls: ToolCallPart) -> AssistantMessage:
    return AssistantMessage(content=calls, stop_reason="tool_calls")


def result(id: str, *parts: Any, **options: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id=id, name="look", content=parts, **options)


def test_each_line_of_the_page_has_tests_that_are_there() -> None:
    lines = re.findall(r"^\| ([^|]*[^| ]) +\|", PAGE.read_text(), flags=re.MULTILINE)
    here = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert [line for line in lines if line.strip("- ") and line not in LINES] == []
    assert [line for line in LINES if line not in lines] == []
    assert {name for names in LINES.values() for name in names} - here == set()


def test_instructions_texts_and_images_have_their_places() -> None:
    told = UserMessage(content=(TextPart(text="look"), IMAGE))

    responses, chat, messages = bodies(told, instructions="Be kind.")

    assert responses["instructions"] == "Be kind."
    assert responses["input"][0]["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": DATA_URL, "detail": "auto"},
    ]
    assert chat["messages"] == [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": DATA_URL}}],
        },
    ]
    assert messages["system"] == [{"type": "text", "text": "Be kind."}]
    assert messages["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    ]


def test_a_choice_of_tools_says_the_names_that_are_sent() -> None:
    tools = [ToolDefinition(name=name, description="", parameters={"type": "object"}) for name in ("files/read", "b")]
    choices = {
        0: {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "files/read"}]},
        1: {"type": "function", "function": {"name": "files/read"}},
        2: {"type": "tool", "name": "files/read"},
    }
    for number, choice in choices.items():
        body = bodies(said("go"), tools=tools, settings={"tool_choice": choice})[number]
        assert '"files_read_' in json.dumps(body["tool_choice"]) and "files/read" not in json.dumps(body)
        plain = bodies(said("go"), tools=tools, settings={"tool_choice": {"type": "tool", "name": "b"}})[number]
        assert plain["tool_choice"] == {"type": "tool", "name": "b"}


def test_nothing_is_said_of_calls_where_there_are_no_tools() -> None:
    for body in bodies(said("go"), settings={"tool_choice": "required", "parallel_tool_calls": False})[:2]:
        assert not {"tool_choice", "parallel_tool_calls", "tools"} & set(body)


def test_anthropic_is_told_of_images_that_it_does_not_take() -> None:
    given = (("aGk=", "image/tiff"), ("", "image/png"), ("!", "image/png"), ("aGk=", "IMAGE/JPG"))
    *_, messages = bodies(UserMessage(content=tuple(ImagePart(data=data, mime_type=type) for data, type in given)))

    no_data = "(an image of type image/png without data that can be read, which cannot be shown here)"
    assert messages["messages"][0]["content"] == [
        {"type": "text", "text": "(an image of type image/tiff, which cannot be shown here)"},
        *[{"type": "text", "text": no_data}] * 2,
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aGk="}},
    ]


def test_results_without_content_and_results_that_are_errors() -> None:
    calls = called(*(ToolCallPart(id=id, name="look", arguments={}) for id in "ab"))

    responses, chat, messages = bodies(
        said("go"), calls, result("a"), result("b", TextPart(text="no"), is_error=True), said("on")
    )

    assert [item["output"] for item in responses["input"][3:5]] == ["(no output)", "[error] no"]
    assert [item["content"] for item in chat["messages"][2:4]] == ["(no output)", "[error] no"]
    one, other, _ = messages["messages"][2]["content"]
    assert (one["content"], one.get("is_error")) == ([{"type": "text", "text": "(no output)"}], None)
    assert (other["content"], other["is_error"]) == ([{"type": "text", "text": "no"}], True)


def test_arguments_that_were_no_object_go_back_as_one() -> None:
    calls = called(ToolCallPart(id="a", name="look", arguments_text='{"a": '))

    responses, chat, messages = bodies(said("go"), calls, result("a", TextPart(text="no"), is_error=True))

    text = '{"unreadable_arguments": "{\\"a\\": "}'
    assert responses["input"][1]["arguments"] == text
    assert chat["messages"][1]["tool_calls"][0]["function"]["arguments"] == text
    assert messages["messages"][1]["content"][0]["input"] == {"unreadable_arguments": '{"a": '}


def test_an_id_that_repeats_is_another_and_its_result_follows_it() -> None:
    turn = [called(ToolCallPart(id="x" * 200, name="look", arguments={})), result("x" * 200, TextPart(text="so"))]

    responses, chat, messages = bodies(said("go"), *turn, *turn)

    ids = [item["call_id"] for item in responses["input"][1:]]
    assert ids[0] == ids[1] != ids[2] == ids[3] and len(ids[0]) == len(ids[2]) == 64
    asked = [item["tool_calls"][0]["id"] for item in chat["messages"][1::2]]
    assert asked == [item["tool_call_id"] for item in chat["messages"][2::2]] == [ids[0], ids[2]]
    asked = [turn["content"][0]["id"] for turn in messages["messages"][1::2]]
    assert asked == [turn["content"][0]["tool_use_id"] for turn in messages["messages"][2::2]]
    assert len(set(asked)) == 2 and {len(id) for id in asked} == {128}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (
            OpenAIModel("gpt-x", api_key="k"),
            ["background", "conversation", "input", "instructions", "model", "previous_response_id", "stream"],
        ),
        (OpenAIChatModel("gpt-x", api_key="k"), ["functions", "messages", "model", "n", "stream", "stream_options"]),
        (AnthropicModel("claude-x", api_key="k"), ["messages", "model", "stream", "system"]),
    ],
    ids=repr,
)
def test_each_field_that_the_library_fills_is_refused(model: Any, fields: list[str]) -> None:
    for name in fields:
        with pytest.raises(ModelError, match=f"{name!r} is the library's to fill") as refused:
            model.stream(request(settings={name: True}))
        assert (refused.value.kind, refused.value.sent) == ("invalid_request", False)


def test_how_long_an_answer_may_be() -> None:
    for limits, settings, expected in [
        (None, {}, 16_384),
        (ModelLimits(output_tokens=500), {}, 500),
        (ModelLimits(output_tokens=500), {"max_tokens": 7}, 7),
    ]:
        responses, chat, messages = bodies(limits=limits, settings=settings)

        assert messages["max_tokens"] == expected
        assert "max_output_tokens" not in responses and "max_completion_tokens" not in chat
        assert chat.get("max_tokens") == settings.get("max_tokens")


def test_the_cache_is_named_at_openais_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    responses, chat, messages = bodies(lane="a")

    assert chat["prompt_cache_key"] == responses["prompt_cache_key"]
    assert "prompt_cache_key" not in messages
    assert bodies(lane="b")[1]["prompt_cache_key"] != chat["prompt_cache_key"]


def test_tools_that_anthropic_runs_stand_before_the_agents() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    look = ToolDefinition(name="look", description="Looks.", parameters={"type": "object"})

    *_, messages = bodies(tools=[look], settings={"tools": [search]})

    assert [tool["name"] for tool in messages["tools"]] == ["web_search", "look"]


async def test_reasoning_that_is_only_encrypted_is_kept_and_goes_back() -> None:
    item = reasoning("", encrypted="gAA=")
    with WireServer([response(item, message_item("so")), response(message_item("on"))]) as server:
        model = RESPONSES.model(server.url)
        found = await ask(model)
        assert found.message is not None
        own = AssistantMessage(content=found.message.content, stop_reason="stop", model=model.identity)
        await ask(model, request(said("go"), own, said("on")))
        await model.aclose()

    thought = found.message.content[0]
    assert isinstance(thought, ThinkingPart) and thought.text == ""
    assert server.requests[1].body["input"][1] == item


@pytest.mark.parametrize("shown", [0, 5])
async def test_anthropic_is_given_up_when_it_says_nothing_any_more(shown: int) -> None:
    events = answer(text_block("a", "b"))[:shown]
    with Provider() as provider:
        provider.add(Reply(pieces=[sse(event, named=True) for event in events], end="hang"))
        model = AnthropicModel("claude-test", api_key="k", base_url=provider.url, timeout_ms=200)
        found = await ask(model)
        await asyncio.to_thread(provider.server.left)
        await model.aclose()

    assert isinstance(found.error, ModelError)
    assert (found.error.retryable, found.error.sent) == (True, True)
    assert found.error.kind in ("stream_cut", "timeout")  # by whether the answer had begun by then
    assert found.shown == "ab"[:shown]
