"""Steps of a host that tries settled operations again, and the limits of the agents of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True)
class Retry:
    """``of`` None: the lane's last operation; ``op`` None: without an id."""

    lane: int = 0
    of: int | None = None
    op: int | None = None
    same_keys: bool = False
    handle: int = 0


class Limits(TypedDict, total=False):
    """As an agent is given them."""

    max_turns: int
    max_requests: int
    max_tokens: int
    max_cost_nanos: int
    max_time_ms: int
    max_identical_calls: int


LIMITS: tuple[Limits, ...] = (
    {},
    {"max_requests": 4, "max_time_ms": 60},
    {"max_turns": 3, "max_identical_calls": 1},
    {"max_tokens": 230},
    {"max_cost_nanos": 2_000},
    {},
)
"""Those of the agent of each handle. Calls are counted where none holds others back: see ``kin.spoken``."""
