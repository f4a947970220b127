"""Recipes of what moves lanes and tells of their past."""

from __future__ import annotations

from agentlane import Compact, Navigate
from agentlane.driver.importing import COMMIT_BYTES_MAX
from tests.cancellation.recipes import Call, recipe
from tests.cancellation.world import World


@recipe("AgentLane.navigate", case="its path has not been read")
async def navigate(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.navigate(None, label="left")


@recipe("AgentLane.navigate", case="its path is known")
async def navigate_once_loaded(world: World) -> Call:
    lane = await world.lane()
    await lane.run("hello", operation_id="op")
    return lambda: lane.navigate(world.session.branch("side").tip())


@recipe("AgentLane.navigate", case="with a summary")
async def navigate_with_a_summary(world: World) -> Call:
    lane = await world.lane()
    first = (await lane.entries(newest_first=False))[0]
    return lambda: lane.navigate(first.id, label="left", summarize=True)


@recipe("AgentLane.compact")
async def compact(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.compact(keep_tokens=0, operation_id="op")


@recipe("AgentLane.accept", case="a compaction")
async def accept_a_compaction(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.accept(Compact(keep_tokens=0), operation_id="op")


@recipe("AgentLane.accept", case="a navigation")
async def accept_a_navigation(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.accept(Navigate(None, "left"), operation_id="op")


@recipe("AgentLane.drive", case="a summary")
async def drive_a_summary(world: World) -> Call:
    lane = await world.lane()
    await lane.accept(Navigate(None, summarize=True), operation_id="op")
    return lane.drive


@recipe("AgentLane.rewind")
async def rewind(world: World) -> Call:
    lane = await world.lane()
    first = (await lane.entries(newest_first=False))[0]
    return lambda: lane.rewind(first.id)


@recipe("Session.operations")
async def operations(world: World) -> Call:
    return world.session.operations


@recipe("Session.delete_branch")
async def delete_branch(world: World) -> Call:
    return lambda: world.session.delete_branch("side")


@recipe("Branch.export_markdown")
async def export_markdown(world: World) -> Call:
    return lambda: world.session.branch("main").export_markdown()


@recipe("Session.import_messages", case="to a new branch")
async def import_messages(world: World) -> Call:
    said = [{"role": "user", "content": "x" * COMMIT_BYTES_MAX}, {"role": "assistant", "content": "done"}]
    return lambda: world.session.import_messages("imported", said, format="openai")


@recipe("Session.import_messages", case="behind what is there")
async def import_behind(world: World) -> Call:
    return lambda: world.session.import_messages("main", [{"role": "user", "content": "more"}], format="openai")


@recipe("Session.rename_branch")
async def rename_branch(world: World) -> Call:
    return lambda: world.session.rename_branch("side", "another")


@recipe("Session.rename_branch", case="a lane")
async def rename_lane(world: World) -> Call:
    await world.session.lane("side", world.agent)
    return lambda: world.session.rename_branch("side", "another")
