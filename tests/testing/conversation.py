"""A conversation kept by hand, as the library would keep it, to put questions to models without a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentlane.data.messages import (
    AssistantMessage,
    Frame,
    Message,
    TextPart,
    ToolResultMessage,
    user,
)
from agentlane.model import Model, ModelRequest, StreamItem


@dataclass
class Got:
    """What one stream gave: its frames, its settled message, and what it raised."""

    frames: list[Frame] = field(default_factory=list)
    message: AssistantMessage | None = None
    raised: Exception | None = None

    @property
    def said(self) -> str:
        """The settled text, or in angle brackets how the stream ended without one."""
        if self.raised is not None:
            return f"<{getattr(self.raised, 'kind', type(self.raised).__name__)}>"
        if self.message is None:
            return "<cut>"
        return self.message.text or "+".join(call.name for call in self.message.calls) or "<empty>"


@dataclass
class Conversation:
    """Messages as a request shows them, the open operation and the attempt of its present turn."""

    session_id: str = "s"
    lane: str = "main"
    messages: list[Message] = field(default_factory=list)
    operations: int = 0
    attempt: int = 0

    def prompt(self, *texts: str) -> None:
        """A new operation with a prompt of these user messages."""
        self.operations += 1
        self.add(*[user(text) for text in texts])

    def add(self, *messages: Message) -> None:
        self.messages += messages
        self.attempt = 0

    def request(self) -> ModelRequest:
        """The next attempt of the present turn."""
        self.attempt += 1
        return ModelRequest(
            instructions="",
            messages=self.messages,
            tools=[],
            settings={},
            session_id=self.session_id,
            lane=self.lane,
            operation_id=f"op-{self.operations}",
            attempt=self.attempt,
        )

    async def ask(self, model: Model) -> Got:
        """One attempt; an answer that is kept is added with a result for each of its calls."""
        got = await take(model, self.request())
        message = got.message
        if message is not None and message.stop_reason not in ("error", "aborted") and message.content:
            self.add(message, *results_of(message))
        return got

    async def say(self, model: Model, *texts: str) -> str:
        """A prompt and one attempt at it."""
        self.prompt(*texts)
        return (await self.ask(model)).said


async def take(model: Model, request: ModelRequest) -> Got:
    got = Got()
    try:
        async for item in model.stream(request):
            _keep(got, item)
    except Exception as error:
        got.raised = error
    return got


async def interrupt(model: Model, conversation: Conversation) -> list[StreamItem]:
    """One attempt that is cancelled once the stream has shown all and waits; the items that came."""
    came: list[StreamItem] = []

    async def iterate() -> None:
        async for item in model.stream(conversation.request()):
            came.append(item)

    task = asyncio.ensure_future(iterate())
    await model.hanging(lane=conversation.lane)  # type: ignore[attr-defined]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    return came


def results_of(message: AssistantMessage) -> Sequence[ToolResultMessage]:
    return [
        ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text="fine"),)) for call in message.calls
    ]


def _keep(got: Got, item: StreamItem) -> None:
    assert got.message is None, "the settled message is the last item"
    if isinstance(item, AssistantMessage):
        got.message = item
    else:
        got.frames.append(item)
