"""Hooks of a program's agents: where they are asked, what they say, and whether they hang; and how they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hypothesis import strategies as st

Point: TypeAlias = Literal[
    "before_run",
    "before_request",
    "transform_context",
    "after_response",
    "before_tool",
    "after_tool",
    "before_finish",
    "before_navigation",
    "before_compaction",
]
Says: TypeAlias = Literal["nothing", "change", "block", "raise", "wrong"]
OnError: TypeAlias = Literal["block", "continue"]

CHANGING = (
    "before_request",
    "transform_context",
    "after_response",
    "before_tool",
    "after_tool",
    "before_finish",
    "before_compaction",
)
"""Points at which a hook has something to give in the place of what it is told."""
REFUSING = ("before_tool", "before_navigation", "before_compaction")
"""Points at which it may refuse."""
BLOCKING = ("before_run", "before_request", "before_tool", "before_navigation")
"""Points at which one that fails stands in the way, if it does not say otherwise."""
FOLLOW_UPS_MAX = 2


@dataclass(frozen=True)
class Hook:
    """One hook. An async one hangs the first ``hang`` times it is asked."""

    point: Point
    says: Says = "nothing"
    on_error: OnError | None = None
    hang: int = 0
    plain: bool = False

    @property
    def hangs(self) -> int:
        """A plain function cannot wait, and who moves a lane waits for its hooks."""
        return 0 if self.plain or self.point == "before_navigation" else self.hang

    @property
    def outcome(self) -> Literal["nothing", "change", "refuse", "fail"]:
        """What comes of what it says."""
        if self.says == "nothing":
            return "nothing"
        if self.says == "change" and self.point in CHANGING:
            return "change"
        return "refuse" if self.says == "block" and self.point in REFUSING else "fail"

    @property
    def blocks(self) -> bool:
        """Whether its failure stands in the way."""
        return self.on_error == "block" or (self.on_error is None and self.point in BLOCKING)


Hooks: TypeAlias = tuple[Hook, ...]

_point: st.SearchStrategy[Point] = st.sampled_from(
    [*get_args(Point)[:-1], "before_tool", "before_tool", "after_tool", "after_response", "before_navigation"]
)
_says: st.SearchStrategy[Says] = st.sampled_from(["change", "change", "change", "nothing", "block", "raise", "wrong"])
_hook = st.builds(
    Hook,
    _point,
    _says,
    st.sampled_from([None, None, "block", "continue"]),
    st.sampled_from([0, 0, 1, 2]),
    st.booleans(),
)


@st.composite
def hooks(draw: st.DrawFn) -> Hooks:
    """A few hooks, two of them often at one point."""
    first = draw(st.lists(_hook, min_size=1, max_size=2))
    again = Hook(first[0].point, draw(_says), draw(st.sampled_from([None, "continue"])), plain=True)
    return (*first, again) if draw(st.booleans()) else tuple(first)


_about_summaries = st.builds(
    Hook,
    st.just("before_compaction"),
    st.sampled_from(["change", "change", "block", "block", "nothing", "raise", "wrong"]),
    st.sampled_from([None, None, "block"]),
    st.sampled_from([0, 0, 1, 1, 2]),
    st.sampled_from([False, False, True]),
)
_beside_summaries = st.builds(
    Hook,
    st.sampled_from(
        [
            "before_navigation",
            "before_navigation",
            "before_navigation",
            "before_run",
            "before_request",
            "transform_context",
            "after_response",
            "before_finish",
            "before_tool",
        ]
    ),
    st.sampled_from(["change", "change", "nothing", "block", "raise"]),
    st.sampled_from([None, "continue", "continue"]),
    st.sampled_from([0, 0, 1]),
    st.booleans(),
)
_only_about_summaries = st.lists(_about_summaries, min_size=1, max_size=2).map(tuple)
hooks_about_summaries: st.SearchStrategy[Hooks] = st.one_of(
    _only_about_summaries,
    st.tuples(_beside_summaries, _about_summaries),
    st.tuples(_about_summaries, _beside_summaries, _beside_summaries),
)
"""Hooks that decline summaries or write them, think about it or fail, and others beside them."""
