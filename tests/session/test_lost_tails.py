"""Claim: a compaction whose kept tail is not on its path shows its summary alone, and the session says so."""

from __future__ import annotations

import pytest

from agentlane import Compaction
from agentlane.data import addresses, codec
from agentlane.data.writes import InsertEntry, SetValue, Write
from agentlane.testing import ScriptedModel
from tests.driver.compacting import compacting, shown
from tests.session.places import Place


@pytest.mark.parametrize("lost", [True, False])
async def test_a_kept_tail_that_is_not_there_is_a_finding(place: Place, lost: bool) -> None:
    session = await place.open()
    model = ScriptedModel(["a0", "a1", "a2"])
    lane = await session.lane("main", compacting(model))
    await lane.run("u0")
    await lane.run("u1")
    tip, kept = lane.tip(), (await lane.entries(types=["user"], limit=1))[0].id
    body = Compaction(summary="X", kept_from="nowhere" if lost else kept, tokens_before=1)
    writes: list[Write] = [
        InsertEntry("made", tip, "compaction", codec.encode(body)),
        SetValue(addresses.branch_tip("main"), codec.encode("made")),
    ]
    await session._runtime.submit(writes, lambda commit: None, "value")
    await session.close()
    session = await place.open()
    lane = await session.lane("main", compacting(model))

    assert (await lane.run("u2")).status == "completed"

    assert shown(model.requests[-1]) == ["[summary: X]", *([] if lost else ["user u1", "model a1"]), "user u2"]
    told = [text for text in session.findings if "compaction made keeps what is from nowhere on" in text]
    assert len(told) == len(session.findings) == int(lost)
