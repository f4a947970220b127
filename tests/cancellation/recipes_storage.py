"""Recipes of what can be waited for below a session: stores, their sessions' storages, and clocks."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence

from agentlane import SystemClock
from agentlane.storage import (
    Address,
    EntryRow,
    Exchange,
    Forking,
    JsonlStore,
    Repairing,
    Row,
    SessionStorage,
    SetValue,
    SqliteStore,
    Verifying,
)
from tests.cancellation.recipes import Call, opened, recipe
from tests.cancellation.world import World

ADDRESS = Address("app.test", "value")


@recipe("Store.create")
async def create(world: World) -> Call:
    return lambda: world.store.create("u")


@recipe("SqliteStore.create_first", "JsonlStore.create_first", backends=("jsonl", "sqlite"))
async def create_first(world: World) -> Call:
    if world.backend == "jsonl":
        return JsonlStore(world.folder / "other", clock=world.clock).create_first
    return SqliteStore(world.folder / "other.db", clock=world.clock).create_first


@recipe("Store.open")
async def open_storage(world: World) -> Call:
    async def call() -> None:
        await opened(world)

    return call


@recipe("Store.load")
async def load(world: World) -> Call:
    rows = [EntryRow(f"e{each}", f"e{each - 1}" if each else None, each + 1, 10, "user", b"1") for each in range(40)]

    async def pages() -> AsyncIterator[Sequence[Row]]:
        for start in range(0, 40, 10):
            yield rows[start : start + 10]

    return lambda: world.store.load(pages(), last_seq=40, session_id="u")


@recipe("Store.list")
async def list_sessions(world: World) -> Call:
    return world.store.list


@recipe("Store.delete")
async def delete(world: World) -> Call:
    return lambda: world.store.delete("t")


@recipe("Store.open_operations")
async def open_operations(world: World) -> Call:
    await world.accept("hello")
    return world.store.open_operations


@recipe("Exchange.export")
async def export(world: World) -> Call:
    store = world.store
    assert isinstance(store, Exchange)
    return lambda: store.export("s", io.BytesIO())


@recipe("Forking.fork")
async def fork(world: World) -> Call:
    store = world.store
    assert isinstance(store, Forking)
    return lambda: store.fork("s", session_id="u")


@recipe("Exchange.import_session")
async def import_session(world: World) -> Call:
    store, file = world.store, io.BytesIO()
    assert isinstance(store, Exchange)
    await world.session.export(file)

    async def call() -> None:
        file.seek(0)
        await store.import_session(file, session_id="u")

    return call


@recipe("Verifying.salvage", "JsonlStore.salvage")
async def salvage(world: World) -> Call:
    store = world.store
    assert isinstance(store, Verifying)

    async def call() -> None:
        found = await store.salvage("s")
        await found.close()

    return call


@recipe("Verifying.verify")
async def verify(world: World) -> Call:
    store = world.store
    assert isinstance(store, Verifying)
    return lambda: store.verify("s")


@recipe("Repairing.repair")
async def repair(world: World) -> Call:
    store = world.store
    assert isinstance(store, Repairing)
    return lambda: store.repair("s", session_id="u")


@recipe("SqliteStore.optimize", backends=("sqlite",))
async def optimize(world: World) -> Call:
    await world.session.close()
    return SqliteStore(world.folder / "sessions.db", clock=world.clock).optimize


@recipe("Store.close", ends_store=True)
async def close_store(world: World) -> Call:
    await opened(world)
    return world.store.close


# One session's storage.


@recipe("SessionStorage.submit", "Pending.__await__")
async def submit(world: World) -> Call:
    storage = await opened(world)

    async def call() -> None:
        await storage.submit([SetValue(ADDRESS, b"2")])

    return call


async def written(world: World) -> SessionStorage:
    """The storage of the world's session, opened without it."""
    await world.session.close()
    return await opened(world, "s")


@recipe("SessionStorage.entries")
async def entries(world: World) -> Call:
    tip = world.session.branch("main").tip() or ""
    storage = await written(world)
    return lambda: storage.entries([tip, "unknown"])


@recipe("SessionStorage.path")
async def path(world: World) -> Call:
    tip = world.session.branch("main").tip() or ""
    storage = await written(world)
    return lambda: storage.path(tip, newest_first=False)


@recipe("SessionStorage.scan")
async def scan(world: World) -> Call:
    storage = await written(world)
    return storage.scan


@recipe("SessionStorage.usage")
async def usage(world: World) -> Call:
    storage = await written(world)
    return storage.usage


@recipe("SessionStorage.value")
async def value(world: World) -> Call:
    storage = await written(world)
    return lambda: storage.value(ADDRESS)


@recipe("SessionStorage.values")
async def values(world: World) -> Call:
    storage = await written(world)
    return lambda: storage.values("app.test")


@recipe("SessionStorage.elements")
async def elements(world: World) -> Call:
    storage = await written(world)
    return lambda: storage.elements(Address("app.test", "list"))


@recipe("SessionStorage.lists")
async def lists(world: World) -> Call:
    storage = await written(world)
    return lambda: storage.lists("app.test")


@recipe("SessionStorage.close")
async def close(world: World) -> Call:
    storage = await opened(world)

    async def call() -> None:
        storage.submit([SetValue(ADDRESS, b"2")])
        await storage.close()

    return call


@recipe("SessionStorage.snapshot", "Snapshot.pages", "Snapshot.close")
async def snapshot(world: World) -> Call:
    storage = await written(world)

    async def call() -> None:
        taken = await storage.snapshot()
        try:
            async for _ in taken.pages():
                pass
        finally:
            await taken.close()

    return call


@recipe("Snapshot.branch_pages")
async def branch_pages(world: World) -> Call:
    storage = await written(world)
    tip = (await storage.scan())[-1].id

    async def call() -> None:
        taken = await storage.snapshot()
        try:
            async for _ in taken.branch_pages(tip):
                pass
        finally:
            await taken.close()

    return call


@recipe("SessionStorage.compact")
async def compact(world: World) -> Call:
    storage = await written(world)
    return storage.compact


# Clocks.


@recipe("Clock.sleep_until")
async def sleep_on_a_clock(world: World) -> Call:
    world.move_clock_on()
    return lambda: world.clock.sleep_until(world.clock.now_ms() + 10)


@recipe("SystemClock.sleep_until", backends=("memory",))
async def sleep(world: World) -> Call:
    clock = SystemClock()
    return lambda: clock.sleep_until(clock.now_ms() + 2)
