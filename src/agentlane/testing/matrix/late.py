"""A store in memory whose reports come some turns of the event loop after the commit, as they do from a disk's thread.

What is told in between (a close, an abort) then finds intents that are durable and whose effects have not started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agentlane.storage.contract import Store
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.gates import Gate, GatedStore

TURNS = 8
"""More turns than it takes a close or an abort from being asked for to being looked at."""


class _LateGate(Gate):
    """Lets each commit pass after so many turns, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped: list[Callable[[], None]] = []

    def arrive(self, name: str, go_on: Callable[[], None]) -> None:
        self._wait(go_on, TURNS)

    def drop(self, go_on: Callable[[], None]) -> None:
        self._dropped.append(go_on)

    def _wait(self, go_on: Callable[[], None], turns: int) -> None:
        if any(each is go_on for each in self._dropped):
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._wait, go_on, turns - 1)
        else:
            go_on()


def late(folder: Path) -> Store:
    """Sessions in memory, with reports that come late; ``folder`` is not used."""
    store = GatedStore(MemoryStore(clock=ManualClock(), ids=CountingIds(series=1_000)), hold="before_report")
    store.gate = _LateGate()
    return store
