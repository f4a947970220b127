"""A session that stops while summaries are made, and how each of its lanes goes on to its end; beside ``every_state``.

``python -m tests.compat.make_summaries`` makes it. Files that it once made are frozen in ``golden_files``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from agentlane import Agent, AgentLane, Compact, CompactionPolicy, Navigate, Prompt, Session, Settled, Waiting
from agentlane.data.entries import BranchSummary, Compaction
from agentlane.testing import ManualClock, ScriptedModel, fail, hang
from tests.crash.world import shape

SESSION = "summaries"
KEPT = CompactionPolicy(keep_tokens=20, instructions="names above all")
BUSY = fail("overloaded", retryable=True, retry_after_ms=60_000)


class Lane(NamedTuple):
    """A lane that has said something, and then stops in a state of its own."""

    asks: str
    """``compact``, ``move``, ``leave`` (with a summary), ``prompt``; ``""``: nothing, it is idle behind a summary."""
    at: str
    summaries: Sequence[Any] = (hang(),)
    answers: Sequence[Any] = ()
    """Behind the three of what it has said."""


LANES: dict[str, Lane] = {
    "asked": Lane("compact", "checkpoint"),
    "compacting": Lane("compact", "summarizing"),
    "waiting": Lane("compact", "summary_wait", [BUSY]),
    "moving": Lane("move", "navigating"),
    "leaving": Lane("leave", "summarizing"),
    "left": Lane("leave", "summary_wait", [BUSY]),
    "refused": Lane("prompt", "summarizing", answers=[fail("context_overflow")]),
    "refused-late": Lane("prompt", "summary_wait", [BUSY], answers=[fail("context_overflow")]),
    "again": Lane("prompt", "generating", ["So far."], answers=[fail("context_overflow"), hang()]),
    "compacted": Lane("", ""),
}


def agent(name: str, *, held: bool) -> Agent[Any, Any]:
    """The agent of a lane: ``held`` in the life that is killed, with models that hang where it stops."""
    lane = LANES[name]
    answers = ["one", "two", "three", *lane.answers, *["done"] * 9] if held else ["done"] * 9
    summaries = lane.summaries if held and lane.asks else "Told again."
    model = ScriptedModel(answers, summaries=summaries)
    return Agent("talker", model=model, compaction=KEPT)


async def ask(lane: AgentLane[Any, Any]) -> str:
    """Accept what the lane is to stop at; the operation's id."""
    name = lane.name
    target = (await lane.entries(newest_first=False))[1].id
    requests = {
        "compact": Compact("and numbers", keep_tokens=30),
        "move": Navigate(target, label="tried"),
        "leave": Navigate(target, label="tried", summarize=True, instructions="what failed"),
        "prompt": Prompt(f"go, {name}"),
        "": Compact(keep_tokens=20),
    }
    return (await lane.accept(requests[LANES[name].asks], operation_id=f"{name}-1")).operation_id


async def go_on(session: Session, clock: ManualClock) -> dict[str, list[str]]:
    """Drive every lane to its end, and behind that one run more; how each ended, and what it is now."""
    ends: dict[str, list[str]] = {}
    for name in LANES:
        lane = await session.lane(name, agent(name, held=False))
        operation, lines = lane.inspect().operation, list[str]()
        if operation is not None:
            outcome = await lane.drive(wait_for_retry=False)
            for _ in range(5):
                if isinstance(outcome, Waiting) and outcome.wake_at is not None:
                    clock.advance(max(0, outcome.wake_at - clock.now_ms()))
                    outcome = await lane.drive(wait_for_retry=False)
            assert isinstance(outcome, Settled), outcome
            result = outcome.result
            lines.append(f"{result.operation_id}: {result.kind} {result.status} {result.code} {result.text!r}")
        lines.append((await lane.run("and now?")).status)
        for entry in await lane.entries(newest_first=False):
            if isinstance(entry.body, Compaction):
                lines.append(f"  compaction {entry.body.summary!r}, {entry.body.kept_from is not None}")
            elif isinstance(entry.body, BranchSummary):
                lines.append(f"  branch summary {entry.body.summary!r}")
            else:
                lines += [f"  {line}" for line in shape([entry.body])]  # type: ignore[list-item]
        ends[name] = lines
    return ends
