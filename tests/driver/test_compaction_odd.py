"""Claim: numbers beyond all bounds and entries of applications neither stop a summary nor make a request too long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentlane import Agent, AgentLane, Session, Usage, tool
from agentlane.data.entries import Compaction
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, answer, call, check_invariants
from tests.driver.compacting import answers, counted, memory_session, path, said, summaries, talk, tokens


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


# Numbers.


@pytest.mark.parametrize("most", [2**40 + 1, 2**63, 10**5000], ids=["2**40", "2**63", "10**5000"])
async def test_a_count_beyond_all_bounds_is_none(session: Session, most: int) -> None:
    """No record holds such a number: the step that should have written it raised, and so did each drive after it."""
    model = ScriptedModel(["a1", "a2"], summaries="S")
    lane = await session.lane("main", counted(model, token_counter=lambda message: most))
    await talk(lane, "u1", "u2")
    result = await lane.compact(keep_tokens=0)
    assert result.status == "completed"
    (entry,) = await lane.entries(types=["compaction"])
    assert isinstance(entry.body, Compaction) and 100 < entry.body.tokens_before < 1_000
    assert len([each for each in session.findings if "token counter" in str(each)]) == 1


async def test_a_provider_that_counts_beyond_all_bounds_is_not_believed(session: Session) -> None:
    most = Usage(input_tokens=2**63 - 1, output_tokens=2**63 - 1)
    limits = ModelLimits(context_tokens=1_000)
    model = ScriptedModel([answer("a1", usage=most), "a2"], summaries="S", limits=limits)
    lane = await session.lane("main", Agent(model=model))
    await talk(lane, "u1", "u2")
    assert summaries(model) == []
    await lane.compact(keep_tokens=0)
    (entry,) = await lane.entries(types=["compaction"])
    assert isinstance(entry.body, Compaction) and 100 < entry.body.tokens_before < 1_000


# Entries of applications.


async def test_what_an_application_appends_meanwhile_counts_before_the_next_request(session: Session) -> None:
    lanes: list[AgentLane] = []

    @tool(replay="safe")
    async def look(n: int) -> str:
        await lanes[0].append_custom("note", {"text": said(f"note{n}", 1_800)})
        return "seen"

    limits = ModelLimits(context_tokens=1_600)
    model = ScriptedModel([said("a1", 900), [call("look", n=1)], "done"], summaries="S", limits=limits)
    agent = counted(model, tools=[look], projectors={"note": lambda data: data["text"]})
    lanes.append(await session.lane("main", agent))
    await talk(lanes[0], "u1")

    result = await lanes[0].run(said("u2", 900))

    assert result.status == "completed" and len(summaries(model)) == 1
    assert max(sum(map(tokens, each.messages)) for each in answers(model)) <= 1_200
    assert (await path(lanes[0]))[3:] == [
        "model (look)",
        "result seen",
        "custom note",
        "compaction S",
        "model done",
    ]
