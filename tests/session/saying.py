"""Short ways to say things to a lane and to read what came of it."""

from __future__ import annotations

from typing import Any

from agentlane import AgentLane, AssistantMessage, Custom, Session, TextPart, ToolResultMessage, UserMessage
from agentlane.model import ModelRequest
from agentlane.testing.faults import FaultPlan
from agentlane.testing.invariants import check_invariants


def user(*texts: str) -> UserMessage:
    return UserMessage(content=tuple(TextPart(text=text) for text in texts))


def line_of(body: Any) -> str:
    if isinstance(body, UserMessage):
        return "user " + "+".join(part.text for part in body.content if isinstance(part, TextPart))
    if isinstance(body, AssistantMessage):
        return f"assistant {body.text}" + (f" ({len(body.calls)} calls)" if body.calls else "")
    if isinstance(body, ToolResultMessage):
        return f"result {body.text}"
    assert isinstance(body, Custom)
    return f"custom {body.type}"


async def told(lane: AgentLane[Any, Any]) -> list[str]:
    """The lane's path, a line for each entry."""
    return [line_of(entry.body) for entry in await lane.entries(newest_first=False)]


def shown(request: ModelRequest) -> list[str]:
    """What a model was shown, a line for each message."""
    return [line_of(message) for message in request.messages]


def commits(plan: FaultPlan) -> list[str]:
    """The names of the commits a plan has seen, in order."""
    return [each.removeprefix("commit.").removesuffix(".after") for each in plan.trace if each.endswith(".after")]


async def sound(session: Session) -> None:
    assert await check_invariants(session) == []
