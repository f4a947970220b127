"""A person is asked before a folder is deleted, the process ends, and the answer is given to the next one.

Run it three times with one word each, or once without: it then plays all three.

    python approve_across_a_restart.py ask       # accept and drive until it waits; nothing was deleted
    python approve_across_a_restart.py answer    # another process lists the question and answers it
    python approve_across_a_restart.py finish    # a third one drives on: the call runs, once
"""

from __future__ import annotations

import asyncio
import sys

from agentlane import Agent, Prompt, Settled, open_session, tool
from agentlane.testing import ScriptedModel, call

STORE = "approvals.db"


@tool(approval=True)
async def delete_folder(path: str) -> str:
    """Delete a folder."""
    print(f"delete_folder({path}) runs")
    return f"deleted {path}"


@tool(replay="safe")
async def list_folder(path: str) -> str:
    """List a folder."""
    print(f"list_folder({path}) runs")
    return "build, src"


def agent() -> Agent:
    answers = [[call("list_folder", path="."), call("delete_folder", path="build")], "The build folder is gone."]
    return Agent("janitor", model=ScriptedModel(answers), tools=[delete_folder, list_folder])


async def step(what: str) -> None:
    async with open_session(STORE) as session:
        lane = await session.lane("main", agent())
        if what == "answer":
            for approval in session.approvals():
                print(f"{approval.question} {approval.tool}{approval.arguments}")
                await lane.decide(approval.approval_id, allow=True, by="ann")
            return
        await lane.accept(Prompt("Clean the build folder."), operation_id="clean-1")
        outcome = await lane.drive("clean-1")
        if isinstance(outcome, Settled):
            print(f"{outcome.result.status}: {outcome.result.text}")
        else:
            print(f"it waits for {len(outcome.reasons)} answer")


for word in sys.argv[1:] or ["ask", "answer", "finish"]:
    asyncio.run(step(word))
