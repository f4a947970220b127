"""Claim: whatever a tool returns or raises becomes the one clean, bounded result of its call."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from agentlane.data import codec
from agentlane.data.messages import ImagePart, TextPart, ToolCallPart, ToolResultMessage
from agentlane.driver.tool_results import PART_BYTES, Sealed, error_text, progress_parts, seal_error, seal_value
from agentlane.errors import InvalidMessage
from agentlane.tool import ToolResult

CALL = ToolCallPart(id="c1", name="read", arguments={})
LIMIT = 1_000
IMAGE = ImagePart(data="iVBORw0KGgo=", mime_type="image/png")


def sealed(value: Any, limit: int = LIMIT) -> ToolResultMessage:
    """The message for what a tool returned, after making sure that its payload is that message."""
    made = seal_value(CALL, value, limit)
    assert codec.BODY.decode(made.payload, "result") == made.message
    assert (made.message.call_id, made.message.name) == ("c1", "read")
    return made.message


def ok(*content: TextPart | ImagePart, details: Any = None) -> ToolResultMessage:
    return ToolResultMessage(call_id="c1", name="read", content=content, details=details)


def text(value: str) -> TextPart:
    return TextPart(text=value)


class Found(Struct):
    path: str
    lines: list[int] = []


@dataclasses.dataclass
class Place:
    name: str
    found: Found


@dataclasses.dataclass
class Moment:
    day: datetime.date


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fine", ok(text("fine"))),
        ("", ok()),
        (None, ok()),
        (5, ok(text("5"))),
        (True, ok(text("true"))),
        (0.5, ok(text("0.5"))),
        ([], ok(text("[]"))),
        ({}, ok(text("{}"))),
        ({"a": [1, None, "é"]}, ok(text('{"a":[1,null,"é"]}'))),
        (("x", 1), ok(text('["x",1]'))),
        (Found("a", [1]), ok(text('{"path":"a","lines":[1]}'))),
        (Place("a", Found("b")), ok(text('{"name":"a","found":{"path":"b","lines":[]}}'))),
        ([Found("a"), {"b": Found("b")}], ok(text('[{"path":"a","lines":[]},{"b":{"path":"b","lines":[]}}]'))),
        ({"at": [Place("a", Found("b"))]}, ok(text('{"at":[{"name":"a","found":{"path":"b","lines":[]}}]}'))),
        (Moment(datetime.date(2024, 2, 1)), ok(text('{"day":"2024-02-01"}'))),
        ([Moment(datetime.date(2024, 2, 1))], ok(text('[{"day":"2024-02-01"}]'))),
        (["a", IMAGE, text("b")], ok(text("a"), IMAGE, text("b"))),
        (text("part"), ok(text("part"))),
        (IMAGE, ok(IMAGE)),
        ([text("a"), IMAGE], ok(text("a"), IMAGE)),
        ((IMAGE,), ok(IMAGE)),
        (ToolResult(content="x"), ok(text("x"))),
        (ToolResult(content=""), ok()),
        (ToolResult(content=[]), ok()),
        (ToolResult(content=[text("a"), IMAGE], details={"n": (1, 2)}), ok(text("a"), IMAGE, details={"n": [1, 2]})),
        ("현\ud99c 보유", ok(text("현\ufffd 보유"))),
        ("\ud83d\ude00", ok(text("😀"))),
        ("a\x00b\u2028\x85\r", ok(text("a\x00b\u2028\x85\r"))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_tool_returns_is_shown_to_the_model(value: Any, message: ToolResultMessage) -> None:
    assert sealed(value) == message


def test_flags_of_a_result_are_kept() -> None:
    made = seal_value(CALL, ToolResult(content="x", is_error=True, terminate=True), LIMIT)

    assert made.message.is_error and made.terminate
    assert seal_value(CALL, "x", LIMIT).terminate is False


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("boom")


class HostileResult(Struct):
    inner: Any


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: Any = "x"
for _ in range(65):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"x": math.nan}, "result.x: nan is not a JSON number"),
        (math.inf, "result: inf is not a JSON number"),
        ([2**64], "result[0]: integer 18446744073709551616 does not fit"),
        (b"bytes", "result: a bytes is not JSON data"),
        ({"when": datetime.datetime(2024, 1, 1)}, "result.when: a datetime is not JSON data"),
        ({1: 2}, "result: key 1 is not text"),
        (CYCLE, "or a cycle"),
        (DEEP, "nested deeper than 64"),
        (Hostile(), "result: a Hostile is not JSON data"),
        (HostileResult(Hostile()), "Hostile"),
        (HostileResult(CYCLE), "RecursionError"),
        ([text("a"), 5], "result.content[1]: a TextPart or ImagePart is needed here, not int"),
        ({"a": [IMAGE]}, "result.a[0]: a ImagePart is not JSON data"),
        (ToolResult(content=5), "result.content: text or parts are needed here, not int"),
        (ToolResult(content=None), "result.content: text or parts are needed here, not NoneType"),
        (ToolResult(content={"type": "text"}), "result.content: text or parts are needed here, not dict"),
        (ToolResult(content=["a"]), "result.content[0]: a TextPart or ImagePart is needed here, not str"),
        (ToolResult(content=[text(b"a")]), "result.content[0].text: text is needed here, not bytes"),
        (ToolResult(content=[ImagePart(data=b"raw", mime_type="image/png")]), "result.content[0].data: text is needed"),
        (
            ToolResult(content=[ImagePart(data="", mime_type="png")]),
            "result.content[0].mime_type: 'png' is not a media",
        ),
        (ToolResult(content="x", details={"n": math.nan}), "result.details.n: nan is not a JSON number"),
        (ToolResult(content="x", details={1, 2}), "result.details: a set is not JSON data"),
        (ToolResult(content="x", details=Found("a")), "result.details: a Found is not JSON data"),
        (ToolResult(content="x", is_error="no"), "is_error and terminate are True or False, not str"),
        (ToolResult(content="x", is_error=Hostile()), "is_error and terminate are True or False, not Hostile"),
        (ToolResult(content="x", terminate=1), "is_error and terminate are True or False, not int"),
    ],
    ids=[f"bad {number}" for number in range(26)],
)
def test_what_cannot_be_kept_becomes_an_error_result_that_says_where(value: Any, why: str) -> None:
    message = sealed(value)

    assert message.is_error and message.details is None
    assert message.text.startswith("The tool 'read' returned something that cannot be kept: ") and why in message.text
    assert not seal_value(CALL, value, LIMIT).terminate


# Bounds.


@pytest.mark.parametrize(
    "unit", ["a", "é", "한", "😀", "👨\u200d👩\u200d👧\u200d👦", "각"], ids=["a", "é", "Hangul", "emoji", "ZWJ", "jamo"]
)
@pytest.mark.parametrize("limit", [*range(1, 14), 100])
def test_text_is_cut_at_a_code_point_with_a_mark(unit: str, limit: int) -> None:
    whole = unit * 200
    size = len(whole.encode())

    message = sealed(whole, limit)

    kept, mark = message.text.rsplit("\n", 1)
    assert whole.startswith(kept) and limit - 4 < len(kept.encode()) <= limit
    assert mark == f"[cut: {size - len(kept.encode())} of {size} bytes left out]"


@pytest.mark.parametrize("unit", ["a", "한", "😀"])
def test_text_that_just_fits_is_whole(unit: str) -> None:
    whole = unit * 10
    size = len(whole.encode())

    assert sealed(whole, size).text == whole
    assert sealed(whole, size - 1).text != whole


def test_the_bound_is_for_all_parts_together() -> None:
    message = sealed([text("a" * 6), text("b" * 6), text("c"), text("d")], 10 + PART_BYTES)

    assert message.content == (
        text("a" * 6),
        text("b" * 4 + "\n[cut: 2 of 6 bytes left out]"),
        text("[2 more parts left out]"),
    )


def test_many_parts_beyond_the_bound_leave_one_mark() -> None:
    message = sealed([text("x" * 9) for _ in range(10_000)], 10 + PART_BYTES)

    assert message.content == (
        text("x" * 9),
        text("x\n[cut: 8 of 9 bytes left out]"),
        text("[9998 more parts left out]"),
    )


SIGNED = TextPart(text="", signature="s" * 100)


@pytest.mark.parametrize(
    ("part", "many"),
    [
        (text(""), 10_000),
        (text("x"), 10_000),
        (ImagePart(data="", mime_type="image/png"), 10_000),
        (ImagePart(data="A" * 10_000, mime_type="a/b"), 500),  # five megabytes, none of which fits
        (SIGNED, 10_000),
    ],
    ids=["empty text", "text", "empty image", "big image", "signature"],
)
@pytest.mark.parametrize("limit", [1, 96, 97, 200, 1_000])
def test_no_number_of_parts_is_stored_beyond_the_bound(part: TextPart | ImagePart, many: int, limit: int) -> None:
    made = seal_value(CALL, [part for _ in range(many)], limit)
    shown = progress_parts([part for _ in range(many)], limit)

    assert made.message.content == shown and made.message.text.endswith(" more parts left out]")
    # The frames of the message, of its first part and of two marks are not counted.
    assert len(made.payload) <= limit + 400


@pytest.mark.parametrize("size", [20, 1_000_000])
def test_a_signature_counts_and_is_kept_whole_or_left_out(size: int) -> None:
    signed = TextPart(text="see", signature="é" * (size // 2))

    assert sealed(signed, size + 3).content == (signed,)
    assert sealed([signed, text("more")], size + 2 + 3 * PART_BYTES).content == (signed, text("more"))
    assert sealed([signed, text("more")], 10).content == (
        text("see"),
        text(f"[signature left out: {size} bytes do not fit in 10]"),
        text("[1 more part left out]"),
    )


def test_an_image_counts_with_its_type() -> None:
    assert sealed(IMAGE, 21).content == (IMAGE,)
    assert sealed(IMAGE, 20).content == (text("[image left out: 21 bytes do not fit in 20]"),)


def image(data: bytes, mime_type: str) -> ImagePart:
    return ImagePart(data=base64.b64encode(data).decode(), mime_type=mime_type)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (ImagePart(data="!!!not base64", mime_type="image/png"), "[image/png left out: its data is no base64]"),
        (ImagePart(data="aGk", mime_type="image/png"), "[image/png left out: its data is no base64]"),
        (image(b"<html>no</html>", "image/jpg"), "[image/jpg left out: its 15 bytes are no such image]"),
        (ImagePart(data="é", mime_type="image/png"), "[image/png left out: its data is no base64]"),
        (ImagePart(data="-_8=", mime_type="image/svg+xml"), "[image/svg+xml left out: its data is no base64]"),
        (
            ImagePart(data="data:image/png;base64,iVBORw0KGgo=", mime_type="image/png"),
            "[image/png left out: its data is no base64]",
        ),
        (ImagePart(data="", mime_type="image/tiff"), "[image/tiff left out: its 0 bytes are no such image]"),
        (image(b"<html>no</html>", "image/PNG"), "[image/PNG left out: its 15 bytes are no such image]"),
        (image(b"GIF89", "image/gif"), "[image/gif left out: its 5 bytes are no such image]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_fail_every_later_request_is_a_text_in_place_of_an_image(part: ImagePart, said: str) -> None:
    for value in (part, [text("a"), part], ToolResult(content=[part])):
        assert sealed(value).content[-1] == text(said) and not sealed(value).is_error
    assert progress_parts(part, LIMIT) == (text(said),)


@pytest.mark.parametrize(
    ("data", "claimed", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpg", "image/jpeg"),
        (b"\x89PNG\r\n\x1a\nx", "image/jpeg", "image/png"),
        (b"RIFF1234WEBPVP8 ", "application/octet-stream", "image/webp"),
        (b"<svg/>", "image/svg+xml", "image/svg+xml"),
    ],
)
def test_an_image_of_a_tool_is_what_its_bytes_say(data: bytes, claimed: str, kind: str) -> None:
    assert sealed(image(data, claimed)).content == (image(data, kind),)
    wrapped = ImagePart(data=" \r\n".join(image(data, claimed).data), mime_type=claimed)
    assert sealed(wrapped).content == (image(data, kind),)


def test_an_image_that_does_not_fit_is_left_out_and_said_so() -> None:
    limit = 28 + 2 * PART_BYTES
    big = ImagePart(data="A" * limit, mime_type="image/x")

    message = sealed([text("see"), big, IMAGE], limit)

    assert message.content == (text("see"), text(f"[image left out: {limit + 7} bytes do not fit in {limit}]"), IMAGE)


def test_details_that_do_not_fit_are_left_out_and_said_so() -> None:
    message = sealed(ToolResult(content="x", details={"log": "y" * 50}), 20)

    assert message.details is None
    assert message.content == (text("x"), text("[details left out: 60 bytes do not fit in 20]"))
    assert not message.is_error


def test_a_json_value_is_bounded_as_its_text() -> None:
    assert sealed(list(range(1_000)), 50).text.startswith("[0,1,2,3")
    assert "[cut: " in sealed(list(range(1_000)), 50).text


@given(st.text(max_size=40), st.integers(1, 60))
def test_a_result_never_grows_beyond_its_bound_but_for_its_mark(value: str, limit: int) -> None:
    message = sealed(value, limit)

    assert len(message.text.encode()) <= limit + len("\n[cut: 999 of 999 bytes left out]")


# Errors.


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (Silent(), "Silent"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_says_what_it_is(error: BaseException, said: str) -> None:
    assert error_text(error) == said


def test_an_error_result_is_clean_and_bounded() -> None:
    made = seal_error(CALL, "bad \ud800 " + "x" * 5_000, 100)

    assert isinstance(made, Sealed) and made.message.is_error
    assert made.message.text.startswith("bad \ufffd xxx") and len(made.message.text.encode()) < 150
    assert json.loads(made.payload)["is_error"] is True


# Progress.


def test_progress_is_checked_and_bounded_like_a_result() -> None:
    assert progress_parts("half", 100) == (text("half"),)
    assert progress_parts([text("a"), IMAGE], 1_000) == (text("a"), IMAGE)
    assert progress_parts("", 100) == ()
    assert progress_parts("abc", 2)[0] == text("ab\n[cut: 1 of 3 bytes left out]")
    for bad in (None, 5, {"a": 1}, ["a"]):
        with pytest.raises(InvalidMessage):
            progress_parts(bad, 100)
