"""One agent asks another: each question is an operation of its own, found again after a restart. Run it twice."""

import asyncio

from agentlane import Agent, agent_tool, open_session, tool
from agentlane.testing import ScriptedModel, call


@tool(replay="safe")
async def population(city: str) -> str:
    """How many people live in a city."""
    return {"Lyon": "520,000", "Nice": "340,000"}[city]


researcher = Agent(
    name="researcher",
    model=ScriptedModel(
        [[call("population", city="Lyon"), call("population", city="Nice")], "Lyon 520,000, Nice 340,000"]
    ),
    tools=[population],
)
writer = Agent(
    name="writer",
    model=ScriptedModel(
        [[call("researcher", prompt="How many people live in Lyon, and in Nice?")], "Lyon is the larger one."]
    ),
    tools=[agent_tool(researcher, description="Finds facts about cities.")],
)


async def main() -> None:
    async with open_session("cities.db") as session:
        lane = await session.lane("main", writer)
        result = await lane.run("Which is larger, Lyon or Nice?", operation_id="cities-1")
        print(result.text)
        for name in session.lanes():
            said = await session.branch(name).messages()
            print(f"{name.split(':')[0]}: {len(said)} messages")


asyncio.run(main())
