"""One question, one tool, one answer. Run it twice: the second run has the answer from work.db."""

import asyncio
from pathlib import Path

from agentlane import Agent, Prompt, Settled, open_session, tool
from agentlane.testing import ScriptedModel, call


@tool(replay="safe")
async def count_words(path: str) -> str:
    """Count the words of a text file."""
    return f"{len(Path(path).read_text().split())} words"


async def main() -> None:
    model = ScriptedModel([[call("count_words", path=__file__)], "It is a short one."])
    agent = Agent(model=model, tools=[count_words])

    async with open_session("work.db") as session:
        lane = await session.lane("main", agent)
        admitted = await lane.accept(Prompt("How long is this program?"), operation_id="count-1")
        outcome = await lane.drive(admitted.operation_id)
        if isinstance(outcome, Settled):
            print(outcome.result.text)


asyncio.run(main())
