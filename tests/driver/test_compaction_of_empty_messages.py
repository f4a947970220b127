"""Claim: a message without anything in it, which no model is shown, keeps nothing from being summarized."""

from __future__ import annotations

from agentlane import CompactionPolicy, Prompt, UserMessage
from agentlane.data.messages import TextPart
from agentlane.testing import ScriptedModel
from tests.driver.compacting import answers, compacting, counted, memory_session, path, said, shown, summaries, talk

EMPTY = UserMessage(content=(TextPart(text=""),))


async def test_an_empty_message_that_waits_for_an_answer_keeps_no_answered_turn() -> None:
    session = await memory_session()
    model = ScriptedModel([said(f"a{number}", 900) for number in range(1, 5)], summaries="S")
    lane = await session.lane("main", compacting(model))
    await talk(lane, "u1", "u2", "u3")
    await lane.append_message(EMPTY)

    result = await lane.compact(keep_tokens=50)

    assert (await path(lane))[-1] == "compaction S" and result.status == "completed"
    await talk(lane, "u4")
    assert shown(answers(model)[-1]) == ["[summary: S]", "user u4"]
    await session.close()


async def test_a_run_with_an_empty_prompt_is_compacted_for_where_one_turn_is_all_there_is() -> None:
    session = await memory_session()
    model = ScriptedModel([said("a1", 3_000), "a2"], summaries="S")
    policy = CompactionPolicy(context_tokens=1_000)
    lane = await session.lane("main", counted(model, compaction=policy))
    await talk(lane, "u1")

    result = await lane.run(Prompt(messages=(EMPTY,)))

    assert result.status == "completed"
    assert len(summaries(model)) == 1
    assert shown(answers(model)[-1]) == ["[summary: S]"]
    await session.close()
