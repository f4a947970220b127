"""Claim: whatever a model streams or settles with, what is kept of it can be stored, read back and sent again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data import codec
from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    Frame,
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
from agentlane.driver.frames import PARTS_MAX, FrameLog, clean_answer, clean_part
from agentlane.driver.recovery import restored_answer
from agentlane.errors import InvalidMessage

LONE = "\ud99c"


def log_of(*frames: Frame) -> FrameLog:
    log = FrameLog()
    for frame in frames:
        log.add(frame)
    return log


def delta(index: int, text: str) -> PartDelta:
    return PartDelta(index=index, text=text)


# Frames.


def test_what_was_shown_is_the_parts_in_their_places_as_far_as_they_came() -> None:
    whole = ToolCallPart(id="c1", name="read", arguments={"a": 1})

    log = log_of(
        PartStart(index=0, kind="thinking"),
        delta(0, "h"),
        delta(0, "m"),
        PartStart(index=2, kind="tool_call", id="c1", name="read"),
        delta(2, '{"a"'),
        PartStart(index=1, kind="text"),
        delta(1, "so"),
        PartEnd(index=2, part=whole),
        PartStart(index=3, kind="tool_call", id="c2", name="write"),
        delta(3, '{"b":'),
        PartStart(index=4, kind="text"),
    )

    assert log.shown() == (
        ThinkingPart(text="hm"),
        TextPart(text="so"),
        whole,
        ToolCallPart(id="c2", name="write", arguments_text='{"b":'),
    )


def test_a_whole_part_replaces_what_its_deltas_showed() -> None:
    log = log_of(delta(0, "dra"), PartEnd(index=0, part=TextPart(text="final")), delta(0, "late"))

    assert log.shown() == (TextPart(text="final"),)


def test_usage_seen_is_the_latest() -> None:
    log = log_of(UsageSeen(usage=Usage(input_tokens=1)), UsageSeen(usage=Usage(input_tokens=2, output_tokens=3)))

    assert log.usage == Usage(input_tokens=2, output_tokens=3) and log.shown() == ()


FRAMES = st.lists(
    st.one_of(
        st.builds(
            PartStart,
            index=st.integers(0, 3),
            kind=st.sampled_from(["text", "thinking", "tool_call"]),
            id=st.sampled_from(["", "c", LONE]),
            name=st.sampled_from(["t", "\x00"]),
        ),
        st.builds(delta, st.integers(0, 3), st.sampled_from(["", "a", "😀", LONE, "\u2028"])),
        st.builds(
            PartEnd,
            index=st.integers(0, 3),
            part=st.sampled_from(
                [TextPart(text="x", signature=LONE), ToolCallPart(id="c", name="t", arguments={"n": math.nan})]
            ),
        ),
        st.builds(UsageSeen, usage=st.builds(Usage, input_tokens=st.none() | st.integers(0, 9))),
    ),
    max_size=12,
)


@given(FRAMES, st.data())
def test_saved_frames_read_back_as_what_was_shown_however_they_were_cut_into_commits(
    frames: list[Frame], data: st.DataObject
) -> None:
    log = FrameLog()
    saved: list[Frame] = []
    for frame in frames:
        log.add(frame)
        assert log.unsaved
        if data.draw(st.booleans()):
            saved += codec.FRAMES.decode(codec.encode(log.take_unsaved()), "frames")
            assert not log.unsaved
    saved += codec.FRAMES.decode(codec.encode(log.take_unsaved()), "frames")

    answer = restored_answer(saved, None)

    assert answer.content == log.shown() and answer.usage == log.usage
    assert answer.stop_reason == "error" and answer.error is not None and answer.error.code == "interrupted"
    assert codec.BODY.seal(answer, "answer")[1] == answer


def test_neighbouring_deltas_of_one_part_are_saved_as_one() -> None:
    log = log_of(delta(0, "a"), delta(0, "b"), delta(1, "x"), delta(0, "c"), UsageSeen(usage=Usage()), delta(0, "d"))

    assert log.take_unsaved() == (delta(0, "ab"), delta(1, "x"), delta(0, "c"), UsageSeen(usage=Usage()), delta(0, "d"))
    assert log.take_unsaved() == () and log.shown() == (TextPart(text="abcd"), TextPart(text="x"))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("a text", "str is neither a frame nor the settled message"),
        ({"frame": "delta"}, "dict is neither a frame"),
        (TextPart(text="x"), "TextPart is neither a frame"),
        (PartStart(index=0, kind="song"), "'song' is not a kind of part"),
        (PartStart(index=0, kind=["text"]), "is not a kind of part"),
        (PartStart(index=0, kind="text", id=5), "stream.id: text is needed here, not int"),
        (PartStart(index=-1, kind="text"), "-1 is not the index of a part"),
        (PartStart(index=True, kind="text"), "True is not the index of a part"),
        (delta(PARTS_MAX, "x"), "is not the index of a part"),
        (PartDelta(index=0, text=b"x"), "stream.text: text is needed here, not bytes"),
        (PartDelta(index=0, text=None), "text is needed here, not NoneType"),
        (PartEnd(index=0, part="x"), "str is not a part of an answer"),
        (PartEnd(index=0, part=TextPart(text=b"x")), "answer.text: text is needed here, not bytes"),
        (PartEnd(index=0, part=TextPart(text="x", signature=b"y")), "answer.signature: text is needed here, not bytes"),
        (PartEnd(index=0, part=ThinkingPart(text="x", redacted=1)), "redacted: True or False, not int"),
        (PartEnd(index=0, part=ToolCallPart(id=None, name="t")), "call.id: text is needed here, not NoneType"),
        (PartEnd(index=0, part=ToolCallPart(id="c", name=7)), "call.name: text is needed here, not int"),
        (PartEnd(index=0, part=ProviderPart(provider=5, data={1})), "answer.provider: text is needed here, not int"),
        (UsageSeen(usage={"input_tokens": 1}), "stream.usage: a Usage is needed here, not dict"),
        (UsageSeen(usage=Usage(input_tokens=2**70)), "stream.usage.input_tokens"),
    ],
    ids=[f"frame {number}" for number in range(20)],
)
def test_a_frame_that_could_not_be_read_back_is_refused_and_changes_nothing(frame: Any, why: str) -> None:
    log = log_of(delta(0, "before"))

    with pytest.raises(InvalidMessage, match=why.replace("(", r"\(")):
        log.add(frame)

    assert log.take_unsaved() == (delta(0, "before"),) and log.shown() == (TextPart(text="before"),)
    assert log.usage is None


# Settled messages.


def test_a_clean_answer_is_kept_as_it_is_but_for_what_the_library_fills_in() -> None:
    message = AssistantMessage(
        content=(
            TextPart(text="현 😀", signature="s"),
            ThinkingPart(text="", signature="t", redacted=True),
            ToolCallPart(id="", name="read", arguments={"a": [1, None]}, signature="u"),
            ToolCallPart(id="c", name="read", arguments=None, arguments_text="{oops"),
            ProviderPart(provider="p", data={"k": "\x00"}),
        ),
        stop_reason="tool_calls",
        usage=Usage(input_tokens=1),
        error=ErrorInfo(code="e", message="m", retryable=True, retry_after_ms=5),
    )

    assert clean_answer(message) == message


def test_lone_surrogates_are_replaced_everywhere() -> None:
    message = AssistantMessage(
        content=(
            TextPart(text=LONE, signature=LONE),
            ThinkingPart(text=LONE, signature=LONE),
            ToolCallPart(id=LONE, name=LONE, arguments={LONE: [LONE]}, signature=LONE),
            ToolCallPart(id="c", name="t", arguments_text=LONE),
            ProviderPart(provider=LONE, data={"k": LONE}),
        ),
        stop_reason="error",
        error=ErrorInfo(code=LONE, message=LONE),
    )

    payload, copy = codec.BODY.seal(clean_answer(message), "answer")

    assert payload.decode().count("\ufffd") == 14
    assert copy == clean_answer(copy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n": math.nan}, '{"n": NaN}'),
        ({"n": 2**70}, '{"n": 1180591620717411303424}'),
        ({1: "x"}, '{"1": "x"}'),
        ({"b": b"x"}, '{"b": "b\'x\'"}'),
        ([1, 2], "[1, 2]"),
        ("a text", '"a text"'),
        (5, "5"),
    ],
)
def test_arguments_that_are_no_object_of_json_data_become_text_and_the_answer_stands(arguments: Any, text: str) -> None:
    call = ToolCallPart(id="c", name="t", arguments=arguments)

    assert clean_part(call) == ToolCallPart(id="c", name="t", arguments=None, arguments_text=text)


def test_the_text_as_received_is_kept_when_the_arguments_are_bad_and_dropped_when_they_are_good() -> None:
    bad = ToolCallPart(id="c", name="t", arguments={"n": math.nan}, arguments_text='{"n":NaN}')
    good = ToolCallPart(id="c", name="t", arguments={"n": 1}, arguments_text='{"n": 1 }')

    assert clean_part(bad) == ToolCallPart(id="c", name="t", arguments_text='{"n":NaN}')
    assert clean_part(good) == ToolCallPart(id="c", name="t", arguments={"n": 1})


def test_a_call_with_neither_arguments_nor_text_has_an_empty_text() -> None:
    assert clean_part(ToolCallPart(id="c", name="t")) == ToolCallPart(id="c", name="t", arguments_text="")


def test_arguments_that_cannot_even_be_shown_do_not_cost_the_answer() -> None:
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle

    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for arguments in (cycle, {"x": Shy()}):
        part = clean_part(ToolCallPart(id="c", name="t", arguments=arguments))
        assert isinstance(part, ToolCallPart) and part.arguments is None and part.arguments_text


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (AssistantMessage(content="hi", stop_reason="stop"), "answer.content: a tuple is needed here, not str"),
        (AssistantMessage(content=({"type": "text"},), stop_reason="stop"), "dict is not a part of an answer"),
        (
            AssistantMessage(content=(TextPart(text=5),), stop_reason="stop"),
            "answer.text: text is needed here, not int",
        ),
        (
            AssistantMessage(content=(), stop_reason="stop", usage=Usage(cost_nanos=math.nan)),
            "answer.usage.cost_nanos: .* not float",
        ),
        (
            AssistantMessage(content=(), stop_reason="stop", usage=Usage(input_tokens=2**64)),
            "answer.usage.input_tokens",
        ),
        (
            AssistantMessage(content=(), stop_reason="error", error=ErrorInfo(code=5, message="m")),
            "answer.error.code: text is needed here, not int",
        ),
    ],
    ids=["content", "part", "text", "nan", "big", "error"],
)
def test_an_answer_that_cannot_be_kept_is_refused_with_its_path(message: AssistantMessage, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        clean_answer(message)


def test_a_clean_answer_shares_nothing_with_the_adapters() -> None:
    arguments = {"a": [1]}
    data = {"k": [1]}
    clean = clean_answer(
        AssistantMessage(
            content=(ToolCallPart(id="c", name="t", arguments=arguments), ProviderPart(provider="p", data=data)),
            stop_reason="tool_calls",
        )
    )

    arguments["a"].append(2)
    data["k"].append(2)

    assert clean.content == (
        ToolCallPart(id="c", name="t", arguments={"a": [1]}),
        ProviderPart(provider="p", data={"k": [1]}),
    )
