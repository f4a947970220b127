"""Claim: each thing that is wrong with a history is named by its index, and mended in the one way that is promised."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import (
    AssistantMessage,
    Custom,
    HistoryFormat,
    ImagePart,
    ImportedHistory,
    InvalidMessage,
    ModelIdentity,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
    read_history,
)


def call(id: str, name: str = "read", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tells(id: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def found(history: ImportedHistory) -> list[tuple[int, str]]:
    return [(each.index, each.code) for each in history.report.findings]


def results(history: ImportedHistory) -> list[tuple[str, str, str, bool]]:
    bodies = [each for each in history.bodies if isinstance(each, ToolResultMessage)]
    return [(each.call_id, each.name, each.text, each.is_error) for each in bodies]


def kept(history: ImportedHistory) -> list[tuple[str, Any]]:
    bodies = [each.data for each in history.bodies if isinstance(each, Custom) and each.type == "import.kept"]
    return [(item["path"], item["value"]) for data in bodies for item in data["kept"]]


HI = {"role": "user", "content": "hi"}
MISSING = "The result of this call is not in the history that was imported. It may have run."


def test_a_call_without_a_result_gets_an_error_that_says_so() -> None:
    history = read_history([asks(call("a"), call("b", "write")), tells("a", "A"), HI], format="openai")

    assert found(history) == [(0, "missing_result")]
    assert history.report.findings[0].path == "messages[0].tool_calls[1]"
    assert results(history) == [("a", "read", "A", False), ("b", "write", MISSING, True)]
    assert isinstance(history.bodies[3], UserMessage)


def test_a_result_without_a_call_becomes_no_message_and_is_kept_whole() -> None:
    history = read_history([HI, tells("z", "lost"), asks(call("a")), tells("a"), tells("a", "twice")], format="openai")

    assert found(history) == [(1, "orphan_result"), (4, "orphan_result")]
    assert results(history) == [("a", "read", "done", False)]
    assert kept(history) == [("messages[1]", tells("z", "lost")), ("messages[4]", tells("a", "twice"))]
    assert [type(each).__name__ for each in history.bodies] == [
        *("UserMessage", "Custom", "AssistantMessage", "ToolResultMessage", "Custom")
    ]


def test_results_in_another_order_are_placed_in_that_of_the_calls() -> None:
    history = read_history([asks(call("a"), call("b")), tells("b", "B"), tells("a", "A")], format="openai")

    assert found(history) == [(2, "result_order")]
    assert [each[2] for each in results(history)] == ["A", "B"]


def test_a_result_that_comes_late_goes_to_its_call() -> None:
    history = read_history([asks(call("a")), HI, asks(call("b")), tells("a", "A"), tells("b", "B")], format="openai")

    assert found(history) == [(3, "late_result")]
    assert [type(each).__name__ for each in history.bodies] == [
        *("AssistantMessage", "ToolResultMessage", "UserMessage", "AssistantMessage", "ToolResultMessage")
    ]
    assert [each[2] for each in results(history)] == ["A", "B"]


def test_a_result_behind_a_message_of_the_user_is_late_too() -> None:
    history = read_history([asks(call("a")), HI, tells("a", "A")], format="openai")

    assert found(history) == [(2, "late_result")]
    assert isinstance(history.bodies[1], ToolResultMessage) and isinstance(history.bodies[2], UserMessage)


def test_repeated_and_empty_ids_are_kept_and_their_results_told_apart_by_order() -> None:
    chat = [asks(call("a"), call("a")), tells("a", "1"), tells("a", "2"), asks(call("a"), call("")), tells("a", "3")]

    history = read_history([*chat, tells("", "4")], format="openai")

    assert found(history) == [(0, "repeated_call_id"), (3, "repeated_call_id"), (3, "empty_call_id")]
    assert [(each[0], each[2]) for each in results(history)] == [("a", "1"), ("a", "2"), ("a", "3"), ("", "4")]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"x": NaN}', '{"x": 1, "x": 2}', '{"x": 1e999}', '{"x": 99999999999999999999}']
)
def test_arguments_that_are_no_object_stay_text(text: str) -> None:
    history = read_history([asks(call("a", arguments=text)), tells("a")], format="openai")

    assert found(history) == [(0, "bad_arguments")]
    answer = history.bodies[0]
    assert isinstance(answer, AssistantMessage)
    assert answer.calls == (ToolCallPart(id="a", name="read", arguments_text=text),)


def test_fields_without_a_place_are_kept_beside_the_message() -> None:
    chat = [{**HI, "name": "ada", "audio": None}, {"role": "assistant", "content": "ho", "annotations": [1]}]

    history = read_history(chat, format="openai")

    assert found(history) == [(0, "kept_field"), (1, "kept_field")]
    assert kept(history) == [("messages[0].name", "ada"), ("messages[1].annotations", [1])]
    assert [type(each).__name__ for each in history.bodies] == ["UserMessage", "Custom", "AssistantMessage", "Custom"]
    assert history.report.repairs == ()


def test_system_messages_are_instructions_and_are_kept() -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        HI,
        {"role": "system", "content": "Now be loud."},
    ]

    history = read_history(chat, format="openai")

    assert history.report.instructions == "Be brief.\n\nBe kind."
    assert found(history) == [(0, "kept_message"), (1, "kept_message"), (3, "kept_message")]
    assert [value for _, value in kept(history)] == [chat[0], chat[1], chat[3]]
    assert [each for each in history.bodies if not isinstance(each, Custom)] == [
        UserMessage(content=(TextPart(text="hi"),))
    ]


def test_parts_of_chat_completions() -> None:
    there = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}}
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, shown, there, sound]},
        {"role": "assistant", "content": "no", "refusal": "I must not."},
    ]

    history = read_history(chat, format="openai")

    assert history.bodies[0] == UserMessage(
        content=(
            TextPart(text="see"),
            ImagePart(data="QUJD", mime_type="image/png"),
            TextPart(text="(an image: https://example.org/a.png)"),
            TextPart(text="(a part of type 'input_audio'; it was not imported)"),
        )
    )
    refusal = ProviderPart(provider="openai", data={"type": "refusal", "refusal": "I must not."})
    assert history.bodies[2] == AssistantMessage(content=(TextPart(text="no"), refusal), stop_reason="stop")
    assert found(history) == [(0, "kept_field"), (0, "image_by_reference"), (0, "unknown_part")]
    assert kept(history) == [
        ("messages[0].content[1].image_url.detail", "low"),
        ("messages[0].content[2]", there),
        ("messages[0].content[3]", sound),
    ]


def test_function_calls_of_the_older_form_are_answered_by_name() -> None:
    chat = [
        {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "write", "content": "no such call"},
        {"role": "function", "name": "read", "content": "done"},
    ]

    history = read_history(chat, format="openai")

    assert found(history) == [(0, "empty_call_id"), (1, "orphan_result")]
    assert results(history) == [("", "read", "done", False)]
    answer = history.bodies[0]
    assert isinstance(answer, AssistantMessage) and answer.calls[0].arguments == {"x": 1}
    assert answer.stop_reason == "tool_calls"


def test_blocks_of_the_messages_api() -> None:
    search = {"type": "server_tool_use", "id": "srv", "name": "search", "input": {"q": "x"}}
    hits = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
    chat = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "model": "large",
            "stop_reason": "tool_use",
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 6,
                "service_tier": "standard",
            },
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "secret"},
                search,
                hits,
                {"type": "tool_use", "id": "a", "name": "read", "input": {"p": 1}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {"p": float("nan")}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "first"},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "A"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "B", "is_error": True},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
            ],
        },
    ]

    history = read_history(chat, format="anthropic")

    answer, first, second = history.bodies[1:4]
    assert answer == AssistantMessage(
        content=(
            ThinkingPart(text="hm", signature="sig"),
            ThinkingPart(text="", signature="secret", redacted=True),
            ProviderPart(provider="anthropic", data=search),
            ProviderPart(provider="anthropic", data=hits),
            ToolCallPart(id="a", name="read", arguments={"p": 1}),
            ToolCallPart(id="b", name="read", arguments_text='{"p": NaN}'),
        ),
        stop_reason="tool_calls",
        model=ModelIdentity(provider="anthropic", name="large"),
        # All that was sent, as the adapter of this provider counts it too.
        usage=Usage(input_tokens=14, output_tokens=4, cache_read_tokens=5, cache_write_tokens=6),
    )
    assert (first, second) == (
        ToolResultMessage(call_id="a", name="read", content=(TextPart(text="A"),)),
        ToolResultMessage(call_id="b", name="read", content=(TextPart(text="B"),), is_error=True),
    )
    assert history.bodies[5] == UserMessage(
        content=(TextPart(text="first"), ImagePart(data="QUJD", mime_type="image/png"))
    )
    assert found(history) == [(1, "bad_arguments"), (1, "kept_field"), (2, "role_order"), (2, "role_order")]


def test_an_order_of_roles_that_the_provider_refuses_is_named() -> None:
    chat = [{"role": "assistant", "content": "hello"}, {"role": "system", "content": "Be brief."}]

    history = read_history(chat, format="anthropic")

    assert found(history) == [(0, "role_order"), (1, "role_order"), (1, "kept_message")]
    assert history.bodies[0] == AssistantMessage(content=(TextPart(text="hello"),), stop_reason="stop")


def test_an_answer_cut_by_its_limit_keeps_its_stop_reason_and_its_calls_get_results() -> None:
    use = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
    history = read_history(
        [HI, {"role": "assistant", "stop_reason": "max_tokens", "content": [use]}], format="anthropic"
    )

    answer = history.bodies[1]
    assert isinstance(answer, AssistantMessage) and answer.stop_reason == "length"
    assert results(history) == [("a", "read", MISSING, True)]


def row(role: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "message": {"role": role, "timestamp": 5, **fields}}


def test_times_usage_and_details_of_recorded_rows_have_their_places() -> None:
    usage = {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "cost": {"input": 0.1, "total": 0.1}}
    asked = {"type": "toolCall", "id": "a", "name": "read", "arguments": {"x": 1}}
    chat = [
        {"type": "session", "id": "s"},
        row("user", content=[{"type": "text", "text": "hi"}]),
        row("assistant", content=[asked], stopReason="toolUse", provider="acme", model="large", usage=usage),
        row("toolResult", toolCallId="a", toolName="write", content=[], isError=False, details={"d": 1}),
    ]

    history = read_history(chat, format="recorded")

    assert [each for each in history.bodies if not isinstance(each, Custom)] == [
        UserMessage(content=(TextPart(text="hi"),), sent_at=5),
        AssistantMessage(
            content=(ToolCallPart(id="a", name="read", arguments={"x": 1}),),
            stop_reason="tool_calls",
            model=ModelIdentity(provider="acme", name="large"),
            usage=Usage(
                input_tokens=8, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, cost_nanos=100_000_000
            ),
            sent_at=5,
        ),
        ToolResultMessage(call_id="a", name="read", content=(), details={"d": 1}, sent_at=5),
    ]
    assert found(history) == [(0, "kept_message"), (2, "kept_field"), (3, "result_name")]
    assert kept(history) == [
        ("messages[0]", {"type": "session", "id": "s"}),
        ("messages[2].message.usage.cost", usage["cost"]),
    ]


@pytest.mark.parametrize("stop", ["error", "aborted"])
def test_an_answer_that_failed_never_ran_its_calls(stop: str) -> None:
    half = {"type": "toolCall", "id": "a", "name": "read", "arguments": {"x": ""}, "partialJson": '{"x": "'}
    usage = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    chat = [
        row("assistant", content=[half], stopReason=stop, provider="acme", model="large", usage=usage),
        row("toolResult", toolCallId="a", toolName="read", content=[], isError=False),
    ]

    history = read_history(chat, format="recorded")

    answer = history.bodies[0]
    assert isinstance(answer, AssistantMessage)
    assert answer.calls == (ToolCallPart(id="a", name="read", arguments_text='{"x": "'),)
    assert answer.usage == (None if stop == "aborted" else Usage(**dict.fromkeys(COUNTS, 0)))
    assert answer.error is not None or stop == "aborted"
    assert results(history) == []
    assert (1, "orphan_result") in found(history)


COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def test_half_a_surrogate_pair_is_replaced_and_named() -> None:
    history = read_history([{"role": "user", "content": "a\ud800"}], format="openai")

    assert history.bodies == (UserMessage(content=(TextPart(text="a\ufffd"),)),)
    assert found(history) == [(0, "replaced_text")]


@pytest.mark.parametrize("content", ["", None, []])
def test_messages_without_content_are_named(content: Any) -> None:
    history = read_history(
        [{"role": "user", "content": content}, {"role": "assistant", "content": content}], format="openai"
    )

    assert found(history) == [(0, "empty_message"), (1, "empty_message")]
    assert isinstance(history.bodies[-1], AssistantMessage)


BAD: list[tuple[HistoryFormat, Any, str]] = [
    ("openai", [HI, "hi"], "messages[1]: an object is needed here, not str"),
    ("openai", [{"content": "hi"}], "messages[0].role: text is needed here, not nothing"),
    ("openai", [{"role": "human", "content": "hi"}], "messages[0].role: 'human' is no role of this form"),
    ("openai", [{"role": "user", "content": 5}], "messages[0].content: an array is needed here, not int"),
    ("openai", [{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type: text is needed here"),
    ("openai", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: text is needed here"),
    ("openai", [{"role": "user", "content": "x", "name": b"x"}], "messages[0].name: a bytes is not JSON data"),
    ("openai", [{"role": "user", "content": "x", 5: 1}], "messages[0]: key 5 is not text"),
    ("openai", [asks({"id": "a"})], "messages[0].tool_calls[0].function: an object is needed here"),
    ("openai", [asks({"id": 5, "function": {}})], "messages[0].tool_calls[0].id: text is needed here, not int"),
    ("openai", [asks(call("a", arguments={}))], "messages[0].tool_calls[0].function.arguments: text is needed here"),  # type: ignore[arg-type]
    ("openai", [asks({"type": "mcp"})], "messages[0].tool_calls[0].type: 'mcp' is no kind of call"),
    ("anthropic", [HI, {"role": "tool", "content": "x"}], "messages[1].role: 'tool' is no role of this form"),
    (
        "anthropic",
        [{"role": "user", "content": [{"type": "image"}]}],
        "messages[0].content[0].source: an object is needed",
    ),
    (
        "anthropic",
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": "no"}]}],
        "messages[0].content[0].is_error: true or false is needed here, not str",
    ),
    ("recorded", [{"role": "user"}], "messages[0].type: text is needed here, not nothing"),
    ("recorded", [{"type": "message"}], "messages[0].message: an object is needed here, not NoneType"),
    ("recorded", [row("user", content=[], timestamp="now")], "messages[0].message.timestamp: whole milliseconds"),
    ("recorded", [row("assistant", content=[], stopReason="tired")], "messages[0].message.stopReason: 'tired' is no"),
    ("openai", "hi", "messages: a list of messages is needed here, not str"),
    ("openai", 5, "messages: a list is needed here, not int"),
]


@pytest.mark.parametrize(("format", "messages", "text"), BAD)
def test_what_is_no_message_is_refused_with_its_index_and_field(
    format: HistoryFormat, messages: Any, text: str
) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read_history(messages, format=format)

    assert str(refused.value).startswith(text)


@pytest.mark.parametrize("format", ["", "OpenAI", None, 5, ["openai"]])
def test_another_format_is_refused(format: Any) -> None:
    with pytest.raises(InvalidMessage, match="openai, anthropic, recorded"):
        read_history([], format=format)
