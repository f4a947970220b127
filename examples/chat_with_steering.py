"""A chat in which you may type at any time: what you say while the agent works is steering.

Type a line to say something, `/stop` to abort. The chat is kept in chat.db: start again, and it goes on.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    TextPart,
    UserMessage,
    open_session,
)


class Listener:
    """A stand-in for a provider's model: it says what it has heard since it last spoke."""

    identity = ModelIdentity(provider="example", name="listener")
    limits = ModelLimits()

    async def stream(self, request: ModelRequest) -> AsyncIterator[AssistantMessage]:
        heard: list[str] = []
        for message in request.messages:
            if isinstance(message, AssistantMessage):
                heard.clear()
            elif isinstance(message, UserMessage):
                heard += [part.text for part in message.content if isinstance(part, TextPart)]
        text = TextPart(text="I heard " + " and ".join(heard))
        yield AssistantMessage(content=(text,), stop_reason="stop", model=self.identity)


async def lines() -> AsyncIterator[str]:
    """What is typed, a line at a time, without holding the event loop."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def drive(lane: AgentLane, turn: asyncio.Lock) -> None:
    """Drive what is open, and what its end opens, one after the other; say what was answered."""
    async with turn:
        while (operation := lane.inspect().operation) is not None:
            before = len(await lane.messages())
            result = await lane.resume()
            for message in (await lane.messages())[before:]:
                if isinstance(message, AssistantMessage):
                    print("agent:", message.text)
            if result is not None and result.status != "completed":
                print(f"{operation.operation_id} {result.status}; not said: {[item.text for item in result.returned]}")


async def main() -> None:
    async with open_session("chat.db") as session, asyncio.TaskGroup() as tasks:
        lane = await session.lane("main", Agent(model=Listener()))
        print(f"{len(await lane.messages())} messages so far")
        turn = asyncio.Lock()
        tasks.create_task(drive(lane, turn))  # what an earlier process left
        async for line in lines():
            operation = lane.inspect().operation
            if line != "/stop":
                await lane.submit(line)
            elif operation is not None:
                await lane.request_abort(operation.operation_id)
            tasks.create_task(drive(lane, turn))


asyncio.run(main())
