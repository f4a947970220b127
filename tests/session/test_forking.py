"""Claim: a fork is the conversation of one moment in a session of its own, the same from and to every store, and whole.

What is expected of a fork is told here from the rows of its source, by the words of the design and not by the code.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    InvalidMessage,
    ListAddress,
    Prompt,
    Session,
    Settled,
    UnknownBranch,
    UnknownEntry,
    open_session,
)
from agentlane.errors import (
    InvalidDefinition,
    InvalidName,
    InvalidWrite,
    SessionClosed,
    StoreOwned,
    UnknownOperation,
    UnknownSession,
    WrongLoop,
)
from agentlane.storage import Address, AppendElement, MemoryStore, Row, SessionInfo, forks
from agentlane.testing import check_invariants
from agentlane.testing.wrapping import WrappedStore
from tests.session.copies import Rows, play, rows_in, rows_of, speaker
from tests.session.places import KINDS, Place
from tests.session.saying import told, user

KEPT = ("branch.tip", "lane.config", "lane.state", "session.name", "label")
SEEDS = 2
SEEDS_WHOLE = 8


def tree_of(source: Rows) -> Rows:
    """What a fork of everything has."""
    values = {
        (namespace, key): b"{}" if namespace == "lane.state" else payload
        for (namespace, key), payload in source.values.items()
        if namespace in KEPT or namespace.startswith("app.")
    }
    lists = [each for each in source.elements if each.address.namespace.startswith("app.")]
    return Rows(source.entries, [], lists, values, source.last_seq)


def branch_of(source: Rows, branch: str, tip: str | None) -> Rows:
    """What a fork of one branch has."""
    by_id = {each.id: each for each in source.entries}
    path = []
    at = tip
    while at is not None:
        path.append(by_id[at])
        at = by_id[at].parent_id
    ids = {each.id for each in path}
    values = {
        (namespace, key): payload
        for (namespace, key), payload in tree_of(source).values.items()
        if namespace == "session.name"
        or namespace.startswith("app.")
        or (namespace == "label" and key in ids)
        or (namespace.startswith("lane.") and key == branch)
    }
    values["branch.tip", branch] = b"null" if tip is None else b'"%b"' % tip.encode()
    return Rows(path[::-1], [], tree_of(source).elements, values, source.last_seq)


async def source_of(kind: str, folder: Path, seed: int) -> tuple[Place, Session]:
    place = Place(kind, folder)
    session = await place.open()
    await play(session, seed)
    return place, session


def targets(folder: Path, mine: Place) -> dict[str, Any]:
    """A store of each kind, and the one of the session itself."""
    made = {kind: Place(kind, folder / f"to-{kind}").store for kind in KINDS}
    (folder / "to-sqlite").mkdir()
    return {**made, "own": mine.store}


async def drives(store: Any, session_id: str, branch: str | None) -> None:
    """A fork is sound, nothing is open in it, and each of its lanes (or the one) takes work at once."""
    async with open_session(store, session_id=session_id) as copy:
        assert await check_invariants(copy) == []
        assert copy.open_operations() == []
        assert copy.approvals() == []
        known = {each.id for each in await copy.entries()}
        highest = max([each.seq for each in await copy.entries()], default=0)
        for name in copy.lanes() if branch is None else [branch] if branch in copy.lanes() else []:
            lane = await copy.lane(name, speaker())
            assert lane.queued() == []
            settled = await lane.run("hello")
            assert (settled.status, settled.text) == ("completed", "said hello")
            new = [each for each in await lane.entries() if each.id not in known]
            assert new and min(each.seq for each in new) > highest
        assert await check_invariants(copy) == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS_WHOLE if metafunc.config.getoption("--whole") else SEEDS))


async def test_a_fork_is_the_same_from_and_to_every_store(seed: int, tmp_path: Path) -> None:
    """Random sessions with work in every state; the tree, each branch, and a branch up to and before an entry."""
    found: dict[str, list[Rows]] = {}
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        mine, session = await source_of(kind, folder, seed)
        # What an answer that streams leaves in a list of the library's own.
        await session._runtime.storage.submit([AppendElement(Address("pending.frames", "op|response"), b'"frame"')])
        before = await rows_in(session._runtime.storage)
        rng = random.Random(seed)
        tips: dict[str, str | None] = {name: session.branch(name).tip() for name in session.branches()}
        tried: list[tuple[str | None, Rows, dict[str, Any]]] = [(None, tree_of(before), {})]
        for name, tip in rng.sample(sorted(tips.items()), min(3, len(tips))):
            tried.append((name, branch_of(before, name, tip), {"branch": name}))
            if tip is not None:
                at = rng.choice(await session.branch(name).entries())
                tried.append((name, branch_of(before, name, at.id), {"branch": name, "at": at.id}))
                cut = {"branch": name, "at": at.id, "before": True}
                tried.append((name, branch_of(before, name, at.parent_id), cut))
        for to, store in targets(folder, mine).items():
            for number, (branch, wanted, options) in enumerate(tried):
                info = await session.fork(store, session_id=f"f-{number}", **options)
                assert info.id == f"f-{number}" and info in await store.list()
                got = await rows_of(store, info.id)
                assert got == wanted, (kind, to, options)
                found.setdefault(f"{number}", []).append(got)
                if kind == to == "memory":  # what is stored is the same elsewhere
                    await drives(store, info.id, branch)
            if to != "own":
                await store.close()
        assert await rows_in(session._runtime.storage) == before, "the source has changed"
        await mine.end()
    for what, all_of_one in found.items():
        assert all(each == all_of_one[0] for each in all_of_one), what


async def test_a_fork_beside_a_running_operation(place: Place) -> None:
    """The fork ends the batch that goes on here; here it goes on, and the same call is answered twice, each its own."""
    session = await place.open()
    began = asyncio.Event()
    lane = await session.lane("main", speaker(began))
    await lane.accept(Prompt("call echo hold echo"), operation_id="op-1")
    driving = asyncio.create_task(lane.drive("op-1"))
    await began.wait()
    await lane.steer("and then")

    info = await session.fork()

    assert not driving.done()
    copy = await place.open(info.id)
    assert copy.open_operations() == []
    other = await copy.lane("main", speaker())
    with pytest.raises(UnknownOperation):
        await other.result("op-1")
    assert other.queued() == []
    assert (await other.run("hello", operation_id="op-1")).text == "said hello"
    lines = await told(other)
    assert lines[:2] == ["user call echo hold echo", "assistant  (3 calls)"]
    assert [each.split()[0] for each in lines[2:]] == ["result", "result", "result", "user", "assistant"]
    assert "user and then" not in lines
    assert await check_invariants(copy) == []
    await lane.abort()
    assert isinstance(ended := await driving, Settled) and ended.result.status == "aborted"
    assert await check_invariants(session) == []


class Between(WrappedStore):
    """A store whose ``load`` lets something happen before each page, and behind the last."""

    def __init__(self, inner: Any, happen: Any) -> None:
        super().__init__(inner)
        self.happen = happen
        self.pages = 0

    async def load(self, pages: Any, **options: Any) -> SessionInfo:
        return await super().load(self._watched(pages), **options)

    async def _watched(self, pages: Any) -> AsyncIterator[Sequence[Row]]:
        await self.happen(self.pages)
        async for page in pages:
            yield page
            self.pages += 1
            await self.happen(self.pages)


@pytest.mark.parametrize("scope", ["tree", "branch"])
async def test_a_fork_is_of_one_moment(place: Place, scope: Any) -> None:
    """Whatever is written while it is read: entries, tips, configuration, lists, labels, lanes that go away."""
    session = await place.open()
    lane = await session.lane("main", speaker())
    for _ in range(300):
        await lane.append_custom("note")
    await lane.run("hello")
    tags = ListAddress("app.notes", "tags", int)
    await session.append(tags, 1)
    before = await rows_in(session._runtime.storage)
    tip = lane.tip()

    async def happen(number: int) -> None:
        lane = await session.lane("main", speaker())
        await lane.run("hello")
        await lane.configure(settings={"n": number})
        await session.append(tags, number)
        await session.set_label(lane.tip() or "", f"label {number}")
        await session.set_name(f"name {number}")
        if number == 1:
            await session.delete_branch("main")
            await session.delete_list(tags)

    store = Between(MemoryStore(clock=place.clock), happen)
    info = await session.fork(store, scope=scope)

    assert store.pages >= 3
    wanted = tree_of(before) if scope == "tree" else branch_of(before, "main", tip)
    assert await rows_of(store, info.id) == wanted
    assert await check_invariants(session) == []


async def test_a_fork_is_cut_at_each_entry_of_every_kind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parents are there wherever it is cut: inside a batch, before its answer, at the root (then it is empty)."""
    monkeypatch.setattr(forks, "_PATH_ROWS", 3)
    session = await place.open()
    lane = await session.lane("main", speaker())
    await lane.append_custom("note", {"first": True})
    await lane.run("call echo echo none")
    await lane.append_message(user("by hand"))
    await lane.navigate(lane.tip(), label="here")
    await lane.append_custom("last")
    source = await rows_in(session._runtime.storage)
    entries = await lane.entries(newest_first=False)
    assert {each.type for each in entries} == {"message", "custom"}

    for entry in entries:
        for before in (False, True):
            info = await session.fork(at=entry.id, before=before)
            tip = entry.parent_id if before else entry.id
            assert await rows_of(place.store, info.id) == branch_of(source, "main", tip)
            if place.kind == "memory":
                await drives(place.store, info.id, "main")


async def test_the_parent_is_unchanged_to_the_byte_and_the_child_goes_its_own_way(tmp_path: Path) -> None:
    async with open_session(tmp_path / "one.jsonl") as session:
        lane = await session.lane("main", speaker())
        await lane.run("hello")
        before = (tmp_path / "one.jsonl").read_bytes()
        info = await session.fork(session_id="two")
        async with open_session(tmp_path / "two.jsonl", create=False) as copy:
            assert (copy.id, copy.metadata) == ("two", {"forked_from": {"session": "one", "seq": 18}})
            await (await copy.lane("main", speaker())).run("more")
            assert len(await copy.entries()) == 4
        assert info.id == "two"
        assert (tmp_path / "one.jsonl").read_bytes() == before
        assert len(await session.entries()) == 2


@pytest.mark.parametrize("path", ["other.db", "folder", "two.jsonl", "old.db"])
async def test_a_path_is_a_target_as_it_is_for_opening(place: Place, path: str, tmp_path: Path) -> None:
    """New or there already, and nothing of it is held afterwards."""
    session = await place.open()
    await (await session.lane("main", speaker())).run("hello")
    if path == "old.db":
        async with open_session(tmp_path / path, durability="process"):
            pass
    source = await rows_in(session._runtime.storage)

    info = await session.fork(tmp_path / path, session_id=None)

    if path == "two.jsonl":
        assert info.id == "two"
    async with open_session(tmp_path / path, session_id=info.id) as copy:
        assert await rows_in(copy._runtime.storage) == tree_of(source)
    with pytest.raises(InvalidWrite, match="exists already"):
        await session.fork(tmp_path / path, session_id=info.id)


async def test_a_reader_can_fork_what_another_one_writes(place: Place) -> None:
    session = await place.open()
    await (await session.lane("main", speaker())).run("hello")
    reader = await place.open(read_only=True)
    source = await rows_in(session._runtime.storage)
    info = await reader.fork(branch="main")
    assert await rows_of(place.store, info.id) == branch_of(source, "main", session.branch("main").tip())


async def test_metadata_says_where_it_is_from_and_never_over_the_caller(place: Place) -> None:
    await place.store.create("s", metadata={"user": "ann", "deep": {"list": [1]}})
    session = await place.open()
    lane = await session.lane("main", speaker())
    await lane.append_custom("note")
    origin = {"session": "s", "seq": 5}
    on_branch = {**origin, "branch": "main", "entry": lane.tip()}

    assert (await session.fork()).metadata == {"user": "ann", "deep": {"list": [1]}, "forked_from": origin}
    assert (await session.fork(branch="main")).metadata["forked_from"] == on_branch
    assert (await session.fork(metadata={})).metadata == {"forked_from": origin}
    assert (await session.fork(metadata={"forked_from": "mine"})).metadata == {"forked_from": "mine"}
    assert session.metadata == {"user": "ann", "deep": {"list": [1]}}

    first = await session.fork()
    copy = await place.open(first.id)
    again = await copy.fork()  # its source has that key: of two origins the nearer one counts
    assert again.metadata["forked_from"] == {"session": first.id, "seq": 5}
    assert again.created_at == place.clock.now_ms()


async def test_what_cannot_be_is_refused_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    lane = await session.lane("main", speaker())
    await lane.run("hello")
    await session.create_branch("bare")
    aside = await session.lane("aside", speaker())
    off = (await aside.append_custom("note")).id
    other = MemoryStore()
    await other.create("there")
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UnknownBranch, "aside, bare, main", {"branch": "ghost"}),
        (UnknownBranch, "name one", {"scope": "branch"}),
        (UnknownBranch, "name one", {"at": off}),
        (UnknownBranch, "aside, bare, main", {"branch": 5}),
        (UnknownBranch, "aside, bare, main", {"branch": "\ud800"}),
        (UnknownEntry, "ghost", {"branch": "main", "at": "ghost"}),
        (UnknownEntry, "no entry", {"branch": "main", "at": 5}),
        (UnknownEntry, "not on the path of branch 'main'", {"branch": "main", "at": off}),
        (UnknownEntry, "not on the path of branch 'bare'", {"branch": "bare", "at": off}),
        (InvalidMessage, "scope=", {"scope": "all"}),
        (InvalidMessage, "leave branch= and at= out", {"scope": "tree", "branch": "main"}),
        (InvalidMessage, "leave branch= and at= out", {"scope": "tree", "at": off}),
        (InvalidMessage, "before which entry", {"branch": "main", "before": True}),
        (InvalidMessage, "before=1", {"branch": "main", "at": off, "before": 1}),
        (InvalidMessage, "metadata", {"metadata": {"x": float("nan")}}),
        (InvalidMessage, "metadata", {"metadata": [1]}),
        (InvalidName, "session id", {"session_id": "../x"}),
        (InvalidName, "session id", {"session_id": "a/b", "branch": "main"}),
        (InvalidWrite, "exists already", {"session_id": "s"}),
        (InvalidWrite, "exists already", {"session_id": "there", "target": other}),
        (InvalidMessage, "a path, ':memory:' or a store", {"target": 5}),
        (InvalidMessage, "a path, ':memory:' or a store", {"target": session}),
        (InvalidDefinition, "hand in a MemoryStore", {"target": ":memory:"}),
        (InvalidName, "one file", {"target": tmp_path / "x.jsonl", "session_id": "y"}),
        (InvalidName, "empty", {"target": ""}),
    ]
    before = sorted(each.name for each in tmp_path.rglob("*"))
    for error, match, options in wrong:
        with pytest.raises(error, match=match):
            await session.fork(**options)
    assert [each.id for each in await place.store.list()] == ["s"]
    assert [each.id for each in await other.list()] == ["there"]
    assert sorted(each.name for each in tmp_path.rglob("*")) == before
    assert session.branches() == ["aside", "bare", "main"]


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_target_that_cannot_be_written_says_so_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    """A file where a folder belongs, a place where no file can be made, a file that is no store of ours."""
    (tmp_path / "file").write_text("not ours")
    (tmp_path / "foreign.db").write_text("not a database, but longer than a header has to be" * 20)
    before = sorted(each.name for each in tmp_path.rglob("*"))
    async with open_session(":memory:") as session:
        await (await session.lane("main", speaker())).run("hello")
        for target in {
            "jsonl": ["file/sessions", "file/x.jsonl", "/proc/agentlane"],
            "sqlite": ["file/x.db", "/proc/agentlane/x.db", "foreign.db"],
        }[kind]:
            with pytest.raises(Exception) as caught:
                await session.fork(tmp_path / target)
            assert "agentlane" in type(caught.value).__module__ or isinstance(caught.value, OSError)
        await (await session.lane("main", speaker())).run("hello")
    assert sorted(each.name for each in tmp_path.rglob("*")) == before


async def test_a_file_that_another_process_owns_is_no_target(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *("/usr/bin/env", "python3", "-c"),
        "import fcntl,sys;f=open(sys.argv[1],'a');fcntl.flock(f,2);print(1,flush=True);sys.stdin.read()",
        str(tmp_path / "other.db.lock"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None and owner.stdin is not None
    await owner.stdout.readline()
    async with open_session(":memory:") as session:
        with pytest.raises(StoreOwned):
            await session.fork(tmp_path / "other.db")
    owner.stdin.close()
    await owner.wait()


class Failed(Exception):
    """What a target raises."""


async def test_a_fork_that_fails_or_is_cancelled_leaves_nothing_and_its_id_free(place: Place) -> None:
    """At each page, in the store of the session itself; the session goes on."""
    session = await place.open()
    lane = await session.lane("main", speaker())
    for _ in range(600):
        await lane.append_custom("note")
    await lane.run("hello")
    source = await rows_in(session._runtime.storage)
    number, made = 0, False
    while not made:
        for how in ("failed", "cancelled"):

            async def happen(page: int, how: str = how, number: int = number) -> None:
                if page == number and how == "failed":
                    raise Failed
                if page == number:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await asyncio.sleep(0)

            forking = asyncio.ensure_future(session.fork(Between(place.store, happen), session_id="f"))
            await asyncio.wait({forking})
            made = not forking.cancelled() and forking.exception() is None
            if made:
                break
            assert forking.cancelled() or isinstance(forking.exception(), Failed)
            assert [each.id for each in await place.store.list()] == ["s"]
            with pytest.raises(UnknownSession):
                await place.store.open("f")
        number += 1
    assert number > 4
    assert await rows_of(place.store, "f") == tree_of(source)
    assert (await lane.run("more")).text == "said more"


async def test_a_session_that_cannot_be_used_cannot_be_forked(place: Place) -> None:
    session = await place.open()
    await session.set_name("x")

    def elsewhere() -> None:
        async def call() -> None:
            with pytest.raises(WrongLoop):
                await session.fork()

        asyncio.run(call())

    await asyncio.to_thread(elsewhere)

    async def happen(number: int) -> None:
        if number == 1:
            await session.close()

    store = Between(MemoryStore(), happen)
    try:
        await session.fork(store)
    except SessionClosed:
        assert await store.list() == []
    with pytest.raises(SessionClosed):
        await session.fork(store)


async def test_forks_beside_each_other_and_beside_work(place: Place) -> None:
    """Eight at a time while a lane runs: each is a whole one, of the moment that it says."""
    session = await place.open()
    lane = await session.lane("main", speaker())

    async def work() -> None:
        for number in range(20):
            await lane.run(f"word-{number}")

    working = asyncio.create_task(work())
    infos = [info for _ in range(3) for info in await asyncio.gather(*(session.fork() for _ in range(8)))]
    await working
    source = await rows_in(session._runtime.storage)
    for info in infos:
        got = await rows_of(place.store, info.id)
        assert got.last_seq == info.metadata["forked_from"]["seq"]
        assert got.entries == [each for each in source.entries if each.seq <= got.last_seq]
        async with open_session(place.store, session_id=info.id) as copy:
            assert await check_invariants(copy) == []
    assert len(await session.entries()) == 40
