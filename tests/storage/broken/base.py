"""What broken backends are made of: wrappers around a store, each small enough to see what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlane.storage.contract import (
    Commit,
    Probe,
    SessionStorage,
    Store,
)
from agentlane.testing.wrapping import WrappedStorage, WrappedStore

Publish = Callable[[Commit], None] | None


class Broken(WrappedStorage):
    """A storage that may be wrong in one way; reads give lists that may be changed freely."""

    def __init__(self, inner: SessionStorage, memory: dict[str, Any]) -> None:
        super().__init__(inner)
        self.memory = memory
        """Outlives the storage, as what is on a medium does."""


class BrokenStore(WrappedStore):
    """A store whose sessions are of one broken kind."""

    def __init__(self, inner: Store, kind: type[Broken] = Broken) -> None:
        super().__init__(inner)
        self._kind = kind
        self._memory: dict[str, dict[str, Any]] = {}

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        inner = await self.inner.open(session_id, read_only=read_only, probe=probe)
        return self._kind(inner, self._memory.setdefault(session_id, {}))
