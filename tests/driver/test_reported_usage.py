"""Claim: what a model says it charged is kept as it says, and no total falls because of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentlane import (
    Agent,
    AssistantMessage,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    RetryPolicy,
    TextPart,
    Usage,
    open_session,
)
from agentlane.model import StreamItem

ODD = Usage(input_tokens=-40, output_tokens=7, cache_read_tokens=-1, cost_nanos=-1)
KEPT = Usage(output_tokens=7)


class Crediting:
    """A model whose counts are below zero: in its answers, in its summaries, and with its first failure."""

    identity = ModelIdentity(provider="test", name="crediting")
    limits = ModelLimits()

    def __init__(self) -> None:
        self.failed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        if not self.failed:
            self.failed = True
            raise ModelError("busy", retryable=True, usage=ODD)
        yield AssistantMessage(content=(TextPart(text="Said."),), stop_reason="stop", usage=ODD)


async def test_a_count_below_zero_is_unknown_wherever_a_model_reports_it() -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=Crediting(), retry=RetryPolicy(base_ms=0)))

        result = await lane.run("go")
        summary = await lane.compact(keep_tokens=0)

        assert (result.status, result.text, summary.status) == ("completed", "Said.", "completed")
        assert [(each.row.kind, each.row.usage) for each in await session.usage()] == [
            ("attempt", KEPT),
            ("attempt", KEPT),
            ("summary", KEPT),
        ]
        totals = session.stats().usage
        assert (totals.input_tokens, totals.output_tokens, totals.cost_nanos) == (0, 21, 0)
        assert totals.unknown_rows == 3
