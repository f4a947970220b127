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
        """Return once ``now_ms() >= at_ms``; may be cancelled.

        A clock that is set back while somebody sleeps returns after as long as ``at_ms`` was away when it was called:
        a timeout is a length of time. Who needs the time itself to be reached looks at ``now_ms()`` again.
        """
        ...


NAP_MAX_S = 60
"""Long sleeps are cut, so that a clock that is set forward wakes us soon."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        time_s = asyncio.get_running_loop().time  # nobody sets it
        left_s = (at_ms - self.now_ms()) / 1000
        ends_s = time_s() + left_s
        while left_s > 0:
            await asyncio.sleep(min(left_s, NAP_MAX_S))
            left_s = min((at_ms - self.now_ms()) / 1000, ends_s - time_s())
