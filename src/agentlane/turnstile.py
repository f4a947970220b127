"""One at a time for each key, within the process: between tasks, event loops and threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress


class Turnstile:
    """Lets one holder in for each key; who waits blocks neither its loop nor its thread.

    Whoever leaves wakes all that wait for the key, and they try again: a waiter whose loop was stopped holds up nobody.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[Hashable, list[asyncio.Future[None]]] = {}
        """For each key that somebody holds: who waits for it."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @asynccontextmanager
    async def holding(self, key: Hashable) -> AsyncIterator[None]:
        """Wait until nobody holds ``key``, and hold it. A wait may be cancelled."""
        while (turn := self._take(key)) is not None:
            await turn
        try:
            yield
        finally:
            self._leave(key)

    def _forget(self) -> None:
        """In a forked child nobody holds or waits: those who did are threads and loops of the parent."""
        self._guard = threading.Lock()
        self._waiting = {}

    def _take(self, key: Hashable) -> asyncio.Future[None] | None:
        """Hold ``key``; or the future that is done when it is worth while to try again."""
        with self._guard:
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = []
                return None
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            return turn

    def _leave(self, key: Hashable) -> None:
        with self._guard:
            waiting = self._waiting.pop(key)
        for turn in waiting:
            with suppress(RuntimeError):  # its loop is closed, so nobody waits there any more
                turn.get_loop().call_soon_threadsafe(_wake, turn)


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
