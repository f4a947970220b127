"""Claim: a real session, played back over accept, drive and abort, becomes the recorded conversation, killed or not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentlane.data.messages import Message, UserMessage
from agentlane.data.operations import ReplayPolicy
from tests.recorded.checks import check, check_same, stretches
from tests.recorded.deaths import WHERES, Deaths
from tests.recorded.desk import HONEST, SAFE
from tests.recorded.loader import recorded_session
from tests.recorded.plan import plan_of
from tests.recorded.playback import BACKENDS, Backend, Playback

SAMPLE = {1, 2, 3, 4, 7, 28, 29, 33, 34}
"""Turns of the reduced form: each way to end, batches of several calls, error results, the appended answer."""

STRETCH, LONG_STRETCH = 60, 240
"""Messages of a piece of the whole form, at least."""

SUMMARIZED = {("memory", "safe"), ("jsonl", "safe"), ("sqlite", "honest")}
"""Of these the whole session is killed at every commit in test_compacting_runs, with summaries on its way.

Of the others, which have another policy on the same store, every second piece of it is.
"""

POLICIES: Mapping[str, Mapping[str, ReplayPolicy]] = {"safe": SAFE, "honest": HONEST}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The reduced form plays the whole session on one store, and kills on each with one of the policies."""
    whole = metafunc.config.getoption("--whole")
    if "policies" in metafunc.fixturenames:
        pairs = [(backend, policies) for backend in BACKENDS for policies in POLICIES]
        by_turns = [(BACKENDS[0], "safe"), (BACKENDS[1], "honest"), (BACKENDS[2], "safe")]
        metafunc.parametrize(("backend", "policies"), pairs if whole else by_turns)
    elif "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", BACKENDS if whole else BACKENDS[-1:])


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
    pieces = stretches(session, length)[::2] if whole and (backend, policies) not in SUMMARIZED else [sample]
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
