"""Claim: killed, closed or aborted anywhere, an operation that was asked for by a template goes on with what it was
accepted with, though each process has other files; and a skill that was being read is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlane import Agent, Template, UserMessage
from agentlane.data.messages import TextPart
from agentlane.testing import Depth, History, Life, Scenario, ScriptedModel, call, crash_matrix
from tests.skills.written import write_skill, write_template

OPERATIONS = ("op-1", "op-2")


@pytest.mark.parametrize("backend", ["memory", "jsonl", "sqlite"])
async def test_what_was_accepted_stays_though_each_process_has_other_files(
    backend: str, tmp_path: Path, whole: bool
) -> None:
    digests: dict[str, str] = {}

    def agent(life: Life[None]) -> Agent:
        folder = tmp_path / str(life.number)
        if not folder.exists():
            write_skill(folder / "skills", "pdf", refs__a="A")
            write_template(folder / "templates", "ask", f"of process {life.number}: $1")
        made: Agent = Agent(
            model=ScriptedModel([[call("load_skill", name="pdf", file="refs/a")], "one", "two"]),
            skills=folder / "skills",
            templates=folder / "templates",
        )
        digests[made.templates["ask"].digest] = f"of process {life.number}: "
        return made

    async def act(life: Life[None]) -> None:
        lane = await life.lane()
        for operation in OPERATIONS:
            admitted = await lane.accept(Template("ask", [operation]), operation_id=operation)
            await life.drive(lane, admitted.operation_id)

    def check(history: History[None]) -> None:
        asked = [message for message in history.messages if isinstance(message, UserMessage)]
        for message, operation in zip(asked, OPERATIONS, strict=True):
            origin, [part] = message.expanded_from, message.content
            assert origin is not None and isinstance(part, TextPart)
            assert (origin.name, origin.arguments) == ("ask", (operation,))
            assert part.text == digests[origin.digest] + operation, "the text is that of the file it names"
        assert [result.kind for result in history.results] == ["template", "template"]
        if "aborted" not in [result.status for result in history.results]:
            assert not history.interrupted, "reading is safe to repeat"
            assert history.done["load_skill"] == 1

    scenario = Scenario("templates", agent=agent, act=act, check=check, steady=False)
    memory = backend == "memory"
    every = (1 if memory else 7) if whole else (11 if memory else 23)
    depth = Depth(every=every, again=(11 if memory else 45) if whole else 31)
    report = await crash_matrix(scenario, stores=[backend], depth=depth, folder=tmp_path)

    assert report.rows[0].points > 20 and report.rows[0].kills > 3
