"""Claim: whichever call fails while a session is verified or repaired, that is told as an error, or the report and the
copy are those of a medium that does not fail; damaged or not, the session stays as it was, and nothing stays behind.

The n-th call fails, n rising until none does: once, or with all later ones of its kind until the cause is mended.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pytest

from agentlane.storage import damaged_tables, index_snapshot, jsonl_base, jsonl_file, jsonl_payloads, sqlite_snapshot
from tests.storage.faults.media import medium_at
from tests.storage.faults.planned import Faults
from tests.storage.faults.repairs import ACTIONS, RepairWorld, Wanted, fill
from tests.storage.faults.test_copies_loop import one_go
from tests.storage.faults.workload import Wrong

GOES, GOES_WHOLE = 2, 7
"""How many of its calls fail, far from each other."""
PAGE_ROWS = 8
CASES = [
    (kind, damaged, action)
    for kind in ("jsonl", "sqlite")
    for damaged in (False, True)
    for action in ("verify", "repair" if damaged else "repair here")
]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (index_snapshot, sqlite_snapshot):
        monkeypatch.setattr(module, "PAGE_ROWS", PAGE_ROWS)
    monkeypatch.setattr(jsonl_base, "LINE_FRAMES", 3 * PAGE_ROWS)


Templates: TypeAlias = "dict[tuple[str, bool], tuple[Path, Wanted]]"


@pytest.fixture(scope="module")
def templates() -> Templates:
    """Places as they are before, by the name of the medium, and whether the session there is damaged."""
    return {}


async def template_of(
    templates: Templates, name: str, damaged: bool, places: pytest.TempPathFactory
) -> tuple[Path, Wanted]:
    if (name, damaged) not in templates:
        folder = places.mktemp(name)
        with medium_at(name, folder, Faults()) as medium:
            templates[name, damaged] = folder, await fill(medium, folder, damaged=damaged)
    return templates[name, damaged]


@pytest.mark.parametrize(("kind", "damaged", "shown"), CASES)
async def test_every_call_of_it_may_fail(
    kind: str,
    damaged: bool,
    shown: str,
    tmp_path: Path,
    whole: bool,
    templates: Templates,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    name, action = f"{kind}-disk", ACTIONS[shown]
    template, wanted = await template_of(templates, name, damaged, tmp_path_factory)
    with TemporaryDirectory(dir=tmp_path) as place:
        clean, left = await one_go(name, action, Path(place), template, wanted, 0, make=RepairWorld)
    assert clean.failures == []
    step = clean.calls // (GOES_WHOLE if whole else GOES)
    nth = 1 + CASES.index((kind, damaged, shown)) * 7 % step
    while True:
        permanent = nth // step % 2 == 1
        with TemporaryDirectory(dir=tmp_path) as place:
            try:
                world, found = await one_go(
                    name, action, Path(place), template, wanted, nth, permanent=permanent, make=RepairWorld
                )
                assert found == left, f"left behind, and missing: {found - left}, {left - found} after {world.told()}"
            except Exception as error:
                error.add_note(f"call {nth} of {shown} on {name} failed, for good: {permanent}")
                raise
        if not world.faults.struck:
            break
        nth += step


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Page 16: unable to get the page. error code=266", 266),
        ("Tree 5 page 7: unable to get the page. error code=10", sqlite3.SQLITE_IOERR),
        ("*** in database main ***\nOn tree page 4 cell 2: failed to get page 9", sqlite3.SQLITE_IOERR),
        ("Page 3: btreeInitPage() returns error code 7", sqlite3.SQLITE_NOMEM),
        ("Page 3: btreeInitPage() returns error code 11", None),
        ("Page 12: never used", None),
        ("row 3 missing from index entry_landmark", None),
    ],
)
def test_a_page_that_the_check_of_sqlite_cannot_have_is_no_damage(said: str, code: int | None) -> None:
    """It tells both in one list, and goes on."""
    if code is None:
        damaged_tables.check_was_read(said)
        return
    with pytest.raises(sqlite3.OperationalError, match=re.escape(said)) as caught:
        damaged_tables.check_was_read(said)
    assert caught.value.sqlite_errorcode == code


# That the loop finds what is wrong about faults: each of these is wrong in one way.


def takes_every_error_for_damage(patch: pytest.MonkeyPatch) -> None:
    """Whatever SQLite says of a read is told of the file."""
    patch.setattr(damaged_tables, "damage_of", lambda error: damaged_tables.Damage(str(error)))


def takes_half_a_read_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """What the system does not give at once is not there."""
    for module in (jsonl_payloads, jsonl_file):
        patch.setattr(module, "read_all", lambda files, *what: files.pread(*what))


Breakage: TypeAlias = Callable[[pytest.MonkeyPatch], None]
BREAKAGES: list[tuple[Breakage, str, bool, int]] = [
    (takes_every_error_for_damage, "sqlite-disk", False, 8),
    (takes_half_a_read_for_the_end, "jsonl-disk", True, 8),
]
"""Each with a session that shows it when it is verified, and from which call on."""


@pytest.mark.parametrize(
    ("breakage", "name", "damaged", "begin"), BREAKAGES, ids=[each[0].__name__ for each in BREAKAGES]
)
async def test_what_is_wrong_about_faults_is_caught(
    breakage: Breakage,
    name: str,
    damaged: bool,
    begin: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    templates: Templates,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    template, wanted = await template_of(templates, name, damaged, tmp_path_factory)
    breakage(monkeypatch)
    nth = begin
    while True:
        for permanent in (False, True):
            with TemporaryDirectory(dir=tmp_path) as place:
                try:
                    world, _ = await one_go(
                        name,
                        ACTIONS["verify"],
                        Path(place),
                        template,
                        wanted,
                        nth,
                        permanent=permanent,
                        make=RepairWorld,
                    )
                except Wrong:
                    return
            assert world.faults.struck, f"not caught by the failure of any call up to {nth}"
        nth += 1
