"""A run as a terminal shows it: text as it comes, calls as they run, and the end. No provider is needed."""

import asyncio

from agentlane import (
    Agent,
    CallEnded,
    CallProgress,
    CallStarted,
    Prompt,
    Settled,
    TextDelta,
    ToolContext,
    open_session,
    tool,
)
from agentlane.testing import ScriptedModel, call, say


@tool(replay="safe")
async def search(word: str, ctx: ToolContext) -> str:
    """Search the notes for a word."""
    await ctx.progress(f"looking for {word!r}")
    await asyncio.sleep(0.05 * len(word))
    return f"3 notes with {word!r}"


async def show(lane, operation_id: str) -> None:
    """Print one operation until it settles. Whoever stops here stops only looking."""
    async for item in lane.stream(operation_id):
        match item:
            case TextDelta(text=text):
                print(text, end="", flush=True)
            case CallStarted(tool=name, attempt=attempt):
                print(f"\n  {name} runs" + (" again" if attempt > 1 else ""))
            case CallProgress(tool=name, content=content):
                print(f"  {name}: {content[0].text}")
            case CallEnded(tool=name, message=message):
                print(f"  {name} gives {message.text!r}")
            case Settled(result=result):
                print(f"\n({result.status}, {result.turns} turns)")


async def main() -> None:
    script = [
        [say("I look it up."), call("search", word="lighthouse"), call("search", word="sea")],
        "Six notes in all.",
    ]
    agent = Agent(model=ScriptedModel(script, deltas=3), tools=[search])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        admitted = await lane.accept(Prompt("Which notes are about lighthouses and the sea?"))
        async with asyncio.TaskGroup() as group:
            group.create_task(show(lane, admitted.operation_id))
            group.create_task(lane.drive(admitted.operation_id))


asyncio.run(main())
