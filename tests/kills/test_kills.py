"""Claim: whenever and however a process is ended, the next one goes on, and nothing that counts is lost or doubled.

Real processes on the disk stores, ended by ``SIGKILL``, ``SIGTERM``, ``SIGINT`` and ``os._exit``: at every boundary
that they reach, at random moments of their life, inside recoveries and inside clean closes. The whole form ends a
thousand of them.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count, cycle, product
from pathlib import Path

import pytest

from agentlane.storage.contract import Durability
from tests.kills.children import Zygote, fresh
from tests.kills.history import History
from tests.kills.judge import require_right
from tests.kills.plan import WHENS, Plan
from tests.kills.reports import HOWS
from tests.kills.work import WORKS

DISKS = ("jsonl", "sqlite")
DURABILITIES: tuple[Durability, ...] = ("process", "disk")
KILLS = 8
KILLS_WHOLE = 30
"""Of each work, on each disk, with each durability, and of those of ``host`` with one; with those that the hunts for
boundaries take a thousand and some."""
HOST_PLACES = (("jsonl", "disk"), ("sqlite", "process"))
"""It has so many boundaries that the hunt for all of them takes as many kills again."""
WHEN_MIN = 1
"""Of the whole form's kills in first lives, in recoveries and in closes each; most closes write little or nothing."""
DEATHS_MAX = 3
"""In one history: the bounds on restarts and replays allow as many."""
HUNTS_MAX = 120
CLOSES_WRITE = {"mixed"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The whole form does each work everywhere; the reduced one does each once."""
    if "work" in metafunc.fixturenames:
        places = list(product(DISKS, DURABILITIES))
        every = [(*place, work) for place in places for work in WORKS if work != "host" or place in HOST_PLACES]
        some = [(*place, work) for place, work in zip(cycle(places), WORKS, strict=False)]
        metafunc.parametrize(("disk", "durability", "work"), every if metafunc.config.getoption("--whole") else some)


async def test_ended_anyhow_anywhere_it_goes_on(
    disk: str,
    durability: Durability,
    work: str,
    zygote: Zygote,
    tmp_path: Path,
    whole: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    closes_write = work in CLOSES_WRITE
    plan = Plan(f"{disk} {durability} {work}", closes=closes_write)
    numbers, wanted = count(), KILLS_WHOLE if whole else KILLS

    def history() -> History:
        number = next(numbers)
        folder = tmp_path / str(number)
        return History(zygote.start, folder, work=work, disk=disk, durability=durability, seed=number * 100)

    # Given: what is reached when nobody stops it.
    await finish(history(), plan)

    # When: processes are ended, up to three in one history, and then where a boundary was let be so far.
    for some in (wanted // 2, wanted):
        while plan.kills < some:
            made = history()
            for _ in range(plan.chance.randint(1, DEATHS_MAX)):
                if plan.end_one(made).how is None:
                    break
            await finish(made, plan)
        for _ in range(HUNTS_MAX if whole else 0):
            if not plan.missing():
                break
            in_recovery, stops = plan.hunt()
            made = history()
            if in_recovery:
                plan.lead(made)
            plan.count(made.run(*stops))
            await finish(made, plan)

    # A process that is told to end may come to its end before it does.
    for _ in range(HUNTS_MAX if whole else 0):
        if set(plan.hows) == set(HOWS):
            break
        made = history()
        plan.count(made.run(*plan.aim_at_an_end()))
        await finish(made, plan)

    # Whether a process reaches a boundary once it is told to close is for the machine's pace to say, but for one that
    # has intended calls, which it puts back.
    for _ in range(HUNTS_MAX if whole and closes_write else 0):
        if plan.whens["a close"] >= WHEN_MIN:
            break
        made = history()
        plan.count(made.run(*plan.aim_at_a_close()))
        await finish(made, plan)

    # Then: every kind of end and every boundary was there.
    with capsys.disabled() if whole else nullcontext():
        print(f"\n{work} on {disk}, durability {durability}: {plan.table()}")
    assert plan.kills >= wanted
    if whole:
        assert set(plan.hows) == set(HOWS)
        assert all(plan.whens[when] >= WHEN_MIN for when in WHENS if when != "a close" or closes_write)
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
