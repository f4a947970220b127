"""Claim: a process that is killed at any moment leaves a session that the next one drives to the end, and no effect
that must not happen twice happens twice. Real processes, real ``SIGKILL``, effects counted outside of the store.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentlane import SessionOwned, StoreOwned, open_session
from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage
from agentlane.machine.outcomes import INTERRUPTED
from agentlane.testing.invariants import check_invariants
from tests.acceptance import child_run

HERE = Path(__file__).parent
PATIENCE_S = 60  # a net for what hangs; nothing is measured by it
DISKS = {"jsonl": "s.jsonl", "sqlite": "s.db"}
ENDS = {"returns": 0, "raises": 1, "exits": 3}
BOUNDARIES = 120  # about how many a whole run reaches

PLAIN = [
    "user look around",
    "assistant looking (read,read,read,run,put)",
    *[f"result {label} done" for label in child_run.LABELS[:5]],
    "assistant  (run,alone,run,block)",
    *[f"result {label} done" for label in child_run.LABELS[5:9]],
    "assistant tidy enough",
    "user tidy up",
    "assistant  (run,run)",
    *[f"result {label} done" for label in child_run.LABELS[9:]],
    "assistant done",
    "user and report",
    "assistant nothing to report",
]


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def end(child: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Its return code and what it wrote; a child that does not end is killed, and fails the test."""
    try:
        printed, complaints = child.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        _, complaints = child.communicate()
        pytest.fail(f"the child did not end: {complaints.decode()}")
    return child.returncode, printed.decode(), complaints.decode()


def run_and_kill(target: Path, effects: Path, chance: random.Random, within: int) -> bool:
    """One process, killed at a random moment of its first boundaries; True if it came to its end before."""
    seed, at = chance.randrange(1000), chance.randrange(within)
    if chance.random() < 0.5:  # by itself, exactly at that boundary
        code, printed, complaints = end(start("child_run.py", target, effects, seed, at))
    else:  # by us, wherever it is when we have heard of that boundary
        child = start("child_run.py", target, effects, seed)
        assert child.stdout is not None
        heard = 0
        while heard <= at and (dots := os.read(child.stdout.fileno(), 64)):
            heard += len(dots)
        child.send_signal(signal.SIGKILL)
        code, printed, complaints = end(child)
        printed = "done" if code == 0 else printed
    assert code in (0, -signal.SIGKILL), complaints
    assert code != 0 or printed.endswith("done")
    return code == 0


@pytest.mark.parametrize("disk", DISKS)
async def test_killed_at_random_it_goes_on(disk: str, tmp_path: Path, whole: bool) -> None:
    chance = random.Random(f"kill -9 {disk}")
    wanted, kills, history = (9 if whole else 3), 0, 0  # tests/kills has them in their thousand
    while kills < wanted:
        history += 1
        folder = tmp_path / str(history)
        folder.mkdir()
        target, effects = folder / DISKS[disk], folder / "effects.log"
        deaths = 0
        # Given: processes that are killed, one after the other.
        while deaths < 3 and not run_and_kill(target, effects, chance, BOUNDARIES // (2 * deaths + 1)):
            deaths += 1
        # When: one is let alone.
        code, printed, complaints = end(start("child_run.py", target, effects, 0))
        assert (code, printed[-4:]) == (0, "done"), complaints
        # Then.
        await check_end(target, effects, deaths)
        kills += deaths


async def check_end(target: Path, effects: Path, deaths: int) -> None:
    """The session and the effects of a run that has come to its end."""
    lines = effects.read_text().splitlines()
    told = "\n".join(lines)
    async with open_session(target, create=False) as session:
        assert await check_invariants(session) == []
        assert session.open_operations() == []
        messages = await session.branch("main").messages()
        results = [await session._runtime.storage.values("result")]
    assert sorted(results[0]) == ["op-0", "op-1", "op-2"]

    failed = [each.error.code for each in messages if isinstance(each, AssistantMessage) and each.error]
    assert failed.count("interrupted") <= deaths
    assert set(failed) <= {"interrupted", "overloaded"}
    assert failed.count("overloaded") <= 1

    kept = [each for each in messages if not (isinstance(each, AssistantMessage) and each.error)]
    assert len(kept) == len(PLAIN), "\n".join(map(line, kept))
    starts = Counter(each.split()[0] for each in lines)
    keys = {each.split()[0]: each.split()[2] for each in lines}
    assert len({(each.split()[0], each.split()[2]) for each in lines}) == len(keys), told
    labels = iter(child_run.LABELS)
    for message, plain in zip(kept, PLAIN, strict=True):
        if not isinstance(message, ToolResultMessage):
            assert line(message) == plain
            continue
        label = next(labels)
        interrupted = INTERRUPTED in message.text
        assert interrupted or line(message) == plain
        if child_run.POLICIES[label.split(":")[0]] == "never":
            assert starts[label] <= 1, told
            assert interrupted or starts[label] == 1, told
        else:
            assert not interrupted
            assert 1 <= starts[label] <= 1 + deaths, told


def line(message: UserMessage | AssistantMessage | ToolResultMessage) -> str:
    """A message in one short line."""
    if isinstance(message, AssistantMessage):
        calls = ",".join(call.name for call in message.calls)
        return f"assistant {message.text}" + (f" ({calls})" if calls else "")
    if isinstance(message, ToolResultMessage):
        return f"result {message.text}"
    return "user " + "".join(getattr(part, "text", "") for part in message.content)


# Ends without a close.


@pytest.mark.parametrize(
    ("disk", "how", "code"),
    [("memory", "returns", 0), ("jsonl", "raises", 1), *[("sqlite", *each) for each in ENDS.items()]],
)
async def test_a_forgotten_close_never_holds_the_interpreter(disk: str, how: str, code: int, tmp_path: Path) -> None:
    """R121: a run is under way, nobody closes, and the process ends all the same; the operation is still open."""
    target = ":memory:" if disk == "memory" else tmp_path / DISKS[disk]

    ended, printed, complaints = end(start("child_ends.py", target, how))

    assert (ended, printed) == (code, "begun\n"), complaints
    assert "Event loop is closed" not in complaints
    assert ("on purpose" in complaints) == (how == "raises")
    if disk != "memory":
        await still_open(Path(target))


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("how", ["waits", "waits in async with"])
async def test_keyboard_interrupt_is_no_abort(disk: str, how: str, tmp_path: Path) -> None:
    """R01, R47: Ctrl-C while a tool runs ends the process; the operation stays open and can be driven."""
    target = tmp_path / DISKS[disk]
    child = start("child_ends.py", target, how)
    begun(child)

    child.send_signal(signal.SIGINT)
    code, _, complaints = end(child)

    assert code in (1, 130, -signal.SIGINT), complaints
    assert "KeyboardInterrupt" in complaints
    await still_open(target)


@pytest.mark.parametrize("disk", DISKS)
async def test_a_killed_owner_is_replaced_at_once_and_a_live_one_refuses(disk: str, tmp_path: Path) -> None:
    """R76: ownership dies with its process; no timer, no waiting."""
    target = tmp_path / DISKS[disk]
    child = start("child_ends.py", target, "waits")
    begun(child)

    with pytest.raises((SessionOwned, StoreOwned)):
        await open_session(target)
    child.kill()
    end(child)

    await still_open(target)


def begun(child: subprocess.Popen[bytes]) -> None:
    """Return once the child says that its tool runs."""
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n", child.communicate()


async def still_open(target: Path) -> None:
    async with open_session(target, create=False) as session:
        (operation,) = session.open_operations()
        assert (operation.operation_id, operation.cancel_requested_at) == ("op", None)
        assert [call.status for call in operation.calls] == ["effect_pending"]
        assert await check_invariants(session) == []
