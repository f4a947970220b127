"""Claim: a lane that is moved and given work at the same time has exactly two histories."""

from __future__ import annotations

import asyncio

import pytest

from agentlane import LaneBusy, Prompt
from agentlane.data.messages import user
from agentlane.testing.gates import Hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Staged, settled, turns


@plays("navigate/accept", first="accept")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("how", ["navigate", "rewind"])
async def test_accept_then_navigate(staged: Staged, where: Hold, how: str) -> None:
    """The lane is busy by then, and stays where the accept has it."""
    async with staged(["first", "second"], hold=where) as at:
        result = await at.end()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        moving = asyncio.ensure_future(
            at.lane.navigate(None) if how == "navigate" else at.lane.rewind(result.inputs[0])
        )
        await turns()
        at.gate.open()

        admitted = await accepting
        with pytest.raises(LaneBusy) as caught:
            await moving
        assert caught.value.details["operation_id"] == "x"
        assert at.lane.tip() == admitted.inputs[0]
        assert settled(await at.lane.drive("x")).text == "second"
        assert await at.sound() == ["user go", "assistant[stop] first", "user more", "assistant[stop] second"]


@plays("navigate/accept", first="navigate")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("how", ["navigate", "rewind"])
async def test_navigate_then_accept(staged: Staged, where: Hold, how: str) -> None:
    """What is accepted meanwhile stands where the lane was moved to, and the model is shown nothing else."""
    async with staged(["first"], hold=where) as at:
        result = await at.end()
        at.gate.shut()
        moving = asyncio.ensure_future(
            at.lane.navigate(None) if how == "navigate" else at.lane.rewind(result.inputs[0])
        )
        await at.gate.arrived()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await turns()
        assert at.gate.held == ("navigate",)
        at.gate.open()

        assert (await moving).tip is None
        await accepting
        assert settled(await at.lane.drive("x")).status == "completed"
        assert await at.sound() == ["user more", "assistant[stop] first"]
        assert len(at.model.requests[-1].messages) == 1


@plays("navigate/append", first="navigate")
@plays("navigate/append", first="append")
@pytest.mark.parametrize("first", ["navigate", "append"])
@pytest.mark.parametrize("restored", [False, True])
async def test_navigate_and_append(staged: Staged, first: str, restored: bool) -> None:
    """Also on a lane whose path has not been read: the appended entry stands behind the one before it in time."""
    async with staged(["first"]) as at:
        await at.end()
        if restored:
            await at.session.close()
            await at.open_again()
        there = at.lane.tip()
        at.gate.shut()
        steps = {
            "navigate": lambda: at.lane.navigate(None),
            "append": lambda: at.lane.append_message(user("note")),
        }
        tasks = [asyncio.ensure_future(steps.pop(first)())]
        await at.gate.arrived()
        tasks += [asyncio.ensure_future(each()) for each in steps.values()]
        await turns()
        at.gate.open()
        await asyncio.gather(*tasks)

        said = await at.sound()
        if first == "navigate":
            assert said == ["user note"]
        else:
            assert said == []
            (note,) = [each for each in await at.session.entries() if each.body == user("note")]
            assert note.parent_id == there


@plays("navigate/navigate", first="one")
@plays("navigate/navigate", first="other")
@pytest.mark.parametrize("first", ["one", "other"])
async def test_two_at_once(staged: Staged, first: str) -> None:
    """The second starts from where the first went."""
    async with staged(["first"]) as at:
        result = await at.end()
        there = at.lane.tip()
        at.gate.shut()
        steps = {
            "one": lambda: at.lane.navigate(None),
            "other": lambda: at.lane.navigate(result.inputs[0]),
        }
        one = asyncio.ensure_future(steps.pop(first)())
        await at.gate.arrived()
        (step,) = steps.values()
        other = asyncio.ensure_future(step())
        await turns()
        at.gate.open()

        assert (await one).from_tip == there
        assert (await other).from_tip == (await one).tip
        assert at.lane.tip() == (await other).tip
        await at.lane.run("more")
        assert (await at.sound())[-1] == "assistant[stop] first"


@plays("navigate/close", first="navigate")
async def test_navigate_then_close(staged: Staged) -> None:
    """A move that was handed over stands."""
    async with staged(["first"]) as at:
        result = await at.end()
        at.gate.shut()
        moving = asyncio.ensure_future(at.lane.navigate(result.inputs[0], label="there"))
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        at.gate.open()
        await closing
        assert (await moving).tip == result.inputs[0]

        await at.open_again()
        assert at.lane.tip() == result.inputs[0]
        assert await at.session.label(result.to_tip or "") == "there"


@plays("navigate/close", first="close")
async def test_close_then_navigate(staged: Staged) -> None:
    async with staged(["first"]) as at:
        await at.end()
        there = at.lane.tip()
        await at.session.close()
        with pytest.raises(Exception, match="closed"):
            await at.lane.navigate(None)
        await at.open_again()
        assert at.lane.tip() == there
