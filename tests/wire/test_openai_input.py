"""Claim: whatever a conversation holds, the request that is made of it is one that OpenAI's interfaces accept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from agentlane.machine.context import ModelContext
from tests.wire.asking import ask, request, said
from tests.wire.openai_answers import deltas, function_call, message, reasoning, response
from tests.wire.openai_apis import APIS, CHAT, RESPONSES, Api, both
from tests.wire.server import WireServer

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


async def sent(api: Api, *messages: Any, **options: Any) -> dict[str, Any]:
    """The request as it comes to the server; the checker has nothing against it."""
    given_request = request(*messages, **options)
    with WireServer([api.reply("ok")]) as server:
        model = api.model(server.url)
        found = await ask(model, given_request)
        await model.aclose()
        assert found.error is None
        body: dict[str, Any] = server.requests[0].body
    assert api.breaches(body) == []
    return body


# What a conversation can hold, as strategies. Marks are those of this model or another, whole or not; ids repeat.

_WORDS = st.sampled_from(["", "hi", "\x00", "two\nlines", "🙂"])
_IDS = st.sampled_from(["", "call_1", "call_1", "toolu_" + "x" * 70, "a.b/c", "fc_1|call", "é"])
_NAMES = st.sampled_from(["read", "files/read.v2", "", "a" * 100, "not a name\x00", "read_"])
_ITEM_IDS = st.sampled_from(["x_1", "x_2", "x_3", "x_4", "x_5", "x_6", "x_7"])
_MARKS = st.one_of(
    st.none(),
    st.just("sealed, of somebody else"),
    st.builds(lambda id: json.dumps({"id": id}), _ITEM_IDS),
    st.builds(lambda id: json.dumps({"id": id, "encrypted_content": "gAAA", "summary": []}), _ITEM_IDS),
    st.builds(lambda id: json.dumps({"id": id, "summary": []}), _ITEM_IDS),
)
_PROVIDED = st.one_of(
    st.just({"type": "refusal", "refusal": "no"}),
    st.just({"type": "refusal", "refusal": ""}),
    st.builds(lambda id: {"type": "web_search_call", "id": id, "status": "completed"}, _ITEM_IDS),
    st.builds(lambda id: {"type": "web_search_call", "id": id, "status": "in_progress"}, _ITEM_IDS),
    st.builds(lambda id: {"type": "local_shell_call", "id": id, "call_id": "s", "status": "completed"}, _ITEM_IDS),
    st.just("text"),
)
_ARGUMENTS = st.sampled_from([None, {}, {"a": 1}, {"é": ["🙂"]}])
_PARTS = st.one_of(
    st.builds(lambda text, mark: TextPart(text=text, signature=mark), _WORDS, _MARKS),
    st.builds(lambda text, mark: ThinkingPart(text=text, signature=mark), _WORDS, _MARKS),
    st.builds(
        lambda id, name, given, mark: ToolCallPart(
            id=id, name=name, arguments=given, arguments_text='{"a": ' if given is None else None, signature=mark
        ),
        _IDS,
        _NAMES,
        _ARGUMENTS,
        _MARKS,
    ),
    st.builds(lambda data: ProviderPart(provider="openai", data=data), _PROVIDED),
)
_RESULT_PARTS = st.lists(st.builds(lambda text: TextPart(text=text), _WORDS) | st.just(IMAGE), max_size=3)


@st.composite
def conversations(draw: st.DrawFn, identity: ModelIdentity) -> list[Any]:
    """The bodies of a path's entries: any answers, results for some of their calls, and users in between."""
    bodies: list[Any] = [said("go")]
    for _ in range(draw(st.integers(min_value=0, max_value=4))):
        parts = draw(st.lists(_PARTS, max_size=5))
        stop = draw(st.sampled_from(["stop", "stop", "stop", "length", "error", "aborted"]))
        model = draw(st.sampled_from([identity, identity, OTHER, None]))
        bodies.append(answer(*parts, model=model, stop_reason=stop))
        if stop not in ("error", "aborted"):
            for call in bodies[-1].calls:
                if draw(st.integers(min_value=0, max_value=4)):
                    content = tuple(draw(_RESULT_PARTS))
                    is_error = draw(st.booleans())
                    bodies.append(
                        ToolResultMessage(call_id=call.id, name=call.name, content=content, is_error=is_error)
                    )
        if draw(st.booleans()):
            bodies.append(UserMessage(content=tuple(draw(_RESULT_PARTS))))
    return bodies


@pytest.mark.parametrize("api", APIS, ids=[api.name for api in APIS])
@given(data=st.data())
def test_the_checker_accepts_every_conversation(api: Api, data: st.DataObject) -> None:
    model = api.model("http://nowhere")
    context = ModelContext()
    for place, body in enumerate(data.draw(conversations(model.identity))):
        context.add(f"entry-{place}", body)

    made = model.stream(request(*context.view(), instructions="Be kind.", tools=[READ]))

    assert api.breaches(made._fields | {"stream": True}) == []


@both
async def test_a_conversation_goes_over_the_wire_as_it_is(api: Api) -> None:
    bad = ToolCallPart(id="", name="not a name", arguments_text='{"a": ')
    body = await sent(
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
async def test_names_that_the_provider_does_not_take_lead_back_to_the_tool(api: Api) -> None:
    body = await sent(api, tools=[READ])
    tool = body["tools"][0]
    name = (tool if api is RESPONSES else tool["function"])["name"]
    assert name.startswith("files_read_v2_")

    with WireServer([api.reply("", ("a", name, "{}"))]) as server:
        model = api.model(server.url)
        found = await ask(model, request(tools=[READ]))
        await model.aclose()

    assert found.message is not None
    assert [call.name for call in found.message.calls] == ["files/read.v2"]
    assert [frame.name for frame in found.frames if getattr(frame, "kind", "") == "tool_call"] == ["files/read.v2"]


async def test_reasoning_goes_back_as_it_came_with_what_followed_it() -> None:
    items = [
        reasoning("think", encrypted="gAA=+/é"),
        message("so", phase="commentary"),
        reasoning("more", id="rs_2"),
        function_call("read", '{"p": 1}'),
    ]
    with WireServer([response(*items), response(message("done"))]) as server:
        model = RESPONSES.model(server.url)
        first = await ask(model)
        assert first.message is not None
        kept = answer(*first.message.content, model=model.identity)
        await ask(model, request(said("go"), kept, result("call_1")))
        await model.aclose()
        body = server.requests[1].body

    assert RESPONSES.breaches(body) == []
    expected = [dict(item) for item in items]
    del expected[3]["status"]
    assert [
        {**item, "arguments": item["arguments"]} if "arguments" in item else item for item in body["input"][1:5]
    ] == expected


@pytest.mark.parametrize("why", ["alone at the end", "not encrypted", "of another model", "its id was used"])
async def test_reasoning_that_would_be_refused_stays_behind_and_so_do_the_ids_with_it(why: str) -> None:
    identity = own(RESPONSES)
    mark = {"id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    if why == "not encrypted":
        del mark["encrypted_content"]
    thought = ThinkingPart(text="hm", signature=json.dumps(mark))
    text = TextPart(text="so", signature='{"id": "msg_1_reasoned"}')
    parts = (text, thought) if why == "alone at the end" else (thought, text)
    model = OTHER if why == "of another model" else identity
    before = [answer(thought, TextPart(text="first", signature='{"id": "msg_0"}'), model=identity), said("and")]

    body = await sent(
        RESPONSES, said("go"), *(before if why == "its id was used" else ()), answer(*parts, model=model), said("next")
    )

    items = body["input"][3:] if why == "its id was used" else body["input"]
    assert [item["type"] for item in items] == ["message"] * 3
    assert items[1]["content"] == "so" and "id" not in items[1]


async def test_what_the_providers_own_tools_did_goes_back_only_where_it_is_complete() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    shell = {"type": "local_shell_call", "id": "sh_1", "call_id": "s", "status": "completed", "action": {}}
    parts = [ProviderPart(provider="openai", data=data) for data in (search, shell)]
    told = TextPart(text="found", signature='{"id": "msg_1"}')

    whole = await sent(RESPONSES, said("go"), answer(parts[0], told, model=own(RESPONSES)))
    half = await sent(RESPONSES, said("go"), answer(*parts, told, model=own(RESPONSES)))

    assert whole["input"][1] == search
    assert [item["type"] for item in half["input"]] == ["message", "message"]


async def test_an_answer_of_reasoning_alone_is_left_out_of_a_chat() -> None:
    body = await sent(CHAT, said("go"), answer(ThinkingPart(text="hm"), model=own(CHAT)), said("next"))

    assert [item["role"] for item in body["messages"]] == ["user", "user"]


async def test_reasoning_goes_back_in_a_chat_where_the_server_wants_it() -> None:
    with WireServer([deltas({"reasoning_content": "hm"}, {"content": "so"}), CHAT.reply("ok")]) as server:
        model = CHAT.model(server.url, reasoning_field="reasoning_content")
        first = await ask(model)
        assert first.message is not None
        mine = answer(*first.message.content, model=model.identity)
        foreign = answer(*first.message.content, model=OTHER)
        await ask(model, request(said("go"), mine, said("more"), foreign, said("next")))
        await model.aclose()
        messages = server.requests[1].body["messages"]

    assert messages[1] == {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    assert messages[3] == {"role": "assistant", "content": "so"}


async def test_images_of_tools_come_behind_all_results_in_a_chat() -> None:
    calls = [ToolCallPart(id=id, name="read", arguments={}) for id in ("a", "b")]

    body = await sent(CHAT, said("go"), answer(*calls), result("a", "", IMAGE), result("b"))

    assert [item["role"] for item in body["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert body["messages"][4]["content"][1]["image_url"]["url"].startswith("data:image/png")


@both
async def test_settings_are_fields_of_the_request(api: Api) -> None:
    body = await sent(api, settings={"temperature": 0.5, "tools": [{"type": "web_search"}]}, tools=[READ])

    assert body["temperature"] == 0.5
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]


async def test_each_lane_has_a_key_of_its_own_for_the_providers_cache() -> None:
    keys = [(await sent(RESPONSES, lane=lane))["prompt_cache_key"] for lane in ("a", "b", "a")]

    assert keys[0] == keys[2] != keys[1]
    assert "prompt_cache_key" not in await sent(CHAT), "other servers may not know it"


async def test_reasoning_is_asked_for_in_the_form_that_can_be_sent_back() -> None:
    body = await sent(RESPONSES, settings={"include": ["web_search_call.results"]})
    plain = RESPONSES.adapter("gpt-4.1", api_key="k").stream(request())._fields

    assert body["store"] is False
    assert body["include"] == ["web_search_call.results", "reasoning.encrypted_content"]
    assert "include" not in plain, "models that do not reason refuse it"


async def test_the_schema_of_the_output_is_handed_over() -> None:
    output = OutputSchema(name="Plan", schema={"type": "object", "properties": {"a": {"type": "string"}}})

    of_responses = await sent(RESPONSES, output=output, settings={"text": {"verbosity": "low"}})
    of_chat = await sent(CHAT, output=output)

    plain = {"name": "Plan", "schema": output.schema, "strict": False}
    assert of_responses["text"] == {"format": {"type": "json_schema", **plain}, "verbosity": "low"}
    assert of_chat["response_format"] == {"type": "json_schema", "json_schema": plain}
