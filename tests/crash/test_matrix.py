"""Claim: wherever a process dies, the next one goes on to a conversation that an uninterrupted run could have made.

Each scenario is run once to learn every boundary that it reaches; then, for each of them, a process is killed there,
the session is opened again and driven to its end. The whole form does so on every backend, and kills again inside
each recovery: at every boundary of it in memory, where the steps are the same and a history costs least, and along
diagonals on disk. The reduced form is a sample of that which leaves no boundary out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.testing.faults import FaultPlan, Point
from agentlane.testing.invariants import check_invariants, check_nothing_written, check_trace, check_trace_against
from tests.crash.scenarios import ABORTS, PARALLEL, PLAIN, Scenario
from tests.crash.world import BACKENDS, Backend, World, kept, live, shape

PARTS_WHOLE = 4
DISK_STEP = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The whole form takes minutes for one scenario, so it comes in parts."""
    if "part" in metafunc.fixturenames:
        parts = PARTS_WHOLE if metafunc.config.getoption("--whole") else 1
        metafunc.parametrize("part", [(part, parts) for part in range(parts)], ids=lambda each: f"part{each[0]}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [*PLAIN, *ABORTS], ids=lambda each: each.name)
async def test_killed_anywhere_it_goes_on(
    scenario: Scenario, backend: Backend, part: tuple[int, int], tmp_path: Path, whole: bool
) -> None:
    points = await boundaries(scenario, World(backend, fresh(tmp_path)), [])
    assert len(points) > 10

    for number, point in list(enumerate(points))[part[0] :: part[1]]:
        if not whole and not in_sample(scenario, backend, number, point):
            continue
        # When: killed once, and the next process drives it to the end.
        recovery = await boundaries(scenario, World(backend, fresh(tmp_path)), [point])
        # When: killed again inside the recovery, and the third process drives it to the end.
        for second in in_recovery(recovery, number, backend, whole=whole):
            await boundaries(scenario, World(backend, fresh(tmp_path)), [point, second])


def in_sample(scenario: Scenario, backend: Backend, number: int, point: Point) -> bool:
    """The reduced form: each boundary on some backend; those of the first scenario on memory and most on disk too."""
    if scenario is PARALLEL:
        return backend == "memory" or (point.nth == 1 and (backend == "jsonl" or number % 2 == 0))
    return {0: "memory", 1: "jsonl", 2: "memory", 3: "sqlite", 4: "memory"}[number % 5] == backend


def in_recovery(recovery: Sequence[Point], number: int, backend: Backend, *, whole: bool) -> Sequence[Point]:
    """Where to kill again: everywhere in memory, along diagonals on disk; in the reduced form now and then."""
    if not whole:
        return recovery[number::97][: number % 4 == 0]
    return recovery if backend == "memory" else recovery[number % DISK_STEP :: DISK_STEP]


async def boundaries(scenario: Scenario, world: World, kills: Sequence[Point]) -> list[Point]:
    """One history with these kills, one to a life, checked; gives the boundaries of its last life."""
    try:
        for kill in kills:
            plan = FaultPlan().kill_at(kill.boundary, nth=kill.nth)
            await live(world, lambda session: scenario.run(world, session), plan)
        last = FaultPlan()
        assert await live(world, lambda session: scenario.run(world, session), last)
        await check_history(scenario, world)
    except BaseException as error:
        error.add_note(f"{scenario.name} on {world.backend}, killed at {list(kills)}")
        error.add_note(world.history())
        raise
    return last.all_boundaries()


async def check_history(scenario: Scenario, world: World) -> None:
    """Everything that holds of a history that has come to its end."""
    before = len(world.trace)
    stored = content(world.folder)
    session = await world.open()
    lane = session.branch("main")
    entries = await lane.entries(newest_first=False)
    ledger = await session.usage()
    messages = [entry.body for entry in entries]

    found = [
        *await check_invariants(session),
        *check_trace(world.trace),
        *await check_trace_against(world.trace, session),
    ]
    assert found == []
    assert session.open_operations() == []
    for model in world.models:
        model.require_no_violations()

    # An answer was interrupted where a death found a request under way, and nowhere else.
    interrupted = {
        entry.id
        for entry in entries
        if isinstance(entry.body, AssistantMessage) and entry.body.error and entry.body.error.code == "interrupted"
    }
    assert interrupted == world.found_generating
    rows = {row.row.entry_id: row.row for row in ledger}
    answers = [entry for entry in entries if isinstance(entry.body, AssistantMessage)]
    assert sorted(rows) == sorted(entry.id for entry in answers)
    assert all(rows[id].usage.unknown for id in interrupted)

    # A call was interrupted where a death found one under way that must not run again, and nowhere else.
    lost = {
        entry.id for entry in entries if isinstance(entry.body, ToolResultMessage) and INTERRUPTED in entry.body.text
    }
    pended = {each.call_id for each in world.found_pending if each.policy == "never" or each.cancelled}
    assert lost == pended
    assert all(body.is_error for body in messages if isinstance(body, ToolResultMessage) and INTERRUPTED in body.text)

    # What is kept is what an uninterrupted run makes, but for those results.
    if scenario.plain and scenario not in ABORTS:
        assert len(kept(messages)) == len(scenario.plain)
        lines = shape(kept(messages))
        results = [entry for entry in entries if not (isinstance(entry.body, AssistantMessage) and entry.body.error)]
        for line, entry, plain in zip(lines, results, scenario.plain, strict=True):
            assert line == plain or entry.id in lost

    check_effects(scenario, world, lost)

    # I15: nothing is left to do, and looking wrote nothing.
    result = await session._runtime.storage.values("result")
    assert len(result) == len([each for each in messages if not isinstance(each, AssistantMessage | ToolResultMessage)])
    await session.close()
    assert check_nothing_written(world.trace, since=before) == []
    assert content(world.folder) == stored


def check_effects(scenario: Scenario, world: World, lost: set[str]) -> None:
    """Effects counted outside: never more often than the policy and the deaths allow."""
    pended = [each.call_id for each in world.found_pending]
    by_call: dict[str, list[int]] = {}
    for effect in world.effects:
        by_call.setdefault(effect.call_id, []).append(effect.attempt)
        same = [each for each in world.effects if each.call_id == effect.call_id]
        assert len({each.key for each in same}) == 1
        if effect.policy == "never":
            assert len(same) == 1
        assert len(same) <= 1 + pended.count(effect.call_id)
    for attempts in by_call.values():
        assert attempts == sorted(set(attempts))
    for effect in world.effects:
        assert effect.recovered == (effect.attempt > 1)
    if scenario in ABORTS:
        return
    for line in scenario.plain:
        if line.startswith("result ") and line.endswith(" done"):
            label = line.removeprefix("result ").removesuffix(" done")
            policy = {"safe": "safe", "key": "idempotent"}.get(label.split(":")[0], "never")
            assert world.starts()[label] >= (0 if policy == "never" else 1)
            if policy == "never" and not lost:
                assert world.starts()[label] == 1
    assert not {"unknown", "picky"} & {label.split(":")[0] for label in world.starts()}


def fresh(folder: Path) -> Path:
    """A new folder for one history."""
    made = folder / str(len(list(folder.iterdir())))
    made.mkdir()
    return made


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of a JSONL session; what SQLite's files hold is told by the trace."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}
