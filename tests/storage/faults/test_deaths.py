"""Claim: a process that is killed while it migrates or repairs leaves every session whole, of one format, and its lock
free; of a copy nothing, or all of it; and whoever comes next does the work, and removes what was left.

Real processes, killed at calls of the operating system and of SQLite that change something.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentlane.errors import InvalidWrite
from agentlane.storage import JsonlStore, SqliteStore, Store, schema
from agentlane.storage.jsonl_index import index_path
from tests.compat.every_state import SESSION
from tests.session.copies import rows_of
from tests.storage import test_migrating_jsonl as jsonl
from tests.storage import test_migrating_sqlite as sqlite
from tests.storage.backends import content
from tests.storage.faults.deaths import WORKS
from tests.storage.faults.media import medium_at
from tests.storage.faults.planned import Faults
from tests.storage.faults.repairs import COPY, Wanted, fill

DEATHS = 8
"""Of each work."""
ROOT = Path(__file__).parents[3]


class Lives(NamedTuple):
    """Where they were lived, and what repairs are to find."""

    folder: Path
    wanted: dict[str, Wanted]

    def places(self, work: str) -> list[Path]:
        """The one that came to its end, then the deaths."""
        return [self.folder / f"{work}-{number}" for number in range(DEATHS + 1)]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, whole: bool) -> Lives:
    if not whole:
        pytest.skip("real processes; with --whole")
    folder = tmp_path_factory.mktemp("lives")
    sqlite.older(folder / "migrate-sqlite")
    jsonl.older(folder / "migrate-jsonl" / "s", jsonl.FILES[0], jsonl.TORN)
    wanted = {}
    for work in ("repair-jsonl", "repair-sqlite"):
        (folder / work).mkdir()
        with medium_at(f"{work.removeprefix('repair-')}-disk", folder / work, Faults()) as medium:
            wanted[work] = asyncio.run(fill(medium, folder / work, damaged=True))
    subprocess.run(
        [sys.executable, "-m", "tests.storage.faults.deaths", str(DEATHS), str(folder), *WORKS], cwd=ROOT, check=True
    )
    return Lives(folder, wanted)


async def test_killed_in_a_migration_of_a_sqlite_file(lives: Lives) -> None:
    before = sqlite.rows_of(lives.folder / "migrate-sqlite" / "s" / "x.db")
    formats = []
    for place in lives.places("migrate-sqlite"):
        path = place / "s" / "x.db"
        reader = SqliteStore(path)
        storage = await reader.open(SESSION, read_only=True)
        assert storage.stats().entries == len(await storage.scan()) and len(await reader.open_operations()) == 25
        assert [each for each in (await reader.verify(SESSION)).findings if each.code != "orphan_call"] == []
        await reader.close()
        formats.append(sqlite.format_of(path))
        owner = SqliteStore(path)
        await (await owner.open(SESSION)).close()
        await owner.close()
        assert (sqlite.format_of(path), sqlite.rows_of(path)) == (schema.FORMAT_VERSION, before)
        assert set(content(path.parent)) == {path.name}
    assert formats[0] == formats[-1] == schema.FORMAT_VERSION and formats[1:] == sorted(formats[1:])
    assert formats[1] < schema.FORMAT_VERSION


async def test_killed_in_a_migration_of_a_jsonl_file(lives: Lives) -> None:
    before = await jsonl.rows_of(lives.folder / "migrate-jsonl" / "s" / f"{SESSION}.jsonl")
    formats = []
    with jsonl.later_version():
        for place in lives.places("migrate-jsonl"):
            path = place / "s" / f"{SESSION}.jsonl"
            assert await jsonl.rows_of(path) == before
            formats.append(jsonl.format_of(path))
            owner = JsonlStore(path.parent)
            await (await owner.open(SESSION)).close()
            await owner.close()
            assert jsonl.format_of(path) == jsonl.LATER and await jsonl.rows_of(path) == before
            there = {each.partition(".torn-")[0] for each in content(path.parent)}
            assert there - {index_path(path).name} == {path.name}
    assert formats[0] == formats[-1] == jsonl.LATER and formats[1:] == sorted(formats[1:])
    assert formats[1] < jsonl.LATER


@pytest.mark.parametrize("work", ["repair-jsonl", "repair-sqlite"])
async def test_killed_in_a_repair(lives: Lives, work: str) -> None:
    wanted = lives.wanted[work]
    found = []
    for place in lives.places(work):
        out = place / "out"
        target: Any = SqliteStore(out / "b.db") if work == "repair-jsonl" else JsonlStore(out / "b")
        there = await _ids(target)
        assert there in ([], [COPY])
        found.append(bool(there))
        for name, data in wanted.files.items():
            assert (place / "s" / name).read_bytes() == data, "the damaged session is another"
        source: Any = JsonlStore(place / "s") if work == "repair-jsonl" else SqliteStore(place / "s" / "x.db")
        if there:
            assert await rows_of(target, COPY) == wanted.copy
            with pytest.raises(InvalidWrite):
                await source.repair("s", target, session_id=COPY)
            await target.delete(COPY)
        report = await source.repair("s", target, session_id=COPY)
        assert report == wanted.repaired
        assert await _ids(target) == [COPY] and await rows_of(target, COPY) == wanted.copy
        told = (await target.verify(COPY)).findings
        assert [each for each in told if each.loses or each.code in ("half_loaded", "leftover")] == []
        await source.close()
        await target.close()
        if work == "repair-jsonl":
            assert set(content(out)) == {"b.db"}
        else:
            assert set(content(out / "b")) - {f"{COPY}.jsonl.index"} == {f"{COPY}.jsonl"}
    assert found[0] and found[1:] == sorted(found[1:]) and not found[1]


async def _ids(store: Store) -> list[str]:
    return [each.id for each in await store.list()]
