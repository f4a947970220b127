"""Claim: a hook that moves the lane it is asked about ends the navigation, and not only the process."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import Agent, BeforeNavigation, InvalidNavigation, hook
from agentlane.testing import ScriptedModel, check_invariants
from tests.session.places import Place


@pytest.mark.parametrize("how", ["navigate", "rewind"])
async def test_a_hook_that_appends_each_time_is_not_asked_for_ever(place: Place, how: str) -> None:
    session = await place.open()
    told: list[str | None] = []

    async def note(info: BeforeNavigation[Any]) -> None:
        told.append(info.from_tip)
        if len(told) == 1_000:
            raise AssertionError("asked for ever")
        await lane.append_custom("left", {"from": info.from_tip})

    lane = await session.lane("main", Agent(model=ScriptedModel(["one"]), hooks=[hook("before_navigation", note)]))
    result = await lane.run("go")

    with pytest.raises(InvalidNavigation, match="let no hook append") as caught:
        await (lane.navigate(None) if how == "navigate" else lane.rewind(result.inputs[0]))

    assert len(told) == 10 and len(await lane.entries(types=["custom"])) == 10
    assert caught.value.details["entry_id"] == lane.tip()
    assert await check_invariants(session) == []
