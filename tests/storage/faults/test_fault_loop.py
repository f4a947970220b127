"""Claim: whichever call of a store fails, what was reported is there, what failed is there whole or not at all, and the
error says why.

The n-th call fails, n rising until none does: once, or with all later ones of its kind until the cause is mended.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from tests.storage.faults.media import KINDS, MEDIA, descriptors, medium_at
from tests.storage.faults.planned import Faults
from tests.storage.faults.workload import Run

SECONDS_MAX = 60
PROGRAMS: list[Literal["make", "work"]] = ["make", "work"]
STEP = {"jsonl": 11, "sqlite": 47}
"""Each so-maniest call in the reduced form."""
STEP_WHOLE = {"jsonl": 1, "sqlite": 11}
TAIL = b'{"k":"torn'
"""What a killed owner left at the end of the JSONL file."""


async def one_go(name: str, program: str, faults: Faults, folder: Path, template: Path | None = None) -> list[str]:
    """A program on a fresh place; what failed in it. Raises where a rule is broken, or something is left open."""
    if template is not None:
        shutil.copytree(template, folder, dirs_exist_ok=True)
    before = descriptors(), threading.active_count()
    with medium_at(name, folder, faults) as medium:
        run = Run(medium)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await (run.make() if program == "make" else run.work())
        except BaseException:
            run.give_up()
            raise
    assert (descriptors(), threading.active_count()) == before, f"left open after {faults.struck} and {run.failures}"
    left = [each.name for each in folder.rglob("*") if each.name.endswith((".new", "-journal"))]
    assert left == [], f"left behind after {faults.struck} and {run.failures}"
    if template is not None and name.startswith("jsonl"):
        kept = [each.read_bytes() for each in folder.rglob("*.torn-*")]
        assert TAIL in kept and len(kept) <= 1 + len(run.failures), f"{kept} after {faults.struck}"
        if len(faults.struck) == 1:
            assert kept == [TAIL], f"{kept} after {faults.struck}"
    return run.failures


async def made(name: str, folder: Path) -> Path:
    """A place with an empty session ``s``, which a killed owner left."""
    with medium_at(name, folder, Faults()) as medium:
        store = medium.store()
        await store.create("s")
        await store.close()
    if name.startswith("jsonl"):
        with (folder / "s" / "s.jsonl").open("ab") as file:
            file.write(TAIL)
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", MEDIA)
async def test_every_call_may_fail(name: str, program: Literal["make", "work"], tmp_path: Path, whole: bool) -> None:
    template = await made(name, tmp_path / "template") if program == "work" else None
    kind = name.partition("-")[0]
    step = (STEP_WHOLE if whole else STEP)[kind]
    clean = Faults()
    with TemporaryDirectory(dir=tmp_path) as folder:
        assert await one_go(name, program, clean, Path(folder), template) == []
    failed: set[str] = set()
    nth = 1 + name.endswith("-disk")
    while True:
        # Those that fail for good take turns with those that fail once.
        permanent = nth // step % 2 == 1
        faults = Faults(KINDS[name], nth=nth, permanent=permanent)
        with TemporaryDirectory(dir=tmp_path) as folder:
            try:
                await one_go(name, program, faults, Path(folder), template)
            except Exception as error:
                error.add_note(f"call {nth} of {program} on {name} failed, for good: {permanent}; {faults.struck}")
                raise
        if not faults.struck:
            break
        failed.add(faults.struck[0].partition(":")[0])
        nth += step
    if whole:
        assert failed >= {call for call, count in clean.calls.items() if count > 2 * step}
