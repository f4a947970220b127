"""Claim: whatever is about to be shown is counted before a request, also what an application puts into a run."""

from __future__ import annotations

from typing import Any

from agentlane import Agent, tool
from agentlane.model import ModelLimits
from agentlane.testing import ScriptedModel, call, check_invariants
from tests.driver.compacting import answers, counted, memory_session, path, said, shown, talk, tokens


async def test_an_entry_that_is_projected_counts_before_the_next_request() -> None:
    asked: list[str] = []

    @tool(replay="safe")
    async def note() -> str:
        await lane.append_custom("note", {"text": said("n1", 3_000)})
        await lane.append_custom("draft", {"text": said("hidden", 9_000)})
        return "ok"

    def projected(data: dict[str, Any]) -> str:
        asked.append(data["text"].split()[0])
        return str(data["text"])

    model = ScriptedModel(
        [said("a1"), said("a2"), [call("note")], "done"], summaries="S1", limits=ModelLimits(context_tokens=2_000)
    )
    agent: Agent[Any, Any] = counted(model, tools=[note], projectors={"note": projected})
    session = await memory_session()
    lane = await session.lane("main", agent)
    await talk(lane, "u1", "u2")

    result = await lane.run("note it")

    assert result.status == "completed" and asked == ["n1"]
    assert all(sum(map(tokens, request.messages)) <= 1_500 for request in answers(model))
    assert (await path(lane))[-3:] == ["custom draft", "compaction S1", "model done"]
    assert shown(answers(model)[-1]) == ["[summary: S1]"]
    assert await check_invariants(session) == []
    await session.close()
