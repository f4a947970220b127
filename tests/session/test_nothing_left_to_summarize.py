"""Claim: a navigation whose path shows nothing any more, since the agent has other projectors now, asks no model."""

from __future__ import annotations

import pytest

from agentlane import Navigate
from agentlane.testing import ScriptedModel
from tests.driver.compacting import compacting, path, summaries
from tests.session.places import Place


@pytest.mark.xfail(strict=True, reason="an empty transcript is sent, charged and placed")
async def test_a_path_that_shows_nothing_any_more_is_left_without_a_summary(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["a"], summaries="S")
    lane = await session.lane("main", compacting(model, projectors={"note": lambda data: data}))
    await lane.run("u")
    here = lane.tip()
    await lane.append_custom("note", "seen")
    await lane.accept(Navigate(here, summarize=True))
    await session.close()
    session = await place.open()
    lane = await session.lane("main", compacting(model))

    await lane.resume()

    assert (lane.tip(), summaries(model), await path(lane)) == (here, [], ["user u", "model a"])
