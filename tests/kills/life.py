"""What a child process does: ``live``; as a script, ``life.py REPORTS GATE``, with the job as its input."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentlane import AgentLane, Prompt, Session, SessionClosed, SessionOwned, StoreOwned, open_session
from agentlane.data import addresses, codec
from agentlane.data.operations import EffectPending, Generating, Tools
from agentlane.data.writes import InsertEntry, SetValue, Write
from agentlane.errors import InvalidWrite
from agentlane.ids import call_id
from agentlane.storage.contract import Commit, Durability, Pending, Probe, SessionStorage, Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.wrapping import WrappedStorage, WrappedStore
from tests.kills import broken
from tests.kills.host import Host
from tests.kills.reports import (
    EXIT_CODE,
    TERM_CODE,
    Aborting,
    Accepted,
    Closed,
    Closing,
    Job,
    Opened,
    Pended,
    Published,
    Reached,
    Refused,
    Report,
    Settled,
    Started,
    Stop,
    Stopping,
    read_job,
    rows_of,
    tell,
)
from tests.kills.work import WORKS, Outside, Work

SESSION = "s"
DISKS = ("jsonl", "sqlite")
SIGNALS = {signal.SIGINT, signal.SIGTERM}
CLOSING_TURNS = 20
"""After how many turns of its loop a session that was told to close is closing."""
CLOCK_SPEED = 100
"""How much faster the children's clock goes, so that waits, graces and throttles are no obstacle."""


def live(job: Job, reports: int, gate: int) -> int:
    """One life; gives the exit code. ``KeyboardInterrupt`` is left to the interpreter, as in any program."""
    errors = os.open(Path(job.folder) / "errors.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    # A parent in the background of a shell ignores SIGINT, and its children would with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if job.broken:
        broken.BREAKS[job.broken]()
    return asyncio.run(Life(job, reports, gate).run())


def store_of(disk: str, durability: Durability, folder: Path) -> Store:
    """The store of a history."""
    if disk == "jsonl":
        return JsonlStore(folder / "sessions", durability=durability, clock=QuickClock())
    return SqliteStore(folder / "s.db", durability=durability, clock=QuickClock())


class QuickClock:
    """The machine's clock, but faster; the same in every process."""

    def now_ms(self) -> int:
        return time.time_ns() * CLOCK_SPEED // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - self.now_ms()) > 0:
            await asyncio.sleep(left_ms / 1000 / CLOCK_SPEED)


class Life:
    """One process's work."""

    def __init__(self, job: Job, reports: int, gate: int) -> None:
        self._job = job
        self._reports = reports
        self._gate = gate
        self._work = WORKS[job.scenario]
        self._probe = _StoppingProbe(job.stops, self._tell, gate)
        self._asked_to_end = False

    async def run(self) -> int:
        """The host's main: with ``hosted`` it handles SIGTERM, by ending what it does or by closing its session."""
        job, chance = self._job, random.Random(self._job.seed)
        main = asyncio.current_task()
        assert main is not None
        self._probe.loop = asyncio.get_running_loop()
        if job.hosted:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate, main.cancel)
        self._tell(Started())
        self._wait_at_gate()
        done = False
        try:
            store = _ReportingStore(self._store(), self._tell)
            try:
                await _make_session(store)
                opening = open_session(
                    store, session_id=SESSION, clock=QuickClock(), seed=chance.randrange(1000), probe=self._probe
                )
                async with opening as session:
                    self._wait_at_gate()
                    if job.hosted and chance.random() < 0.5:
                        self._close_on_term(session)
                    await self._do(session, Outside(Path(job.folder), chance))
                done = True
            finally:
                await store.close()
        except (SessionOwned, StoreOwned) as error:
            self._tell(Refused(error.code))
        except (asyncio.CancelledError, SessionClosed):
            if not self._asked_to_end:
                raise
        self._tell(Closed(done))
        if self._asked_to_end:
            self._wait_at_gate()
        return TERM_CODE if self._asked_to_end and not done else 0

    def _wait_at_gate(self) -> None:
        if self._job.gate:
            os.read(self._gate, 1)

    def _close_on_term(self, session: Session) -> None:
        closing: list[asyncio.Task[None]] = []

        def close() -> None:
            closing.append(asyncio.ensure_future(session.close()))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate, close)

    def _terminate(self, end: Callable[[], Any]) -> None:
        if not self._asked_to_end:
            self._asked_to_end = True
            end()
            self._close_soon()

    def _close_soon(self) -> None:
        """The session is closed in a few turns: then let threads go on that wait for that."""
        self._tell(Closing())
        self._turn(CLOSING_TURNS)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
        else:
            self._probe.closing.set()

    async def _do(self, session: Session, outside: Outside) -> None:
        """Every lane's prompts; said again after a death, each is the same request."""
        lanes = [self._lane(session, name, outside) for name in self._work.lanes]
        working = [asyncio.ensure_future(each) for each in lanes]
        try:
            await asyncio.gather(*working)
        finally:
            for each in working:
                each.cancel()
            self._close_soon()

    async def _lane(self, session: Session, name: str, outside: Outside) -> None:
        work = self._work
        lane = await session.lane(name, work.agent(name, outside, QuickClock()))
        host = Host(session, lane, self._tell)
        for number, turn in enumerate(work.lanes[name]()):
            id = f"{name}-{number}"
            await lane.accept(Prompt(turn.prompt), operation_id=id)
            self._tell(Accepted(id))
            await host.speak(id, turn)
            aborting = asyncio.ensure_future(self._abort(work, lane, id, outside)) if number == 0 else None
            try:
                outcome = await host.drive(id)
            finally:
                if aborting is not None:
                    aborting.cancel()
            self._tell(Settled(id, outcome.result.status, outcome.result.text))

    async def _abort(self, work: Work, lane: AgentLane[Any, Any], id: str, outside: Outside) -> None:
        if work.aborts:
            await outside.waiting(work.aborts)
            receipt = await lane.request_abort(id)
            if receipt.newly_requested:
                self._tell(Aborting(id))

    def _store(self) -> Store:
        durability: Durability = "disk" if self._job.durability == "disk" else "process"
        return store_of(self._job.disk, durability, Path(self._job.folder))

    def _tell(self, report: Report) -> None:
        tell(self._reports, report)


async def _make_session(store: Store) -> None:
    if SESSION not in [info.id for info in await store.list()]:
        try:
            await store.create(SESSION)
        except InvalidWrite:  # another process has made it since we looked
            pass


class _StoppingProbe:
    """Reports each boundary, and ends this process, or tells it to end, at those it was told of. From any thread."""

    def __init__(self, stops: Sequence[Stop], tell: Callable[[Report], None], gate: int) -> None:
        self._stops = list(stops)
        self._tell = tell
        self._gate = gate
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    def reached(self, boundary: str) -> None:
        with self._lock:
            self._tell(Reached(boundary))
            rows = rows_of(boundary)
            self._counts.update(rows)
            stop = next((s for s in self._stops if s.boundary in rows and self._counts[s.boundary] == s.nth), None)
            if stop is None:
                return
            # What comes after counts its boundaries from here.
            self._stops.remove(stop)
            self._counts.clear()
            self._tell(Stopping(stop.how, boundary))
        match stop.how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(EXIT_CODE)
            case "held":
                os.read(self._gate, 1)
            case "term" | "term host":
                os.kill(os.getpid(), signal.SIGTERM)
            case "int":
                os.kill(os.getpid(), signal.SIGINT)
        if stop.first_closing and self.loop is not None and threading.current_thread() is not threading.main_thread():
            # A signal that comes just before the loop falls asleep is seen when it wakes, and nothing else wakes it.
            self.loop.call_soon_threadsafe(lambda: None)
            self.closing.wait()


class _ReportingStore(WrappedStore):
    """Reports what is found at each opening, and each commit that is said to be made."""

    def __init__(self, inner: Store, tell: Callable[[Report], None]) -> None:
        super().__init__(inner)
        self._tell = tell

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        storage = await self.inner.open(session_id, read_only=read_only, probe=probe)
        self._tell(await _found(storage))
        return _ReportingStorage(storage, self._tell)


class _ReportingStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, tell: Callable[[Report], None]) -> None:
        super().__init__(inner)
        self._tell = tell

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        kept = tuple(writes)

        def published(commit: Commit) -> None:
            self._tell(_published(commit, kept))
            if publish is not None:
                publish(commit)

        return self.inner.submit(writes, publish=published, name=name)


def _published(commit: Commit, writes: Sequence[Write]) -> Published:
    entries = {each.id: zlib.crc32(each.payload) for each in writes if isinstance(each, InsertEntry)}
    values = [each for each in writes if isinstance(each, SetValue)]

    def of(namespace: str) -> dict[str, int]:
        return {each.address.key: zlib.crc32(each.payload) for each in values if each.address.namespace == namespace}

    last_seq = commit.first_seq + len(writes) - 1
    return Published(commit.first_seq, last_seq, entries, of(addresses.PENDING_ENTRY), of(addresses.RESULT))


async def _found(storage: SessionStorage) -> Opened:
    generating: list[str] = []
    pending: list[Pended] = []
    for payload in (await storage.values(addresses.OP_STATE)).values():
        state = codec.STATE.decode(payload, "op.state")
        cancelled = state.cancel_requested_at is not None
        if isinstance(state, Generating):
            generating.append(state.response_id)
        elif isinstance(state, Tools):
            for index, each in enumerate(state.calls):
                if isinstance(each, EffectPending):
                    pending.append(Pended(call_id(state.answer, index), each.policy, each.attempt, cancelled))
    return Opened(generating, pending)


if __name__ == "__main__":
    sys.exit(live(read_job(sys.stdin.buffer.read()), int(sys.argv[1]), int(sys.argv[2])))
