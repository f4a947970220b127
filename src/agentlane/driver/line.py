"""The line of one lane: its durable steps, one at a time, each decided on what the one before left.

A step is decided when it is at the head of the line, so it is never computed from a state that has changed since: two
racing steps have exactly two histories. Deciding, handing over and publishing are synchronous; what waits is only the
caller, and cancelling it changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from agentlane.data.writes import Write
from agentlane.driver.runtime import Runtime
from agentlane.storage.contract import Commit
from agentlane.waiting import Outcome

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Decision(NamedTuple, Generic[T_co]):
    """One commit to make, and what becomes true in memory, in one synchronous step, when it is made."""

    writes: Sequence[Write]
    boundary: str
    publish: Callable[[Commit], T_co]
    refused: Callable[[], None] | None = None
    """Called instead of ``publish`` when the commit is not made."""


class Done(NamedTuple, Generic[T_co]):
    """Nothing needs to be written."""

    value: T_co


class Turn(Outcome[T]):
    """A place in the line. ``await`` gives what was published, or raises."""

    __slots__ = ()


class Listener(Protocol):
    """Who is told of each commit of a line, in the step that publishes it."""

    @property
    def listening(self) -> bool:
        """Whether it wants to be told."""
        ...

    def published(self, commit: Commit, writes: Sequence[Write], boundary: str) -> None:
        """The commit is published. Must not raise."""
        ...


class Hold(Turn[None]):
    """A place in a line that is kept: awaited, its head is held, and nothing else goes on there until ``release``."""

    __slots__ = ("_failed", "_line", "_over", "_then")

    def __init__(
        self,
        line: Line,
        then: Callable[[Hold], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self._line = line
        self._over = False
        self._then = then
        self._failed = failed

    def reached(self) -> None:
        """The head is held now: tell who waits."""
        self.succeed(None)
        if self._then is not None:
            self._then(self)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if self._failed is not None:
            self._failed(error)

    @property
    def held(self) -> bool:
        """Whether the head of the line is held; a fault of the session has it let go."""
        return self._line.has(self)

    @property
    def over(self) -> bool:
        """Whether it was given up or handed on."""
        return self._over

    def release(self) -> None:
        """Let the line go on; before its turn, give the place up. Twice does nothing."""
        if not self._over:
            self._over = True
            self._line.let_go(self)

    def hand_on(self) -> Line:
        """The line, to be used for one commit that lets it go on; the hold is over."""
        self._over = True
        return self._line


_Queued: TypeAlias = "tuple[Turn[Any], Callable[[], Decision[Any] | Done[Any]] | None]"


class Line:
    """Decide, commit, publish, one step at a time; steps of other lanes do not wait for ours."""

    def __init__(self, runtime: Runtime, listener: Listener | None = None) -> None:
        self._runtime = runtime
        self._listener = listener
        self._queue: deque[_Queued] = deque()
        self._committing: Turn[Any] | None = None
        self._pumping = False
        self._closed: Exception | None = None

    def run(self, decide: Callable[[], Decision[T] | Done[T]]) -> Turn[T]:
        """Take a place in the line. ``decide`` runs at its head, at once if nothing is before it."""
        turn: Turn[T] = Turn()
        self._queue.append((turn, decide))
        self._pump()
        return turn

    def hold(
        self, then: Callable[[Hold], None] | None = None, failed: Callable[[BaseException], None] | None = None
    ) -> Hold:
        """Take a place in the line, to be kept once its head is reached; ``then`` is called in that moment.

        ``failed`` is called if the line is abandoned before the hold is over.
        """
        hold = Hold(self, then, failed)
        self._queue.append((hold, None))
        self._pump()
        return hold

    def let_go(self, turn: Turn[Any]) -> None:
        """Nothing more comes of what is at the head, if it is ``turn``."""
        if self._committing is turn:
            self._committing = None
            self._pump()

    def close(self, error: Exception) -> None:
        """There is nothing any more that a step could change: each from now on fails with ``error``."""
        self._closed = error

    def abandon(self, error: BaseException) -> None:
        """Fail every step that waits: the session is faulted or dead."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.fail(error)
        while self._queue:
            self._queue.popleft()[0].fail(error)

    def begin(self, turn: Turn[Any]) -> None:
        """``turn`` is at the head now, with a commit under way."""
        self._committing = turn

    def has(self, turn: Turn[Any]) -> bool:
        """Whether ``turn`` is still what is at the head."""
        return self._committing is turn

    def end(self, turn: Turn[Any]) -> None:
        """The commit of ``turn`` was made, or was not: ``go_on`` comes next."""
        if self._committing is turn:
            self._committing = None

    def tell(self, commit: Commit, decided: Decision[Any]) -> None:
        """The commit is published: the listener is told."""
        if self._listener is not None and self._listener.listening:
            self._listener.published(commit, decided.writes, decided.boundary)

    def go_on(self) -> None:
        """Take what comes next."""
        self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._committing is None:
                self._take(*self._queue.popleft())
        finally:
            self._pumping = False

    def _take(self, turn: Turn[Any], decide: Callable[[], Decision[Any] | Done[Any]] | None) -> None:
        if self._closed is not None:
            turn.fail(self._closed)
            return
        if decide is None:
            if isinstance(turn, Hold) and not turn.over:
                self._committing = turn
                turn.reached()
            return
        try:
            decided = decide()
        except Exception as error:  # whoever waits for the step gets it
            turn.fail(error)
            return
        if isinstance(decided, Done):
            turn.succeed(decided.value)
            return
        hand_over(self._runtime, (self,), turn, decided)


def hand_over(runtime: Runtime, lines: Sequence[Line], turn: Turn[Any], decided: Decision[Any]) -> None:
    """Make the commit that was decided at the heads of ``lines``; then they go on. ``turn`` is told how it ended."""
    for line in lines:
        line.begin(turn)

    def publish(commit: Commit) -> None:
        if not lines[0].has(turn):
            return
        try:
            value = decided.publish(commit)
        except Exception as error:  # memory would be behind the disk: a bug, and only a reopen can mend it
            runtime.fault(error)
            return
        for line in lines:
            line.tell(commit, decided)
        _end(lines, turn)
        turn.succeed(value)
        _go_on(lines)

    def refused(error: BaseException) -> None:
        if lines[0].has(turn):
            _end(lines, turn)
            if decided.refused is not None:
                decided.refused()
            turn.fail(error)
            _go_on(lines)

    try:
        pending = runtime.submit(decided.writes, publish, decided.boundary)
    except Exception as error:
        refused(error)
        return
    pending.on_failure(refused)


def _end(lines: Sequence[Line], turn: Turn[Any]) -> None:
    for line in lines:
        line.end(turn)


def _go_on(lines: Sequence[Line]) -> None:
    for line in lines:
        line.go_on()
