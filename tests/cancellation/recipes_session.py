"""Recipes of ``Session`` and of opening one."""

from __future__ import annotations

import asyncio

from agentlane import Usage, open_session
from agentlane.storage import MemoryStore
from agentlane.testing import FailingStore
from tests.cancellation.recipes import Call, recipe
from tests.cancellation.world import LIST, VALUE, World


@recipe("Session.create_branch")
async def create_branch(world: World) -> Call:
    tip = world.session.branch("side").tip()
    return lambda: world.session.create_branch("new", tip)


@recipe("Session.lane", case="a new one")
async def new_lane(world: World) -> Call:
    tip = world.session.branch("side").tip()
    return lambda: world.session.lane("new", world.agent, at=tip)


@recipe("Session.lane", case="on a branch")
async def lane_on_a_branch(world: World) -> Call:
    return lambda: world.session.lane("side", world.agent)


@recipe("Session.lane", case="as it is")
async def known_lane(world: World) -> Call:
    return lambda: world.session.lane("main", world.agent)


@recipe("Session.load")
async def load(world: World) -> Call:
    await world.accept("hello")
    return world.session.load


@recipe("Session.compact_storage")
async def compact_storage(world: World) -> Call:
    return world.session.compact_storage


@recipe("Session.drop_results")
async def drop_results(world: World) -> Call:
    await (await world.lane()).run("hello")
    return lambda: world.session.drop_results(before=1 << 60)


@recipe("Session.set_name")
async def set_name(world: World) -> Call:
    return lambda: world.session.set_name("another")


@recipe("Session.label")
async def label(world: World) -> Call:
    tip = world.session.branch("main").tip() or ""
    return lambda: world.session.label(tip)


@recipe("Session.set_label")
async def set_label(world: World) -> Call:
    tip = world.session.branch("side").tip() or ""
    return lambda: world.session.set_label(tip, "another")


@recipe("Session.entry")
async def entry(world: World) -> Call:
    tip = world.session.branch("main").tip() or ""
    return lambda: world.session.entry(tip)


@recipe("Session.entries")
async def entries(world: World) -> Call:
    return world.session.entries


@recipe("Session.value")
async def value(world: World) -> Call:
    return lambda: world.session.value(VALUE)


@recipe("Session.set_value")
async def set_value(world: World) -> Call:
    return lambda: world.session.set_value(VALUE, 2)


@recipe("Session.delete_value")
async def delete_value(world: World) -> Call:
    return lambda: world.session.delete_value(VALUE)


@recipe("Session.values")
async def values(world: World) -> Call:
    return lambda: world.session.values("app.test", int)


@recipe("Session.append")
async def append(world: World) -> Call:
    return lambda: world.session.append(LIST, 2)


@recipe("Session.elements")
async def elements(world: World) -> Call:
    return lambda: world.session.elements(LIST)


@recipe("Session.delete_list")
async def delete_list(world: World) -> Call:
    return lambda: world.session.delete_list(LIST)


@recipe("Session.usage")
async def usage(world: World) -> Call:
    return world.session.usage


@recipe("Session.record_usage")
async def record_usage(world: World) -> Call:
    tip = world.session.branch("main").tip()
    return lambda: world.session.record_usage(Usage(input_tokens=2), operation_id="op-first", entry_id=tip, note="late")


@recipe("Session.fork")
async def fork(world: World) -> Call:
    return lambda: world.session.fork(session_id="u")


@recipe("Session.backup")
async def backup(world: World) -> Call:
    return lambda: world.session.backup(world.store, session_id="u")


@recipe("Session.export")
async def export(world: World) -> Call:
    """There, and whole, or not there."""
    path = world.folder / "exported"

    async def call() -> None:
        try:
            await world.session.export(path)
        finally:
            if path.exists():
                await MemoryStore().import_session(path)
                path.unlink()

    return call


@recipe("Session.reopen")
async def reopen(world: World) -> Call:
    await world.session.close()
    world.store = FailingStore(world.store, nth=None)
    world.handle = await world.open()
    lane = await world.lane()
    await lane.messages()
    await world.fail()
    return world.session.reopen


# The ends of a session.


@recipe("Session.close", case="at rest")
async def close(world: World) -> Call:
    return world.session.close


@recipe("Session.close", case="while a model answers")
async def close_in_a_request(world: World) -> Call:
    await world.drive("hang")
    await world.talker.hanging.wait()
    return world.session.close


@recipe("Session.close", case="while a tool runs")
async def close_in_a_call(world: World) -> Call:
    await world.in_a_call()
    return world.session.close


@recipe("Session.close", case="with commits on their way")
async def close_with_commits(world: World) -> Call:
    world.hold_commits()
    for number in range(3):
        world.beside(world.session.append(LIST, number))
    await asyncio.sleep(0)  # each has its commit on its way
    return world.session.close


@recipe("Session.__aenter__")
async def enter_a_session(world: World) -> Call:
    return world.session.__aenter__


@recipe("Session.__aexit__")
async def leave_a_session(world: World) -> Call:
    await world.drive("hang")
    await world.talker.hanging.wait()
    return lambda: world.session.__aexit__(None, None, None)


# The beginning of one.


@recipe("open_session", "SessionOpener.__await__", case="by a store")
async def open_by_store(world: World) -> Call:
    await world.session.close()
    return lambda: _kept(world)


async def _kept(world: World) -> None:
    world.handle = await world.open()


@recipe("open_session", case="by a path, there already", backends=("jsonl", "sqlite"))
async def open_by_path(world: World) -> Call:
    await world.session.close()
    await world.store.delete("t")
    path = world.folder / ("sessions" if world.backend == "jsonl" else "sessions.db")

    async def call() -> None:
        session = await open_session(path, clock=world.clock)
        world.also_open.append(session)

    return call


@recipe("open_session", case="by a path, made", backends=("jsonl", "sqlite"))
async def open_a_new_place(world: World) -> Call:
    path = world.folder / ("other" if world.backend == "jsonl" else "other.db")

    async def call() -> None:
        world.also_open.append(await open_session(path))

    return call


@recipe("SessionOpener.__aenter__")
async def enter_an_opener(world: World) -> Call:
    await world.session.close()
    opener = world.opener()

    async def call() -> None:
        world.handle = await opener.__aenter__()

    return call


@recipe("SessionOpener.__aexit__")
async def leave_an_opener(world: World) -> Call:
    await world.session.close()
    opener = world.opener()
    world.handle = await opener.__aenter__()
    await world.drive("hang")
    await world.talker.hanging.wait()
    return lambda: opener.__aexit__(None, None, None)
