"""Scenarios of an agent whose answer has to be of a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from agentlane.agent import Agent
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call


class Count(Struct):
    """What is asked for."""

    number: int


def _answering(*script: Any) -> Callable[[Life[Hands]], Agent[Any, Count]]:
    def agent(life: Life[Hands]) -> Agent[Any, Count]:
        return Agent(model=ScriptedModel(script), tools=mixed(life), output=Count, max_output_retries=2)

    return agent


def _ended(status: str, output: object) -> Callable[[History[Hands]], None]:
    def check(history: History[Hands]) -> None:
        check_effects(history)
        [result] = history.results
        expected = output if result.status == "completed" else None
        if result.status not in (status, "failed", "aborted") or result.output != expected:
            raise AssertionError(f"the operation is {result.status}, with the output {result.output!r}")

    return check


CORRECTED = Scenario(
    "answers that are not of their type, until one is",
    agent=_answering(
        [call("safe", x=1), call("never", x=2)],
        '"twenty"',
        [call("key", x=3)],
        '{"number": "20"}',
        '```json\n{"number": 20}\n```',
    ),
    world=Hands,
    check=_ended("completed", {"number": 20}),
)

NEVER_RIGHT = Scenario(
    "answers that are never of their type",
    agent=_answering('"no"', '"no"', '"no"'),
    world=Hands,
    check=_ended("failed", None),
)

OUTPUTS = (CORRECTED, NEVER_RIGHT)
