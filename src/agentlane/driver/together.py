"""One commit of several lanes: the heads of their lines are held, it is decided once, committed, and all go on.

Lines are held in one order, whoever asks: a parent's before its children's, those of one generation by the name of the
lane. So nobody waits in a circle. Until the commit is handed over, a caller that is cancelled has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agentlane.driver.line import Decision, Done, Hold, Line, Turn, hand_over
from agentlane.driver.runtime import Runtime
from agentlane.errors import SessionFaulted

T = TypeVar("T")


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
