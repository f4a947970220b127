"""Claim: what crosses the border is JSON data that every backend and provider takes, or is refused by its path."""

from __future__ import annotations

import datetime
import enum
import json
import math
from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data import border
from agentlane.data.border import NESTING_MAX, clean_json, clean_text
from agentlane.errors import InvalidMessage


def nested(depth: int, inner: Any = None, *, key: str | None = None) -> Any:
    """Lists (or objects, under ``key``) around ``inner``, ``depth`` of them."""
    value = inner
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


# Text.


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("", ""),
        ("plain", "plain"),
        ("현 보유 😀", "현 보유 😀"),
        ("현\ud99c 보유", "현\ufffd 보유"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("a\ud800", "a\ufffd"),
        ("\ud800😀\udfff", "\ufffd😀\ufffd"),
    ],
    ids=ascii,
)
def test_surrogate_pairs_are_joined_and_lone_ones_replaced(text: str, clean: str) -> None:
    assert clean_text(text) == clean
    assert clean_json({text: [text]}) == {clean: [clean]}


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=30))
def test_clean_text_encodes_keeps_what_is_whole_and_is_clean_already(text: str) -> None:
    clean = clean_text(text)

    clean.encode()
    assert clean_text(clean) == clean
    if not any("\ud800" <= each <= "\udfff" for each in text):
        assert clean is text or clean == text


@pytest.mark.parametrize(
    "text",
    [
        *("a\x00b", "\x00", "a\u2028b\u2029c", "a\x85b", "a\rb", "\r\n", "\x1b[0m", "\x7f", "\ufeff", "\ufffe"),
        "x" * 100_000,
    ],
    ids=lambda text: ascii(text[:9]),
)
def test_text_that_other_layers_stumble_over_round_trips(text: str) -> None:
    assert clean_text(text) == text
    assert msgspec.json.decode(msgspec.json.encode(clean_json({text: text}))) == {text: text}


class Text(str):
    """A text that is not exactly one."""

    def __str__(self) -> str:
        return "something else"

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("never asked")


class Color(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Whole(int):
    def __repr__(self) -> str:
        raise RuntimeError("never asked")


class Real(float):
    pass


class Record(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("é"), "é"),
        (Color.RED, "red"),
        (Number.ONE, 1),
        (Whole(7), 7),
        (Real(0.5), 0.5),
        (True, True),
        (Record(a=1), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict({"a": (1, 2)}), {"a": [1, 2]}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        ({Text("k"): 1}, {"k": 1}),
        ({Color.RED: 1}, {"red": 1}),
        ((1, (2, [3])), [1, [2, [3]]]),
        (-0.0, -0.0),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        (1e308, 1e308),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_become_the_plain_thing(value: Any, plain: Any) -> None:
    clean = clean_json([value])

    assert clean == [plain]
    assert type(clean[0]) is type(plain)
    if isinstance(plain, dict):
        assert all(type(key) is str for key in clean[0])
    assert msgspec.json.decode(msgspec.json.encode(clean)) == clean


# Refusals.


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (math.nan, "$", "nan is not a JSON number"),
        ({"x": math.inf}, "$.x", "inf is not a JSON number"),
        ([0, {"a": [-math.inf]}], "$[1].a[0]", "-inf is not a JSON number"),
        ({"x": Real("nan")}, "$.x", "is not a JSON number"),
        ({"n": 2**64}, "$.n", "integer 18446744073709551616 does not fit in 64 bits"),
        ([-(2**63) - 1], "$[0]", "does not fit in 64 bits"),
        ([10**5000], "$[0]", "does not fit in 64 bits"),
        ([Whole(2**70)], "$[0]", "does not fit in 64 bits"),
        ({"b": b"x"}, "$.b", "a bytes is not JSON data"),
        ({"b": bytearray()}, "$.b", "a bytearray is not JSON data"),
        ([{1, 2}], "$[0]", "a set is not JSON data"),
        ({"when": datetime.datetime(2024, 1, 1)}, "$.when", "a datetime is not JSON data"),
        ([Decimal("1")], "$[0]", "a Decimal is not JSON data"),
        ([Path("x")], "$[0]", "is not JSON data"),
        ([object()], "$[0]", "a object is not JSON data"),
        ([1j], "$[0]", "a complex is not JSON data"),
        ([int], "$[0]", "a type is not JSON data"),
        ([iter([])], "$[0]", "a list_iterator is not JSON data"),
        ({"a": {1: 2}}, "$.a", "key 1 is not text"),
        ({"a": {None: 2}}, "$.a", "key None is not text"),
        ({"a": {b"k": 2}}, "$.a", "key b'k' is not text"),
        ({"a": {("x",): 2}}, "$.a", "key ('x',) is not text"),
        ({"a": {"\ud800": 1, chr(0xDBFF): 2}}, "$.a", "two keys become '\ufffd'"),
        ({"\ud83d\ude00": 1, "😀": 2}, "$", "two keys become '😀'"),
    ],
    ids=[f"refusal {number}" for number in range(24)],
)
def test_what_is_not_json_is_refused_by_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        clean_json(value)

    assert str(caught.value).startswith(f"{path}: ") and why in str(caught.value)
    assert caught.value.details["path"] == path


def test_the_path_begins_with_the_name_it_is_given() -> None:
    with pytest.raises(InvalidMessage, match=r"^result\.details\.a\[1\]: "):
        clean_json({"a": [0, math.nan]}, "result.details")


@pytest.mark.parametrize("text", [None, 1, b"x", ["x"], object()])
def test_text_that_is_none_is_refused(text: Any) -> None:
    with pytest.raises(InvalidMessage, match="^name: text is needed here, not "):
        clean_text(text, "name")


@pytest.mark.parametrize("key", [None, "k"], ids=["lists", "objects"])
def test_nesting_of_64_is_taken_and_of_65_refused(key: str | None) -> None:
    assert NESTING_MAX == 64
    deep = nested(64, "x", key=key)

    assert clean_json(deep) == deep
    with pytest.raises(InvalidMessage, match="nested deeper than 64, or a cycle"):
        clean_json(nested(65, "x", key=key))


def test_cycles_are_refused() -> None:
    around: list[Any] = []
    around.append({"again": around})
    self_key: dict[str, Any] = {}
    self_key["me"] = self_key

    for cycle in (around, self_key):
        with pytest.raises(InvalidMessage, match="or a cycle") as caught:
            clean_json(cycle)
        assert len(str(caught.value)) < 500, "the path is cut"


@pytest.mark.parametrize("leaf", [None, True, "x", 1, 0.5, []], ids=repr)
def test_a_small_value_that_unfolds_without_end_is_stopped_whatever_its_leaves(
    leaf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(border, "NODES_MAX", 10_000)
    wide: Any = [leaf] * 100
    for _ in range(20):
        wide = [wide, wide]

    with pytest.raises(InvalidMessage, match="more than 10000 values"):
        clean_json(wide)


def test_a_shared_part_is_copied_for_each_place_and_nothing_is_shared_with_the_caller() -> None:
    shared = {"n": [1]}
    given_value = {"a": shared, "b": shared}

    clean = clean_json(given_value)
    shared["n"].append(2)
    clean["a"]["n"].append(3)

    assert clean == {"a": {"n": [1, 3]}, "b": {"n": [1]}}


class Hostile(Mapping[str, Any]):
    """A mapping that fails while it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("boom")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class HostileList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise KeyError("boom")


class HostileInt(int):
    def __int__(self) -> int:
        raise ZeroDivisionError("boom")

    def __le__(self, other: object) -> bool:
        raise ZeroDivisionError("boom")

    __ge__ = __le__

    def __pos__(self) -> int:
        raise ZeroDivisionError("boom")

    __repr__ = __str__ = __pos__  # type: ignore[assignment]


class HostileKey(str):
    def isascii(self) -> bool:
        raise ZeroDivisionError("boom")


class HostileClass:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("boom")


@pytest.mark.parametrize("kind", [Hostile, HostileList, HostileClass])
def test_a_foreign_object_that_fails_while_it_is_read_is_refused_and_not_a_crash(kind: type) -> None:
    with pytest.raises(InvalidMessage, match="^data.inner.1.: reading it failed: .*boom"):
        clean_json({"inner": [0, kind()]}, "data")


def test_a_text_or_number_that_lies_about_itself_is_read_as_what_it_is() -> None:
    clean = clean_json({HostileKey("k"): [HostileKey("v"), HostileInt(3)]})

    assert clean == {"k": ["v", 3]} and type(clean["k"][1]) is int


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_json_data_is_taken_as_it_is_and_round_trips(value: Any) -> None:
    clean = clean_json(value)

    assert clean == value
    assert msgspec.json.decode(msgspec.json.encode(clean)) == clean
    assert json.loads(msgspec.json.encode(clean)) == clean
