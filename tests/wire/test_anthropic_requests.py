"""Claim: whatever a conversation holds, the request that is made of it breaks no rule of the provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlane import (
    AssistantMessage,
    ImagePart,
    Message,
    ModelError,
    ModelIdentity,
    ModelRequest,
    OutputSchema,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.anthropic_request import wire_request
from agentlane.testing import check_pairing
from tests.wire.anthropic_rules import Rules

ME = ModelIdentity(provider="anthropic", name="claude-test")
OTHER = ModelIdentity(provider="openai", name="gpt-test")
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def make(messages: list[Message], **given: Any) -> dict[str, Any]:
    """The body for a conversation."""
    request = ModelRequest(
        instructions=given.pop("instructions", "Be brief."),
        messages=messages,
        tools=given.pop("tools", ()),
        settings={**given.pop("settings", {}), **({"tools": list(t)} if (t := given.pop("server_tools", ())) else {})},
        session_id="s",
        lane="main",
        operation_id="op",
        attempt=1,
        output=given.pop("output", None),
    )
    known: dict[str, Any] = {
        "max_tokens": 100,
        "cache": "5m",
        "output_format": None,
    }
    made = wire_request(request, identity=ME, **{**known, **given})
    return {**made.body, "stream": True}


def broken(body: dict[str, Any], messages: list[Message]) -> list[str]:
    """Rules that the body breaks; all reasoning of this model in ``messages`` counts as sent by it."""
    rules = Rules()
    for message in messages:
        if isinstance(message, AssistantMessage) and message.model == ME:
            blocks = [part for part in message.content if isinstance(part, ThinkingPart) and part.signature]
            rules.sent(
                {"type": "content_block_start", "index": index, "content_block": _issued(part)}
                for index, part in enumerate(blocks)
            )
    return rules.broken(json.dumps(body).encode())


def said(text: str) -> UserMessage:
    return UserMessage(content=(TextPart(text=text),))


def answered(*parts: Any, model: ModelIdentity | None = ME) -> AssistantMessage:
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    return AssistantMessage(content=parts, stop_reason="tool_calls" if calls else "stop", model=model)


def result(call_id: str, *parts: Any, name: str = "t", is_error: bool = False) -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, name=name, content=parts or (TextPart(text="ok"),), is_error=is_error)


TEXTS = st.sampled_from(["", " ", "\n\t", "hello", "é€", "\x00", "\u2028", "a\x85b "])
NAMES = st.sampled_from(["t", "a.b", "a_b", "a:b/c", "x" * 128, "", "é!", "web_search", "no such\n"])
IDS = st.sampled_from(["", "call", "call-2", "toolu_1", "a|b", "a_b", "é", "x" * 200])
MODELS = st.sampled_from([ME, OTHER, None, ModelIdentity(provider="anthropic", name="another")])
IMAGES = st.sampled_from([ImagePart(data="aGk=", mime_type=kind) for kind in ("image/png", "image/tiff", "")])
USER_PARTS = st.lists(st.one_of(st.builds(TextPart, text=TEXTS), IMAGES), max_size=3).map(tuple)
SERVER_CALL = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
ANSWER_PARTS = st.one_of(
    st.builds(TextPart, text=TEXTS, signature=st.sampled_from([None, "{", '{"citations": [{"type": "x"}]}', "[]"])),
    st.builds(ThinkingPart, text=TEXTS, signature=st.sampled_from([None, "", "sig", "s2"]), redacted=st.booleans()),
    st.builds(
        lambda id, name, bad: ToolCallPart(
            id=id, name=name, arguments=None if bad is not None else {"a": 1}, arguments_text=bad
        ),
        IDS,
        NAMES,
        st.sampled_from([None, None, "", '{"a": 1']),
    ),
    st.sampled_from([SERVER_CALL, SERVER_RESULT]).map(lambda data: ProviderPart(provider="anthropic", data=data)),
    st.just(ProviderPart(provider="openai", data={"type": "reasoning"})),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Conversations as the library sends them: calls paired, ids unique, no empty text, and otherwise anything."""
    messages: list[Message] = []
    ids: set[str] = set()
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            content = tuple(part for part in draw(USER_PARTS) if part != TextPart(text=""))
            messages += [UserMessage(content=content)] if content else []
            continue
        parts: list[Any] = []
        server = 0
        for part in draw(st.lists(ANSWER_PARTS, min_size=1, max_size=5)):
            if isinstance(part, ToolCallPart):
                id = part.id or "call"
                while id in ids:
                    id += "-2"
                ids.add(id)
                part = ToolCallPart(id=id, name=part.name, arguments=part.arguments, arguments_text=part.arguments_text)
            if isinstance(part, ProviderPart) and part.provider == "anthropic":
                data = {**part.data}
                key = "id" if "id" in data else "tool_use_id"
                server += key == "id"
                data[key] = f"srv_{len(messages)}_{server}"
                part = ProviderPart(provider="anthropic", data=data)
                if part in parts:
                    continue
            if not (isinstance(part, TextPart) and not part.text):
                parts.append(part)
        if not parts:
            continue
        answer = answered(*parts, model=draw(MODELS))
        messages.append(answer)
        for call in answer.calls:
            content = tuple(part for part in draw(USER_PARTS) if part != TextPart(text="")) or (TextPart(text="ok"),)
            messages.append(result(call.id, *content, name=call.name, is_error=draw(st.booleans())))
    return messages


TOOLS = st.lists(st.sampled_from(["t", "a.b", "a_b", "a:b", "a/b", "x" * 128]), unique=True, max_size=4).map(
    lambda names: [ToolDefinition(name=n, description=" " if n == "t" else "d", parameters={}) for n in names]
)


@settings(max_examples=settings().max_examples // 2)
@given(
    messages=conversations(),
    tools=TOOLS,
    instructions=TEXTS,
    cache=st.sampled_from(["5m", "1h", None]),
    server_tools=st.sampled_from([(), (SEARCH,)]),
)
def test_every_conversation_makes_a_request_that_is_taken(
    messages: list[Message], tools: list[ToolDefinition], instructions: str, cache: Any, server_tools: Any
) -> None:
    assert check_pairing(messages) == []  # that much the library sees to
    before = repr(messages)

    body = make(messages, tools=tools, instructions=instructions, cache=cache, server_tools=server_tools)

    assert broken(body, messages) == [], json.dumps(body, indent=1)
    assert repr(messages) == before


@settings(max_examples=settings().max_examples // 4)
@given(messages=conversations(), tools=TOOLS)
def test_what_was_sent_stays_as_it_was_when_the_conversation_grows(
    messages: list[Message], tools: list[ToolDefinition]
) -> None:
    """The provider's cache holds the longest beginning that is the same; marks are no part of it."""
    earlier = make(messages, tools=tools, cache=None)["messages"]
    grown = make([*messages, answered(TextPart(text="and")), said("more")], tools=tools, cache=None)["messages"]
    one, other = _flat(earlier), _flat(grown)
    if one[-1] in (
        ("user", '{"text": "(go on)", "type": "text"}'),
        ("user", '{"text": "(nothing was said)", "type": "text"}'),
    ):
        one.pop()  # nobody had said it

    assert other[: len(one)] == one


def test_parallel_calls_have_their_results_in_one_turn_before_what_the_user_says() -> None:
    calls = [ToolCallPart(id=id, name="t", arguments={}) for id in ("a", "a|", "a:")]
    messages = [said("go"), answered(*calls), *(result(call.id) for call in calls), said("stop")]

    body = make(messages)

    ids = [block["id"] for block in body["messages"][1]["content"]]
    last = body["messages"][2]["content"]
    assert ids[0] == "a" and len(set(ids)) == 3
    assert [block.get("tool_use_id", block["type"]) for block in last] == [*ids, "text"]


def test_images_of_a_result_that_is_an_error_stand_behind_all_results_of_the_turn() -> None:
    pixel = ImagePart(data="aGk=", mime_type="image/png")
    calls = [ToolCallPart(id=id, name="t", arguments={}) for id in "ab"]
    results = [result("a", TextPart(text="no"), pixel, is_error=True), result("b", pixel)]

    body = make([said("go"), answered(*calls), *results, said("and")])

    assert [block["type"] for block in body["messages"][2]["content"]] == [
        "tool_result",
        "tool_result",
        "image",
        "text",
    ]
    assert [block["type"] for block in body["messages"][2]["content"][1]["content"]] == ["image"]


def test_reasoning_goes_back_whole_and_only_to_the_model_that_gave_it() -> None:
    think = ThinkingPart(text=" as it was\n", signature="s+/=")
    silent = ThinkingPart(text="", signature="only the mark")
    hidden = ThinkingPart(text="", signature="data", redacted=True)
    half = ThinkingPart(text="half received")
    parts = (think, silent, hidden, half, TextPart(text="so"))

    own = make([said("a"), answered(*parts), said("b")])["messages"][1]["content"]
    others = make([said("a"), answered(*parts, model=OTHER), said("b")])["messages"][1]["content"]

    assert own == [
        {"type": "thinking", "thinking": " as it was\n", "signature": "s+/="},
        {"type": "thinking", "thinking": "", "signature": "only the mark"},
        {"type": "redacted_thinking", "data": "data"},
        {"type": "text", "text": "so"},
    ]
    assert others == [{"type": "text", "text": "so"}]


def test_a_mark_of_the_cache_stands_behind_tools_instructions_and_the_last_two_turns_of_the_user() -> None:
    tools = [ToolDefinition(name=name, description="d", parameters={}) for name in ("one", "two")]
    messages = [said("a"), answered(TextPart(text="b")), said("c"), answered(TextPart(text="d")), said("e")]

    body = make(messages, tools=tools)
    hour = make(messages, tools=tools, cache="1h")
    bare = make(messages, tools=tools, cache=None)

    marked = [block.get("text", block.get("name")) for block in _all(body) if "cache_control" in block]
    assert marked == ["two", "Be brief.", "c", "e"]
    assert {block["cache_control"]["ttl"] for block in _all(hour) if "cache_control" in block} == {"1h"}
    assert "cache_control" not in json.dumps(bare)


def test_marks_of_ones_own_are_counted_so_that_there_are_never_more_than_four() -> None:
    mark = {"type": "ephemeral"}
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": mark}
    messages = [said("a"), answered(TextPart(text="b")), said("c")]
    tools = [ToolDefinition(name="one", description="d", parameters={})]

    own_tool = make(messages, tools=tools, settings={"tools": [search]})
    automatic = make(messages, tools=tools, settings={"cache_control": mark})

    marked = [block.get("text", block.get("name")) for block in _all(own_tool) if "cache_control" in block]
    assert marked == ["web_search", "Be brief.", "a", "c"]
    assert automatic["cache_control"] == mark
    assert not any("cache_control" in block for block in _all(automatic))


def test_names_of_tools_are_written_so_that_the_provider_takes_them_and_read_back() -> None:
    names = ["a.b", "a_b", "a/b"]
    tools = [ToolDefinition(name=name, description="d", parameters={}) for name in names]
    request = ModelRequest(
        instructions="", messages=[said("x")], tools=tools, settings={}, session_id="s", lane="l", operation_id="o",
        attempt=1,
    )  # fmt: skip
    made = wire_request(request, identity=ME, max_tokens=9, cache=None, output_format=None)

    sent = [tool["name"] for tool in made.body["tools"]]
    assert sent[1] == "a_b"  # the one that fits keeps its name
    assert len(set(sent)) == 3
    assert [made.names.given(name) for name in sent] == names


def test_calls_of_tools_that_are_gone_are_shown_with_a_definition_and_none_may_be_called() -> None:
    messages = [
        said("a"),
        answered(ToolCallPart(id="1", name="gone", arguments={})),
        result("1", name="gone"),
        said("b"),
    ]

    body = make(messages)

    assert [tool["name"] for tool in body["tools"]] == ["gone"]
    assert body["tool_choice"] == {"type": "none"}
    assert broken(body, messages) == []


def test_a_call_that_the_provider_runs_goes_back_with_its_result_and_never_dangling() -> None:
    call = ProviderPart(provider="anthropic", data=SERVER_CALL)
    found = ProviderPart(provider="anthropic", data=SERVER_RESULT)
    text = TextPart(text="so")

    paired = make([said("a"), answered(call, found, text), said("b")])["messages"][1]["content"]
    dangling = make([said("a"), answered(call, text), said("b")])["messages"][1]["content"]
    later = make(
        [
            said("a"),
            answered(
                call,
                ToolCallPart(
                    id="1",
                    name="t",
                    arguments={},
                    signature=json.dumps({"caller": {"type": "code_execution_20250825", "tool_id": "srv1"}}),
                ),
            ),
            result("1"),
        ]
    )["messages"][1]["content"]

    assert [block["type"] for block in paired] == ["server_tool_use", "web_search_tool_result", "text"]
    assert [block["type"] for block in dangling] == ["text"]
    assert [block["type"] for block in later] == ["server_tool_use", "tool_use"]
    assert later[1]["caller"] == {"type": "code_execution_20250825", "tool_id": "srv1"}


def test_settings_go_into_the_body_and_cannot_say_what_the_request_says() -> None:
    body = make([said("a")], settings={"temperature": 0.5, "max_tokens": 7}, output_format={"type": "json_schema"})

    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
    assert body["output_config"] == {"format": {"type": "json_schema"}}
    with pytest.raises(ModelError, match="system") as refused:
        make([said("a")], settings={"system": "x"})
    assert (refused.value.kind, refused.value.sent, refused.value.retryable) == ("invalid_request", False, False)


def test_an_output_type_without_a_form_of_the_providers_own_is_told_in_words() -> None:
    output = OutputSchema(name="Sizes", schema={"type": "object", "additionalProperties": {"type": "integer"}})

    body = make([said("a")], output=output)

    assert "output_config" not in body
    assert '"additionalProperties"' in body["system"][-1]["text"]


def _issued(part: ThinkingPart) -> dict[str, Any]:
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _flat(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(m["role"], json.dumps(block, sort_keys=True)) for m in messages for block in m["content"]]


def _all(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [*body["tools"], *body["system"], *(block for m in body["messages"] for block in m["content"])]
