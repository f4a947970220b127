"""Asking hooks: in order, and whatever they raise or return becomes a value with a clear text."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from agentlane.data.messages import ErrorInfo
from agentlane.driver.effects import EffectMark
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.runtime import Runtime
from agentlane.driver.tool_results import bounded_text, error_text
from agentlane.errors import InvalidMessage
from agentlane.hooks import Hook, HookPoint

T = TypeVar("T")

HOOK_FAILED = "hook_failed"
TEXT_BYTES_MAX = 4_096
"""How much is kept of what a failed hook says."""


class HookFailed(Exception):
    """A hook failed that may not be passed over; ``error`` names it."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class HookCaller:
    """Asks hooks about ``what``, within one effect. ``stopped`` says whether that effect was told to end."""

    def __init__(self, runtime: Runtime, what: str, stopped: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._what = what
        self._stopped = stopped
        self.asking: Hook | None = None
        """The hook that is being asked now."""

    async def ask(self, hook: Hook, info: Any, take: Callable[[Any], T]) -> T | None:
        """What the hook returned, as ``take`` reads it; None if it returned nothing or its failure is passed over.

        ``HookFailed`` where it may not be. What ends the effect itself is raised as it is.
        """
        self.asking = hook
        try:
            value = hook.function(info)
            if inspect.isawaitable(value):
                value = await value
            if inspect.iscoroutine(value):
                value.close()  # it is no result, and nobody will await it
            if value is None:
                return None
            try:
                return take(value)
            except InvalidMessage as error:
                why = f"returned something that cannot be used: {error}"
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            if self._stopped():
                raise
            why = "cancelled itself"
        except BaseException as error:  # foreign code: SystemExit and foreign BaseExceptions included
            why = f"failed: {error_text(error)}"
        finally:
            self.asking = None
        text = bounded_text(f"hook {hook.name!r} at {hook.point} {why}", TEXT_BYTES_MAX)
        if hook.on_error == "block":
            raise HookFailed(ErrorInfo(code=HOOK_FAILED, message=text))
        self._runtime.found(f"{self._what}: {text}; the hook was passed over")
        return None


def wrong_type(what: str, value: object) -> InvalidMessage:
    """The error for a return of another type than the point takes."""
    return InvalidMessage(f"{what} or None is needed here, not {type(value).__name__}")


class Said(NamedTuple):
    """What the hooks of a point said at one place: ``value`` by the point, or the failure of one that blocks."""

    value: Any
    error: ErrorInfo | None = None


class HookOwner(Protocol):
    """What hooks ask of the pass that asks them."""

    def hook_ended(self, *, lost: bool) -> None:
        """Hooks have said something, or, if ``lost``, ended without anybody having asked them to."""
        ...

    def being_cancelled(self) -> bool:
        """Whether the pass itself is being cancelled natively, as everything is when the loop ends."""
        ...


class HookEffect:
    """The hooks of one point at one place as a task: asked to stop once, left behind after the grace."""

    __slots__ = (
        "_ask",
        "_caller",
        "_ended",
        "_grace_ms",
        "_lane",
        "_mark",
        "_owner",
        "_stopped",
        "_task",
        "_timer",
        "_told",
    )

    def __init__(
        self,
        owner: HookOwner,
        lane: LaneCore,
        operation: OpenOperation,
        ask: Callable[[HookCaller], Awaitable[Any]],
        told: Callable[[Said | None], None],
    ) -> None:
        self._owner = owner
        self._lane = lane
        self._mark = EffectMark(lane)
        self._ask = ask
        self._told = told
        self._caller = HookCaller(lane.runtime, f"operation {operation.id}", self._is_stopped)
        self._grace_ms = operation.config.limits.cancel_grace_ms
        self._stopped = False
        self._ended = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.Task[Any] | None = None

    def start(self, point: HookPoint) -> None:
        """Ask the hooks."""
        self._task = self._lane.runtime.spawn(self._run(), f"agentlane hook {point}", self._task_done)

    def stop(self) -> None:
        """Ask them to end, once; after the grace they are left behind. Nothing is made of what they say then."""
        if self._stopped or self._ended:
            return
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        self._timer = self._lane.runtime.spawn(self._grace(), "agentlane grace of a hook")

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        self._ended = self._mark.ended = self._stopped = True
        for task in (self._task, self._timer):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        self._mark.set()
        runtime = self._lane.runtime
        runtime.reached("effect.hook.start")
        try:
            said = Said(await self._ask(self._caller))
        except HookFailed as failed:
            said = Said(None, failed.error)
        runtime.reached("effect.hook.end")
        self._end(said)

    def _is_stopped(self) -> bool:
        return self._stopped or self._owner.being_cancelled()

    async def _grace(self) -> None:
        runtime = self._lane.runtime
        await runtime.clock.sleep_until(runtime.clock.now_ms() + self._grace_ms)
        if self._ended:
            return
        hook = self._caller.asking
        what = "a hook" if hook is None else f"hook {hook.name!r} at {hook.point}"
        runtime.found(f"{what} did not end within {self._grace_ms} ms and was left behind")
        self._end(None)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ended and not isinstance(error, KeyboardInterrupt):
            self._lane.runtime.found(f"a hook's task: the library failed: {error!r}")
        self._end(None)

    def _end(self, said: Said | None) -> None:
        if self._ended:
            return
        self._ended = self._mark.ended = True
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()
        self._told(None if self._stopped else said)
