"""What opening a large JSONL session costs: seconds beside a loop that only reads and checks each line, and memory.

``python -m benchmarks.opening [MEGABYTES]`` makes a file of each shape and opens it in a process of its own: by its
lines, and with the index that its owner left beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentlane import open_session
from agentlane.clock import SystemClock
from agentlane.data.writes import Address, InsertEntry, SetValue, Write
from agentlane.ids import Uuid7Source
from agentlane.storage.jsonl import JsonlStore
from benchmarks.runs import one_run, plain_agent

ROUNDS = 3
CHUNK_BYTES = 1 << 18


def commits(payload_bytes: int, total_bytes: int, *, entries: bool = True) -> Iterator[Sequence[Write]]:
    """Commits with payloads of that size: an entry and the tip, or one value that is set again and again."""
    ids, parent = Uuid7Source(SystemClock()), None
    payload = b'{"text":"%b"}' % (b"x" * payload_bytes)
    for _ in range(total_bytes // (payload_bytes + 250 * entries)):
        if not entries:
            yield [SetValue(Address("app.benchmark", "value"), payload)]
            continue
        fresh = ids.new()
        tip = SetValue(Address("branch.tip", "main"), b'"%b"' % fresh.encode())
        yield [InsertEntry(fresh, parent, "message", payload), tip]
        parent = fresh


SHAPES: dict[str, Callable[[int], Iterator[Sequence[Write]]]] = {
    "entries of 1 kB": lambda total: commits(850, total),
    "short messages": lambda total: commits(120, total),
    "results of 100 kB": lambda total: commits(100_000, total),
    "one value of 1 MB": lambda total: commits(1_000_000, total, entries=False),
}


RUNS = "runs of eight calls"


async def make_runs(folder: Path, name: str, total_bytes: int) -> Path:
    """A session of runs of eight calls."""
    store = JsonlStore(folder, durability="process", compact_share=None, index_min_bytes=0)
    await store.create(name)
    path = folder / f"{name}.jsonl"
    async with open_session(store, session_id=name) as session:
        lane = await session.lane("main", plain_agent())
        while path.stat().st_size < total_bytes:
            await one_run(lane)
    await store.close()
    return path


async def make(folder: Path, name: str, writes: Iterator[Sequence[Write]]) -> Path:
    """A session of those commits, and ``{name}-base``, which holds the same as a base."""
    store = JsonlStore(folder, durability="process", compact_share=None, index_min_bytes=0)
    await store.create(name)
    storage = await store.open(name)
    for number, each in enumerate(writes):
        await storage.submit(each)
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    snapshot = await storage.snapshot()
    await store.load(snapshot.pages(), last_seq=snapshot.last_seq, session_id=f"{name}-base")
    await snapshot.close()
    await storage.close()
    await (await store.open(f"{name}-base")).close()
    await store.close()
    return folder / f"{name}.jsonl"


def opened(path: Path, rounds: int, how: str) -> dict[str, float]:
    """Seconds, checked lines and MiB of an opening in a fresh process, the best of some."""
    command = [sys.executable, "-m", "benchmarks.opening", how, str(path)]
    found = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(rounds)]
    return {key: min(each[key] for each in found) for key in found[0]}


def rows(folder: Path, megabytes: float, shapes: Sequence[str], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """A row for each shape, as commits and as a base."""
    made = []
    for number, shape in enumerate(shapes):
        name, total = f"shape{number}", int(megabytes * 1e6)
        path = asyncio.run(
            make(folder, name, SHAPES[shape](total)) if shape in SHAPES else make_runs(folder, name, total)
        )
        for each, kind in ((path, ""), (path.with_name(f"{path.stem}-base.jsonl"), ", cleaned up")):
            size = each.stat().st_size / 1e6 if each.exists() else 0.0
            if kind and size < megabytes / 4:
                continue  # nearly all of it was superseded
            row = f"open {size:.0f} MB, {shape}{kind}"
            made.append({"name": row, **opened(each, rounds, "--lines")})
            made.append({"name": f"{row}, by index", **opened(each, rounds, "--index")})
    return made


def _checked(path: Path) -> float:
    """CPU seconds of the floor: read a file and check each line of it."""
    begin = time.process_time()
    descriptor = os.open(path, os.O_RDONLY)
    parts: list[bytes] = []
    while chunk := os.read(descriptor, CHUNK_BYTES):
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join([*parts, lines[0]])
            parts = []
        parts.append(lines.pop())
        for line in lines:
            if line[6:14] != b"%08x" % zlib.crc32(memoryview(line)[16:]):
                raise ValueError(f"{path}: a line is damaged")
    os.close(descriptor)
    return time.process_time() - begin


def _resident(what: str) -> float:
    """MiB that this process has, or had at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


async def _open(path: Path, index_min_bytes: int | None) -> None:
    store = JsonlStore(path.parent, durability="process", index_min_bytes=index_min_bytes)
    idle = _resident("VmRSS")
    begin, begin_wall = time.process_time(), time.perf_counter()
    storage = await store.open(path.stem, read_only=True)
    seconds, wall = time.process_time() - begin, time.perf_counter() - begin_wall
    kept, peak = _resident("VmRSS") - idle, _resident("VmHWM") - idle
    await storage.close()
    floor = min(_checked(path) for _ in range(ROUNDS))
    print(json.dumps({"cpu_s": seconds, "wall_s": wall, "floor_s": floor, "kept_mib": kept, "peak_mib": peak}))


def main() -> None:
    """Measure all shapes, or open the one file that is named."""
    if sys.argv[1:2] in (["--lines"], ["--index"]):
        asyncio.run(_open(Path(sys.argv[2]), 0 if sys.argv[1] == "--index" else None))
        return
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 100.0
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'':55}{'CPU s':>8}{'floor':>8}{'ratio':>8}{'MiB':>8}{'peak':>8}")
        for each in rows(Path(folder), megabytes, [*SHAPES, RUNS]):
            ratio = each["cpu_s"] / each["floor_s"]
            shown = (
                f"{each['cpu_s']:8.2f}{each['floor_s']:8.2f}{ratio:8.1f}{each['kept_mib']:8.1f}{each['peak_mib']:8.1f}"
            )
            print(f"{each['name']:55}{shown}")


if __name__ == "__main__":
    main()
