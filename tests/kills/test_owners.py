"""Claim: of two processes that want a session, after a death or at its birth, one has it and the other is told."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.kills.children import Child, Zygote
from tests.kills.history import History
from tests.kills.judge import require_right
from tests.kills.reports import Job, Opened, Refused, Stop
from tests.kills.work import WORKS

ROUNDS = 2
ROUNDS_WHOLE = 20
FIRST = ("commit.accept.after", "commit.tool_intents.after", "commit.terminal.inside", "effect.tool.start")


@pytest.mark.parametrize("disk", ["jsonl", "sqlite"])
async def test_of_two_that_want_it_one_has_it(disk: str, zygote: Zygote, tmp_path: Path, whole: bool) -> None:
    chance = random.Random(f"owners {disk}")
    for number in range(ROUNDS_WHOLE if whole else ROUNDS):
        history = History(
            zygote.start,
            tmp_path / str(number),
            work=chance.choice(sorted(WORKS)),
            disk=disk,
            durability="process",
            seed=number * 10,
        )
        # Given: a session that nobody made yet, or whose owner was killed.
        if number % 3:
            history.run(Stop(chance.choice(["kill", "exit"]), chance.choice(FIRST)))

        # When: two processes want it at once, and when the one that has it is killed, two others.
        for _ in range(1 + number % 2):
            job, owner = one_of_two(history, zygote)
            owner.signal(9)
            assert history.ended(owner, job, ["kill"]).how == "kill", history.story()
        job, owner = one_of_two(history, zygote)
        owner.open_gate()
        history.ended(owner, job, [])

        # Then: the last owner has done all the work.
        await require_right(history)


def one_of_two(history: History, zygote: Zygote) -> tuple[Job, Child]:
    """Let two processes open the session at the same time: the one that has it, which waits at its gate."""
    jobs = [history.job(gate=True), history.job(gate=True)]
    children = [zygote.start(job) for job in jobs]
    for child in children:
        child.open_gate()
    owners = []
    for job, child in zip(jobs, children, strict=True):
        while not isinstance(child.next(), Opened | Refused | None):
            pass
        if any(isinstance(report, Opened) for report in child.reports):
            owners.append((job, child))
        else:
            life = history.ended(child, job, [])
            codes = [report.code for report in life.reports if isinstance(report, Refused)]
            assert (life.code, codes) in [(0, ["session_owned"]), (0, ["store_owned"])], history.story()
    assert len(owners) == 1, history.story()
    return owners[0]
