"""Claim: an owner that is killed in the middle of anything is replaced at once, by one, and no commit is lost."""

from __future__ import annotations

import re
import select
from typing import Any

import pytest

from tests.kills.children import PATIENCE_S
from tests.owners.processes import Process, Stage

BESIDE = ["nothing", "compact", "search", "fork", "backup", "delete", "optimize"]
"""What an owner does beside its commits. ``fork`` is a load into the store, ``compact`` a rename or a VACUUM."""
CONTENDERS = 4
OWNERS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "beside" in metafunc.fixturenames:
        cases = [
            (kind, each) for kind in ("jsonl", "sqlite") for each in BESIDE if (kind, each) != ("jsonl", "optimize")
        ]
        sample = [("jsonl", "compact"), ("sqlite", "nothing")]
        metafunc.parametrize(("kind", "beside"), cases if metafunc.config.getoption("--whole") else sample)


async def test_a_killed_owner_is_replaced_at_once_by_one_of_those_who_wait(stage: Stage, beside: str) -> None:
    """R75, R76: again and again, each owner at work, and the others asking without a pause."""
    owner = stage.owner()
    owner.begin("work", beside=f"{beside}", name="0")
    owners, epochs = [owner], [1]
    for number in range(1, OWNERS):
        owner.until("round", times=number)
        contenders = [stage.process() for _ in range(CONTENDERS)]
        for each in contenders:
            each.begin("contend")
        for each in contenders:
            each.until("contends")
        owner.until("begins", times=3 * number)
        owner.kill()

        owner, opened = winner(contenders)
        for each in contenders:
            if each is not owner:
                each.kill()

        begun = {label for each in owners for label in each.begun}
        wrote = {label: seq for each in owners for label, seq in each.wrote.items()}
        assert {text: seq for seq, text in opened["log"] if text in wrote} == wrote
        assert {text for _, text in opened["log"]} <= begun
        assert set(opened["refused"]) <= {str(each.pid) for each in owners}
        epochs.append(opened["epoch"])
        owners.append(owner)
        owner.begin("work", beside=beside, name=str(number))
    owner.until("round")
    owner.kill()

    assert epochs == sorted(set(epochs)), "two owners have one epoch"
    wrote = {label: seq for each in owners for label, seq in each.wrote.items()}
    begun = {label for each in owners for label in each.begun}
    await stage.judge(wrote, begun)
    leftovers(stage, tidied(stage))


def winner(contenders: list[Process]) -> tuple[Process, dict[str, Any]]:
    """The one of them that has it now. Each of the others stays refused until that one is killed."""
    ready, _, _ = select.select(contenders, [], [], PATIENCE_S)
    (won,) = ready
    return won, won.result()


def tidied(stage: Stage) -> Process:
    """A last owner, which removes the forks that others left, cleans up and closes."""
    last = stage.process()
    last.do("open")
    last.do("tidy")
    last.do("close")
    return last


def leftovers(stage: Stage, last: Process) -> None:
    """Beside the session there is nothing but backups, which were asked for, and what was locked to make or remove a
    session when that was killed."""
    passed_over = r"sessions(\.db)?\.\d+\.backup|sessions/[0-9a-f-]{36}\.jsonl\.lock"
    names = {name for name in stage.names() if not re.match(passed_over, name)}
    if stage.kind == "sqlite":
        assert names == {"sessions.db", "sessions.db.lock"}
    else:
        assert names == {"sessions", "sessions/s.jsonl", "sessions/s.jsonl.lock"}
    place = f"{stage.folder}/"
    assert [each for each in last.do("descriptors") if each.startswith(place) and "sessions" in each] == []
