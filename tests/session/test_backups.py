"""Claim: a backup is a whole copy of a session in use, in any store, or nothing at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentlane import InvalidDefinition, InvalidMessage, InvalidWrite, Prompt, Settled, open_session
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.testing import check_invariants
from tests.session.copies import play, rows_in, rows_of, speaker
from tests.session.places import KINDS, Place


async def test_everything_is_there_in_every_kind_of_store(place: Place, tmp_path: Path) -> None:
    """Open operations, the ledger, results and what waits included; of a reader's session too."""
    session = await place.open()
    await play(session, 5)
    assert session.open_operations()
    wanted = await rows_in(session._runtime.storage)
    for to in KINDS:
        (tmp_path / to).mkdir()
        store = Place(to, tmp_path / to).store
        info = await session.backup(store)
        assert info == session._runtime.storage.info
        assert await rows_of(store, "s") == wanted
        with pytest.raises(InvalidWrite, match="exists already"):
            await session.backup(store)
        async with open_session(store, session_id="s") as copy:
            assert await check_invariants(copy) == []
        await store.close()
    if place.kind != "memory":
        await session.close()
        reader = await place.open(read_only=True)
        await reader.backup(tmp_path / "of a reader.db")
        assert await rows_of(SqliteStore(tmp_path / "of a reader.db"), "s") == wanted


async def test_paths_are_those_that_open_session_takes(memory: Place, tmp_path: Path) -> None:
    session = await memory.open()
    await play(session, 6)
    wanted = await rows_in(session._runtime.storage)
    assert (await session.backup(tmp_path / "one.db")).id == "s"
    assert (await session.backup(str(tmp_path / "folder"), session_id="t")).id == "t"
    assert (await session.backup(tmp_path / "named.jsonl")).id == "named"
    assert await rows_of(SqliteStore(tmp_path / "one.db"), "s") == wanted
    assert await rows_of(JsonlStore(tmp_path / "folder"), "t") == wanted
    async with open_session(tmp_path / "named.jsonl", create=False) as copy:
        assert await rows_in(copy._runtime.storage) == wanted


async def test_beside_a_drive_it_goes_on_as_after_a_death(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    began = asyncio.Event()
    lane = await session.lane("main", speaker(began))
    await lane.accept(Prompt("call echo hold echo"), operation_id="op-1")
    driving = asyncio.create_task(lane.drive("op-1"))
    await began.wait()
    await session.backup(tmp_path / "copy.db")
    assert not driving.done()
    await lane.abort()
    assert isinstance(await driving, Settled)

    async with open_session(tmp_path / "copy.db") as copy:
        again = asyncio.Event()
        other = await copy.lane("main", speaker(again))
        going = asyncio.create_task(other.drive("op-1"))
        await again.wait()
        await other.abort()
        assert isinstance(ended := await going, Settled) and ended.result.status == "aborted"
        assert await check_invariants(copy) == []


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [
        (None, {}, InvalidMessage),
        (7, {}, InvalidMessage),
        (":memory:", {}, InvalidDefinition),
        (MemoryStore(), {"session_id": "a/b"}, Exception),
    ],
)
async def test_what_is_no_target_is_refused(memory: Place, target: Any, options: Any, error: type[Exception]) -> None:
    session = await memory.open()
    with pytest.raises(error):
        await session.backup(target, **options)


async def test_one_that_is_cancelled_leaves_nothing(place: Place, tmp_path: Path) -> None:
    """Or, at the very end, a whole one."""
    session = await place.open()
    await play(session, 7)
    wanted = await rows_in(session._runtime.storage)
    for turns in range(6):
        store = SqliteStore(tmp_path / f"{turns}.db") if turns % 2 else JsonlStore(tmp_path / f"{turns}")
        copying = asyncio.ensure_future(session.backup(store))
        for _ in range(turns):
            await asyncio.sleep(0)
        copying.cancel()
        told = (await asyncio.gather(copying, return_exceptions=True))[0]
        made = [each.id for each in await store.list()]
        assert made == ["s"] or isinstance(told, asyncio.CancelledError)
        for id in made:
            assert await rows_of(store, id) == wanted
        await session.backup(store, session_id="t")
        await store.close()
