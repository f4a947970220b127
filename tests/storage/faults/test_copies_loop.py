"""Claim: whichever call fails of what writes beside commits (copies, cleanups, searches, deletions), nothing half-made
is ever found, the error says why, nothing stays behind, and it works when it is tried again.

The n-th call fails, n rising until none does: once, or with all later ones of its kind until the cause is mended.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

import pytest

from agentlane.storage import SqliteStore, index_snapshot, jsonl_base, sqlite, sqlite_snapshot
from agentlane.storage.files import let_go
from agentlane.storage.jsonl_base import BaseFile
from agentlane.storage.jsonl_compact import Compaction
from agentlane.storage.jsonl_folder import JsonlFolder
from agentlane.storage.sqlite_search import SqliteSearch
from tests.storage.faults import media
from tests.storage.faults.copies import ACTIONS, COUNT_STRANGERS, Action, Wanted, World, fill
from tests.storage.faults.media import KINDS, Medium, descriptors, medium_at
from tests.storage.faults.planned import Faults

W = TypeVar("W")

SECONDS_MAX = 60
INLINE = ("compact", "drop", "reopen")
"""Of a JSONL store what is written elsewhere without syncs."""
PAIRS = [
    (name, action)
    for name in ("jsonl-disk", "sqlite-disk", "jsonl-process")
    for action in ACTIONS
    if name.startswith(action.only) and (name != "jsonl-process" or action.name in INLINE)
]
STEP = {"jsonl": 41, "sqlite": 211}
"""Each so-maniest call in the reduced form."""
STEP_WHOLE = {"jsonl": 7, "sqlite": 37}
PAGE_ROWS = 8
"""How long pages and lines are here, so that a small session has several of them."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (index_snapshot, sqlite_snapshot):
        monkeypatch.setattr(module, "PAGE_ROWS", PAGE_ROWS)
    monkeypatch.setattr(jsonl_base, "LINE_FRAMES", 3 * PAGE_ROWS)
    monkeypatch.setattr(media, "INDEX_MIN_BYTES", None)  # what first fails with an index is nothing to tell


def names(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir()}


async def one_go(
    name: str,
    action: Action,
    folder: Path,
    template: Path,
    wanted: W,
    nth: int,
    *,
    permanent: bool = False,
    make: Callable[[Medium, Path, W], World] = World,  # type: ignore[assignment]
) -> tuple[World, set[str]]:
    """An action on a fresh place; what failed in it, and the files that are then there."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    before, threads = descriptors(), set(threading.enumerate())
    with medium_at(name, folder, Faults()) as medium:
        world = make(medium, folder, wanted)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await world.go(action, KINDS[name], nth=nth, permanent=permanent)
        except BaseException:
            world.give_up()
            raise
    for thread in set(threading.enumerate()) - threads:
        thread.join(SECONDS_MAX)  # one that has told its result may not have ended
    assert (descriptors(), set(threading.enumerate())) == (before, threads), f"left open after {world.told()}"
    for file in world.files():
        database = sqlite3.connect(file)
        assert database.execute(COUNT_STRANGERS).fetchone() == (0,), f"rows of nobody in {file} after {world.told()}"
        database.close()
    return world, names(folder)


Templates: TypeAlias = "dict[str, tuple[Path, Wanted]]"


@pytest.fixture(scope="module")
def templates() -> Templates:
    """Places as they are before, by the name of the medium."""
    return {}


async def template_of(templates: Templates, name: str, places: pytest.TempPathFactory) -> tuple[Path, Wanted]:
    if name not in templates:
        folder = places.mktemp(name)
        with medium_at(name, folder, Faults()) as medium:
            templates[name] = folder, await fill(medium, folder)
    return templates[name]


@pytest.mark.parametrize(
    ("name", "action"), PAIRS, ids=[f"{name}-{action.name.replace(' ', '-')}" for name, action in PAIRS]
)
async def test_every_call_of_it_may_fail(
    name: str,
    action: Action,
    tmp_path: Path,
    whole: bool,
    templates: Templates,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    template, wanted = await template_of(templates, name, tmp_path_factory)
    step = (STEP_WHOLE if whole else STEP)[name.partition("-")[0]]
    with TemporaryDirectory(dir=tmp_path) as folder:
        clean, left = await one_go(name, action, Path(folder), template, wanted, 0)
    assert clean.failures == []
    nth = 1 + ACTIONS.index(action) % step
    while True:
        permanent = nth // step % 2 == 1
        with TemporaryDirectory(dir=tmp_path) as folder:
            try:
                world, found = await one_go(name, action, Path(folder), template, wanted, nth, permanent=permanent)
                assert found == left, f"left behind, and missing: {found - left}, {left - found} after {world.told()}"
            except Exception as error:
                error.add_note(f"call {nth} of {action.name} on {name} failed, for good: {permanent}")
                raise
        if not world.faults.struck:
            break
        nth += step


# That the loop finds what is wrong about faults: each of these is wrong in one way.


def hides_the_cause(patch: pytest.MonkeyPatch) -> None:
    """What cannot be cleared up behind a failure is told in place of it."""

    def give_up(self: BaseFile) -> None:
        self._files.close(self.descriptor)
        self._files.unlink(self._fresh)

    patch.setattr(BaseFile, "give_up", give_up)


def leaves_a_load_behind(patch: pytest.MonkeyPatch) -> None:
    """Neither who failed nor who comes later removes what is left of a load."""
    patch.setattr(SqliteStore, "_undo", lambda self, writer, load, loading: loading.discard(load.key))
    patch.setattr(sqlite, "sweep", lambda database, loading: None)


def leaves_a_file_behind(patch: pytest.MonkeyPatch) -> None:
    """The same of the JSONL store."""
    patch.setattr(BaseFile, "give_up", lambda self: let_go(self._files, self.descriptor))
    patch.setattr(JsonlFolder, "sweep", lambda self: None)


def fails_behind_the_point_of_no_return(patch: pytest.MonkeyPatch) -> None:
    """A cleaned-up file has its place, and the session goes on with the old one."""
    put = Compaction.put

    def late(self: Compaction) -> None:
        put(self)
        self._files.status(self.descriptor)

    patch.setattr(Compaction, "put", late)


def takes_a_failed_read_for_damage(patch: pytest.MonkeyPatch) -> None:
    """A transaction that a failed read has ended is ended once more, and that is told."""
    ask = SqliteSearch._ask

    class Ending:
        """A connection that has a transaction for ever."""

        def __init__(self, database: sqlite3.Connection) -> None:
            self._database = database
            self.in_transaction = True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._database, name)

    patch.setattr(SqliteSearch, "_ask", lambda self, database, **rest: ask(self, Ending(database), **rest))  # type: ignore[arg-type]


Breakage: TypeAlias = Callable[[pytest.MonkeyPatch], None]
BREAKAGES: list[tuple[Breakage, str, str, int]] = [
    (hides_the_cause, "jsonl-disk", "load", 23),
    (leaves_a_file_behind, "jsonl-disk", "load", 13),
    (leaves_a_load_behind, "sqlite-disk", "load", 240),
    (fails_behind_the_point_of_no_return, "jsonl-disk", "compact", 55),
    (takes_a_failed_read_for_damage, "sqlite-disk", "search", 45),
]
"""Each with an action that shows it, and from which call on."""


@pytest.mark.parametrize(
    ("breakage", "name", "shown", "begin"), BREAKAGES, ids=[each[0].__name__ for each in BREAKAGES]
)
async def test_what_is_wrong_about_faults_is_caught(
    breakage: Breakage,
    name: str,
    shown: str,
    begin: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    templates: Templates,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    template, wanted = await template_of(templates, name, tmp_path_factory)
    action = next(each for each in ACTIONS if each.name == shown)
    gc.collect()  # what was broken before may have left something open
    with TemporaryDirectory(dir=tmp_path) as folder:
        _, left = await one_go(name, action, Path(folder), template, wanted, 0)
    breakage(monkeypatch)
    nth = begin
    while True:
        for permanent in (False, True):
            with TemporaryDirectory(dir=tmp_path) as folder:
                try:
                    world, found = await one_go(name, action, Path(folder), template, wanted, nth, permanent=permanent)
                except Exception:
                    return
            if found != left:
                return
            assert world.faults.struck, f"not caught by the failure of any call up to {nth}"
        nth += 1
