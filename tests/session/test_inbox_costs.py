"""Claim: where much waits, one message more costs what the first did."""

from __future__ import annotations

from collections import Counter

from agentlane import Agent, Prompt, open_session
from agentlane.testing.clock import CountingIds
from agentlane.testing.models import ScriptedModel
from agentlane.testing.trace import Trace
from tests.session.places import Place

MANY = 1_000


async def test_the_thousandth_message_costs_what_the_first_did(place: Place) -> None:
    """One commit each, of the same writes and the same size; and one commit places them all."""
    trace = Trace()
    await place.store.create("s")
    async with open_session(
        trace.store(place.store), session_id="s", clock=place.clock, ids=CountingIds(series=1), seed=1
    ) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(turns=[*([[]] * MANY), ["heard"]])))
        await lane.accept(Prompt("go"))
        for number in range(MANY):
            await lane.steer(f"message {number:04}", request_id=f"r-{number:04}")
        queued = [commit for commit, _ in trace.commits() if commit.name == "queue"]
        result = await lane.resume()
        placed = [commit for commit, _ in trace.commits() if "placement" in commit.name]

        assert result is not None and result.text == "heard"
        shapes = Counter(tuple(type(write).__name__ for write in commit.writes) for commit in queued)
        sizes = [sum(len(getattr(write, "payload", b"")) for write in commit.writes) for commit in queued]
        assert len(queued) == MANY and list(shapes.values()) == [MANY]
        assert max(sizes) - min(sizes) <= len(str(MANY))  # the digits of its place
        assert [commit.name for commit in placed] == ["placement+intent"]
        assert len(placed[0].writes) == 4 * MANY + 2  # entry, item, content, receipt; the tip and the state
        assert len(await lane.entries()) == MANY + 2
