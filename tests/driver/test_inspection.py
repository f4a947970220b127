"""Claim: what an open operation is doing can be read after a reopen, without driving it and without owning it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlane import Agent, Prompt, open_session, tool
from agentlane.testing import ScriptedModel, call


@pytest.mark.parametrize("name", ["session.jsonl", "session.db"])
async def test_calls_are_named_in_a_read_only_session_that_nothing_drives(tmp_path: Path, name: str) -> None:
    started = asyncio.Event()

    @tool
    async def wait_for_ever(path: str) -> str:
        """Never end."""
        started.set()
        await asyncio.Event().wait()
        return path

    @tool(replay="safe", parallel=False)
    async def later() -> str:
        """Run behind it."""
        return "later"

    # given: a run that was closed while a call was under way and another one planned
    agent = Agent(
        model=ScriptedModel([[call("wait_for_ever", path="a"), call("later")], "done"]), tools=[wait_for_ever, later]
    )
    async with open_session(tmp_path / name, durability="process") as session:
        lane = await session.lane("main", agent)
        admitted = await lane.accept(Prompt("go"))
        drive = asyncio.ensure_future(lane.drive(admitted.operation_id))
        await started.wait()
    with pytest.raises(Exception, match="closed"):
        await drive

    # when: the session is opened for reading
    async with open_session(tmp_path / name, read_only=True) as session:
        operations = session.open_operations()

    # then: the store says which call is where
    assert [(each.tool, each.status, each.policy) for each in operations[0].calls] == [
        ("wait_for_ever", "effect_pending", "never"),
        ("later", "planned", None),
    ]
