"""Claim: a session that is played back with a small window is the recording all the same, killed or not.

What models are asked for on the way, and what is summarized and kept, is told from the entries by the tests' own rules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from agentlane.data.entries import Compaction
from agentlane.data.messages import AssistantMessage, Message, UserMessage
from agentlane.data.operations import CompactionPolicy
from agentlane.data.usage import Usage
from agentlane.model import ModelLimits
from tests.recorded.checks import check, check_same, stretches
from tests.recorded.compacted import summary
from tests.recorded.compacted_runs import Walk, Window
from tests.recorded.deaths import WHERES, Deaths
from tests.recorded.desk import HONEST, SAFE
from tests.recorded.loader import recorded_session
from tests.recorded.plan import plan_of
from tests.recorded.playback import BACKENDS, LANE, Backend, Playback

SAMPLE = {1, 2, 3, 7, 28, 29, 33, 34}
"""Turns of the reduced form: each way to end, batches of several calls, error results, the appended answer."""
STRETCH = 120
"""Messages of a piece of the whole form, at least."""
WINDOWS = (Window(8_000), Window(4_000), Window(24_000))


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


async def test_without_kills(session: tuple[Message, ...], tmp_path: Path, whole: bool) -> None:
    """Estimates alone say how long a request is, and it is never longer than it may be."""
    for backend, window in zip(BACKENDS if whole else BACKENDS[:1], WINDOWS, strict=False):
        playback = playback_of(uncounted(session), backend, tmp_path, window)

        await playback.play()

        assert playback.lives == 1
        kinds = await check_compactions(playback, window)
        print(f"{backend}: {kinds}")
        assert kinds["compactions"] >= 190_000 // window.context
        assert all(kinds[each] for each in ("whole turns", "split", "nothing kept", "behind results"))
        await check(playback)
        await check_same(playback)


async def test_what_a_provider_has_counted_counts(
    session: tuple[Message, ...], sample: tuple[Message, ...], tmp_path: Path, whole: bool
) -> None:
    """The recorded counts are of requests that nobody summarized: each says that the next one is too long."""
    window = Window(16_000)
    playback = playback_of(session if whole else sample, "memory", tmp_path, window)

    await playback.play()

    kinds = await check_compactions(playback, window)
    print(f"as it was counted: {kinds}")
    assert kinds["compactions"] >= (40 if whole else 3)
    await check(playback)
    await check_same(playback)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_killed_at_every_commit(
    session: tuple[Message, ...],
    sample: tuple[Message, ...],
    backend: Backend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    whole: bool,
) -> None:
    caplog.set_level(logging.ERROR, logger="agentlane")  # a torn tail is cut off at every third death, and said so
    rotation = BACKENDS.index(backend)
    kinds, deaths_in = Counter[str](), Counter[tuple[str, str]]()
    for number, piece in enumerate(stretches(session, STRETCH) if whole else [sample]):
        folder = tmp_path / str(number)
        folder.mkdir()
        window = WINDOWS[(number + rotation) % 2]
        deaths = Deaths(rotation=rotation + number)
        playback = playback_of(uncounted(piece), backend, folder, window, deaths=deaths, seed=rotation + 1)

        # When: each commit of the piece kills the process once, those of compactions too, and each next one goes on.
        await playback.play()

        assert playback.lives == len(deaths.all) + 1
        kinds += await check_compactions(playback, window)
        deaths_in += Counter((death.place.name, death.where) for death in deaths.all)
        await check(playback)
        await check_same(playback)

    summaries = {each: n for each, n in deaths_in.items() if "summary" in each[0]}
    print(f"{backend}: {kinds}; {sum(deaths_in.values())} deaths, {summaries}")
    assert {name for name, _ in summaries} >= {"summary_intent", "recovered_summary", "summary+intent"}
    assert {where for _, where in summaries} == set(WHERES)


def playback_of(
    conversation: Sequence[Message],
    backend: Backend,
    folder: Path,
    window: Window,
    *,
    deaths: Deaths | None = None,
    seed: int = 0,
) -> Playback:
    """With the window said by the model, or by the agent's policy."""
    of_the_model = backend == "memory"
    return Playback(
        plan_of(conversation),
        backend,
        folder,
        HONEST if backend == "sqlite" else SAFE,
        deaths=deaths,
        seed=seed,
        compaction=CompactionPolicy(context_tokens=None if of_the_model else window.context),
        limits=ModelLimits(context_tokens=window.context) if of_the_model else None,
        summaries=summary,
    )


def uncounted(conversation: Sequence[Message]) -> tuple[Message, ...]:
    """Without the length of requests that were longer than those of the playback are."""
    return tuple(
        replace(message, usage=replace(message.usage, input_tokens=None))
        if isinstance(message, AssistantMessage) and message.usage is not None
        else message
        for message in conversation
    )


async def check_compactions(playback: Playback, window: Window) -> Counter[str]:
    """All that was asked for and summarized is what it has to be; how many compactions there were of each kind."""
    session = await playback.open()
    entries = await session.branch(LANE).entries(newest_first=False)
    rows = [each.row for each in await session.usage() if each.row.kind == "summary"]
    total = session.stats().usage
    await session.close()

    walk = Walk(playback.witness.requests, window)
    walk.go(entries)
    compactions = {entry.id: entry.body for entry in entries if isinstance(entry.body, Compaction)}
    # One row for each summary, with its charge; nobody knows that of those that a death cut.
    placed = {row.entry_id: row.usage.output_tokens for row in rows if row.entry_id is not None}
    assert placed == {id: len(body.summary) for id, body in compactions.items()}
    lost = [row for row in rows if row.entry_id is None]
    assert len(rows) == len(placed) + len(lost)
    assert all(row.usage == Usage() for row in lost) and len(lost) < playback.lives
    # Of what was charged nothing is ever forgotten.
    sums: list[dict[str, Any]] = [asdict(each) for each in (*playback.charged, total)]
    assert all(before[name] <= after[name] for before, after in pairwise(sums) for name in before)
    return Counter({**walk.kinds, "compactions": len(compactions), "lost": len(lost)})
