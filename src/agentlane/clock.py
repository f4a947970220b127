"""Time as the library sees it: milliseconds since the epoch, and sleeping until one of them."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for one session; tests give a manual one."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...

    async def sleep_until(self, at_ms: int) -> None:
        """Return once ``now_ms() >= at_ms``; may be cancelled."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - self.now_ms()) > 0:
            # Long sleeps are cut, so that a clock that is set forward wakes us soon.
            await asyncio.sleep(min(left_ms, 60_000) / 1000)
