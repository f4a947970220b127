"""A model that says what it was told: its answer depends on nothing but the messages since its last one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from agentlane.data.messages import (
    AssistantMessage,
    Message,
    ModelIdentity,
    TextPart,
    ToolCallPart,
    UserMessage,
)
from agentlane.model import ModelError, ModelLimits, ModelRequest, StreamItem

FAILS = "fail"
"""Told this, it fails for good."""


class Parrot:
    """Answers with the texts that it has not answered; to a text that ``calls`` names it answers with those calls."""

    def __init__(self, calls: Mapping[str, Sequence[str]]) -> None:
        self._calls = calls

    @property
    def identity(self) -> ModelIdentity:
        """Who the answers are from."""
        return ModelIdentity(provider="scripted", name="parrot")

    @property
    def limits(self) -> ModelLimits:
        """What it takes."""
        return ModelLimits()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """The answer, at once."""
        told = _told(request.messages)
        if FAILS in told:
            raise ModelError("it was told to", kind="refused")
        tools = [name for text in told for name in self._calls.get(text, ())]
        place = len(request.messages)
        calls = [
            ToolCallPart(id=f"c{place}-{i}", name=name, arguments={"x": f"{place}.{i}"}) for i, name in enumerate(tools)
        ]
        said = TextPart(text="re: " + ", ".join(told))
        yield AssistantMessage(
            content=(said, *calls), stop_reason="tool_calls" if calls else "stop", model=self.identity
        )


def _told(messages: Sequence[Message]) -> list[str]:
    """The texts of user messages behind the last answer."""
    told: list[str] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, UserMessage):
            told.insert(0, "".join(part.text for part in message.content if isinstance(part, TextPart)))
    return told
