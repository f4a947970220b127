"""Claim: files in which a process died while summaries were made are read for ever, and every operation in them goes on
to the end that it always had.

The files, and ``summaries.ends.json``, are frozen and only ever added to; see ``tests.compat.summary_states``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentlane import open_session
from agentlane.data import codec
from agentlane.data.operations import Checkpoint, Navigating, OperationState, Summarizing, SummaryWait
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import Store
from agentlane.storage.framing import FORMAT
from agentlane.storage.schema import FORMAT_VERSION
from agentlane.testing import CountingIds, ManualClock, check_invariants
from tests.compat.summary_states import SESSION, go_on

GOLDEN = Path(__file__).parent / "golden_files"
FILES = sorted(each.name for each in GOLDEN.glob("summaries-*") if each.suffix in (".jsonl", ".db"))
ENDS = GOLDEN / "summaries.ends.json"


def copied(name: str, folder: Path) -> Store:
    """A store in ``folder`` that holds a copy of a frozen file."""
    if name.endswith(".jsonl"):
        shutil.copyfile(GOLDEN / name, folder / f"{SESSION}.jsonl")
        return JsonlStore(folder, durability="process")
    shutil.copyfile(GOLDEN / name, folder / "summaries.db")
    return SqliteStore(folder / "summaries.db", durability="process")


@pytest.mark.parametrize("name", FILES)
async def test_summaries_that_any_version_left_open_go_on_to_their_ends(tmp_path: Path, name: str) -> None:
    store, clock = copied(name, tmp_path), ManualClock(start_ms=1_700_000_100_000)
    assert (await store.verify(SESSION)).findings == ()  # type: ignore[attr-defined]
    session = await open_session(store, session_id=SESSION, clock=clock, ids=CountingIds(series=7), seed=1)

    ends = await go_on(session, clock)

    assert ends == json.loads(ENDS.read_text())
    assert session.open_operations() == []
    assert await check_invariants(session) == []
    await session.close()
    await store.close()


@pytest.mark.parametrize("name", FILES)
async def test_every_state_of_a_summary_is_frozen(tmp_path: Path, name: str) -> None:
    store = copied(name, tmp_path)
    storage = await store.open(SESSION, read_only=True)
    states: list[OperationState] = [
        codec.STATE.decode(each, "state") for each in (await storage.values("op.state")).values()
    ]
    marks = list(await storage.values("session.feature"))
    kinds = {row.kind for row in await storage.scan()}
    asked = {state.reason for state in states if isinstance(state, Summarizing | SummaryWait)}

    assert {Summarizing, SummaryWait, Navigating} <= {type(state) for state in states}
    assert asked == {"manual", "navigation", "overflow"}
    assert "summarize" in {state.next for state in states if isinstance(state, Checkpoint)}
    assert await storage.values("op.prep") and "compaction" in kinds and marks == ["compaction"]
    await store.close()


def test_the_formats_that_are_written_now_are_among_them() -> None:
    """A new format comes with files of its own: ``python -m tests.compat.make_summaries``."""
    assert {f"summaries-{FORMAT}.jsonl", f"summaries-{FORMAT_VERSION}.db"} <= set(FILES)
