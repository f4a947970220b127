"""What moving a lane's tip returns."""

from __future__ import annotations

from msgspec import Struct

from agentlane.data.messages import UserMessage


class NavigateResult(Struct, frozen=True, gc=False, kw_only=True):
    """A lane's tip was at ``from_tip`` and is at ``tip`` now; None is before the first entry.

    ``summary`` is the entry with the summary of what is left behind, if one was made.
    """

    from_tip: str | None
    tip: str | None
    summary: str | None = None


class RewindResult(Struct, frozen=True, gc=False, kw_only=True):
    """A lane went back: its tip was at ``from_tip`` and is at ``tip``; ``messages`` stood behind that, to be edited."""

    from_tip: str | None
    tip: str | None
    messages: tuple[UserMessage, ...]
