"""Claim: a run is told of once, also where summaries before its first request are declined again and again."""

from __future__ import annotations

from agentlane import (
    Agent,
    AgentLane,
    BeforeCompaction,
    BeforeRequest,
    BeforeRun,
    CompactionPolicy,
    Decline,
    hook,
    open_session,
)
from agentlane.data.messages import AssistantMessage, TextPart, user
from agentlane.testing import ScriptedModel
from tests.hooks.test_summaries_asked_again import characters


async def test_a_run_is_told_of_once_however_often_a_summary_before_its_first_request_is_declined() -> None:
    asked: list[str] = []
    lanes: list[AgentLane] = []

    async def before_run(info: BeforeRun) -> None:
        asked.append("run")

    async def before_compaction(info: BeforeCompaction) -> Decline:
        asked.append("compaction")
        return Decline("not now")

    async def before_request(info: BeforeRequest) -> None:
        asked.append("request")
        if asked.count("request") == 1:  # it is placed before the request, about which all are asked again
            await lanes[0].steer("and quickly")

    agent = Agent(
        model=ScriptedModel(["done"]),
        compaction=CompactionPolicy(context_tokens=1_000, reserve_tokens=250, keep_tokens=250),
        token_counter=characters,
        hooks=[
            hook("before_run", before_run),
            hook("before_compaction", before_compaction),
            hook("before_request", before_request),
        ],
    )
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        lanes.append(lane)
        for each in ("first", "second"):
            await lane.append_message(user(each + " " + "1" * 400))
            await lane.append_message(AssistantMessage(content=(TextPart(text="a" * 150),), stop_reason="stop"))

        result = await lane.run("third")

    assert result.status == "completed"
    assert asked[:3] == ["run", "compaction", "request"]
    assert asked.count("compaction") == 2 and asked.count("run") == 1
