"""Defects that a library without this proof could have, given to one process so that the proof can be seen to fail."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentlane.data.operations import OperationState
from agentlane.driver import queueing
from agentlane.errors import AgentLaneError
from agentlane.machine import batches, planning
from agentlane.storage.files import FileSystem
from agentlane.storage.lock import OwnerLock


def replays_never() -> None:
    """A call that must not run again runs again."""
    require = batches.require

    def lenient(holds: bool, why: str, state: OperationState) -> None:
        require(holds or "must not run again" in why, why, state)

    planning.may_replay = lambda call, now, rules: now.problem is None
    batches.require = lenient


def forgets_request_ids() -> None:
    """A message that is queued again under its request id is another one."""
    queue = queueing.queue

    async def anew(lane: Any, kind: Any, message: Any, request_id: str | None) -> Any:
        return await queue(lane, kind, message, None)

    queueing.queue = anew


def keeps_the_lock() -> None:
    """Who owns a session is what its lock file says, and a dead owner does not take that back."""
    acquire, release = OwnerLock.acquire.__func__, OwnerLock.release  # type: ignore[attr-defined]

    def acquired(cls: type[OwnerLock], lock_path: Path, *, error: type[AgentLaneError], what: str) -> OwnerLock:
        if lock_path.exists() and lock_path.read_bytes():
            raise error(f"{what} is open for writing")
        lock: OwnerLock = acquire(cls, lock_path, error=error, what=what)
        return lock

    def released(self: OwnerLock, *, unlink: bool = False) -> None:
        if self.held:
            os.truncate(self.path, 0)
        release(self, unlink=unlink)

    OwnerLock.acquire = classmethod(acquired)  # type: ignore[assignment, method-assign]
    OwnerLock.release = released  # type: ignore[method-assign]


def writes_late() -> None:
    """A commit is reported while the end of its line is in a buffer of the process, to be written with the next one."""
    late = _Late()
    pread, status_at, close = FileSystem.pread, FileSystem.status_at, FileSystem.close

    def late_pread(self: FileSystem, descriptor: int, size: int, offset: int) -> bytes:
        late.flush()
        return pread(self, descriptor, size, offset)

    def late_close(self: FileSystem, descriptor: int) -> None:
        late.flush()
        close(self, descriptor)

    FileSystem.write = lambda self, descriptor, data: late.write(descriptor, data)  # type: ignore[method-assign]
    FileSystem.pread = late_pread  # type: ignore[method-assign]
    FileSystem.status_at = lambda self, path: late.status(status_at(self, path))  # type: ignore[method-assign]
    FileSystem.close = late_close  # type: ignore[method-assign]


class _Late:
    """The bytes of the one session file that are not written yet."""

    def __init__(self) -> None:
        self._held = b""
        self._descriptor = -1
        self._inode = -1

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.flush()
        self._held, self._descriptor, self._inode = bytes(data), descriptor, os.fstat(descriptor).st_ino
        return len(data)

    def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            os.write(self._descriptor, held)

    def status(self, status: os.stat_result) -> os.stat_result:
        fields = list(status)
        fields[stat.ST_SIZE] += len(self._held) if status.st_ino == self._inode else 0
        return os.stat_result(fields)


def commits_late() -> None:
    """A transaction is reported as committed, and committed when the next one begins."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    class LateConnection(sqlite3.Connection):
        late = False

        @property
        def in_transaction(self) -> bool:
            return super().in_transaction and not self.late

        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql.startswith("COMMIT"):
                self.late = True
                return super().execute("SELECT 1")
            self.catch_up()
            return super().execute(sql, *given)

        def close(self) -> None:
            self.catch_up()
            super().close()

        def catch_up(self) -> None:
            if self.late:
                self.late = False
                super().execute("COMMIT")

    def late_connect(*given: Any, **options: Any) -> sqlite3.Connection:
        return connect(*given, **{**options, "factory": LateConnection})

    sqlite3.connect = late_connect  # type: ignore[assignment]


BREAKS: dict[str, Callable[[], None]] = {
    "replays_never": replays_never,
    "forgets_request_ids": forgets_request_ids,
    "keeps_the_lock": keeps_the_lock,
    "writes_late": writes_late,
    "commits_late": commits_late,
}
