"""Claim: opening finds the one session that was meant or says why not, and never makes what was not asked for."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentlane import Prompt, Session, open_session
from agentlane.errors import (
    AgentLaneError,
    CorruptSession,
    InvalidDefinition,
    InvalidMessage,
    InvalidName,
    InvalidWrite,
    LaneBusy,
    ReadOnlySession,
    SessionOwned,
    StoreOwned,
    UnknownEntry,
    UnknownOperation,
    UnknownSession,
    UnsupportedFormat,
)
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.storage.contract import SessionStorage, Store
from agentlane.storage.lock import hold_folder, leave_folder
from agentlane.testing import call, check_invariants
from agentlane.testing.wrapping import WrappedStorage, WrappedStore
from tests.session.places import Place, agent_of, echo

PATHS = ["a.db", "a.sqlite", "a.sqlite3", "one.jsonl", "folder"]


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("as_path", [str, Path], ids=["text", "path"])
async def test_a_path_names_a_store_and_its_only_session_is_found_again(
    target: str, as_path: type, tmp_path: Path
) -> None:
    where = as_path(str(tmp_path / target))

    async with open_session(where, durability="process", metadata={"by": "me"}) as session:
        await session.set_name("mine")
        first = session.id
    async with open_session(where, durability="process") as session:
        assert (session.id, session.name, session.metadata) == (first, "mine", {"by": "me"})

    if target == "one.jsonl":
        assert first == "one"


async def test_each_memory_is_its_own() -> None:
    async with open_session(":memory:") as one, open_session(":memory:") as other:
        await one.set_name("one")
        assert other.name is None and one.id != other.id


async def test_a_store_that_is_handed_in_stays_open_and_one_that_was_made_is_closed(place: Place) -> None:
    session = await place.open()
    await session.close()

    assert [info.id for info in await place.store.list()] == ["s"]
    again = await place.open()
    assert again.id == "s"


async def test_an_opener_can_be_awaited_and_does_nothing_until_then(tmp_path: Path) -> None:
    opener = open_session(tmp_path / "later.db", durability="process")
    assert files(tmp_path) == []

    session = await opener

    assert (tmp_path / "later.db").exists()
    await session.close()


async def test_among_several_sessions_one_must_be_named(place: Place) -> None:
    for name in ("a", "b"):
        await place.store.create(name)

    with pytest.raises(UnknownSession, match="several sessions; name one of a, b") as caught:
        await place.open(None)

    assert caught.value.details["known"] == ["a", "b"]
    assert (await place.open("b")).id == "b"


async def test_an_id_that_is_not_there_is_an_error_and_makes_nothing(place: Place) -> None:
    with pytest.raises(UnknownSession, match="'ghost'"):
        await open_session(place.store, session_id="ghost")

    assert list(await place.store.list()) == []


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}, {"session_id": "ghost"}], ids=str)
async def test_what_is_not_there_is_not_made_unless_asked(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((UnknownSession, ReadOnlySession)):
        await open_session(tmp_path / target, durability="process", **options)

    async with open_session(":memory:"):
        pass
    left = [name for name in files(tmp_path) if not name.endswith(".lock")]
    assert left in ([], ["folder"])


async def test_a_session_file_holds_its_own_session_only(tmp_path: Path) -> None:
    async with open_session(tmp_path / "one.jsonl", durability="process"):
        pass
    async with open_session(tmp_path / "two.jsonl", durability="process") as two:
        assert two.id == "two"

    async with open_session(tmp_path / "one.jsonl", durability="process") as one:
        assert one.id == "one", "the other file beside it is not looked at"
    with pytest.raises(UnknownSession):
        await open_session(tmp_path / "one.jsonl", session_id="three", durability="process")


@pytest.mark.parametrize("id", ["a/b", "../x", ".hidden", "", "a b"])
async def test_an_id_that_could_leave_the_folder_names_nothing(id: str, place: Place) -> None:
    with pytest.raises((InvalidName, UnknownSession)):
        await open_session(place.store, session_id=id)
    with pytest.raises(InvalidName):
        await place.store.create(id)


@pytest.mark.parametrize("metadata", [{"x": float("nan")}, {"x": {1}}, {1: 2}, {"x": object()}], ids=str)
async def test_metadata_is_json_data(metadata: Any, place: Place) -> None:
    with pytest.raises(InvalidMessage, match="^metadata"):
        await open_session(place.store, metadata=metadata)

    assert list(await place.store.list()) == []


async def test_metadata_is_a_copy(place: Place) -> None:
    given = {"tags": ["a"]}
    async with open_session(place.store, metadata=given) as session:
        given["tags"].append("b")
        session.metadata["tags"].append("c")

        assert session.metadata == {"tags": ["a"]}


# What is damaged, or something else (R55).


@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
@pytest.mark.parametrize(
    ("content", "errors"),
    [
        (b"this is a letter to my aunt\n" * 40, (CorruptSession, UnsupportedFormat)),
        (b"\x00" * 5_000, (CorruptSession, UnsupportedFormat)),
        (b"{}\n", (CorruptSession, UnsupportedFormat)),
    ],
    ids=["text", "zeros", "json"],
)
async def test_a_file_of_something_else_is_an_error_and_stays_as_it_is(
    target: str, content: bytes, errors: Any, tmp_path: Path
) -> None:
    path = tmp_path / target
    path.write_bytes(content)

    with pytest.raises(errors):
        await open_session(path, durability="process")

    assert path.read_bytes() == content


@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
async def test_a_folder_in_the_place_of_a_file_is_an_error(target: str, tmp_path: Path) -> None:
    (tmp_path / target).mkdir()

    with pytest.raises(AgentLaneError):
        await open_session(tmp_path / target, durability="process")

    assert (tmp_path / target).is_dir() and list((tmp_path / target).iterdir()) == []


async def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")

    with pytest.raises(AgentLaneError):
        await open_session(tmp_path / "notes", durability="process")

    assert (tmp_path / "notes").read_text() == "mine"


LONG = "n" * 300


def circle(folder: Path) -> None:
    for name in ("circle", "circle.db", "circle.jsonl"):
        (folder / name).symlink_to(folder / name)


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"create": False}], ids=["write", "read", "find"])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        *((f"circle{rest}", "circle") for rest in (".db", "", "/a.db", "/one.jsonl", "/folder")),
        ("circle.jsonl", "is a folder, a link, a pipe or a device"),
        *((f"file/{name}", "lies below") for name in ("a.db", "one.jsonl", "folder")),
        *((name, "too long") for name in (f"{LONG}.db", LONG, f"{LONG}/a.db", f"{LONG}/one.jsonl", f"{LONG}/folder")),
        (f"{LONG}.jsonl", "session id"),
        *((name, "suffix without a name") for name in (".db", "below/.sqlite", ".JSONL", ".sqlite3/")),
        ("ONE.JSONL", "in small letters"),
    ],
    ids=lambda value: value if len(value) < 30 else f"{value[:8]}...{value[-8:]}",
)
async def test_a_path_where_nothing_can_be_is_refused_with_the_way_out(
    target: str, why: str, options: dict[str, Any], tmp_path: Path
) -> None:
    circle(tmp_path)
    (tmp_path / "file").write_text("mine")
    before = files(tmp_path)

    with pytest.raises((InvalidName, CorruptSession), match=why) as caught:
        await open_session(os.path.join(tmp_path, target), **options)

    assert files(tmp_path) == before and len(str(caught.value)) < 700


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
@pytest.mark.parametrize("target", ["/proc/a.db", "/proc/one.jsonl", "/proc/agentlane"])
async def test_a_place_where_no_file_can_be_made_is_refused(target: str) -> None:
    with pytest.raises(InvalidName, match=f"{target} is where no file can be made; name a place in an ordinary folder"):
        await open_session(target)


@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
async def test_something_else_where_the_lock_file_belongs_is_refused(target: str, kind: str, tmp_path: Path) -> None:
    lock = tmp_path / f"{target}.lock"
    match kind:
        case "folder":
            lock.mkdir()
        case "pipe":
            os.mkfifo(lock)
        case _:
            lock.symlink_to("nowhere")

    with pytest.raises(InvalidName, match=f"its lock file belongs at {lock}, where a folder, a link, a pipe"):
        await open_session(tmp_path / target)

    lock.rmdir() if kind == "folder" else lock.unlink()
    async with open_session(tmp_path / target) as session:
        await session.set_name("found")


@pytest.mark.parametrize("target", ["UP.DB", "Up.SQLite", "up.Sqlite3"])
async def test_the_case_of_a_suffix_does_not_count(target: str, tmp_path: Path) -> None:
    async with open_session(tmp_path / target, durability="process") as session:
        await session.set_name("here")

    assert (tmp_path / target).is_file()
    async with open_session(SqliteStore(tmp_path / target)) as session:
        assert session.name == "here"


@pytest.mark.parametrize(
    "options", [{"create": "no"}, {"read_only": "yes"}, {"create": 0}, {"read_only": None}], ids=str
)
async def test_a_switch_is_true_or_false(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match=f"{next(iter(options))}=.*: True or False is needed here"):
        await open_session(tmp_path / "a.db", **options)

    assert files(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
async def test_a_file_that_may_not_be_read_is_an_error(target: str, tmp_path: Path) -> None:
    async with open_session(tmp_path / target, durability="process"):
        pass
    (tmp_path / target).chmod(0)

    with pytest.raises((AgentLaneError, OSError)):
        await open_session(tmp_path / target, durability="process")


@pytest.mark.parametrize("target", [None, 5, b"bytes.db", ["a.db"], object()], ids=lambda each: type(each).__name__)
async def test_what_is_no_target_is_refused_plainly(target: Any) -> None:
    with pytest.raises(InvalidMessage, match="target"):
        await open_session(target)


# Owners.


async def test_a_session_has_one_writer_and_many_readers(place: Place) -> None:
    writer = await place.open()
    await writer.set_name("first")

    with pytest.raises((SessionOwned, StoreOwned)):
        await place.open()
    reader = await place.open(read_only=True)

    assert reader.name == "first"
    await writer.close()
    assert (await place.open()).name == "first"


async def test_a_reader_sees_the_session_as_it_was_when_it_was_opened(place: Place) -> None:
    """Beside an owner that goes on: an operation that was open then settles, and more is done."""
    agent = agent_of([call("echo", text="a")], "done", "more", tools=[echo])
    session = await place.open()
    lane = await session.lane("main", agent)
    admitted = await lane.accept(Prompt("go"), operation_id="open-then")
    reader = await place.open(read_only=True)
    view = await reader.lane("main", agent)

    async def seen() -> tuple[Any, ...]:
        return (
            *(reader.lanes(), reader.branches(), reader.open_operations(), reader.stats(), view.inspect()),
            *(await reader.entries(), await reader.usage(), await view.entries(), await view.result("open-then")),
            await check_invariants(reader),
        )

    before = await seen()
    await lane.drive(admitted.operation_id)
    later = await lane.run("again", operation_id="later")
    await session.create_branch("other", at=lane.tip())
    await session.lane("third", agent)

    assert await seen() == before
    assert before[0] == ["main"] and before[3].entries == 1 and before[-2:] == (None, [])
    with pytest.raises(UnknownOperation):
        await view.result("later")
    with pytest.raises(UnknownEntry):
        await reader.entry(later.answer or "")


class _Busy(WrappedStorage):
    """A session whose owner does something before each of its reads."""

    def __init__(self, inner: SessionStorage, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._act = act

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        await self._act()
        return await super().values(namespace, prefix, **page)


class _BusyStore(WrappedStore):
    def __init__(self, inner: Store, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._act = act

    def wrap(self, storage: SessionStorage) -> SessionStorage:
        return _Busy(storage, self._act) if storage.read_only else storage


async def test_what_an_owner_does_while_a_reader_opens_looks_like_no_damage(place: Place) -> None:
    """A reader that met half of a lane, or of an operation, would call a sound session corrupt."""
    agent = agent_of(*["fine"] * 20)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"))
    made = 0

    async def act() -> None:
        nonlocal made
        made += 1
        await lane.resume()
        await session.lane(f"new-{made}", agent)
        await lane.accept(Prompt("go"))

    async with open_session(_BusyStore(place.store, act), session_id="s", read_only=True) as reader:
        assert made >= 3 and reader.lanes() == ["main"] and len(reader.open_operations()) == 1


async def test_a_reader_reads_and_is_refused_everything_else(place: Place) -> None:
    session = await place.open()
    agent = agent_of("hello")
    lane = await session.lane("main", agent)
    result = await lane.run("hi")
    await session.close()

    reader = await place.open(read_only=True)
    lane = await reader.lane("main", agent)

    assert await lane.result(result.operation_id) == result
    assert [entry.id for entry in await lane.entries()] == [result.answer, *result.inputs]
    assert lane.inspect().last_operation_id == result.operation_id
    assert reader.stats().entries == 2 and reader.stats().usage == result.usage
    for attempt in (
        lambda: lane.accept(Prompt("more")),
        lambda: lane.drive(),
        lambda: lane.request_abort(result.operation_id),
        lambda: lane.configure(settings={}),
        lambda: lane.append_custom("note"),
        lambda: reader.lane("other", agent),
        lambda: reader.create_branch("b"),
        lambda: reader.set_name("x"),
        lambda: reader.set_label(result.inputs[0], "x"),
    ):
        with pytest.raises(ReadOnlySession):
            await attempt()


async def test_opening_an_existing_session_writes_nothing(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    admitted = await lane.accept(Prompt("hi"))
    before = [entry.seq for entry in await session.entries()]
    await session.close()

    for _ in range(3):
        session = await place.open()
        lane = await session.lane("main", agent_of("hello"))
        assert [entry.seq for entry in await session.entries()] == before
        with pytest.raises(LaneBusy) as caught:
            await lane.accept(Prompt("other"))
        assert caught.value.details["operation_id"] == admitted.operation_id
        await session.close()

    # The next write takes the next number: nothing was written in between.
    session = await place.open()
    await session.set_name("x")
    lane = await session.lane("main", agent_of("hello"))
    await lane.abort()
    entry = await lane.append_custom("note")
    assert entry.seq > before[-1]


@pytest.mark.parametrize("target", PATHS)
async def test_of_those_who_open_a_new_place_at_once_one_makes_its_session(target: str, tmp_path: Path) -> None:
    where = tmp_path / target

    opened = await asyncio.gather(
        *[open_session(where, durability="process") for _ in range(5)], return_exceptions=True
    )

    sessions = [each for each in opened if isinstance(each, Session)]
    assert len(sessions) == 1
    assert [type(each) for each in opened if each is not sessions[0]] == [SessionOwned] * 4
    await sessions[0].close()
    async with open_session(where, durability="process") as session:
        assert session.id == sessions[0].id


@pytest.mark.parametrize("target", PATHS)
def test_threads_that_open_a_new_place_at_once_make_one_session(target: str, tmp_path: Path) -> None:
    where = tmp_path / target
    start, end = threading.Barrier(8), threading.Barrier(8)

    async def open_it() -> str:
        start.wait(30)
        try:
            async with open_session(where, durability="process") as session:
                end.wait(30)
                return session.id
        except (SessionOwned, StoreOwned) as error:
            end.wait(30)
            return type(error).__name__

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: asyncio.run(open_it()), range(8)))

    names = {"SessionOwned", "StoreOwned"}
    assert len([each for each in told if each not in names]) == 1, told

    async def listed() -> str:
        async with open_session(where, durability="process", create=False) as session:
            return session.id

    assert asyncio.run(listed()) in told


async def test_one_who_waits_to_open_may_be_cancelled_and_holds_up_nobody(tmp_path: Path) -> None:
    first, second, third = [
        asyncio.ensure_future(open_session(tmp_path / "a.db", durability="process").__aenter__()) for _ in range(3)
    ]
    await asyncio.sleep(0)
    second.cancel()
    session = await first

    with pytest.raises(asyncio.CancelledError):
        await second
    with pytest.raises(SessionOwned):
        await third
    await session.close()


async def test_a_session_is_made_as_the_only_one_in_the_transaction_that_looks(tmp_path: Path) -> None:
    """What another process can do between our look and our write."""
    store = SqliteStore(tmp_path / "a.db", durability="process")
    look = store.list
    looks = 0

    async def blind() -> list[Any]:
        nonlocal looks
        looks += 1
        return [] if looks == 1 else await look()

    await store.create("theirs")
    store.list = blind  # type: ignore[method-assign]
    async with open_session(store) as session:
        assert session.id == "theirs"
    assert [info.id for info in await look()] == ["theirs"]
    await store.close()


@pytest.mark.parametrize("durability", ["dsik", "", None, True, 1, ["disk"]])
@pytest.mark.parametrize("target", [*PATHS, ":memory:"])
async def test_a_durability_that_is_none_is_refused_wherever_it_is_said(
    target: str, durability: Any, tmp_path: Path
) -> None:
    where = target if target == ":memory:" else tmp_path / target

    with pytest.raises(InvalidDefinition, match="durability"):
        await open_session(where, durability=durability)
    with pytest.raises(InvalidDefinition, match="durability"):
        await open_session(MemoryStore(), durability=durability)
    for store in (JsonlStore, JsonlStore.for_file, SqliteStore):
        with pytest.raises(InvalidDefinition, match="durability"):
            store(tmp_path / "x.jsonl", durability=durability)  # type: ignore[operator]
    assert files(tmp_path) == []


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"x.db"


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("", InvalidName),
        ("\ud800.db", InvalidName),
        ("\ud800", InvalidName),
        ("a\0.db", InvalidName),
        (Path("a\0b.jsonl"), InvalidName),
        (b"x.db", InvalidMessage),
        (BytesPath(), InvalidMessage),
        (5, InvalidMessage),
        (None, InvalidMessage),
    ],
)
async def test_a_target_that_is_no_place_is_refused(
    target: Any, kind: type[AgentLaneError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(kind, match="target"):
        await open_session(target)

    assert files(tmp_path) == []


async def test_a_file_where_a_folder_is_meant_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")

    with pytest.raises(CorruptSession, match="README.*this is a file"):
        await open_session(tmp_path / "README")

    assert files(tmp_path) == ["README"]


@pytest.mark.parametrize(
    "options", [{"clock": 5}, {"clock": 0}, {"ids": 5}, {"probe": 5}, {"seed": []}, {"seed": "x"}], ids=repr
)
async def test_an_option_that_cannot_work_is_refused_before_anything_is_made(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidDefinition, match=next(iter(options))):
        await open_session(tmp_path / "a.db", **options)

    assert files(tmp_path) == []


@pytest.mark.parametrize("session_id", ["a/b", "", "\ud800", 5, [], ("s",)])
async def test_an_id_that_can_be_none_is_refused_alike(place: Place, session_id: Any) -> None:
    with pytest.raises(InvalidName, match="session id"):
        await open_session(place.store, session_id=session_id)


async def test_a_folder_gets_one_first_session_whoever_makes_it(tmp_path: Path) -> None:
    """Another process is about to make the first session; who opens the folder meanwhile waits, and finds that one."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    other = hold_folder(folder)
    assert other is not None

    opening = asyncio.ensure_future(open_session(folder, durability="process").__aenter__())
    for _ in range(20):
        await asyncio.sleep(0)
    made = await JsonlStore(folder, durability="process").create("of-the-other")
    leave_folder(other)

    session = await opening
    assert session.id == made.id
    assert [each for each in files(folder) if each.endswith(".jsonl")] == ["of-the-other.jsonl"]
    await session.close()
    with pytest.raises(InvalidWrite, match=r"holds session 'of-the-other' already; open it"):
        await JsonlStore(folder).create_first()


async def test_a_cancelled_wait_for_a_folders_first_session_makes_none_and_holds_nothing(tmp_path: Path) -> None:
    other = hold_folder(tmp_path)
    assert other is not None
    opening = asyncio.ensure_future(open_session(tmp_path, durability="process").__aenter__())
    for _ in range(20):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    leave_folder(other)

    assert files(tmp_path) == []
    async with open_session(tmp_path, durability="process") as session:
        assert files(tmp_path) == [f"{session.id}.jsonl", f"{session.id}.jsonl.lock"]
