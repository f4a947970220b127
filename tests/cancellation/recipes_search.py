"""Recipes of searches: of a session, of a store, of one session's storage, and by reading alone."""

from __future__ import annotations

from agentlane.data.search import checked_search
from agentlane.storage import Search, search_by_reading
from tests.cancellation.recipes import Call, opened, recipe
from tests.cancellation.world import World


def hello() -> Search:
    return checked_search("hello", types=None, since=None, until=None, limit=5)


@recipe("Session.search", case="nothing was searched yet")
async def search(world: World) -> Call:
    lane = await world.lane()
    await lane.run("hello", operation_id="op")
    return lambda: world.session.search("hello", branch="main")


@recipe("Session.search", case="a search went before")
async def search_again(world: World) -> Call:
    lane = await world.lane()
    await world.session.search("hello")
    await lane.run("hello", operation_id="op")
    return lambda: world.session.search("hello")


@recipe("Store.search")
async def search_store(world: World) -> Call:
    return lambda: world.store.search("hello")


@recipe("SessionStorage.search")
async def search_storage(world: World) -> Call:
    storage = await opened(world)
    return lambda: storage.search(hello())


@recipe("search_by_reading")
async def read_all(world: World) -> Call:
    storage = await opened(world)
    return lambda: search_by_reading(storage, hello())
