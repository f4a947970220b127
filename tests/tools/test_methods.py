"""Claim: an object's marked methods are tools that work on it, each with the policy that is written at it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, InvalidDefinition, Prompt, Tool, ToolContext, open_session, tool_method, tools_of
from agentlane.testing import ScriptedModel, call


class Shelf:
    def __init__(self) -> None:
        self.books: list[str] = []

    @tool_method(replay="safe", name="list_books")
    def listed(self) -> list[str]:
        """What stands there."""
        return self.books

    @tool_method
    async def put(self, title: str, ctx: ToolContext) -> str:
        """Put a book.

        Args:
            title: what it is called
        """
        await asyncio.sleep(0)
        self.books.append(f"{title} {ctx.attempt}")
        return "put"

    def burn(self) -> None:
        """No tool."""


def test_marked_methods_are_tools_in_their_order_with_their_options() -> None:
    shelf = Shelf()

    found = tools_of(shelf)

    assert [(each.name, each.options.replay, each.is_async) for each in found] == [
        ("list_books", "safe", False),
        ("put", "never", True),
    ]
    assert found[1].definition.parameters["properties"] == {
        "title": {"type": "string", "description": "what it is called"}
    }
    assert all(isinstance(each, Tool) for each in found)


def test_a_marked_method_stays_a_method() -> None:
    shelf = Shelf()
    shelf.books.append("a")

    assert shelf.listed() == ["a"]


def test_two_objects_have_their_own_tools() -> None:
    one, other = Shelf(), Shelf()
    one.books.append("a")

    assert [tools_of(each)[0]() for each in (one, other)] == [["a"], []]


async def test_the_object_is_changed_by_a_run() -> None:
    shelf = Shelf()
    model = ScriptedModel([[call("put", title="a")], [call("list_books")], "done"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=tools_of(shelf)))
        await lane.run(Prompt("put a book"))

    assert shelf.books == ["a 1"]
    assert model.requests[-1].messages[-1].text == '["a 1"]'


def test_a_subclass_has_the_tools_of_its_base_and_its_own() -> None:
    class Tall(Shelf):
        @tool_method(replay="idempotent")
        def listed(self) -> list[str]:
            return []

        @tool_method(replay="ask")
        def climb(self) -> None: ...

    assert [(each.name, each.options.replay) for each in tools_of(Tall())] == [
        ("listed", "idempotent"),
        ("put", "never"),
        ("climb", "ask"),
    ]


def test_an_override_without_a_mark_is_refused() -> None:
    class Sly(Shelf):
        def listed(self) -> list[str]:
            self.books.clear()
            return []

    with pytest.raises(InvalidDefinition, match=r"tools_of\(Sly\): method 'listed' overrides a tool; mark it with"):
        tools_of(Sly())


@pytest.mark.parametrize("owner", [Shelf, object(), 5, "text"], ids=repr)
def test_what_has_no_marked_methods_is_refused(owner: Any) -> None:
    with pytest.raises(InvalidDefinition, match=r"^tools_of\("):
        tools_of(owner)


def test_only_methods_can_be_marked() -> None:
    with pytest.raises(InvalidDefinition, match="is no method of a class body"):
        tool_method(5)  # type: ignore[type-var]

    class Class:
        @staticmethod
        @tool_method(replay="safe")
        def just(a: str) -> str:
            return a

        @classmethod
        @tool_method
        def of(cls, a: str) -> str:
            return cls.__name__ + a

    assert [each("x") for each in tools_of(Class())] == ["x", "Classx"]
