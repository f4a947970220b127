"""Recipes of looks at what is stored."""

from __future__ import annotations

from agentlane.storage import SqliteStore
from tests.cancellation.recipes import Call, recipe
from tests.cancellation.world import World


@recipe("Session.verify")
async def verify(world: World) -> Call:
    await world.accept("hello")
    return world.session.verify


@recipe("Store.verify")
async def verify_in_store(world: World) -> Call:
    return lambda: world.store.verify("s")


@recipe("SqliteStore.salvage", "Salvage.close", "Salvage.pages", backends=("sqlite",))
async def salvage(world: World) -> Call:
    store = world.store
    assert isinstance(store, SqliteStore)

    async def call() -> None:
        salvage = await store.salvage("s")
        try:
            async for _ in salvage.pages():
                pass
        except GeneratorExit:
            salvage.release()
            raise
        finally:
            await salvage.close()

    return call
