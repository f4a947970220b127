"""Claim: a session file of each format that there ever was is opened with operations open in every state, and each of
them goes on to the end that it always had.

The files in ``golden_files`` are frozen, and only ever added to; ``tests.compat.make_states`` made them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from agentlane import open_session
from agentlane.data import codec
from agentlane.data.operations import CallState, Navigating, OperationState, Summarizing, SummaryWait, Tools
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import ElementRow, Row, SessionStorage, Store, ValueRow
from agentlane.storage.framing import FORMAT
from agentlane.storage.schema import FORMAT_VERSION
from agentlane.testing import CountingIds, ManualClock, check_invariants
from tests.compat.every_state import APP_LIST, APP_VALUE, SESSION, go_on

GOLDEN = Path(__file__).parent / "golden_files"
FILES = sorted(each.name for each in GOLDEN.glob("states-*") if each.suffix in (".jsonl", ".db"))
ENDS: dict[str, list[str]] = json.loads((GOLDEN / "states.ends.json").read_text())
RESTARTED_AT = 1_700_000_100_000


def copied(name: str, folder: Path) -> Store:
    """A store in ``folder`` that holds a copy of a frozen file."""
    if name.endswith(".jsonl"):
        shutil.copyfile(GOLDEN / name, folder / f"{SESSION}.jsonl")
        return JsonlStore(folder, durability="process")
    shutil.copyfile(GOLDEN / name, folder / "states.db")
    return SqliteStore(folder / "states.db", durability="process")


async def stored(storage: SessionStorage) -> list[Row]:
    """All that a session holds, as a snapshot gives it."""
    snapshot = await storage.snapshot()
    rows = [row async for page in snapshot.pages() for row in page]
    await snapshot.close()
    return rows


async def check_ends(store: Store, session_id: str = SESSION) -> None:
    """Every operation of the session goes on to the end that it always had."""
    clock = ManualClock(start_ms=RESTARTED_AT)
    ids = CountingIds(series=7)
    session = await open_session(store, session_id=session_id, clock=clock, ids=ids, seed=1)

    ends = await go_on(session, clock)

    assert ends == ENDS
    assert session.open_operations() == []
    assert (session.name, await session.value(APP_VALUE)) == ("A session of every state", {"n": 1})
    assert [value for _, value in await session.elements(APP_LIST)] == [1, 2]
    assert await session.label((await session.entries(limit=1))[0].id) == "the first"
    await check_invariants(session)
    await session.close()
    await store.close()


@pytest.mark.parametrize("name", FILES)
async def test_operations_that_any_version_left_open_go_on_to_their_ends(tmp_path: Path, name: str) -> None:
    await check_ends(copied(name, tmp_path))


@pytest.mark.parametrize("name", FILES)
async def test_every_state_of_an_operation_and_of_a_call_is_frozen(tmp_path: Path, name: str) -> None:
    """So is whatever else lives only while an operation is open; a new state needs files that have it. Those that came
    with summaries are in files of their own: see ``test_summary_states``."""
    storage = await copied(name, tmp_path).open(SESSION, read_only=True)
    states = [codec.STATE.decode(each, "state") for each in (await storage.values("op.state")).values()]
    kinds = {type(state) for state in states} | {
        type(c) for state in states if isinstance(state, Tools) for c in state.calls
    }
    namespaces = {row.address.namespace for row in await stored(storage) if isinstance(row, ValueRow | ElementRow)}
    await storage.close()

    assert kinds == {*get_args(OperationState), *get_args(CallState)} - {Summarizing, SummaryWait, Navigating}
    assert namespaces == {
        *("app.compat", "branch.tip", "inbox", "label", "lane.config", "lane.state", "op.answer", "op.args"),
        *("op.config", "op.decision", "op.memo", "op.meta", "op.returned", "op.state", "pending.approval"),
        *("pending.entry", "pending.frames", "pending.output", "receipt", "result", "session.name"),
    }


def test_the_formats_that_are_written_now_are_among_them() -> None:
    """A new format comes with files of its own: ``python -m tests.compat.make_states``."""
    for suffix, newest in ((".jsonl", FORMAT), (".db", FORMAT_VERSION)):
        found = [name for name in FILES if name.endswith(suffix)]
        assert found == [f"states-{number}{suffix}" for number in range(1, newest + 1)]


async def test_a_file_that_was_written_anew_holds_what_the_one_that_grew_holds(tmp_path: Path) -> None:
    """Entries, ledger, lists and values with their numbers, and open work."""
    held = {}
    names = [name for name in FILES if name.endswith(".jsonl")]
    for name in names:
        (tmp_path / name).mkdir()
        store = copied(name, tmp_path / name)
        storage = await store.open(SESSION, read_only=True)
        held[name] = (
            await stored(storage),
            storage.stats(),
            await store.open_operations(),
            storage.info,
            storage.epoch,
        )
        await store.close()

    assert len(names) >= 2
    for name in names:
        assert held[name] == held[names[0]], name
