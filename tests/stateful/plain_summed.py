"""What the plain model knows of an operation's summaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Prep:
    """What a summary is made of, as it was when it was begun. ``about``: the summary before it, and the messages."""

    reason: str
    tip: int | None
    size: int
    kept_from: int | None = None
    split: bool = False
    about: tuple[str | None, list[tuple[Any, ...]], int | None] = (None, [], None)


@dataclass
class Apart:
    """What an operation is that is no run: a compaction (``keep`` in tokens), or a navigation."""

    kind: str
    keep: int | None = None
    to: int | None = None
    label: str | None = None
    base: int | None = None
    summary: int | None = None
    text: str = ""


@dataclass
class Summed:
    """What an operation's state knows of summaries."""

    next: str = ""
    """What there is to do at a checkpoint instead of asking the model: ``summarize`` or ``end``."""
    overflow: int | None = None
    """The error entry of the request that was too long."""
    looked: bool = False
    """No summary is due before the next request."""
    without: bool = False
    """One was due and could not be made: the run goes on as it is."""
    shorter: int = 0
    prep: Prep | None = None
    apart: Apart | None = None

    def copy(self) -> Summed:
        return replace(self, apart=None if self.apart is None else replace(self.apart))
