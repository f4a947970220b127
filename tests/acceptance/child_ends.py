"""A process that ends without closing its session: ``child_ends.py TARGET HOW``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from agentlane import Agent, Prompt, Tool, ToolContext, open_session
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call

KEPT: list[Any] = []


async def main(target: str, how: str) -> None:
    begun = asyncio.get_running_loop().create_future()

    async def hang(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        begun.set_result(None)
        return await asyncio.get_running_loop().create_future()

    agent = Agent(model=ScriptedModel([[call("hang")], "done"]), tools=[Tool("hang", hang)])
    session = await open_session(target)
    KEPT.append(session)
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    KEPT.append(driving)
    await begun
    os.write(1, b"begun\n")
    match how:
        case "returns":
            return
        case "raises":
            raise ValueError("on purpose")
        case "exits":
            sys.exit(3)
        case "waits":
            await driving
        case "waits in async with":
            async with session:
                await driving


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
