"""Waiting until a lane is idle, and visiting it then: one visitor at a time, while accepts of others wait."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from agentlane.driver.effects import EffectMark, WaitNode, current_lane, waiting_on
from agentlane.errors import InvalidMessage
from agentlane.waiting import Outcome

if TYPE_CHECKING:
    from agentlane.driver.lane_core import LaneCore

T = TypeVar("T")


class _Visits:
    """The visits of a lane, as the check for deadlocks sees them."""

    def __init__(self, lane: str) -> None:
        self.name = f"{lane} (its visitor)"
        self.waiting_on: list[WaitNode] = []


class IdleWatch:
    """Who waits for a lane to be idle; ``idle`` says whether it is. Without waiters it costs a look at empty lists."""

    def __init__(self, lane: str, idle: Callable[[], bool]) -> None:
        self.visits = _Visits(lane)
        self._idle = idle
        self._visiting = False
        self._watching: list[Outcome[None]] = []
        self._visitors: deque[Outcome[None]] = deque()
        self._held: list[Outcome[None]] = []
        """Accepts that wait for the visitor to leave."""

    @property
    def now(self) -> bool:
        """Whether the lane is idle now."""
        return self._idle()

    def look(self) -> None:
        """Something ended: tell those who wait, and let the next visitor in, in the same step."""
        if not (self._watching or self._visitors) or not self._idle():
            return
        watching, self._watching = self._watching, []
        for each in watching:
            each.succeed(None)
        if self._visitors and not self._visiting:
            self._visiting = True
            self._visitors.popleft().succeed(None)

    def fail(self, error: BaseException) -> None:
        """The session ends, or is faulted: nobody waits any longer. A visitor that is in goes on to its own end."""
        waiting = [*self._watching, *self._visitors, *self._held]
        self._watching, self._held = [], []
        self._visitors.clear()
        for each in waiting:
            each.fail(error)

    async def wait(self) -> None:
        """Until the lane is idle."""
        if not self._idle():
            turn: Outcome[None] = Outcome()
            self._watching.append(turn)
            await turn

    async def enter(self) -> None:
        """Until the lane is idle and no visitor is in; then this one is."""
        turn: Outcome[None] = Outcome()
        self._visitors.append(turn)
        self.look()
        try:
            await turn
        except BaseException:
            if turn in self._visitors:
                self._visitors.remove(turn)
            elif turn.done() and turn.error is None:  # let in, and cancelled before it knew
                self.leave()
            raise

    def leave(self) -> None:
        """The visitor that was in has left."""
        self._visiting = False
        held, self._held = self._held, []
        for each in held:
            each.succeed(None)
        self.look()

    def inside(self) -> bool:
        """Whether the caller is the visitor, or was started by it."""
        return current_lane() is self.visits

    def holds(self, *, inside: bool) -> bool:
        """Whether an accept has to wait. On a lane with an open operation none does: it is told so."""
        return self._visiting and not inside and self._idle()

    async def admission(self, *, inside: bool) -> None:
        """Until no visitor holds accepts back."""
        while self.holds(inside=inside):
            turn: Outcome[None] = Outcome()
            self._held.append(turn)
            with waiting_on(self.visits):
                await turn


async def wait_idle(lane: LaneCore) -> None:
    """See ``AgentLane.wait_idle``."""
    lane.check()
    if not lane.idle.now:
        lane.check_writable()  # to who only reads, it stays as it was
    with waiting_on(lane):
        await lane.idle.wait()


async def run_when_idle(lane: LaneCore, function: Callable[[], Awaitable[T]]) -> T:
    """See ``AgentLane.run_when_idle``."""
    if not callable(function):
        raise InvalidMessage(f"run_when_idle: a function is needed here, not {type(function).__name__}")
    lane.check_writable()
    with waiting_on(lane), waiting_on(lane.idle.visits):
        await lane.idle.enter()
    mark = EffectMark(lane.idle.visits)
    try:
        lane.check_writable()  # it may be gone by now
        with waiting_on(lane.idle.visits), mark.inside():
            made = function()
            if not inspect.isawaitable(made):
                raise InvalidMessage(
                    f"run_when_idle: an async function is needed here; {function!r} returned {type(made).__name__}"
                )
            return await made
    finally:
        mark.ended = True
        lane.idle.leave()
