"""Claim: a call whose policy asks runs again only by a yes for that one replay; anything else is the interruption."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import InvalidMessage, Settled, ToolContext, Waiting
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.testing.matrix.lives import bury
from agentlane.testing.script import call
from tests.approvals.desk import Desk
from tests.session.places import Place


class Mortal(Desk):
    """A desk whose tool ``check`` says how far it came, and then never ends while ``dies`` is not used up."""

    def __init__(self, place: Place, script: Any, *, dies: int, **options: Any) -> None:
        super().__init__(place, script, **options)
        self.dies = dies
        self.contexts: list[ToolContext[Any]] = []
        self.reached = asyncio.Event()
        self.tool("check", replay="ask", body=self._check).tool("ls", replay="safe")

    async def _check(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        self.contexts.append(ctx)
        if self.dies:
            self.dies -= 1
            await ctx.progress(f"half of {arguments['x']}")
            self.reached.set()
            await asyncio.get_running_loop().create_future()
        return f"checked {arguments['x']}"

    async def die(self) -> None:
        """Drive until the tool is half through, and die there."""
        self.reached.clear()
        driving = asyncio.ensure_future(self.lane.drive())
        await self.reached.wait()
        await bury(self.session, driving)
        await self.open()


@pytest.mark.parametrize("first", [True, False], ids=["yes", "no"])
async def test_a_person_says_whether_it_runs_again(place: Place, first: bool) -> None:
    """The question carries the saved progress; a yes is one start with the same key, a no the interruption result."""
    desk = Mortal(place, [[call("check", x=1), call("ls", x=2)], "done"], dies=1)
    await desk.begin()
    await desk.die()

    (asked,) = await desk.waits()

    assert (asked.kind, asked.tool, asked.arguments) == ("replay", "check", {"x": 1})
    assert [part.text for part in asked.progress] == ["half of 1"]  # type: ignore[union-attr]
    assert "may have run in part" in asked.question
    assert desk.statuses() == ["waiting_approval", "outcome_ready"], "the others went on"
    await desk.restart()
    await desk.lane.decide(asked.approval_id, allow=first)
    assert isinstance(await desk.lane.drive(), Settled)
    texts = await desk.texts()
    if first:
        assert texts == ["checked 1", "ls:2 done"]
        assert [each.attempt for each in desk.contexts] == [1, 2] and desk.contexts[1].recovered
        assert desk.contexts[0].idempotency_key == desk.contexts[1].idempotency_key
    else:
        assert INTERRUPTED in texts[0] and "half of 1" in texts[0]
        assert len(desk.contexts) == 1


async def test_a_yes_is_used_up_by_one_replay(place: Place) -> None:
    """Dying in it asks again, until the replays are used up."""
    desk = Mortal(place, [[call("check", x=1)], "done"], dies=9, max_replays=2)
    await desk.begin()
    await desk.die()
    asked: list[str] = []
    for _ in range(2):
        (only,) = await desk.waits()
        asked.append(only.approval_id)
        await desk.lane.decide(only.approval_id, allow=True)
        await desk.restart()
        await desk.die()

    outcome = await desk.lane.drive()

    assert isinstance(outcome, Settled) and [each.attempt for each in desk.contexts] == [1, 2, 3]
    assert len(set(asked)) == 2 and INTERRUPTED in (await desk.texts())[0]
    assert [each.kind for each in outcome.result.decisions] == ["replay", "replay"]


async def test_without_an_answer_it_waits_and_an_expiry_is_a_no(place: Place) -> None:
    desk = Mortal(place, [[call("check", x=1)], "done"], dies=1, approval_expires_ms=50)
    await desk.begin()
    await desk.die()
    for _ in range(3):
        assert isinstance(await desk.lane.drive(), Waiting)
        await desk.restart()
    place.clock.advance(50)

    outcome = await desk.lane.drive()

    assert isinstance(outcome, Settled) and len(desk.contexts) == 1
    (text,) = await desk.texts()
    assert INTERRUPTED in text and "half of 1" in text
    assert [each.expired for each in outcome.result.decisions] == [True]


async def test_arguments_cannot_be_changed_for_a_replay(memory: Place) -> None:
    desk = Mortal(memory, [[call("check", x=1)], "done"], dies=1)
    await desk.begin()
    await desk.die()
    (only,) = await desk.waits()
    with pytest.raises(InvalidMessage, match="that it began with"):
        await desk.lane.decide(only.approval_id, allow=True, args={"x": 2})
