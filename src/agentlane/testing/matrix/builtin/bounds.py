"""Scenarios with bounds so low that two stops use them up, and answers that come to an end while a session closes."""

from __future__ import annotations

from agentlane.testing.matrix.builtin.hands import Hands, agent_of, check_effects, mixed
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.script import call, fail

RESTARTS = Scenario(
    "one restart of a request is allowed",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("safe", x=1)], "done"]], max_restarts=1),
)

REPLAYS = Scenario(
    "one replay of a call is allowed",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("safe", x=1), call("key", x=2)], "done"]], max_replays=1),
)

NO_REPLAYS = Scenario(
    "no restart and no replay is allowed",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("safe", x=1), call("never", x=2)], "done"]], max_restarts=0, max_replays=0),
)

FAILED = Scenario(
    "a request that fails for good, and another prompt",
    world=Hands,
    check=check_effects,
    prompt=["first", "second"],
    agent=agent_of(lambda: [[[call("safe", x=1)], fail("refused")], ["well"]], mixed),
)

BOUNDS = (RESTARTS, REPLAYS, NO_REPLAYS, FAILED)
