"""Claim: the database thread never holds up the interpreter's exit, never speaks to a loop that has ended, and ends."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import aiosqlite
import pytest
from aiosqlite.core import _STOP_RUNNING_SENTINEL, Connection

from agentlane.errors import SessionClosed, SessionOwned, WrongLoop
from agentlane.storage.hop import Result
from agentlane.storage.sqlite import SqliteStore
from agentlane.storage.sqlite_session import SqliteSession
from agentlane.storage.sqlite_thread import DatabaseThread
from agentlane.waiting import finish
from tests.storage.sqlite_samples import connect_in_memory, entry

SECONDS_MAX = 60

FORGETFUL = """
import asyncio, gc, sys, threading
from agentlane.storage.sqlite import SqliteStore
from agentlane.data.writes import InsertEntry

async def open_session():
    store = SqliteStore(sys.argv[1], durability="process")
    info = await store.create()
    session = await store.open(info.id)
    await session.submit([InsertEntry("a", None, "user", b"1")])
    await session.entries(["a"])
    return store, session

async def forgets():
    await open_session()

async def raises():
    await open_session()
    raise SystemExit(7)

async def submits():
    store, session = await open_session()
    for number in range(50):
        session.submit([InsertEntry(str(number), None, "user", b"1")])
"""
ENDINGS = {
    "asyncio.run(forgets())": 0,
    "asyncio.run(raises())": 7,
    "asyncio.run(submits())": 0,
    "asyncio.run(forgets()); raise RuntimeError": 1,
    "kept = asyncio.run(open_session()); sys.exit(3)": 3,
    "loop = asyncio.new_event_loop(); kept = loop.run_until_complete(open_session())": 0,
}


def test_the_pinned_aiosqlite_is_as_we_rely_on_it() -> None:
    connection = aiosqlite.connect(":memory:")

    assert type(connection) is Connection
    assert isinstance(connection._thread, threading.Thread) and not connection._thread.is_alive()
    assert not connection._thread.daemon, "there is a reason for DatabaseThread no more: see whether it can go"
    assert connection._connection is None, "an unopened connection does not complain when it is thrown away"
    done = threading.Event()
    connection._tx.put_nowait((None, done.set))
    connection._tx.put_nowait((None, lambda: _STOP_RUNNING_SENTINEL))
    connection._thread.daemon = True
    connection._thread.start()
    connection._thread.join(SECONDS_MAX)
    assert done.is_set() and not connection._thread.is_alive()


async def test_functions_run_in_order_on_a_daemon_thread_until_it_is_stopped() -> None:
    thread = DatabaseThread(connect_in_memory)
    assert thread._thread.daemon
    seen: list[int] = []
    for number in range(100):
        thread.post(lambda number=number: seen.append(number))

    assert await thread.call(lambda database: database.execute("SELECT 7").fetchall()) == [(7,)]
    assert seen == list(range(100))

    thread.stop(last=lambda: seen.append(100), then=lambda: seen.append(101))
    thread.stop()
    thread.join(SECONDS_MAX)
    assert seen == list(range(102)) and not thread.alive
    assert not thread.post(lambda: seen.append(-1))
    with pytest.raises(SessionClosed):
        await thread.call(lambda database: None)


async def test_a_connection_that_cannot_be_made_says_why_at_each_call() -> None:
    def connect() -> None:
        raise OSError("no such disk")

    thread = DatabaseThread(connect)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(OSError, match="no such disk"):
            await thread.call(lambda database: None)
    thread.stop()
    thread.join(SECONDS_MAX)


async def test_a_wait_to_the_end_outlasts_any_number_of_cancellations() -> None:
    result = Result[int]()
    waiter = asyncio.ensure_future(finish(result.future))
    for _ in range(3):
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0)
        assert not waiter.done()

    result.succeed(1)

    with pytest.raises(asyncio.CancelledError):
        await waiter


@pytest.mark.parametrize(("ending", "code"), ENDINGS.items())
def test_a_forgotten_close_does_not_hold_up_exit(tmp_path: Path, ending: str, code: int) -> None:
    program = [sys.executable, "-W", "error", "-c", f"{FORGETFUL}\n{ending}", str(tmp_path / "x.db")]

    ended = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)

    assert ended.returncode == code, ended.stderr
    if code != 1:
        assert ended.stderr == ""


@pytest.mark.parametrize("beside", [False, True])
def test_a_session_that_was_forgotten_with_its_loop_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, beside: bool
) -> None:
    """asyncio.run twice without close; another session of the file, on a loop that lives, goes on."""
    store = SqliteStore(tmp_path / "x.db", durability="process")

    async def opened(session_id: str) -> SqliteSession:
        await store.create(session_id)
        session = await store.open(session_id)
        await session.submit([entry("a")])
        return session

    living = asyncio.new_event_loop()
    other = living.run_until_complete(opened("two")) if beside else None
    forgotten = asyncio.run(opened("one"))

    async def again() -> None:
        session = await SqliteStore(tmp_path / "x.db", durability="process").open("one")
        assert "session 'one' was not closed before its event loop was" in caplog.text
        assert session.epoch == 2
        await session.submit([entry("b", "a")])
        assert [row.id for row in await session.scan()] == ["a", "b"]
        with pytest.raises(SessionClosed):
            forgotten.submit([entry("c")])
        await forgotten.close()
        with pytest.raises(SessionOwned):
            await store.open("one")
        await session.close()

    asyncio.run(again())

    async def goes_on(session: SqliteSession) -> None:
        await session.submit([entry("b", "a")])
        assert [row.id for row in await session.scan()] == ["a", "b"]
        await session.close()

    if other is not None:
        with pytest.raises(WrongLoop):
            asyncio.run(other.close())
        living.run_until_complete(goes_on(other))
    living.close()
    assert not (tmp_path / "x.db-wal").exists()


def test_a_session_whose_loop_is_closed_can_be_closed_on_another(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "x.db", durability="process")

    async def opened() -> SqliteSession:
        await store.create("one")
        session = await store.open("one")
        session.submit([entry("a")])
        return session

    forgotten = asyncio.run(opened())

    async def close() -> None:
        await forgotten.close()
        await forgotten.close()
        session = await store.open("one")
        assert [row.id for row in await session.scan()] == ["a"]
        await store.close()

    asyncio.run(close())


def test_a_loop_that_ends_in_the_middle_is_met_with_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred times: commits, reads and a close are under way, are cancelled, and the loop ends at once."""
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    store = SqliteStore(tmp_path / "x.db", durability="process")
    session_id = asyncio.run(store.create()).id
    before = set(threading.enumerate())
    entries = 0

    async def work(number: int) -> None:
        nonlocal entries
        session = await store.open(session_id)
        entries = session.stats().entries
        tasks = [asyncio.ensure_future(session.scan(limit=10)) for _ in range(3)]
        for each in range(3):
            session.submit([entry(f"{number}-{each}")])
        if number % 2:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        session._use.let_go()  # what close does before it waits for the first time

    for number in range(200):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(work(number))
        loop.close()

    assert complaints == []
    assert entries == 199 * 3
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()


def test_a_caller_that_is_thrown_away_with_its_loop_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the thread still has of its call when that has run. Only who is collected can let go of what he holds."""

    class Held:
        pass

    async def caller(held: Held) -> None:
        await thread.call(lambda database: None)

    thread, held = DatabaseThread(connect_in_memory), Held()
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(thread, "post", lambda job: jobs.append(job) or True)
    alive = weakref.ref(held)
    loop = asyncio.new_event_loop()
    task = loop.create_task(caller(held))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    (job,) = jobs
    job()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, held, loop

    gc.collect()

    assert alive() is None
    thread.stop()
    thread.join(SECONDS_MAX)
