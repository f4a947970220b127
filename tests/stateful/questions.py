"""Steps of a host that answers what tools ask while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from agentlane import AgentLane, ApprovalNotPending

AskingTool: TypeAlias = Literal["query", "survey"]
ASKING_POLICIES = {"query": "safe", "survey": "idempotent"}
QUESTIONS: dict[str, tuple[str, ...]] = {"query": ("q",), "survey": ("q", "r")}
"""What each of them asks, one after the other; it starts again with each answer."""


@dataclass(frozen=True)
class Answer:
    """``which``: of what waits on the lane, then of all that was ever asked, from the newest."""

    lane: int = 0
    which: int = 0
    value: int = 0
    signed: bool = False


_lane = st.sampled_from([0, 0, 0, 1])


def answers(lane: st.SearchStrategy[int] = _lane) -> st.SearchStrategy[Answer]:
    return st.builds(Answer, lane, st.sampled_from([0, 0, 0, 1, 2]), st.integers(0, 9), st.booleans())


async def answer(lane: AgentLane[Any, Any], question_id: str, action: Answer) -> Any:
    """Answer what is asked under this id."""
    try:
        return await lane.answer(question_id, action.value, by="why" if action.signed else None)
    except ApprovalNotPending as error:
        return ("refused", "ApprovalNotPending", error.details["became"])
