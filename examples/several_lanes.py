"""Several lanes of one session at work at once, and one watcher that sees all of them, those made later included."""

import asyncio

from agentlane import Agent, EntryAdded, LaneOpened, OperationSettled, Session, SessionSnapshot, open_session, tool
from agentlane.testing import ScriptedModel, call


@tool(replay="safe")
async def measure(room: str) -> str:
    """Measure a room."""
    return f"{room}: 12 square metres"


def agent(room: str) -> Agent:
    """An agent for one room; its model follows a script."""
    return Agent(
        name=room, model=ScriptedModel([[call("measure", room=room)], f"The {room} is small."]), tools=[measure]
    )


async def watch(session: Session, lanes: int, ready: asyncio.Event) -> None:
    """Print what happens on all lanes until so many runs have settled."""
    async with session.watch() as items:
        async for item in items:
            match item:
                case SessionSnapshot():
                    snapshot = item
                    print(f"at first: {', '.join(snapshot.lanes) or 'no lanes'}")
                    ready.set()
                    continue
                case LaneOpened(lane=lane):
                    print(f"{lane}: opened")
                case EntryAdded(lane=lane, entry=entry):
                    print(f"{lane}: {type(entry.body).__name__}")
                case OperationSettled(lane=lane, result=result):
                    print(f"{lane}: {result.status}: {result.text}")
                    lanes -= 1
            snapshot = snapshot.apply(item)
            if not lanes:
                break
    counts = {name: len(lane.entries) for name, lane in snapshot.lanes.items()}
    print(f"in the end: {counts}")


async def main() -> None:
    async with open_session(":memory:") as session:
        kitchen = await session.lane("kitchen", agent("kitchen"))
        ready = asyncio.Event()
        watching = asyncio.create_task(watch(session, 3, ready))
        await ready.wait()
        hall, attic = await session.lane("hall", agent("hall")), await session.lane("attic", agent("attic"))
        await asyncio.gather(*(lane.run("How large is it?") for lane in (kitchen, hall, attic)))
        await watching


asyncio.run(main())
