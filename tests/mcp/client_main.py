"""A process whose agent calls the tool of a server until it is killed: ``client_main.run([TARGET, TOOL])``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from agentlane import Agent, Prompt, open_session
from agentlane.mcp import StdioServer
from agentlane.testing import ScriptedModel, call

THROUGH = Path(__file__).parent / "through.py"


def run(arguments: list[str]) -> None:
    target, tool = arguments
    asyncio.run(drive(target, tool))


async def drive(target: str, tool: str) -> None:
    descriptor = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"client {os.getpid()}\n".encode())
    os.close(descriptor)
    environment = {key: os.environ[key] for key in ("ZYGOTE", "NOTES")}
    server = StdioServer("t", sys.executable, ["-I", "-S", str(THROUGH), "stdio"], env=environment, trust_hints=True)
    async with server, open_session(target) as session:
        model = ScriptedModel([[call(tool)], "done"])
        lane = await session.lane("main", Agent(model=model, tools=server.tools()))
        await lane.accept(Prompt("go"), operation_id="op")
        await lane.drive("op")
