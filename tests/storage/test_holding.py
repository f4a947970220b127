"""Claim: what is held is let go once, however the block ends, and what is told is how that ended."""

from __future__ import annotations

import asyncio

import pytest

from agentlane.storage.holding import Hold


class Thing:
    """``told`` says what was done with it; closing it waits, and fails where it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[str] = []
        self._fails = fails

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.told.append("closed")
        if self._fails:
            raise OSError("it cannot be closed")

    def kill(self) -> None:
        self.told.append("killed")


async def used(thing: Thing, error: BaseException | None = None) -> str:
    async with Hold(thing, thing.close, thing.kill) as held:
        assert held is thing and thing.told == []
        if error is not None:
            raise error
        await asyncio.sleep(0)
    return "used"


@pytest.mark.parametrize("error", [ValueError("first"), asyncio.CancelledError("first")], ids=["fails", "is cancelled"])
async def test_it_is_closed_behind_the_block_and_the_first_error_is_told(error: BaseException) -> None:
    thing, bad = Thing(), Thing(fails=True)

    assert await used(thing) == "used" and thing.told == ["closed"]
    with pytest.raises(OSError, match="it cannot be closed"):
        await used(bad)
    for each in (Thing(), Thing(fails=True)):
        with pytest.raises(type(error), match="first"):
            await used(each, error)
        assert each.told == ["closed"]


async def test_thrown_away_it_is_killed_and_nothing_is_awaited() -> None:
    thing = Thing()
    waiting = used(thing)
    waiting.send(None)
    waiting.close()

    assert thing.told == ["killed"]


async def test_what_is_handed_over_or_closed_by_others_is_left_alone() -> None:
    thing = Thing()
    hold = Hold(thing, thing.close, thing.kill)
    async with hold:
        assert hold.hand_over() is thing
    async with Hold(thing) as held:
        assert held is thing

    assert thing.told == []
