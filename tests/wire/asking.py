"""What wire tests share: a request of a model's, everything that it answers, and agents over a loopback server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from agentlane import (
    AssistantMessage,
    Message,
    Model,
    ModelRequest,
    OutputSchema,
    PartDelta,
    TextPart,
    ToolDefinition,
    UserMessage,
)


class Answered(Struct, frozen=True):
    """What a stream gave: its frames, its settled message, and what it raised."""

    frames: tuple[Any, ...]
    message: AssistantMessage | None
    error: Exception | None

    @property
    def shown(self) -> str:
        """The text of all deltas."""
        return "".join(frame.text for frame in self.frames if isinstance(frame, PartDelta))


def said(text: str) -> UserMessage:
    """A message of the user."""
    return UserMessage(content=(TextPart(text=text),))


def request(
    *messages: Message,
    instructions: str = "",
    tools: Sequence[ToolDefinition] = (),
    settings: Mapping[str, Any] | None = None,
    output: OutputSchema | None = None,
    lane: str = "main",
    purpose: Literal["answer", "summary"] = "answer",
    max_output_tokens: int | None = None,
) -> ModelRequest:
    """A request, of "hello" if of nothing else."""
    return ModelRequest(
        instructions=instructions,
        messages=messages or (said("hello"),),
        tools=tools,
        settings=settings or {},
        session_id="a-session",
        lane=lane,
        operation_id="an-operation",
        attempt=1,
        output=output,
        purpose=purpose,
        max_output_tokens=max_output_tokens,
    )


async def ask(model: Model, given: ModelRequest | None = None) -> Answered:
    """All that the model answers."""
    frames: list[Any] = []
    message: AssistantMessage | None = None
    error: Exception | None = None
    stream: Any = model.stream(request() if given is None else given)
    try:
        async for item in stream:
            assert message is None, "something came behind the settled message"
            if isinstance(item, AssistantMessage):
                message = item
            else:
                frames.append(item)
    except Exception as raised:
        error = raised
    finally:
        await stream.aclose()
    return Answered(tuple(frames), message, error)
