"""Stores that break a rule of sessions and owners (S19-S23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentlane.data.writes import (
    Address,
    SetValue,
    Write,
)
from agentlane.errors import AgentLaneError
from agentlane.storage.contract import (
    OpenOperation,
    Pending,
    Probe,
    SessionInfo,
    SessionStorage,
    Store,
)
from agentlane.testing.wrapping import WrappedStorage
from tests.storage.broken.base import BrokenStore, Publish


class OpenCreates(BrokenStore):
    """S19."""

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        if session_id not in [each.id for each in await self.inner.list()]:
            await self.inner.create(session_id)
        return await super().open(session_id, read_only=read_only, probe=probe)


class CreatesTwice(BrokenStore):
    """S19: an id that exists is given out again."""

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        there = {each.id: each for each in await self.inner.list()}
        return there[session_id] if session_id in there else await super().create(session_id, metadata=metadata)


class ForgetsMetadata(BrokenStore):
    """S19."""

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        return await super().create(session_id)


class ListsNewestFirst(BrokenStore):
    """S19."""

    async def list(self) -> Sequence[SessionInfo]:
        return (await super().list())[::-1]


class MixesSessions(BrokenStore):
    """S19: the values of all sessions are one."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._shared: dict[Address, bytes] = {}

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        storage = await super().open(session_id, read_only=read_only, probe=probe)
        shared = self._shared

        class Mixed(WrappedStorage):
            async def value(self, address: Address) -> bytes | None:
                return shared.get(address) or await super().value(address)

            async def values(self, namespace: str, prefix: str = "", **page: Any) -> dict[str, bytes]:
                found = await super().values(namespace, prefix, **page)
                for address, payload in shared.items():
                    if address.namespace == namespace and address.key in found:
                        found[address.key] = payload
                return found

            def submit(self, writes: Sequence[Write], *, publish: Publish = None, name: str = "commit") -> Pending:
                pending = super().submit(writes, publish=publish, name=name)
                for each in writes:
                    if isinstance(each, SetValue):
                        shared[each.address] = each.payload
                return pending

        return Mixed(storage)


class DeletesWhatIsOpen(BrokenStore):
    """S21."""

    async def delete(self, session_id: str) -> None:
        try:
            await super().delete(session_id)
        except AgentLaneError as error:
            if error.code != "session_owned":
                raise


class DeleteKeepsOperations(BrokenStore):
    """S20: a deleted session is still among those with open operations."""

    _kept: tuple[OpenOperation, ...] = ()

    async def delete(self, session_id: str) -> None:
        before = await super().open_operations()
        await super().delete(session_id)
        self._kept = tuple(each for each in before if each.session_id == session_id)

    async def open_operations(self) -> Sequence[OpenOperation]:
        return [*await super().open_operations(), *self._kept]


class OperationsBySession(BrokenStore):
    """S20: operations come session by session."""

    async def open_operations(self) -> Sequence[OpenOperation]:
        return sorted(await super().open_operations(), key=lambda each: (each.session_id, each.started_at))


class OperationsOnceOpen(BrokenStore):
    """S20: an operation that was ever open stays in the list."""

    _seen: dict[str, OpenOperation]

    async def open_operations(self) -> Sequence[OpenOperation]:
        seen = self.__dict__.setdefault("_seen", {})
        for each in await super().open_operations():
            seen.setdefault(each.operation_id, each)
        return sorted(seen.values(), key=lambda each: each.started_at)


class TwoOwners(BrokenStore):
    """S21: whoever comes gets the session."""

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        try:
            return await super().open(session_id, read_only=read_only, probe=probe)
        except AgentLaneError as error:
            if error.code != "session_owned":
                raise
            return await super().open(session_id, read_only=True, probe=probe)


class ReadersOwn(BrokenStore):
    """S21: a reader keeps the owner out."""

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        return await super().open(session_id, probe=probe)


class StoreCloseLeavesSessions(BrokenStore):
    """S23: sessions of a closed store go on."""

    async def close(self) -> None:
        pass
