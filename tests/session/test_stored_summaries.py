"""Claim: what is stored of summaries is sound at every step of them, is found damaged where it is, and is repaired."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, AgentLane, Compact, Compaction, Navigate, Prompt, Session, open_session
from agentlane.data import addresses, codec
from agentlane.data.operations import Navigating
from agentlane.data.writes import SetValue
from agentlane.storage import MemoryStore, SqliteStore
from agentlane.testing import CountingIds, ManualClock, ScriptedModel, check_invariants, fail, hang
from tests.session.places import Place


def agent(**options: Any) -> Agent[Any, Any]:
    return Agent(model=ScriptedModel([f"answer {number}" for number in range(20)], **options))


async def talk(session: Session, runs: int = 4, **options: Any) -> AgentLane[Any, Any]:
    lane = await session.lane("main", agent(**options))
    for number in range(runs):
        await lane.run(f"question {number}")
    return lane


async def sound(session: Session) -> bool:
    report = await session.verify()
    return not report.findings and not await check_invariants(session)


async def at(lane: AgentLane[Any, Any], phase: str) -> None:
    async with asyncio.timeout(60):
        while (operation := lane.inspect().operation) is None or operation.at != phase:
            await asyncio.sleep(0)


def store_at(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "s.db", durability="process", clock=ManualClock(), ids=CountingIds(series=9))


@pytest.mark.parametrize("kind", ["compact", "navigate"])
@pytest.mark.parametrize("phase", ["checkpoint", "summarizing", "summary_wait", "settled"])
async def test_each_state_of_a_summary_is_sound(place: Place, kind: str, phase: str) -> None:
    session = await place.open()
    first = fail("overloaded", retryable=True, retry_after_ms=60_000) if phase == "summary_wait" else hang()
    lane = await talk(session, summaries="So far." if phase == "settled" else [first])
    target = (await lane.entries(newest_first=False))[1].id
    request = Compact(keep_tokens=20) if kind == "compact" else Navigate(target, summarize=True)
    admitted = await lane.accept(request)
    driving = None if phase == "checkpoint" else asyncio.create_task(lane.drive(wait_for_retry=False))
    if driving is not None and phase != "summarizing":
        await driving
    elif driving is not None:
        await at(lane, phase)

    operation = lane.inspect().operation
    assert (None if operation is None else operation.at) == (None if phase == "settled" else phase)
    assert await sound(session)
    assert list(await session._runtime.storage.values("session.feature")) == ["compaction"]
    if phase == "settled":
        assert [row.row.kind for row in await session.usage()] == [*["attempt"] * 4, "summary"]
        assert session.stats().usage.rows == 5
        result = await lane.result(admitted.operation_id)
        assert result is not None and result.summary == lane.tip()


async def test_a_state_without_its_preparation_is_told_of_and_the_operation_is_ended(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    await store.create("s")
    async with open_session(store, session_id="s", clock=ManualClock()) as session:
        lane = await talk(session, summaries=[fail("overloaded", retryable=True, retry_after_ms=60_000)])
        admitted = await lane.accept(Compact(keep_tokens=20))
        await lane.drive(wait_for_retry=False)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        database.execute("DELETE FROM value WHERE namespace = 'op.prep'")
    store, target = store_at(tmp_path), MemoryStore()
    assert [each.code for each in (await store.verify("s")).findings] == ["half_operation"]

    report = await store.repair("s", target)

    assert report.ended == (admitted.operation_id,)
    async with open_session(target, session_id="s") as session:
        assert await sound(session)
        assert (await (await session.lane("main", agent())).run("and now?")).status == "completed"


async def test_a_navigation_to_what_is_no_entry_is_told_of(place: Place) -> None:
    session = await place.open()
    lane = await talk(session, 1)
    admitted = await lane.accept(Prompt("go"))
    state = codec.encode(Navigating(target="nowhere"))
    await session._runtime.submit(
        [SetValue(addresses.op_state(admitted.operation_id), state)], lambda commit: None, "value"
    )

    found = (await session.verify()).findings
    assert [(each.code, each.place) for each in found] == [("missing_input", f"op.state/{admitted.operation_id}")]


LOST = {"inside the kept tail": -2, "the beginning of the kept tail": 0, "the compaction's parent": -1}


@pytest.mark.parametrize("which", LOST)
async def test_a_compaction_that_has_lost_of_its_tail_is_whole_in_the_copy(which: str, tmp_path: Path) -> None:
    store = store_at(tmp_path)
    await store.create("s")
    async with open_session(store, session_id="s", clock=ManualClock()) as session:
        lane = await talk(session)
        await lane.accept(Compact(keep_tokens=60))
        await lane.drive()
        await lane.run("more")
        path = await lane.entries(newest_first=False)
        index = next(number for number, entry in enumerate(path) if isinstance(entry.body, Compaction))
        body = path[index].body
        assert isinstance(body, Compaction) and body.kept_from is not None
        tail = path[[entry.id for entry in path].index(body.kept_from) : index]
        assert len(tail) > 2
    await store.close()
    lost = tail[LOST[which]]
    with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        database.execute("DELETE FROM entry WHERE id = ?", (lost.id,))
    target = MemoryStore()
    report = await store_at(tmp_path).repair("s", target)

    assert [each for each in report.left if each.loses] == []
    changed = "kept_tail" in {note.code for note in report.notes}
    async with open_session(target, session_id="s") as session:
        (copy,) = [entry for entry in await session.entries() if isinstance(entry.body, Compaction)]
        assert isinstance(copy.body, Compaction)
        begins = body.kept_from if which == "the beginning of the kept tail" else lost.id
        assert (copy.body.kept_from, copy.body.summary) == (begins, body.summary)
        assert changed == (copy.body.kept_from != body.kept_from)
        assert await check_invariants(session) == []
