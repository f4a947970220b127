"""Claim: PAIR finds each kind of breach in a request, names its place, and finds nothing in a sound one."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ProviderPart,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.model import ModelRequest, ToolDefinition
from agentlane.testing.pair import PairingError, check_pairing, require_pairing

LONE = "\ud800"


def asks(*ids: str, name: str = "read", stop_reason: StopReason = "tool_calls") -> AssistantMessage:
    calls = tuple(ToolCallPart(id=each, name=name, arguments={}) for each in ids)
    return AssistantMessage(content=calls, stop_reason=stop_reason)


def says(text: str, stop_reason: StopReason = "stop") -> AssistantMessage:
    return AssistantMessage(content=(TextPart(text=text),), stop_reason=stop_reason)


def result(call_id: str, *, name: str = "read", text: str = "fine", details: Any = None) -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, name=name, content=(TextPart(text=text),), details=details)


def request(messages: Sequence[Message], *, instructions: str = "", tool: ToolDefinition | None = None) -> ModelRequest:
    return ModelRequest(
        instructions=instructions,
        messages=messages,
        tools=[tool] if tool else [],
        settings={},
        session_id="s",
        lane="main",
        operation_id="op",
        attempt=1,
    )


SOUND: list[Message] = [
    user("hello"),
    AssistantMessage(
        content=(
            ThinkingPart(text="hm", signature="opaque"),
            TextPart(text="looking"),
            ToolCallPart(id="a", name="read", arguments={"path": "é", "deep": [{"key": ["\x00\u2028"]}]}),
            ToolCallPart(id="b", name="read", arguments_text='{"path'),
            ProviderPart(provider="p", data={"of": ["its", "own"]}),
        ),
        stop_reason="tool_calls",
    ),
    result("a", details={"diff": "+1"}),
    result("b"),
    says("both read"),
    UserMessage(content=(ImagePart(data="aGk=", mime_type="image/png"),)),
    asks("c", stop_reason="length"),
    result("c"),
    user("and now?"),
]

BROKEN: dict[str, tuple[list[Message], list[str]]] = {
    "a call without a result": (
        [user("x"), asks("a"), user("y")],
        ["messages[1]: call 'a' has no result directly after"],
    ),
    "a call without a result at the end": (
        [user("x"), asks("a", "b"), result("a")],
        ["messages[1]: call 'b' has no result directly after"],
    ),
    "a batch without any result": (
        [user("x"), asks("a"), says("y"), user("z")],
        ["messages[1]: call 'a' has no result directly after"],
    ),
    "a result that comes too late": (
        [user("x"), asks("a"), user("y"), result("a")],
        [
            "messages[1]: call 'a' has no result directly after",
            "messages[3]: result of 'a' without its call directly before",
        ],
    ),
    "a result without a call": (
        [user("x"), result("a"), user("y")],
        ["messages[1]: result of 'a' without its call directly before"],
    ),
    "a result of another call": (
        [user("x"), asks("a"), result("b")],
        [
            "messages[2]: result of 'b' without its call directly before",
            "messages[1]: call 'a' has no result directly after",
        ],
    ),
    "two results": (
        [user("x"), asks("a", "b"), result("a"), result("a"), result("b")],
        ["messages[3]: call 'a' has a second result"],
    ),
    "results in another order": (
        [user("x"), asks("a", "b", "c"), result("a"), result("c"), result("b")],
        ["messages[4]: result of 'b' is not in call order"],
    ),
    "a result under another name": (
        [user("x"), asks("a"), result("a", name="write")],
        ["messages[2]: result of 'a' says 'write', the call 'read'"],
    ),
    "one id twice in an answer": (
        [user("x"), asks("a", "a"), result("a"), result("a")],
        ["messages[1]: call id 'a' is used twice"],
    ),
    "one id twice in the request": (
        [user("x"), asks("a"), result("a"), asks("a"), result("a")],
        ["messages[3]: call id 'a' is used twice"],
    ),
    "an empty id": (
        [user("x"), asks(""), result("")],
        ["messages[1]: a call of 'read' has an empty id"],
    ),
    "a call without arguments": (
        [
            user("x"),
            AssistantMessage(content=(ToolCallPart(id="a", name="read"),), stop_reason="tool_calls"),
            result("a"),
        ],
        ["messages[1]: call 'a' has neither arguments nor their text"],
    ),
    "an aborted answer": (
        [user("x"), says("half", "aborted"), user("y")],
        ["messages[1]: an answer that ended with 'aborted' is sent"],
    ),
    "a failed answer, whose calls are none": (
        [user("x"), asks("a", stop_reason="error"), user("y")],
        ["messages[1]: an answer that ended with 'error' is sent"],
    ),
    "an empty answer": (
        [user("x"), AssistantMessage(content=(), stop_reason="stop"), user("y")],
        ["messages[1]: a message without content"],
    ),
    "an empty text in an answer": (
        [user("x"), says(""), user("y")],
        ["messages[1].content[0]: an empty text"],
    ),
    "an empty prompt": ([UserMessage(content=())], ["messages[0]: a message without content"]),
    "an empty text in a prompt": (
        [UserMessage(content=(TextPart(text=""),))],
        ["messages[0].content[0]: an empty text"],
    ),
    "an empty result": (
        [user("x"), asks("a"), result("a", text="")],
        ["messages[2].content[0]: an empty text"],
    ),
    "a prompt that is not UTF-8": ([user(LONE)], ["messages[0].content[0].text: not UTF-8"]),
    "an answer that is not UTF-8": ([user("x"), says(f"a{LONE}")], ["messages[1].content[0].text: not UTF-8"]),
    "a result that is not UTF-8": (
        [user("x"), asks("a"), result("a", text=LONE)],
        ["messages[2].content[0].text: not UTF-8"],
    ),
    "details that are not UTF-8": (
        [user("x"), asks("a"), result("a", details=[{"deep": [LONE]}])],
        ["messages[2].details[0].deep[0]: not UTF-8"],
    ),
    "an id that is not UTF-8": (
        [user("x"), asks(LONE), result(LONE)],
        ["messages[1].content[0].id: not UTF-8", "messages[2].call_id: not UTF-8"],
    ),
    "an argument that is not UTF-8": (
        [
            user("x"),
            AssistantMessage(
                content=(ToolCallPart(id="a", name="read", arguments={"deep": [{"path": LONE}]}),),
                stop_reason="tool_calls",
            ),
            result("a"),
        ],
        ["messages[1].content[0].arguments.deep[0].path: not UTF-8"],
    ),
    "an argument's name that is not UTF-8": (
        [
            user("x"),
            AssistantMessage(
                content=(ToolCallPart(id="a", name="read", arguments={LONE: 1}),), stop_reason="tool_calls"
            ),
            result("a"),
        ],
        ["messages[1].content[0].arguments (a key): not UTF-8"],
    ),
    "a signature that is not UTF-8": (
        [
            user("x"),
            AssistantMessage(content=(ThinkingPart(text="hm", signature=LONE),), stop_reason="stop"),
        ],
        ["messages[1].content[0].signature: not UTF-8"],
    ),
    "a provider's part that is not UTF-8": (
        [
            user("x"),
            AssistantMessage(content=(ProviderPart(provider="p", data={"a": LONE}),), stop_reason="stop"),
        ],
        ["messages[1].content[0].data.a: not UTF-8"],
    ),
}


def test_a_sound_request_has_no_violation() -> None:
    assert check_pairing(SOUND) == []
    assert check_pairing(request(SOUND, instructions="be brief")) == []
    require_pairing(SOUND)


@pytest.mark.parametrize("kind", BROKEN)
def test_each_breach_is_found_with_its_place(kind: str) -> None:
    messages, violations = BROKEN[kind]

    assert check_pairing(messages) == violations
    assert check_pairing(request(messages)) == violations


@pytest.mark.parametrize("kind", BROKEN)
def test_a_breach_is_found_behind_a_sound_conversation(kind: str) -> None:
    messages, violations = BROKEN[kind]
    other_ids = [message for message in SOUND if not isinstance(message, AssistantMessage | ToolResultMessage)]

    assert len(check_pairing([*other_ids, *messages])) == len(violations)


@pytest.mark.parametrize("lost", range(len(SOUND)))
def test_a_sound_request_that_loses_a_call_or_a_result_is_not_sound(lost: int) -> None:
    broken = SOUND[:lost] + SOUND[lost + 1 :]
    matters = isinstance(SOUND[lost], ToolResultMessage) or (
        isinstance(SOUND[lost], AssistantMessage) and bool(SOUND[lost].content) and lost != 4
    )

    assert bool(check_pairing(broken)) is matters


def test_instructions_and_tools_are_looked_at_too() -> None:
    tool = ToolDefinition(name="read", description=LONE, parameters={"properties": {LONE: {}}})

    assert check_pairing(request([user("x")], instructions=LONE, tool=tool)) == [
        "instructions: not UTF-8",
        "tools[0].description: not UTF-8",
        "tools[0].parameters.properties (a key): not UTF-8",
    ]


def test_what_breaks_the_border_in_another_way_does_not_stop_the_check() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    messages: list[Message] = [
        user("x"),
        AssistantMessage(
            content=(
                ToolCallPart(id="a", name="read", arguments={"n": float("nan"), "big": 2**70, "deep": [object()]}),
            ),
            stop_reason="tool_calls",
        ),
        result("a", details=deep),
        result("a"),
    ]

    assert check_pairing(messages) == ["messages[3]: call 'a' has a second result"]
    while deep:  # taken apart here: a deep list is freed by recursion
        deep = deep.pop()


def test_the_error_lists_all_violations_and_pickles() -> None:
    with pytest.raises(PairingError) as caught:
        require_pairing([user(""), asks("a")])

    assert caught.value.violations == (
        "messages[0]: a message without content",
        "messages[1]: call 'a' has no result directly after",
    )
    assert "call 'a' has no result" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).violations == caught.value.violations
