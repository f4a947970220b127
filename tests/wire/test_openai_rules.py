"""Claim: no conversation makes a request that OpenAI's interfaces refuse, and the checker that says so can refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlane import (
    AssistantMessage,
    ImagePart,
    ModelIdentity,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
)
from agentlane.machine.context import ModelContext
from tests.wire.asking import request, said
from tests.wire.openai_apis import APIS, CHAT, RESPONSES, Api

IMAGE = ImagePart(data="aGVsbG8=", mime_type="image/png")
TOOLS = [
    ToolDefinition(name=name, description="Reads.", parameters={"type": "object"})
    for name in ("files/read.v2", "read", "files/read_v2")
]
OTHER = ModelIdentity(provider="anthropic", name="claude")


# What a conversation can hold, as strategies. Marks are those of this model or another, whole or not; ids repeat.

_WORDS = st.sampled_from(["hi", "", "\x00", "two\nlines", "🙂"])
_IDS = st.sampled_from(["", "call_1", "call_1", "toolu_" + "x" * 70, "a.b/c", "fc_1|call", "é"])
_NAMES = st.sampled_from(["read", "files/read.v2", "", "a" * 100, "not a name\x00", "read_"])
_ITEM_IDS = st.sampled_from([f"x_{number}" for number in range(30)])
_ITEMS = st.builds(lambda id: json.dumps({"id": id}), _ITEM_IDS)
_SEALED = st.builds(lambda id: json.dumps({"id": id, "encrypted_content": "gAAA", "summary": []}), _ITEM_IDS)
_UNSEALED = st.builds(lambda id: json.dumps({"id": id, "summary": []}), _ITEM_IDS)
_FOREIGN = st.sampled_from([None, "sealed, of somebody else"])
_MARKS = st.one_of(_ITEMS, _ITEMS, _FOREIGN)
_THOUGHTS = st.one_of(_SEALED, _SEALED, _SEALED, _UNSEALED, _FOREIGN)
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
    st.builds(lambda text, mark: ThinkingPart(text=text, signature=mark), _WORDS, _THOUGHTS),
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
        parts = draw(st.lists(_PARTS, max_size=4))
        stop = draw(st.sampled_from(["stop", "stop", "stop", "stop", "length", "error"]))
        model = draw(st.sampled_from([identity, identity, identity, OTHER, None]))
        bodies.append(AssistantMessage(content=tuple(parts), model=model, stop_reason=stop))
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
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_the_checker_accepts_every_conversation(api: Api, data: st.DataObject) -> None:
    model = api.model("http://nowhere")
    context = ModelContext()
    for place, body in enumerate(data.draw(conversations(model.identity))):
        context.add(f"entry-{place}", body)

    made = model.stream(request(*context.view(), instructions="Be kind.", tools=TOOLS))

    assert api.breaches(made._fields | {"stream": True}) == []


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "fine"}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}
TOLD = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}

REFUSED_ITEMS: dict[str, list[dict[str, Any]]] = {
    "no tool output found for function call a": [USER, CALL],
    "no tool call found for function call output": [USER, OUTPUT],
    "a second output for a": [USER, CALL, OUTPUT, OUTPUT],
    "the call id a is there twice": [USER, CALL, OUTPUT, CALL],
    "are not the text of an object": [USER, CALL | {"arguments": '{"a": NaN}'}, OUTPUT],
    "does not match": [USER, CALL | {"name": "a.b"}, OUTPUT],
    "a call's id of 1 to 64": [USER, CALL | {"call_id": ""}, OUTPUT | {"call_id": ""}],
    "required following item": [USER, THOUGHT],
    "nothing encrypted is with it": [USER, THOUGHT | {"encrypted_content": ""}, TOLD],
    "'msg_1' is there twice": [USER, TOLD, TOLD],
    "text that is not empty": [USER, OUTPUT | {"output": ""}, CALL],
    "id and status are needed": [USER, {name: value for name, value in TOLD.items() if name != "id"}],
    "nobody answers": [USER, {"type": "local_shell_call", "call_id": "s"}],
    "required 'reasoning' item": [USER, TOLD | {"id": "msg_1_reasoned"}],
}


@pytest.mark.parametrize("why", REFUSED_ITEMS)
def test_the_checker_refuses_what_the_responses_api_does(why: str) -> None:
    good = {"model": "m", "stream": True, "input": [USER, THOUGHT, TOLD, CALL, OUTPUT]}

    assert RESPONSES.breaches(good) == []
    assert any(why in breach for breach in RESPONSES.breaches(good | {"input": REFUSED_ITEMS[why]}))


ASKED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
GAVE = {"role": "tool", "tool_call_id": "a", "content": "fine"}
GO = {"role": "user", "content": "go"}

REFUSED_MESSAGES: dict[str, list[dict[str, Any]]] = {
    "no response for the tool calls ['a'] before it": [GO, ASKED, GO, GAVE],
    "no response for the tool calls ['a'] at the end": [GO, ASKED],
    "must be a response to a preceding message": [GO, GAVE],
    "neither content nor tool_calls": [GO, {"role": "assistant"}],
    "text that is not empty": [GO, ASKED, GAVE | {"content": ""}],
    "the call id a is there twice": [GO, ASKED, GAVE, ASKED, GAVE],
    "not the first": [GO, {"role": "system", "content": "Be kind."}],
    "null": [GO, ASKED | {"content": None}, GAVE],
}


@pytest.mark.parametrize("why", REFUSED_MESSAGES)
def test_the_checker_refuses_what_chat_completions_does(why: str) -> None:
    good = {"model": "m", "stream": True, "messages": [GO, ASKED, GAVE]}

    assert CHAT.breaches(good) == []
    assert any(why in breach for breach in CHAT.breaches(good | {"messages": REFUSED_MESSAGES[why]}))
