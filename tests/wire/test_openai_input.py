"""Claim: whatever a conversation holds, the request that is made of it is one that OpenAI's interfaces accept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentlane import (
    AssistantMessage,
    ImagePart,
    ModelIdentity,
    OutputSchema,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
)
from tests.wire.asking import request, said
from tests.wire.openai_answers import deltas, function_call, message, reasoning, response
from tests.wire.openai_apis import CHAT, RESPONSES, Api, both
from tests.wire.openai_wire import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

IMAGE = ImagePart(data="aGVsbG8=", mime_type="image/png")
READ = ToolDefinition(name="files/read.v2", description="Reads.", parameters={"type": "object"})
OTHER = ModelIdentity(provider="anthropic", name="claude")


def own(api: Api) -> ModelIdentity:
    return api.model("http://nowhere").identity  # type: ignore[no-any-return]


def answer(*parts: Any, model: ModelIdentity | None = None, **more: Any) -> AssistantMessage:
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    return AssistantMessage(content=parts, model=model, **({"stop_reason": "tool_calls" if calls else "stop"} | more))


def result(id: str, text: str = "fine", *more: Any, **options: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id=id, name="read", content=(TextPart(text=text), *more), **options)


@both
async def test_an_image_whose_data_is_none_is_told_in_words(wire: Wire, api: Api) -> None:
    bad = [
        ImagePart(data=data, mime_type="image/png")
        for data in ("", "!!!notbase64", "data:image/png;base64,aGk=", "aGk")
    ]

    body = await wire.sent(
        api,
        UserMessage(content=(TextPart(text="look"), *bad)),
        answer(ToolCallPart(id="a", name="read", arguments={})),
        result("a", "the image", *bad),
    )

    assert json.dumps(body).count("(an image of type image/png without data that can be read") == 2 * len(bad)
    assert "base64" not in json.dumps(body)


@both
@pytest.mark.parametrize(("type", "sent"), [("image/jpg", "image/jpeg"), ("IMAGE/PNG", "image/png")])
async def test_an_image_type_is_sent_as_providers_write_it(wire: Wire, api: Api, type: str, sent: str) -> None:
    body = await wire.sent(api, UserMessage(content=(ImagePart(data="aGVs\nbG8=\n", mime_type=type),)))

    assert f"data:{sent};base64,aGVsbG8=" in json.dumps(body)


@both
async def test_a_conversation_goes_over_the_wire_as_it_is(wire: Wire, api: Api) -> None:
    bad = ToolCallPart(id="", name="not a name", arguments_text='{"a": ')
    body = await wire.sent(
        api,
        UserMessage(content=(TextPart(text="look 🙂"), IMAGE)),
        answer(TextPart(text="so"), ToolCallPart(id="a", name="files/read.v2", arguments={"p": "ä"}), bad, model=OTHER),
        result("a", "the image", IMAGE),
        result("", "no such tool", is_error=True),
        said("next"),
        instructions="Be kind.",
        tools=[READ],
    )

    text = json.dumps(body, ensure_ascii=False)
    assert "look 🙂" in text and "data:image/png;base64,aGVsbG8=" in text
    assert "[error] no such tool" in text
    assert '"Be kind."' in text
    assert "unreadable_arguments" in text


@both
async def test_names_that_the_provider_does_not_take_lead_back_to_the_tool(wire: Wire, api: Api) -> None:
    body = await wire.sent(api, tools=[READ])
    tool = body["tools"][0]
    name = (tool if api is RESPONSES else tool["function"])["name"]
    assert name.startswith("files_read_v2_")

    found = await wire.answered(api, api.reply("", ("a", name, "{}")), request(tools=[READ]))

    assert found.message is not None
    assert [call.name for call in found.message.calls] == ["files/read.v2"]
    assert [frame.name for frame in found.frames if getattr(frame, "kind", "") == "tool_call"] == ["files/read.v2"]


async def test_reasoning_goes_back_as_it_came_with_what_followed_it(wire: Wire) -> None:
    items = [
        reasoning("think", encrypted="gAA=+/é"),
        message("so", phase="commentary"),
        reasoning("more", id="rs_2"),
        function_call("read", '{"p": 1}'),
    ]
    first = await wire.answered(RESPONSES, response(*items))
    assert first.message is not None

    kept = answer(*first.message.content, model=own(RESPONSES))
    body = await wire.sent(RESPONSES, said("go"), kept, result("call_1"))

    expected = [dict(item) for item in items]
    del expected[3]["status"]
    assert [
        {**item, "arguments": item["arguments"]} if "arguments" in item else item for item in body["input"][1:5]
    ] == expected


@pytest.mark.parametrize(
    "why", ["alone at the end", "not encrypted", "of another model", "its id was used", "before what has no id"]
)
async def test_reasoning_that_would_be_refused_stays_behind_and_so_do_the_ids_with_it(wire: Wire, why: str) -> None:
    identity = own(RESPONSES)
    mark = {"id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    if why == "not encrypted":
        del mark["encrypted_content"]
    thought = ThinkingPart(text="hm", signature=json.dumps(mark))
    text = TextPart(text="so", signature=None if why == "before what has no id" else '{"id": "msg_1_reasoned"}')
    parts = (text, thought) if why == "alone at the end" else (thought, text)
    model = OTHER if why == "of another model" else identity
    before = [answer(thought, TextPart(text="first", signature='{"id": "msg_0"}'), model=identity), said("and")]

    body = await wire.sent(
        RESPONSES, said("go"), *(before if why == "its id was used" else ()), answer(*parts, model=model), said("next")
    )

    items = body["input"][3:] if why == "its id was used" else body["input"]
    assert [item["type"] for item in items] == ["message"] * 3
    assert items[1]["content"] == "so" and "id" not in items[1]


async def test_what_the_providers_own_tools_did_goes_back_only_where_it_is_complete(wire: Wire) -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    shell = {"type": "local_shell_call", "id": "sh_1", "call_id": "s", "status": "completed", "action": {}}
    parts = [ProviderPart(provider="openai", data=data) for data in (search, shell)]
    told = TextPart(text="found", signature='{"id": "msg_1"}')

    whole = await wire.sent(RESPONSES, said("go"), answer(parts[0], told, model=own(RESPONSES)))
    half = await wire.sent(RESPONSES, said("go"), answer(*parts, told, model=own(RESPONSES)))

    assert whole["input"][1] == search
    assert [item["type"] for item in half["input"]] == ["message", "message"]


@both
async def test_text_that_is_empty_is_not_sent(wire: Wire, api: Api) -> None:
    body = await wire.sent(
        api, said("go"), answer(TextPart(text=""), TextPart(text="so"), model=own(api)), said("next")
    )

    assert len(body["input" if api is RESPONSES else "messages"]) == 3


async def test_an_answer_of_reasoning_alone_is_left_out_of_a_chat(wire: Wire) -> None:
    body = await wire.sent(CHAT, said("go"), answer(ThinkingPart(text="hm"), model=own(CHAT)), said("next"))

    assert [item["role"] for item in body["messages"]] == ["user", "user"]


async def test_reasoning_goes_back_in_a_chat_where_the_server_wants_it(wire: Wire) -> None:
    first = await wire.answered(CHAT, deltas({"reasoning_content": "hm"}, {"content": "so"}))
    assert first.message is not None
    mine = answer(*first.message.content, model=own(CHAT))
    foreign = answer(*first.message.content, model=OTHER)

    given_request = request(said("go"), mine, said("more"), foreign, said("next"))
    await wire.answered(CHAT, CHAT.reply("ok"), given_request, reasoning_field="reasoning_content")

    messages = wire.server.requests[-1].body["messages"]
    assert messages[1] == {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    assert messages[3] == {"role": "assistant", "content": "so"}


@both
async def test_an_image_that_the_provider_does_not_take_is_told_and_ends_no_conversation(wire: Wire, api: Api) -> None:
    drawing = ImagePart(data="PHN2Zy8+", mime_type="image/svg+xml")
    call = ToolCallPart(id="a", name="read", arguments={})

    body = await wire.sent(
        api, UserMessage(content=(drawing,)), answer(call), result("a", "drawn", drawing), said("next")
    )

    text = json.dumps(body)
    assert "PHN2Zy8+" not in text
    assert text.count("(an image of type image/svg+xml, which cannot be shown here)") == 2


async def test_images_of_tools_come_behind_all_results_in_a_chat(wire: Wire) -> None:
    calls = [ToolCallPart(id=id, name="read", arguments={}) for id in ("a", "b")]

    body = await wire.sent(CHAT, said("go"), answer(*calls), result("a", "", IMAGE), result("b"))

    assert [item["role"] for item in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert body["messages"][4]["content"][1]["image_url"]["url"].startswith("data:image/png")


@both
async def test_settings_are_fields_of_the_request(wire: Wire, api: Api) -> None:
    body = await wire.sent(api, settings={"temperature": 0.5, "tools": [{"type": "web_search"}]}, tools=[READ])

    assert body["temperature"] == 0.5
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]


async def test_each_lane_has_a_key_of_its_own_for_the_providers_cache(wire: Wire) -> None:
    keys = [(await wire.sent(RESPONSES, lane=lane))["prompt_cache_key"] for lane in ("a", "b", "a")]

    assert keys[0] == keys[2] != keys[1]
    assert "prompt_cache_key" not in await wire.sent(CHAT), "other servers may not know it"


async def test_reasoning_is_asked_for_in_the_form_that_can_be_sent_back(wire: Wire) -> None:
    body = await wire.sent(RESPONSES, settings={"include": ["web_search_call.results"]})
    plain = RESPONSES.adapter("gpt-4.1", api_key="k").stream(request())._fields

    assert body["store"] is False
    assert body["include"] == ["web_search_call.results", "reasoning.encrypted_content"]
    assert "include" not in plain, "models that do not reason refuse it"


async def test_the_schema_of_the_output_is_handed_over(wire: Wire) -> None:
    output = OutputSchema(name="Plan", schema={"type": "object", "properties": {"a": {"type": "string"}}})

    of_responses = await wire.sent(RESPONSES, output=output, settings={"text": {"verbosity": "low"}})
    of_chat = await wire.sent(CHAT, output=output)

    plain = {"name": "Plan", "schema": output.schema, "strict": False}
    assert of_responses["text"] == {"format": {"type": "json_schema", **plain}, "verbosity": "low"}
    assert of_chat["response_format"] == {"type": "json_schema", "json_schema": plain}
