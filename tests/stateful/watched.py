"""A store that tells when it is at work and which calls have durable outcomes, and a probe that can be made deaf."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentlane.data import addresses, codec
from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.writes import SetValue, Write
from agentlane.ids import call_id
from agentlane.storage import Store
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage
from agentlane.testing import FaultPlan
from agentlane.testing.wrapping import WrappedStorage, WrappedStore
from tests.stateful.effects import Effects

QUIET_TURNS = 25
"""Turns of the event loop in which nothing happens, after which nothing more will happen by itself."""
HANGS_S = 10
"""A medium that has not answered in this time never will; nothing else depends on time."""


class Stir:
    """Whether anything is under way: what a medium is at, and whether something went on since the last look."""

    def __init__(self) -> None:
        self.busy = 0
        self.events = 0
        self._tick = asyncio.Event()

    def happened(self) -> None:
        """Something went on: whoever waits for quiet looks again."""
        self.events += 1
        self._tick.set()

    async def during(self, work: Awaitable[Any]) -> Any:
        """``work`` is something that the medium is at."""
        self.busy += 1
        try:
            return await work
        finally:
            self.busy -= 1
            self.happened()

    async def quiet(self, plan: FaultPlan) -> None:
        """Return once nothing more happens by itself, or the process is dead by ``plan``."""
        turns = 0
        while turns < QUIET_TURNS and plan.died_at is None:
            if self.busy > 0:
                self._tick.clear()
                await asyncio.wait_for(self._tick.wait(), HANGS_S)
                turns = 0
                continue
            before = self.events
            await asyncio.sleep(0)
            turns = turns + 1 if self.events == before else 0


class Ears:
    """The probe of a life: its plan is told of boundaries, unless it is deaf to them."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self.deaf = False
        """Several things go on, and their boundaries have no order."""
        self.faulted = False
        """A write failed: what is left of it is no work of the process."""

    def reached(self, boundary: str) -> None:
        if not self.faulted and not self.deaf:
            self._plan.reached(boundary)


class WatchedStore(WrappedStore):
    """A store that tells when it is at work, and what is durable."""

    def __init__(self, inner: Store, stir: Stir, effects: Effects, ears: Ears) -> None:
        super().__init__(inner)
        self._stir = stir
        self._effects = effects
        self._ears = ears

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        inner = await self._stir.during(super().open(session_id, read_only=read_only, probe=probe))
        storage = WatchedStorage(inner, self._stir, self._effects, self._ears)
        for payload in (await storage.values(addresses.OP_STATE)).values():
            storage.take_state(payload)
        return storage


class WatchedStorage(WrappedStorage):
    def __init__(self, inner: SessionStorage, stir: Stir, effects: Effects, ears: Ears) -> None:
        super().__init__(inner)
        self._stir = stir
        self._effects = effects
        self._ears = ears

    def inner_faulted(self, error: BaseException) -> None:
        self._ears.faulted = True
        super().inner_faulted(error)

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        stir = self._stir

        def published(commit: Commit) -> None:
            stir.busy -= 1
            if publish is not None:
                publish(commit)
            for write in writes:
                if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                    self.take_state(write.payload)
            told.succeed(commit)
            stir.happened()

        def failed(error: BaseException) -> None:
            stir.busy -= 1
            told.fail(error)
            stir.happened()

        told = Pending()
        stir.busy += 1
        try:
            self.inner.submit(writes, publish=published, name=name).on_failure(failed)
        except BaseException:
            stir.busy -= 1
            raise
        return told

    def take_state(self, payload: bytes) -> None:
        state = codec.STATE.decode(payload, "op.state")
        if isinstance(state, Tools):
            settled = {i for i, call in enumerate(state.calls) if isinstance(call, OutcomeReady | Placed)}
            self._effects.durable({call_id(state.answer, index) for index in settled})

    async def entries(self, ids: Sequence[str]) -> Any:
        return await self._stir.during(super().entries(ids))

    async def path(self, start: str, **options: Any) -> Any:
        return await self._stir.during(super().path(start, **options))

    async def scan(self, **options: Any) -> Any:
        return await self._stir.during(super().scan(**options))

    async def usage(self, **options: Any) -> Any:
        return await self._stir.during(super().usage(**options))

    async def value(self, address: Any) -> Any:
        return await self._stir.during(super().value(address))

    async def values(self, namespace: str, prefix: str = "", **page: Any) -> Any:
        return await self._stir.during(super().values(namespace, prefix, **page))

    async def elements(self, address: Any, **options: Any) -> Any:
        return await self._stir.during(super().elements(address, **options))

    async def close(self) -> None:
        await self._stir.during(super().close())
