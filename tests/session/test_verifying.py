"""Claim: ``verify`` finds nothing wrong with a session that is as the library leaves it, whatever was done with it,
beside its own work too; and it names what is wrong with one that does not open.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from agentlane import Finding, SessionClosed, VerifyReport, open_session, tool
from agentlane.errors import SessionFaulted, UnknownSession
from agentlane.storage import JsonlStore, SqliteStore, Store
from agentlane.testing import call
from agentlane.testing.faults import FailingStore
from tests.compat.test_every_state import FILES, check_ends, copied
from tests.session.copies import play, rows_in
from tests.session.places import KINDS, Place, agent_of
from tests.storage.verified import left_alone


def place_of(kind: str, folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    return Place(kind, folder)


def damages(report: VerifyReport) -> list[Finding]:
    """Findings but for those of what lies beside a file."""
    return [each for each in report.findings if each.code not in ("set_aside", "leftover")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_wrong_with_what_the_library_leaves(kind: str, seed: int, tmp_path: Path) -> None:
    """With everything in it: while it is open, forked, copied, exported, cleaned up, closed and opened again."""
    place = place_of(kind, tmp_path / kind)
    await place.store.create("s", metadata={"user": "ann"})
    session = await place.open()
    await play(session, seed)
    assert session.open_operations()
    report = await session.verify()
    rows = await rows_in(session._runtime.storage)
    assert report.findings == () and report.session_id == "s"
    assert report.last_seq >= rows.last_seq
    got = (report.entries, report.usage_rows, report.elements, report.values)
    assert got == tuple(map(len, rows[:4])) and min(got) > 0
    copies = [await session.fork(session_id="fork"), await session.fork(branch=session.branches()[0], session_id="one")]
    for to in KINDS:
        elsewhere = place_of(to, tmp_path / f"to-{to}")
        await session.backup(elsewhere.store)
        assert (await elsewhere.store.verify("s")).findings == (), to
        await elsewhere.end()
    stream = io.BytesIO()
    await session.export(stream)
    stream.seek(0)
    store: Any = place.store
    copies.append(await store.import_session(stream, session_id="again"))
    for each in copies:
        assert (await place.store.verify(each.id)).findings == (), each.id
    await session.compact_storage()
    assert (await session.verify()).findings == ()
    await session.close()
    with pytest.raises(SessionClosed):
        await session.verify()
    assert (await place.store.verify("s")).findings == ()
    async with open_session(place.store, session_id="s", read_only=True) as reader:
        assert (await reader.verify()).findings == ()
    await place.end()


@pytest.mark.parametrize("name", FILES)
async def test_files_of_every_format_and_state_are_whole(name: str, tmp_path: Path) -> None:
    """Before anything is done with them, and when every operation has gone on to its end."""
    store = copied(name, tmp_path)
    with left_alone(tmp_path):
        assert (await store.verify("states")).findings == ()
    await store.close()
    await check_ends(copied(name, tmp_path), "states")
    store = JsonlStore(tmp_path) if name.endswith(".jsonl") else SqliteStore(tmp_path / "states.db")
    assert (await store.verify("states")).findings == ()
    await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_beside_lanes_that_work(kind: str, tmp_path: Path) -> None:
    """Looks one after the other while calls run: each sees a whole session, and the run ends as ever."""
    began, go = asyncio.Event(), asyncio.Event()

    @tool(replay="safe")
    async def hold(n: int) -> str:
        began.set()
        await go.wait()
        return f"held {n}"

    place = place_of(kind, tmp_path / kind)
    session = await place.open()
    agent = agent_of([call("hold", n=1), call("hold", n=2)], "done", tools=[hold])
    lane = await session.lane("main", agent)
    running = asyncio.ensure_future(lane.run("go"))
    await began.wait()
    looks = [asyncio.ensure_future(session.verify()) for _ in range(3)]
    go.set()
    result = await running
    assert result.text == "done"
    assert [damages(await look) for look in looks] == [[], [], []]
    assert (await session.verify()).entries == 5
    await place.end()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_that_is_faulted_can_be_looked_at(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path / kind)
    await place.store.create("s")
    failing = FailingStore(place.store, nth=None)
    session = await open_session(failing, session_id="s", clock=place.clock)
    await session.set_name("one")
    failing.fail_next()
    with pytest.raises(SessionFaulted):
        await session.set_name("two")
    report = await session.verify()
    assert report.findings == () and report.values == 1
    await session.close()
    await place.end()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_session_that_does_not_open_is_looked_at_through_its_store(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path / kind)
    session = await place.open()
    await play(session, 1)
    await session.close()
    path = next(each for each in place.folder.rglob("s*") if each.suffix in (".jsonl", ".db"))
    content = path.read_bytes()
    at = content.index(b"assistant", len(content) // 3)
    path.write_bytes(content[:at] + b"\0" * 3000 + content[at + 3000 :])
    with left_alone(path.parent):
        report = await place.store.verify("s")
    assert report.losses and report.losses[0].place.startswith(path.name)
    assert report.entries > 0
    await place.end()


async def test_only_what_is_there_is_looked_at(tmp_path: Path) -> None:
    for kind in KINDS:
        place = place_of(kind, tmp_path / kind)
        await place.store.create("other")
        store: Store = place.store
        with pytest.raises(UnknownSession):
            await store.verify("s")
        await place.end()
