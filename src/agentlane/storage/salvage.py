"""What can still be read of a stored session, whatever became of its bytes, and what is wrong with it.

A salvage reads the medium itself, beside whoever owns the session, and changes nothing: not a byte, not a lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from agentlane.data.findings import FINDINGS_MAX, Finding
from agentlane.storage.contract import Row, SessionInfo, SessionStorage, Snapshot


class Findings:
    """Findings as they come; each once, and no more of them than a report holds."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}
        self.more = 0
        """How many came behind the last one that is kept."""

    def add(self, finding: Finding) -> None:
        """One more. One that is there already does nothing: what is read twice is found twice."""
        if finding in self._found:
            return
        if len(self._found) < FINDINGS_MAX:
            self._found[finding] = None
        else:
            self.more += 1

    def __len__(self) -> int:
        return len(self._found) + self.more

    @property
    def all(self) -> tuple[Finding, ...]:
        return tuple(self._found)


class Salvage(Protocol):
    """All of a session that can be read. ``findings`` are complete once ``pages`` were read to their end."""

    @property
    def info(self) -> SessionInfo:
        """What is known of the session; where its place is damaged, without metadata and made at its first commit."""
        ...

    @property
    def last_seq(self) -> int:
        """At least the highest sequence number of the rows."""
        ...

    @property
    def trusted_from(self) -> int:
        """Nothing that was written under this number or a higher one is lost; 0 if nothing is lost at all.

        Known once ``pages`` were read to their end. What is lost under a lower one may have changed, or removed, any
        value that is there.
        """
        ...

    @property
    def findings(self) -> Findings: ...

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        """Every row that can be read, in the order and pages of ``Snapshot.pages``; may be called again.

        Sequence numbers rise and no id comes twice, as ``Store.load`` wants it; but an entry's parent may be missing.
        """
        ...

    async def close(self) -> None:
        """Give up what rows are read from; twice does nothing."""
        ...

    def release(self) -> None:
        """``close`` where nothing can be awaited."""
        ...


class SnapshotSalvage:
    """A salvage of a session that opens: its snapshot. Nothing is wrong with what it is stored in."""

    def __init__(self, storage: SessionStorage, snapshot: Snapshot) -> None:
        """Take over both."""
        self._storage = storage
        self._snapshot = snapshot
        self.trusted_from = 0
        self.findings = Findings()

    @property
    def info(self) -> SessionInfo:
        return self._snapshot.info

    @property
    def last_seq(self) -> int:
        return self._snapshot.last_seq

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        return self._snapshot.pages()

    async def close(self) -> None:
        try:
            await self._snapshot.close()
        finally:
            await self._storage.close()

    def release(self) -> None:
        self._storage.kill()


class NothingSalvaged:
    """A salvage of what holds nothing that can be read: findings alone."""

    def __init__(self, session_id: str, findings: Findings) -> None:
        self.info = SessionInfo(id=session_id, created_at=0)
        self.last_seq = 0
        self.trusted_from = 0
        self.findings = findings

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        return _NoPages()

    async def close(self) -> None:
        """Nothing is held."""

    def release(self) -> None:
        """Nothing is held."""


class _NoPages:
    def __aiter__(self) -> _NoPages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        raise StopAsyncIteration
