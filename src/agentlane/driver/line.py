"""The line of one lane: its durable steps, one at a time, each decided on what the one before left.

A step is decided when it is at the head of the line, so it is never computed from a state that has changed since: two
racing steps have exactly two histories. Deciding, handing over and publishing are synchronous; what waits is only the
caller, and cancelling it changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from agentlane.data.writes import Write
from agentlane.driver.runtime import Runtime
from agentlane.storage.contract import Commit
from agentlane.waiting import Outcome

T = TypeVar("T")


class Decision(NamedTuple, Generic[T]):
    """One commit to make, and what becomes true in memory, in one synchronous step, when it is made."""

    writes: Sequence[Write]
    boundary: str
    publish: Callable[[Commit], T]
    refused: Callable[[], None] | None = None
    """Called instead of ``publish`` when the commit is not made."""


class Done(NamedTuple, Generic[T]):
    """Nothing needs to be written."""

    value: T


class Turn(Outcome[T]):
    """A place in the line. ``await`` gives what was published, or raises."""

    __slots__ = ()


_Queued: TypeAlias = "tuple[Turn[Any], Callable[[], Decision[Any] | Done[Any]]]"


class Line:
    """Decide, commit, publish, one step at a time; steps of other lanes do not wait for ours."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queue: deque[_Queued] = deque()
        self._committing: Turn[Any] | None = None
        self._pumping = False

    def run(self, decide: Callable[[], Decision[T] | Done[T]]) -> Turn[T]:
        """Take a place in the line. ``decide`` runs at its head, at once if nothing is before it."""
        turn: Turn[T] = Turn()
        self._queue.append((turn, decide))
        self._pump()
        return turn

    def abandon(self, error: BaseException) -> None:
        """Fail every step that waits: the session is faulted or dead."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.fail(error)
        while self._queue:
            self._queue.popleft()[0].fail(error)

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._committing is None:
                self._take(*self._queue.popleft())
        finally:
            self._pumping = False

    def _take(self, turn: Turn[Any], decide: Callable[[], Decision[Any] | Done[Any]]) -> None:
        try:
            decided = decide()
        except Exception as error:  # whoever waits for the step gets it
            turn.fail(error)
            return
        if isinstance(decided, Done):
            turn.succeed(decided.value)
            return
        self._committing = turn

        def publish(commit: Commit) -> None:
            if self._committing is not turn:
                return
            try:
                value = decided.publish(commit)
            except Exception as error:  # memory would be behind the disk: a bug, and only a reopen can mend it
                self._runtime.fault(error)
                return
            self._committing = None
            turn.succeed(value)
            self._pump()

        try:
            pending = self._runtime.submit(decided.writes, publish, decided.boundary)
        except Exception as error:
            self._refused(turn, decided, error)
            return
        pending.on_failure(lambda error: self._refused(turn, decided, error))

    def _refused(self, turn: Turn[Any], decided: Decision[Any], error: BaseException) -> None:
        if self._committing is turn:
            self._committing = None
            if decided.refused is not None:
                decided.refused()
            turn.fail(error)
            self._pump()
