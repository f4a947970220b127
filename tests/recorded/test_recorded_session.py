"""Claim: a real session, played back over accept, drive and abort, becomes the recorded conversation, killed or not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from agentlane import Agent
from agentlane.data.messages import AssistantMessage, Message, UserMessage, user
from agentlane.data.operations import ReplayPolicy
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from tests.recorded.deaths import WHERES, Deaths
from tests.recorded.desk import HONEST, SAFE
from tests.recorded.expected import differences, expected
from tests.recorded.loader import recorded_session
from tests.recorded.plan import Append, plan_of
from tests.recorded.playback import BACKENDS, LANE, Backend, Playback

SAMPLE = {1, 2, 3, 4, 7, 28, 29, 33, 34}
"""Turns of the reduced form: each way to end, batches of several calls, error results, the appended answer."""

STRETCH, LONG_STRETCH = 60, 240
"""Messages of a piece of the whole form, at least."""

POLICIES: Mapping[str, Mapping[str, ReplayPolicy]] = {"safe": SAFE, "honest": HONEST}


@pytest.fixture(scope="module")
def session() -> tuple[Message, ...]:
    return recorded_session()


@pytest.fixture(scope="module")
def sample(session: tuple[Message, ...]) -> tuple[Message, ...]:
    kept: list[Message] = []
    turn = 0
    for message in session:
        turn += isinstance(message, UserMessage)
        if turn in SAMPLE:
            kept.append(message)
    return tuple(kept)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_without_kills_it_is_the_recording(
    session: tuple[Message, ...], backend: Backend, tmp_path: Path
) -> None:
    playback = Playback(plan_of(session), backend, tmp_path, HONEST, seed=1)

    await playback.play()

    assert playback.lives == 1
    assert not playback.witness.cut and not playback.witness.lost
    orders = [order for order in playback.witness.ends.values() if len(order) > 1]
    assert len(orders) == 3 and all(order != sorted(order) for order in orders)
    await check(playback)
    await check_same(playback)


@pytest.mark.parametrize("policies", POLICIES)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_killed_at_every_commit_nothing_differs_but_what_was_cut(
    session: tuple[Message, ...],
    sample: tuple[Message, ...],
    backend: Backend,
    policies: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    whole: bool,
) -> None:
    caplog.set_level(logging.ERROR, logger="agentlane")  # a torn tail is cut off at every third death, and said so
    # The whole form: with safe policies in many pieces, with honest ones in few long ones.
    length = STRETCH if policies == "safe" else LONG_STRETCH
    pieces = stretches(session, length) if whole else [sample]
    ways: Counter[str] = Counter()
    cut, aborted, lost = 0, 0, 0

    for number, piece in enumerate(pieces):
        folder = tmp_path / str(number)
        folder.mkdir()
        rotation = BACKENDS.index(backend) + list(POLICIES).index(policies)
        deaths = Deaths(rotation=rotation)
        playback = Playback(plan_of(piece), backend, folder, POLICIES[policies], deaths=deaths, seed=rotation + 1)

        # When: each commit of the piece kills the process once, and each next process goes on.
        await playback.play()

        assert playback.lives == len(deaths.all) + 1
        await check(playback)
        await check_same(playback)
        ways += deaths.counts()
        cut += len(playback.witness.cut)
        aborted += sum(playback.witness.cut.values())
        lost += len(playback.witness.lost)

    # Then: everything that can differ did so somewhere, or the test has shown less than it says.
    print(f"{backend}, {policies}: killed {ways}; {cut} streams cut, {aborted} of them under abort; {lost} calls lost")
    assert set(ways) == set(WHERES)
    assert cut > aborted > 0
    assert bool(lost) == (policies == "honest")


def stretches(session: tuple[Message, ...], length: int) -> list[tuple[Message, ...]]:
    """The whole conversation in pieces, each beginning with a prompt: as many commits, and less to read after each."""
    pieces: list[list[Message]] = [[]]
    for message in session:
        if isinstance(message, UserMessage) and len(pieces[-1]) >= length:
            pieces.append([])
        pieces[-1].append(message)
    return [tuple(piece) for piece in pieces]


async def check(playback: Playback) -> None:
    """The conversation is the recording with what the witness saw, each call had its effect as often as it may."""
    witness, plan = playback.witness, playback.plan
    session = await playback.open()
    entries = await session.branch(LANE).entries(newest_first=False)
    rows = await session.usage()
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
