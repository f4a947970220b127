"""Claim: a lane whose disk fails at any call tells its observers why, and goes on to the end after ``reopen()``.

No tool marked ``never`` starts twice, every call has one result, and what was accepted is there.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentlane import Agent, AgentLane, Prompt, Session, Settled, open_session, tool
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.errors import AgentLaneError, CorruptSession, SessionFaulted, StoreBusy, UnsupportedFormat
from agentlane.testing import ScriptedModel, call, check_invariants, say
from tests.storage.faults.media import KINDS, MEDIA, Medium, descriptors, medium_at
from tests.storage.faults.planned import Faults
from tests.storage.faults.test_fault_loop import SECONDS_MAX, made

STEP = {"jsonl": 13, "sqlite": 61}
STEP_WHOLE = {"jsonl": 3, "sqlite": 13}
FAILURES_MAX = 3
"""After so many the cause is mended."""


class Life:
    """One prompt on a lane with tools, from the open to the settled record, whatever fails on the way."""

    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self.starts: Counter[str] = Counter()
        self.told: list[str] = []
        self.accepted = False
        self.session: Session | None = None

        @tool(replay="safe")
        async def look(path: str) -> str:
            self.starts["look"] += 1
            return f"looked at {path}"

        @tool(replay="never")
        async def delete(path: str) -> str:
            self.starts["delete"] += 1
            return f"deleted {path}"

        script = [[say("looking"), call("look", path="a"), call("delete", path="b")], "done"]
        self.agent = Agent(model=ScriptedModel(script), tools=[look, delete])

    async def go(self) -> None:
        store = self.medium.store()
        lane: AgentLane | None = None
        while True:
            try:
                if self.session is None:
                    self.session = await open_session(store, session_id="s")
                lane = await self.session.lane("main", self.agent)
                await lane.accept(Prompt("go"), operation_id="op")
                self.accepted = True
                outcome = await lane.drive("op")
                assert isinstance(outcome, Settled)
                break
            except (OSError, AgentLaneError) as error:
                self._judge(error)
            if self.session is not None:
                await self._reopen(self.session)
        assert outcome.result.status == "completed", (outcome.result, self.told)
        await self._check(self.session, lane)
        self.medium.faults.lift()  # what closing says is in the other loop
        await self.session.close()
        self.session = await open_session(store, session_id="s")
        await self._check(self.session, await self.session.lane("main", self.agent))
        await self.session.close()
        await store.close()

    async def _reopen(self, session: Session) -> None:
        while True:
            try:
                await session.reopen()
                break
            except (OSError, AgentLaneError) as error:
                self._judge(error)
        with self.medium.faults.unseen():
            known = [each.operation_id for each in await session.operations()]
        assert known == ["op"] or not self.accepted, f"what was accepted is gone: {self.told}"

    async def _check(self, session: Session, lane: AgentLane) -> None:
        self.medium.faults.lift()
        entries = await lane.entries(newest_first=False)
        kinds = [type(each.body).__name__ for each in entries]
        answers = [each.body for each in entries if isinstance(each.body, AssistantMessage)]
        results = [each.body for each in entries if isinstance(each.body, ToolResultMessage)]
        assert answers[-1].text == "done", (kinds, self.told)
        assert [each.name for each in results] == ["look", "delete"], (kinds, self.told)
        assert self.starts["delete"] <= 1 and self.starts["look"] <= 4, (self.starts, self.told)
        if not results[1].is_error:
            assert self.starts["delete"] == 1
        assert await check_invariants(session) == []
        if not self.told:
            assert (dict(self.starts), kinds.count("AssistantMessage")) == ({"look": 1, "delete": 1}, 2)

    def _judge(self, error: Exception) -> None:
        self.told.append(repr(error))
        faults = self.medium.faults
        assert faults.struck, f"nothing failed, and {self.told}"
        if isinstance(error, CorruptSession | UnsupportedFormat) or not isinstance(
            error, OSError | SessionFaulted | StoreBusy
        ):
            raise AssertionError(f"a failing medium is told as {error!r}") from error
        if isinstance(error, SessionFaulted):
            assert error.__cause__ is not None, error
        if len(self.told) >= FAILURES_MAX:
            faults.lift()


async def one_life(name: str, faults: Faults, folder: Path, template: Path) -> list[str]:
    shutil.copytree(template, folder, dirs_exist_ok=True)
    before = descriptors(), threading.active_count()
    with medium_at(name, folder, faults) as medium:
        life = Life(medium)
        async with asyncio.timeout(SECONDS_MAX):
            await life.go()
    assert (descriptors(), threading.active_count()) == before, f"left open after {faults.struck} and {life.told}"
    return life.told


@pytest.mark.parametrize("name", MEDIA)
async def test_a_lane_outlives_every_fault_of_its_disk(name: str, tmp_path: Path, whole: bool) -> None:
    template = await made(name, tmp_path / "template")
    step = (STEP_WHOLE if whole else STEP)[name.partition("-")[0]]
    with TemporaryDirectory(dir=tmp_path) as folder:
        assert await one_life(name, Faults(), Path(folder), template) == []
    nth = 1 + name.endswith("-disk")
    told = 0
    while True:
        permanent = nth // step % 2 == 1
        faults = Faults(KINDS[name], nth=nth, permanent=permanent)
        with TemporaryDirectory(dir=tmp_path) as folder:
            try:
                told += bool(await one_life(name, faults, Path(folder), template))
            except Exception as error:
                error.add_note(f"call {nth} on {name} failed, for good: {permanent}; {faults.struck}")
                raise
        if not faults.struck:
            break
        nth += step
    assert told
