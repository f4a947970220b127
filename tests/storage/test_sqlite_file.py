"""Claim: the file is private, is opened by SQLite alone, has one owner, and what it is not is told plainly."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentlane.errors import (
    CorruptSession,
    InvalidDefinition,
    InvalidMessage,
    InvalidName,
    InvalidWrite,
    OwnershipLost,
    SessionClosed,
    SessionOwned,
    UnknownSession,
    UnsupportedFormat,
    WrongProcess,
)
from agentlane.storage import schema, sqlite_connect
from agentlane.storage.sqlite import SqliteStore
from agentlane.storage.sqlite_connect import connect_reader, make_database, mount_kind
from tests.storage.sqlite_samples import entry, put, sql, usage, writer_of

SECONDS_MAX = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_the_owner_can_read_what_is_written(tmp_path: Path) -> None:
    """R66: also with a permissive umask, also the log and its index."""
    folder = tmp_path / "new" / "deep"
    before = os.umask(0o022)
    try:
        store = SqliteStore(folder / "x.db", durability="disk")
        await store.create("one")
        session = await store.open("one")
        await session.submit([entry("a")])
        await session.scan()
    finally:
        os.umask(before)

    assert mode(folder) == mode(folder.parent) == 0o700
    assert {each.name: mode(each) for each in folder.iterdir()} == dict.fromkeys(
        ("x.db", "x.db-wal", "x.db-shm", "x.db.lock"), 0o600
    )
    await store.close()
    assert sorted(each.name for each in folder.iterdir()) == ["x.db", "x.db.lock"]


async def test_a_process_that_dies_in_its_last_commit_while_it_closes_has_closed(path: Path) -> None:
    """The writer's thread is ended by the death, and whoever waits for it to be closed is told all the same."""
    began, dead = threading.Event(), threading.Event()

    class Probe:
        def reached(self, boundary: str) -> None:
            if boundary == "commit.last.inside":
                began.set()
                dead.wait(SECONDS_MAX)
                raise KeyboardInterrupt("the process is dead")

    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one", probe=Probe())

    # Given: the thread is inside the commit, and the close waits for the reader to end.
    session.submit([entry("a")], name="last")
    began.wait(SECONDS_MAX)
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    # When: the process dies in there.
    dead.set()
    await asyncio.wait_for(closing, SECONDS_MAX)

    # Then: nothing of it is there, and the next one goes on.
    again = await store.open("one")
    assert await again.scan() == []
    await again.submit([entry("b")])
    await store.close()


async def test_what_is_not_ours_is_told_apart_and_left_alone(path: Path) -> None:
    """R55: nothing here reads as an empty store, and nothing is made in its place."""
    foreign = path.with_name("foreign.db")
    with sql(foreign) as other:
        other.execute("CREATE TABLE t (a)")
    newer = path.with_name("newer.db")
    await SqliteStore(newer, durability="process").create("one")
    with sql(newer) as other:
        other.execute(f"PRAGMA user_version = {schema.FORMAT_VERSION + 1}")
    damaged = path.with_name("damaged.db")
    await SqliteStore(damaged, durability="process").create("one")
    damaged.write_bytes(damaged.read_bytes()[:100] + b"\xff" * 2000)
    garbled = path.with_name("garbled.db")
    await SqliteStore(garbled, durability="process").create("one")
    garbled.write_bytes(garbled.read_bytes().replace(b"CREATE TABLE session (", b"CREATE TABLE session \xb2"))
    contents = {
        "empty": (b"", CorruptSession, "is empty"),
        "text": (b"hello\n" * 100, UnsupportedFormat, "not a SQLite file"),
        "cut": (b"SQLite format 3\0" + b"\1" * 20, CorruptSession, "cut after 36 bytes"),
        "other": (foreign.read_bytes(), UnsupportedFormat, "another application"),
        "newer": (newer.read_bytes(), UnsupportedFormat, f"has format {schema.FORMAT_VERSION + 1}"),
        "damaged": (damaged.read_bytes(), CorruptSession, "cannot read the file"),
        "garbled": (garbled.read_bytes(), CorruptSession, "bytes that are no text"),
    }
    for name, (content, error, message) in contents.items():
        file = path.with_name(name)
        file.write_bytes(content)
        store = SqliteStore(file, durability="process")
        calls = [store.list(), store.open_operations(), store.open("one"), store.open("one", read_only=True)]
        for call in (*calls, store.create("two"), store.delete("one")):
            with pytest.raises(error, match=message):
                await call
        assert file.read_bytes() == content, name
        assert not file.with_name(f"{name}-wal").exists() or file.with_name(f"{name}-wal").stat().st_size == 0

    store = SqliteStore(path.parent, durability="process")
    with pytest.raises(UnsupportedFormat, match="is a folder"):
        await store.list()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("statement", "error"),
    {
        f"PRAGMA user_version = {schema.FORMAT_VERSION + 1}": UnsupportedFormat,
        "PRAGMA application_id = 7": UnsupportedFormat,
        "UPDATE session SET metadata = '{'": CorruptSession,
        "DROP TABLE usage": CorruptSession,
        "UPDATE session SET id = 'two'": UnknownSession,
    }.items(),
)
async def test_an_open_that_is_refused_leaves_a_killed_owners_log(
    path: Path, statement: str, error: type[Exception], index: bool
) -> None:
    """S24: every byte of the file and of its log; the last owner was killed, and its log says what is refused."""
    store = SqliteStore(path.with_name("live.db"), durability="process")
    await store.create("one")
    session = await store.open("one")
    await session.submit([put("k")])
    with sql(path.with_name("live.db")) as other:
        other.execute(statement)
        for suffix in ("", "-wal", "-shm")[: 2 + index]:
            path.with_name(f"x.db{suffix}").write_bytes(path.with_name(f"live.db{suffix}").read_bytes())
    before = path.read_bytes(), path.with_name("x.db-wal").read_bytes()
    assert len(before[1]) > schema.PAGE_BYTES

    refused = SqliteStore(path, durability="process")
    for read_only in (True, False):
        with pytest.raises(error):
            await refused.open("one", read_only=read_only)
        assert (path.read_bytes(), path.with_name("x.db-wal").read_bytes()) == before
    if error is UnknownSession:
        with pytest.raises(InvalidWrite):
            await refused.create("two")
        with pytest.raises(UnknownSession):
            await refused.delete("one")
        assert (path.read_bytes(), path.with_name("x.db-wal").read_bytes()) == before

    session.kill()


async def test_a_store_without_a_file_has_no_sessions_and_makes_none(path: Path) -> None:
    store = SqliteStore(path)
    assert await store.list() == [] and await store.open_operations() == []
    for call in (store.open("one"), store.open("one", read_only=True), store.delete("one")):
        with pytest.raises(UnknownSession):
            await call
    assert list(path.parent.iterdir()) == []


async def test_misuse_is_refused_before_anything_is_made(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(InvalidName):
        await store.create("a/b")
    with pytest.raises(InvalidMessage, match="metadata"):
        await store.create(metadata={"n": float("nan")})
    with pytest.raises(InvalidDefinition):
        SqliteStore(path, durability="never")  # type: ignore[arg-type]
    await store.close()
    with pytest.raises(SessionClosed):
        await store.create()
    assert list(path.parent.iterdir()) == []


async def test_a_file_that_may_not_be_read_says_so(path: Path) -> None:
    await SqliteStore(path, durability="process").create("one")
    program = """
import asyncio, os, sys
from agentlane.storage.sqlite import SqliteStore
os.setuid(65534)
for read_only in (True, False):
    try:
        asyncio.run(SqliteStore(sys.argv[1]).open("one", read_only=read_only))
    except OSError as error:
        print(type(error).__name__)
"""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not read the file")
    for folder in path.parents[:-2]:
        folder.chmod(folder.stat().st_mode | 0o055)

    assert run(program, path).split() == ["PermissionError", "PermissionError"]


async def test_a_folder_that_may_not_be_written_opens_read_only(path: Path) -> None:
    """With nothing but the closed file in it, and with a log that a killed owner left behind."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    await session.submit([entry("a"), put("k")])
    await store.close()
    program = """
import asyncio, os, sys
from agentlane.storage.sqlite import SqliteStore
from agentlane.errors import ReadOnlySession
os.setuid(65534)

async def main():
    store = SqliteStore(sys.argv[1])
    session = await store.open("one", read_only=True)
    print([row.id for row in await session.scan()], [each.id for each in await store.list()])
    try:
        session.submit([])
    except ReadOnlySession as error:
        print(error.code)
    await store.close()

asyncio.run(main())
"""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not write the folder")
    path.chmod(0o644)
    for folder in path.parents[:-2]:
        folder.chmod((folder.stat().st_mode | 0o055) & ~0o022)

    assert run(program, path).splitlines() == ["['a'] ['one']", "read_only_session"]
    assert sorted(each.name for each in path.parent.iterdir()) == ["x.db", "x.db.lock"]


async def test_reading_beside_a_live_owner_needs_nothing_of_it(path: Path) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    await session.submit([entry("a")])
    program = """
import asyncio, sys
from agentlane.storage.sqlite import SqliteStore
from agentlane.errors import StoreOwned

async def main():
    store = SqliteStore(sys.argv[1])
    session = await store.open("one", read_only=True)
    print([row.id for row in await session.scan()], session.epoch, session.stats().entries)
    for call in (store.open("one"), store.create(), store.delete("one")):
        try:
            await call
        except StoreOwned as error:
            print(error.code)
    await store.close()

asyncio.run(main())
"""
    assert run(program, path).splitlines() == ["['a'] 1 1", *["store_owned"] * 3]
    await session.submit([entry("b", "a")])
    await store.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("turns", range(4))
async def test_a_store_that_is_closed_meanwhile_hands_out_nothing(path: Path, turns: int, read_only: bool) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    opening = asyncio.ensure_future(store.open("one", read_only=read_only))
    for _ in range(turns):
        await asyncio.sleep(0)
    await store.close()

    with pytest.raises(SessionClosed):
        await (await opening).scan()

    session = await SqliteStore(path, durability="process").open("one")
    await session.submit([put("k")])
    await session.close()


async def test_stores_on_one_file_share_it_by_whatever_name(path: Path) -> None:
    alias = path.with_name("alias.db")
    alias.symlink_to(path)
    one, two = SqliteStore(path, durability="process"), SqliteStore(alias, durability="disk")
    await one.create("a")
    await two.create("b")
    first = await one.open("a")
    synchronous = "PRAGMA synchronous"
    assert await writer_of(path).thread.call(lambda database: database.execute(synchronous).fetchall()) == [(1,)]
    second = await two.open("b")

    assert writer_of(path) is writer_of(alias)
    # The strictest of those who share the file holds.
    assert await writer_of(path).thread.call(lambda database: database.execute(synchronous).fetchall()) == [(2,)]
    with pytest.raises(SessionOwned, match="in this process"):
        await two.open("a")
    with pytest.raises(SessionOwned):
        await two.delete("a")
    await first.close()
    await second.submit([entry("x")])  # the writer stays while anyone uses it
    await two.delete("a")
    await one.close()
    await two.close()
    assert not path.with_name("x.db-wal").exists()


@pytest.mark.parametrize("opener", [False, True], ids=["alone", "beside an opener"])
@pytest.mark.parametrize("owner_first", [True, False], ids=["owner first", "reader first"])
async def test_owner_and_reader_that_close_at_once_are_both_told(path: Path, owner_first: bool, opener: bool) -> None:
    """The one's connection is on its way to its end when the other, the last user of the file, goes."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    owner, reader = await store.open("one"), await store.open("one", read_only=True)
    await owner.submit([entry("a")])
    assert await reader.scan() == []
    held = threading.Event()
    writer_of(path).thread.post(lambda: held.wait(SECONDS_MAX) and None)

    # What ``close`` waits for, without tasks that could not be ended if nobody told them.
    first, second = (owner, reader) if owner_first else (reader, owner)
    told = [first._use.let_go()]
    opening = asyncio.ensure_future(store.open("one")) if opener and owner_first else None
    await asyncio.sleep(0)
    told.append(second._use.let_go())
    opening = asyncio.ensure_future(store.open("one")) if opener and opening is None else opening
    await asyncio.sleep(0)
    held.set()

    waited = [*filter(None, told), *filter(None, [opening])]
    _, pending = await asyncio.wait(waited, timeout=SECONDS_MAX)
    assert pending == set() and len(waited) == 2 + opener
    again = await store.open("one") if opening is None else opening.result()
    await again.submit([entry("b", "a")])
    await store.close()
    assert sorted(each.name for each in path.parent.iterdir()) == ["x.db", "x.db.lock"]


async def test_opening_waits_for_a_close_that_is_under_way(path: Path) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    await store.create("two")
    session = await store.open("one")
    session.submit([entry("a")])

    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    other = await SqliteStore(path, durability="process").open("two")
    await closing
    again = await store.open("one")

    assert [row.id for row in await again.scan()] == ["a"]
    await other.close()
    await store.close()


@pytest.mark.parametrize("turns", range(1, 7))
async def test_cancelled_opens_and_closes_leave_nothing_behind(path: Path, turns: int) -> None:
    """R123: cancelled after each number of turns of the loop, natively; the file opens again at once."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    for _ in range(3):
        opening = asyncio.ensure_future(store.open("one"))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
        session = await SqliteStore(path, durability="process").open("one")
        pending = session.submit([put("k")])
        closing = asyncio.ensure_future(session.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert pending.done()
        assert not path.with_name("x.db-wal").exists()
    await store.close()


async def test_open_files_and_threads_do_not_pile_up(path: Path, whole: bool) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")

    async def once() -> None:
        session = await store.open("one")
        await session.submit([put("k")])
        await session.value(put("k").address)
        await session.close()

    await once()
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for _ in range(1000 if whole else 100):
        await once()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(asyncio.all_tasks()) == tasks
    assert (await store.open("one")).epoch == (1001 if whole else 101) + 1
    await store.close()


async def test_a_file_system_that_cannot_hold_a_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R64: seen from what SQLite answers, and from what is mounted."""

    class NoLog(sqlite3.Connection):
        def execute(self, statement: str, *args: object) -> sqlite3.Cursor:  # type: ignore[override]
            return super().execute(statement.replace("journal_mode = WAL", "journal_mode = DELETE"), *args)  # type: ignore[arg-type]

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, **kw, factory=NoLog))
    with pytest.raises(UnsupportedFormat, match="cannot hold SQLite's write-ahead log"):
        await SqliteStore(path, durability="process").create("one")
    assert list(path.parent.iterdir()) == []

    insisting = SqliteStore(path, durability="process", insist=True)
    await insisting.create("one")
    session = await insisting.open("one")
    await session.submit([entry("a")])
    assert [row.id for row in await session.scan()] == ["a"]
    await insisting.close()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
async def test_a_network_mount_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    device = path.parent.stat().st_dev
    mounts = path.with_name("mountinfo")
    numbers = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(
        f"20 1 0:5 / /dev rw - tmpfs dev rw\n36 35 {numbers} / /mnt rw,noatime master:1 - {kind} a:/b rw\n"
    )
    assert mount_kind(str(path.parent / "not" / "there"), str(mounts)) == kind
    monkeypatch.setattr(sqlite_connect, "mount_kind", lambda folder: kind)

    with pytest.raises(UnsupportedFormat, match=f"network mount \\({kind}\\)"):
        await SqliteStore(path, durability="process").create("one")

    assert not path.exists()
    insisting = SqliteStore(path, durability="process", insist=True)
    await insisting.create("one")
    await (await insisting.open("one")).close()


def test_making_the_file_leaves_what_another_made_meanwhile(path: Path) -> None:
    asyncio.run(SqliteStore(path, durability="process").create("theirs"))
    before = path.read_bytes()

    make_database(str(path), durability="disk", insist=False)

    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["x.db", "x.db.lock"]


async def test_creates_that_race_all_end_in_one_file(path: Path) -> None:
    stores = [SqliteStore(path, durability="process") for _ in range(5)]
    await asyncio.gather(*(store.create(f"s{n}") for n, store in enumerate(stores)))
    assert sorted(each.id for each in await stores[0].list()) == [f"s{n}" for n in range(5)]
    assert sorted(each.name for each in path.parent.glob("*.new")) == []


def test_a_reader_of_a_file_that_was_replaced_is_refused(path: Path) -> None:
    make_database(str(path), durability="process", insist=False)
    status = path.stat()
    with pytest.raises(Exception, match="was replaced while"):
        connect_reader(str(path), (status.st_dev, status.st_ino + 1), busy_timeout_ms=0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that is what is tested
async def test_a_forked_child_is_refused_and_harms_nothing(path: Path) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    await session.submit([entry("a")])
    await session.scan()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(WrongProcess):
                session.submit([entry("b")])
            with pytest.raises(WrongProcess):
                session.stats()
            session.kill()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    await session.submit([entry("b", "a")])
    assert [row.id for row in await session.scan()] == ["a", "b"]
    await store.close()


KILLED = """
import asyncio, os, signal, sys
from agentlane.data.writes import InsertEntry
from agentlane.storage.sqlite import SqliteStore

async def main():
    session = await SqliteStore(sys.argv[1], durability=sys.argv[2]).open("one")
    parent = None
    for number in range(1000):
        await session.submit([InsertEntry(str(number), parent, "user", b"1")])
        parent = str(number)
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("durability", ["process", "disk"])
async def test_what_was_reported_survives_kill_minus_nine(path: Path, durability: str) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    program = [sys.executable, "-c", KILLED, str(path), durability]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 40:
                process.send_signal(signal.SIGKILL)
                break
        reported = [40, *(int(line) for line in process.stdout)]
    assert process.returncode == -signal.SIGKILL

    session = await store.open("one")  # at once: the lock died with its process

    ids = [row.id for row in await session.scan()]
    assert ids == [str(number) for number in range(len(ids))] and len(ids) > reported[-1]
    assert [row.id for row in await session.path(ids[-1])] == ids[::-1]
    await session.submit([entry("next", ids[-1])])
    await store.close()
    with sql(path) as shell:
        assert shell.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_what_can_be_summed_is_not_believed(path: Path) -> None:
    """R60: the ledger and the entries win over the one number that is kept beside them."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    commit = await session.submit([entry("a"), usage("u", input_tokens=3, output_tokens=4)])
    await session.close()
    with sql(path) as other:
        other.execute("UPDATE session SET seq = 0")

    session = await store.open("one")

    assert session.stats() == commit.stats
    assert (await session.submit([entry("b", "a")])).first_seq == 3
    await store.close()


async def test_walks_stay_short_however_long_the_session(path: Path) -> None:
    """The newest page of a branch reads the rows of the page, not the branch: counted in steps of SQLite's machine."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    parent = None
    for start in range(0, 5000, 500):
        writes = []
        for number in range(start, start + 500):
            writes.append(entry(f"e{number}", parent))
            parent = f"e{number}"
        await session.submit(writes)
    await session.submit([entry("summary", "e100", kind="compaction"), entry("side", "summary")])

    async def steps(start: str, **options: object) -> tuple[int, list[str]]:
        count = 0

        def step() -> None:
            nonlocal count
            count += 1

        await session._use.file.read(lambda database: database.set_progress_handler(step, 1))
        rows = await session.path(start, **options)  # type: ignore[arg-type]
        await session._use.file.read(lambda database: database.set_progress_handler(None, 1))
        return count, [row.id for row in rows]

    for newest in ("e4999", "e2500", "e60"):
        count, ids = await steps(newest, limit=50)
        assert len(ids) == 50 and count < 2500, (newest, count)
    count, ids = await steps("side", newest_first=False, stop_kind="compaction")
    assert ids == ["summary", "side"] and count < 300, count
    count, ids = await steps("e4999", newest_first=False, stop_kind="compaction", limit=1)
    assert ids == ["e0"] and count < 300, count
    await store.close()


def run(program: str, path: Path) -> str:
    """Run ``program`` in a process of its own, with what this one imports, and return what it prints."""
    import agentlane

    # The package is loaded before anything is given up: its folder may be closed to others.
    imports = "import agentlane.storage.sqlite, agentlane.data.writes, encodings.idna, random\nrandom.Random(b'seed')\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(agentlane.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", imports + program, str(path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def test_a_file_with_a_second_name_is_refused_by_both(path: Path) -> None:
    """The lock and the log are found by name, so two owners would take each other's commits."""
    store = SqliteStore(path, durability="process")
    await store.create("one")
    alias = path.with_name("alias.db")
    os.link(path, alias)
    before = path.read_bytes()

    for file in (path, alias):
        other = SqliteStore(file, durability="process")
        calls = [
            other.list(),
            other.open("one"),
            other.open("one", read_only=True),
            other.create(),
            other.delete("one"),
        ]
        for call in calls:
            with pytest.raises(UnsupportedFormat, match="is a hard link: the file has 2 names"):
                await call

    assert path.read_bytes() == before
    insisting = SqliteStore(path, durability="process", insist=True)
    session = await insisting.open("one")
    await session.submit([put("k")])
    await insisting.close()
    alias.unlink()
    await (await store.open("one")).close()


async def test_a_second_name_that_is_made_meanwhile_ends_the_owner(path: Path) -> None:
    store = SqliteStore(path, durability="process")
    await store.create("one")
    session = await store.open("one")
    await session.submit([put("k")])
    os.link(path, path.with_name("alias.db"))

    with pytest.raises(OwnershipLost, match="second name"):
        await session.submit([put("k", b'"lost"')])

    assert await session.value(put("k").address) == b'"v"'
    await store.close()


async def test_what_a_killed_create_left_behind_is_removed_by_the_next(path: Path) -> None:
    left = [f".x.db.{'0a' * 8}.new{suffix}" for suffix in ("", "-journal", "-wal", "-shm")]
    others = [f".y.db.{'0a' * 8}.new", ".x.db.mine.new", f"x.db.{'0a' * 8}.new"]
    for name in (*left, *others):
        path.with_name(name).touch()

    await SqliteStore(path, durability="process").create("one")

    assert sorted(each.name for each in path.parent.iterdir()) == sorted([*others, "x.db", "x.db.lock"])


def test_a_create_that_is_killed_at_any_moment_leaves_a_file_that_opens(path: Path) -> None:
    """Killed before each call that changes the folder; the next create clears away and makes it."""
    program = """
import asyncio, os, sys
from agentlane.storage.sqlite import SqliteStore

def killing(real):
    def call(*args, **options):
        if str(args[0]).endswith(".new"):
            os.kill(os.getpid(), 9)
        return real(*args, **options)
    return call

setattr(os, sys.argv[2], killing(getattr(os, sys.argv[2])))
asyncio.run(SqliteStore(sys.argv[1], durability="process").create("one"))
"""
    for call in ("close", "open", "rename", "unlink"):
        subprocess.run([sys.executable, "-c", program, str(path), call], check=False, timeout=SECONDS_MAX)
        store = SqliteStore(path, durability="process")
        asyncio.run(store.create(f"after-{call}"))
        assert not [each.name for each in path.parent.iterdir() if each.name.endswith(".new")]
        asyncio.run(store.list())
        path.unlink()
