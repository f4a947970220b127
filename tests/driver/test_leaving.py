"""Claim: the summary of a path that is left is about that path from where it parts from the new one, and no more."""

from __future__ import annotations

from agentlane import Agent, TextPart, open_session
from agentlane.storage import MemoryStore
from agentlane.testing import ScriptedModel


async def test_what_both_paths_have_is_not_summarized() -> None:
    model = ScriptedModel(["one", "two"], summaries="the other way")
    store = MemoryStore()
    await store.create("s")
    async with open_session(store, session_id="s") as session:
        lane = await session.lane("main", Agent(model=model))
        first = await lane.run("first")
        second = await lane.run("second")

        moved = await lane.navigate(first.to_tip, summarize=True)

        asked = model.requests[-1]
        shown = "".join(part.text for part in asked.messages[0].content if isinstance(part, TextPart))
        assert asked.purpose == "summary"
        assert [word in shown for word in ("first", "one", "second", "two")] == [False, False, True, True]
        assert (moved.from_tip, moved.tip) == (second.to_tip, moved.summary)
        (entry,) = [each for each in await lane.entries() if each.id == moved.summary]
        assert entry.parent_id == first.to_tip
