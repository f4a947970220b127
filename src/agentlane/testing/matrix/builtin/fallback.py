"""Scenarios with a list of models, of which some fail and some are gone in later processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import ModelIdentity
from agentlane.testing.matrix.builtin.hands import Hands, check_effects, mixed
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail


def _model(name: str, turns: Sequence[Sequence[Any]]) -> ScriptedModel:
    return ScriptedModel(turns=turns, identity=ModelIdentity(provider="scripted", name=name))


def _agent(life: Life[Hands]) -> Agent[Any, Any]:
    busy = fail("overloaded", retryable=True)
    return Agent(
        model=[
            _model("first", [[busy], [busy]]),
            _model("second", [[[call("safe", x=1), call("never", x=2)], "done"], [busy, busy]]),
        ],
        tools=mixed(life),
    )


FALLBACK = Scenario(
    "a first model that is always busy, and a second one that is sometimes",
    agent=_agent,
    world=Hands,
    prompt=["first", "second"],
    check=check_effects,
)


def _gone(life: Life[Hands]) -> Agent[Any, Any]:
    """The first process has both models, the next only the second, and those after it only the first."""
    names = {1: ("first", "second"), 2: ("second",)}.get(life.number, ("first",))
    return Agent(model=[_model(name, [["done"]]) for name in names], tools=mixed(life))


GONE = Scenario(
    "a list of models of which others are gone in each process",
    agent=_gone,
    world=Hands,
    check=check_effects,
    steady=False,  # which model answers is for the stops to say
)

FALLBACKS = (FALLBACK, GONE)
