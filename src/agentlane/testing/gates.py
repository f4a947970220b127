"""A store whose commits wait until the test lets them go, so that both orders of a race can be played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from agentlane.data.writes import Write
from agentlane.errors import AgentLaneError, InvalidWrite, SessionClosed
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage, Store
from agentlane.testing.wrapping import WrappedStorage, WrappedStore, faulted_by

Hold: TypeAlias = Literal["before_write", "before_report"]
"""Where commits wait: the medium does not have them yet, or has them but nobody was told."""


class Gate:
    """Where the commits of a ``GatedStore`` wait, in the order in which they came. It begins shut."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []
        self._open = False

    @property
    def held(self) -> tuple[str, ...]:
        """The names of the commits that wait, first come first."""
        return tuple(name for name, _ in self._waiting)

    def release(self, count: int = 1) -> None:
        """Let the first ``count`` commits go on. RuntimeError, and none goes, when fewer wait."""
        if len(self._waiting) < count:
            raise RuntimeError(
                f"{len(self._waiting)} commits wait at the gate, not {count}: await gate.arrived() first"
            )
        for _ in range(count):
            _, go_on = self._waiting.pop(0)
            go_on()

    def open(self) -> None:
        """Let all go on who wait, and whoever comes until ``shut``."""
        self._open = True
        while self._waiting:
            self.release()

    def shut(self) -> None:
        """Hold whoever comes from now on."""
        self._open = False

    async def arrived(self, count: int = 1) -> None:
        """Return once at least ``count`` commits wait at the same time."""
        if len(self._waiting) >= count:
            return
        future = asyncio.get_running_loop().create_future()
        watcher = (count, future)
        self._watchers.append(watcher)
        try:
            await future
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def arrive(self, name: str, go_on: Callable[[], None]) -> None:
        """A commit is there; ``go_on`` is called once it may pass, at once when the gate is open."""
        if self._open:
            go_on()
            return
        self._waiting.append((name, go_on))
        for watcher in [each for each in self._watchers if each[0] <= len(self._waiting)]:
            self._watchers.remove(watcher)
            if not watcher[1].done():
                watcher[1].set_result(None)

    def drop(self, go_on: Callable[[], None]) -> None:
        """The commit will never go on: its storage was killed."""
        self._waiting = [each for each in self._waiting if each[1] is not go_on]


class GatedStore(WrappedStore):
    """A store whose commits wait at ``gate``; everything else is handed on.

    With ``before_write`` the medium gets a commit when it is released: until then no read sees it, and one that is
    refused fails then, as S2 allows. With ``before_report`` the medium gets it at once, and what is held is the report:
    ``publish`` and the end of the pending commit. ``close`` waits for commits at the gate as for any other; cancelled,
    it lets them pass. ``kill`` forgets them.
    """

    def __init__(self, inner: Store, *, hold: Hold = "before_write") -> None:
        super().__init__(inner)
        self.gate = Gate()
        self.hold: Hold = hold
        self._open: list[_GatedStorage] = []

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        storage = _GatedStorage(await self.inner.open(session_id, read_only=read_only, probe=probe), self)
        self._open.append(storage)
        return storage

    async def close(self) -> None:
        for storage in self._open:
            await storage.close()
        await self.inner.close()


class _Held:
    """One commit of a gated session, from submit until it is done."""

    def __init__(self, writes: Sequence[Write], publish: Callable[[Commit], None] | None, name: str) -> None:
        self.writes = list(writes)
        self.publish = publish
        self.name = name
        self.pending = Pending()
        self.go_on: Callable[[], None] = _nothing

    def report(self, commit: Commit) -> None:
        """The medium has it, and who waits may know."""
        if not self.pending.done():
            if self.publish is not None:
                self.publish(commit)
            self.pending.succeed(commit)


class _GatedStorage(WrappedStorage):
    """One session of a ``GatedStore``."""

    def __init__(self, inner: SessionStorage, store: GatedStore) -> None:
        super().__init__(inner)
        self._gate = store.gate
        self._hold = store.hold
        self._commits: list[_Held] = []
        self._fault: BaseException | None = None
        self._closed = False
        self._closing = False
        """A close waits for commits that are under way."""

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        if self._closed:
            raise SessionClosed("this session is closed")
        if self._fault is not None:
            raise faulted_by(self._fault)
        if self.read_only:
            return self.inner.submit(writes, publish=publish, name=name)  # which refuses it
        if not writes:
            raise InvalidWrite("a commit without writes")
        held = _Held(writes, publish, name)
        self._commits = [each for each in self._commits if not each.pending.done()]
        if self._hold == "before_write":
            self._commits.append(held)
            held.go_on = lambda: self._hand_on_or_drop(held)
            self._gate.arrive(name, held.go_on)
        else:
            self._commits.append(held)
            try:
                self._hand_on(held, lambda commit: self._await_report(held, commit))
            except BaseException:  # refused, or the end of it all
                self._commits.remove(held)
                raise
        return held.pending

    def inner_faulted(self, error: BaseException) -> None:
        self._fault = error
        for held in self._commits:  # those that the medium was never asked for
            self._gate.drop(held.go_on)
            held.pending.fail(faulted_by(error))
        super().inner_faulted(error)

    async def close(self) -> None:
        self._closed = self._closing = True
        try:
            for held in tuple(self._commits):
                await _done(held.pending)
        except BaseException:
            for held in self._commits:
                self._gate.drop(held.go_on)
                if not held.pending.done():
                    held.go_on()
            raise
        finally:
            self._closing = False
            await self.inner.close()

    def kill(self) -> None:
        self._closed = True
        for held in self._commits:
            self._gate.drop(held.go_on)
            if self._closing:  # or that would wait for what never comes
                held.pending.fail(SessionClosed("this session was killed while it was closed"))
        self._commits.clear()
        self.inner.kill()

    def _hand_on(self, held: _Held, publish: Callable[[Commit], None]) -> None:
        try:
            inner = self.inner.submit(held.writes, publish=publish, name=held.name)
        except AgentLaneError as error:
            if self._hold == "before_report":
                raise
            held.pending.fail(error)
        else:
            inner.on_failure(lambda error: self._failed(held, error))

    def _hand_on_or_drop(self, held: _Held) -> None:
        try:
            self._hand_on(held, held.report)
        except BaseException:  # the end of it all: nobody will end its pending
            self._commits.remove(held)
            raise

    def _await_report(self, held: _Held, commit: Commit) -> None:
        held.go_on = lambda: held.report(commit)
        self._gate.arrive(held.name, held.go_on)

    def _failed(self, held: _Held, error: BaseException) -> None:
        # Reports that the medium gave before it failed come first (S5), though they are held.
        for before in self._commits[: self._commits.index(held)] if self._hold == "before_report" else ():
            self._gate.drop(before.go_on)
            before.go_on()
        held.pending.fail(error)


async def _done(pending: Pending) -> None:
    try:
        await pending
    except AgentLaneError:
        pass


def _nothing() -> None:
    pass
