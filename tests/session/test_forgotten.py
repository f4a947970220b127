"""Claim: a session that was left behind with its event loop holds up nobody in the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlane import Agent, Session, open_session
from agentlane.errors import WrongLoop
from agentlane.testing import ScriptedModel

NAMES = ("folder", "one.jsonl", "many.db")


def forget(target: Path) -> Session:
    """Open a session, use it, and let its event loop end."""

    async def use() -> Session:
        session = await open_session(target, durability="process")
        lane = await session.lane("main", Agent(model=ScriptedModel(["done"])))
        await lane.run("go")
        return session

    return asyncio.run(use())


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_closed_from_another_loop(tmp_path: Path, name: str) -> None:
    session = forget(tmp_path / name)

    async def close_and_reopen() -> list[str]:
        with pytest.raises(WrongLoop, match="open it anew"):
            session.stats()
        await session.close()
        await session.close()
        async with open_session(tmp_path / name, durability="process") as again:
            return again.lanes()

    assert asyncio.run(close_and_reopen()) == ["main"]


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_opened_anew_without_closing_it(tmp_path: Path, name: str) -> None:
    session = forget(tmp_path / name)

    async def reopen() -> tuple[str, int]:
        async with open_session(tmp_path / name, durability="process") as again:
            lane = await again.lane("main", Agent(model=ScriptedModel(["done", "done again"])))
            return (await lane.run("again")).text, len(await lane.entries())

    assert asyncio.run(reopen()) == ("done again", 4)
    assert session.id
