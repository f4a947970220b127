"""The thread on which a JSONL store waits for the disk: one for all its sessions, never one that holds the exit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class SyncThread:
    """A daemon thread that runs what it is given, in order. It lives while somebody uses it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._users = 0
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """One more user."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread, self._users = None, 0  # a forked child has the object, and not the thread
        self._users += 1
        if self._thread is None:
            self._work = SimpleQueue()
            self._thread = threading.Thread(target=_run, args=(self._work,), name=self._name, daemon=True)
            self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Have ``work`` run soon. It must not raise."""
        self._work.put(work)

    def stop(self) -> None:
        """One user less; with the last one the thread ends, after what it was given."""
        self._users -= 1
        if self._users == 0 and self._thread is not None:
            thread, self._thread = self._thread, None
            self._work.put(None)
            thread.join()


def _run(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (each := work.get()) is not None:
        each()
