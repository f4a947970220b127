"""Steps of a host that moves lanes about the tree, renames and deletes branches, and keeps old handles in its hands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hypothesis import strategies as st

Use: TypeAlias = Literal["tip", "append", "navigate", "accept", "steer"]
KEPT_PROMPT, KEPT_TEXT = "prompt 0", "through a kept handle"
"""What is said through a handle that was kept."""


@dataclass(frozen=True)
class Navigate:
    """``to`` None: before the first entry. ``label``: what the entry that is left behind is called."""

    lane: int = 0
    to: int | None = None
    label: str | None = None


@dataclass(frozen=True)
class Rewind:
    """``before``: which message of a user on the lane's path, from the newest; or any entry, if not ``of_user``."""

    lane: int = 0
    before: int = 0
    label: str | None = None
    of_user: bool = True


@dataclass(frozen=True)
class RenameBranch:
    branch: int = 0
    name: int = 2


@dataclass(frozen=True)
class DeleteBranch:
    branch: int = 0


@dataclass(frozen=True)
class KeepHandle:
    """Hold on to the handle of a branch, or of the lane that is on it."""

    branch: int = 0


@dataclass(frozen=True)
class UseHandle:
    """``which`` of those that were kept in this life, from the newest."""

    which: int = 0
    use: Use = "tip"


Move: TypeAlias = Navigate | Rewind | RenameBranch | DeleteBranch | KeepHandle | UseHandle
MOVES: tuple[type[Move], ...] = get_args(Move)

_label = st.sampled_from([None, None, "left"])
_branch = st.integers(0, 2)


def moves_of(lane: int) -> st.SearchStrategy[Move]:
    """Moves of one lane's tip."""
    on = st.just(lane)
    return st.one_of(
        st.builds(Rewind, on, st.integers(0, 2), _label, st.sampled_from([True, True, True, False])),
        st.builds(Navigate, on, st.integers(0, 6), _label),
        st.builds(Navigate, on, st.one_of(st.none(), st.integers(0, 30)), _label),
    )


def changes_of(branch: int) -> st.SearchStrategy[Move]:
    """What becomes of one branch, and of others."""
    this = st.just(branch)
    return st.one_of(
        st.builds(RenameBranch, _branch, _branch),
        st.builds(RenameBranch, this, st.just((branch + 1) % 3)),
        st.builds(DeleteBranch, this),
        st.builds(DeleteBranch, st.one_of(this, _branch)),
    )


uses: st.SearchStrategy[Move] = st.builds(
    UseHandle, st.integers(0, 2), st.sampled_from(["tip", "append", "navigate", "accept", "steer"])
)
