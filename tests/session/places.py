"""Where the sessions of these tests live: one place on each backend, opened as often as a test likes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlane import Agent, Session, Tool, open_session, tool
from agentlane.model import Model
from agentlane.storage.contract import Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import ScriptAnswer

KINDS = ["memory", "jsonl", "sqlite"]


class Place:
    """One store on one backend; sessions that are still open at the end of the test are closed."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = ManualClock()
        self.store: Store = self.new_store()
        self._sessions: list[Session] = []
        self._opens = 0

    def new_store(self) -> Store:
        ids = CountingIds(series=0xFFFF)
        if self.kind == "memory":
            return MemoryStore(clock=self.clock, ids=ids)
        if self.kind == "jsonl":
            return JsonlStore(self.folder / "sessions", durability="process", clock=self.clock, ids=ids)
        return SqliteStore(self.folder / "sessions.db", durability="process", clock=self.clock, ids=ids)

    async def open(self, session_id: str | None = "s", **options: Any) -> Session:
        """Open the session ``s``, made if it is not there."""
        if session_id is not None and session_id not in [info.id for info in await self.store.list()]:
            await self.store.create(session_id)
        self._opens += 1
        ids = CountingIds(series=self._opens)
        session = await open_session(self.store, session_id=session_id, clock=self.clock, ids=ids, seed=1, **options)
        self._sessions.append(session)
        return session

    async def end(self) -> None:
        for session in self._sessions:
            await session.close()
        await self.store.close()


def agent_of(
    *answers: ScriptAnswer, tools: Sequence[Tool[Any, Any]] = (), model: Model | None = None, **options: Any
) -> Agent:
    """An agent whose model gives these answers."""
    return Agent(model=model or ScriptedModel(list(answers)), tools=tools, **options)


@tool(replay="safe")
def echo(text: str = "x") -> str:
    return text
