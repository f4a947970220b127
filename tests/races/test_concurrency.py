"""Claim: whatever many tasks, threads and readers do to sessions at once, everything that was told is there, once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, Tool, ToolContext, open_session
from agentlane.data.messages import ToolResultMessage
from agentlane.testing.clock import ManualClock
from agentlane.testing.invariants import check_invariants, check_trace
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from agentlane.testing.trace import Trace
from tests.races.stage import BACKENDS, Backend, make_store
from tests.races.storm import play
from tests.races.storm_claims import SEEN, SEEN_SOON, check_claims

ROUNDS, ROUNDS_WHOLE = 10, {"memory": 400, "jsonl": 200, "sqlite": 100}
"""Rounds of a storm on each backend; seven hundred in all when they are whole."""
ROUNDS_EACH = 50
"""Rounds of one test."""
BATCHES, BATCHES_WHOLE = 3, 30
THREADS = 24
GUARD_S = 60.0
"""How long is waited for a thread before the test fails, rather than hang."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        parts = []
        for backend in BACKENDS:
            rounds = ROUNDS_WHOLE[backend] if whole else ROUNDS
            parts += [
                (backend, range(first, min(first + ROUNDS_EACH, rounds))) for first in range(0, rounds, ROUNDS_EACH)
            ]
        metafunc.parametrize(("backend", "seeds"), parts, ids=[f"{backend}-{seeds.start}" for backend, seeds in parts])


def test_storms(backend: Backend, seeds: range, tmp_path: Path, whole: bool) -> None:
    """Tasks that accept, drive, abort, configure, append, write and read, over closes and faults, by dice."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        before = set(threading.enumerate())

        async def storm(seed: int = seed, folder: Path = folder) -> None:
            await play(
                seed,
                lambda place, clock: make_store(backend, place, clock),
                folder,
                lambda storm, session: check_claims(storm, session, seen),
            )
            assert asyncio.all_tasks() == {asyncio.current_task()}, f"seed {seed}"

        asyncio.run(storm())
        assert_no_thread_of(before, f"seed {seed}")
    # On disk it is for the machine's pace to say how a call is met by an abort or a close.
    assert [each for each in (SEEN if whole and backend == "memory" else SEEN_SOON) if not seen[each]] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_report_at_once(backend: Backend, tmp_path: Path, whole: bool) -> None:
    """R31, R80: plain tools of two lanes that end at the same moment, each on its thread: every result, in order."""

    async def batch(number: int) -> None:
        dice = random.Random(number)
        gate = threading.Barrier(2 * THREADS, timeout=GUARD_S)
        began: Counter[str] = Counter()

        def meet(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            began[ctx.call_id] += 1
            gate.wait()
            return f"{arguments['i']} {'x' * 1_000}"

        trace, clock = Trace(), ManualClock()
        store = trace.store(make_store(backend, tmp_path / str(number), clock))
        await store.create("s")
        order = list(range(THREADS))
        dice.shuffle(order)
        async with open_session(store, session_id="s", clock=clock, probe=trace.probe()) as session:
            model = ScriptedModel([[call("meet", i=i) for i in order], "done"])
            agent = trace.agent(Agent(model=model, tools=[Tool("meet", meet)], max_parallel=THREADS))
            lanes = [await session.lane(name, agent) for name in ("a", "b")]
            results = await asyncio.gather(*(lane.run("go") for lane in lanes))

            assert [result.status for result in results] == ["completed"] * 2
            for lane in lanes:
                texts = [each.text for each in await lane.messages() if isinstance(each, ToolResultMessage)]
                assert [int(text.split()[0]) for text in texts] == order
                assert all(len(text) > 1_000 for text in texts)
            assert set(began.values()) == {1}
            assert len(began) == 2 * THREADS
            model.require_no_violations()
            assert await check_invariants(session) == []
        await store.close()
        assert check_trace(trace) == []

    for number in range(BATCHES_WHOLE if whole else BATCHES):
        before = set(threading.enumerate())
        (tmp_path / str(number)).mkdir()
        asyncio.run(batch(number))
        assert_no_thread_of(before, f"batch {number}")


def assert_no_thread_of(before: set[threading.Thread], where: str) -> None:
    """Every thread that is new since ``before`` comes to its end by itself."""
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(GUARD_S)
    assert not [thread.name for thread in left if thread.is_alive()], where
