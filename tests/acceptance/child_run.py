"""A process that runs an agent on a session until it is killed: ``child_run.py TARGET EFFECTS SEED [EXIT_AT]``.

It writes a dot for each boundary it reaches, so that the parent can kill it at one, and ``done`` at its end. Effects
are appended to the file EFFECTS, outside of the store, a line for each start.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Any

from agentlane import Agent, Prompt, RetryPolicy, Tool, ToolContext, open_session
from agentlane.data.operations import ReplayPolicy
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, say, think

PROMPTS = ("look around", "tidy up", "and report")


def script() -> list[Any]:
    """What the model says: parallel calls of all policies, a barrier, a provider error, plain answers."""
    return [
        [think("hm"), say("looking"), *[call("read", x=i) for i in range(3)], call("run", x=3), call("put", x=4)],
        [call("run", x=5), call("alone", x=6), call("run", x=7), call("block", x=8)],
        "tidy enough",
        fail("overloaded", retryable=True),
        [call("run", x=9), call("run", x=10)],
        "done",
        "nothing to report",
    ]


POLICIES: dict[str, ReplayPolicy] = {
    "read": "safe",
    "put": "idempotent",
    "run": "never",
    "alone": "never",
    "block": "safe",
}
LABELS = ["read:0", "read:1", "read:2", "run:3", "put:4", "run:5", "alone:6", "run:7", "block:8", "run:9", "run:10"]


class Dots:
    """Tells the parent of each boundary; dies at one if told so."""

    def __init__(self, exit_at: int | None) -> None:
        self._plan = FaultPlan() if exit_at is None else FaultPlan().exit_at(exit_at)

    def reached(self, boundary: str) -> None:
        os.write(1, b".")
        self._plan.reached(boundary)


def tools(effects: str, chance: random.Random) -> list[Tool[Any, Any]]:
    """Tools that note each start outside, and take a few turns of the loop, so that they end in any order."""

    def note(name: str, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        label = f"{name}:{arguments['x']}"
        descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{label} {ctx.attempt} {ctx.idempotency_key}\n".encode())
        os.close(descriptor)
        return label

    def make(name: str) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            label = note(name, arguments, ctx)
            await ctx.progress("half")
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            return f"{label} done"

        def block(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            return f"{note(name, arguments, ctx)} done"

        function = block if name == "block" else run
        return Tool(name, function, replay=POLICIES[name], parallel=name != "alone")

    return [make(name) for name in POLICIES]


async def main(target: str, effects: str, seed: int, exit_at: int | None) -> None:
    """Accept and drive every prompt; said again after a death, each is the same request."""
    agent = Agent(
        model=ScriptedModel(script(), deltas=3),
        tools=tools(effects, random.Random(seed)),
        retry=RetryPolicy(base_ms=1, cap_ms=5),
    )
    async with open_session(target, probe=Dots(exit_at), seed=seed) as session:
        lane = await session.lane("main", agent)
        for index, prompt in enumerate(PROMPTS):
            await lane.accept(Prompt(prompt), operation_id=f"op-{index}")
            await lane.drive(f"op-{index}")
    os.write(1, b"done")


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0], given[1], int(given[2]), int(given[3]) if len(given) > 3 else None))
