"""Claim: what a model gave goes back to it through pydantic-ai as it came, and to no other; and a conversation of
anything is one that the provider takes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai import messages as pai
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from agentlane import (
    AssistantMessage,
    ImagePart,
    ModelError,
    PartStart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.pydantic_ai import PAUSES_MAX, PydanticAIModel
from agentlane.models.sent_names import SentNames
from tests.wire.asking import ask, request, said
from tests.wire.openai_answers import (
    chat,
    function_call,
    message,
    reasoning,
    response,
)
from tests.wire.pydantic_ai_drawn import DrawnModel
from tests.wire.pydantic_ai_places import ARGUMENTS, TEXT, USAGE, chat_breaches, openai_client, plain, responses, wire
from tests.wire.server import WireServer

LOOK = ToolDefinition(name="files/look", description="", parameters={})

# Parts of every kind, as some provider of pydantic-ai's gives them.

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


async def test_whom_an_answer_is_from_is_kept_where_it_is_not_the_model_itself() -> None:
    drawn = DrawnModel([pai.TextPart(content="so")], [pai.TextPart(content="ok")], by="another")
    model = PydanticAIModel(drawn)
    found = await ask(model)
    assert found.message is not None
    await ask(model, request(said("go"), msgspec.structs.replace(found.message, model=model.identity), said("on")))

    assert drawn.received[1][1].provider_name == "another"


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


async def test_a_conversation_of_everything_is_one_that_the_interface_takes() -> None:
    pixel = ImagePart(data="aGk=", mime_type="image/png")
    calls = tuple(ToolCallPart(id=id, name="files/look", arguments={"n": n}) for n, id in enumerate(("x", "x|y", "é")))
    results = (
        ToolResultMessage(call_id="x", name="files/look", content=(TextPart(text="here"), pixel)),
        ToolResultMessage(call_id="x|y", name="files/look", content=(TextPart(text="no"), pixel), is_error=True),
        ToolResultMessage(call_id="é", name="files/look", content=()),
    )
    name = SentNames([LOOK.name]).sent(LOOK.name)
    async with wire(chat("", ("c", name, "{}"), reasoning_content="hm"), chat("ok")) as (server, model):
        found = await ask(model, request(tools=[LOOK]))
        first = found.message
        assert first is not None
        shown = [frame.name for frame in found.frames if isinstance(frame, PartStart) and frame.kind == "tool_call"]
        assert [call.name for call in first.calls] == shown == [LOOK.name], "the tool's own name comes back"
        own = AssistantMessage(content=first.content, stop_reason="tool_calls", model=model.identity)
        foreign = AssistantMessage(
            content=(ThinkingPart(text="theirs", signature="s"), TextPart(text=" "), *calls), stop_reason="tool_calls"
        )
        assert server.requests[0].body["tools"][0]["function"]["name"] == name
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

    called = [("call", "call_a", "read", repr(json.loads(ARGUMENTS))), ("call", "call_b", "read", "{}")]
    assert plain(first) == [("thinking", "why"), ("text", TEXT), *called]
    assert (first.stop_reason, first.usage) == ("tool_calls", USAGE)
    items = server.requests[1].body["input"]
    assert [item.get("type", item.get("role")) for item in items] == [
        *("user", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    assert (items[1]["id"], items[1]["encrypted_content"]) == ("rs_1", "gAA=+/é")
    assert [item.get("id") for item in items[2:5]] == ["msg_1", "fc_1", "fc_2"]
    assert "gAA=" not in server.requests[2].data.decode() and "rs_1" not in server.requests[2].data.decode()
