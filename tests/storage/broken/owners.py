"""Storages that break a rule of faults and owners (S9, S22, S23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentlane.data.usage import Stats
from agentlane.data.writes import SetValue, Write
from agentlane.errors import AgentLaneError, SessionClosed
from agentlane.storage.contract import Commit, Pending, SessionStorage
from agentlane.testing.wrapping import WrappedStorage
from tests.storage.broken.base import Broken, Publish


class EpochStays(Broken):
    """S22: every owner has the same epoch."""

    @property
    def epoch(self) -> int:
        return 1


class EpochOfLookers(Broken):
    """S22: opening is enough to raise the epoch."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        memory["epoch"] = self._epoch = memory.get("epoch", 0) + 1

    @property
    def epoch(self) -> int:
        return int(self._epoch)


class WritesAfterClose(Broken):
    """S23: a closed session answers."""

    def stats(self) -> Stats:
        try:
            return super().stats()
        except SessionClosed:
            return Stats()


class ReadsAfterClose(Broken):
    """S23."""

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        try:
            return await super().lists(namespace, prefix)
        except SessionClosed:
            return []


class CloseRunsAway(Broken):
    """S23: close does not wait for what was submitted."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        return _later(self, writes, publish, name)

    async def close(self) -> None:
        self.kill()


class CancelledCloseLeavesTheLock(Broken):
    """S23: a close that is cancelled gives nothing up."""

    async def close(self) -> None:
        await asyncio.sleep(0)
        await super().close()


class KilledStaysLocked(Broken):
    """S21, S23: a killed owner owns on."""

    def kill(self) -> None:
        pass


class FaultsQuietly(Broken):
    """S9, S22: nobody is told of a fault."""

    def inner_faulted(self, error: BaseException) -> None:
        pass


class ForgetsTheFault(Broken):
    """S9, S22: a commit that lost the ownership is tried again, and again."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        try:
            return self.inner.submit(writes, publish=publish, name=name)
        except AgentLaneError as error:
            if error.code != "session_faulted":
                raise
            return Pending()


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


class PublishesWhatFailed(Broken):
    """S9: a commit that failed is published."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, publish=publish, name=name)
        if publish is not None:
            pending.on_failure(lambda error: publish(Commit(99, 99, self.inner.stats())))
        return pending


class ShowsWhatFailed(Broken):
    """S6, S9: reads see a commit that failed."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        self._shown: dict[str, bytes] = {}

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        def show(error: BaseException) -> None:
            self._shown |= {each.address.key: each.payload for each in writes if isinstance(each, SetValue)}

        pending = self.inner.submit(writes, publish=publish, name=name)
        pending.on_failure(show)
        return pending

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
        found = await super().values(namespace, prefix, **page)
        return {key: self._shown.get(key, value) for key, value in found.items()}


class ReportsTheFaultFirst(Broken):
    """S9: ``on_fault`` comes before the commits have failed."""

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        outer = Pending()

        def succeed(done: Commit) -> None:
            if publish is not None:
                publish(done)
            outer.succeed(done)

        def fail(error: BaseException) -> None:
            asyncio.get_running_loop().call_soon(outer.fail, error)

        self.inner.submit(writes, publish=succeed, name=name).on_failure(fail)
        return outer


class ReportsTheFaultTwice(Broken):
    """S9."""

    def inner_faulted(self, error: BaseException) -> None:
        super().inner_faulted(error)
        super().inner_faulted(error)


class HalfOfTheFailedCommit(Broken):
    """S10: what a failed commit had written before it failed is there after reopening."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner, memory)
        half = memory.pop("half", None)
        if half and not inner.read_only:
            inner.submit(half)

    def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
        pending = self.inner.submit(writes, publish=publish, name=name)
        pending.on_failure(lambda error: self.memory.update(half=list(writes[:2])))
        return pending
