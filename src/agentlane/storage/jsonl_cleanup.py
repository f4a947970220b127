"""When a session file is cleaned up: when somebody asks, and when enough of it is superseded; one cleanup at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from agentlane.storage.contract import Compacted, SessionInfo
from agentlane.storage.files import FileSystem
from agentlane.storage.index import SessionIndex
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.storage.jsonl_compact import Compaction
from agentlane.storage.places import LENGTH_MASK
from agentlane.waiting import finish

ROW_BYTES = 80
"""About what a row takes in the file beside its payload."""
SHARE = 0.5
MIN_BYTES = 4 << 20

_log = logging.getLogger("agentlane")


class Policy(NamedTuple):
    """A file of at least ``min_bytes`` of which ``share`` is superseded is cleaned up; never with ``share`` None."""

    share: float | None = SHARE
    min_bytes: int = MIN_BYTES


class Owner(Protocol):
    """The session whose file is cleaned up."""

    @property
    def info(self) -> SessionInfo: ...

    async def snapshot(self) -> IndexSnapshot[int]: ...

    def check_going(self) -> None:
        """Raises if the session is closed, being closed, or faulted."""

    async def replace(self, compaction: Compaction) -> None:
        """Let the new file take the old one's place, between two commits, and read from it."""

    def finding(self, text: str) -> None:
        """Tell whoever looks what went wrong."""


class Cleaner:
    """The cleanups of one session file. ``end`` and ``epoch`` are those of its newest published commit."""

    def __init__(
        self, owner: Owner, files: FileSystem, path: Path, policy: Policy, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.end = 0
        self.epoch = 0
        self._owner = owner
        self._files = files
        self._path = path
        self._policy = policy
        self._loop = loop
        self._look_at = policy.min_bytes
        self._task: asyncio.Task[Compacted] | None = None
        self._compaction: Compaction | None = None

    def published(self, index: SessionIndex[int], *, end: int, epoch: int) -> None:
        """A commit is published that ends at ``end``; begin a cleanup if it is time for one."""
        self.end, self.epoch = end, epoch
        if end < self._look_at or self._policy.share is None or self._task is not None:
            return
        self._look_at = end + end // 4
        if end - live_bytes(index) >= self._policy.share * end:
            self._begin().add_done_callback(self._tell)

    async def compact(self) -> Compacted:
        """A cleanup, or the one that is under way. Cancelling whoever waits for it does not stop it."""
        task = self._begin()
        await asyncio.wait({task})
        return task.result()

    async def ended(self) -> None:
        """Wait for a cleanup that is under way to end, however it does."""
        if self._task is not None:
            await finish(asyncio.ensure_future(asyncio.wait({self._task})))

    def give_up(self) -> None:
        """The file is being closed: nothing is left of a cleanup that is under way."""
        if self._compaction is not None:
            self._compaction.give_up()

    def _begin(self) -> asyncio.Task[Compacted]:
        if self._task is None:
            name = f"agentlane cleanup of {self._owner.info.id}"
            self._task = self._loop.create_task(self._compact(), name=name)
            self._task.add_done_callback(self._done)
        return self._task

    def _done(self, task: asyncio.Task[Compacted]) -> None:
        self._task = None
        self._look_at = max(self._policy.min_bytes, 2 * self.end)
        if not task.cancelled():
            task.exception()  # it is retrieved, also where nobody waits any more

    def _tell(self, task: asyncio.Task[Compacted]) -> None:
        """What went wrong with a cleanup that nobody asked for; the session goes on with the file as it is."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            try:
                self._owner.check_going()
            except Exception:
                return  # it was closed meanwhile, or tells of its fault by itself
            text = f"{self._path}: it could not be cleaned up, and stays as it is: {error}"
            self._owner.finding(text)
            _log.warning("%s", text)

    async def _compact(self) -> Compacted:
        self._owner.check_going()
        before = self.end
        snapshot = await self._owner.snapshot()
        try:
            compaction = Compaction(self._files, self._path, snapshot, epoch=self.epoch, cut=self.end)
        except BaseException:
            snapshot.release()
            raise
        self._compaction = compaction
        try:
            await compaction.fill(self._owner.check_going)
            await self._owner.replace(compaction)
        finally:
            self._compaction = None
            compaction.give_up()
        return Compacted(before, compaction.size)


def live_bytes(index: SessionIndex[int]) -> int:
    """About how many bytes a file with nothing superseded would have."""
    values = [place for places in index.values.values() for place in places.values()]
    elements = [place for lists in index.lists.values() for each in lists.values() for place in each.places]
    columns: tuple[Iterable[int], ...] = (index.entry_places, index.ledger_places, values, elements)  # type: ignore[assignment]
    total = 0
    for column in columns:
        for place in column:
            total += (place & LENGTH_MASK) + ROW_BYTES
    return total
