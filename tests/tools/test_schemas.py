"""Claim: types that people use have a schema that providers take, the same in every process, and arrive as values."""

from __future__ import annotations

import datetime
import decimal
import enum
import os
import pathlib
import subprocess
import sys
import typing
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, Required, TypedDict, TypeVar, Union

import msgspec
import pytest
from msgspec import Meta, Struct
from typing_extensions import Doc

from agentlane import InvalidDefinition
from agentlane.tool import ArgumentsError, tool

T = TypeVar("T")


class Node(Struct):
    """A node of a tree.

    Attributes:
        label: what it is called
    """

    label: str
    children: list[Node] = []
    parent: Optional[Node] = None  # noqa: UP045


class Box(Struct, Generic[T]):
    item: T


class Size(NamedTuple):
    width: int
    height: int = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Options(TypedDict, total=False):
    path: Required[str]
    depth: int


class Cat(Struct, tag="cat"):
    lives: int = 9


class Dog(Struct, tag="dog"):
    name: str


class Pair(Struct, array_like=True):
    a: int
    b: str


@dataclass
class Query:
    """What to look for.

    Parameters
    ----------
    text : str
        the words
    kinds : set of str
        which kinds
    """

    text: str
    kinds: frozenset[str] = frozenset({"note", "mail", "file", "task"})
    at: list[int] = field(default_factory=list)


def schema(hint: Any, **definitions: Any) -> Any:
    return built(hint).definition.parameters["properties"]["x"]


def built(hint: Any, default: Any = ...) -> Any:
    def take(x):  # type: ignore[no-untyped-def]
        return x

    take.__annotations__["x"] = hint
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(take)


def value(hint: Any, given: Any) -> Any:
    made = built(hint)
    return made.call(made.check({"x": given}, None), None)


NOW = datetime.datetime(2024, 5, 6, 7, 8, tzinfo=datetime.UTC)
ID = uuid.UUID(int=5)


TYPES: list[tuple[Any, Any, Any, Any]] = [
    (set[int], {"type": "array", "items": {"type": "integer"}}, [1, 1, 2], {1, 2}),
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, [1, 2], (1, 2)),
    (
        tuple[float, float],
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        [1, 2],
        (1.0, 2.0),
    ),
    (
        dict[str, list[int]],
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        {"a": [1]},
        {"a": [1]},
    ),
    (datetime.datetime, {"type": "string", "format": "date-time"}, "2024-05-06T07:08:00Z", NOW),
    (datetime.date, {"type": "string", "format": "date"}, "2024-05-06", datetime.date(2024, 5, 6)),
    (datetime.timedelta, {"type": "string", "format": "duration"}, "PT1M", datetime.timedelta(minutes=1)),
    (uuid.UUID, {"type": "string", "format": "uuid"}, str(ID), ID),
    (
        decimal.Decimal,
        {"type": "string", "description": "A decimal number, as text."},
        "1.10",
        decimal.Decimal("1.10"),
    ),
    (bytes, {"type": "string", "description": "Base64."}, "aGk=", b"hi"),
    (pathlib.Path, {"type": "string"}, "a/b", pathlib.Path("a/b")),
    (os.PathLike[str] | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, None, None),
    (
        list[pathlib.PurePosixPath],
        {"type": "array", "items": {"type": "string"}},
        ["a"],
        [pathlib.PurePosixPath("a")],
    ),
    (Literal["b", "a"], {"type": "string", "enum": ["a", "b"]}, "a", "a"),
    (
        Literal["a", 1, None],
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}, {"type": "null"}]},
        1,
        1,
    ),
    (
        None | str | int,
        {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
        "a",
        "a",
    ),
    (Any, {}, {"a": [None]}, {"a": [None]}),
    (
        Annotated[int, Meta(ge=1, multiple_of=2), Doc("even")],
        {"type": "integer", "minimum": 1, "multipleOf": 2, "description": "even"},
        4,
        4,
    ),
    (Annotated[str, "who it is for"], {"type": "string", "description": "who it is for"}, "a", "a"),
    (Level, {"$ref": "#/$defs/Level"}, 9, Level.HIGH),
    (Query, {"$ref": "#/$defs/Query"}, {"text": "a", "kinds": ["b"]}, Query("a", frozenset({"b"}))),
    (Options, {"$ref": "#/$defs/Options"}, {"path": "a"}, {"path": "a"}),
    (Size, {"$ref": "#/$defs/Size"}, [3], Size(3)),
    (Box[int], {"$ref": "#/$defs/Box_int_"}, {"item": 1}, Box(1)),
    (Node | None, {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, {"label": "a"}, Node("a")),
    (
        Annotated[Node, Meta(description="the root")],
        {"anyOf": [{"$ref": "#/$defs/Node"}], "description": "the root"},
        {"label": "a", "children": [{"label": "b"}]},
        Node("a", [Node("b")]),
    ),
]


@pytest.mark.parametrize(("hint", "expected", "given", "arrives"), TYPES, ids=str)
def test_a_type_has_a_schema_and_its_values_arrive(hint: Any, expected: Any, given: Any, arrives: Any) -> None:
    assert schema(hint) == expected
    got = value(hint, given)
    assert got == arrives and type(got) is type(arrives)


@pytest.mark.parametrize(("hint", "given"), [(hint, given) for hint, _, given, _ in TYPES], ids=str)
def test_the_schema_is_one_and_what_arrives_fits_it(hint: Any, given: Any) -> None:
    """By a judge of its own, where it is installed."""
    judge = pytest.importorskip("jsonschema").Draft202012Validator
    parameters = built(hint).definition.parameters

    judge.check_schema(parameters)
    assert list(judge(parameters).iter_errors({"x": given})) == []
    assert list(judge(parameters).iter_errors({"x": given, "y": 1})) != []


def test_records_are_defined_once_with_what_is_said_about_their_fields() -> None:
    def plant(first: Node, second: list[Node], query: Query, level: Level = Level.LOW) -> str:
        """Plant trees.

        Args:
            first: where to begin
        """
        return ""

    parameters = tool(plant).definition.parameters

    assert parameters["properties"]["first"] == {"anyOf": [{"$ref": "#/$defs/Node"}], "description": "where to begin"}
    assert parameters["properties"]["level"] == {"anyOf": [{"$ref": "#/$defs/Level"}], "default": 1}
    assert parameters["$defs"] == {
        "Node": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "description": "what it is called"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
                "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
            },
            "required": ["label"],
            "additionalProperties": False,
            "description": "A node of a tree.",
        },
        "Query": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "the words"},
                "kinds": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "which kinds",
                    "default": ["file", "mail", "note", "task"],
                },
                "at": {"type": "array", "items": {"type": "integer"}, "default": []},
            },
            "required": ["text"],
            "additionalProperties": False,
            "description": "What to look for.",
        },
        "Level": {"type": "integer", "enum": [1, 9]},
    }


def test_choices_of_records_are_told_apart_by_their_tags() -> None:
    parameters = built(Cat | Dog).definition.parameters

    assert parameters["properties"]["x"] == {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
    assert parameters["$defs"]["Dog"] == {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["dog"]}, "name": {"type": "string"}},
        "required": ["type", "name"],
        "additionalProperties": False,
    }
    assert value(Cat | Dog, {"type": "dog", "name": "rex"}) == Dog("rex")


def test_two_records_of_one_name_are_two_definitions() -> None:
    def other() -> type:
        class Cat(Struct):
            """Another one."""

        return Cat

    def take(a, b):  # type: ignore[no-untyped-def]
        return a, b

    take.__annotations__.update(a=Cat, b=list[other()])  # type: ignore[misc]
    parameters = tool(take).definition.parameters

    assert parameters["properties"]["b"] == {"type": "array", "items": {"$ref": "#/$defs/Cat_2"}}
    assert parameters["$defs"]["Cat_2"]["description"] == "Another one."
    assert list(parameters["$defs"]["Cat"]["properties"]) == ["type", "lives"]


def test_records_that_are_lists_say_their_order() -> None:
    definition = built(Pair).definition.parameters["$defs"]["Pair"]

    assert definition == {
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "minItems": 2,
        "maxItems": 2,
        "description": 'In this order: {"type":"integer"}, {"type":"string"}.',
    }
    assert value(Pair, [1, "a"]) == Pair(1, "a")


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        ({"b", "a", "c"}, ["a", "b", "c"]),
        (Node("a"), {"label": "a", "children": [], "parent": None}),
        (pathlib.Path("a"), "a"),
        (NOW, "2024-05-06T07:08:00Z"),
        (Level.HIGH, 9),
        (None, None),
    ],
    ids=str,
)
def test_a_default_is_shown_as_json(default: Any, shown: Any) -> None:
    assert built(Any, default).definition.parameters["properties"]["x"] == {"default": shown}


@pytest.mark.parametrize("default", [object(), float("nan"), 2**80, lambda: 1, msgspec.UNSET], ids=repr)
def test_a_default_that_is_no_json_is_not_shown_and_is_what_the_function_gets(default: Any) -> None:
    made = built(Any, default)

    assert made.definition.parameters["properties"]["x"] == {}
    assert made.call(made.check({}, None), None) is default


def test_a_default_of_none_may_be_said_by_the_model_too() -> None:
    def take(
        a: str = None,  # type: ignore[assignment]  # noqa: RUF013
        b: Annotated[int, Meta(ge=1)] = None,  # type: ignore[assignment]  # noqa: RUF013
        c: Any = None,
        d: Optional[A] = None,  # noqa: UP045
        e: Annotated[int | None, "how many"] = None,
    ) -> Any:
        return a, b, c, d

    made = tool(take)

    assert made.definition.parameters["properties"] == {
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "b": {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": None},
        "c": {"default": None},
        "d": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "default": None},
        "e": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "how many", "default": None},
    }
    for given in ({}, {"a": None, "b": None, "c": None, "d": None}):
        assert made.call(made.check(given, None), None) == (None, None, None, None)  # type: ignore[arg-type]
    assert made.call(made.check({"a": "x", "b": 2, "d": {"x": 1}}, None), None) == ("x", 2, None, A(1))  # type: ignore[arg-type]
    with pytest.raises(ArgumentsError):
        made.check({"b": 0}, None)


@dataclass
class Counted:
    n: int


def test_a_whole_number_may_be_written_as_a_float() -> None:
    def take(n: int, many: list[int], one: Counted, x: float = 0.5, any: Any = None) -> Any:
        return n, many, one, x, any

    made = tool(take)
    arrived = made.call(made.check({"n": 3.0, "many": [1, 2.0], "one": {"n": -4.0}, "x": 2.0}, None), None)  # type: ignore[arg-type]

    assert repr(arrived) == "(3, [1, 2], Counted(n=-4), 2.0, None)"
    for wrong in (3.5, 2.0**60, True, "3"):
        with pytest.raises(ArgumentsError, match="Expected `int`, got `(float|bool|str)` - at `\\$.n`"):
            made.check({"n": wrong, "many": [], "one": {"n": 1}}, None)
    kept = made.check({"n": 3, "many": [], "one": {"n": 1}, "any": 7.0}, None)
    assert repr(kept.any) == "7.0"


# What cannot be a schema.


@dataclass
class A:
    x: int


@dataclass
class B:
    y: int


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    ("hint", "why", "way_out"),
    [
        (A | B, "more than one dataclass", "make them msgspec Structs with tags"),
        (A | dict[str, int], "more than one dict-like", "give the records tags"),
        (list[int] | set[str], "more than one array-like", "a parameter each"),
        (datetime.datetime | str, "more than one str-like", "take str, and tell them apart in the function"),
        (Mixed, "Enums must contain", "give its members values that are all text or all whole numbers"),
        (object, "object has no schema", "annotate it with Any"),
        (complex, "complex has no JSON Schema", "make the complex in the function"),
        (Iterable[int], "Iterable has no JSON Schema", "Tool(name, function, parameters=..., validate=...)"),
        (list[dict[str, Callable[[], None]]], "Callable has no JSON Schema", "Tool(name, function"),
        (Annotated[str, Meta(ge=1)], "", "Tool(name, function"),
    ],
    ids=str,
)
def test_a_type_without_a_schema_is_refused_with_its_parameter_and_the_way_out(
    hint: Any, why: str, way_out: str
) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        built(hint)

    text = str(caught.value)
    assert text.startswith("tool 'take': no JSON Schema for its parameter 'x': ") and why in text and way_out in text
    assert caught.value.details == {"parameter": "x"}


def starred(x: int, *rest: int) -> None: ...
def double_starred(x: int, **rest: int) -> None: ...
def positional(x: int, /) -> None: ...
def unknown(x: int, y: list[NoSuchThing]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "parameter", "says"),
    [
        (
            starred,
            "rest",
            "parameter '*rest' must be an ordinary one that can be given by name: take a list; a decorator",
        ),
        (double_starred, "rest", "parameter '**rest' must be an ordinary one that can be given by name: take a dict"),
        (positional, "x", "parameter 'x' must be an ordinary one that can be given by name: take away the /"),
        (unknown, "y", "the annotation of 'y' cannot be read: name 'NoSuchThing' is not defined; define or import it"),
    ],
)
def test_a_parameter_that_no_model_can_give_is_named_with_the_way_out(function: Any, parameter: str, says: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        tool(function)

    assert str(caught.value).startswith(f"tool {function.__name__!r}: {says}")
    assert caught.value.details == {"parameter": parameter}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is of Python 3.12")
def test_an_alias_that_never_ends_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | None", space)

    with pytest.raises(
        InvalidDefinition, match=r"parameter 'x': its type never ends; write the recursion as a msgspec"
    ):
        built(space["Json"])


@pytest.mark.parametrize(
    ("hint", "given", "told"),
    [
        (Query, {"text": "a", "kind": []}, "unknown field `kind` - at `$.x`; it has `text`, `kinds`, `at`"),
        (list[Options], [{"path": "a"}, {"path": "b", "deep": 1}], "unknown field `deep` - at `$.x[1]`"),
        (dict[str, Node | None], {"k": {"label": "a", "children": [{"label": "b", "x": 1}]}}, "at `$.x.k.children[0]`"),
        (Cat | Dog, {"type": "cat", "lives": 1, "tail": 2}, "unknown field `tail` - at `$.x`"),
        (Cat | Dog, {"type": "cat", "name": "rex"}, "unknown field `name` - at `$.x`; it has `type`, `lives`"),
        (tuple[int, Node], [1, {"label": "a", "up": 2}], "unknown field `up` - at `$.x[1]`"),
    ],
    ids=str,
)
def test_what_the_schema_forbids_is_told_in_records_too(hint: Any, given: Any, told: str) -> None:
    """A field that is misspelt must not be left out in silence."""
    with pytest.raises(ArgumentsError) as caught:
        built(hint).check({"x": given}, None)

    assert told in str(caught.value)


def test_a_record_of_a_choice_is_judged_by_its_own_fields() -> None:
    assert value(Cat | Dog, {"type": "cat", "lives": 1}) == Cat(1)
    assert value(Cat | Dog, {"type": "dog", "name": "rex"}) == Dog("rex")
    assert value(dict[str, Any] | None, {"any": {"thing": 1}}) == {"any": {"thing": 1}}


# One text in every process.

SCRIPT = """
import hashlib, json, sys
sys.path.insert(0, {root!r})
from typing import List, Union
{before}
from tests.tools.test_schemas import everything
print(hashlib.sha256(json.dumps(everything().definition.parameters).encode()).hexdigest())
"""


def everything() -> Any:
    def take(
        query: Query,
        node: Node,
        either: typing.List[Union[int, str, None]],  # noqa: UP006, UP007
        tags: set[str] = {"b", "a", "c", "d", "e"},  # noqa: B006
        kind: Literal["x", "b", "a", "z"] = "x",
        level: Level = Level.LOW,
    ) -> str:
        return ""

    return tool(take)


def test_the_schema_is_the_same_bytes_in_every_process() -> None:
    """Neither the seed of hashes nor what the process wrote before it (typing keeps the first way) changes it."""
    root = str(pathlib.Path(__file__).parents[2])
    found = set()
    for seed, before in (("0", ""), ("1", "List[Union[str, None, int]]"), ("2", "")):
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=root, before=before)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(ran.stdout)

    assert len(found) == 1


def test_no_keyword_that_strict_providers_refuse_is_used_without_need() -> None:
    def take(a: Query, b: tuple[int, str], c: Cat | Dog, d: Size, e: set[int], f: bytes, g: Pair) -> str:
        return ""

    used: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            used.update(node)
            for key, each in node.items():
                for inner in each.values() if key in ("properties", "$defs") else [each]:
                    walk(inner)
            if node.get("type") == "array":
                assert isinstance(node["items"], dict)
            if node.get("type") == "object":
                assert "additionalProperties" in node
            if "$ref" in node:
                assert len(node) == 1
        elif isinstance(node, list):
            for each in node:
                walk(each)

    walk(tool(take).definition.parameters)

    keywords = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref", "$defs"}
    assert used <= keywords | {"minItems", "maxItems", "default", "description"}


# Constraints of annotated-types, by their names and fields alone.


def constraint(name: str, **fields: Any) -> Any:
    made = type(name, (), {"__module__": "annotated_types", "__repr__": lambda self: f"{name}({fields})"})()
    vars(made).update(fields)
    return made


def group(*parts: Any) -> Any:
    return type("Interval", (), {"__module__": "annotated_types", "__iter__": lambda self: iter(parts)})()


def test_constraints_of_annotated_types_are_shown_and_checked() -> None:
    hint = list[Annotated[int, group(constraint("Ge", ge=1), constraint("Lt", lt=5))]]

    assert schema(hint) == {"type": "array", "items": {"type": "integer", "minimum": 1, "exclusiveMaximum": 5}}
    assert value(hint, [1, 4]) == [1, 4]
    with pytest.raises(ArgumentsError, match=r"`int` <= 4 - at `\$\.x\[1\]`"):
        built(hint).check({"x": [1, 5]}, None)
    named = Annotated[dict[str, int] | None, constraint("MinLen", min_length=1)]
    assert schema(Annotated[str, constraint("MaxLen", max_length=3)]) == {"type": "string", "maxLength": 3}
    with pytest.raises(InvalidDefinition):
        built(named)


def test_a_constraint_that_would_not_be_checked_is_refused() -> None:
    @dataclass
    class Order:
        count: int

    Order.__annotations__["count"] = Annotated[int, constraint("Ge", ge=1)]

    with pytest.raises(
        InvalidDefinition, match=r"parameter 'x': field 'count' of Order has the constraint .* say it as"
    ):
        built(list[Order])
    with pytest.raises(InvalidDefinition, match=r"the constraint Predicate\(.*\) has no JSON Schema; check it in the"):
        built(Annotated[int, constraint("Predicate", func=bool)])


@pytest.mark.parametrize(
    "hint",
    [
        dict[int, str],
        dict[float, str],
        dict[bool, str],
        dict[None, str],
        dict[tuple[str, int], str],
        dict[Level, str],
        dict[Literal[1, 2], str],
        dict[Annotated[int, msgspec.Meta(ge=1)], str],
        list[dict[str, dict[int | None, str]]],
        msgspec.Raw,
        list[msgspec.Raw],
    ],
    ids=str,
)
def test_what_no_json_can_be_read_as_is_refused_when_the_tool_is_declared(hint: Any) -> None:
    def take(x: Any) -> str:
        return "ok"

    take.__annotations__["x"] = hint
    with pytest.raises(InvalidDefinition, match="JSON has no other keys than text|not read yet"):
        tool(take)


@pytest.mark.parametrize(
    ("hint", "given", "got"),
    [
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[Any, int], {"a": 1}, {"a": 1}),
        (dict[int | str, int], {"1": 1}, {"1": 1}),
        (dict[Literal["a", 1], int], {"a": 1}, {"a": 1}),
        (dict[datetime.date, int], {"2020-01-02": 1}, {datetime.date(2020, 1, 2): 1}),
        (dict[uuid.UUID, int], {str(uuid.UUID(int=1)): 1}, {uuid.UUID(int=1): 1}),
        (dict[decimal.Decimal, int], {"1.5": 1}, {decimal.Decimal("1.5"): 1}),
    ],
    ids=str,
)
def test_keys_that_are_texts_are_read_as_their_type(hint: Any, given: Any, got: Any) -> None:
    def take(x: Any) -> Any:
        return x

    take.__annotations__["x"] = hint
    built = tool(take)
    assert built.call(built.check({"x": given}, None), None) == got
