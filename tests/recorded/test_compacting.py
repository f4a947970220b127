"""Claim: wherever the recorded conversation is compacted, what goes on is the summary and the exact end of it.

A branch is made behind every message (behind some, in the reduced form), and a lane on it compacted, with kept tails of
any length. What has to be kept is told by rules of the test's own, from the entries alone. Some compactions are killed
as well, at each of their boundaries in turn, and done again by a new process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, AgentLane, Session, open_session
from agentlane.data.entries import Compaction, Entry
from agentlane.data.messages import Message
from agentlane.data.results import OperationResult
from agentlane.data.tokens import estimate_request
from agentlane.data.usage import Usage
from agentlane.driver.bounded_path import read_path
from agentlane.errors import NothingToCompact
from agentlane.machine.context import ModelContext
from agentlane.storage.contract import Store
from agentlane.storage.memory import MemoryStore
from agentlane.testing import check_invariants, check_pairing
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from tests.recorded.compacted import (
    CutAt,
    Shown,
    counted,
    cut_of,
    is_summary,
    missing,
    shown,
    standing_for,
    summary,
    unanswered,
)
from tests.recorded.loader import VARIABLE, recorded_session
from tests.recorded.playback import BACKENDS, Backend, bury

STRIDE = 39
"""In the reduced form, on each store; together they come to each 13th message."""
STRETCH = 300
"""Rows of a piece of the conversation in files, at least: each compaction reads the path from its beginning."""
KILLS, FEW_KILLS = 8, 2
"""How many compactions there are for each that is killed as well, in the whole and in the reduced form."""
LANES_MAX = 100
"""Of one process: each has in memory what it read."""
KINDS = {"whole turns", "split", "nothing kept", "unanswered", "nothing to compact"}
BARE = estimate_request("", ())


@dataclass(frozen=True)
class Place:
    """Behind which entry a compaction is asked for, how much is kept, and what has to come of it."""

    index: int
    keep: int
    pieces: list[Shown] = field(repr=False)
    cut: CutAt | None


class Conversation:
    """The entries that were imported, as they were read once."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._messages = [index for index, entry in enumerate(entries) if isinstance(entry.body, Message)]
        """The places of messages: what an import has kept besides shows nothing."""
        self._pieces = shown(entries)
        ids = {piece.id: number for number, piece in enumerate(self._pieces, start=1)}
        self._ends = [0]
        for entry in entries:
            self._ends.append(ids.get(entry.id, self._ends[-1]))

    def place(self, number: int) -> Place:
        """Behind the message of that number, and another length to be kept than behind the one before."""
        index = self._messages[number]
        pieces = self._pieces[: self._ends[index + 1]]
        pieces += missing(pieces)
        total = sum(piece.tokens for piece in pieces)
        keeps = (2_000, total // 2, 0, total, 12_000, max(0, total - 1), 300)
        keep = keeps[number % len(keeps)]
        return Place(index, keep, pieces, cut_of(pieces, keep))

    def __len__(self) -> int:
        return len(self._messages)

    def path_from(self, id: str | None, index: int) -> list[Entry]:
        """The entries from ``id`` up to the one at ``index``."""
        start = next((n for n, entry in enumerate(self.entries) if entry.id == id), index + 1)
        return list(self.entries[start : index + 1])


class Host:
    """Has the session open, in as many processes as it takes."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._clock = ManualClock()
        targets: dict[Backend, Path | Store] = {
            "memory": MemoryStore(clock=self._clock, ids=CountingIds(series=1_000_000)),
            "jsonl": folder / "recorded.jsonl",
            "sqlite": folder / "recorded.db",
        }
        self._target = targets[backend]
        self._lives = 0
        self._lanes = 0
        self.session: Session
        self.rows_seen = 0
        """The place of the newest row of usage that was looked at."""

    async def open(self) -> None:
        self._lives += 1
        self._lanes = 0
        self.probe = FaultPlan()
        self.session = await open_session(
            self._target,
            durability="process",
            clock=self._clock,
            ids=CountingIds(series=self._lives),
            seed=self._lives,
            probe=self.probe,
        )

    async def lane(self, name: str, at: str) -> AgentLane[Any, Any]:
        """A new lane behind ``at``."""
        self._lanes += 1
        if self._lanes > LANES_MAX:
            await self.session.close()
            await self.open()
        return await self.session.lane(name, agent(), at=at)

    async def killed(self, name: str, keep: int, boundary: int) -> str:
        """Compact the lane in a process that dies at that of the boundaries, open another one, and go on.

        Return what the operation was at when the process had died, empty if it was not there.
        """
        lane = await self.session.lane(name, agent())
        self.probe.kill_at(len(self.probe.trace) + boundary)
        compacting = asyncio.ensure_future(lane.compact(keep_tokens=keep, operation_id=name))
        dying = asyncio.ensure_future(self.probe.died())
        await asyncio.wait({compacting, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        assert self.probe.died_at is not None, f"{name}: nothing came to boundary {boundary}"
        await bury(self.session, compacting)
        await self.open()
        return "".join(operation.at or "" for operation in self.session.open_operations())


def agent() -> Agent[Any, Any]:
    return Agent(model=ScriptedModel(["fine"], summaries=summary))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_behind_each_entry(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    caplog.set_level(logging.ERROR, logger="agentlane")  # a torn tail is cut off at some deaths, and said so
    number = BACKENDS.index(backend)
    seen = Seen(kills=KILLS if whole else FEW_KILLS, first=0 if whole else number * 5)
    pieces = rows_in_pieces() if whole else [rows()]
    for piece, given in enumerate(pieces):
        folder = tmp_path / str(piece)
        folder.mkdir()
        host = Host(backend, folder)
        await host.open()
        await host.session.import_messages("old", given, format="recorded")
        before = await host.session._runtime.storage.scan()
        conversation = Conversation(await host.session.branch("old").entries(newest_first=False))

        first, stride = (0, 1) if whole else (13 * number, STRIDE)
        for message in range(first, len(conversation), stride):
            await compact_behind(host, conversation.place(message), conversation, seen)

        # Nothing that was there before is changed, and nothing else came but the summaries.
        after = await host.session._runtime.storage.scan()
        assert after[: len(before)] == before
        assert len(after) == len(before) + seen.entries
        assert [row.kind for row in after[len(before) :]].count("compaction") == seen.compactions
        if not whole:
            assert await check_invariants(host.session) == []
        await host.session.close()
        seen.entries, seen.compactions = 0, 0

    print(f"{backend}: {seen.kinds}; killed at {seen.killed}")
    assert set(seen.kinds) == KINDS if whole else len(seen.kinds) >= 3
    assert len(seen.killed) == min(len(seen.boundaries), sum(seen.killed.values()))
    assert sum(seen.killed.values()) >= (90 if whole else 8)


class Seen:
    """What the test has shown so far."""

    def __init__(self, *, kills: int, first: int) -> None:
        self.kills = kills
        self.kinds: Counter[str] = Counter()
        self.boundaries: tuple[str, ...] = ()
        """Of a compaction that is not killed."""
        self.killed: Counter[str] = Counter()
        self.entries = 0
        self.compactions = 0
        self._next = first
        self._until = kills

    def next_kill(self) -> int | None:
        """The boundary at which this compaction is killed, if it is."""
        self._until -= 1
        if self._until:
            return None
        self._until = self.kills
        self._next += 1
        return (self._next - 1) % len(self.boundaries)


async def compact_behind(host: Host, place: Place, conversation: Conversation, seen: Seen) -> None:
    at = conversation.entries[place.index].id
    lane = await host.lane(f"lane-{place.index}", at)
    start = len(host.probe.trace)
    try:
        result = await lane.compact(keep_tokens=place.keep)
    except NothingToCompact:
        assert place.cut is None, place
        assert lane.tip() == at
        assert len(host.probe.trace) == start
        seen.kinds["nothing to compact"] += 1
        return
    assert place.cut is not None, place
    seen.boundaries = seen.boundaries or host.probe.trace[start:]
    seen.kinds[kind_of(place)] += 1
    compaction = await check(host, lane, place, conversation, result, seen)
    await check_rows(host, result, 0)

    boundary = seen.next_kill()
    if boundary is None:
        return
    name = f"killed-{place.index}"
    await host.lane(name, at)
    found = await host.killed(name, place.keep, boundary)
    seen.killed[seen.boundaries[boundary]] += 1
    lane = await host.session.lane(name, agent())
    result = await lane.compact(keep_tokens=place.keep, operation_id=name)
    again = await check(host, lane, place, conversation, result, seen)
    assert again == compaction, seen.boundaries[boundary]
    await check_rows(host, result, int(found == "summarizing"))


def kind_of(place: Place) -> str:
    assert place.cut is not None
    if place.cut.index == len(place.pieces):
        return "nothing kept"
    if unanswered(place.pieces) and sum(piece.tokens for piece in place.pieces[place.cut.index :]) > place.keep:
        return "unanswered"
    return "split" if place.cut.split else "whole turns"


async def check(
    host: Host,
    lane: AgentLane[Any, Any],
    place: Place,
    conversation: Conversation,
    result: OperationResult,
    seen: Seen,
) -> Compaction:
    """The compaction is what it has to be; it is returned with what must not differ after a kill."""
    assert place.cut is not None
    before, kept = place.pieces[: place.cut.index], place.pieces[place.cut.index :]
    placed = [piece for piece in place.pieces if piece.id is None]
    kept_from = next((piece.id for piece in kept), None)

    # The record, and the entry at the end of the path.
    assert result.status == "completed", result.error
    assert (result.status, result.summary, lane.tip()) == ("completed", result.to_tip, result.to_tip)
    path = await lane.entries(limit=1 + len(placed))
    path.reverse()
    body = path[-1].body
    assert isinstance(body, Compaction)
    assert (path[-1].id, body.summary) == (result.summary, result.text)
    assert path[0].parent_id == conversation.entries[place.index].id
    assert [entry.body for entry in path[:-1]] == [piece.message for piece in placed]
    assert body.kept_from == (path[0].id if kept and kept_from is None else kept_from), place
    assert body.split == place.cut.split
    tokens = [piece.tokens for piece in place.pieces]
    assert body.tokens_before == counted([piece.message for piece in place.pieces], tokens, BARE)
    assert body.stands_for == standing_for(before)
    assert body.model == ScriptedModel().identity

    # What a model is shown next: the summary, and the kept tail as it was.
    await lane._core.load()
    view = tuple(lane._core.context.view())
    assert is_summary(view[0], body)
    assert list(view[1:]) == [piece.message for piece in kept], place
    assert check_pairing(view) == []
    read = ModelContext()
    for entry in await read_path(host.session._runtime.storage, lane.tip()):
        read.add(entry.id, entry.body)
    assert tuple(read.view()) == view, place
    tail = [*conversation.path_from(kept_from, place.index), *path[:-1]]
    assert [piece.message for piece in shown(tail)] == list(view[1:]) or not kept
    assert sum(piece.tokens for piece in kept) <= place.keep or len(kept) == unanswered(kept)

    seen.entries += len(path)
    seen.compactions += 1
    return body


async def check_rows(host: Host, result: OperationResult, interrupted: int) -> None:
    """One row more for the summary, with its charge, and one for each request that a death left without an answer."""
    new = await host.session.usage(after_seq=host.rows_seen)
    host.rows_seen = new[-1].seq
    [*lost, row] = [each.row for each in new]
    assert {each.operation_id for each in (*lost, row)} == {result.operation_id}
    assert (row.kind, row.entry_id) == ("summary", result.summary)
    assert row.usage.output_tokens == len(result.text)
    assert [(each.kind, each.entry_id, each.usage) for each in lost] == [("summary", None, Usage())] * interrupted


def rows() -> list[dict[str, Any]]:
    recorded_session()  # skips where there is none
    return [json.loads(line) for line in Path(os.environ[VARIABLE]).read_text(encoding="utf-8").split("\n") if line]


def rows_in_pieces() -> list[list[dict[str, Any]]]:
    """Each piece but the first begins with a message of the user's."""
    pieces: list[list[dict[str, Any]]] = [[]]
    for row in rows():
        begins = row["type"] == "message" and row["message"]["role"] == "user"
        if begins and len(pieces[-1]) >= STRETCH:
            pieces.append([])
        pieces[-1].append(row)
    return pieces
