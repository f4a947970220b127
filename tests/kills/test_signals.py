"""Claim: a program that handles its signals closes its session and ends; one that does not dies, and loses nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentlane import open_session
from tests.kills.children import Zygote
from tests.kills.history import CODES, History
from tests.kills.judge import require_right
from tests.kills.life import SESSION, store_of
from tests.kills.reports import CLOSING, HOWS, Closed, How, Opened, Published, Stop, Stopping

DISKS = ("jsonl", "sqlite")


def begin(zygote: Zygote, folder: Path, disk: str, *, work: str = "mixed", durability: str = "disk") -> History:
    return History(zygote.start, folder / "history", work=work, disk=disk, durability=durability, seed=1)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("disk", DISKS)
async def test_each_end_has_its_code_and_holds_nobody_up(disk: str, how: How, zygote: Zygote, tmp_path: Path) -> None:
    """R01, R47, R121: a plain function runs in a thread when the end comes, and does not keep the interpreter."""
    history = begin(zygote, tmp_path, disk)

    life = history.run(Stop(how, "effect.tool.start", 8))

    assert (life.how, life.code) == (how, CODES[how]), history.story()
    assert any(isinstance(each, Closed) for each in life.reports) == (how == "term host")
    history.run()
    await require_right(history)


@pytest.mark.parametrize("how", sorted(CLOSING))
@pytest.mark.parametrize("disk", DISKS)
async def test_a_clean_close_puts_back_what_had_not_begun(disk: str, how: How, zygote: Zygote, tmp_path: Path) -> None:
    """The signal comes while the intents of five calls are on their way to the disk: they are committed, and undone."""
    history = begin(zygote, tmp_path, disk)

    closed = history.run(Stop(how, "commit.tool_intents.inside", 1, first_closing=True))
    effects = (history.folder / "effects.log").exists()
    again = history.run()

    assert closed.how == how, history.story()
    assert "commit.close.after" in [place.row for place in closed.rows()]
    assert not effects
    opened = next(each for each in again.reports if isinstance(each, Opened))
    assert opened == Opened([], [])
    await require_right(history)


@pytest.mark.parametrize("row", ["commit.lane.inside", "commit.accept.inside"])
@pytest.mark.parametrize("how", sorted(CLOSING))
async def test_a_close_waits_for_a_commit_that_is_on_its_way(
    how: How, row: str, zygote: Zygote, tmp_path: Path
) -> None:
    """A caller waits for the commit when the signal comes: it is made, and told, before the session is closed."""
    history = begin(zygote, tmp_path, "sqlite")

    closed = history.run(Stop(how, row, first_closing=True))

    assert closed.how == how, history.story()
    assert closed.rows()[-1].row == row.replace("inside", "after")
    history.run()
    await require_right(history)


@pytest.mark.parametrize("disk", DISKS)
async def test_a_closed_session_is_free_before_its_process_ends(disk: str, zygote: Zygote, tmp_path: Path) -> None:
    history = begin(zygote, tmp_path, disk)
    job = history.job(hosted=True, gate=True)
    child = zygote.start(job)
    child.open_gate()
    child.open_gate()
    assert child.until(Published)

    child.signal(signal.SIGTERM)
    assert child.until(Closed)
    store = store_of(disk, "process", history.folder)
    async with open_session(store, session_id=SESSION, create=False) as session:
        found = session.id
    await store.close()
    child.open_gate()
    life = history.ended(child, job, ["term host"])

    assert (found, life.how) == (SESSION, "term host"), history.story()
    history.run()
    await require_right(history)


@pytest.mark.parametrize("disk", DISKS)
async def test_an_impatient_ctrl_c_ends_it_all_the_same(disk: str, zygote: Zygote, tmp_path: Path, whole: bool) -> None:
    """Each Ctrl-C after the first raises where the program is. Things may be left undone, never a broken session."""
    plain = begin(zygote, tmp_path, disk)
    rows = sorted({place.row for place in plain.run().rows()})
    chosen = rows[:: 3 if whole else 17]
    pressed = 0
    for number, row in enumerate(chosen):
        history = History(
            zygote.start, tmp_path / str(number), work="mixed", disk=disk, durability="process", seed=number
        )
        job = history.job(stops=[Stop("int", row)])
        child = zygote.start(job)

        # What is staged or saved on the way is for the machine's pace to say: this life may not come by there.
        reached = child.until(Stopping)
        if reached:
            child.press(signal.SIGINT)
        pressed += reached
        history.ended(child, job, [], killed=reached)

        history.run()
        await require_right(history)
    assert pressed > len(chosen) // 2
