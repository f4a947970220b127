"""Claim: a summary that a hook writes stands for what the hook was shown, whatever is said while it writes."""

from __future__ import annotations

from typing import Any

import pytest

from agentlane import Agent, AgentLane, BeforeCompaction, CompactionPolicy, Decline, SummaryText, hook, open_session
from agentlane.data.entries import Compaction
from agentlane.data.messages import Message, user
from agentlane.testing import ScriptedModel
from tests.driver.compacting import path


def characters(message: Message) -> int:
    return sum(len(getattr(part, "text", "")) for part in message.content)


def agent_with(function: Any) -> Agent:
    return Agent(
        model=ScriptedModel(["a" * 150, "b" * 150, "done", "done too"], summaries="the model's"),
        compaction=CompactionPolicy(context_tokens=1_000, reserve_tokens=250, keep_tokens=250),
        token_counter=characters,
        hooks=[hook("before_compaction", function)],
    )


async def talk(lane: AgentLane) -> None:
    for text in ("first " + "1" * 200, "second " + "2" * 40, "third " + "3" * 190):
        result = await lane.run(text)
        assert result.status == "completed"


async def test_what_is_said_while_a_hook_writes_stands_behind_its_summary() -> None:
    seen: list[int] = []
    lanes: list[AgentLane] = []

    async def write(info: BeforeCompaction) -> SummaryText:
        seen.append(len(info.messages))
        await lanes[0].append_message(
            user("late " + "x" * 200)
        )  # before the summary it would push others out of the tail
        return SummaryText(f"summary {len(seen)}")

    async with open_session(":memory:") as session:
        lanes.append(await session.lane("main", agent_with(write)))
        await talk(lanes[0])
        entries = await lanes[0].entries(newest_first=False)
        summary = next(entry.body for entry in entries if isinstance(entry.body, Compaction))
        kept = [entry.id for entry in entries].index(str(summary.kept_from))
        story = await path(lanes[0])
    assert seen == [len([entry for entry in entries[:kept] if entry.type == "message"])]
    assert story[-3:] == ["compaction summary 1", "user late", "model done"]


@pytest.mark.parametrize("how", ["append_custom", "append_message", "steer", "submit"])
@pytest.mark.parametrize("answer", [None, SummaryText("its own"), Decline("later")])
async def test_a_hook_that_says_something_to_its_lane_is_asked_once(how: str, answer: Any) -> None:
    """It was asked again for what it had said itself, and said it again, without end."""
    asked: list[str] = []
    lanes: list[AgentLane] = []

    async def note(info: BeforeCompaction) -> Any:
        asked.append(info.reason)
        if len(asked) == 5:
            raise RuntimeError("it is asked again and again")
        if how == "append_custom":
            await lanes[0].append_custom("audit", {"number": len(asked)})
        elif how == "append_message":
            await lanes[0].append_message(user("noted"))
        elif len(asked) == 1:  # what is answered may be due for a summary of its own
            await getattr(lanes[0], how)("noted")
        return answer

    async with open_session(":memory:") as session:
        lanes.append(await session.lane("main", agent_with(note)))
        await talk(lanes[0])
        story = await path(lanes[0])
        declined = isinstance(answer, Decline)
        assert len(asked) == (2 if declined and how in ("steer", "submit") else 1)
        made = [line for line in story if line.startswith("compaction")]
        assert made == ([] if declined else ["compaction its own" if answer else "compaction the model's"])
        assert story[-2:] == ["custom audit" if how == "append_custom" else "user noted", "model done"]
