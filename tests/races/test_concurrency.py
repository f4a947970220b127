"""Claim: whatever many tasks, threads, readers and processes do to a session at once, everything told is there once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from agentlane.storage.contract import Store
from agentlane.testing.clock import ManualClock
from tests.races.stage import BACKENDS, Backend, make_store
from tests.races.storm import play
from tests.races.storm_claims import check_claims

ROUNDS, ROUNDS_WHOLE = 10, 334
"""Rounds on each of the three backends."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_storms(backend: Backend, tmp_path: Path, whole: bool) -> None:
    def make(folder: Path, clock: ManualClock) -> Store:
        return make_store(backend, folder, clock)

    for seed in range(ROUNDS_WHOLE if whole else ROUNDS):
        before = set(threading.enumerate())
        folder = tmp_path / str(seed)
        folder.mkdir()

        async def round_(seed: int = seed, folder: Path = folder) -> None:
            await play(seed, make, folder, check_claims)
            assert asyncio.all_tasks() == {asyncio.current_task()}, f"seed {seed}"

        asyncio.run(round_())
        left = set(threading.enumerate()) - before
        for thread in left:
            thread.join(timeout=10)
        assert not [thread.name for thread in left if thread.is_alive()], f"seed {seed}"
