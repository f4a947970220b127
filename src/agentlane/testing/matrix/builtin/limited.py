"""Scenarios in which an operation ends at one of its limits."""

from __future__ import annotations

from collections.abc import Callable

from agentlane.data.requests import Prompt
from agentlane.testing.matrix.builtin.hands import Hands, agent_of, check_effects, mixed
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.script import call, fail


def _ended_at(limit: str) -> Callable[[History[Hands]], None]:
    def check(history: History[Hands]) -> None:
        check_effects(history)
        first = history.results[0]
        if first.status == "completed":
            raise AssertionError(f"the first operation completed, beyond {limit}")
        if first.code == "limit_reached" and (first.error is None or not first.error.message.startswith(limit)):
            raise AssertionError(f"the limit that ended it is {first.error}, not {limit}")

    return check


TURNS = Scenario(
    "an operation that ends at its limit of turns",
    world=Hands,
    check=_ended_at("max_turns"),
    agent=agent_of(
        lambda: [[[call("safe", x=1), call("never", x=2)], "not asked for"]],
        mixed,
        max_turns=1,
        max_time_ms=60_000,
    ),
)

REQUESTS = Scenario(
    "an operation that ends at its limit of requests, interrupted ones counted",
    world=Hands,
    check=_ended_at("max_requests"),
    agent=agent_of(
        lambda: [[[call("safe", x=1)], fail("overloaded", retryable=True), fail("overloaded", retryable=True), "no"]],
        mixed,
        max_requests=3,
    ),
)

IDENTICAL = Scenario(
    "calls of one tool with the same arguments beyond their limit",
    world=Hands,
    check=_ended_at("max_identical_calls"),
    agent=agent_of(
        lambda: [
            [
                [call("safe", x=2)],
                [call("never", x=3), call("safe", x=2)],
                "not asked for",
            ]
        ],
        mixed,
        max_identical_calls=1,
    ),
)


async def _try_again(life: Life[Hands]) -> None:
    """Try what did not complete again, and again, each time as an operation of its own."""
    lane = await life.lane()
    await lane.accept(Prompt("go"), operation_id="op-1")
    for number in (1, 2, 3):
        result = await life.drive(lane, f"op-{number}")
        if result.status == "completed" or number == 3:
            break
        await lane.retry(f"op-{number}", operation_id=f"op-{number + 1}", same_keys=number == 1)


RETRIED = Scenario(
    "an operation that ends at its limit and is tried again",
    world=Hands,
    check=check_effects,
    act=_try_again,
    steady=False,  # how far each try comes is for the stops to say
    agent=agent_of(lambda: [[[call("safe", x=1), call("never", x=2)], [call("key", x=3)], "done"]], mixed, max_turns=1),
)

LIMITED = (TURNS, REQUESTS, IDENTICAL, RETRIED)
