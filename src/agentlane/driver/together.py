"""One commit of several lanes: the heads of their lines are held, it is decided once, committed, and all go on.

Lines are held in one order, whoever asks: a parent's before its children's, those of one generation by the name of the
lane. So nobody waits in a circle. Until the commit of a ``Together`` is handed over, a caller that is cancelled has
changed nothing; ``together`` goes on without its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from agentlane.driver.line import Decision, Done, Hold, Line, Turn, hand_over
from agentlane.driver.runtime import Runtime
from agentlane.errors import SessionFaulted

T = TypeVar("T")


def together(
    runtime: Runtime, next_line: Callable[[Sequence[Line]], Line | None], decide: Callable[[], Decision[T] | Done[T]]
) -> Turn[T]:
    """Take a place in several lines, for a step that is made whether or not anybody waits for it.

    ``next_line`` is told which heads are held already and names the one to hold next, None if that is all; ``decide``
    is then called with all of them held. ``await`` gives what was published, or raises.
    """
    step = _Step(runtime, next_line, decide)
    step.go_on()
    return step.turn


class _Step(Generic[T]):
    def __init__(
        self,
        runtime: Runtime,
        next_line: Callable[[Sequence[Line]], Line | None],
        decide: Callable[[], Decision[T] | Done[T]],
    ) -> None:
        self.turn: Turn[T] = Turn()
        self._runtime = runtime
        self._next_line = next_line
        self._decide = decide
        self._lines: list[Line] = []
        self._holds: list[Hold] = []

    def go_on(self) -> None:
        """Take the next head, or decide when all are held."""
        try:
            line = self._next_line(self._lines)
            if line is not None:
                self._lines.append(line)
                line.hold(self._held, self._failed)
                return
            decided = self._decide()
        except Exception as error:
            self._failed(error)
            return
        if isinstance(decided, Done):
            self.turn.succeed(decided.value)
            self._release()
        else:
            hand_over(self._runtime, [hold.hand_on() for hold in self._holds], self.turn, decided)

    def _held(self, hold: Hold) -> None:
        self._holds.append(hold)
        if self.turn.done():
            self._release()
        else:
            self.go_on()

    def _failed(self, error: BaseException) -> None:
        """Deciding raised, or a line was abandoned: the session is faulted then, and so are all of its lines."""
        self.turn.fail(error)
        self._release()

    def _release(self) -> None:
        for hold in self._holds:
            hold.release()


class Together:
    """Heads of lines that are held. Leaving lets go of all that were not handed on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._holds: list[Hold] = []

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *_: object) -> None:
        for hold in self._holds:
            hold.release()

    async def hold(self, line: Line) -> None:
        """Hold one more line, the next in order."""
        hold = line.hold()
        self._holds.append(hold)
        await hold

    def commit(self, decide: Callable[[], Decision[T] | Done[T]]) -> Turn[T]:
        """Decide and hand over, now; the lines go on with the report, whether or not anybody waits for it."""
        turn: Turn[T] = Turn()
        decided = decide()
        if isinstance(decided, Done):
            turn.succeed(decided.value)
            return turn
        self._runtime.check_writable()
        if not all(hold.held for hold in self._holds):
            raise SessionFaulted(
                "the session was faulted, and reopened, while this waited; nothing was done: ask again"
            )
        hand_over(self._runtime, [hold.hand_on() for hold in self._holds], turn, decided)
        return turn
