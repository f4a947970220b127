"""Claim: a summary that a hook writes stands for what the hook was shown, whatever is committed while it writes."""

from __future__ import annotations

from agentlane import (
    Agent,
    AgentLane,
    BeforeCompaction,
    BeforeRequest,
    BeforeRun,
    CompactionPolicy,
    Decline,
    SummaryText,
    hook,
    open_session,
)
from agentlane.data.entries import Compaction
from agentlane.data.messages import AssistantMessage, Message, TextPart, user
from agentlane.testing import ScriptedModel


def characters(message: Message) -> int:
    return sum(len(getattr(part, "text", "")) for part in message.content)


async def test_what_is_placed_while_a_hook_writes_is_shown_to_it_before_its_summary_counts() -> None:
    seen: list[list[str]] = []
    lanes: list[AgentLane] = []

    async def write(info: BeforeCompaction) -> SummaryText:
        seen.append(
            [message.text if hasattr(message, "text") else message.content[0].text for message in info.messages]
        )
        if len(seen) == 1:  # it is placed before the summary, and pushes out of the tail what was in it
            await lanes[0].append_message(user("late " + "x" * 200))
        return SummaryText(f"summary {len(seen)}")

    agent = Agent(
        model=ScriptedModel(["a" * 150, "b" * 150, "done"]),
        compaction=CompactionPolicy(context_tokens=1_000, reserve_tokens=250, keep_tokens=250),
        token_counter=characters,
        hooks=[hook("before_compaction", write)],
    )
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        lanes.append(lane)
        await lane.run("first " + "1" * 200)
        await lane.run("second " + "2" * 40)

        result = await lane.run("third " + "3" * 190)

        entries = await lane.entries(newest_first=False)
        summary = next(entry.body for entry in entries if isinstance(entry.body, Compaction))
        kept = [entry.id for entry in entries].index(str(summary.kept_from))
        before = [entry for entry in entries[:kept] if entry.type == "message"]
    assert result.status == "completed"
    assert len(seen) == 2 and summary.summary == "summary 2"
    assert len(before) == len(seen[1])


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
