"""What writes beside plain commits, on a medium that fails: loads, copies, cleanups, searches, deletions, reopening.

Each is tried until it is made; after each failure everything that was told is compared with what is there. Nothing
half-made is found by anybody, the source stays as it was, and nothing stays behind when the cause is mended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agentlane import ListAddress, Session, ValueAddress, open_session
from agentlane.data.writes import Address
from agentlane.errors import InvalidWrite, SessionFaulted, UnknownSession
from agentlane.storage import JsonlStore, SqliteStore, Store, search_index
from agentlane.storage.contract import Row, SessionInfo, ValueRow
from agentlane.storage.exchange import write_export
from agentlane.storage.index import SessionIndex
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.testing.clock import CountingIds
from tests.session.copies import Rows, rows_in, rows_of, speaker
from tests.session.test_forking import branch_of, tree_of
from tests.storage.faults import sqlite_vfs, system
from tests.storage.faults.media import Medium
from tests.storage.faults.planned import Kind
from tests.storage.faults.workload import Wrong, judge

NOTES = 12
OLD = ("op-1", "op-2")
"""Operations that ended before the time up to which records are dropped."""
ATTEMPTS_MAX = 3
"""How often an action is tried before the cause is mended."""
TOLD = ("sync", "sync_folder", "rename", "pread", "names")
"""Calls whose failure nobody may pass over."""
COUNT_STRANGERS = """
    SELECT (SELECT count(*) FROM entry WHERE session NOT IN (SELECT key FROM session))
        + (SELECT count(*) FROM value WHERE session NOT IN (SELECT key FROM session))
        + (SELECT count(*) FROM element WHERE session NOT IN (SELECT key FROM session))
        + (SELECT count(*) FROM usage WHERE session NOT IN (SELECT key FROM session))
"""


class Wanted(NamedTuple):
    """What the template holds: session ``s`` before its last two notes, which the index of a search lacks, and all of
    it; and when the old operations had ended."""

    rows: Rows
    cut: int


class _Nothing:
    """The payloads of an empty snapshot."""

    def fetch(self, places: Iterable[bytes]) -> list[bytes]:
        return [*places]

    def size(self, place: bytes) -> int:
        return len(place)

    def close(self) -> None: ...


class SameId:
    """Gives out one id."""

    def new(self) -> str:
        return "the-first"


async def fill(medium: Medium, folder: Path) -> Wanted:
    """A session ``s`` with everything in it, a copy ``t``, an exported file; and an index that is behind."""
    store = medium.store()
    await store.create("s")
    session = await opened(medium, store)
    lane = await session.lane("main", speaker())
    for number in range(4):
        await lane.run(f"hello {number}", operation_id=f"op-{number + 1}")
        await session.set_value(ValueAddress("app.notes", "a", int), number)
        await session.append(ListAddress("app.notes", "l", int), number)
        medium.clock.advance(1_000)
        if number + 1 == len(OLD):
            cut = medium.clock.now_ms()
    other = await session.create_branch("other", at=(await lane.entries(newest_first=False))[1].id)
    for number in range(NOTES):
        await (lane if number % 2 else other).append_custom("note", {"n": number, "text": "x" * 300})
    await session.set_label(str(lane.tip()), "here")
    await session.search("hello")
    await lane.run("hello again", operation_id="op-5")
    rows = await rows_in(session._runtime.storage)
    await session.backup(store, session_id="t")
    await session.export(folder / "exported")
    await session.close()
    await store.close()
    if isinstance(store, JsonlStore):
        for name in ("t.jsonl.torn-1", ".t.jsonl.new"):
            (folder / "s" / name).write_bytes(b"left")
    return Wanted(rows, cut)


async def opened(medium: Medium, store: Store) -> Session:
    return await open_session(store, session_id="s", clock=medium.clock, ids=CountingIds(series=77), seed=1)


async def paged(rows: Rows) -> AsyncIterator[Sequence[Row]]:
    every: list[Row] = [*rows.entries, *rows.ledger, *rows.elements]
    every += [ValueRow(Address(*address), payload) for address, payload in rows.values.items()]
    for begin in range(0, len(every), 20):
        yield every[begin : begin + 20]


class World:
    """One go of one action. ``failures`` is the history of what failed."""

    def __init__(self, medium: Medium, folder: Path, wanted: Wanted) -> None:
        self.medium = medium
        self.faults = medium.faults
        self.folder = folder
        self.wanted = wanted
        self.store = medium.store()
        self.failures: list[str] = []
        self.calls = 0
        """How many calls there were that could have failed."""
        self.session: Session | None = None
        self.disk = isinstance(self.store, JsonlStore)

    @property
    def opened(self) -> Session:
        if self.session is None:
            raise Wrong("no session is open")
        return self.session

    def place(self, name: str) -> Path:
        """Where a copy goes, that is to be of the kind of this store."""
        return self.folder / "out" / (name if self.disk else f"{name}.db")

    def at(self, name: str) -> Store:
        """What a copy was made in, looked at from outside."""
        return JsonlStore(self.place(name)) if self.disk else SqliteStore(self.place(name))

    def files(self) -> list[Path]:
        """The databases here in which no row is of nobody."""
        return [*self.folder.rglob("*.db")]

    async def go(self, action: Action, kinds: Sequence[Kind], *, nth: int, permanent: bool) -> None:
        """Try ``action`` until it is made, its ``nth`` call failing."""
        with self.faults.unseen():
            if action.open:
                self.session = await opened(self.medium, self.store)
        if action.begin is not None:
            await action.begin(self)
        self.faults.plan(kinds, nth=nth, permanent=permanent)
        for attempt in range(ATTEMPTS_MAX + 1):
            if attempt == ATTEMPTS_MAX:
                self.faults.lift()
            if await self._tried(action, attempt):
                break
        else:
            raise Wrong(f"it still fails though nothing is wrong any more: {self.failures}")
        struck, self.faults.struck = self.faults.struck, []
        self.calls = sum(self.faults.calls.values())
        self.faults.lift()
        await self._check(action, made=True)
        if self.session is not None:
            await self.session.close()
            self.session = None
            await self._check(action, made=True)
        await self.store.close()
        await self._sweep()
        self.faults.struck = struck

    async def _sweep(self) -> None:
        """What could not be removed is by who makes something there the next time."""
        places = [self.medium.store()]
        if self.disk:
            places += [JsonlStore(each) for each in (self.place("b"), self.folder / "first") if each.exists()]
        for store in places:
            await store.load(paged(Rows([], [], [], {}, 0)), last_seq=0, session_id="next")
            await store.delete("next")
            await store.close()
        file = self.folder / "out" / "file"
        if file.exists():
            snapshot = IndexSnapshot(SessionInfo(id="x", created_at=0), SessionIndex([], []), _Nothing())
            with suppress(InvalidWrite):
                await write_export(snapshot, file)

    async def _tried(self, action: Action, attempt: int) -> bool:
        """Whether it is made now."""
        before = len(self.faults.raised)
        try:
            await action.act(self)
        except InvalidWrite:
            if not attempt:
                raise  # it was there before anything failed
        except Exception as error:
            self.failures.append(f"{attempt}: {error!r}")
            judge(self.faults, action.name, error)
            self._judge_first(error, before)
            with self.faults.unseen():
                await self._check(action, made=False)
                if action is not REOPEN and self.session is not None:
                    await self.session.reopen()
            return False
        return True

    def _judge_first(self, error: BaseException, before: int) -> None:
        """What cannot be cleared up behind a failure does not hide it."""
        raised = zip(self.faults.raised[before:], self.faults.raised_by[before:], strict=True)
        first = next((each for each, call in raised if call in TOLD), None)
        chain: list[BaseException | None] = [error]
        while chain[-1] is not None:
            chain.append(chain[-1].__cause__)
        if first is not None and not self.faults.codes and first not in chain:
            raise Wrong(f"{error!r} hides what failed first, {self.faults.raised_by[before:]}") from error

    async def _check(self, action: Action, *, made: bool) -> None:
        """Who is there is whole; with ``made`` all that should be is."""
        try:
            await action.check(self, made)
        except AssertionError as error:
            raise Wrong(f"made {made}: {error}; {self.faults.struck}; {self.failures}") from error

    def told(self) -> str:
        return f"{self.faults.struck}; {self.failures}"

    def give_up(self) -> None:
        """A rule is broken: let go of what is open."""
        self.faults.lift()
        if self.session is not None:
            self.session._runtime.storage.kill()


Step: TypeAlias = Callable[[World], Awaitable[object]]
Check: TypeAlias = Callable[[World, bool], Awaitable[None]]


class Action(NamedTuple):
    """Something that writes. ``begin`` is made before anything fails; ``check`` is told whether it was made."""

    name: str
    act: Step
    check: Check
    open: bool = False
    begin: Step | None = None
    only: str = ""
    """The kind of store that it is for."""


def copied(session_id: str, rows: Callable[[Rows], Rows]) -> Check:
    """Of the store: ``s`` and ``t`` as they were, and the copy whole or not at all."""

    async def check(world: World, made: bool) -> None:
        await source(world, made)
        other = world.medium.store()
        there = {each.id for each in await other.list()}
        assert there - {session_id} == {"s", "t"}, there
        assert {each.session_id for each in await other.open_operations()} <= there
        if made:
            assert session_id in there
        if session_id in there:
            assert await rows_of(other, session_id) == rows(world.wanted.rows)
        await other.close()

    return check


async def source(world: World, made: bool) -> None:
    """The session that is open, or the stored one, is as it was."""
    rows = world.wanted.rows
    if world.session is None:
        other = world.medium.store()
        assert await rows_of(other, "s") == rows
        await other.close()
    else:
        assert await rows_in(world.session._runtime.storage) == rows


def same(rows: Rows) -> Rows:
    return rows


async def _copied_out(world: World, made: bool) -> None:
    await source(world, made)
    store = world.at("b")
    there = [each.id for each in await store.list()]
    assert there == ["s"] if made else there in ([], ["s"]), there
    if there:
        assert await rows_of(store, "s") == world.wanted.rows
    await store.close()


async def _exported(world: World, made: bool) -> None:
    await source(world, made)
    path = world.folder / "out" / "file"
    if not made and path.exists():  # put in place already, and not to be removed either
        assert any(each.startswith("unlink") for each in world.faults.struck), "an export that failed left its file"
    assert path.exists() or not made
    if path.exists():
        assert path.read_bytes() == (world.folder / "exported").read_bytes()


async def _deleted(world: World, made: bool) -> None:
    other = world.medium.store()
    there = [each.id for each in await other.list()]
    assert there == ["s"] if made else "s" in there
    if "t" in there:
        assert await rows_of(other, "t") == world.wanted.rows
    await other.close()
    await source(world, made)


async def _delete(world: World) -> None:
    try:
        await world.store.delete("t")
    except UnknownSession:
        if not world.failures:
            raise  # it was there before anything failed


async def _made_first(world: World, made: bool) -> None:
    store = JsonlStore(world.folder / "first") if world.disk else SqliteStore(world.folder / "first.db")
    there = await store.list()
    assert len(there) == 1 if made else len(there) <= 1, there
    for each in there:
        found = await rows_of(store, each.id)
        assert found == Rows([], [], [], {}, 0) and each.metadata == {"n": 1}
    await store.close()


async def _make_first(world: World) -> None:
    name = "first" if world.disk else "first.db"
    options: Any = {"clock": world.medium.clock, "ids": SameId(), "metadata": {"n": 1}}
    async with open_session(world.folder / name, **options):
        pass


async def _search(world: World) -> None:
    found = await world.opened.search("hello")
    ids = {hit.entry_id for hit in found}
    wanted = {row.id for row in world.wanted.rows.entries if b"hello" in row.payload}
    if ids != wanted:
        raise Wrong(f"found {ids}, not {wanted}; {world.failures}")


async def _searched(world: World, made: bool) -> None:
    await source(world, made)
    if made and world.session is not None:
        if world.session._runtime.phase == "faulted":
            await world.session.reopen()
        await _search(world)


async def _drop_index(world: World) -> None:
    storage: Any = world.opened._runtime.storage
    with world.faults.unseen():
        await storage._use.writer.maintain(search_index.drop)


async def _fault(world: World) -> None:
    """A commit has failed."""
    gone = Kind("no disk", (*system.EVERY_CALL, *sqlite_vfs.EVERY_CALL), sqlite3.SQLITE_IOERR)
    world.faults.plan([gone], nth=1, permanent=True)
    try:
        await world.opened.set_value(ValueAddress("app.notes", "a", int), 3)
    except SessionFaulted:
        return
    raise Wrong("a commit on no disk was made")


async def _reopened(world: World, made: bool) -> None:
    if made:
        other = world.medium.store()
        assert (await rows_of(other, "s"))[:3] == world.wanted.rows[:3]
        await other.close()
        if world.session is not None:
            await world.session.set_name("goes on")
            assert world.session.name == "goes on"


async def _dropped(world: World, made: bool) -> None:
    wanted = world.wanted.rows
    other = world.medium.store()
    found = await rows_of(other, "s")
    await other.close()
    assert found[:3] == wanted[:3]
    gone = set(wanted.values) - set(found.values)
    assert all(found.values[each] == wanted.values[each] for each in found.values)
    old = {("result", id) for id in OLD}
    assert gone == old if made else gone <= old, gone


async def _load(world: World) -> None:
    rows = world.wanted.rows
    await world.store.load(paged(rows), last_seq=rows.last_seq, session_id="f")


async def _import(world: World) -> None:
    store: Any = world.store
    await store.import_session(world.folder / "exported", session_id="f")


async def _optimize(world: World) -> None:
    store: Any = world.store
    await store.optimize()


def _branch(rows: Rows) -> Rows:
    tip = rows.values["branch.tip", "other"].decode().strip('"')
    return branch_of(rows, "other", tip)


REOPEN = Action("reopen", lambda world: world.opened.reopen(), _reopened, open=True, begin=_fault)
ACTIONS = (
    Action("load", _load, copied("f", same)),
    Action("import", _import, copied("f", same)),
    Action("fork", lambda world: world.opened.fork(session_id="f"), copied("f", tree_of), open=True),
    Action(
        "fork a branch",
        lambda world: world.opened.fork(branch="other", session_id="f"),
        copied("f", _branch),
        open=True,
    ),
    Action("backup", lambda world: world.opened.backup(world.place("b"), session_id="s"), _copied_out, open=True),
    Action("export", lambda world: world.opened.export(world.folder / "out" / "file"), _exported, open=True),
    Action("delete", _delete, _deleted),
    Action("make the first", _make_first, _made_first),
    Action("compact", lambda world: world.opened.compact_storage(), source, open=True),
    Action("optimize", _optimize, source, only="sqlite"),
    Action("search", _search, _searched, open=True),
    Action("make the index", _search, _searched, open=True, begin=_drop_index, only="sqlite"),
    Action("drop", lambda world: world.opened.drop_results(before=world.wanted.cut), _dropped, open=True),
    REOPEN,
)
