"""Claim: every stored record reads back as it was sealed; what cannot be read or stored is named by its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentlane.data import codec
from agentlane.data.codec import Kind
from agentlane.data.entries import Custom, Entry, EntryBody, kind_of
from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    ImagePart,
    ModelIdentity,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UsageSeen,
    UserMessage,
    user,
)
from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    LaneConfig,
    LaneState,
    Limits,
    OperationConfig,
    OperationMeta,
    OutcomeReady,
    Placed,
    Planned,
    RetryPolicy,
    RetryWait,
    Tools,
)
from agentlane.data.requests import RequestInfo
from agentlane.data.results import OperationResult
from agentlane.data.usage import Usage, UsageRow, UsageTotals, checked_usage
from agentlane.errors import CorruptSession, InvalidMessage, UnsupportedFormat

# Records of every kind, with every field.

TEXT = st.text(max_size=6)
MAYBE = st.none() | TEXT
COUNT = st.none() | st.integers(0, 2**63 - 1)
JSON = st.sampled_from([None, 0, "x", [1, {"a": None}], {"k": ["\x00", "\u2028"]}, 2**64 - 1, -(2**63), 0.1])
OBJECT = st.sampled_from([{}, {"a": 1}, {"": {"deep": [None, True]}}])
USAGE = st.builds(
    Usage,
    input_tokens=COUNT,
    output_tokens=COUNT,
    cache_read_tokens=COUNT,
    cache_write_tokens=COUNT,
    reasoning_tokens=COUNT,
    cost_nanos=COUNT,
)
TEXT_PART = st.builds(TextPart, text=TEXT, signature=MAYBE)
IMAGE_PART = st.builds(ImagePart, data=TEXT, mime_type=TEXT)
CALL_PART = st.builds(
    ToolCallPart, id=TEXT, name=TEXT, arguments=st.none() | OBJECT, arguments_text=MAYBE, signature=MAYBE
)
ASSISTANT_PART = st.one_of(
    TEXT_PART,
    CALL_PART,
    st.builds(ThinkingPart, text=TEXT, signature=MAYBE, redacted=st.booleans()),
    st.builds(ProviderPart, provider=TEXT, data=JSON),
)
IDENTITY = st.builds(ModelIdentity, provider=TEXT, name=TEXT)
ERROR = st.builds(
    ErrorInfo, code=TEXT, message=TEXT, retryable=st.booleans(), retry_after_ms=st.none() | st.integers(0, 10**9)
)
SENT_AT = st.none() | st.integers(0, 2**53)
USER_PARTS = st.lists(TEXT_PART | IMAGE_PART, max_size=3).map(tuple)
BODY: st.SearchStrategy[EntryBody] = st.one_of(
    st.builds(UserMessage, content=USER_PARTS, sent_at=SENT_AT),
    st.builds(
        AssistantMessage,
        content=st.lists(ASSISTANT_PART, max_size=3).map(tuple),
        stop_reason=st.sampled_from(["stop", "tool_calls", "length", "error", "aborted"]),
        model=st.none() | IDENTITY,
        usage=st.none() | USAGE,
        error=st.none() | ERROR,
        answers=st.lists(TEXT, max_size=2).map(tuple),
        sent_at=SENT_AT,
    ),
    st.builds(
        ToolResultMessage,
        call_id=TEXT,
        name=TEXT,
        content=USER_PARTS,
        details=JSON,
        is_error=st.booleans(),
        sent_at=SENT_AT,
    ),
    st.builds(Custom, type=TEXT, data=JSON),
)
CALL_STATE = st.one_of(
    st.builds(Planned),
    st.builds(
        EffectPending,
        policy=st.sampled_from(["never", "safe", "idempotent"]),
        attempt=st.integers(1, 9),
        replays=st.integers(0, 9),
    ),
    st.builds(OutcomeReady, terminate=st.booleans()),
    st.builds(Placed, terminate=st.booleans()),
)
COMMON = {"turn": st.integers(0, 9), "cancel_requested_at": st.none() | st.integers(0, 2**50)}
STATE = st.one_of(
    st.builds(
        Checkpoint, next=st.sampled_from(["respond", "finish"]), trigger=TEXT, code=MAYBE, answer=MAYBE, **COMMON
    ),
    st.builds(
        Generating,
        response_id=TEXT,
        attempt=st.integers(1, 9),
        retries=st.integers(0, 9),
        restarts=st.integers(0, 9),
        model_index=st.integers(0, 9),
        answer=MAYBE,
        **COMMON,
    ),
    st.builds(
        RetryWait,
        attempt=st.integers(1, 9),
        not_before=st.integers(0, 2**50),
        error=ERROR,
        retries=st.integers(0, 9),
        restarts=st.integers(0, 9),
        model_index=st.integers(0, 9),
        answer=MAYBE,
        **COMMON,
    ),
    st.builds(Tools, calls=st.lists(CALL_STATE, max_size=4).map(tuple), answer=TEXT, **COMMON),
)
TEXTS = st.lists(TEXT, max_size=2).map(tuple)
TOTALS = st.builds(UsageTotals, rows=st.integers(0, 9), unknown_rows=st.integers(0, 9), cost_nanos=st.integers(0, 99))
RECORDS: list[tuple[Kind[Any], st.SearchStrategy[Any]]] = [
    (codec.BODY, BODY),
    (codec.STATE, STATE),
    (
        codec.META,
        st.builds(
            OperationMeta,
            lane=TEXT,
            request=st.builds(RequestInfo, kind=TEXT, digest=TEXT),
            inputs=TEXTS,
            start_tip=MAYBE,
            started_at=st.integers(0, 2**50),
            key_operation=TEXT,
        ),
    ),
    (
        codec.CONFIG,
        st.builds(
            OperationConfig,
            agent=TEXT,
            models=st.lists(IDENTITY, max_size=2).map(tuple),
            tools=TEXTS,
            settings=OBJECT,
            retry=st.builds(RetryPolicy, attempts=st.integers(1, 9)),
            limits=st.builds(Limits, max_replays=st.integers(0, 9)),
        ),
    ),
    (
        codec.LANE_CONFIG,
        st.builds(
            LaneConfig,
            agent=TEXT,
            model=st.none() | IDENTITY,
            tools=st.none() | TEXTS,
            settings=st.none() | OBJECT,
        ),
    ),
    (codec.LANE_STATE, st.builds(LaneState, current=MAYBE, last=MAYBE)),
    (
        codec.RESULT,
        st.builds(
            OperationResult,
            operation_id=TEXT,
            lane=TEXT,
            agent=TEXT,
            kind=TEXT,
            status=st.sampled_from(["completed", "failed", "aborted"]),
            request_digest=TEXT,
            key_operation=TEXT,
            inputs=TEXTS,
            from_tip=MAYBE,
            to_tip=MAYBE,
            started_at=st.integers(0, 9),
            ended_at=st.integers(0, 9),
            code=MAYBE,
            error=st.none() | ERROR,
            answer=MAYBE,
            text=TEXT,
            usage=TOTALS,
        ),
    ),
    (
        codec.FRAMES,
        st.lists(
            st.one_of(
                st.builds(
                    PartStart,
                    index=st.integers(0, 9),
                    kind=st.sampled_from(["text", "thinking", "tool_call"]),
                    id=TEXT,
                    name=TEXT,
                ),
                st.builds(PartDelta, index=st.integers(0, 9), text=TEXT),
                st.builds(PartEnd, index=st.integers(0, 9), part=ASSISTANT_PART),
                st.builds(UsageSeen, usage=USAGE),
            ),
            max_size=4,
        ).map(tuple),
    ),
    (codec.PROGRESS, USER_PARTS),
    (codec.TEXT, TEXT),
    (codec.OPTIONAL_TEXT, MAYBE),
    (codec.JSON, JSON),
]


@given(st.data())
@pytest.mark.parametrize(("kind", "records"), RECORDS, ids=[kind._what for kind, _ in RECORDS])
def test_a_sealed_record_reads_back_equal_on_one_line_and_seals_to_the_same_bytes(
    kind: Kind[Any], records: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    record = data.draw(records)

    payload, copy = kind.seal(record, "here")

    assert copy == record and type(copy) is type(record)
    assert kind.decode(payload, "there") == record
    assert kind.seal(copy, "here")[0] == payload
    assert b"\n" not in payload and b"\r" not in payload


def test_a_sealed_copy_shares_nothing_with_what_was_handed_in() -> None:
    arguments = {"a": [1]}
    answer = AssistantMessage(content=(ToolCallPart(id="c", name="t", arguments=arguments),), stop_reason="tool_calls")

    _, copy = codec.BODY.seal(answer, "answer")
    arguments["a"].append(2)

    assert isinstance(copy, AssistantMessage) and copy.calls[0].arguments == {"a": [1]}


# Records built with wrong types: msgspec checks nothing when they are built, so sealing does.

WRONG: list[tuple[Kind[Any], Any, str]] = [
    (codec.BODY, UserMessage(content="hi"), "Expected `array`, got `str` - at `$.content`"),
    (codec.BODY, UserMessage(content=("hi",)), "Expected `object`, got `str` - at `$.content[0]`"),
    (codec.BODY, UserMessage(content=(TextPart(text=5),)), "Expected `str`, got `int` - at `$.content[0].text`"),
    (codec.BODY, UserMessage(content=(ToolCallPart(id="c", name="t"),)), "Invalid value 'tool_call'"),
    (codec.BODY, UserMessage(content=(TextPart(text="\ud800"),)), "surrogates not allowed"),
    (codec.BODY, UserMessage(content=object()), "Encoding objects of type object is unsupported"),
    (codec.BODY, AssistantMessage(content=(), stop_reason="bored"), "Invalid enum value 'bored' - at `$.stop_reason`"),
    (codec.BODY, AssistantMessage(content=(), stop_reason="stop", usage={"input_tokens": "many"}), "$.usage"),
    (codec.BODY, AssistantMessage(content=(), stop_reason="stop", usage=Usage(input_tokens=1.5)), "$.usage"),
    (codec.BODY, AssistantMessage(content=(), stop_reason="stop", usage=Usage(input_tokens=True)), "$.usage"),
    (codec.BODY, AssistantMessage(content=(), stop_reason="stop", model="gpt"), "$.model"),
    (codec.BODY, ToolResultMessage(call_id="c", name="t", content=(), is_error="no"), "$.is_error"),
    (codec.BODY, ToolResultMessage(call_id=None, name="t", content=()), "$.call_id"),
    (codec.BODY, "a text", "Expected `object`, got `str`"),
    (codec.LANE_CONFIG, LaneConfig(agent=None), "$.agent"),
    (codec.LANE_CONFIG, LaneConfig(agent="a", tools="abc"), "$.tools"),
    (codec.STATE, Checkpoint(next="later", trigger="t"), "$.next"),
    (codec.STATE, Tools(calls=(EffectPending("maybe"),), answer="a"), "$.calls[0]"),
    (codec.FRAMES, (PartStart(index=0, kind="song"),), "Invalid enum value 'song'"),
]


@pytest.mark.parametrize(("kind", "record", "why"), WRONG, ids=[f"wrong {n}" for n in range(len(WRONG))])
def test_a_record_of_wrong_types_is_refused_with_its_path(kind: Kind[Any], record: Any, why: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        kind.seal(record, "message[3]")

    assert str(caught.value).startswith("message[3]: ") and why in str(caught.value)
    assert caught.value.details == {"path": "message[3]"}


def test_a_record_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidMessage, match=r"^entry: .*recursion"):
        codec.BODY.seal(Custom(type="deep", data=deep), "entry")


# Reading.


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (codec.BODY, b'{"role":"hologram"}'),
        (codec.BODY, b'{"role":"user","content":[{"type":"smell","text":"x"}]}'),
        (codec.BODY, b'{"role":"assistant","content":[],"stop_reason":"refusal"}'),
        (codec.STATE, b'{"at":"summarizing","task":"t"}'),
        (codec.STATE, b'{"at":"tools","answer":"a","calls":[["waiting","approval"]]}'),
        (codec.STATE, b'{"at":"tools","answer":"a","calls":[["effect_pending","whim"]]}'),
        (codec.FRAMES, b'[{"frame":"pause"}]'),
        (codec.RESULT, b'{"status":"paused"}'),
    ],
    ids=["body", "part", "stop reason", "state", "call", "policy", "frame", "status"],
)
def test_a_word_that_this_version_does_not_know_is_an_unsupported_format(kind: Kind[Any], payload: bytes) -> None:
    with pytest.raises(UnsupportedFormat, match="at row 7: .*newer version") as caught:
        kind.decode(payload, "row 7")

    assert caught.value.details == {"place": "row 7"}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (codec.BODY, b""),
        (codec.BODY, b"{"),
        (codec.BODY, b"\x00\x00\x00"),
        (codec.BODY, b"null"),
        (codec.BODY, b"{}"),
        (codec.BODY, b'{"content":[]}'),
        (codec.BODY, b'{"role":"user"}'),
        (codec.BODY, b'{"role":"user","content":[]} x'),
        (codec.BODY, b'{"role":"user","content":[{"type":"text","text":5}]}'),
        (codec.BODY, b'{"role":"user","content":[{"type":"text","text":"\xff"}]}'),
        (codec.BODY, b'{"role":"user","content":[{"type":"text","text":"\\ud800"}]}'),
        (codec.STATE, b'{"at":"generating","response_id":"r"}'),
        (codec.STATE, b'{"at":"generating","response_id":"r","attempt":"two"}'),
        (codec.STATE, b'{"at":"tools","answer":"a","calls":[[]]}'),
        (codec.STATE, b'["checkpoint"]'),
        (codec.TEXT, b"5"),
        (codec.JSON, b"NaN"),
        (codec.JSON, b"[1,]"),
    ],
    ids=repr,
)
def test_what_is_damaged_is_corruption_with_its_place(kind: Kind[Any], payload: bytes) -> None:
    with pytest.raises(CorruptSession, match="at row 7: ") as caught:
        kind.decode(payload, "row 7")

    assert caught.value.details == {"place": "row 7"}
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (
            b'{"role":"assistant","content":[],"stop_reason":"stop","model":null,"usage":null,"error":null}',
            AssistantMessage(content=(), stop_reason="stop"),
        ),
        (
            b'{"role":"assistant","content":[],"stop_reason":"stop","usage":{"input_tokens":null,"details":null}}',
            AssistantMessage(content=(), stop_reason="stop", usage=Usage()),
        ),
        (
            b'{"role":"tool_result","call_id":"c","name":"t","content":[],"details":null,"colour":"red"}',
            ToolResultMessage(call_id="c", name="t", content=()),
        ),
        (b'{"content":[],"role":"user"}', UserMessage(content=())),
    ],
    ids=["null for optional fields", "null inside usage", "a field of a later version", "another order"],
)
def test_old_and_newer_shapes_of_a_record_are_read(payload: bytes, expected: EntryBody) -> None:
    assert codec.BODY.decode(payload, "here") == expected


def test_an_entry_of_a_row_says_which_one_cannot_be_read() -> None:
    payload, body = codec.BODY.seal(user("hi"), "here")

    entry = codec.entry_of("e1", None, 4, 99, payload)

    assert entry == Entry(id="e1", parent_id=None, seq=4, at=99, body=body) and entry.type == "message"
    assert codec.entry_of("e2", "e1", 5, 99, b'{"role":"custom","type":"note"}').type == "custom"
    with pytest.raises(CorruptSession, match="entry at entry e3: "):
        codec.entry_of("e3", None, 1, 1, b"{")


@given(BODY)
def test_every_body_has_the_word_that_reads_filter_by(body: EntryBody) -> None:
    payload, _ = codec.BODY.seal(body, "here")

    assert kind_of(body) == msgspec.json.decode(payload)["role"]


# Small readings.


def test_text_and_calls_are_the_parts_of_their_kind_in_order() -> None:
    first, second = ToolCallPart(id="1", name="a", arguments={}), ToolCallPart(id="2", name="b", arguments={})
    answer = AssistantMessage(
        content=(TextPart(text="x"), first, ThinkingPart(text="no"), TextPart(text="y"), second), stop_reason="stop"
    )
    result = ToolResultMessage(
        call_id="1", name="a", content=(TextPart(text="p"), ImagePart(data="", mime_type="m"), TextPart(text="q"))
    )

    assert answer.text == "xy" and answer.calls == (first, second) and result.text == "p\nq"
    assert str(ModelIdentity(provider="p", name="n")) == "p:n"
    assert user("") == UserMessage(content=()) and user("a", [ImagePart(data="d", mime_type="m")]).content[
        0
    ] == TextPart(text="a")


def row(usage: Usage, kind: Any = "attempt") -> UsageRow:
    return UsageRow(id="u", kind=kind, usage=usage)


def test_totals_count_null_as_zero_and_say_how_many_rows_are_unknown() -> None:
    known = Usage(input_tokens=5, output_tokens=1, cost_nanos=7)

    totals = UsageTotals().plus(row(known)).plus(row(Usage(input_tokens=3))).plus(row(Usage()))
    totals = totals.plus(row(Usage(output_tokens=2, cost_nanos=-7), "adjustment"))

    assert totals == UsageTotals(rows=4, unknown_rows=2, input_tokens=8, output_tokens=3)
    assert not known.unknown and Usage(input_tokens=1).unknown and Usage(output_tokens=1).unknown


@given(st.lists(USAGE, max_size=5))
def test_totals_do_not_depend_on_the_order_of_rows(usages: list[Usage]) -> None:
    def total(rows: list[Usage]) -> UsageTotals:
        totals = UsageTotals()
        for each in rows:
            totals = totals.plus(row(each))
        return totals

    assert total(usages) == total(usages[::-1])
    assert replace(total(usages), rows=0).rows == 0


@pytest.mark.parametrize(
    ("usage", "why"),
    [
        ({"input_tokens": 1}, "here: a Usage is needed here, not dict"),
        (None, "here: a Usage is needed here, not NoneType"),
        (Usage(input_tokens=1.0), "here.input_tokens: .* not float"),
        (Usage(cost_nanos=float("nan")), "here.cost_nanos: .* not float"),
        (Usage(output_tokens=True), "here.output_tokens: .* not bool"),
        (Usage(output_tokens="5"), "here.output_tokens: .* not str"),
        (Usage(input_tokens=2**63), "here.input_tokens: .* not one beyond that"),
        (Usage(input_tokens=-(10**5000)), "here.input_tokens: .* not one beyond that"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_counts_are_whole_numbers_or_unknown(usage: Any, why: str) -> None:
    with pytest.raises(InvalidMessage, match=f"^{why}"):
        checked_usage(usage, "here")
    assert checked_usage(Usage(input_tokens=2**63 - 1, cost_nanos=-5)) == Usage(input_tokens=2**63 - 1, cost_nanos=-5)
