"""Claim: reopen and close, whatever runs beside them, lose nothing that was acknowledged and leave nothing owned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, AgentLane, Prompt, Session, open_session
from agentlane.errors import AgentLaneError, SessionClosed, SessionFaulted
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore, Store
from agentlane.storage.contract import SessionStorage
from agentlane.testing import FailingStore, ScriptedModel
from agentlane.testing.wrapping import WrappedStorage, WrappedStore

BACKENDS = ("memory", "jsonl", "sqlite")


class SlowReads(WrappedStore):
    """A store whose reads of values let the loop turn often, so that much can happen between two of them."""

    async def open(self, session_id: str, **options: object) -> SessionStorage:
        return _SlowStorage(await self.inner.open(session_id, **options))  # type: ignore[arg-type]


class _SlowStorage(WrappedStorage):
    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, prefix, **page)
        for _ in range(20):
            await asyncio.sleep(0)
        return found


def store_at(backend: str, folder: Path) -> Store:
    if backend == "memory":
        return MemoryStore()
    if backend == "jsonl":
        return JsonlStore(folder / "sessions", durability="process")
    return SqliteStore(folder / "s.db", durability="process")


async def faulted(backend: str, folder: Path) -> tuple[FailingStore, Session, AgentLane]:
    store = FailingStore(SlowReads(store_at(backend, folder)), nth=1_000_000)
    session = await open_session(store)
    lane = await session.lane("main", Agent(model=ScriptedModel(["done"])))
    store.fail_next()
    with pytest.raises(SessionFaulted):
        await session.set_name("lost")
    return store, session, lane


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turns", [0, 1, 5, 15, 30, 50])
async def test_what_is_accepted_beside_a_reopen_is_there_afterwards(tmp_path: Path, backend: str, turns: int) -> None:
    """Until the store has been read, every write is refused; none is acknowledged and then forgotten."""
    store, session, lane = await faulted(backend, tmp_path)
    reopening = asyncio.ensure_future(session.reopen())
    for _ in range(turns):
        await asyncio.sleep(0)
    accepted = None
    while accepted is None:
        try:
            accepted = await lane.accept(Prompt("go"))
        except SessionFaulted:
            await asyncio.sleep(0)
    await reopening

    assert [each.operation_id for each in session.open_operations()] == [accepted.operation_id]
    await session.close()
    again = await open_session(store)
    assert [each.operation_id for each in again.open_operations()] == [accepted.operation_id]
    await again.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 60])
async def test_a_close_beside_a_reopen_leaves_nothing_owned(tmp_path: Path, backend: str, turns: int) -> None:
    store, session, _ = await faulted(backend, tmp_path)
    reopening = asyncio.ensure_future(session.reopen())
    for _ in range(turns):
        await asyncio.sleep(0)

    await session.close()
    await asyncio.gather(reopening, return_exceptions=True)

    with pytest.raises(SessionClosed):
        session.stats()
    await (await open_session(store)).close()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_reopens_that_come_together_are_one(tmp_path: Path, backend: str) -> None:
    store, session, _ = await faulted(backend, tmp_path)

    ended = await asyncio.gather(*(session.reopen() for _ in range(5)), return_exceptions=True)

    assert ended == [None] * 5
    await session.set_name("kept")
    await session.close()
    again = await open_session(store)
    assert again.name == "kept"
    await again.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turns", range(6))
async def test_a_close_whose_task_is_cancelled_can_be_asked_again(tmp_path: Path, backend: str, turns: int) -> None:
    """Something cancels every task there is, the closing one too: another close ends what is left."""
    store = store_at(backend, tmp_path)
    session = await open_session(store)
    await session.lane("main", Agent(model=ScriptedModel(["done"])))
    closing = asyncio.ensure_future(session.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.gather(closing, return_exceptions=True)

    await session.close()

    with pytest.raises(AgentLaneError):
        session.stats()
    await (await open_session(store)).close()
