"""How each asynchronous call of the public surface is made, in the states that matter to it: one recipe for each.

A recipe prepares the world it is given and returns what makes the coroutine. A call that changes something does it
alone: afterwards the world holds all of it or nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

from agentlane.storage import SessionStorage
from tests.cancellation.world import BACKENDS, Backend, World

Call: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
Prepare: TypeAlias = Callable[[World], Awaitable[Call]]


class Recipe(NamedTuple):
    """``covers``: names of the surface. ``case``: the state it is called in, when there are several."""

    covers: tuple[str, ...]
    case: str
    prepare: Prepare
    backends: tuple[Backend, ...] = tuple(BACKENDS)
    ends_store: bool = False
    """The call closes the store, and with it all that a memory store held."""

    @property
    def name(self) -> str:
        return f"{self.covers[0]}, {self.case}" if self.case else self.covers[0]


RECIPES: list[Recipe] = []


def recipe(*covers: str, case: str = "", **options: Any) -> Callable[[Prepare], Prepare]:
    """Make a recipe of a function that prepares."""

    def take(prepare: Prepare) -> Prepare:
        RECIPES.append(Recipe(covers, case, prepare, **options))
        return prepare

    return take


def all_recipes() -> list[Recipe]:
    """Those of every module that has some."""
    for module in ("session", "lane", "storage", "history", "search", "verify", "watch"):
        importlib.import_module(f"tests.cancellation.recipes_{module}")
    return RECIPES


async def opened(world: World, session_id: str = "t") -> SessionStorage:
    """The storage of a session that nobody else has open; closed with the world."""
    storage = await world.store.open(session_id)
    world.also_open.append(storage)
    return storage
