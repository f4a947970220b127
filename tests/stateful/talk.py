"""Steps of a host that talks to a lane while it runs: steering, follow-ups, later prompts, submitting, taking back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis import strategies as st

QueuedKind: TypeAlias = Literal["steer", "follow_up", "next_run"]
REQUEST_IDS = ("r-0", "r-1", "r-2")
PLACING: tuple[tuple[Literal["all", "one"], Literal["all", "one"]], ...] = (
    ("all", "one"),
    ("one", "all"),
    *[("all", "one")] * 4,  # type: ignore[list-item]
)
"""How the agent of each handle takes what waits: its steering, its follow-ups."""


@dataclass(frozen=True)
class Say:
    """Queue a message, or two that stay together; ``request`` names a request id."""

    lane: int = 0
    kind: QueuedKind = "steer"
    text: int = 0
    request: int | None = None
    both: bool = False


@dataclass(frozen=True)
class Submit:
    lane: int = 0
    prompt: int = 0
    request: int | None = None
    handle: int = 0


@dataclass(frozen=True)
class CancelQueued:
    """``item``: which of all that ever waited, from the newest."""

    lane: int = 0
    item: int = 0


Talk: TypeAlias = Say | Submit | CancelQueued

_lane = st.sampled_from([0, 0, 0, 1])
_request = st.sampled_from([None, None, 0, 1, 2])
_kind: st.SearchStrategy[QueuedKind] = st.sampled_from(["steer", "follow_up", "follow_up", "next_run"])


@st.composite
def talk(draw: st.DrawFn, lane: st.SearchStrategy[int] = _lane) -> Talk:
    """One thing that is said to a lane, or taken back."""
    match draw(st.integers(0, 6)):
        case 0:
            return CancelQueued(draw(lane), draw(st.integers(0, 2)))
        case 1 | 2:
            return Submit(draw(lane), draw(st.integers(0, 3)), draw(_request), draw(st.sampled_from([0, 0, 1])))
        case _:
            return Say(draw(lane), draw(_kind), draw(st.integers(0, 1)), draw(_request), draw(st.booleans()))


def said(say: Say) -> tuple[str, ...]:
    """The texts of its messages."""
    return (f"say {say.text}", f"more of {say.text}") if say.both else (f"say {say.text}",)
