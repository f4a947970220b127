"""Which lane's effect is running here, and the check that none waits for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol, TypeAlias

from agentlane.errors import WouldDeadlock

StopReason: TypeAlias = Literal["timeout", "abort", "close"]
"""Why an effect is asked to stop. ``close`` stands for faults and cancelled passes too: nothing is made of its end."""


class WaitNode(Protocol):
    """A lane, as the check sees it."""

    name: str
    waiting_on: list[WaitNode]


class EffectMark:
    """Marks what runs inside one effect, tasks that it starts included, until the effect has ended."""

    __slots__ = ("ended", "lane")

    def __init__(self, lane: WaitNode) -> None:
        self.lane = lane
        self.ended = False

    def set(self) -> None:
        """Mark the current context."""
        _mark.set(self)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Mark what runs in the body, and what it starts."""
        token = _mark.set(self)
        try:
            yield
        finally:
            _mark.reset(token)


_mark: ContextVar[EffectMark | None] = ContextVar("agentlane_effect", default=None)


def current_lane() -> WaitNode | None:
    """The lane whose effect the caller runs in, if that effect has not ended."""
    mark = _mark.get()
    return None if mark is None or mark.ended else mark.lane


@contextmanager
def waiting_on(lane: WaitNode) -> Iterator[None]:
    """Around a wait for ``lane``'s pass; raises ``WouldDeadlock`` if that pass (in the end) waits for this effect."""
    here = current_lane()
    if here is None:
        yield
        return
    if here is lane or _reaches(lane, here):
        raise WouldDeadlock(
            f"an effect of lane {here.name!r} must not wait for lane {lane.name!r}, which waits for that effect; "
            "request_abort() does not wait and is allowed"
        )
    here.waiting_on.append(lane)
    try:
        yield
    finally:
        here.waiting_on.remove(lane)


def _reaches(start: WaitNode, goal: WaitNode) -> bool:
    seen: list[WaitNode] = []
    todo = [start]
    while todo:
        lane = todo.pop()
        if lane is goal:
            return True
        if not any(lane is other for other in seen):
            seen.append(lane)
            todo.extend(lane.waiting_on)
    return False
