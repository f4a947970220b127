"""Claim: in a run, the tools of a workspace keep what their policies say through kills, aborts and closes."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from agentlane import Agent, AgentLane, Prompt, ToolResultMessage, open_session
from agentlane.testing import Depth, History, Life, Scenario, ScriptedModel, call, crash_matrix
from agentlane.tools.workspace import Workspace, WorkspaceLimits
from tests.workspace.test_commands import family, gone

OLD, NEW = "old content\n", "new content of another length\n"


def writing(life: Life[Path]) -> Agent:
    answer = [call("write_file", path="file", content=NEW), call("read_file", path="file"), call("list_files")]
    return Agent(model=ScriptedModel([answer, "written"]), tools=Workspace(life.world).tools())


def check(history: History[Path]) -> None:
    found = (history.world / "file").read_text()
    assert found in (OLD, NEW)
    assert found == NEW or not history.done["write_file"], "it claims to have written"
    texts = [each.text for each in history.messages if isinstance(each, ToolResultMessage)]
    assert not any("changed by somebody" in text for text in texts), "its own write is not somebody's"


async def test_a_write_is_whole_and_done_once_whenever_the_process_dies(tmp_path: Path, whole: bool) -> None:
    numbers = itertools.count()

    def folder_with_a_file() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "file").write_text(OLD)
        return folder

    scenario = Scenario(
        "writing", agent=writing, prompt="write it", world=folder_with_a_file, check=check, steady=False
    )

    depth = Depth(every=3, again=30) if whole else Depth(every=6, again=0)
    report = await crash_matrix(scenario, stores=["memory"], depth=depth)

    assert [row.failures for row in report.rows] == [0] * len(report.rows), str(report)
    assert all(row.kills > 4 for row in report.rows)


@pytest.mark.parametrize("how", ["abort", "close"])
@pytest.mark.parametrize("store", ["memory", "jsonl", "sqlite"])
async def test_a_command_ends_with_its_run(tmp_path: Path, store: str, how: str) -> None:
    """Aborted, the call's result has what was said so far; closed, it has none, and is not started again."""
    command, pipe_name = family(tmp_path)
    tools = Workspace(tmp_path, limits=WorkspaceLimits(stop_ms=20)).tools(["run_command"])
    model = ScriptedModel([[call("run_command", command=command)], "it was interrupted"])
    target = {"memory": ":memory:", "jsonl": str(tmp_path / "s.jsonl"), "sqlite": str(tmp_path / "s.db")}[store]
    agent = Agent(model=model, tools=tools)
    async with open_session(target) as session:
        lane = await session.lane("main", agent)
        said = asyncio.ensure_future(progress_of(lane))
        admitted = await lane.accept(Prompt("run it"))
        drive = asyncio.ensure_future(lane.drive(admitted.operation_id))
        pipe = await asyncio.to_thread(os.open, pipe_name, os.O_RDONLY)
        assert "started" in await said
        if how == "abort":
            result = await lane.abort()
            assert result.status == "aborted"
            last = (await lane.entries(limit=1))[0].body
            assert isinstance(last, ToolResultMessage) and "started" in last.text
        else:
            await session.close()
        await asyncio.gather(drive, return_exceptions=True)
        await gone(pipe)

    if how == "close" and store != "memory":
        async with open_session(target) as session:
            lane = await session.lane("main", agent)
            await lane.resume()
        seen = [each.text for each in model.requests[-1].messages if isinstance(each, ToolResultMessage)]
        assert len(seen) == 1 and "started" in seen[0] and "Check before doing it again" in seen[0]


async def progress_of(lane: AgentLane) -> str:
    """The first progress that tells that the command has started."""
    async for event in lane.watch():
        text = str(event)
        if type(event).__name__ == "ProgressSaved" and "started" in text:
            return text
    raise AssertionError("the watch has ended")
