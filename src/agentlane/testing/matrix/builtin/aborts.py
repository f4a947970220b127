"""Scenarios in which the host itself aborts; a stop of the kind ``abort`` does so at each boundary of the others."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane.data.requests import Prompt
from agentlane.testing.matrix.builtin.hands import Hands, agent_of, check_effects
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang, say


async def _abort_what_hangs(life: Life[Hands]) -> None:
    """Abort a run once everything that can go on has, and go on with another prompt on the same branch."""
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    if await lane.result("op-1") is None:
        driving = asyncio.ensure_future(life.drive(lane, "op-1"))
        try:
            await _hangs(life, driving)
            await lane.request_abort("op-1")
            await driving
        finally:
            driving.cancel()
    await lane.accept(Prompt("and now"), operation_id="op-2")
    await life.drive(lane, "op-2")


async def _hangs(life: Life[Hands], driving: asyncio.Future[Any]) -> None:
    """Return once the model hangs, or a tool does."""
    model = life.own_agent.model
    assert isinstance(model, ScriptedModel)
    hanging = asyncio.ensure_future(model.hanging())
    stuck = asyncio.ensure_future(life.world.stuck())
    try:
        await asyncio.wait({hanging, stuck, driving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hanging.cancel()
        stuck.cancel()


ABORT_STREAM = Scenario(
    "an abort while the model answers",
    world=Hands,
    act=_abort_what_hangs,
    agent=agent_of(lambda: [[hang([say("Hel")])], ["after"]], lambda life: []),
)

ABORT_TOOLS = Scenario(
    "an abort while one call hangs, one is done and one is planned",
    world=Hands,
    check=check_effects,
    act=_abort_what_hangs,
    agent=agent_of(
        lambda: [
            [
                [
                    call("never", x=1, after=[1], hang=True),
                    call("never", x=2),
                    call("safe", x=3, after=[1], hang=True),
                    call("alone", x=4),
                ],
                hang(),
            ],
            ["after"],
        ]
    ),
)


async def _abort_what_was_left(life: Life[Hands]) -> None:
    """Each process but the first aborts what it finds before it drives; so does the first, its second prompt."""
    lane = await life.lane()
    for number in (1, 2):
        admitted = await lane.accept(Prompt("go"), operation_id=f"op-{number}")
        if (life.number > 1 or number == 2) and lane.inspect().operation is not None:
            await lane.request_abort(admitted.operation_id)
        await life.drive(lane, admitted.operation_id)


ABORT_LEFT = Scenario(
    "an abort of what the process before left",
    world=Hands,
    check=check_effects,
    act=_abort_what_was_left,
    agent=agent_of(
        lambda: [
            [
                fail("overloaded", retryable=True),
                [call("safe", x=1), call("never", x=2), call("alone", x=3)],
                "done",
            ],
            ["not asked for"],
        ]
    ),
)

ABORTS = (ABORT_STREAM, ABORT_TOOLS, ABORT_LEFT)
