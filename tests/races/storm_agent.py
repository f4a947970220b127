"""An agent for storms: a model that answers by dice and looks at each request, and tools whose effects are counted."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from agentlane import Agent, RetryTool, Tool, ToolContext
from agentlane.data.messages import (
    AssistantMessage,
    ModelIdentity,
    PartDelta,
    PartStart,
    StopReason,
    TextPart,
    ToolCallPart,
)
from agentlane.data.usage import Usage
from agentlane.model import ModelError, ModelLimits, ModelRequest, StreamItem
from agentlane.testing.pair import check_pairing

REQUESTS_MAX = 3
"""Requests of one operation that are answered by dice; the next one is answered with a text."""

CALLS_MAX = 4
TOOLS = ("count", "plain", "repeat", "notes", "stubborn", "broken")
IDENTITIES = (ModelIdentity(provider="storm", name="one"), ModelIdentity(provider="storm", name="two"))


async def drift(dice: random.Random, most: int = 4) -> None:
    """Let the others go on, up to ``most`` times."""
    for _ in range(dice.randrange(most + 1)):
        await asyncio.sleep(0)


class Effects:
    """What tools did, counted outside of any session. Told from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.tools: dict[str, str] = {}

    def begin(self, tool: str, call_id: str) -> None:
        with self._lock:
            self.began[call_id] += 1
            self.tools[call_id] = tool

    def end(self, call_id: str) -> str:
        """Count the end; gives the text of the result."""
        with self._lock:
            self.ended[call_id] += 1
        return f"done {call_id}"


class StormModel:
    """Answers by dice: text, calls, failures and cut streams, with pauses in between."""

    limits = ModelLimits()

    def __init__(self, identity: ModelIdentity, dice: random.Random, *, calm: bool) -> None:
        self.identity = identity
        self.violations: list[str] = []
        self.requests: Counter[str] = Counter()
        self._dice = dice
        self._calm = calm

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        dice = self._dice
        self.violations += check_pairing(request)
        self.requests[request.operation_id] += 1
        number = self.requests[request.operation_id]
        text = f"{request.operation_id} {number}"
        await drift(dice)
        yield PartStart(index=0, kind="text")
        yield PartDelta(index=0, text=text)
        await drift(dice)
        kind = dice.random() if number <= REQUESTS_MAX else 0.0
        if kind > 0.9 and not self._calm:
            raise ModelError("busy", retryable=True, kind="overloaded")
        if kind > 0.85 and not self._calm:
            return  # the stream just ends
        content: list[TextPart | ToolCallPart] = [TextPart(text=text)]
        if kind > 0.3:
            for index in range(1, 1 + dice.randint(1, CALLS_MAX)):
                name = dice.choice(TOOLS)
                content.append(ToolCallPart(id=f"{number}.{index}", name=name, arguments={"i": index}))
        stop: StopReason = "stop" if len(content) == 1 else "tool_calls"
        yield AssistantMessage(content=tuple(content), stop_reason=stop, usage=Usage(input_tokens=1, output_tokens=1))


def storm_agent(effects: Effects, dice: random.Random, *, calm: bool = False) -> tuple[Agent, list[StormModel]]:
    """The agent, and its two models. A ``calm`` one meets no failures of its models."""
    models = [StormModel(identity, dice, calm=calm) for identity in IDENTITIES]

    async def count(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.begin("count", ctx.call_id)
        await drift(dice)
        return effects.end(ctx.call_id)

    def plain(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.begin("plain", ctx.call_id)
        return effects.end(ctx.call_id)

    async def notes(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.begin("notes", ctx.call_id)
        await ctx.progress("a part of it")
        await drift(dice)
        await ctx.set_memo("step", ctx.call_id)
        await ctx.progress("more of it")
        assert await ctx.memo("step") == ctx.call_id
        return effects.end(ctx.call_id)

    async def stubborn(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.begin("stubborn", ctx.call_id)
        try:
            await drift(dice, 10)
        except asyncio.CancelledError:
            await drift(dice, 10)
        return effects.end(ctx.call_id)

    async def broken(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        effects.begin("broken", ctx.call_id)
        await drift(dice)
        raise RetryTool("not today")

    tools: list[Tool[Any, Any]] = [
        Tool("count", count),
        Tool("plain", plain),
        Tool("repeat", count, replay="safe"),
        Tool("notes", notes, replay="idempotent"),
        Tool("stubborn", stubborn, parallel=False),
        Tool("broken", broken),
    ]
    agent: Agent = Agent(model=models[0], models=models[1:], tools=tools, max_parallel=3)
    return agent, models
