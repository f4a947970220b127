"""Prints the cost budget's table for this build: ``python -m benchmarks [--smoke] [--json FILE]``.

Times are paired with floors that are measured in the same run. The budget was set on a machine with known floors, so
what counts is the share of the budget *by ratio*: our time in floors measured here, against the budget in the floors it
was set with. That holds on a noisy or a slower machine; the plain share of the budget does not. *Best* is the fastest
single run of all, the nearest thing to this machine undisturbed, with its plain share of the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import floors, large, opening, runs

ROUNDS = 5
LANES = 100
OPENING = """
import asyncio, agentlane
async def main():
    async with agentlane.open_session({target!r}):
        pass
asyncio.run(main())
"""
FLOORS_MS = {"memory": 0.04, "JSONL, process": 0.05, "JSONL, disk": 1.9, "SQLite, process": 0.55, "SQLite, disk": 1.8}
"""The floors of the machine that the budget was set on."""


def main() -> None:
    """Measure, then print the table as text, and as JSON where it is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few repetitions: does it run, not how fast")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON too; - is standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), smoke=options.smoke)
    if options.json == "-":
        print(json.dumps(rows, indent=2))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n")
    print_table(rows)


def measure(folder: Path, *, smoke: bool) -> list[dict[str, Any]]:
    """All rows of the table."""
    few = 10 if smoke else 400
    many = 60 if smoke else 1_000
    rows = [
        count("commits per run, tools together", asyncio.run(runs.commits_of_a_run(together=True)), 5),
        count("commits per run, tools apart", asyncio.run(runs.commits_of_a_run(together=False)), 12),
        paired(folder, "memory", ":memory:", "process", lambda _, times: floors.memory_floor(runs=times), 0.4, few),
        paired(folder, "JSONL, process", "a.jsonl", "process", append_floor("process"), 0.5, few),
        paired(folder, "JSONL, disk", "b.jsonl", "disk", append_floor("disk"), 3, few),
        paired(folder, "SQLite, process", "a.db", "process", sqlite_floor("process"), 1.2, few),
        paired(folder, "SQLite, disk", "b.db", "disk", sqlite_floor("disk"), 3, few),
        count("JSONL bytes per run, together", asyncio.run(runs.jsonl_bytes_of_a_run(folder, together=True)), 7_500),
        count("JSONL bytes per run, apart", asyncio.run(runs.jsonl_bytes_of_a_run(folder, together=False)), 13_000),
    ]
    for name, target in (("memory", ":memory:"), ("JSONL", "grow.jsonl"), ("SQLite", "grow.db")):
        ratio = asyncio.run(runs.growth(where(folder, target), many))
        rows.append(row(f"run {many} against run 1, {name}", "ratio", ratio, 1.15))
    for name, target in (("memory", ":memory:"), ("JSONL", "watch.jsonl"), ("SQLite", "watch.db")):
        ratio = asyncio.run(runs.watched_ratio(where(folder, target), few))
        rows.append(row(f"a watched run against an unwatched one, {name}", "ratio", ratio, 1.2))
    for name, target in (("memory", ":memory:"), ("JSONL", "queue.jsonl"), ("SQLite", "queue.db")):
        ratio = asyncio.run(runs.queued_ratio(where(folder, target), 100 if smoke else 1_000))
        rows.append(row(f"each of {100 if smoke else 1_000} queued messages against ten, {name}", "ratio", ratio, 1.15))
    for name, target, budget in (("JSONL", "reopen.jsonl", 60), ("SQLite", "reopen.db", 5)):
        taken = asyncio.run(runs.reopen_seconds(where(folder, target), many))
        rows.append(row(f"reopen after {many} runs, {name}", "ms", taken * 1e3, budget))
    floor_of = {each["name"]: each["floor"] for each in rows if "floor" in each}
    lanes = (("memory", ":memory:", 40), ("JSONL, process", "lanes.jsonl", 60), ("SQLite, process", "lanes.db", 100))
    for number, (name, target, budget) in enumerate(lanes):
        places = [where(folder, f"{number}-{each}-{target}") if number else target for each in range(1 if smoke else 5)]
        taken = [asyncio.run(runs.hundred_lanes_seconds(place)) * 1e3 for place in places]
        floor = LANES * floor_of[f"one run, {name}"]
        by_ratio = round(median(taken) / floor * LANES * FLOORS_MS[name] / budget, 2)
        made = row(f"100 lanes, one run each, {name}", "ms", median(taken), budget)
        made.update(best=round(min(taken), 3), best_of_budget=round(min(taken) / budget, 2))
        rows.append({**made, "floor": round(floor, 3), "ratio": round(median(taken) / floor, 2), "by_ratio": by_ratio})
    rows.append(count("extra commits of a streamed answer of 100 deltas", asyncio.run(runs.commits_of_a_stream()), 0))
    rows += imports(folder, 1 if smoke else 7)
    rows += large.measure(folder, smoke=smoke)
    shapes = ["entries of 1 kB"] if smoke else [*opening.SHAPES, opening.RUNS]
    for each in opening.rows(folder, 0.5 if smoke else 100, shapes, 1 if smoke else opening.ROUNDS):
        made = row(each["name"], "ms", each["cpu_s"] * 1e3, 1_000)
        rows.append(
            {**made, "floor": round(each["floor_s"] * 1e3, 3), "ratio": round(each["cpu_s"] / each["floor_s"], 2)}
        )
        rows.append(row(f"{each['name']}, at most", "MiB", each["peak_mib"], 64))
    return rows


def paired(folder: Path, name: str, target: str, durability: Any, floor: Any, budget_ms: float, times: int) -> Any:
    """Our time and the floor's, measured in turn so that both see the same machine."""
    ours, bare, best = [], [], float("inf")
    for number in range(ROUNDS):
        place = where(folder, f"{number}-{target}") if target != ":memory:" else target
        taken = asyncio.run(runs.run_times(place, durability, max(times // ROUNDS, 2)))
        ours.append(median(taken))
        best = min(best, *taken)
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            bare.append(floor(Path(inner), max(times // ROUNDS, 2)))
    ratio = median(ours[i] / bare[i] for i in range(ROUNDS))
    made = row(f"one run, {name}", "ms", median(ours) * 1e3, budget_ms)
    return {
        **made,
        "best": round(best * 1e3, 3),
        "best_of_budget": round(best * 1e3 / budget_ms, 2),
        "floor": round(median(bare) * 1e3, 3),
        "ratio": round(ratio, 2),
        "by_ratio": round(ratio * FLOORS_MS[name] / budget_ms, 2),
    }


def sqlite_floor(durability: floors.Durability) -> Any:
    return lambda folder, times: floors.sqlite_floor(folder, durability=durability, runs=times)


def append_floor(durability: floors.Durability) -> Any:
    return lambda folder, times: floors.append_floor(folder, durability=durability, runs=times)


def imports(folder: Path, times: int) -> list[dict[str, Any]]:
    """Time of ``import agentlane`` in a fresh interpreter, compiled, beside that of its dependencies alone; and with
    the opening of a first session, for which its store is imported.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def spent(code: str) -> float:
        timed = f"import time\nt = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"
        command = [sys.executable, "-c", timed]
        taken = [
            float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
            for _ in range(times + 1)  # the first one compiles
        ]
        return min(taken[1:]) * 1e3

    bare = spent("import aiosqlite, anyio, asyncio, msgspec, typing_extensions")
    rows = [row("import agentlane", "ms", spent("import agentlane"), 120)]
    for name, target in (("memory", ":memory:"), ("JSONL", "imported.jsonl"), ("SQLite", "imported.db")):
        opening = OPENING.format(target=where(folder, target))
        rows.append(row(f"import agentlane, open a session, {name}", "ms", spent(opening), 160))
    return [{**each, "floor": round(bare, 3), "ratio": round(each["value"] / bare, 2)} for each in rows]


def row(name: str, unit: str, value: float, budget: float) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": round(value, 3), "budget": budget}


def count(name: str, value: int, budget: int) -> dict[str, Any]:
    return row(name, "count", value, budget)


def where(folder: Path, target: str) -> str:
    return target if target == ":memory:" else str(folder / target)


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows as aligned text; a dash where there is no floor."""
    titles = ("here", "budget", "of budget", "best", "of budget", "floor", "x floor", "by ratio")
    print(" " * 57 + "".join(f"{title:>10}" for title in titles))
    for each in rows:
        share = each["value"] / each["budget"] if each["budget"] else float(each["value"])
        shown = [each["value"], each["budget"], f"{share:.2f}"]
        shown += [each.get(key, "-") for key in ("best", "best_of_budget", "floor", "ratio", "by_ratio")]
        name = f"{each['name']} ({each['unit']})"
        print(f"{name:57}" + "".join(f"{value:>10}" for value in shown))


if __name__ == "__main__":
    main()
