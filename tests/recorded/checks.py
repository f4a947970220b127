"""What every playback of a recording has to come to, however often its processes were ended."""

from __future__ import annotations

import msgspec

from agentlane import Agent
from agentlane.data.entries import Compaction, Entry
from agentlane.data.messages import AssistantMessage, Message, UserMessage, user
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from tests.recorded.expected import differences, expected
from tests.recorded.plan import Append
from tests.recorded.playback import LANE, Playback


def stretches(session: tuple[Message, ...], length: int) -> list[tuple[Message, ...]]:
    """The whole conversation in pieces, each beginning with a prompt: as many commits, and less to read after each."""
    pieces: list[list[Message]] = [[]]
    for message in session:
        if isinstance(message, UserMessage) and len(pieces[-1]) >= length:
            pieces.append([])
        pieces[-1].append(message)
    return [tuple(piece) for piece in pieces]


async def check(playback: Playback) -> None:
    """The conversation is the recording with what the witness saw, each call had its effect as often as it may.

    Summaries are no part of the conversation.
    """
    witness, plan = playback.witness, playback.plan
    session = await playback.open()
    entries = [each for each in await session.branch(LANE).entries(newest_first=False) if is_said(each)]
    rows = [each for each in await session.usage() if each.row.kind == "attempt"]
    broken = await check_invariants(session)
    await session.close()

    difference = differences(list(expected(plan, witness)), entries)
    assert not difference, f"{difference}\n{playback}"
    assert not witness.problems, "\n".join(witness.problems)
    assert not broken, "\n".join(broken)
    never = {place for place, call in plan.calls.items() if playback.policies[call.name] == "never"}
    for place in plan.results:
        starts = witness.starts[place]
        if place in never:
            assert starts <= 1, f"{place} must not run again, and ran {starts} times"
        assert starts >= 1 or place in witness.lost, f"{place} has its result and never ran"
    assert witness.lost <= never
    # One row for each attempt, and none for the answer that nobody was asked for.
    answers = sum(isinstance(entry.body, AssistantMessage) for entry in entries)
    assert len(rows) == answers - sum(isinstance(step, Append) for step in plan.steps)


async def check_same(playback: Playback) -> None:
    """SAME: what a new process reads, and what it shows a model, is byte for byte what the last one had."""
    model = ScriptedModel(["fine"])
    session = await playback.open()
    lane = await session.lane(LANE, Agent(model=model))
    assert msgspec.json.encode(await lane.messages()) == playback.live
    await lane.run("And now?")
    await session.close()

    [request] = model.requests
    assert request.messages[-1] == user("And now?")
    assert msgspec.json.encode(tuple(request.messages[:-1])) == playback.live_view
    model.require_no_violations()


def is_said(entry: Entry) -> bool:
    return not isinstance(entry.body, Compaction)
