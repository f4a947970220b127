"""Claim: killed before any statement that makes, catches up or empties it, the index is never wrong, only behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentlane.storage import SqliteStore, search_index
from tests.storage import search_deaths
from tests.storage.search_deaths import copy_of
from tests.storage.sqlite_samples import entry, sql
from tests.storage.test_search_index import in_index, opened, said, should_be, talk

TEXTS = ["red fox", "dog", "", "red red", "a red day", "blue", "red again", "and red"]


async def file_with(path: Path, *, indexed: str) -> None:
    """A file with two sessions, nothing, a part or all of them in its index."""
    store = SqliteStore(path, durability="process")
    for name in ("a", "b"):
        storage = await opened(store, name)
        await talk(storage, TEXTS[: 3 if indexed == "part" else len(TEXTS)])
        await storage.close()
    if indexed != "nothing":
        await store.search("red")
    if indexed == "part":
        for name in ("a", "b"):
            storage = await store.open(name)
            for number, text in enumerate(TEXTS[3:], 3):
                await storage.submit([entry(f"e{number}", f"e{number - 1}", said(text))])
            await storage.close()
    await store.close()
    if indexed == "old":
        with sql(path) as database:
            database.execute("UPDATE search_index SET version = '0'")


@pytest.mark.parametrize(
    ("work", "indexed"),
    [("search", "nothing"), ("search", "part"), ("search", "old"), ("delete", "part"), ("delete", "all")],
)
async def test_a_kill_before_any_statement(work: str, indexed: str, tmp_path: Path, whole: bool) -> None:
    path = tmp_path / "s.db"
    await file_with(path, indexed=indexed)
    first, step = (2, 7) if whole else (6, 47)
    ran = subprocess.run(
        [sys.executable, search_deaths.__file__, str(path), work, str(first), str(step)],
        capture_output=True,
        text=True,
        check=True,
    )
    deaths = int(ran.stdout)
    assert deaths > (4 if whole else 0), "as many statements were met"

    kinds = {}
    for number in range(deaths + 1):
        death = first + number * step
        kinds[death] = await found_after(copy_of(path, death), work)
    assert list(kinds.values())[-1] == ("done" if work == "delete" else "whole")
    if whole and work == "search":
        assert {"behind", "whole"} <= {*kinds.values()}
    if whole and work == "delete":
        assert {"there", "done"} == {*kinds.values()}


async def found_after(path: Path, work: str) -> str:
    """Check what a death has left; whether the work was done."""
    sessions = ["a", "b"]
    with sql(path) as database:
        there = [name for (name,) in database.execute("SELECT id FROM session ORDER BY id").fetchall()]
        made = database.execute("SELECT name FROM sqlite_schema WHERE name = 'search_word'").fetchall()
        usable = bool(made) and search_index.is_usable(database)
    assert there == sessions or (work == "delete" and there == ["b"]), there
    if usable:
        assert in_index(path) == should_be(path), "never wrong"
    covered = usable and len(in_index(path)[1]) == 14
    store = SqliteStore(path, durability="process")
    counts: Mapping[str, int] = {name: sum("red" in text for text in TEXTS) for name in there}
    for name in there:
        reader = await store.open(name, read_only=True)
        hits = [hit for hit in await store.search("red", session_id=name, limit=100) if hit.snippet]
        assert len(hits) == counts[name]
        await reader.close()
    assert len(await store.search("red", limit=100)) == sum(counts.values())
    await store.close()
    assert in_index(path) == should_be(path) and len(in_index(path)[1]) == 7 * len(there)
    if work == "delete":
        return "there" if "a" in there else "done"
    return "whole" if covered else "behind"
