"""The plain model of what people are asked and what they said."""

from __future__ import annotations

from typing import Any, NamedTuple


class Asked(NamedTuple):
    """What waits for a person. ``number`` counts all that was asked in the session; ``end`` tells the arguments."""

    number: int
    op: str
    lane: str
    call: tuple[int, int]
    tool: str
    kind: str
    asked_at: int
    expires_at: int | None
    end: str
    progress: str | None = None
    name: str = ""

    def is_over(self, now: int) -> bool:
        """Whether the time for an answer is over."""
        return self.expires_at is not None and now >= self.expires_at

    def reason(self) -> tuple[Any, ...]:
        """It as what a drive waits for."""
        if self.kind == "question":
            return ("question", self.number, self.call, self.tool, self.name)
        return ("approval", self.number, self.call, self.tool, self.expires_at)


class Decided(NamedTuple):
    """What became of it."""

    number: int
    call: tuple[int, int]
    tool: str
    kind: str
    allow: bool
    at: int
    signed: str | None = None
    changed: bool = False
    expired: bool = False

    @property
    def became(self) -> str:
        """As a second answer is told."""
        if self.kind == "question":
            return "answered"
        return "expired" if self.expired else "allowed" if self.allow else "denied"
