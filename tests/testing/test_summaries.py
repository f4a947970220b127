"""Claim: scripted and recorded models give summaries told by the request alone, and go on behind a compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.entries import StandsFor
from agentlane.data.messages import AssistantMessage, Message, ModelIdentity, ToolCallPart, ToolResultMessage, user
from agentlane.errors import InvalidDefinition
from agentlane.machine.compaction import Piece, stands_for
from agentlane.machine.summaries import compaction_request, shown_branch_summary, shown_summary
from agentlane.model import ModelRequest
from agentlane.testing import RecordedModel, ScriptedModel, answer, call, check_pairing, cut, fail, hold, say
from tests.testing.conversation import Conversation, results_of, take

OTHER = ModelIdentity(provider="other", name="model")
SCRIPT: list[Any] = [[call("read")], "one", fail("a", retryable=True), [call("x"), call("y")], "two", "three", "four"]
TURNS: list[list[Any]] = [[[call("read")], "one"], [fail("a"), [call("x"), call("y")], "two", "three"], [], ["four"]]
"""The same by turns: three answers to the second message, one of them behind a result alone."""


def whole(identity: ModelIdentity) -> list[Message]:
    """A conversation in which SCRIPT or TURNS has been given up to "three"."""

    def given(*parts: Any) -> AssistantMessage:
        return AssistantMessage(content=parts, stop_reason="stop", model=identity)

    def calls(*names: str) -> list[Message]:
        message = AssistantMessage(
            content=tuple(ToolCallPart(id=name, name=name, arguments={}) for name in names),
            stop_reason="tool_calls",
            model=identity,
        )
        return [message, *results_of(message)]

    return [
        *(user("first"), *calls("read"), given(say("one"))),
        AssistantMessage(content=(say("by another"),), stop_reason="stop", model=OTHER),
        *(user("second"), *calls("x", "y"), given(say("two"))),
    ]


def asked(
    messages: list[Message], behind: StandsFor | None = None, *, attempt: int = 1, operation: str = "op"
) -> ModelRequest:
    return ModelRequest(
        instructions="",
        messages=messages,
        tools=[],
        settings={},
        session_id="s",
        lane="main",
        operation_id=operation,
        attempt=attempt,
        stands_for=behind,
    )


def compacted(messages: list[Message], index: int, earlier: StandsFor | None = None) -> ModelRequest:
    """The request with what stands before ``index`` summarized."""
    pieces = [Piece(id=str(number), body=message, tokens=1) for number, message in enumerate(messages)]
    behind = stands_for(pieces[:index], earlier)
    return asked([shown_summary("what was said"), *messages[index:]], behind)


def cuts(messages: list[Message]) -> list[int]:
    """Wherever the library may cut: not before a result."""
    return [
        index
        for index in range(1, len(messages) + 1)
        if index == len(messages) or not isinstance(messages[index], ToolResultMessage)
    ]


MODELS: dict[str, Callable[[], Any]] = {
    "script": lambda: ScriptedModel(SCRIPT),
    "turns": lambda: ScriptedModel(turns=TURNS),
    "recorded": lambda: RecordedModel([*whole(OTHER), user("third"), *_recorded("three")]),
}


def _recorded(*texts: str) -> list[Message]:
    return [AssistantMessage(content=(say(text),), stop_reason="stop", model=OTHER) for text in texts]


# Places.


@pytest.mark.parametrize("kind", ["script", "turns"])
async def test_a_script_goes_on_the_same_wherever_the_conversation_was_cut(kind: str) -> None:
    """Every beginning of a conversation, cut at every place: a model built anew gives what it gives for all of it."""
    messages = whole(MODELS[kind]().identity)
    expected = {}
    for length in (1, 3, 4, 6, 9, 10):
        shown = messages[:length]
        expected[length] = (await take(MODELS[kind](), asked(shown, attempt=2))).said
        for index in cuts(shown):
            request = replace(compacted(shown, index), attempt=2)
            assert (await take(MODELS[kind](), request)).said == expected[length], (length, index)

    told = {1: "read", 3: "one", 4: "x+y", 6: "x+y", 9: "two", 10: "three"}
    if kind == "turns":
        del expected[4], told[4]  # "one" ended the first turn: the script has no answer there
    assert expected == told


async def test_a_recording_goes_on_the_same_wherever_the_conversation_was_cut() -> None:
    messages = [*whole(OTHER), user("third")]
    for index in cuts(messages):
        request = compacted(messages, index)
        assert (await take(MODELS["recorded"](), request)).said == "three", index
    for length, said_there in ((1, "read"), (3, "one"), (4, "by another"), (6, "x+y"), (9, "two")):
        for index in cuts(messages[:length]):
            assert (await take(MODELS["recorded"](), compacted(messages[:length], index))).said == said_there


@pytest.mark.parametrize("kind", ["script", "turns"])
async def test_a_second_summary_stands_for_what_the_first_did_too(kind: str) -> None:
    messages = whole(MODELS[kind]().identity)
    for first in cuts(messages):
        earlier = compacted(messages, first).stands_for
        rest = messages[first:]
        for index in cuts(rest) if rest else []:
            request = compacted(rest, index, earlier)
            assert (await take(MODELS[kind](), request)).said == "three", (first, index)


async def test_a_retry_and_a_new_operation_behind_a_summary_get_what_they_would() -> None:
    """The attempt, what is remembered, and what is guessed after a restart go by the same place."""
    script = ["one", fail("a", retryable=True), fail("b"), "two", "three"]
    model = ScriptedModel(script)
    own = AssistantMessage(content=(say("one"),), stop_reason="stop", model=model.identity)
    shown = [user("first"), own, user("second")]

    assert (await take(model, asked(shown, attempt=1))).said == "<a>"
    assert (await take(model, replace(compacted(shown, 2), attempt=2))).said == "<b>"
    again = replace(compacted([*shown, user("third")], 2), operation_id="op-2")
    assert (await take(model, again)).said == "two"
    assert (await take(ScriptedModel(script), again)).said == "two"


async def test_the_guess_of_what_was_given_counts_no_summary_as_a_message_of_a_user() -> None:
    """Two messages behind the last answer: the first was an operation of its own, which the first failure ended."""
    script = ["one", fail("a"), fail("b"), fail("c"), "two"]
    own = AssistantMessage(content=(say("one"),), stop_reason="stop", model=ScriptedModel(script).identity)
    shown: list[Message] = [user("first"), own, user("second"), user("third")]

    assert (await take(ScriptedModel(script), asked(shown))).said == "<b>"
    assert (await take(ScriptedModel(script), compacted(shown, 2))).said == "<b>"
    left = shown_branch_summary("another way")
    assert (await take(ScriptedModel(script), asked([*shown[:2], left, *shown[2:]]))).said == "<b>"


async def test_the_summary_of_a_path_that_was_left_is_no_message_of_a_user() -> None:
    model = ScriptedModel(turns=[["one", "two"], ["three"]])
    own = AssistantMessage(content=(say("one"),), stop_reason="stop", model=model.identity)
    left = shown_branch_summary("another way")

    assert (await take(model, asked([user("first"), own, left]))).said == "two"
    assert (await take(model, asked([user("first"), own, left, user("second")]))).said == "three"


async def test_what_a_user_says_of_summaries_is_a_message_of_the_users() -> None:
    model = ScriptedModel(turns=[["one"], ["two"]])

    assert (await take(model, asked([user("<summary>"), user("Summary of it all?")]))).said == "two"


# Summaries.


def summary_request(*texts: str, attempt: int = 1, operation: str = "op") -> ModelRequest:
    told = compaction_request(
        [user(text) for text in texts or ("a", "b")],
        earlier=None,
        turn=None,
        instructions=(),
        max_tokens=None,
        count=len,
    )
    request = asked([told.message], attempt=attempt, operation=operation)
    return replace(request, instructions=told.instructions, purpose="summary", max_output_tokens=500)


@pytest.mark.parametrize("make", [ScriptedModel, RecordedModel], ids=lambda each: each.__name__)
async def test_without_a_word_about_them_summaries_are_made_of_the_request(make: Any) -> None:
    texts = [(await take(make([]), summary_request(*said))).said for said in (("a", "b"), ("a", "b"), ("a", "c"))]

    assert texts[0] == texts[1] != texts[2]
    request = summary_request("a", "b")
    assert texts[0].startswith(f"Summary of {len(request.messages[0].content[0].text)} characters (")  # type: ignore[union-attr]
    later = summary_request("a", "b", attempt=3, operation="another")
    assert (await take(make([]), later)).said == texts[0], "whichever attempt, in whichever operation"


@pytest.mark.parametrize("given", ["short", answer("short"), ["short"], lambda request: "short"], ids=type)
@pytest.mark.parametrize("make", [ScriptedModel, RecordedModel], ids=lambda each: each.__name__)
async def test_one_answer_is_given_for_every_summary(make: Any, given: Any) -> None:
    model = make([], summaries=given)

    for attempt, operation in ((1, "a"), (2, "a"), (1, "b")):
        assert (await take(model, summary_request(attempt=attempt, operation=operation))).said == "short"


async def test_a_list_is_given_by_attempt_in_each_summary_and_in_any_process() -> None:
    given = [fail("overloaded", retryable=True), cut("sho"), "short"]
    for operation in ("a", "b"):
        for attempt, expected in ((1, "<overloaded>"), (2, "<cut>"), (3, "short"), (4, "short")):
            request = summary_request(attempt=attempt, operation=operation)
            assert (await take(ScriptedModel([], summaries=given), request)).said == expected


async def test_a_summary_may_be_held_back_and_let_go() -> None:
    model = ScriptedModel([], summaries=hold("short"))
    task = asyncio.ensure_future(take(model, summary_request()))
    await model.hanging(lane="main")
    model.release()

    assert (await task).said == "short"


async def test_a_function_is_asked_with_the_request() -> None:
    model = ScriptedModel([], summaries=lambda request: f"{request.purpose} {request.max_output_tokens}")

    assert (await take(model, summary_request())).said == "summary 500"


async def test_a_summary_uses_up_no_answer_of_the_script() -> None:
    model = ScriptedModel([fail("a", retryable=True), "one", "two"])
    conversation = Conversation()
    conversation.prompt("hello")
    assert (await conversation.ask(model)).said == "<a>"
    await take(model, summary_request(operation="op-1"))

    assert (await conversation.ask(model)).said == "one"
    await take(model, summary_request(operation="op-1"))
    assert await conversation.say(model, "more") == "two"


@pytest.mark.parametrize("given", [[], [say("short")]], ids=["no answer", "parts for answers"])
def test_summaries_that_cannot_be_meant_are_refused(given: Any) -> None:
    with pytest.raises(InvalidDefinition, match="summaries="):
        ScriptedModel(["one"], summaries=given)


# What a request for one is, and a window that is full.


async def test_a_request_is_kept_with_all_that_it_says() -> None:
    counted = {"scripted:scripted": 2}
    request = replace(summary_request(), stands_for=StandsFor(users=1, answers=counted))
    model = ScriptedModel([])
    await take(model, request)
    counted["scripted:scripted"] = 5

    kept = model.requests[0]
    assert (kept.purpose, kept.max_output_tokens) == ("summary", 500)
    assert kept.stands_for == StandsFor(users=1, answers={"scripted:scripted": 2})


def test_a_request_for_a_summary_breaks_no_pairing() -> None:
    assert check_pairing(summary_request()) == []
    assert check_pairing(compacted(whole(OTHER), 4)) == []


async def test_a_full_window_is_an_overflow_until_there_is_less_in_it() -> None:
    def model() -> ScriptedModel:
        return ScriptedModel(["one", "two"], overflow_chars=300)

    own = AssistantMessage(content=(say("x" * 300),), stop_reason="stop", model=model().identity)
    shown: list[Message] = [user("y"), own, user("z")]

    assert (await take(model(), asked([user("y" * 301)]))).said == "<context_overflow>"
    assert (await take(model(), asked([user("y" * 300)]))).said == "one"
    kept = model()
    assert (await take(kept, asked(shown))).said == "<context_overflow>"
    assert (await take(kept, summary_request("x" * 400))).said.startswith("Summary of"), "it is asked for an answer"
    for each in (kept, model()):
        assert (await take(each, compacted(shown, 2))).said == "two"
