"""Steps of a host that delivers the results of calls whose tools have returned without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from agentlane import AgentLane, ApprovalNotPending, PendingResult, ToolResult

DeferringTool: TypeAlias = Literal["later"]
DEFERRING_POLICIES = {"later": "safe"}


@dataclass(frozen=True)
class Deliver:
    """``which``: of the calls of the lane that wait for it, then of the others of their answer, then of older ones.

    ``call`` is which that is, once it is known: the number of its answer, and its own. ``end``: what is delivered.
    """

    lane: int = 0
    which: int = 0
    end: Literal["ok", "raise", "stop", "bad"] = "ok"
    handle: int = 0
    call: tuple[int, int] | None = None


_lane = st.sampled_from([0, 0, 0, 1])


def deliveries(lane: st.SearchStrategy[int] = _lane) -> st.SearchStrategy[Deliver]:
    ends: st.SearchStrategy[Literal["ok", "raise", "stop", "bad"]] = st.sampled_from(
        ["ok", "ok", "ok", "raise", "stop", "bad"]
    )
    return st.builds(Deliver, lane, st.sampled_from([0, 0, 0, 0, 1, 2, 5]), ends, st.sampled_from([0, 0, 1]))


async def deliver(lane: AgentLane[Any, Any], call_id: str, action: Deliver) -> Any:
    """Deliver what the step says."""
    content = "raised" if action.end == "raise" else "delivered"
    result: Any = ToolResult(content=content, is_error=action.end == "raise", terminate=action.end == "stop")
    try:
        await lane.deliver(call_id, PendingResult() if action.end == "bad" else result)
    except ApprovalNotPending as error:
        return ("refused", "ApprovalNotPending", error.details["became"])
    return "done"
