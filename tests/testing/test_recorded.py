"""Claim: a recorded model gives each answer of a recording at its place there, in any process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    ErrorInfo,
    Message,
    ModelIdentity,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UsageSeen,
    user,
)
from agentlane.data.usage import Usage
from agentlane.errors import InvalidDefinition
from agentlane.model import Model
from agentlane.testing.playback import ScriptExhausted
from agentlane.testing.recorded import RecordedModel
from tests.testing.conversation import Conversation, interrupt, take

SPENT = Usage(input_tokens=5, output_tokens=24, cost_nanos=1_234)
SOMEONE = ModelIdentity(provider="p", name="n")


def recorded(*parts: AssistantPart, stop_reason: StopReason, error: ErrorInfo | None = None) -> AssistantMessage:
    return AssistantMessage(content=parts, stop_reason=stop_reason, model=SOMEONE, usage=SPENT, error=error)


def calls(*ids: str) -> AssistantMessage:
    return recorded(
        TextPart(text=f"calling {ids[0]}"),
        *[ToolCallPart(id=each, name="read", arguments={"path": each}) for each in ids],
        stop_reason="tool_calls",
    )


def says(text: str) -> AssistantMessage:
    return recorded(TextPart(text=text), stop_reason="stop")


def results(*ids: str) -> Sequence[Message]:
    return [ToolResultMessage(call_id=each, name="read", content=(TextPart(text=f"of {each}"),)) for each in ids]


WHOLE = ToolCallPart(id="e1", name="edit", arguments={"path": "x"})
HALF = ToolCallPart(id="e2", name="edit", arguments_text='{"path": "y", "old')
FAILED = recorded(
    TextPart(text="replacing"),
    WHOLE,
    HALF,
    stop_reason="error",
    error=ErrorInfo(code="model_error", message="terminated"),
)
ABORTED = recorded(ThinkingPart(text="hm", signature="sig"), WHOLE, HALF, stop_reason="aborted")
EMPTY = AssistantMessage(content=(), stop_reason="aborted")

RECORDING: list[Message] = [
    user("1"), EMPTY,
    user("2"), calls("a", "b"), *results("a", "b"), calls("c"), *results("c"), says("two"),
    user("3"), calls("d"), *results("d"), FAILED,
    user("4"), calls("e"), *results("e"),
    user("5"), says("five"), says("five again"),
    user("6"), calls("f"), *results("f"), ABORTED,
    user("7"), says("seven"),
]  # fmt: skip


def sent(until: int) -> list[Message]:
    """What a request shows of the recording before that message."""
    return [message for message in RECORDING[:until] if message not in (EMPTY, FAILED)]


@pytest.fixture(params=["same process", "new process for each request"])
def model(request: pytest.FixtureRequest) -> Callable[[], RecordedModel]:
    if request.param == "new process for each request":
        return lambda: RecordedModel(RECORDING)
    kept = RecordedModel(RECORDING)
    return lambda: kept


async def test_a_conversation_is_played_back_message_for_message(model: Callable[[], RecordedModel]) -> None:
    conversation = Conversation()
    played: list[Message] = []
    for message in RECORDING:
        match message:
            case AssistantMessage(stop_reason="aborted"):
                await interrupt(model(), conversation)
                played.append(message)
            case AssistantMessage() if message.text == "five again":
                conversation.add(message)  # the library has nothing to ask for here
                played.append(message)
            case AssistantMessage():
                got = await take(model(), conversation.request())
                assert got.message is not None, got.raised
                played.append(got.message)
                if got.message.stop_reason != "error":
                    conversation.add(got.message)
            case _:
                conversation.add(message)
                played.append(message)

    assert played == RECORDING


async def test_an_attempt_that_was_interrupted_is_answered_the_same_again(model: Callable[[], RecordedModel]) -> None:
    conversation = Conversation(messages=sent(6))

    assert [(await take(model(), conversation.request())).said for _ in range(3)] == ["calling c"] * 3


async def test_an_aborted_answer_shows_what_it_holds_and_hangs_however_often(
    model: Callable[[], RecordedModel],
) -> None:
    conversation = Conversation(messages=sent(RECORDING.index(ABORTED)))

    for _ in range(2):
        assert await interrupt(model(), conversation) == [
            UsageSeen(usage=SPENT),
            PartStart(index=0, kind="thinking"),
            PartEnd(index=0, part=ThinkingPart(text="hm", signature="sig")),
            PartStart(index=1, kind="tool_call", id="e1", name="edit"),
            PartEnd(index=1, part=WHOLE),
            PartStart(index=2, kind="tool_call", id="e2", name="edit"),
            PartDelta(index=2, text='{"path": "y", "old'),
        ]


async def test_an_empty_aborted_answer_hangs_at_once(model: Callable[[], RecordedModel]) -> None:
    assert await interrupt(model(), Conversation(messages=RECORDING[:1])) == []


async def test_a_failed_answer_settles_with_everything_it_holds(model: Callable[[], RecordedModel]) -> None:
    got = await take(model(), Conversation(messages=sent(RECORDING.index(FAILED))).request())

    assert got.message == FAILED
    assert [frame.index for frame in got.frames if isinstance(frame, PartEnd)] == [0, 1]
    assert got.frames[-1] == PartDelta(index=2, text='{"path": "y", "old')


@pytest.mark.parametrize(
    ("part", "ends"),
    [
        (TextPart(text="Perf"), False),
        (TextPart(text="Perfect", signature="sig"), True),
        (ThinkingPart(text="h"), False),
        (ThinkingPart(text="h", signature="sig"), True),
        (ThinkingPart(text="", redacted=True), True),
        (WHOLE, True),
        (HALF, False),
        (ProviderPart(provider="p", data=1), True),
    ],
)
async def test_a_last_part_that_was_still_arriving_has_no_end(part: AssistantPart, ends: bool) -> None:
    message = recorded(TextPart(text="whole"), part, stop_reason="aborted")
    came = await interrupt(RecordedModel([user("x"), message], deltas=2), Conversation(messages=[user("x")]))

    assert [frame.index for frame in came if isinstance(frame, PartEnd)] == ([0, 1] if ends else [0])
    if isinstance(part, TextPart) and not ends:
        assert [frame.text for frame in came if isinstance(frame, PartDelta) and frame.index == 1] == ["Pe", "rf"]


async def test_a_call_that_does_not_parse_is_whole_in_an_answer_that_settled_well() -> None:
    message = recorded(HALF, stop_reason="tool_calls")
    got = await take(RecordedModel([user("x"), message]), Conversation(messages=[user("x")]).request())

    assert got.message == message
    assert got.frames[-1] == PartEnd(index=0, part=HALF)


async def test_a_retry_that_was_recorded_is_played_back_too() -> None:
    error = ErrorInfo(code="overloaded", message="later", retryable=True)
    failed = recorded(TextPart(text="Hel"), stop_reason="error", error=error)
    conversation = Conversation(messages=[user("x")])
    model = RecordedModel([user("x"), failed, says("Hello")])

    assert (await take(model, conversation.request())).message == failed
    assert (await take(model, conversation.request())).said == "Hello"
    assert (await take(model, conversation.request())).said == "Hello"


async def test_what_the_library_added_to_a_recorded_answer_is_not_given_back() -> None:
    message = AssistantMessage(content=(TextPart(text="hi"),), stop_reason="stop", usage=None, answers=("entry-1",))
    got = await take(RecordedModel([user("x"), message]), Conversation(messages=[user("x")]).request())

    assert got.message == AssistantMessage(
        content=(TextPart(text="hi"),),
        stop_reason="stop",
        model=ModelIdentity(provider="recorded", name="recorded"),
        usage=None,
    )


async def test_a_request_beyond_the_recording_is_refused_and_noted() -> None:
    model = RecordedModel(RECORDING)
    beyond: list[list[Message]] = [[user("x")] * 9, [user("1"), says("x")], []]
    for messages in beyond:
        got = await take(model, Conversation(messages=messages).request())
        assert isinstance(got.raised, ScriptExhausted)

    assert len(model.violations) == 3
    assert "behind user message 9 and 0 answers to it; the recording has 7 user messages" in model.violations[0]


def test_a_recorded_failure_must_say_which() -> None:
    with pytest.raises(InvalidDefinition):
        RecordedModel([user("x"), recorded(stop_reason="error")])


def test_it_is_a_model() -> None:
    assert isinstance(RecordedModel([]), Model)


def test_it_needs_no_running_loop_to_be_made() -> None:
    model = RecordedModel(RECORDING)

    assert asyncio.run(take(model, Conversation(messages=[user("1"), user("2")]).request())).said == "calling a"
