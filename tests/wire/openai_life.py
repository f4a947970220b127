"""A program that is killed: lanes of two stores over OpenAI's interfaces, some in a stream, some in a tool.

``python -m tests.wire.openai_life FOLDER URL`` drives them all, says ``ready`` once each is where it is to be killed,
and waits for that. Who goes on with the folder uses ``agents`` and ``PLACES`` too.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, NamedTuple

from agentlane import Agent, CallEnded, CallStarted, Prompt, Session, TextDelta, open_session, tool
from tests.wire.openai_apis import APIS

TARGETS = ("work.db", "work.jsonl")
SITUATIONS = ("stream", "tool")


class Place(NamedTuple):
    """Where one lane is killed."""

    target: str
    api: str
    situation: str

    @property
    def lane(self) -> str:
        """The lane's name."""
        return f"{self.api}/{self.situation}"

    @property
    def prompt(self) -> str:
        """What the lane is asked, by which the server knows it."""
        return f"<{self.target} {self.lane}>"


PLACES = [Place(target, api.name, situation) for target in TARGETS for api in APIS for situation in SITUATIONS]


def agents(folder: Path, url: str) -> dict[str, Agent[Any, str]]:
    """The agent of each interface. Its tools write down each start."""

    def note(name: str, prompt: str) -> None:
        with (folder / "effects.log").open("a") as log:
            log.write(f"{name} {prompt}\n")

    @tool(replay="never")
    async def quick(prompt: str) -> str:
        """Ends at once."""
        note("quick", prompt)
        return "quick is done"

    @tool(replay="never")
    async def slow(prompt: str) -> str:
        """Ends never."""
        note("slow", prompt)
        await asyncio.Event().wait()
        return "never"

    return {api.name: Agent(name=api.name, model=api.model(url), tools=[quick, slow]) for api in APIS}


async def reached(session: Session, agent: Agent[Any, str], place: Place) -> None:
    """Drive the lane of a place until it is where it is to be killed."""
    lane = await session.lane(place.lane, agent)
    admitted = await lane.accept(Prompt(place.prompt))
    driving = asyncio.create_task(lane.drive(admitted.operation_id))
    waiting: set[str] = {"text"} if place.situation == "stream" else {"slow started", "quick ended"}
    async with lane.stream(admitted.operation_id) as shown:
        async for item in shown:
            match item:
                case TextDelta():
                    waiting.discard("text")
                case CallStarted(tool=name):
                    waiting.discard(f"{name} started")
                case CallEnded(tool=name):
                    waiting.discard(f"{name} ended")
                case _:
                    pass
            if not waiting:
                break
    _KEPT.append(driving)


_KEPT: list[asyncio.Task[Any]] = []


async def main(folder: Path, url: str) -> None:
    """Bring every lane to its place, say so, and wait."""
    made = agents(folder, url)
    async with open_session(folder / TARGETS[0]) as first, open_session(folder / TARGETS[1]) as second:
        sessions = dict(zip(TARGETS, (first, second), strict=True))
        await asyncio.gather(*(reached(sessions[place.target], made[place.api], place) for place in PLACES))
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
