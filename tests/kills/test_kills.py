"""Claim: whenever and however a process is ended, the next one goes on, and nothing that counts is lost or doubled.

Real processes on the disk stores, ended by ``SIGKILL``, ``SIGTERM``, ``SIGINT`` and ``os._exit``: at every boundary
that they reach, at random moments of their life, inside recoveries and inside clean closes. The whole form ends a
thousand of them.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.kills.children import Zygote, fresh
from tests.kills.history import History
from tests.kills.judge import require_right
from tests.kills.plan import Plan, works
from tests.kills.reports import HOWS
from tests.kills.work import WORKS

DISKS = ("jsonl", "sqlite")
DURABILITIES = ("process", "disk")
KILLS = 12
KILLS_WHOLE = 250
"""On each disk, with each durability."""
DEATHS_MAX = 3
"""In one history: the bounds on restarts and replays allow as many."""
HUNTS_MAX = 120


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("disk", DISKS)
async def test_ended_anyhow_anywhere_it_goes_on(
    disk: str, durability: str, zygote: Zygote, tmp_path: Path, whole: bool
) -> None:
    plan, numbers = Plan(f"{disk} {durability}"), count()

    async def history(work: str) -> History:
        number = next(numbers)
        return History(
            zygote.start, tmp_path / str(number), work=work, disk=disk, durability=durability, seed=number * 100
        )

    # Given: what each work reaches when nobody stops it.
    for work in WORKS if whole else ["mixed"]:
        await finish(await history(work), plan)

    # When: processes are ended, up to three in one history.
    while plan.kills < (KILLS_WHOLE if whole else KILLS):
        made = await history(works(plan))
        deaths = plan.chance.randint(1, DEATHS_MAX)
        for _ in range(deaths):
            if plan.end_one(made).how is None:
                break
        await finish(made, plan)

    # When: a boundary was let be so far.
    for _ in range(HUNTS_MAX if whole else 0):
        if not (missing := plan.missing()):
            break
        work, again, stops = plan.hunt(min(missing))
        made = await history(work)
        if again:
            plan.end_one(made)
        plan.count(made.run(*stops))
        await finish(made, plan)

    # Then: every kind of end and every boundary was there.
    print(f"\n{disk}, durability {durability}: {plan.table()}")
    assert plan.kills >= (KILLS_WHOLE if whole else KILLS)
    if whole:
        assert set(plan.hows) == set(HOWS)
        assert plan.missing() == set()


async def finish(history: History, plan: Plan | None = None) -> None:
    """Let a process come to its end, and look at the history."""
    life = history.run()
    if plan is not None:
        plan.count(life)
    await require_right(history)


@pytest.mark.parametrize("disk", DISKS)
async def test_the_same_with_interpreters_of_their_own(disk: str, tmp_path: Path, whole: bool) -> None:
    """What the other tests fork is started afresh here, as any program is."""
    plan, start = Plan(f"fresh {disk}"), fresh
    for number in range(4 if whole else 1):
        made = History(start, tmp_path / str(number), work="mixed", disk=disk, durability="disk", seed=number)
        while plan.end_one(made).how is None:
            pass
        await finish(made, plan)
