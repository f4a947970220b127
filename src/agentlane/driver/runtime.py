"""What the drivers of one open session share: its storage, clock, ids and tasks, and whether it still goes on."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agentlane.clock import Clock
from agentlane.data import features
from agentlane.data.writes import Write
from agentlane.driver.feed import Hub
from agentlane.driver.outside import Outside
from agentlane.driver.threads import Threads
from agentlane.errors import AgentLaneError, ReadOnlySession, SessionClosed, SessionFaulted, WrongLoop, WrongProcess
from agentlane.ids import IdSource
from agentlane.storage.contract import Commit, Pending, Probe, SessionStorage

if TYPE_CHECKING:
    import random

log = logging.getLogger("agentlane")

Phase: TypeAlias = Literal["open", "closing", "closed", "faulted"]

FINDINGS_MAX = 1_000
CLEAN_UP_GRACE_MS = 2_000


class Runtime:
    """One open session as its drivers see it. All use is on one event loop of one process."""

    def __init__(
        self, storage: SessionStorage, *, clock: Clock, ids: IdSource, probe: Probe | None, rng: random.Random
    ) -> None:
        self.storage = storage
        self.clock = clock
        self.ids = ids
        self.probe = probe
        self.rng = rng
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.threads = Threads()
        self.phase: Phase = "open"
        self.cause: BaseException | None = None
        self.killed = False
        """The fault is a kill by a probe: nothing is wound down."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.findings: list[str] = []
        self.clean_ups: dict[asyncio.Task[Any], str] = {}
        """Tasks whose effect has reported, and whose foreign code has not ended: what each is, for the findings."""
        self.open_operations: dict[str, str] = {}
        """Open operations, and those whose accept is being committed: operation id to lane."""
        self.marks = features.Marks()
        self.settled_count = 0
        self.hub = Hub(self)
        self.outside = Outside()
        self.on_fault: list[Callable[[BaseException], None]] = []
        self._pid = os.getpid()
        self._watch_storage()

    @property
    def session_id(self) -> str:
        return self.storage.info.id

    def replace_storage(self, storage: SessionStorage) -> None:
        """Take a new open of the store after a fault. Nothing but its reader may use it before ``resume``."""
        self.storage = storage
        self._watch_storage()

    def resume(self) -> None:
        """What the new open holds is read: go on."""
        self.phase = "open"
        self.cause = None
        self.killed = False

    def check_place(self) -> None:
        """Raise unless this is the process and the event loop of the session."""
        self.check_process()
        if _running_loop() is not self.loop:
            way_out = "that loop is closed, so open it anew" if self.loop.is_closed() else "use it there"
            raise WrongLoop(f"session {self.session_id!r} belongs to the event loop it was opened on; {way_out}")

    def check_process(self) -> None:
        """Raise in a forked child of the session's process."""
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"session {self.session_id!r} was opened in process {self._pid}; open it anew in this one"
            )

    def check(self) -> None:
        """Raise unless the session can be used here and now."""
        self.check_place()
        if self.phase in ("closing", "closed"):
            raise SessionClosed(f"session {self.session_id!r} is closed; open it again")
        if self.phase == "faulted":
            raise self.faulted()

    def check_writable(self) -> None:
        """Raise unless the session can be written here and now."""
        self.check()
        if self.storage.read_only:
            raise ReadOnlySession(f"session {self.session_id!r} was opened for reading; open it without read_only")

    def faulted(self) -> SessionFaulted:
        """The error that tells of the fault."""
        if isinstance(self.cause, SessionFaulted):
            return self.cause
        error = SessionFaulted(
            f"session {self.session_id!r} stopped: {self.cause!r}; what was committed is kept, reopen() goes on from it"
        )
        error.__cause__ = self.cause
        return error

    def submit(self, writes: Sequence[Write], publish: Callable[[Commit], None], boundary: str) -> Pending:
        """Hand a commit to the storage; a kill by a probe becomes the session's death."""
        if self.phase == "faulted":
            raise self.faulted()
        if features.FEATURES and (used := self.marks.due(writes)):
            writes, publish = [*writes, *map(features.mark, used)], self._publishing(used, publish)
        try:
            return self.storage.submit(writes, publish=publish, name=boundary)
        except AgentLaneError:
            raise
        except BaseException as error:
            self.fault(error)
            raise self.faulted() from error

    def _publishing(
        self, used: Sequence[features.Feature], publish: Callable[[Commit], None]
    ) -> Callable[[Commit], None]:
        def published(commit: Commit) -> None:
            self.marks.made(used)
            publish(commit)

        return published

    def reached(self, boundary: str) -> None:
        """Tell the probe of an effect boundary; what it raises kills the session, and the effect with it."""
        if self.probe is None:
            return
        try:
            self.probe.reached(boundary)
        except BaseException as error:
            self.storage.kill()
            self.fault(error)
            raise asyncio.CancelledError from error

    def spawn(
        self,
        coroutine: Coroutine[Any, Any, Any],
        name: str,
        done: Callable[[asyncio.Task[Any]], None] | None = None,
    ) -> asyncio.Task[Any]:
        """An owned task in a copy of the context that was there when the session was opened; ``done`` is told."""
        # Not by the loop's factory: an eager one would run foreign code in the middle of a step.
        task = asyncio.Task(coroutine, loop=self.loop, name=name, context=self.context.copy())
        self.tasks.add(task)
        if done is None:
            task.add_done_callback(self.tasks.discard)
        else:
            tell = done

            def ended(task: asyncio.Task[Any]) -> None:
                self.tasks.discard(task)
                tell(task)

            task.add_done_callback(ended)
        return task

    async def end_clean_ups(self) -> None:
        """Stop what is left of effects that have reported; what does not stop within the grace is named."""
        if not self.clean_ups:
            return
        pending = dict(self.clean_ups)
        for task in pending:
            task.cancel()
        timer = self.spawn(self.clock.sleep_until(self.clock.now_ms() + CLEAN_UP_GRACE_MS), "agentlane grace")
        while pending and not timer.done():
            await asyncio.wait({*pending, timer}, return_when=asyncio.FIRST_COMPLETED)
            pending = {task: what for task, what in pending.items() if not task.done()}
        timer.cancel()
        for what in pending.values():
            self.found(f"{what} did not end within {CLEAN_UP_GRACE_MS} ms and was left behind")

    def fault(self, error: BaseException) -> None:
        """Nothing more can be written: end every pass and every waiting step, once."""
        if self.phase in ("faulted", "closed"):
            return
        self.phase = "faulted"
        self.cause = error
        self.killed = not isinstance(error, Exception)
        for callback in tuple(self.on_fault):
            callback(error)

    def found(self, text: str) -> None:
        """Keep a finding that no other channel tells, and log it."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)
        log.warning("session %s: %s", self.session_id, text)

    def _watch_storage(self) -> None:
        self.storage.on_fault = self.fault
        for finding in self.storage.findings:
            if finding not in self.findings:
                self.findings.append(finding)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
