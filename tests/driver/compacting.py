"""Conversations long enough to be compacted, and what of them a request shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane import Agent, AgentLane, CompactionPolicy, Session, open_session
from agentlane.data.entries import BranchSummary, Compaction
from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolResultMessage, UserMessage
from agentlane.model import ModelRequest
from agentlane.storage.memory import MemoryStore
from agentlane.testing import ManualClock, ScriptedModel
from agentlane.testing.clock import CountingIds


def said(label: str, characters: int = 300) -> str:
    """A text that begins with ``label``; a message of it has 108 tokens by ``tokens``, by default."""
    return f"{label} ".ljust(characters, "x")


def tokens(message: Message) -> int:
    """A counter that stays as it is, whatever the library's estimate says: three characters are a token."""
    return 8 + sum(len(part.text) for part in message.content if isinstance(part, TextPart)) // 3


def heads(messages: Sequence[Any]) -> list[str]:
    """The first word of each message, with who says it; a summary is what stands in it."""
    lines: list[str] = []
    for each in messages:
        text = each.text if not isinstance(each, UserMessage) else each.content[0].text
        if "<summary>\n" in text:
            inner = text.split("<summary>\n")[1].split("\n</summary>")[0]
            kind = "branch" if text.startswith("The conversation went") else "summary"
            lines.append(f"[{kind}: {inner}]")
            continue
        who = "user" if isinstance(each, UserMessage) else "result" if isinstance(each, ToolResultMessage) else "model"
        word = (text.split() or [""])[0]
        calls = ",".join(call.name for call in each.calls) if isinstance(each, AssistantMessage) else ""
        lines.append(f"{who} {word}" + (f"({calls})" if calls else ""))
    return lines


def shown(request: ModelRequest) -> list[str]:
    """What a request shows, in short."""
    return heads(request.messages)


def summaries(model: ScriptedModel) -> list[ModelRequest]:
    """The requests for summaries, in order."""
    return [each for each in model.requests if each.purpose == "summary"]


def answers(model: ScriptedModel) -> list[ModelRequest]:
    """The requests for answers, in order."""
    return [each for each in model.requests if each.purpose == "answer"]


def transcript(request: ModelRequest) -> str:
    """The text of a request for a summary."""
    return "".join(part.text for part in request.messages[0].content)


async def path(lane: AgentLane[Any, Any]) -> list[str]:
    """The entries of the lane's path in short, oldest first."""
    lines: list[str] = []
    for entry in await lane.entries(newest_first=False):
        body = entry.body
        if isinstance(body, Compaction):
            lines.append(f"compaction {body.summary}")
        elif isinstance(body, BranchSummary):
            lines.append(f"branch_summary {body.summary}")
        elif hasattr(body, "content"):
            lines += heads([body])
        else:
            lines.append(f"custom {body.type}")
    return lines


async def memory_session(clock: ManualClock | None = None) -> Session:
    """A session in memory whose clock and ids the test controls."""
    clock = clock or ManualClock()
    store = MemoryStore(clock=clock, ids=CountingIds(series=9))
    await store.create("s")
    return await open_session(store, session_id="s", clock=clock, ids=CountingIds(series=1), seed=1)


def compacting(model: ScriptedModel, **options: Any) -> Agent[Any, Any]:
    """An agent that keeps little, and summarizes by itself only what a provider finds too long."""
    options.setdefault("compaction", CompactionPolicy(keep_tokens=120))
    return counted(model, **options)


def counted(model: Any, **options: Any) -> Agent[Any, Any]:
    """An agent that counts by ``tokens``."""
    options.setdefault("token_counter", tokens)
    return Agent(model=model, **options)


async def talk(lane: AgentLane[Any, Any], *labels: str) -> None:
    """A run for each label."""
    for label in labels:
        result = await lane.run(said(label))
        assert result.status == "completed", result
