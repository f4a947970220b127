"""Claim: a tool's schema says what its function takes, and what does not fit it never reaches the function."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from agentlane.agent import Agent
from agentlane.errors import InvalidDefinition, InvalidName
from agentlane.testing.models import ScriptedModel
from agentlane.tool import ArgumentsError, RetryTool, Tool, ToolResult, tool
from agentlane.tool_context import ToolContext


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool
    limit: NotRequired[int]


class Query(Struct):
    text: str
    tags: list[str] = []


class Cat(Struct, tag="cat"):
    lives: int


class Dog(Struct, tag="dog"):
    name: str


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    return tool(function).definition.parameters


def run(built: Tool[..., Any], arguments: dict[str, Any] | None, context: Any = None) -> Any:
    """What the function gives for a model's arguments."""
    return built.call(built.check(arguments, None), context)


# Schemas.


def plain(a: str, b: int, c: float, d: bool) -> str:
    return repr((a, b, c, d))


def containers(a: list[int], b: dict[str, float], c: tuple[int, str]) -> Any:
    return a, b, c


def optional(a: str | None, b: Optional[int] = None, c: str = "x", d: list[str] = ["y"]) -> Any:  # noqa: B006, UP045
    return a, b, c, d


def closed(a: Literal["up", "down"], b: Color, c: Literal[1, 2] = 1) -> Any:
    return a, b, c


def records(point: Point, options: Options, query: Query) -> Any:
    return point, options, query


def unions(a: int | str, pet: Cat | Dog) -> Any:
    return a, pet


def bare(a, b=3):  # type: ignore[no-untyped-def]
    return a, b


def limited(n: Annotated[int, Meta(ge=1, le=9, description="how many")], s: Annotated[str, Meta(min_length=1)]) -> Any:
    return n, s


@pytest.mark.parametrize(
    ("function", "properties", "required"),
    [
        (
            plain,
            {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "number"}, "d": {"type": "boolean"}},
            ["a", "b", "c", "d"],
        ),
        (
            containers,
            {
                "a": {"type": "array", "items": {"type": "integer"}},
                "b": {"type": "object", "additionalProperties": {"type": "number"}},
                "c": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "description": 'In this order: {"type":"integer"}, {"type":"string"}.',
                },
            },
            ["a", "b", "c"],
        ),
        (
            optional,
            {
                "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                "c": {"type": "string", "default": "x"},
                "d": {"type": "array", "items": {"type": "string"}, "default": ["y"]},
            },
            ["a"],
        ),
        (
            closed,
            {
                "a": {"type": "string", "enum": ["down", "up"]},
                "b": {"$ref": "#/$defs/Color"},
                "c": {"type": "integer", "enum": [1, 2], "default": 1},
            },
            ["a", "b"],
        ),
        (
            limited,
            {
                "n": {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
                "s": {"type": "string", "minLength": 1},
            },
            ["n", "s"],
        ),
        (bare, {"a": {}, "b": {"default": 3}}, ["a"]),
    ],
)
def test_the_schema_of_a_signature(
    function: Callable[..., Any], properties: dict[str, Any], required: list[str]
) -> None:
    schema = parameters(function)

    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["properties"] == properties
    assert schema["required"] == required


def test_records_are_defined_beside_the_arguments() -> None:
    schema = parameters(records)

    assert schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert set(schema["$defs"]) == {"Point", "Options", "Query"}
    assert schema["$defs"]["Options"]["required"] == ["deep"]
    assert "title" not in schema and "$ref" not in schema


def test_a_function_without_parameters_has_an_empty_object() -> None:
    def nothing() -> str:
        return "fine"

    built = tool(nothing)

    assert built.definition.parameters["properties"] == {}
    assert run(built, {}) == "fine"
    with pytest.raises(ArgumentsError, match="unknown field `a`"):
        built.check({"a": 1}, None)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (plain, {"a": "x", "b": 1, "c": 2, "d": True}, "('x', 1, 2.0, True)"),
        (containers, {"a": [1], "b": {"k": 1}, "c": [1, "x"]}, ([1], {"k": 1.0}, (1, "x"))),
        (optional, {"a": None}, (None, None, "x", ["y"])),
        (closed, {"a": "up", "b": "red"}, ("up", Color.RED, 1)),
        (
            records,
            {"point": {"x": 1}, "options": {"deep": True}, "query": {"text": "t"}},
            (Point(1), {"deep": True}, Query("t")),
        ),
        (unions, {"a": "x", "pet": {"type": "dog", "name": "rex"}}, ("x", Dog("rex"))),
        (bare, {"a": {"any": [1]}}, ({"any": [1]}, 3)),
        (limited, {"n": 9, "s": "x"}, (9, "x")),
    ],
)
def test_arguments_reach_the_function_as_its_types_say(
    function: Callable[..., Any], arguments: dict[str, Any], expected: Any
) -> None:
    assert run(tool(function), arguments) == expected


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (plain, {"a": "x", "b": 1, "c": 2}, "missing required field `d`"),
        (plain, {"a": 5, "b": 1, "c": 2, "d": True}, "Expected `str`, got `int` - at `$.a`"),
        (plain, {"a": "x", "b": 1.5, "c": 2, "d": True}, "Expected `int`, got `float` - at `$.b`"),
        (plain, {"a": "x", "b": True, "c": 2, "d": True}, "Expected `int`, got `bool` - at `$.b`"),
        (plain, {"a": "x", "b": 1, "c": 2, "d": True, "e": 0}, "unknown field `e`"),
        (containers, {"a": ["x"], "b": {}, "c": [1, "x"]}, "$.a[0]"),
        (closed, {"a": "left", "b": "red"}, "Invalid enum value 'left' - at `$.a`"),
        (closed, {"a": "up", "b": "green"}, "Invalid enum value 'green' - at `$.b`"),
        (records, {"point": {}, "options": {"deep": True}, "query": {"text": "t"}}, "`x` - at `$.point`"),
        (unions, {"a": None, "pet": {"type": "dog", "name": "r"}}, "Expected `int | str`, got `null`"),
        (limited, {"n": 10, "s": "x"}, "`int` <= 9 - at `$.n`"),
        (limited, {"n": 1, "s": ""}, "length >= 1 - at `$.s`"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(
    function: Callable[..., Any], arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        tool(function).check(arguments, None)

    text = str(caught.value)
    assert text.startswith(f"The arguments of {function.__name__!r} are not valid: ") and why in text


@pytest.mark.parametrize("text", ["", "{oops", "[1]", "x" * 100_000, None])
def test_arguments_that_are_no_object_are_shown_back_in_short(text: str | None) -> None:
    with pytest.raises(ArgumentsError, match="are not a JSON object") as caught:
        tool(plain).check(None, text)

    assert len(str(caught.value)) < 400


# Defaults and given objects belong to one call.


def test_a_mutable_default_is_new_for_each_call() -> None:
    def collect(items: list[str] = ["a"], seen: dict[str, int] = {"n": 1}) -> Any:  # noqa: B006
        items.append("b")
        seen["n"] += 1
        return items, seen

    built = tool(collect)

    assert run(built, {}) == run(built, {}) == (["a", "b"], {"n": 2})


def test_a_mutable_default_of_any_kind_is_new_for_each_call() -> None:
    def move(point: Point = Point(1), query: Query = Query("t", ["x"])) -> Any:  # noqa: B008
        point.x += 1
        query.tags.append("y")
        return point.x, query.tags

    built = tool(move)

    assert run(built, {}) == run(built, {}) == (2, ["x", "y"])


@pytest.mark.parametrize("kind", ["signature", "by hand", "by hand with a validator"])
def test_a_tool_that_changes_its_arguments_changes_no_record(kind: str) -> None:
    """R79: what the tool is given is its own; the conversation keeps what the model asked."""

    def spoil(data: dict[str, Any], items: list[Any]) -> str:
        data["inner"]["x"] = "changed"
        items[0].append("changed")
        return "done"

    def by_hand(arguments: dict[str, Any], context: Any) -> str:
        return spoil(**arguments)

    built: Tool[..., Any] = {
        "signature": lambda: tool(spoil),
        "by hand": lambda: Tool("spoil", by_hand),
        "by hand with a validator": lambda: Tool("spoil", by_hand, validate=lambda arguments: arguments),
    }[kind]()
    asked = {"data": {"inner": {"x": 1}}, "items": [[1]]}

    assert run(built, asked) == "done"

    assert asked == {"data": {"inner": {"x": 1}}, "items": [[1]]}


# Texts.


def test_texts_come_from_the_docstring() -> None:
    def search(query: str, limit: int = 10, *, deep: bool = False, ctx: ToolContext) -> str:
        """Search the files.

        Looks everywhere.

        Args:
            query: what to look for;
                may go on: on the next line
            limit (int): how many at most
            deep: whether to look into archives

        Returns:
            limit: not an argument
        """
        return ""

    built = tool(search)

    assert built.definition.description == "Search the files.\n\nLooks everywhere."
    texts = {key: value.get("description") for key, value in built.definition.parameters["properties"].items()}
    assert texts == {
        "query": "what to look for; may go on: on the next line",
        "limit": "how many at most",
        "deep": "whether to look into archives",
    }


def test_a_given_name_and_description_win() -> None:
    built = tool(name="find", description="Find it.")(plain)

    assert built.name == built.definition.name == "find" and built.definition.description == "Find it."


def test_a_function_without_a_docstring_has_an_empty_description() -> None:
    assert tool(plain).definition.description == ""


# The context.


async def context_first(ctx: ToolContext, a: str) -> Any:
    return ctx, a


def context_last(a: str, ctx: ToolContext[int]) -> Any:
    return ctx, a


def context_keyword(a: str, *, where: ToolContext[Any]) -> Any:
    return where, a


def context_optional(a: str, ctx: ToolContext | None = None) -> Any:
    return ctx, a


def context_annotated(a: str, ctx: Annotated[ToolContext[Any], "mine"]) -> Any:
    return ctx, a


@pytest.mark.parametrize(
    "function", [context_first, context_last, context_keyword, context_optional, context_annotated]
)
async def test_a_context_parameter_is_filled_in_and_not_shown_to_the_model(function: Callable[..., Any]) -> None:
    built = tool(function)
    context: Any = object()

    result = run(built, {"a": "x"}, context)
    ctx, a = await result if built.is_async else result

    assert ctx is context and a == "x"
    assert list(built.definition.parameters["properties"]) == ["a"]
    with pytest.raises(ArgumentsError, match="unknown field"):
        built.check({"a": "x", "ctx": {}, "where": {}}, None)


def test_two_context_parameters_are_a_mistake() -> None:
    def both(a: ToolContext, b: ToolContext) -> None: ...

    with pytest.raises(InvalidDefinition, match="two parameters"):
        tool(both)


# Things that are called.


class Service:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def find(self, a: str) -> str:
        """Find it."""
        return self.prefix + a

    async def fetch(self, a: str) -> str:
        return self.prefix + a

    def __call__(self, a: str) -> str:
        """Call it."""
        return self.prefix + a

    @classmethod
    def of(cls, a: str) -> str:
        return cls.__name__ + a

    @staticmethod
    def just(a: str) -> str:
        return "just" + a


class AsyncService:
    async def __call__(self, a: str) -> str:
        return a


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (Service("p-").find, "find", "p-x"),
        (Service("p-"), "Service", "p-x"),
        (Service.of, "of", "Servicex"),
        (Service.just, "just", "justx"),
        (functools.partial(Service("p-").find), "find", "p-x"),
        (functools.partial(lambda b, a: b + a, "q-"), "_lambda_", "q-x"),
    ],
    ids=["method", "object", "class method", "static method", "partial of a method", "partial of a lambda"],
)
def test_whatever_can_be_called_can_be_a_tool(function: Callable[..., Any], name: str, expected: str) -> None:
    built = tool(name=name)(function) if name == "_lambda_" else tool(function)

    assert (built.name, list(built.definition.parameters["properties"])) == (name, ["a"])
    assert run(built, {"a": "x"}) == expected
    assert not built.is_async


@pytest.mark.parametrize(
    "function",
    [Service("p-").fetch, AsyncService(), functools.partial(Service("").fetch), functools.partial(AsyncService())],
    ids=["method", "object", "partial", "partial of an object"],
)
def test_async_ones_are_known(function: Callable[..., Any]) -> None:
    assert tool(function).is_async


def in_a_class_body() -> Any:
    class Shop:
        @tool
        async def buy(self, what: str) -> str:
            return what

    return Shop


def in_a_class_body_with_options() -> Any:
    class Shop:
        @tool(name="purchase", replay="safe")
        def buy(cls, what: str) -> str:
            return what

    return Shop


def unbound() -> Any:
    return tool(Service.find)


def partly() -> Any:
    return tool(functools.partial(Service.find, a="x"))


@pytest.mark.parametrize("define", [in_a_class_body, in_a_class_body_with_options, unbound, partly])
def test_a_method_without_its_object_is_refused_with_the_way_out(define: Callable[[], Any]) -> None:
    with pytest.raises(
        InvalidDefinition, match=r"tool '(buy|find)': it is a method of class '.*(Shop|Service)'"
    ) as caught:
        define()

    assert "make a tool of it for one object: tool(obj." in str(caught.value)


def test_a_first_argument_called_self_is_an_argument_outside_of_a_class() -> None:
    def note(self: str, cls: int) -> Any:
        return self, cls

    assert run(tool(note), {"self": "a", "cls": 1}) == ("a", 1)
    bound = tool(functools.partial(Service.find, self=Service("p-")))
    assert list(bound.definition.parameters["properties"]) == ["a"]


@pytest.mark.parametrize(
    "define",
    [
        lambda: tool(Service),
        lambda: tool(dict),
        lambda: tool(functools.partial(Service, "p-")),
        lambda: Tool("by_hand", Service, parameters={}),
    ],
    ids=["class", "builtin", "partial", "by hand"],
)
def test_a_class_is_no_tool(define: Callable[[], Any]) -> None:
    with pytest.raises(InvalidDefinition, match=r"a class cannot be a tool, .* make a tool of a function"):
        define()


@pytest.mark.parametrize("name", ["__x", "__", "__doc__", "__slots__", "__annotations__"])
def test_a_parameter_that_begins_with_two_underscores_is_refused(name: str) -> None:
    function = eval(f"lambda {name}, _fine=1: None")

    with pytest.raises(InvalidDefinition, match=f"parameter '{name}' must not begin with two underscores; give it"):
        tool(name="f")(function)


def test_a_bound_argument_of_a_partial_is_not_the_models() -> None:
    def pay(account: str, amount: int = 1) -> str:
        return f"{account} {amount}"

    built = tool(functools.partial(pay, account="mine"))

    assert list(built.definition.parameters["properties"]) == ["amount"]
    assert run(built, {"amount": 5}) == "mine 5"
    with pytest.raises(ArgumentsError, match="unknown field `account`"):
        built.check({"account": "theirs"}, None)


def test_calling_a_tool_calls_its_function() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8 and repr(double) == "Tool('double', replay='never')"


# Mistakes at definition.


def starred(*args: str) -> None: ...
def double_starred(**kwargs: str) -> None: ...
def positional(a: str, /) -> None: ...
def unserialisable(a: Callable[[], None]) -> None: ...
def unknown(a: NoSuchThing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def two_structs(a: Query | Options) -> None: ...


@pytest.mark.parametrize(
    "function", [starred, double_starred, positional, unserialisable, unknown, two_structs, print, 5]
)
def test_a_signature_without_a_schema_is_refused_at_definition(function: Any) -> None:
    with pytest.raises(InvalidDefinition):
        tool()(function)


@pytest.mark.parametrize(
    "options",
    [
        {"replay": "asks"},
        {"approval": "yes"},
        {"approval": 1},
        {"approval_expires_ms": 0},
        {"replay": "always"},
        {"replay": None},
        {"replay": ["safe"]},
        {"timeout_ms": 0},
        {"timeout_ms": -1},
        {"timeout_ms": 1.5},
        {"timeout_ms": True},
        {"max_result_bytes": 0},
        {"max_result_bytes": "1k"},
        {"parallel": "no"},
        {"parallel": None},
    ],
    ids=str,
)
def test_an_option_that_cannot_work_is_refused_at_definition(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition, match="tool 'plain'"):
        tool(**options)(plain)


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "é"])
def test_a_tools_name_follows_the_pattern(name: str) -> None:
    with pytest.raises(InvalidName):
        tool(name=name)(plain)
    with pytest.raises(InvalidName):
        Tool(name, plain)


def test_the_parameters_of_a_tool_made_by_hand_are_json_data() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    built = Tool("t", lambda arguments, context: arguments["a"], parameters=schema)

    schema["properties"] = {}

    assert built.definition.parameters["properties"] == {"a": {"type": "string"}}
    assert run(built, {"a": "x"}) == "x"
    with pytest.raises(InvalidDefinition, match="parameters"):
        Tool("t", plain, parameters={"default": {1, 2}})


# Validators.


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say so")


class Violent(BaseException):
    """One that raises ``how`` instead of saying what it is."""

    def __init__(self, how: BaseException) -> None:
        self.how = how

    def __str__(self) -> str:
        raise self.how


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too big"), "too big"),
        (ValueError(), "ValueError"),
        (RetryTool("say it again"), "say it again"),
        (msgspec.ValidationError("Expected x"), "Expected x"),
        (RecursionError("deep"), "deep"),
        (Rude(), "Rude"),
        (Violent(SystemExit(3)), "Violent"),
        (Violent(asyncio.CancelledError()), "Violent"),
        (Violent(GeneratorExit()), "Violent"),
        (SystemExit(3), "3"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_validator_raises_is_told_to_the_model(error: BaseException, text: str) -> None:
    def validate(arguments: dict[str, Any]) -> Any:
        raise error

    built = Tool("t", lambda arguments, context: "never", validate=validate)

    with pytest.raises(ArgumentsError, match=f"^The arguments of 't' are not valid: {text}$"):
        built.check({}, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Violent(KeyboardInterrupt())], ids=["raised", "printed"])
def test_only_a_persons_interrupt_goes_through_a_validator(error: BaseException) -> None:
    def validate(arguments: dict[str, Any]) -> Any:
        raise error

    with pytest.raises(KeyboardInterrupt):
        Tool("t", lambda arguments, context: "never", validate=validate).check({}, None)


def test_what_a_validator_gives_back_is_what_the_function_gets() -> None:
    built = Tool("t", lambda arguments, context: arguments, validate=lambda arguments: sorted(arguments))

    assert run(built, {"b": 1, "a": 2}) == ["a", "b"]


def test_a_types_own_check_is_a_validator_too() -> None:
    class Even(Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    def halve(even: Any) -> int:
        return int(even.n // 2)

    halve.__annotations__["even"] = Even
    built = tool(halve)

    assert run(built, {"even": {"n": 4}}) == 2
    with pytest.raises(ArgumentsError, match=r"odd - at `\$\.even`"):
        built.check({"even": {"n": 3}}, None)


def test_a_result_record_is_what_a_tool_may_return() -> None:
    assert ToolResult(content="x") == ToolResult(content="x", details=None, is_error=False, terminate=False)


def test_what_is_refused_by_its_name_or_type_is_told_the_way_out() -> None:
    with pytest.raises(InvalidName, match=r"'<lambda>': use 1 to .*; give it another one: tool\(name="):
        tool(lambda: 1)
    assert tool(name="one")(lambda: 1).name == "one"

    def take(n: Annotated[int | None, Meta(ge=1)] = None) -> str:
        return "ok"

    with pytest.raises(InvalidDefinition, match=r"say it of the type itself: Annotated\[int, Meta\(ge=1\)\] \| None"):
        tool(take)

    def well(n: Annotated[int, Meta(ge=1)] | None = None) -> str:
        return "ok"

    tool(well)
    with pytest.raises(InvalidDefinition, match=r"two tools are named 'well'; give one another name"):
        Agent(model=ScriptedModel(["a"]), tools=[tool(well), tool(well)])
