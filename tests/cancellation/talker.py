"""A model without a memory, whom the last words that it was told tell what to do. It counts streams and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agentlane import (
    AssistantMessage,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartEnd,
    PartStart,
    StreamItem,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
)

USAGE = Usage(input_tokens=1, output_tokens=1)


class Talker:
    """Words: ``hang`` shows something and waits; ``fail`` fails at the first attempt, ``refuse`` always; ``call NAME``
    calls that tool."""

    def __init__(self) -> None:
        self.identity = ModelIdentity(provider="test", name="talker")
        self.limits = ModelLimits()
        self.requests = 0
        self.begun = 0
        self.closed = 0
        self.hanging: asyncio.Event = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        self.requests += 1
        self.begun += 1
        try:
            word, *more = _told(request).split()
            if word == "fail" and request.attempt == 1:
                raise ModelError("try again", retryable=True)
            if word == "refuse":
                raise ModelError("not that")
            if word == "call":
                call = ToolCallPart(id=f"call-{len(request.messages)}", name=more[0], arguments={})
                yield AssistantMessage(content=(call,), stop_reason="tool_calls", usage=USAGE)
                return
            yield PartStart(index=0, kind="text")
            yield PartDelta(index=0, text="said")
            if word == "hang":
                self.hanging.set()
                await asyncio.get_running_loop().create_future()
            yield PartEnd(index=0, part=TextPart(text=f"said {word}"))
            yield AssistantMessage(content=(TextPart(text=f"said {word}"),), stop_reason="stop", usage=USAGE)
        finally:
            self.closed += 1


def _told(request: ModelRequest) -> str:
    """The user's last words, or ``done`` when a tool has been called for them."""
    last = request.messages[-1]
    if isinstance(last, ToolResultMessage):
        return "done"
    assert isinstance(last, UserMessage)
    return "".join(part.text for part in last.content if isinstance(part, TextPart))
