"""What is held while something is made of it, and let go when that has ended, however it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Hold(Generic[T]):
    """``async with Hold(thing, thing.close, thing.kill) as thing``: closed behind the block.

    Where the block has failed or was cancelled, that is told, and no failure to close. Where its task is thrown away
    with the event loop nothing can be awaited any more: then it is killed instead. Both are left out for what somebody
    else closes. A class, for what awaits in the end of a generator breaks there (CPython before 3.13).
    """

    def __init__(
        self, held: T, close: Callable[[], Awaitable[None]] | None = None, kill: Callable[[], None] | None = None
    ) -> None:
        self._held = held
        self._close = close
        self._kill = kill

    async def __aenter__(self) -> T:
        return self._held

    def hand_over(self) -> T:
        """Somebody else has it from here on, and lets it go."""
        self._close = self._kill = None
        return self._held

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, GeneratorExit):
            if self._kill is not None:
                self._kill()
        elif self._close is not None and error is None:
            await self._close()
        elif self._close is not None:
            with suppress(Exception):
                await self._close()
