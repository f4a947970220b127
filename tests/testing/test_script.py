"""Claim: each word of a script gives the frames, the message and the failure that it says."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    ModelIdentity,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UsageSeen,
)
from agentlane.data.usage import Usage
from agentlane.errors import InvalidDefinition
from agentlane.model import Model, ModelError, ModelLimits
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import (
    SCRIPTED_USAGE,
    answer,
    call,
    cut,
    fail,
    half,
    hang,
    hold,
    raises,
    raw_call,
    say,
    think,
)
from tests.testing.conversation import Conversation, Got

SEEN = Usage(input_tokens=7, output_tokens=0)


async def ask(script: Any, **options: Any) -> Got:
    conversation = Conversation()
    conversation.prompt("hello")
    return await conversation.ask(ScriptedModel([script], **options))


def shown(got: Got) -> list[str]:
    """The frames in short: what each part's deltas add up to, and whether it ended."""
    parts: dict[int, str] = {}
    for frame in got.frames:
        match frame:
            case PartStart():
                parts[frame.index] = ""
            case PartDelta():
                parts[frame.index] += frame.text
            case PartEnd():
                parts[frame.index] += "|"
            case UsageSeen():
                parts[-1] = "usage"
    return list(parts.values())


async def test_a_text_settles_with_known_usage() -> None:
    got = await ask("hi")

    assert got.message == AssistantMessage(
        content=(TextPart(text="hi"),),
        stop_reason="stop",
        model=ModelIdentity(provider="scripted", name="scripted"),
        usage=SCRIPTED_USAGE,
    )
    assert got.frames == [PartStart(index=0, kind="text"), PartEnd(index=0, part=TextPart(text="hi"))]


async def test_parts_settle_as_they_are_and_calls_get_ids_of_their_own() -> None:
    opaque = ProviderPart(provider="p", data={"a": 1})
    got = await ask(
        [think("hm", signature="sig"), say("go"), call("read", path="a"), call("list"), opaque],
    )

    assert got.message is not None
    assert got.message.stop_reason == "tool_calls"
    assert got.message.content == (
        ThinkingPart(text="hm", signature="sig"),
        TextPart(text="go"),
        ToolCallPart(id="call_1_3", name="read", arguments={"path": "a"}),
        ToolCallPart(id="call_1_4", name="list", arguments={}),
        opaque,
    )
    assert [frame for frame in got.frames if isinstance(frame, PartStart)] == [
        PartStart(index=0, kind="thinking"),
        PartStart(index=1, kind="text"),
        PartStart(index=2, kind="tool_call", id="call_1_3", name="read"),
        PartStart(index=3, kind="tool_call", id="call_1_4", name="list"),
    ]
    assert tuple(frame.part for frame in got.frames if isinstance(frame, PartEnd)) == got.message.content


@pytest.mark.parametrize("deltas", [1, 2, 3, 1000])
async def test_deltas_add_up_to_what_ends(deltas: int) -> None:
    arguments = {"path": "ä b", "n": [1, None]}
    got = await ask([think("hmm"), say("looking"), call("read", arguments)], deltas=deltas)

    sizes = {len(frame.text) for frame in got.frames if isinstance(frame, PartDelta)}
    assert max(sizes) <= deltas
    assert shown(got) == ["hmm|", "looking|", '{"path": "ä b", "n": [1, null]}|']
    assert len([frame for frame in got.frames if isinstance(frame, PartDelta) and frame.index == 1]) == -(-7 // deltas)


@pytest.mark.parametrize("deltas", [None, 0])
async def test_without_deltas_parts_are_shown_whole(deltas: int | None) -> None:
    got = await ask([say("a"), call("read")], deltas=deltas)

    assert [type(frame) for frame in got.frames] == [PartStart, PartEnd, PartStart, PartEnd]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"path": "a"}', {"path": "a"}),
        ('{"path": "a', None),
        ("[1]", None),
        ('{"n": NaN}', None),
        ('{"n": 99999999999999999999999}', None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
async def test_raw_arguments_are_kept_as_text_unless_they_are_an_object(text: str, arguments: Any) -> None:
    got = await ask([raw_call("read", text)], deltas=10_000)

    assert got.message is not None
    assert got.message.calls[0].arguments == arguments
    assert got.message.calls[0].arguments_text == (text if arguments is None else None)
    assert shown(got) == [text[:10_000] + text[10_000:] + "|"]


async def test_a_library_call_keeps_its_own_id() -> None:
    got = await ask([ToolCallPart(id="", name="read", arguments={}), ToolCallPart(id="x", name="read", arguments={})])

    assert got.message is not None
    assert [each.id for each in got.message.calls] == ["", "x"]


def test_arguments_may_come_by_keyword_as_an_object_or_both() -> None:
    given: dict[str, Any] = {"name": "n", "self": [1]}
    both = call("read", given, path="a")
    given["self"].append("changed")

    assert both.arguments == {"name": "n", "self": [1], "path": "a"}
    assert call("read", name="n", arguments=1).arguments == {"name": "n", "arguments": 1}


async def test_an_answer_has_its_own_usage_and_stop_reason() -> None:
    got = await ask(answer([say("a"), call("read")], stop_reason="length", usage=SEEN))
    assert got.message is not None
    assert (got.message.stop_reason, got.message.usage) == ("length", SEEN)

    got = await ask(answer("a", usage=None))
    assert got.message is not None
    assert got.message.usage is None

    error = ErrorInfo(code="overloaded", message="later", retryable=True)
    got = await ask(answer("half", stop_reason="error", error=error))
    assert got.message is not None
    assert (got.message.stop_reason, got.message.error, got.message.text) == ("error", error, "half")


async def test_a_failure_shows_its_parts_and_raises() -> None:
    script = fail("overloaded", "try later", retryable=True, retry_after_ms=20, parts="Hel", usage=SEEN, sent=False)
    got = await ask(script)

    error = got.raised
    assert isinstance(error, ModelError)
    assert (error.kind, str(error), error.retryable, error.retry_after_ms) == ("overloaded", "try later", True, 20)
    assert (error.usage, error.sent) == (SEEN, False)
    assert shown(got) == ["|"] and got.message is None


async def test_a_failure_is_raised_anew_each_time() -> None:
    model = ScriptedModel([raises(OSError(5, "broken"))])
    conversation = Conversation()
    conversation.prompt("hello")
    first, second = (await conversation.ask(model)).raised, (await conversation.ask(model)).raised

    assert first is not second
    assert isinstance(first, OSError) and isinstance(second, OSError)
    assert first.args == second.args == (5, "broken")


async def test_a_cut_stream_ends_without_its_message() -> None:
    got = await ask(cut([say("whole"), half(call("read", path="abc"))], usage=SEEN))

    assert got.said == "<cut>"
    assert got.frames[0] == UsageSeen(usage=SEEN)
    assert got.frames[1:3] == [PartStart(index=0, kind="text"), PartEnd(index=0, part=TextPart(text="whole"))]
    assert got.frames[3:] == [
        PartStart(index=1, kind="tool_call", id="call_1_2", name="read"),
        PartDelta(index=1, text='{"path": "abc"}'),
    ]


@pytest.mark.parametrize("deltas", [None, 2])
async def test_half_a_part_has_no_end(deltas: int | None) -> None:
    got = await ask(cut([half(think("hm")), half(say("Hel")), half(raw_call("read", '{"a":1}'))]), deltas=deltas)

    assert shown(got) == ["hm", "Hel", '{"a":1}']


async def test_a_delta_takes_the_time_it_is_given() -> None:
    class Ticks:
        at_ms = 1_000

        def now_ms(self) -> int:
            return self.at_ms

        async def sleep_until(self, at_ms: int) -> None:
            self.at_ms = at_ms

    clock = Ticks()
    got = await ask("abcde", deltas=2, delta_ms=50, clock=clock)

    assert got.said == "abcde"
    assert clock.at_ms == 1_150


def test_what_cannot_work_is_refused_at_definition() -> None:
    for wrong in (
        lambda: ScriptedModel("done"),
        lambda: ScriptedModel(["a"], turns=[["b"]]),
        lambda: ScriptedModel(["a"], deltas=-1),
        lambda: ScriptedModel(["a"], delta_ms=5),
        lambda: ScriptedModel([["text"]]),  # type: ignore[list-item]
        lambda: ScriptedModel([[half(say("a"))]]),
        lambda: answer("a", stop_reason="error"),
        lambda: answer("a", error=ErrorInfo(code="x", message="y")),
        lambda: hold(hang()),
    ):
        with pytest.raises(InvalidDefinition):
            wrong()


def test_it_is_a_model_with_the_identity_and_limits_given() -> None:
    identity, limits = ModelIdentity(provider="p", name="n"), ModelLimits(context_tokens=10)
    model = ScriptedModel(["a"], identity=identity, limits=limits)

    assert isinstance(model, Model)
    assert (model.identity, model.limits) == (identity, limits)
    assert ScriptedModel().limits == ModelLimits()
