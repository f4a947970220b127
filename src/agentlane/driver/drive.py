"""The pass: advances one open operation until it settles or must wait, and tells whoever watches."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane.agent import Agent
from agentlane.data.results import Settled, Waiting
from agentlane.driver.children import version_of
from agentlane.driver.lane_core import LaneCore, RunningPass
from agentlane.driver.limits import LimitWatch
from agentlane.driver.observers import Observers
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.questions import next_expiry, wait_reasons
from agentlane.driver.running import RunningEffects
from agentlane.driver.runtime import Runtime
from agentlane.driver.steps import Steps, StopMode
from agentlane.driver.views import Resolver
from agentlane.errors import DriveInterrupted, SessionClosed, StoreBusy
from agentlane.machine import verdicts
from agentlane.machine.facts import DriveChild


class Pass:
    """One pass over one open operation. Its effects report to it; each of its steps goes through the lane's line."""

    def __init__(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> None:
        self.lane = lane
        self.operation = operation
        self.agent = agent
        self.runtime: Runtime = lane.runtime
        self._wake = asyncio.Event()
        self._observers = Observers(self.poke)
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        resolver = Resolver(agent)
        self._effects = RunningEffects(self, lane, operation, agent, resolver)
        self._steps = Steps(self, lane, operation, agent, self._effects, resolver)

    # What the lane's verbs use.

    def start(self) -> None:
        """Install the pass."""
        self.lane.running = self
        self.operation.driven = True
        self._task = self.runtime.spawn(
            self._run(), f"agentlane pass {self.lane.name}", lambda _task: self._close_out(self._ending())
        )

    @property
    def stopping(self) -> bool:
        """Whether the pass takes no new observers."""
        return self._steps.stopping is not None or self._ended.is_set() or self.operation.result is not None

    async def observe(self, *, wait_for_retry: bool, wait_for_answers: bool) -> Settled | Waiting:
        """Wait for the operation's end, or for a wait if the caller does not want to sit it out."""
        return await self._observers.observe(wait_for_retry=wait_for_retry, wait_for_answers=wait_for_answers)

    async def ended(self) -> None:
        """Wait until the pass is over and everything of it has stopped or is left behind."""
        await self._ended.wait()

    def poke(self) -> None:
        self._wake.set()

    @property
    def winding_down(self) -> bool:
        return self._steps.stopping is not None

    def install(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> RunningPass:
        running = Pass(lane, operation, agent)
        running.start()
        return running

    def being_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def abort_committed(self) -> None:
        self._effects.signal("abort")
        self.poke()

    def stop(self, mode: StopMode) -> None:
        """End the pass as a controlled crash: effects are stopped, nothing new begins, nothing is marked cancelled."""
        if self._steps.stopping is None or mode == "fault":
            self._steps.stopping = mode
        if self.runtime.killed:
            self._effects.drop()
        self.poke()

    # The pass itself.

    async def _run(self) -> None:
        try:
            await self._steps.summaries.prepare()
            while self._steps.stopping is None and not self._effects.lost:
                self._wake.clear()
                try:
                    verdict = await self.lane.line.run(self._steps.decide)
                except StoreBusy as error:
                    # Nothing was written and nothing is lost: reports are kept until somebody drives again.
                    self._observers.tell(error)
                    await self._wake.wait()
                    continue
                if self.operation.result is not None:
                    self._observers.tell(Settled(self.operation.result))
                    return
                if isinstance(verdict, verdicts.DriveChildren):
                    for index in verdict.indices:
                        self._effects.start(DriveChild(index))
                elif isinstance(verdict, verdicts.SleepUntil):
                    if not await self._sleep(verdict.at, self._steps.limits):
                        return
                elif isinstance(verdict, verdicts.AwaitAnswers):
                    await self._effects.notes.flush()  # the pass may end here, and nothing is to be lost by that
                    if not await self._sleep(self._next_wake()):
                        return
                else:
                    await self._woken(self._next_wake() if self.operation.pending or self._effects.waits else None)
            await self._wind_down()
        except asyncio.CancelledError:
            # Natively cancelled (the loop ends, perhaps): as close, for this operation only.
            self._steps.stopping = self._steps.stopping or "close"
            await self._wind_down()
            raise
        except Exception as error:  # every pass turns errors into values: observers get it
            self._observers.tell(error)
            self._steps.stopping = "fault"
            await self._wind_down()
        finally:
            self._close_out(self._ending())

    def _ending(self) -> BaseException:
        if self.runtime.phase == "faulted":
            return self.runtime.faulted()
        if self.runtime.phase in ("closing", "closed"):
            return SessionClosed(
                f"session {self.runtime.session_id!r} closed; operation {self.operation.id} is open and goes on when "
                "it is driven again"
            )
        return DriveInterrupted(
            "a pass was ended from outside the library: its task was cancelled, or the event loop ends; "
            f"operation {self.operation.id} is open; drive it again",
            operation_id=self.operation.id,
        )

    def _close_out(self, ending: BaseException) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._effects.notes.close()
        if self.lane.running is self:
            self.lane.running = None
            self.lane.idle.look()
        self._observers.tell(ending)

    async def _sleep(self, at: int | None, limits: LimitWatch | None = None) -> bool:
        """Announce the wait; sleep while somebody sits it out. False: nobody does, so the pass ends."""
        if self._wake.is_set():
            return True  # something came since the verdict: what would be announced is over, perhaps
        reasons = wait_reasons(self.operation, self.operation.state)
        children = sorted(self._effects.children_waiting(self.runtime.clock.now_ms()).items())
        waiting = Waiting(self.operation.id, (*reasons, *(each.reason for _, each in children)), at)
        self.lane.waited_at = version_of(self.lane)
        if not self._observers.announce(waiting):
            return False
        await self._woken(at if limits is None or at is None else limits.sleep_until(at))
        return True

    def _next_wake(self) -> int | None:
        """When something ends by time that the operation waits for: a question's expiry, or a child's wait."""
        children = self._effects.children_waiting(self.runtime.clock.now_ms()).values()
        times = [next_expiry(self.operation), *(each.waiting.wake_at for each in children)]
        return min((each for each in times if each is not None), default=None)

    async def _woken(self, at: int | None) -> None:
        """Return when something has changed, or when the clock has reached ``at``."""
        timer = None if at is None else self.runtime.spawn(self._wake_at(at), "agentlane timer of a wait")
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _wake_at(self, at: int) -> None:
        await self.runtime.clock.sleep_until(at)
        self.poke()

    # The end of a pass whose operation goes on later.

    async def _wind_down(self) -> None:
        if self.runtime.killed:
            self._effects.drop()
            return
        try:
            await self._effects.stop("close", self._wake)
            if self._steps.stopping != "fault" and self.runtime.phase != "faulted":
                self._steps.stopping = self._steps.stopping or "close"
                await self._save_rest()
        except asyncio.CancelledError:
            self._effects.drop()
            raise
        except Exception as error:  # a fault, or a busy store: what is not committed is dropped
            self.runtime.found(f"closing operation {self.operation.id}: {error!r}")

    async def _save_rest(self) -> None:
        """Flush what was shown and said, commit what came back in time, and put back what never began."""
        await self._effects.flush()
        left = -1
        while len(self._effects.outcomes) != left:  # a commit takes as many as it may hold
            left = len(self._effects.outcomes)
            await self.lane.line.run(self._steps.decide)
            if not self._effects.outcomes:
                break
