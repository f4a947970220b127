"""Claim: what is shown, copied and counted is the path of one branch, and each charge is one charge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, AssistantMessage, Usage
from agentlane.data.messages import TextPart, UserMessage
from agentlane.storage import MemoryStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, hang
from tests.session.copies import rows_of
from tests.session.places import Place, agent_of

DEAD, ALIVE = "word-of-the-dead-branch", "word-of-the-living"


def texts(message: Any) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextPart))


@pytest.mark.parametrize("how", ["rewind", "navigate", "a branch of its own", "reopened"])
async def test_a_branch_that_was_left_is_in_no_request_and_no_copy(place: Place, how: str) -> None:
    """And all from before the place where the ways part is: in the request, the fork, the export as Markdown."""
    model = ScriptedModel(["first", "second"])
    agent = Agent(model=model)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.run(f"{ALIVE} 1")
    here = lane.tip()
    await lane.run(DEAD)
    if how == "rewind":
        user = (await lane.entries(newest_first=False))[2]
        await lane.rewind(before=user.id)
    elif how in ("navigate", "reopened"):
        await lane.navigate(here)
    else:
        lane = await session.lane("aside", agent, at=here)
    if how == "reopened":
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent)
    await lane.run(f"{ALIVE} 2")

    shown = [texts(message) for message in model.requests[-1].messages]
    assert shown == [f"{ALIVE} 1", "first", f"{ALIVE} 2"]
    info = await session.fork(session_id="fork", branch=lane.name)
    stored = await rows_of(place.store, info.id)
    assert not [row for row in stored.entries if DEAD.encode() in row.payload]
    assert len(stored.entries) == 4 and ALIVE.encode() in stored.entries[0].payload
    text = await session.branch(lane.name).export_markdown()
    assert DEAD not in text and text.count(ALIVE) == 2 and "first" in text
    assert DEAD in str([entry.body for entry in await session.entries()]), "it is left, and not lost"
    model.require_no_violations()


async def test_a_charge_is_counted_once_however_often_it_is_copied(place: Place) -> None:
    """Five forks, and forks of those, whole and by branch, here and elsewhere, and an import of what was said: the sum
    over all sessions is what was charged; and what a fork is charged itself is its own."""
    session = await place.open()
    said = answer("hello", usage=Usage(input_tokens=100, output_tokens=10, cost_nanos=7))
    lane = await session.lane("main", agent_of(said, said))
    await lane.run("one")
    await lane.run("two")
    charged = session.stats().usage
    assert (charged.rows, charged.cost_nanos, charged.input_tokens) == (2, 14, 200)

    elsewhere = MemoryStore(clock=place.clock)
    for number in range(5):
        branch = "main" if number % 2 else None
        await session.fork(session_id=f"f-{number}", branch=branch)
        child = await place.open(f"f-{number}")
        await child.fork(elsewhere, session_id=f"of-{number}")
        await child.import_messages("told", [{"role": "user", "content": "x"}], format="openai")
    last = child
    assert last.id == "f-4"
    assert last.stats().usage.rows == 0 and last.stats().entries == 5
    await last.record_usage(Usage(cost_nanos=1))

    costs: dict[str, int] = {}
    for store in (place.store, elsewhere):
        for info in await store.list():
            storage = await store.open(info.id, read_only=True)
            costs[info.id] = storage.stats().usage.cost_nanos
            assert len(await storage.usage()) == storage.stats().usage.rows
            await storage.close()
    assert sum(costs.values()) == 14 + 1 and costs["s"] == 14 and costs["f-4"] == 1
    await elsewhere.close()


async def test_an_endless_partial_answer_is_kept_and_not_sent_again(place: Place) -> None:
    """Fifty thousand characters of one word, aborted, then cut, then left by a death: the next request has none."""
    noise = "la " * 17_000
    model = ScriptedModel([hang(noise), "at last", "again"])
    session = await place.open()
    lane = await session.lane("main", Agent(model=model))
    running = asyncio.ensure_future(lane.run("sing"))
    await model.hanging()
    await lane.abort()
    assert (await running).status == "aborted"
    await lane.run("speak")
    await session.close()
    session = await place.open()
    lane = await session.lane("main", Agent(model=model))
    await lane.run("more")

    kept = [each for each in await lane.messages() if isinstance(each, AssistantMessage)]
    assert kept[0].text == noise and kept[0].stop_reason == "aborted"
    for request in model.requests[1:]:
        assert sum(len(texts(message)) for message in request.messages) < 100
    assert [texts(message) for message in model.requests[1].messages if isinstance(message, UserMessage)] == [
        "sing",
        "speak",
    ]
