"""Ids: UUIDv7 (RFC 9562) that grow within a process, in blocks from which related ids are derived for nothing.

The last 16 bits of a fresh id are zero. ``derive(base, n)`` fills them, so that the usage row and the tool results of
an answer have ids that sort right behind it, stay together and need neither space in a state nor time to make.
"""

from __future__ import annotations

import os
from typing import Protocol

from agentlane.clock import Clock

DERIVED_MAX = 0xFFFF


class IdSource(Protocol):
    """Maker of ids for one session; tests give a counting one."""

    def new(self) -> str:
        """A fresh id whose last four hexadecimal digits are zero, greater than every id made before."""
        ...


class Uuid7Source:
    """UUIDv7 with the millisecond, a counter that keeps ids of one process growing, and 46 random bits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        import random  # and with it much else: not for a program that only imports us

        self._random = random.Random(os.urandom(16))
        self._last = 0  # 48 bits of time, 12 of counter

    def new(self) -> str:
        stamp = self._clock.now_ms() << 12
        self._last = stamp = max(stamp, self._last + 1)
        noise = self._random.getrandbits(46)
        head = f"{stamp:015x}"
        tail = f"{(0b10 << 46) | noise:012x}"
        return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{tail[:4]}-{tail[4:]}0000"


def derive(base: str, n: int) -> str:
    """The ``n``-th id of the block that begins with ``base`` (0 is the base itself)."""
    if not 0 <= n <= DERIVED_MAX:
        raise ValueError(f"a block holds ids 0 to {DERIVED_MAX}, not {n}")
    return f"{base[:-4]}{n:04x}"


def usage_id(response: str) -> str:
    """The id of the ledger row that belongs to the answer ``response``."""
    return derive(response, 1)


def call_id(answer: str, index: int) -> str:
    """The id of the ``index``-th call of ``answer``: its invocation id, and the entry id of its result."""
    return derive(answer, 2 + index)


def call_index(answer: str, id: str) -> int | None:
    """Which call of ``answer`` has this id; None if it is not one that ``call_id`` made from it."""
    if id[:-4] != answer[:-4] or answer[-4:] != "0000":
        return None
    try:
        index = int(id[-4:], 16) - 2
    except ValueError:
        return None
    return index if index >= 0 else None


def correction_id(answer: str) -> str:
    """The id of the entry that says what is wrong with ``answer``; no call has it."""
    return derive(answer, DERIVED_MAX)


FOLLOW_UPS_AT_ONCE = 16
"""How many messages hooks may put behind one answer."""

CALLS_MAX = DERIVED_MAX - 2 - FOLLOW_UPS_AT_ONCE


def follow_up_id(answer: str, index: int) -> str:
    """The id of the ``index``-th message that hooks put behind ``answer``."""
    return derive(answer, DERIVED_MAX - FOLLOW_UPS_AT_ONCE + index)


def is_follow_up(id: str) -> bool:
    """Whether this id of a user's message was made by ``follow_up_id``."""
    try:
        return DERIVED_MAX - FOLLOW_UPS_AT_ONCE <= int(id[-4:], 16) < DERIVED_MAX
    except ValueError:
        return False
