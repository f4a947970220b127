"""Storages that break a rule of commits (S1-S8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from agentlane.data.writes import (
    Address,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import AgentLaneError, InvalidWrite
from agentlane.storage.contract import (
    Commit,
    EntryRow,
    Pending,
    SessionStorage,
)
from agentlane.testing.wrapping import WrappedStorage
from tests.storage.broken.base import Broken, Publish


class HidesThatPublishRaised(Broken):
    """S9: a commit whose publish raised succeeds, and the session goes on."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        def quiet(done: Commit) -> None:
            if publish is not None:
                with suppress(Exception):
                    publish(done)

        return self.inner.submit(writes, publish=quiet, name=name)


class PublishesOutOfOrder(Broken):
    """S5: the reports of two commits are swapped."""

    _held: Callable[[], None] | None = None

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        outer = Pending()

        def swap(done: Commit) -> None:
            def report() -> None:
                if publish is not None:
                    publish(done)
                outer.succeed(done)

            if self._held is None:
                self._held = report
                asyncio.get_running_loop().call_soon(self._flush)
            else:
                report()
                self._flush()

        self.inner.submit(writes, publish=swap, name=name)
        return outer

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held()

    async def close(self) -> None:
        self._flush()
        await super().close()


class PublishesTwice(Broken):
    """S5."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        def twice(done: Commit) -> None:
            if publish is not None:
                publish(done)
                publish(done)

        return self.inner.submit(writes, publish=twice, name=name)


class PublishesForWaitersOnly(Broken):
    """S5: who drops the pending commit is never told."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        class Lazy(Pending):
            def __await__(self) -> Any:
                if publish is not None and not told:
                    told.append(True)
                    publish(self.result())
                return super().__await__()

        told: list[bool] = []
        lazy = Lazy()
        lazy.succeed(self.inner.submit(writes, name=name).result())
        return lazy


class PublishesLate(Broken):
    """S5: the pending commit is done before it is published."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, name=name)
        if publish is not None:
            asyncio.get_running_loop().call_soon(publish, pending.result())
        return pending


class ReadsBehindPublication(Broken):
    """S6: an entry can be read only once the event loop has turned."""

    _fresh: set[str]

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        fresh = self.__dict__.setdefault("_fresh", set())
        ids = [each.id for each in writes if isinstance(each, InsertEntry)]
        fresh.update(ids)
        asyncio.get_running_loop().call_later(0, lambda: asyncio.get_running_loop().call_soon(fresh.clear))
        return self.inner.submit(writes, publish=publish, name=name)

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]:
        fresh = self.__dict__.setdefault("_fresh", set())
        return [None if row and row.id in fresh else row for row in await super().entries(ids)]


class CommitsInHalves(Broken):
    """S1: a commit is two commits, told as one."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        half = len(writes) // 2
        if half and not any(isinstance(each, InsertEntry) for each in writes[half:]):
            first = self.inner.submit(writes[:half]).result()

            def whole(done: Commit) -> None:
                if publish is not None:
                    publish(Commit(first.first_seq, first.at, done.stats))

            self.inner.submit(writes[half:], publish=whole, name=name)
            pending = Pending()
            pending.succeed(Commit(first.first_seq, first.at, self.inner.stats()))
            return pending
        return self.inner.submit(writes, publish=publish, name=name)


class HalfCommitOfRefused(Broken):
    """S1, S2: what stands before the bad write of a refused commit stays."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        try:
            return self.inner.submit(writes, publish=publish, name=name)
        except InvalidWrite:
            good = [each for each in writes if isinstance(each, SetValue)]
            if good:
                self.inner.submit(good)
            raise


class SwallowsRefusals(Broken):
    """S2: a refused commit is reported as done."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        try:
            return self.inner.submit(writes, publish=publish, name=name)
        except InvalidWrite:
            pending = Pending()
            pending.succeed(Commit(1, 1, self.inner.stats()))
            return pending


class RefusalsTakeSeqs(Broken):
    """S2: a refused commit uses up sequence numbers."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        try:
            return self.inner.submit(writes, publish=publish, name=name)
        except InvalidWrite:
            if writes:
                self.inner.submit([DeleteValue(Address("no", "where"))])
            raise


class TakesEmptyCommits(Broken):
    """S2."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        return self.inner.submit(writes or [DeleteValue(Address("no", "where"))], publish=publish, name=name)


class TakesUnknownParents(Broken):
    """S2: an entry whose parent is not there becomes a root."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        known = self.memory.setdefault("ids", set())
        taken: list[Write] = []
        for each in writes:
            if isinstance(each, InsertEntry):
                if each.parent_id not in known:
                    each = each._replace(parent_id=None)
                known.add(each.id)
            taken.append(each)
        return self.inner.submit(taken, publish=publish, name=name)


class TakesParentsThatComeLater(Broken):
    """S2: sorts a commit so that parents come first."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        inserted = {each.id for each in writes if isinstance(each, InsertEntry)}

        def depends(each: Write) -> bool:
            return isinstance(each, InsertEntry) and each.parent_id in inserted

        try:
            return self.inner.submit(writes, publish=publish, name=name)
        except InvalidWrite:
            return self.inner.submit(sorted(writes, key=depends), publish=publish, name=name)


class TakesIdsTwiceAcrossKinds(Broken):
    """S2: entries and usage rows have id spaces of their own."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        rows = self.memory.setdefault("rows", set())
        taken: list[Write] = []
        for each in writes:
            if isinstance(each, InsertUsage):
                if each.row.id in rows:
                    raise InvalidWrite("used")
                rows.add(each.row.id)
                continue
            taken.append(each)
        return self.inner.submit(taken or [DeleteValue(Address("no", "where"))], publish=publish, name=name)


class UpsertsEntries(Broken):
    """S2, S12: an id that is used again is left out quietly."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        seen = self.memory.setdefault("seen", set())
        taken: list[Write] = []
        for each in writes:
            if isinstance(each, InsertEntry):
                if each.id in seen:
                    continue
                seen.add(each.id)
            taken.append(each)
        return self.inner.submit(taken or [DeleteValue(Address("no", "where"))], publish=publish, name=name)


class ReusesSeqs(Broken):
    """S3: reopened, it counts from the highest seq that is still to be seen."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        self._back = 0
        gone = memory.get("gone", 0)
        if gone:
            self._back = gone

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        def shifted(done: Commit) -> Commit:
            return done._replace(first_seq=done.first_seq - self._back)

        pending = self.inner.submit(writes, publish=lambda done: publish and publish(shifted(done)), name=name)
        if all(isinstance(each, DeleteValue | DeleteList | SetValue) for each in writes):
            self.memory["gone"] = len(writes)
        other = Pending()
        other.succeed(shifted(pending.result()))
        return other


class SeqPerCommit(Broken):
    """S3: one sequence number for a whole commit."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        count = self.memory["count"] = self.memory.get("count", 0) + 1
        done = self.inner.submit(writes, name=name).result()._replace(first_seq=count)
        if publish is not None:
            publish(done)
        pending = Pending()
        pending.succeed(done)
        return pending


class WrongStatsInFlight(Broken):
    """S3, S5: a commit has the stats of when it was looked at, not of when it was submitted."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        storage = self.inner

        class Late(Pending):
            def result(self) -> Commit:
                return super().result()._replace(stats=storage.stats())

        late = Late()
        late.succeed(storage.submit(writes, publish=publish, name=name).result())
        return late


class CancelsWithTheWaiter(Broken):
    """S8: the commit is made by whoever awaits it."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        inner, kept = self.inner, list(writes)

        class Task(Pending):
            def __await__(self) -> Any:
                yield from asyncio.sleep(0).__await__()
                if not self.done():
                    self.succeed((yield from inner.submit(kept, publish=publish, name=name).__await__()))
                return self.result()

        return Task()


class ReportsFromTheGrave(Broken):
    """S7: what was in flight is published after the kill."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        def late(done: Commit) -> None:
            asyncio.get_running_loop().call_soon(publish or (lambda done: None), done)

        return self.inner.submit(writes, publish=late, name=name)


class LosesTheLastCommitWhenKilled(Broken):
    """S7: a commit is reported before the medium has it."""

    _waiting: list[Write] | None = None

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        if self._waiting is not None:
            self.inner.submit(self._waiting)
        self._waiting = None
        pending = self.inner.submit(writes[:-1] or writes, publish=publish, name=name)
        if len(writes) > 1:
            self._waiting = list(writes[-1:])
        return pending

    async def value(self, address: Address) -> bytes | None:
        self._flush()
        return await super().value(address)

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        self._flush()
        return await super().values(namespace, prefix, **page)

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]:
        self._flush()
        return await super().scan(after_seq=after_seq, limit=limit)

    async def close(self) -> None:
        self._flush()
        await super().close()

    def _flush(self) -> None:
        if self._waiting is not None:
            try:
                self.inner.submit(self._waiting)
            except AgentLaneError:
                pass
            self._waiting = None


def _later(storage: WrappedStorage, writes: Sequence[Write], publish: Publish, name: str) -> Pending:
    """A commit that is handed on when the loop turns."""
    pending, kept = Pending(), list(writes)

    def go_on() -> None:
        try:
            done = storage.inner.submit(kept, publish=publish, name=name).result()
        except AgentLaneError as error:
            pending.fail(error)
        else:
            pending.succeed(done)

    asyncio.get_running_loop().call_soon(go_on)
    return pending
