"""Claim: a navigation whose path shows nothing any more, since the agent has other projectors now, asks no model."""

from __future__ import annotations

from agentlane import Navigate
from agentlane.data.usage import NOTHING_SENT
from agentlane.testing import ScriptedModel
from tests.driver.compacting import compacting, path, summaries
from tests.session.places import Place


async def test_a_path_that_shows_nothing_any_more_has_no_summary_and_is_left_without_one(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["a"], summaries="S")
    lane = await session.lane("main", compacting(model, projectors={"note": lambda data: data}))
    await lane.run("u")
    here = lane.tip()
    note = await lane.append_custom("note", "seen")
    await lane.accept(Navigate(here, summarize=True))
    await session.close()
    session = await place.open()
    lane = await session.lane("main", compacting(model))

    result = await lane.resume()

    assert result is not None and (result.status, result.code) == ("failed", "nothing_to_compact")
    assert result.error is not None and "go there without a summary" in result.error.message
    assert note is not None
    assert (lane.tip(), summaries(model), await path(lane)) == (note.id, [], ["user u", "model a", "custom note"])
    assert [each.row.usage for each in await session.usage()][1:] == [NOTHING_SENT]

    await lane.navigate(here)

    assert (lane.tip(), await path(lane)) == (here, ["user u", "model a"])
