"""A workload on a store whose medium fails: after each failure everything that was told is compared with what is there.

The rules are those of the contract: memory is never ahead of the disk; what was reported is there when the session is
opened again; what failed is there whole or not at all, and nothing behind what is not there; errors name the cause;
work goes on when the cause is mended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TypeVar

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import AgentLaneError, CorruptSession, InvalidWrite, SessionFaulted, StoreBusy, UnsupportedFormat
from agentlane.storage.contract import Pending, SessionStorage
from agentlane.testing.conformance.model import ReferenceSession, difference, dump
from tests.storage.faults.media import Medium
from tests.storage.faults.planned import Faults

T = TypeVar("T")
NAMESPACES = ("app.test", "op.meta")
REOPENS_MAX = 3
"""How often a session that failed is opened before the cause is mended."""


def at(key: str) -> Address:
    return Address("app.test", key)


def entry(number: int) -> InsertEntry:
    return InsertEntry(f"e{number}", f"e{number - 1}" if number else None, "user", b'{"entry":%d}' % number)


def usage(number: int) -> InsertUsage:
    return InsertUsage(UsageRow(id=f"u{number}", kind="attempt", usage=Usage(input_tokens=3, output_tokens=number)))


def commits() -> list[list[list[Write]]]:
    """Every kind of write; those of one group are submitted together."""
    meta = b'{"lane":"main","started_at":1}'
    large = b'"%s"' % (b"x" * 3000)  # more than a page
    return [
        [[entry(0), usage(0), SetValue(at("a"), b"0"), AppendElement(at("l"), b"0")]],
        [
            [SetValue(Address("op.meta", "o1"), meta), SetValue(at("b"), large)],
            [entry(1), AppendElement(at("l"), b"1")],
        ],
        [[DeleteValue(at("a")), AppendElement(at("k"), large)], [DeleteList(at("l")), usage(1)], [entry(2)]],
        [[InsertEntry("other", "e0", "user", b"{}"), SetValue(at("a"), b"2")]],
    ]


LAST: list[list[Write]] = [
    [entry(3), DeleteValue(at("b")), DeleteList(at("k"))],
    [
        usage(2),
        DeleteValue(Address("op.meta", "o1")),
        SetValue(Address("op.meta", "o2"), b'{"lane":"b","started_at":2}'),
    ],
]


class Wrong(AssertionError):
    """A rule is broken."""


class Run:
    """One go of the workload. ``failures`` is the history of what failed."""

    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self.faults = medium.faults
        self.store = medium.store()
        self.model = ReferenceSession()
        self.failures: list[str] = []
        self._storage: SessionStorage | None = None
        self._told: list[BaseException] = []

    async def make(self) -> None:
        """Sessions are made, listed and deleted."""
        await self._create("s")
        await self._listed("s")
        await self._create("t")
        await self._delete("t")
        self.faults.lift()
        await self._open()
        await self._expect("at the end")
        await self._delete_for_good()

    async def work(self) -> None:
        """A session is opened, written with every kind of write, read, closed and opened again."""
        await self._open()
        for group in commits():
            await self._commit(group)
        await self._expect("while it is open")
        await self._close()
        await self._open()
        await self._expect("after it was opened again")
        await self._commit(LAST)
        await self._close()
        await self._operations()
        self.faults.lift()
        await self._open()
        await self._expect("at the end")
        await self._close()
        await self.store.close()

    def give_up(self) -> None:
        """A rule is broken: let go of what is open."""
        self.faults.lift()
        if self._storage is not None:
            self._storage.kill()

    # Steps. Each is tried, and where it fails, judged; then the cause is mended and it is tried again.

    async def _create(self, name: str) -> None:
        try:
            await self.store.create(name)
        except Exception as error:
            self._judge(f"create {name}", error)
            self.faults.lift()
            with suppress(InvalidWrite):  # it is there, whole, or it is not
                await self.store.create(name)

    async def _delete(self, name: str) -> None:
        try:
            await self.store.delete(name)
        except Exception as error:
            self._judge(f"delete {name}", error)
            self.faults.lift()
            if name in [each.id for each in await self.store.list()]:
                there = await self.store.open(name)
                self._same(await dump(there, NAMESPACES), ReferenceSession(), f"{name}, half deleted")
                await there.close()
                await self.store.delete(name)

    async def _delete_for_good(self) -> None:
        await self._close()
        await self.store.delete("s")
        if [each.id for each in await self.store.list()]:
            raise Wrong("a deleted session is listed")
        await self.store.close()

    async def _listed(self, name: str) -> None:
        listed = await self._read("list", self.store.list)
        if name not in [each.id for each in listed]:
            raise Wrong(f"session {name} is not listed")

    async def _operations(self) -> None:
        """What is open, without opening the session."""
        found = await self._read("open operations", self.store.open_operations)
        want = list(self.model.values("op.meta"))
        if [each.operation_id for each in found] != want:
            raise Wrong(f"open operations are {found}, not {want}")

    async def _read(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await read()
        except Exception as error:
            self._judge(what, error)
            self.faults.lift()
            return await read()

    async def _open(self) -> None:
        for attempt in range(REOPENS_MAX + 1):
            try:
                self._storage = await self.store.open("s")
                break
            except Exception as error:
                self._judge("open", error)
                if attempt == REOPENS_MAX - 1:
                    self.faults.lift()
        self._told = []
        self._opened.on_fault = self._told.append

    async def _close(self) -> None:
        try:
            await self._opened.close()
        except Exception as error:
            self._judge("close", error)
        self._storage = None

    async def _expect(self, when: str) -> None:
        """All reads give what was reported."""
        found = await self._read(f"read {when}", lambda: dump(self._opened, NAMESPACES))
        self._same(found, self.model, when)

    async def _commit(self, group: list[list[Write]]) -> None:
        """Submit a group at once; what fails of it is looked for after opening again, and what is missing repeated."""
        for attempt in range(REOPENS_MAX + 2):
            if not group:
                return
            if attempt == REOPENS_MAX:
                self.faults.lift()
            group = await self._attempt(group)
        raise Wrong(f"{len(group)} commits still fail though nothing is wrong any more: {self.failures}")

    async def _attempt(self, group: list[list[Write]]) -> list[list[Write]]:
        """Which commits of the group are not there afterwards."""
        self.medium.clock.advance(1)
        published: list[int] = []
        pendings: list[Pending] = []
        refused: list[Exception] = []
        storage = self._opened
        for writes in group:
            try:
                pendings.append(storage.submit(writes, publish=lambda commit: published.append(commit.first_seq)))
            except SessionFaulted as error:  # the one before it has failed inside submit
                if not self._told:
                    raise Wrong(f"submit raises {error!r} and nobody was told of a fault") from error
                refused.append(error)
        made = 0
        failed: list[Exception] = []
        for writes, pending in zip(group, pendings, strict=False):
            try:
                commit = await pending
            except Exception as error:
                failed.append(error)
                continue
            if failed:
                raise Wrong("a commit was reported behind one that failed")
            self.model.commit(writes, commit)
            made += 1
        if len(published) != made:
            raise Wrong(f"{len(published)} commits were published, and {made} reported")
        left = group[made:]
        if not left:
            return []
        failed += refused
        for error in failed:
            self._judge("commit", error)
        if all(isinstance(error, StoreBusy) for error in failed):
            await self._expect("after StoreBusy")
            return left
        await self._faulted(failed)
        return await self._again(left)

    async def _faulted(self, failed: Sequence[Exception]) -> None:
        """The storage is faulted: it says so, refuses, and reads what was published."""
        causes = {str(error.__cause__) for error in failed}
        if len(self._told) != 1 or causes != {str(self._told[0])}:
            raise Wrong(f"commits failed for {causes}, and told was {self._told}")
        try:
            self._opened.submit([SetValue(at("z"), b"0")])
        except SessionFaulted as error:
            if str(error.__cause__) not in causes:
                raise Wrong(f"refused for {error.__cause__!r} after {causes}") from error
        else:
            raise Wrong("a faulted session takes commits")
        with self.faults.unseen():
            self._same(await dump(self._opened, NAMESPACES), self.model, "reads of a faulted session")

    async def _again(self, left: list[list[Write]]) -> list[list[Write]]:
        """Open again: the commits that failed are there as far as a first part of them goes, each whole."""
        at_ms = self.medium.clock.now_ms()
        await self._close()
        await self._open()
        found = await self._read("read after a fault", lambda: dump(self._opened, NAMESPACES))
        candidates, model = [deepcopy(self.model)], deepcopy(self.model)
        for writes in left:
            model.apply(writes, first_seq=model.next_seq, at=at_ms)
            candidates.append(deepcopy(model))
        differences = [difference(found, each.dump(NAMESPACES)) for each in candidates]
        if None not in differences:
            raise Wrong(f"neither with nor without what failed: {differences}; failures: {self.failures}")
        there = differences.index(None)
        self.model = candidates[there]
        return left[there:]

    # Judgements.

    @property
    def _opened(self) -> SessionStorage:
        if self._storage is None:
            raise Wrong("no session is open")
        return self._storage

    def _same(self, found: object, model: ReferenceSession, when: str) -> None:
        if (different := difference(found, model.dump(NAMESPACES))) is not None:
            raise Wrong(f"{when}: {different}; failures: {self.failures}")

    def _judge(self, what: str, error: Exception) -> None:
        self.failures.append(f"{what}: {error!r}")
        judge(self.faults, what, error)


def judge(faults: Faults, what: str, error: Exception) -> None:
    """An error of the medium is told as one, and names what happened."""
    if not faults.struck:
        raise Wrong(f"{what} failed and no call had: {error!r}") from error
    if isinstance(error, CorruptSession | UnsupportedFormat) or not isinstance(error, OSError | AgentLaneError):
        raise Wrong(f"{what}: a failing medium is told as {error!r}") from error
    if isinstance(error, StoreBusy) and faults.codes & {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL}:
        return
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        if cause in chain:
            raise Wrong(f"{what}: the causes of {error!r} go in a circle") from error
        chain.append(cause)
    if any(each in faults.raised for each in chain):
        return
    codes = {each.sqlite_errorcode & 0xFF for each in chain if isinstance(each, sqlite3.Error)}
    if not codes & {code & 0xFF for code in faults.codes}:
        raise Wrong(f"{what}: {error!r} does not name its cause") from error
