"""Claim: of several who wait for commits that the medium takes together, any may be cancelled: no commit is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from agentlane import ListAddress
from tests.cancellation.kinds import KINDS, UNCANCELLED, Kind, cancelled, trials
from tests.cancellation.leaks import run_clean
from tests.cancellation.world import BACKENDS, Backend, World

COMMITTERS = 3
SHARING: list[Backend] = [each for each in BACKENDS if each != "memory"]
LEAVE_TURNS = 10
"""In how many turns of the loop those have left that are cancelled while their commit is held."""


@pytest.mark.parametrize("backend", SHARING)
def test_any_of_them_may_be_cancelled(backend: Backend, tmp_path: Path, whole: bool) -> None:
    choices = list(product([False, True], repeat=COMMITTERS))
    for kind, folder in trials(KINDS, tmp_path, part=SHARING.index(backend), of=len(SHARING), whole=whole):
        for number, leaving in enumerate(choices if whole else [(False, True, True)]):
            place = folder / str(number)
            place.mkdir()
            run_clean(partial(_together, backend, kind, leaving, place), place)


async def _together(backend: Backend, kind: Kind, leaving: tuple[bool, ...], folder: Path) -> None:
    world = World(backend, folder)
    await world.fill()
    session, numbers = world.session, ListAddress("app.test", "numbers", int)
    world.hold_commits()

    committers = [
        asyncio.ensure_future(cancelled(session.append(numbers, number), kind if leaves else UNCANCELLED))
        for number, leaves in enumerate(leaving)
    ]
    if world.gated is not None:
        await world.gated.gate.arrived(COMMITTERS)
        for _ in range(LEAVE_TURNS):
            await asyncio.sleep(0)
        world.gated.gate.open()
    left = await asyncio.gather(*committers)

    assert [gone for gone, leaves in zip(left, leaving, strict=True) if not leaves] == [False] * leaving.count(False)
    assert all(gone or not kind.at_once for gone, leaves in zip(left, leaving, strict=True) if leaves)
    await session.append(numbers, COMMITTERS)  # committed behind the others, so they are by now
    kept = [each for _, each in await session.elements(numbers)]
    assert sorted(kept) == [*range(COMMITTERS + 1)] and kept[-1] == COMMITTERS
    await world.agree()
    await world.end()
