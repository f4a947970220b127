"""Claim: whatever is public and can be awaited has a recipe, so that its cancellation is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentlane import Session, SessionOpener, open_session
from agentlane.storage import Pending
from tests.cancellation.recipes import all_recipes
from tests.cancellation.surface import is_async, surface

ELSEWHERE = {"Model.stream": "the application's; test_inside_a_pass says when it is closed"}


def test_each_public_awaitable_has_a_recipe() -> None:
    covered = {name for recipe in all_recipes() for name in recipe.covers}

    assert sorted(set(surface()) - covered - set(ELSEWHERE)) == [], "public, asynchronous, and never cancelled here"
    assert sorted((covered | set(ELSEWHERE)) - set(surface())) == [], "no longer public"


def test_each_recipe_has_a_name_of_its_own() -> None:
    names = [recipe.name for recipe in all_recipes()]

    assert len(names) == len(set(names))


def test_the_surface_is_found() -> None:
    """Of each way to be asynchronous one: written so, annotated so, inherited from what is not public, a protocol."""
    assert {
        "Session.close",
        "Session.set_name",
        "Branch.entries",
        "drive",
        "open_session",
        "SessionOpener.__aexit__",
        "Pending.__await__",
        "SessionStorage.submit",
        "Store.create",
        "SqliteStore.create_first",
        "Model.stream",
    } <= set(surface())
    assert not {"AgentLane.entries", "MemoryStore.create", "Session.lanes"} & set(surface())


@pytest.mark.parametrize("given", [Session, SessionOpener, Pending, AsyncIterator[int]])
def test_what_gives_something_to_wait_for_is_asynchronous(given: type[object]) -> None:
    def function() -> object: ...

    function.__annotations__["return"] = given

    assert is_async(function)
    assert is_async(open_session) and not is_async(is_async)
