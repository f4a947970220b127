"""A process that fights another one for a session: opens it as often as it can, works, and closes it or dies.

    python contender.py KIND PLACE NAME FIRST LAST EFFECTS WITNESS

In each turn, FIRST to LAST, it appends ``NAME-turn`` to a list, runs a prompt with a tool that writes a line to
EFFECTS, and says so on its output. Some turns end by the death of the process, in the middle of a run; whoever watches
starts it again with the turns that are left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from agentlane import Agent, ListAddress, SessionOwned, StoreOwned, Tool, ToolContext, open_session
from agentlane.storage.contract import Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call

LOG = ListAddress("app.races", "log", str)
CONTENDERS = 2
TRIES_MAX = 1_000_000
DIED = 3
"""Exit status of a turn that ended by death."""


def dies(number: int) -> bool:
    """Whether the turn of that number ends by death."""
    return number % 10 == 1


def store_at(kind: str, place: str) -> Store:
    store: Store = (JsonlStore if kind == "jsonl" else SqliteStore)(place, durability="process")
    return store


async def turn(store: Store, label: str, effects: Path, witness: Path, *, death: bool, prompts_max: int) -> bool:
    """One turn; False if the session is another's. ``prompts_max``: how many the conversation can come to have."""
    try:
        session = await open_session(store, session_id="s")
    except (SessionOwned, StoreOwned):
        with witness.with_suffix(".busy").open("a") as busy:
            fcntl.flock(busy, fcntl.LOCK_SH)  # until the other one is about to let go
        return False
    with witness.open("a") as held, witness.with_suffix(".busy").open("a") as busy:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if there is another owner
        fcntl.flock(busy, fcntl.LOCK_EX)

        def write(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            with effects.open("a") as file:
                file.write(f"{ctx.call_id}\n")
            if death:
                os._exit(DIED)
            return f"done {ctx.call_id}"

        seq = await session.append(LOG, label)
        print(f"wrote {label} {seq}", flush=True)
        model = ScriptedModel(turns=[[[call("write")], "done"]] * prompts_max)
        lane = await session.lane("main", Agent(model=model, tools=[Tool("write", write)]))
        await lane.resume()
        result = await lane.run(label, operation_id=label)
        assert result.status == "completed", result
        print(f"ran {label}", flush=True)
        fcntl.flock(held, fcntl.LOCK_UN)
        fcntl.flock(busy, fcntl.LOCK_UN)
        await session.close()
    return True


async def contend(kind: str, place: str, name: str, first: int, last: int, effects: Path, witness: Path) -> None:
    for number in range(first, last):
        for _ in range(TRIES_MAX):
            store = store_at(kind, place)
            try:
                label, prompts_max = f"{name}-{number}", CONTENDERS * last
                if await turn(store, label, effects, witness, death=dies(number), prompts_max=prompts_max):
                    break
            finally:
                await store.close()


if __name__ == "__main__":
    kind, place, name, first, last, effects, witness = sys.argv[1:]
    asyncio.run(contend(kind, place, name, int(first), int(last), Path(effects), Path(witness)))
