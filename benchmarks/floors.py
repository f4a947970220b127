"""Floors: what the bare ground costs for one run, without agentlane, so that budgets are ratios and not opinions.

One run is the plain run of the cost budget (one prompt, an answer with eight calls, eight results, a final answer), as
the bytes of its five commits and eight tasks that do nothing. Every function does the runs in a folder it is given, and
returns seconds per run.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

Durability: TypeAlias = Literal["disk", "process"]

CALLS = 8
MESSAGE = b'{"role":"tool_result","content":"' + b"x" * 200 + b'"}'
STATE = b'{"at":"tools","calls":[' + b"1" * 400 + b"]}"


class Rows(NamedTuple):
    """One commit: ids of new entries, values that are set, and values that go."""

    entries: list[str]
    values: list[tuple[str, bytes]]
    deleted: list[str]


def plain_run(number: int) -> list[Rows]:
    """The five commits of run ``number``: accept, intent, settlement with the tool intents, outcomes, terminal."""
    operation = f"{number:032x}"
    entries = [f"{number:024x}{each:012x}" for each in range(11)]
    state, meta, config = (f"op.{each}/{operation}" for each in ("state", "meta", "config"))
    tip, lane = "branch.tip/main", "lane.state/main"
    return [
        Rows(entries[:1], [(tip, b'""'), (meta, STATE), (config, STATE), (state, STATE), (lane, b"{}")], []),
        Rows([], [(state, STATE)], []),
        Rows(entries[1:2], [(tip, b'""'), (state, STATE)], []),
        Rows(entries[2:10], [(tip, b'""'), (state, STATE)], []),
        Rows(entries[10:], [(tip, b'""'), (f"result/{operation}", STATE), (lane, b"{}")], [state, meta, config]),
    ]


def sqlite_floor(folder: Path, *, durability: Durability, runs: int = 100) -> float:
    """Bare ``sqlite3`` on a thread of its own: each commit one hop there and back, one transaction, prepared texts."""
    path = folder / "floor.db"
    work: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def serve() -> None:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {'FULL' if durability == 'disk' else 'NORMAL'}")
        database.execute(
            "CREATE TABLE entry (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, payload TEXT NOT NULL)"
        )
        database.execute("CREATE TABLE value (key TEXT PRIMARY KEY, payload TEXT NOT NULL) WITHOUT ROWID")
        done.put(None)
        place = 0
        while (rows := work.get()) is not None:
            database.execute("BEGIN IMMEDIATE")
            for entry_id in rows.entries:
                place += 1
                database.execute("INSERT INTO entry VALUES (?, ?, CAST(? AS TEXT))", (place, entry_id, MESSAGE))
            database.executemany("REPLACE INTO value VALUES (?, CAST(? AS TEXT))", rows.values)
            database.executemany("DELETE FROM value WHERE key = ?", [(each,) for each in rows.deleted])
            database.execute("COMMIT")
            done.put(None)
        database.close()

    thread = threading.Thread(target=serve)
    thread.start()
    done.get()

    def commit(rows: Rows) -> None:
        work.put(rows)
        done.get()

    try:
        return _seconds_per_run(commit, runs)
    finally:
        work.put(None)
        thread.join()


def append_floor(folder: Path, *, durability: Durability, runs: int = 100) -> float:
    """Bare appends to one file: each commit one write, and one ``fdatasync`` for ``disk``."""
    descriptor = os.open(folder / "floor.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def commit(rows: Rows) -> None:
        parts = [each.encode() + MESSAGE for each in rows.entries]
        parts += [key.encode() + payload for key, payload in rows.values]
        parts += [each.encode() for each in rows.deleted]
        os.write(descriptor, b",".join(parts) + b"\n")
        if durability == "disk":
            os.fdatasync(descriptor)

    try:
        return _seconds_per_run(commit, runs)
    finally:
        os.close(descriptor)


def memory_floor(*, runs: int = 100) -> float:
    """A dict of entries and one of values, each payload copied as a store has to."""
    entries: dict[str, bytes] = {}
    values: dict[str, bytes] = {}

    def commit(rows: Rows) -> None:
        for entry_id in rows.entries:
            entries[entry_id] = bytes(memoryview(MESSAGE))
        for key, payload in rows.values:
            values[key] = bytes(memoryview(payload))
        for key in rows.deleted:
            del values[key]

    return _seconds_per_run(commit, runs)


def _seconds_per_run(commit: Callable[[Rows], None], runs: int) -> float:
    """The median, after a few runs that nobody counts."""
    return asyncio.run(_measure(commit, runs))


async def _measure(commit: Callable[[Rows], None], runs: int) -> float:
    """Each run is its five commits, and between the third and the fourth eight tasks that do nothing."""
    taken = []
    for number in range(runs + 5):
        commits = plain_run(number)
        begin = time.perf_counter()
        for rows in commits[:3]:
            commit(rows)
        tasks = [asyncio.create_task(_nothing()) for _ in range(CALLS)]
        for task in tasks:
            await task
        for rows in commits[3:]:
            commit(rows)
        taken.append(time.perf_counter() - begin)
    return median(taken[5:])


async def _nothing() -> None:
    """A tool that takes no time."""
