"""A coroutine that is watched from outside: each of its suspensions counted, and struck at the one that was chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

Awaited: TypeAlias = "asyncio.Future[Any] | None"
"""What a coroutine is suspended on: a future, or None for one turn of the loop."""


class ThrownAway:
    """What a watched coroutine gives that was closed, as a generator is, instead of being run to its end."""


THROWN_AWAY = ThrownAway()


class TickingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its turns, and whose clock can be moved on without waiting."""

    def __init__(self) -> None:
        self.ticks = 0
        self._ahead_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead_s

    def move_on(self, seconds: float) -> None:
        """Timers that are due within ``seconds`` fire in the next turn."""
        self._ahead_s += seconds

    def _run_once(self) -> None:
        self.ticks += 1
        super()._run_once()  # type: ignore[misc]  # private, and the only place where a turn can be counted


class Bell:
    """A probe that rings once, when so many boundaries were reached since it was set. Told from any thread."""

    def __init__(self) -> None:
        self._left = 0
        self._ring: Callable[[], None] = lambda: None

    def set(self, boundaries: int, ring: Callable[[], None]) -> None:
        """Ring at the boundary of that number, from 1; 0 stops it."""
        self._ring, self._left = ring, boundaries

    def reached(self, boundary: str) -> None:
        """Count, and ring."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._ring()


class Watched:
    """Hands everything between a coroutine and its task through. To be awaited once."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], *, at: int, again: int = 0, bell: Bell | None = None
    ) -> None:
        """``strike`` is called at suspension ``at`` (from 1; 0: never), and at the ``again`` next ones after it."""
        self.coroutine = coroutine
        self.at = at
        self.again = again
        self.strike: Callable[[Awaited], None] = lambda awaited: None
        self.on_suspend: Callable[[], None] = lambda: None
        """Called at each suspension."""
        self.on_resume: Callable[[], None] = lambda: None
        self.bell = bell or Bell()
        self.suspensions = 0
        self.deliveries = 0
        """How often ``CancelledError`` arrived."""
        self.struck = False
        self.struck_at_tick = 0
        self.ended_at_tick = 0
        self._thrown_away = False

    def struck_now(self) -> None:
        """The first cancellation comes now; what follows is counted from here."""
        self.struck, self.struck_at_tick = True, ticks()

    def throw_away(self) -> None:
        """For ``strike``: close the coroutine where it is suspended."""
        self._thrown_away = True

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from self._run())
        finally:
            self.ended_at_tick = ticks()

    def _run(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            self.on_resume()
            try:
                awaited = self.coroutine.send(None) if error is None else self.coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            self._suspended(awaited)
            if self._thrown_away:
                self.coroutine.close()
                return THROWN_AWAY
            error = None
            try:
                yield awaited
            except BaseException as thrown:
                self.deliveries += isinstance(thrown, asyncio.CancelledError)
                error = thrown

    def _suspended(self, awaited: Awaited) -> None:
        self.suspensions += 1
        if self.at and self.at <= self.suspensions <= self.at + self.again:
            if not self.struck:
                self.struck_now()
            self.strike(awaited)
        self.on_suspend()


def ticks() -> int:
    """Turns of the running loop so far."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TickingLoop)
    return loop.ticks
