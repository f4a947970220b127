"""Claim: who drives a lane only watches: cancelled, it leaves, and the pass goes on for the others, or by itself."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from agentlane import Settled, Waiting
from tests.cancellation.kinds import KINDS, UNSTARTED, Kind, cancelled, trials
from tests.cancellation.leaks import run_clean
from tests.cancellation.world import BACKENDS, Backend, World

TURNS_MAX = 200
EARLY = [kind for kind in KINDS if kind.name != "as it arrives"]
"""Here what is waited for does not arrive before the cancellation."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pass_goes_on_for_who_joined_it(backend: Backend, tmp_path: Path, whole: bool) -> None:
    async def main(kind: Kind, folder: Path) -> None:
        world = World(backend, folder)
        await world.fill()
        await world.in_a_call()
        lane = await world.lane()
        other = asyncio.ensure_future(lane.drive())

        assert await cancelled(lane.drive("op"), kind)
        assert not other.done() and lane.inspect().driving
        world.let_go.set()
        outcome = await other

        assert isinstance(outcome, Settled) and outcome.result.status == "completed"
        assert world.talker.requests == 3, "the first run's, and one before and one behind the call"
        assert len(world.contexts) == 1
        await world.end()

    for kind, folder in trials(EARLY, tmp_path, part=BACKENDS.index(backend), of=4, whole=whole):
        run_clean(partial(main, kind, folder), folder)


def test_the_pass_goes_on_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        world = World("memory", tmp_path)
        await world.fill()
        await world.in_a_call()
        lane = await world.lane()

        for task in world.watching():
            task.cancel()
        world.let_go.set()
        for _ in range(TURNS_MAX):
            if not lane.inspect().driving:
                break
            await asyncio.sleep(0)

        result = await lane.result("op")
        assert result is not None and result.status == "completed"
        assert world.talker.requests == 3
        await world.end()

    run_clean(main, tmp_path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cancelled_before_it_begins_nothing_starts(backend: Backend, tmp_path: Path) -> None:
    async def main() -> None:
        world = World(backend, tmp_path)
        await world.fill()
        lane = await world.accept("hello")

        assert await cancelled(lane.drive(), UNSTARTED)

        assert not lane.inspect().driving and world.talker.requests == 1
        await world.settle()
        await world.end()

    run_clean(main, tmp_path)


def test_a_wait_ends_with_the_last_who_sits_it_out(tmp_path: Path, whole: bool) -> None:
    """Another who sits it out keeps the pass asleep; when nobody does, it ends, and no timer is left."""

    async def main(kind: Kind, folder: Path) -> None:
        world = World("memory", folder)
        await world.fill()
        lane = await world.accept("fail")
        first = asyncio.ensure_future(lane.drive())
        await world.clock.sleeping()

        assert await cancelled(lane.drive(), kind)
        assert lane.inspect().driving and len(world.clock.sleepers) == 1
        first.cancel()
        for _ in range(TURNS_MAX):
            if not lane.inspect().driving and world.clock.next_due is None:
                break
            await asyncio.sleep(0)

        assert not lane.inspect().driving and world.clock.next_due is None
        assert isinstance(await lane.drive(wait_for_retry=False), Waiting)
        await world.settle()
        assert world.talker.requests == 3
        await world.end()

    for kind, folder in trials(EARLY, tmp_path, part=0, of=2, whole=whole):
        run_clean(partial(main, kind, folder), folder)
