"""Claim: commits that arrive together share a transaction, what is refused fails alone, and a failure is final."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, InsertUsage
from agentlane.errors import (
    InvalidWrite,
    OwnershipLost,
    PayloadTooLarge,
    SessionClosed,
    SessionFaulted,
    SessionOwned,
    StoreBusy,
    UnknownEntry,
    UnknownSession,
    WrongLoop,
)
from agentlane.ids import Uuid7Source
from agentlane.storage import schema
from agentlane.storage.contract import Commit, Pending
from agentlane.storage.schema import PAGE_BYTES
from agentlane.storage.sqlite import SqliteStore
from agentlane.storage.sqlite_commit import ENDS_MAX
from agentlane.storage.sqlite_log import CHECKPOINT_PAGES, LOG_PAGES_MAX
from agentlane.storage.sqlite_session import SqliteSession
from agentlane.testing.clock import ManualClock
from agentlane.testing.faults import FaultPlan, Killed
from tests.storage.sqlite_samples import entry, put, sql, usage, writer_of


class Held:
    """Holds the writer's thread between two functions, so that what is submitted meanwhile arrives together."""

    def __init__(self, path: Path) -> None:
        self._released = threading.Event()
        writer_of(path).thread.post(lambda: (self._released.wait(60), None)[1])

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, durability="process", busy_timeout_ms=50)
    yield store
    await store.close()


async def opened(store: SqliteStore, name: str = "one") -> SqliteSession:
    await store.create(name)
    return await store.open(name)


async def outcomes(pendings: list[Pending]) -> list[str]:
    """The error of each commit, or "" if it was made."""
    results = await asyncio.gather(*(_wait(each) for each in pendings), return_exceptions=True)
    return [getattr(each, "code", "") if isinstance(each, BaseException) else "" for each in results]


async def _wait(pending: Pending) -> Commit:
    return await pending


async def test_a_hundred_lanes_of_two_sessions_cost_one_transaction(store: SqliteStore, path: Path) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")
    before, held = writer_of(path).transactions, Held(path)
    pendings = [session.submit([entry(f"e{n}")]) for n in range(100) for session in (one, two)]
    held.release()

    commits = await asyncio.gather(*map(_wait, pendings))

    assert writer_of(path).transactions == before + 1
    assert [each.first_seq for each in commits[::2]] == list(range(1, 101))
    assert one.stats().entries == two.stats().entries == 100


async def test_what_is_refused_fails_alone(store: SqliteStore, path: Path) -> None:
    """Of commits that share a transaction, each of these is refused by the medium, with what builds on it."""
    one, two = await opened(store, "one"), await opened(store, "two")
    await one.submit([entry("root"), usage("u")])
    published: list[Commit] = []
    held, before = Held(path), writer_of(path).transactions
    pendings = [
        one.submit([entry("a", "root"), usage("a-u", input_tokens=1, output_tokens=1)], publish=published.append),
        one.submit([entry("b", "nowhere"), put("k", b"1"), usage("b-u", input_tokens=100)], publish=published.append),
        two.submit([entry("root")], publish=published.append),  # another session's ids are its own
        one.submit([entry("c", "b")], publish=published.append),
        one.submit([entry("u")], publish=published.append),
        one.submit([usage("root")], publish=published.append),
        one.submit([entry("d", "a"), put("k", b"2")], publish=published.append),
        one.submit([entry("e", "a")], publish=published.append),
        one.submit([entry("a")], publish=published.append),
    ]
    held.release()

    refused = "invalid_write"
    assert await outcomes(pendings) == ["", refused, "", refused, refused, refused, "", "", refused]
    assert [each.first_seq for each in published] == [3, 1, 11, 13]
    assert writer_of(path).transactions == before + 1
    assert one.stats().entries == 4 and one.stats().usage.rows == 2 and one.stats().usage.input_tokens == 1
    assert [row.id for row in await one.scan()] == ["root", "a", "d", "e"]
    assert [row.id for row in await one.path("e")] == ["e", "a", "root"]
    assert await one.value(Address("app.test", "k")) == b"2"
    later = await one.submit([entry("f", "d")])
    assert later.first_seq == 15 and later.stats == one.stats()


async def test_values_that_sqlite_cannot_hold_are_refused(store: SqliteStore) -> None:
    session = await opened(store)
    huge = InsertUsage(UsageRow(id="u", kind="attempt", usage=Usage(input_tokens=2**63)))
    for writes in ([huge], [put("\ud800")], [put("k", b"\xff")], [entry("e", kind=None)]):  # type: ignore[arg-type]
        with pytest.raises(InvalidWrite):
            await session.submit(writes)
    assert (await session.submit([put("k")])).stats == session.stats()


async def test_a_payload_beyond_sqlites_limit_is_named_as_such(store: SqliteStore, path: Path) -> None:
    session, thread = await opened(store), writer_of(path).thread
    await thread.call(lambda database: database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000))
    held = Held(path)
    pendings = [session.submit([put("a")]), session.submit([put("b", b"1" * 20_000)]), session.submit([put("c")])]
    held.release()

    assert await outcomes(pendings) == ["", "payload_too_large", ""]
    with pytest.raises(PayloadTooLarge):
        await pendings[1]
    assert list(await session.values("app.test")) == ["a", "c"]


async def test_another_programs_lock_is_waited_for(store: SqliteStore, path: Path) -> None:
    patient = SqliteStore(path, durability="process", busy_timeout_ms=60_000)
    session = await opened(patient)
    with sql(path) as other:
        other.execute("BEGIN IMMEDIATE")
        pending = session.submit([entry("a")])
        assert await session.entries(["a"]) == [None]  # and reads go on
        assert not pending.done()
        other.execute("COMMIT")
        await pending
    await patient.close()


async def test_a_lock_held_for_too_long_is_busy_and_changes_nothing(store: SqliteStore, path: Path) -> None:
    session, faults, published = await opened(store), list[BaseException](), list[Commit]()
    session.on_fault = faults.append
    await session.submit([entry("root")])
    with sql(path) as other:
        other.execute("BEGIN IMMEDIATE")
        first = session.submit([entry("a", "root")], publish=published.append)
        second = session.submit([entry("b", "a")], publish=published.append)
        with pytest.raises(StoreBusy):
            await first
        with pytest.raises((StoreBusy, InvalidWrite)):
            await second
        other.execute("ROLLBACK")

    assert faults == [] and published == [] and session.stats().entries == 1
    commit = await session.submit([entry("a", "root")], publish=published.append)
    assert commit.first_seq > 1 and commit.stats.entries == 2 and published == [commit]
    assert [row.id for row in await session.scan()] == ["root", "a"]


async def test_a_commit_that_builds_on_a_busy_one_fails_with_it_however_late(store: SqliteStore, path: Path) -> None:
    """Submitted when the lock is free again, but before the loop has heard that its predecessor failed."""
    session, other_session = await opened(store), await opened(store, "two")
    published, answered = list[Commit](), list[Pending]()
    with sql(path) as other:
        other.execute("BEGIN IMMEDIATE")
        first = session.submit([put("balance")], publish=published.append)
        first.on_failure(lambda error: answered.append(session.submit([put("answer")])))
        given_up = threading.Event()
        writer_of(path).thread.post(given_up.set)
        given_up.wait(60)  # and the loop hears of nothing
        other.execute("ROLLBACK")
    assert not first.done()
    late = [session.submit([put(key)], publish=published.append) for key in ("late", "later")]
    others = other_session.submit([put("mine")])

    assert await outcomes([first, *late, others]) == ["store_busy", "store_busy", "store_busy", ""]
    assert published == []
    await answered[0]  # it knew
    assert await session.values("app.test") == {"answer": b'"v"'}
    await session.submit([put("late")])


async def test_a_handle_of_a_deleted_session_never_meets_the_next_one(store: SqliteStore, path: Path) -> None:
    """A reader is told. An owner whose lock file was removed, and whose session then was, writes nothing."""
    session = await opened(store)
    await session.submit([entry("a"), entry("b", "a"), put("who")])
    reader = await store.open("one", read_only=True)
    with sql(path) as other:  # as another process that took the session for free would
        for statement in schema.DELETE_SESSION:
            other.execute(statement, (session.key,))
        other.execute(schema.INSERT_SESSION, ("two", 1, "{}"))
    two = await store.open("two")
    await two.submit([entry("a", payload=b'"secret"'), entry("b", "a"), entry("c", "b"), put("who", b'"secret"')])

    for reading in (reader.values("app.test"), reader.entries(["a"]), reader.path("b"), reader.snapshot()):
        with pytest.raises(UnknownSession, match="session 'one' was deleted"):
            await reading
    with pytest.raises(OwnershipLost):
        await session.submit([entry("x", "b"), put("who", b'"stale"')])
    assert [row.id for row in await two.scan()] == ["a", "b", "c"]
    assert await two.value(put("who").address) == b'"secret"'


async def test_what_could_not_be_read_again_is_refused_by_submit(store: SqliteStore) -> None:
    """As the other backends do: before the file is asked, and without using up a sequence number."""
    session = await opened(store)
    for write in (
        put("k", b'"\xff"'),
        put("k", "text"),  # type: ignore[arg-type]
        put("k", bytearray(b"1")),  # type: ignore[arg-type]
        InsertUsage(UsageRow(id="u", kind="refund", usage=Usage())),  # type: ignore[arg-type]
        InsertUsage(UsageRow(id="u", kind="attempt", usage=Usage(input_tokens=2**64))),
        InsertUsage(UsageRow(id="u", kind="attempt", usage=Usage(input_tokens=1.5))),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidWrite):
            session.submit([put("good"), write])
    assert (await session.submit([put("good")])).first_seq == 1


async def test_what_cannot_be_in_the_file_is_not_found(store: SqliteStore) -> None:
    """Half a character, and numbers beyond SQLite's, are asked for as anything else that is not there."""
    half, session = "\ud800", await opened(store)
    await session.submit([entry("a"), put("k"), AppendElement(Address("app.test", "l"), b"1"), usage("u")])

    assert await session.entries([half, "a"]) == [None, (await session.scan())[0]]
    for asked in ({"start": half}, {"start": "a", "after": half}):
        with pytest.raises(UnknownEntry):
            await session.path(**asked)
    assert await session.path("a", kinds=[half]) == []
    assert len(await session.path("a", kinds=[half, "user"], stop_at=half, stop_kind=half)) == 1
    assert await session.value(Address("app.test", half)) is await session.value(Address(half, "k")) is None
    assert await session.values(half) == await session.values("app.test", half) == {}
    assert await session.lists(half) == await session.lists("app.test", half) == []
    assert await session.elements(Address("app.test", half)) == await session.elements(Address(half, "l")) == []

    huge, address = 2**70, Address("app.test", "l")
    assert await session.scan(after_seq=huge) == await session.usage(after_seq=huge) == []
    assert await session.elements(address, after=huge) == []
    assert await session.elements(address, after=-huge, reverse=True) == []
    assert len(await session.scan(after_seq=-huge, limit=huge)) == len(await session.usage(limit=huge)) == 1
    assert len(await session.elements(address, limit=huge)) == 1


async def test_a_cursor_beyond_the_stop_is_before_all_that_is_walked_oldest_first(store: SqliteStore) -> None:
    session = await opened(store)
    await session.submit([entry("a"), entry("b", "a"), entry("side", "a"), entry("c", "b"), entry("d", "side")])

    for tip, stop in (("c", "b"), ("d", "side")):
        rows = await session.path(tip, after="a", stop_at=stop, newest_first=False)
        assert [row.id for row in rows] == [stop, tip]
        assert await session.path(tip, after="a", stop_at=stop) == []


async def test_a_cancelled_commit_leaves_no_transaction_open(store: SqliteStore, path: Path) -> None:
    """R38: it still completes on the thread, the next one does not join it, and nothing is locked."""
    patient = SqliteStore(path, durability="process", busy_timeout_ms=60_000)
    session = await opened(patient)
    with sql(path) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(_wait(session.submit([entry("a")])))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        other.execute("ROLLBACK")
        await session.submit([entry("b")])

        assert waiting.cancelled()
        assert await writer_of(path).thread.call(lambda database: database.in_transaction) is False
        assert other.execute("SELECT id FROM entry ORDER BY seq").fetchall() == [("a",), ("b",)]
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    await patient.close()


async def test_a_full_disk_faults_every_session_and_the_file_opens_again(store: SqliteStore, path: Path) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")
    await one.submit([entry("root")])
    faults: asyncio.Queue[str] = asyncio.Queue()
    one.on_fault = lambda error: faults.put_nowait(f"one: {error}")
    two.on_fault = lambda error: faults.put_nowait(f"two: {error}")
    await writer_of(path).thread.call(lambda database: database.execute("PRAGMA max_page_count = 1").fetchall())

    pendings = [one.submit([entry("a", "root", b"1" * 100_000)]), one.submit([entry("b", "root")])]

    assert await outcomes(pendings) == ["session_faulted"] * 2
    told = [await faults.get(), await faults.get()]
    assert sorted(told) == ["one: database or disk is full", "two: database or disk is full"]
    for session in (one, two):
        with pytest.raises(SessionFaulted) as refused:
            session.submit([entry("c")])
        assert "full" in str(refused.value.__cause__)
    assert [row.id for row in await one.scan()] == ["root"] and one.stats().entries == 1
    await one.close()
    again = await store.open("one")  # space is back; the other session has not even been closed
    await again.submit([entry("a", "root")])
    assert [row.id for row in await again.scan()] == ["root", "a"]
    assert await two.scan() == []


async def test_a_file_that_is_replaced_takes_no_commit(store: SqliteStore, path: Path) -> None:
    session, faults = await opened(store), list[BaseException]()
    session.on_fault = faults.append
    path.rename(path.with_name("moved.db"))

    with pytest.raises(OwnershipLost, match="removed or replaced"):
        await session.submit([entry("a")])

    assert len(faults) == 1 and isinstance(faults[0], OwnershipLost)
    with sql(path.with_name("moved.db")) as other:
        assert other.execute("SELECT count(*) FROM entry").fetchall() == [(0,)]


async def test_a_newer_owner_of_one_session_leaves_the_others_alone(store: SqliteStore, path: Path) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")
    with sql(path) as other:
        other.execute("UPDATE session SET epoch = epoch + 1 WHERE id = 'one'")
    held = Held(path)
    pendings = [one.submit([entry("a")]), two.submit([entry("a")]), one.submit([put("k")]), two.submit([put("k")])]
    held.release()

    assert await outcomes(pendings) == ["ownership_lost", "", "session_faulted", ""]
    assert await one.scan() == []
    await two.submit([put("k")])


async def test_a_publication_that_raises_faults_its_session_only(store: SqliteStore) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")

    def publish(commit: Commit) -> None:
        raise ValueError("no room in memory")

    with pytest.raises(SessionFaulted, match="no room in memory"):
        await one.submit([entry("a")], publish=publish)
    with pytest.raises(SessionFaulted):
        one.submit([entry("b")])
    await two.submit([entry("a")])


@pytest.mark.parametrize("where", ["before", "inside", "after"])
async def test_a_probe_that_raises_is_the_death_of_the_process(store: SqliteStore, path: Path, where: str) -> None:
    await store.create("one")
    other = await opened(store, "other")
    plan = FaultPlan().kill_at(f"commit.named.{where}")
    session = await store.open("one", probe=plan)
    faults: asyncio.Queue[BaseException] = asyncio.Queue()
    session.on_fault = faults.put_nowait
    published: list[str] = []
    await session.submit([entry("root")])

    if where == "before":
        with pytest.raises(Killed):
            session.submit([entry("a", "root")], name="named", publish=lambda _: published.append("a"))
    else:
        held = Held(path)
        pendings = [
            session.submit([entry("a", "root")], name="named", publish=lambda _: published.append("a")),
            other.submit([entry("x")], publish=lambda _: published.append("x")),
        ]
        held.release()
        assert isinstance(await faults.get(), Killed)
        assert not any(each.done() for each in pendings)

    assert published == (["a"] if where == "after" else [])
    for dead in (session, other):
        await dead.close()
        with pytest.raises(SessionClosed):
            await dead.scan()
    again = await store.open("one")
    assert [row.id for row in await again.scan()] == (["root", "a"] if where == "after" else ["root"])
    await again.submit([entry("b", "root")])


async def test_a_kill_drops_what_is_in_flight_of_one_session(store: SqliteStore, path: Path) -> None:
    one, two = await opened(store, "one"), await opened(store, "two")
    held = Held(path)
    pendings = [one.submit([entry("a")]), two.submit([entry("a")]), one.submit([entry("b")])]
    one.kill()
    held.release()

    await pendings[1]
    again = await store.open("one")
    assert await again.scan() == []
    assert not pendings[0].done() and not pendings[2].done()
    assert (await again.submit([entry("a")])).first_seq == 1
    with pytest.raises(SessionOwned):  # what the dead one still let go was not its successor's
        await store.open("one")


async def test_payloads_are_text_and_come_back_byte_for_byte(store: SqliteStore, path: Path) -> None:
    session = await opened(store)
    payloads = [b'"\\u0000"', '"\u2028\u0085\r é 😀"'.encode(), b"[" + b"1," * 100_000 + b"1]", b"", b'"\x00"']
    for number, payload in enumerate(payloads):
        await session.submit([entry(f"e{number}", payload=payload), put(f"k{number}", payload)])
    await session.submit([AppendElement(Address("app.test", "l"), each) for each in payloads])

    assert [row.payload for row in await session.scan()] == payloads
    assert list((await session.values("app.test")).values()) == payloads
    assert [each.payload for each in await session.elements(Address("app.test", "l"))] == payloads
    with sql(path) as shell:
        assert {kind for (kind,) in shell.execute("SELECT typeof(payload) FROM entry")} == {"text"}
        assert shell.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_more_branches_than_are_kept_in_memory_go_on_where_they_ended(store: SqliteStore, path: Path) -> None:
    session = await opened(store)
    await session.submit([entry("root")])
    branches = ENDS_MAX * 2
    for step in range(3):
        await session.submit(
            [entry(f"{branch}-{step}", f"{branch}-{step - 1}" if step else "root") for branch in range(branches)]
        )

    await session.submit([entry("x", "7-2"), entry("y", "7-2"), entry("z", "7-1"), entry("xx", "x"), entry("yy", "y")])

    assert len(session.written.ends) == ENDS_MAX
    for tip, above in (("xx", "x"), ("yy", "y")):
        assert [row.id for row in await session.path(tip)] == [tip, above, "7-2", "7-1", "7-0", "root"]
    assert [row.id for row in await session.path("z")] == ["z", "7-1", "7-0", "root"]
    for branch in (0, 1, branches - 1):
        assert [row.id for row in await session.path(f"{branch}-2")] == [*(f"{branch}-{n}" for n in (2, 1, 0)), "root"]
    with sql(path) as shell:  # the first branch extends the root's segment, each other one opened one
        assert shell.execute("SELECT count(*) FROM segment").fetchall() == [(branches + 2,)]


async def test_memory_does_not_grow_with_the_session(store: SqliteStore) -> None:
    """Twenty thousand entries later, nothing of them is held: less than a reference to each."""
    session, parent = await opened(store), None

    async def grow(first: int, entries: int) -> None:
        nonlocal parent
        for start in range(first, first + entries, 100):
            writes = []
            for number in range(start, start + 100):
                writes.append(entry(f"e{number}", parent, b'"' + b"x" * 100 + b'"'))
                parent = f"e{number}"
            await session.submit(writes)
        await session.path(f"e{first}", limit=50)

    await grow(0, 2000)
    gc.collect()
    tracemalloc.start()
    try:
        await grow(2000, 100)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await grow(2100, 20_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 8 * 20_000, f"{grown} bytes more are held after 20,000 entries"


async def test_the_log_stays_bounded_and_goes_on_close(store: SqliteStore, path: Path) -> None:
    session, log = await opened(store), path.with_name("x.db-wal")
    held = sql(path)
    with held as reader:
        cursor = reader.execute("SELECT * FROM session")  # a reader that was left open in the middle
        for number in range(3000):
            session.submit([entry(f"e{number}", payload=b"1" * 5000)])
        await session.submit([put("k")])
        cursor.close()
    for number in range(3000, 6000):
        await session.submit([entry(f"e{number}", payload=b"1" * 5000)])

    assert log.stat().st_size < 3 * LOG_PAGES_MAX * PAGE_BYTES
    await session.close()
    assert not log.exists()


async def test_the_log_is_copied_once_nothing_is_written(store: SqliteStore, path: Path) -> None:
    session, writer = await opened(store), writer_of(path)
    await session.submit([entry("a", payload=b"1" * (CHECKPOINT_PAGES + 10) * PAGE_BYTES)])
    assert writer._timer is not None, "nobody will look whether the file is idle"
    before = path.stat().st_size

    writer._timer.cancel()
    writer._look_idle(asyncio.get_running_loop(), writer.transactions - 1)  # there was a commit in between
    assert writer._timer is not None
    writer._timer.cancel()
    writer._look_idle(asyncio.get_running_loop(), writer.transactions)
    await writer.thread.call(lambda database: None)

    assert path.stat().st_size > before + CHECKPOINT_PAGES * PAGE_BYTES / 2
    assert writer._timer is None


def test_two_loops_of_one_process_share_the_file(path: Path) -> None:
    store, turns = SqliteStore(path, durability="process"), threading.Barrier(2, timeout=60)
    asyncio.run(store.create("one"))
    asyncio.run(store.create("two"))
    found: dict[str, int] = {}

    async def work(name: str) -> None:
        session = await SqliteStore(path, durability="process").open(name)
        await asyncio.to_thread(turns.wait)
        for number in range(50):
            await session.submit([entry(f"e{number}")])
        found[name] = len(await session.scan())
        await asyncio.to_thread(turns.wait)
        await session.close()

    threads = [threading.Thread(target=lambda name=name: asyncio.run(work(name))) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {"one": 50, "two": 50}


def test_a_session_is_used_on_its_own_loop(path: Path) -> None:
    loop = asyncio.new_event_loop()
    store = SqliteStore(path, durability="process")
    session = loop.run_until_complete(opened(store))

    async def elsewhere() -> None:
        with pytest.raises(WrongLoop):
            session.submit([entry("a")])
        with pytest.raises(WrongLoop):
            await session.scan()

    asyncio.run(elsewhere())
    loop.run_until_complete(store.close())
    loop.close()


async def test_reports_of_a_loop_that_ended_fault_the_session(path: Path) -> None:
    def half() -> SqliteSession:
        loop = asyncio.new_event_loop()
        session = loop.run_until_complete(opened(SqliteStore(path, durability="process")))
        held = Held(path)

        async def submit() -> None:
            session.submit([entry("a")])

        loop.run_until_complete(submit())
        loop.close()
        held.release()
        return session

    session = await asyncio.to_thread(half)
    await writer_of(path).thread.call(lambda database: None)

    assert isinstance(session._fault, RuntimeError) and "ended" in str(session._fault)
    session.kill()
    again = await SqliteStore(path, durability="process").open("one")
    assert [row.id for row in await again.scan()] == ["a"]
    await again.close()


async def test_ids_of_our_own_source_are_good_session_ids(path: Path) -> None:
    store = SqliteStore(path, durability="process", ids=Uuid7Source(ManualClock()))
    made = [await store.create() for _ in range(3)]
    assert [each.id for each in await store.list()] == [each.id for each in made]


def test_an_interrupt_in_a_publication_leaves_nobody_waiting(path: Path) -> None:
    held: list[Held] = []

    def interrupted(commit: Commit) -> None:
        raise KeyboardInterrupt

    async def begin() -> tuple[SqliteStore, Any, Any, Any]:
        store = SqliteStore(path, durability="process")
        await store.create("s")
        session = await store.open("s")
        held.append(Held(path))  # until the interrupt has somebody to meet
        first, second = session.submit([put("k", b"1")], publish=interrupted), session.submit([put("l", b"2")])
        return store, session, first, second

    async def ends(pending: Any) -> None:
        with pytest.raises(SessionFaulted):
            await pending

    loop = asyncio.new_event_loop()
    try:
        store, session, first, second = loop.run_until_complete(begin())
        held.pop().release()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(ends(first))
        for each in (first, second):
            loop.run_until_complete(asyncio.wait_for(ends(each), timeout=60))
        loop.run_until_complete(session.close())
        loop.run_until_complete(store.close())
    finally:
        loop.close()
