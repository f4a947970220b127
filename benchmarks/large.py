"""Large sessions: what a long history, many branches, large results, values and streams, and a search cost.

Ratios are of one run: a large session against a small one of the same process, in turn. Bytes are those that the
process writes, as the kernel counts them (Linux; elsewhere they are left out).
"""

from __future__ import annotations

import asyncio
import gc
import io
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from agentlane import (
    Agent,
    AssistantMessage,
    Branch,
    LaneSnapshot,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartEnd,
    PartStart,
    Prompt,
    Session,
    StreamItem,
    TextPart,
    ToolCallPart,
    UserMessage,
    ValueAddress,
    open_session,
    tool,
)
from agentlane.storage import MemoryStore
from benchmarks.runs import InstantModel, one_run, seconds

STORES = (("memory", ":memory:"), ("JSONL", "large.jsonl"), ("SQLite", "large.db"))
WORDS = ("river", "stone", "window", "garden", "letter", "engine", "forest", "bridge", "market", "winter")


class Sizes(NamedTuple):
    """How large is large."""

    entries: int = 100_000
    few: int = 1_000
    branches: int = 1_000
    result_bytes: int = 10_000_000
    value_bytes: int = 1_000_000
    commits: int = 1_000
    deltas: int = 50_000
    times: int = 200


SMOKE = Sizes(
    entries=600, few=300, branches=20, result_bytes=200_000, value_bytes=50_000, commits=20, deltas=600, times=5
)


def measure(folder: Path, *, smoke: bool) -> list[dict[str, Any]]:
    """All rows about large sessions."""
    sizes = SMOKE if smoke else Sizes()
    rows: list[dict[str, Any]] = []
    for name, target in STORES:
        inner = folder / f"large-{name}"
        inner.mkdir()
        rows += asyncio.run(_long(name, inner, target, sizes))
        rows += asyncio.run(_result(name, inner, target, sizes))
        rows += asyncio.run(_value(name, inner, target, sizes))
    rows += asyncio.run(_streams(sizes))
    return rows


# A long path, and branches off it.


async def _long(name: str, folder: Path, target: str, sizes: Sizes) -> list[dict[str, Any]]:
    small = await open_session(_place(folder, f"few-{target}", target), durability="process")
    large = await open_session(_place(folder, target, target), durability="process")
    await _fill(small, sizes.few)
    await _fill(large, sizes.entries)
    n, rows = f"{sizes.entries:,}", []
    few, many = small.branch("trunk"), large.branch("trunk")
    ratio, bytes_few, bytes_many = await _appends(few, many, sizes.times)
    rows.append(_row(f"append at {n} entries against {sizes.few:,}, {name}", "ratio", ratio, 1.15))
    if bytes_few:
        rows.append(_row(f"bytes of a commit there against here, {name}", "ratio", bytes_many / bytes_few, 1.1))
    rows += await _branches(name, large, sizes)
    rows += await _whole(name, folder, small, large, sizes)
    if name != "JSONL":  # which is searched as memory is, by reading
        rows += await _search(name, large, sizes)
    await small.close()
    await large.close()
    if name != "memory":
        path = _place(folder, target, target)
        opened = [await seconds(lambda: _open_and_close(path)) for _ in range(3)]
        rows.append(_row(f"open {n} entries with {sizes.branches:,} branches, {name}", "ms", min(opened) * 1e3, 1_000))
    return rows


async def _fill(session: Session, entries: int) -> None:
    messages = (
        {
            "role": "user" if each % 2 == 0 else "assistant",
            "content": f"message {each}: the {WORDS[each % 10]} by the {WORDS[each // 10 % 10]}",
        }
        for each in range(entries)
    )
    await session.import_messages("trunk", messages, format="openai")


async def _appends(few: Branch, many: Branch, times: int) -> tuple[float, float, float]:
    """An append there against one here, in turn, and the bytes that each writes."""
    message = UserMessage(content=(TextPart(text="as long as this is, here and there"),))
    for branch in (few, many):
        for _ in range(40):
            await branch.append_message(message)
    ratios = []
    for _ in range(5):
        here, there = [], []
        for _ in range(times):
            here.append(await seconds(lambda: few.append_message(message)))
            there.append(await seconds(lambda: many.append_message(message)))
        ratios.append(median(there) / median(here))
    sizes = []
    for branch in (few, many):
        before = _written()
        for _ in range(times):
            await branch.append_message(message)
        sizes.append((_written() - before) / times)
    return median(ratios), sizes[0], sizes[1]


async def _branches(name: str, session: Session, sizes: Sizes) -> list[dict[str, Any]]:
    """Branches off the middle of the trunk, each with an entry of its own."""
    trunk = session.branch("trunk")
    middle = (await trunk.entries(limit=sizes.entries // 2))[-1].id
    gc.collect()
    taken = []
    for number in range(sizes.branches):
        taken.append(await seconds(lambda number=number: _branch_off(session, f"b{number}", middle)))  # type: ignore[misc]
    part = max(sizes.branches // 10, 5)
    count = f"{sizes.branches:,}"
    rows = [
        _row(f"each of {count} branches off the trunk, {name}", "ms", median(taken) * 1e3, 3),
        _row(
            f"the last of {count} branches against the first, {name}",
            "ratio",
            median(taken[-part:]) / median(taken[:part]),
            1.3,
        ),
    ]
    for what, branch in (("trunk", trunk), ("first branch", session.branch("b0")), ("last branch", _last(session))):
        best = min([await seconds(lambda branch=branch: branch.entries(limit=50)) for _ in range(20)])  # type: ignore[misc]
        rows.append(_row(f"newest 50 of the {what}, {name}", "ms", best * 1e3, 1))
    deleted = await seconds(lambda: session.delete_branch("b1"))
    listed = min(await asyncio.gather(*[_timed(session.branches) for _ in range(5)]))
    rows.append(_row(f"list {count} branches, {name}", "ms", listed * 1e3, 2))
    rows.append(_row(f"delete one of them, {name}", "ms", deleted * 1e3, 5))
    return rows


async def _branch_off(session: Session, name: str, at: str) -> None:
    branch = await session.create_branch(name, at=at)
    await branch.append_message(UserMessage(content=(TextPart(text="from here on"),)))


async def _whole(name: str, folder: Path, small: Session, large: Session, sizes: Sizes) -> list[dict[str, Any]]:
    """What reads all of a path, for each entry of it: a lane's first run, a fork, an export."""
    rows = []
    ratio = sizes.entries / sizes.few

    async def first_run(session: Session) -> None:
        await one_run(await session.lane("trunk", Agent(model=InstantModel(deltas=1))))

    async def fork(session: Session) -> None:
        await session.fork(MemoryStore(), branch="trunk")

    async def export(session: Session) -> None:
        await session.export(io.BytesIO())

    for what, function in (("first run of a lane", first_run), ("fork of a branch", fork), ("export", export)):
        here = await seconds(lambda function=function: function(small))  # type: ignore[misc]
        there = await seconds(lambda function=function: function(large))  # type: ignore[misc]
        title = f"{what}, {sizes.entries:,} entries, {name}"
        rows.append(
            {**_row(title, "ms", there * 1e3, 60 * sizes.entries / 1_000), "ratio": round(there / here / ratio, 2)}
        )
    lane = await large.lane("trunk", Agent(model=InstantModel(deltas=1)))
    again = min([await seconds(lambda: one_run(lane)) for _ in range(5)])
    rows.append(_row(f"a later run there, {name}", "ms", again * 1e3, 5))
    seen = min([await seconds(lambda: _snapshot(lane.watch())) for _ in range(5)])
    rows.append(_row(f"snapshot of a lane there, {name}", "ms", seen * 1e3, 5))
    return rows


async def _snapshot(watch: Any) -> None:
    async with watch:
        await watch.__anext__()


async def _search(name: str, session: Session, sizes: Sizes) -> list[dict[str, Any]]:
    rows = []
    branch = session.branch("b0")
    message = UserMessage(content=(TextPart(text="the river by the stone, and a word that is rare: quixotic"),))

    async def append() -> object:
        return await branch.append_message(message)

    for _ in range(20):
        await append()
    without = [await seconds(append) for _ in range(2 * sizes.times)]
    first = await seconds(lambda: session.search("quixotic"))
    withal = [await seconds(append) for _ in range(2 * sizes.times)]
    n = f"{sizes.entries:,}"
    if name == "SQLite":
        rows.append(_row(f"making the index of {n} entries, {name}", "ms", first * 1e3, 60 * sizes.entries / 1_000))
        rows.append(
            _row(f"a commit with the index against one without, {name}", "ratio", median(withal) / median(without), 1.1)
        )
    for what, text in (("rare word", "quixotic"), ("common word", "river"), ("few words", "river stone")):
        await session.search(text)
        best = min([await seconds(lambda text=text: session.search(text)) for _ in range(5)])  # type: ignore[misc]
        budget = 500 if name == "SQLite" else 60 * sizes.entries / 1_000
        rows.append(_row(f"search of {n} entries for a {what}, {name}", "ms", best * 1e3, budget))
    return rows


# A large result, a large value, a large answer in small pieces.


async def _result(name: str, folder: Path, target: str, sizes: Sizes) -> list[dict[str, Any]]:
    size = sizes.result_bytes

    @tool(name="read_file", replay="safe")
    async def large(path: str) -> str:
        """Read a large file."""
        return "x" * (size // 8)  # of each of the eight calls

    async with open_session(_place(folder, f"result-{target}", target), durability="process") as session:
        agent = Agent(model=InstantModel(), tools=[large], max_result_bytes=size)
        lane = await session.lane("main", agent)
        admitted = await lane.accept(Prompt("read the modules"))
        gc.collect()
        tracemalloc.start()
        before = _written()
        await lane.drive(admitted.operation_id)
        written = _written() - before
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    rows = [_row(f"peak memory of {size / 1e6:g} MB of results, {name}", "x size", peak / size, 8)]
    if written and name != "memory":
        rows.append(_row(f"bytes written for them, {name}", "x size", written / size, 2.2))
    return rows


async def _value(name: str, folder: Path, target: str, sizes: Sizes) -> list[dict[str, Any]]:
    """A value that stays as it is, in a session that goes on."""
    address = ValueAddress("app.kept", "large", str)
    sessions, branches = [], []
    for size in (10, sizes.value_bytes):
        session = await open_session(_place(folder, f"value-{size}-{target}", target), durability="process")
        sessions.append(session)
        branches.append(await session.create_branch("main"))
        await session.set_value(address, "x" * size)
    ratio, *written = await _appends(branches[0], branches[1], sizes.commits // 5)
    read = min([await seconds(lambda: sessions[1].value(address)) for _ in range(5)])
    cleaned = await seconds(sessions[1].compact_storage)
    for session in sessions:
        await session.close()
    shown = f"a value of {sizes.value_bytes / 1e6:g} MB"
    rows = [_row(f"a commit beside {shown}, {name}", "ratio", ratio, 1.15)]
    if name != "memory":
        if written[0]:
            rows.append(_row(f"bytes of a commit beside {shown}, {name}", "ratio", written[1] / written[0], 1.1))
        rows.append(_row(f"cleanup with {shown}, {name}", "ms", cleaned * 1e3, 250))
    rows.append(_row(f"reading {shown}, {name}", "ms", read * 1e3, 20))
    return rows


class PiecesModel:
    """Answers with one call whose arguments come in deltas of 100 characters; then with a word."""

    identity = ModelIdentity(provider="benchmark", name="pieces")
    limits = ModelLimits()

    def __init__(self, deltas: int) -> None:
        self._deltas = deltas

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """The call, with a turn for others every fifty deltas."""
        if len(request.messages) > 1:
            yield AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop")
            return
        piece = "0123456789" * 10
        yield PartStart(index=0, kind="tool_call", id="call", name="write")
        for number in range(self._deltas):
            yield PartDelta(index=0, text=piece)
            if number % 50 == 0:
                await asyncio.sleep(0)
        part = ToolCallPart(id="call", name="write", arguments={"text": piece * self._deltas})
        yield PartEnd(index=0, part=part)
        yield AssistantMessage(content=(part,), stop_reason="tool_calls")


@tool(replay="safe")
async def write(text: str) -> str:
    """Write a text."""
    return f"{len(text)} characters"


async def _streams(sizes: Sizes) -> list[dict[str, Any]]:
    rows = []
    readers: tuple[tuple[str, Callable[[Any, str], Awaitable[None]]], ...] = (
        ("unwatched", _nobody),
        ("a stream of it", _stream),
        ("a watch that is folded", _fold),
    )
    shown = f"{sizes.deltas:,} deltas of arguments"
    for what, reader in readers:
        pairs = []
        for _ in range(3):
            half = await _streamed(sizes.deltas // 2, reader)
            pairs.append((half, await _streamed(sizes.deltas, reader)))
        made = _row(f"{shown}, {what}", "ms", min(whole for _, whole in pairs) * 1e3, 80 * sizes.deltas / 1_000)
        rows.append({**made, "ratio": round(median(whole / half for half, whole in pairs) / 2, 2)})
    return rows


async def _streamed(deltas: int, reader: Callable[[Any, str], Awaitable[None]]) -> float:
    """Processor time of an answer in so many pieces, and of who reads it."""
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=PiecesModel(deltas), tools=[write]))
        admitted = await lane.accept(Prompt("write it"))
        gc.collect()
        begin = time.process_time()
        reading = asyncio.ensure_future(reader(lane, admitted.operation_id))
        await asyncio.sleep(0)
        await lane.drive(admitted.operation_id)
        await reading
        return time.process_time() - begin


async def _nobody(lane: Any, operation_id: str) -> None:
    pass


async def _stream(lane: Any, operation_id: str) -> None:
    async for _ in lane.stream(operation_id):
        pass


async def _fold(lane: Any, operation_id: str) -> None:
    snapshot: Any = None
    async for item in lane.watch():
        snapshot = item if isinstance(item, LaneSnapshot) else snapshot.apply(item)
        if snapshot.last_result is not None:
            return


# Helpers.


def _last(session: Session) -> Branch:
    return session.branch(max((each for each in session.branches() if each[0] == "b"), key=lambda each: int(each[1:])))


async def _open_and_close(path: str) -> None:
    await (await open_session(path, durability="process")).close()


async def _timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _written() -> int:
    """Bytes that this process has written so far; 0 where nobody counts them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def _place(folder: Path, name: str, target: str) -> str:
    return target if target == ":memory:" else str(folder / name)


def _row(name: str, unit: str, value: float, budget: float) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": round(value, 3), "budget": round(budget, 3)}
