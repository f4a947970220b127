"""Steps of a host that answers for people: what may start, what may run again, with which arguments, and what not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from agentlane import AgentLane, ApprovalInfo, ApprovalNotPending

AskedTool: TypeAlias = Literal["asked", "maybe", "check", "locked"]
ASKED_POLICIES = {"asked": "safe", "maybe": "never", "check": "ask", "locked": "ask"}
"""Tools that people are asked about: always before a start, for some calls, before a replay, and before both."""
EXPIRES_MS = {"asked": 120, "check": 260}
CHANGED = " changed"
"""What a call says at its end that runs with other arguments than the model's."""


@dataclass(frozen=True)
class Decide:
    """``which``: of what waits on the lane, then of all that was ever asked, from the newest.

    ``args``: with arguments that make the call end so, or with some that do not fit.
    """

    lane: int = 0
    which: int = 0
    allow: bool = True
    args: Literal["ok", "raise", "stop", "bad"] | None = None
    signed: bool = False
    handle: int = 0


_lane = st.sampled_from([0, 0, 0, 1])


def decisions(lane: st.SearchStrategy[int] = _lane) -> st.SearchStrategy[Decide]:
    return st.builds(
        Decide,
        lane,
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([None, None, None, "ok", "raise", "stop", "bad"]),
        st.booleans(),
        st.sampled_from([0, 0, 1]),
    )


def needs_a_yes(index: int, end: str) -> bool:
    """What the predicate of ``maybe`` says of a call; it raises for some."""
    if index % 2 and end == "raise":
        raise ValueError("on purpose")
    return index % 2 == 0


def manners(tool: str) -> dict[str, Any]:
    """What such a tool declares beside its policy; nothing for another."""
    if tool not in ASKED_POLICIES:
        return {}
    approval: Any = tool in ("asked", "locked")
    if tool == "maybe":
        approval = _predicate
    return {"approval": approval, "approval_expires_ms": EXPIRES_MS.get(tool), "validate": _fitting}


def _predicate(arguments: dict[str, Any], info: ApprovalInfo) -> bool:
    return needs_a_yes(arguments["index"], arguments["end"])


def _fitting(arguments: dict[str, Any]) -> dict[str, Any]:
    if "index" not in arguments:
        raise ValueError("these do not fit")
    return arguments


async def decide(lane: AgentLane[Any, Any], approval_id: str, action: Decide) -> Any:
    """Answer what is asked under this id."""
    words = "why" if action.signed else None
    try:
        return await lane.decide(
            approval_id, allow=action.allow, reason=words, by=words, args=_arguments(lane, approval_id, action.args)
        )
    except ApprovalNotPending as error:
        return ("refused", "ApprovalNotPending", error.details["became"])


def _arguments(lane: AgentLane[Any, Any], approval_id: str, end: str | None) -> dict[str, Any] | None:
    operation = lane.inspect().operation
    asked = [] if operation is None else [each for each in operation.approvals if each.approval_id == approval_id]
    if end is None:
        return None
    return {"bad": True} if end == "bad" or not asked else {**asked[0].arguments, "end": end, "note": CHANGED}
