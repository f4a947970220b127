"""Claim: parameters that are pydantic's arrive as it makes them, and what does not fit is told by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from typing_extensions import TypeAliasType

from agentlane import Agent, InvalidDefinition, Prompt, open_session
from agentlane.data.messages import ToolCallPart
from agentlane.driver.tool_results import seal_value
from agentlane.testing import ScriptedModel, call
from agentlane.tool import ArgumentsError, tool

pydantic = pytest.importorskip("pydantic")
from pydantic import BaseModel, Field, HttpUrl, field_validator  # noqa: E402


class Address(BaseModel):
    """Where somebody lives."""

    street: str = Field(description="with the number", examples=["Main 1"])
    title: str | None = None


class Person(BaseModel):
    name: str = Field(min_length=1)
    age: int = Field(ge=0, default=1)
    homes: list[Address] = []
    tags: set[str] = {"b", "a", "c"}
    friend: Person | None = None

    @field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        if value == "nobody":
            raise ValueError("that is no name")
        return value.title()


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    loud: bool


@dataclass
class Team:
    lead: Person
    size: tuple[int, str] = (1, "a")


def built(hint: Any, default: Any = ...) -> Any:
    def take(x):  # type: ignore[no-untyped-def]
        return x

    take.__annotations__["x"] = hint
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(take)


def value(made: Any, arguments: dict[str, Any]) -> Any:
    return made.call(made.check(arguments, None), None)


def test_a_model_arrives_as_an_instance() -> None:
    made = built(Person)

    got = value(made, {"x": {"name": "ann", "homes": [{"street": "Main 1"}], "friend": {"name": "bob"}}})

    assert type(got) is Person and got.name == "Ann" and got.age == 1
    assert type(got.homes[0]) is Address and type(got.friend) is Person


def test_the_schema_is_in_the_words_of_all_others() -> None:
    parameters = built(list[Person]).definition.parameters

    assert parameters["properties"]["x"] == {"type": "array", "items": {"$ref": "#/$defs/Person"}}
    assert parameters["$defs"]["Address"] == {
        "type": "object",
        "description": "Where somebody lives.",
        "properties": {
            "street": {"type": "string", "description": "with the number"},
            "title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["street"],
        "additionalProperties": False,
    }
    person = parameters["$defs"]["Person"]["properties"]
    assert person["friend"] == {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}], "default": None}
    assert person["tags"] == {"type": "array", "items": {"type": "string"}, "default": ["a", "b", "c"]}
    assert person["age"] == {"type": "integer", "minimum": 0, "default": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"x": {"name": "ann", "age": -1}}, "Input should be greater than or equal to 0 - at `$.x.age`, got -1"),
        ({"x": {"age": "old", "name": "a"}}, "unable to parse string as an integer - at `$.x.age`, got 'old'"),
        ({"x": {}}, "Field required - at `$.x.name`"),
        ({"x": {"name": "nobody"}}, "Value error, that is no name - at `$.x.name`, got 'nobody'"),
        ({"x": {"name": "a", "homes": [{"street": 5}]}}, "valid string - at `$.x.homes[0].street`, got 5"),
        ({"x": {"name": "", "age": -1}}, "1 character - at `$.x.name`, got ''; Input should be greater"),
        ({}, "missing required field `x`"),
        ({"x": {"name": "a"}, "y": 1}, "unknown field `y`"),
    ],
)
def test_each_field_that_does_not_fit_is_named_with_what_was_wrong(arguments: Any, told: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        built(Person).check(arguments, None)

    text = str(caught.value)
    assert text.startswith("The arguments of 'take' are not valid: ") and told in text
    assert "http" not in text and "\n" not in text


def test_many_problems_and_large_inputs_are_told_in_short() -> None:
    with pytest.raises(ArgumentsError) as caught:
        built(list[Address]).check({"x": [{"street": ["y" * 10_000]}] * 50}, None)

    assert len(str(caught.value)) < 2_500 and "and 40 more" in str(caught.value)


def test_choices_and_annotations_are_pydantics() -> None:
    pet = Annotated[Cat | Dog, Field(discriminator="kind")]
    made = built(pet)

    assert made.definition.parameters["properties"]["x"] == {
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]
    }
    assert made.definition.parameters["$defs"]["Cat"]["properties"] == {"kind": {"type": "string", "enum": ["cat"]}}
    assert value(made, {"x": {"kind": "dog", "loud": True}}) == Dog(kind="dog", loud=True)
    assert built(Cat | Dog | None, None).definition.parameters["required"] == []
    limited = built(Annotated[int, Field(ge=1, description="how many")])
    assert limited.definition.parameters["properties"]["x"] == {
        "type": "integer",
        "minimum": 1,
        "description": "how many",
    }
    with pytest.raises(ArgumentsError, match=r"at `\$\.x`, got 0"):
        limited.check({"x": 0}, None)
    assert built(HttpUrl).definition.parameters["properties"]["x"]["type"] == "string"


def test_an_alias_of_a_model_is_pydantics() -> None:
    alias = TypeAliasType("People", list[Person])  # type: ignore[misc]

    assert [type(each) for each in value(built(alias), {"x": [{"name": "ann"}]})] == [Person]


def test_field_as_a_default_says_what_the_default_is() -> None:
    made = built(int, Field(3, ge=1))
    needed = built(int, Field(ge=1))

    assert made.definition.parameters["properties"]["x"]["default"] == 3
    assert value(made, {}) == 3 and value(made, {"x": 5}) == 5
    assert needed.definition.parameters["required"] == ["x"]
    with pytest.raises(ArgumentsError, match=r"at `\$\.x`, got 0"):
        needed.check({"x": 0}, None)


def test_a_default_model_is_new_for_each_call() -> None:
    def add(person: Person = Person(name="ann")) -> int:  # noqa: B008
        person.homes.append(Address(street="x"))
        return len(person.homes)

    made = tool(add)

    assert value(made, {}) == value(made, {}) == 1
    assert made.definition.parameters["properties"]["person"]["default"] == {
        "name": "Ann",
        "age": 1,
        "homes": [],
        "tags": ["a", "b", "c"],
        "friend": None,
    }


def test_a_record_that_holds_a_model_is_pydantics() -> None:
    made = built(Team)

    assert value(made, {"x": {"lead": {"name": "ann"}, "size": [2, "b"]}}) == Team(Person(name="ann"), (2, "b"))
    size = made.definition.parameters["properties"]["x"]["properties"]["size"]
    assert size["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]} and size["maxItems"] == 2


def test_a_model_of_two_parameters_is_defined_once() -> None:
    def walk(first: list[Dog], second: Dog | None = None, third: dict[str, Dog] = {}) -> None: ...  # noqa: B006

    schema = tool(walk).definition.parameters

    assert list(schema["$defs"]) == ["Dog"]
    assert str(schema["properties"]).count("#/$defs/Dog'") == 3


def test_definitions_of_one_name_stay_apart() -> None:
    class Mine(msgspec.Struct):
        """Ours."""

    Mine.__name__ = "Address"

    def take(a, b, c):  # type: ignore[no-untyped-def]
        return a, b, c

    take.__annotations__.update(a=Mine, b=Address, c=list[Person])
    parameters = tool(take).definition.parameters

    assert parameters["$defs"]["Address"]["description"] == "Ours."
    assert list(parameters["$defs"]["Address_2"]["properties"]) == ["street", "title"]
    homes = parameters["$defs"]["Person"]["properties"]["homes"]
    assert homes == {"type": "array", "items": {"$ref": "#/$defs/Address_2"}, "default": []}
    got = value(tool(take), {"a": {}, "b": {"street": "x"}, "c": [{"name": "ann"}]})
    assert [type(each) for each in got] == [Mine, Address, list]


class Opaque(msgspec.Struct):
    person: Person


def test_what_pydantic_cannot_read_either_is_refused_by_its_parameter() -> None:
    with pytest.raises(InvalidDefinition, match=r"parameter 'x': pydantic cannot read it: .* no msgspec Structs with"):
        built(Opaque)


async def test_the_model_is_told_and_mends_its_call() -> None:
    @tool(replay="safe")
    def greet(person: Person) -> str:
        return f"hello {person.name}, {person.age}"

    model = ScriptedModel(
        [[call("greet", person={"name": "ann", "age": -1})], [call("greet", person={"name": "ann"})], "done"]
    )
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[greet]))
        await lane.run(Prompt("greet her"))
        texts = [each.text for each in model.requests[-1].messages if each.__class__.__name__ == "ToolResultMessage"]

    assert "at `$.person.age`, got -1" in texts[0] and texts[1] == "hello Ann, 1"


@dataclass
class Kennel:
    dogs: list[Dog]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Dog(kind="dog", loud=True), '{"kind":"dog","loud":true}'),
        ([Dog(kind="dog", loud=True)], '[{"kind":"dog","loud":true}]'),
        ({"of": Kennel([Dog(kind="dog", loud=True)])}, '{"of":{"dogs":[{"kind":"dog","loud":true}]}}'),
    ],
)
def test_a_model_is_a_result_wherever_it_is(value: Any, text: str) -> None:
    made = seal_value(ToolCallPart(id="c", name="t", arguments={}), value, 1_000)

    assert made.message.text == text and not made.message.is_error


class Parcel(BaseModel):
    zip_code: str = Field(alias="zipCode", default="1")
    tags: set[str] = Field(alias="theTags", default={"b", "a"})


class TwoNames(BaseModel):
    code: str = Field(validation_alias="in", serialization_alias="out", default="1")


@pytest.mark.parametrize("hint", [Parcel, list[Parcel], Team])
def test_a_default_that_is_shown_can_be_said_and_means_itself(hint: Any) -> None:
    parcel = Parcel.model_validate({"zipCode": "77777"})
    default = {Parcel: parcel, Team: Team(Person(name="a", homes=[Address(street="s")]))}.get(hint, [parcel])
    tool_ = built(hint, default)
    shown = tool_.definition.parameters["properties"]["x"]["default"]

    assert tool_.call(tool_.check({"x": shown}, None), None) == default
    assert hint is not Parcel or shown == {"zipCode": "77777", "theTags": ["a", "b"]}


def test_a_default_that_could_not_be_said_is_not_shown() -> None:
    tool_ = built(TwoNames, TwoNames.model_validate({"in": "7"}))

    assert "default" not in tool_.definition.parameters["properties"]["x"]
    assert tool_.call(tool_.check({}, None), None).code == "7"
